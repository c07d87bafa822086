"""The pipeline's only way to the server: HTTP, from the driver and from every executor."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.errors import PenstockError
from penstock.flush import LeaseRequest, Leases, Outcome, Renewal, Report, ReportAnswer
from penstock.log import frame as frames
from penstock.log.frame import Frame

TIMEOUT_S = 60.0
FRAMES_BYTES_MAX = 16 * 1024 * 1024
FILE_CHUNK_BYTES = 8 * 1024 * 1024

T = TypeVar("T")


class ServerLost(PenstockError):
    """The server does not answer, or not as it should. The work goes back to it by itself."""


class FileRefused(PenstockError):
    """The server will not or cannot read a file for an S3 task."""


class Appended(msgspec.Struct):
    first_sequence: int


class ServerClient:
    """One connection per thread, kept open. Cheap to copy to executors: only address and token travel."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._url = url
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or 8080
        self._token = token
        self._local = threading.local()
        self._connections: set[http.client.HTTPConnection] = set()  # of all threads

    def __reduce__(self) -> tuple[type[ServerClient], tuple[str, str]]:
        return ServerClient, (self._url, self._token)

    def close(self) -> None:
        """When no thread uses it any more. What is asked later opens the connection again."""
        for connection in self._connections:
            connection.close()

    # -- leases -------------------------------------------------------------------------------------

    def lease(self, request: LeaseRequest) -> Leases:
        return self._post("/v1/pipeline/lease", request, Leases)

    def renew(self, pipeline: str, flushes: list[int] | None = None) -> None:
        self._post("/v1/pipeline/renew", Renewal(pipeline, flushes), dict[str, str])

    def report(self, pipeline: str, outcomes: list[Outcome]) -> ReportAnswer:
        return self._post("/v1/pipeline/report", Report(pipeline, outcomes), ReportAnswer)

    # -- data ---------------------------------------------------------------------------------------

    def frames(self, stream: str, first: int, behind: int) -> Iterator[Frame]:
        """The frames that hold messages `first` up to `behind`; the outermost may hold more than that."""
        sequence = first
        while sequence < behind:
            query = urlencode(
                {"stream": stream, "from": sequence, "to": behind, "max_bytes": FRAMES_BYTES_MAX}
            )
            status, headers, body = self._request("GET", f"/v1/frames?{query}")
            if status == 204:
                return
            if status != 200:
                raise ServerLost(f"the server answered {status} to a bulk read: {body[:300]!r}")
            if "penstock-next-sequence" not in headers:
                raise ServerLost(
                    f"what answers at {self._url} to a bulk read is not a server of this version"
                )
            yield from frames.decode_frames(body)
            following = int(headers["penstock-next-sequence"])
            if following <= sequence:
                return
            sequence = following

    def append(self, stream: str, payloads: list[bytes]) -> int:
        """Append over HTTP, for writers that are Spark tasks. Returns the first sequence number."""
        body = b"".join(len(payload).to_bytes(4, "little") + payload for payload in payloads)
        status, _, answer = self._request("POST", f"/v1/messages?stream={quote(stream, safe='')}", body)
        if status != 200:
            raise ServerLost(f"the server refused {len(payloads)} messages for {stream}: {_error_of(answer)}")
        return self._decode(answer, Appended).first_sequence

    def file_size(self, url: str) -> int:
        """Size of a local file of the server's machine, if tasks may read it."""
        query = urlencode({"url": url})
        status, headers, _ = self._request("HEAD", f"/v1/files?{query}")
        if status != 200:  # an answer to HEAD has no room for the reason
            status, _, body = self._request("GET", f"/v1/files?{query}&size=1")
            raise _file_error(status, body)
        return int(headers["penstock-file-size"])

    def file_part(self, url: str, offset: int, size_bytes: int) -> bytes:
        query = urlencode({"url": url, "offset": offset, "size": size_bytes})
        status, _, body = self._request("GET", f"/v1/files?{query}")
        if status != 200:
            raise _file_error(status, body)
        return body

    def get(self, path: str, kind: type[T]) -> T:
        status, _, body = self._request("GET", path)
        if status != 200:
            raise ServerLost(f"the server answered {status} to {path}: {_error_of(body)}")
        return self._decode(body, kind)

    # -- HTTP ---------------------------------------------------------------------------------------

    def _post(self, path: str, value: object, kind: type[T]) -> T:
        status, _, body = self._request("POST", path, msgspec.json.encode(value))
        if status != 200:
            raise ServerLost(f"the server answered {status} to {path}: {_error_of(body)}")
        return self._decode(body, kind)

    def _decode(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise ServerLost(
                f"what answers at {self._url} is not a server of this version ({error}): {body[:300]!r}; "
                "name the server's HTTP address with --server"
            ) from error

    def _request(
        self, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request; a kept connection that the server has closed meanwhile is replaced once."""
        for fresh in (False, True):
            connection = self._connection(fresh)
            try:
                connection.request(method, path, body, {"Authorization": f"Bearer {self._token}"})
                response = connection.getresponse()
                content = response.read()
                headers = {name.lower(): value for name, value in response.getheaders()}
                return response.status, headers, content
            except (OSError, http.client.HTTPException) as error:
                self._local.connection = None
                self._connections.discard(connection)
                connection.close()
                if fresh:
                    raise ServerLost(
                        f"the server at {self._url} does not answer ({error}); is it running?"
                    ) from error
        raise AssertionError("unreachable")

    def _connection(self, fresh: bool) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None or fresh:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
            self._local.connection = connection
            self._connections.add(connection)
        return connection


def _file_error(status: int, body: bytes) -> PenstockError:
    """Only what the server says about the file itself ends a task; its own troubles do not."""
    text = _error_of(body)
    return FileRefused(text) if status in (400, 403, 404, 416) else ServerLost(f"{status}: {text}")


def _error_of(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:300].decode(errors="replace")
