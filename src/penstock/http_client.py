"""A small synchronous client of the HTTP door, for the command line and the supervisor."""

from __future__ import annotations

import http.client
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from penstock.client import ServerFailed, ServerUnreachable, Unauthorized
from penstock.delivery.listing import DeliveryDescription, DeliveryListing, DeliveryRecords
from penstock.delivery.view import DeliveryView
from penstock.errors import ExportNotFound, InvalidRequest, PenstockError
from penstock.export_view import ExportView

TIMEOUT_S = 30.0

T = TypeVar("T")

_ERROR_OF_STATUS: dict[int, type[PenstockError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    404: ExportNotFound,
}


class HttpClient:
    """A connection is made when one is needed, and kept."""

    def __init__(self, url: str, token: str, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._token = token
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def exports(self) -> list[ExportView]:
        views = self._call("GET", "/v1/exports", list[ExportView])
        return sorted(views, key=lambda view: (view.stream, view.identifier))

    def export(self, stream: str, identifier: str) -> ExportView:
        for view in self.exports():
            if (view.stream, view.identifier) == (stream, identifier):
                return view
        raise ExportNotFound(f"stream {stream} has no export {identifier}; 'penstock exports list' shows all")

    def retry_now(self, stream: str, identifier: str) -> None:
        query = urlencode({"stream": stream, "export": identifier})
        self._call("POST", f"/v1/exports/retry?{query}", dict[str, str])

    def rewind(self, stream: str, identifier: str, position: int) -> ExportView:
        query = urlencode({"stream": stream, "export": identifier, "to": position})
        return self._call("POST", f"/v1/exports/rewind?{query}", ExportView)

    def deliveries(self) -> list[DeliveryListing]:
        return self._call("GET", "/v1/delivery", list[DeliveryListing])

    def delivery(self, arn: str) -> DeliveryDescription:
        return self._call("GET", f"/v1/delivery/describe?{urlencode({'arn': arn})}", DeliveryDescription)

    def flush_delivery(self, arn: str, wait_ms: int, upto: int | None = None) -> DeliveryView:
        """Deliver what is there now, or only what is before the number `upto`."""
        query = {"arn": arn, "wait_ms": wait_ms} | ({} if upto is None else {"upto": upto})
        return self._call("POST", f"/v1/delivery/flush?{urlencode(query)}", DeliveryView)

    def set_delivery_sql(self, arn: str, sql: str) -> DeliveryListing:
        query = urlencode({"arn": arn})
        return self._call("POST", f"/v1/delivery/sql?{query}", DeliveryListing, sql.encode())

    def delivery_records(self, arn: str, start: int | None, count: int, wait_ms: int) -> DeliveryRecords:
        """From the end on if there is no `start`."""
        query = {"arn": arn, "count": count, "wait_ms": wait_ms} | ({} if start is None else {"from": start})
        return self._call("GET", f"/v1/delivery/records?{urlencode(query)}", DeliveryRecords)

    def _call(self, method: str, path: str, kind: type[T], body: bytes | None = None) -> T:
        try:
            self._connection.request(method, path, body, headers={"Authorization": f"Bearer {self._token}"})
            response = self._connection.getresponse()
            body = response.read()
        except OSError as error:
            self.close()
            raise ServerUnreachable(
                f"no server answers at {self._url} ({error.strerror or error}); "
                "start one with 'penstock up', or name another with --http http://HOST:PORT"
            ) from error
        except http.client.HTTPException as error:
            self.close()
            raise self._not_a_server("it does not speak HTTP") from error
        if response.status != 200:
            kind_of_error = _ERROR_OF_STATUS.get(response.status, ServerFailed)
            raise kind_of_error(_error_text(body) or f"{self._url} answered with status {response.status}")
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise self._not_a_server(error) from error

    def _not_a_server(self, why: object) -> ServerUnreachable:
        return ServerUnreachable(
            f"what answers at {self._url} is not a server of this version ({why}); "
            "give its HTTP port (not its Stream Manager port) with --http http://HOST:PORT"
        )


def _error_text(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, str])["error"])
    except (msgspec.DecodeError, KeyError):
        return ""
