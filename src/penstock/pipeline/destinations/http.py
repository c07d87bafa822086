"""HTTP: every message in a POST of its own, or many of them as one JSON array."""

from __future__ import annotations

import http.client
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import repeat
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

from penstock.pipeline.destinations.base import (
    Columns,
    DeliveryFailed,
    Destination,
    Progress,
    Record,
    column_batches,
)

JSON_BATCHED = 1
BATCH_SIZE_MAX = 500
BATCH_BYTES_MAX = 8 * 1024 * 1024  # of payloads; a message larger than this is a batch of its own
REQUEST_ID_HEADER = "Penstock-Request-Id"
ANSWER_BYTES_MAX = 64 * 1024
IDLE_CONNECTIONS_MAX = 64

Address = tuple[bool, str, int]  # TLS or not, host, port


class Message(msgspec.Struct, rename="camel", gc=False):
    """A message as the SDKs serialise it: the payload becomes base64."""

    stream_name: str
    sequence_number: int
    ingest_time: int
    payload: bytes


class Target(NamedTuple):
    secure: bool
    host: str
    port: int
    path: str
    authorization: str | None

    @property
    def address(self) -> Address:
        return self.secure, self.host, self.port

    def __str__(self) -> str:
        """For error texts: without user, password and query, which may be secret."""
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}{self.path.partition('?')[0]}"


def parse_uri(uri: str) -> Target:
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise DeliveryFailed(f"the uri of the export is not valid: {error}", permanent=True) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DeliveryFailed("the uri of the export must begin with http:// or https://", permanent=True)
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    if parts.query:
        path += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~?")
    authorization = None
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + b64encode(user.encode()).decode()
    secure = parts.scheme == "https"
    return Target(secure, parts.hostname, port or (443 if secure else 80), path, authorization)


class Http(Destination):
    def deliver(self, records: Iterator[Record], progress: Progress) -> None:
        columns = (Columns([number], [arrival_ms], [payload]) for number, arrival_ms, payload in records)
        self.deliver_columns(columns, progress)

    def deliver_columns(self, columns: Iterable[Columns], progress: Progress) -> None:
        poster = _Poster(
            parse_uri(str(self.config["uri"])), self.settings.connect_timeout_s, self.settings.read_timeout_s
        )
        try:
            if self.config.get("exportFormat") == JSON_BATCHED:
                self._deliver_batches(columns, poster, progress)
            else:
                self._deliver_each(columns, poster, progress)
        finally:
            poster.release()

    def _deliver_each(self, columns: Iterable[Columns], poster: _Poster, progress: Progress) -> None:
        for part in columns:
            for number, payload in zip(part.sequence_numbers, part.payloads, strict=True):
                poster.post(payload, "application/octet-stream", self._request_id(number, number))
                progress.delivered(number + 1, 1, len(payload))

    def _deliver_batches(self, columns: Iterable[Columns], poster: _Poster, progress: Progress) -> None:
        encoder = msgspec.json.Encoder()
        count_max = min(int(self.config.get("batchSize", BATCH_SIZE_MAX)), BATCH_SIZE_MAX)
        for batch, payload_bytes in column_batches(columns, count_max, BATCH_BYTES_MAX):
            numbers = batch.sequence_numbers
            messages = list(map(Message, repeat(self.flush.stream), *batch))
            request_id = self._request_id(numbers[0], numbers[-1])
            poster.post(encoder.encode(messages), "application/json", request_id)
            progress.delivered(numbers[-1] + 1, len(numbers), payload_bytes)

    def _request_id(self, first: int, last: int) -> str:
        """The same whenever the same messages are sent again, and never the same for others."""
        return f"{self.flush.nonce}-{first}-{last}"


class _Poster:
    """Posts to one target over one connection that is kept open, also for the flushes after this one."""

    def __init__(self, target: Target, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._target = target
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._headers = {"User-Agent": "penstock"}
        if target.authorization is not None:
            self._headers["Authorization"] = target.authorization
        self._connection = _idle_connections.take(target.address)

    def post(self, body: bytes, content_type: str, request_id: str) -> None:
        headers = {**self._headers, "Content-Type": content_type, REQUEST_ID_HEADER: request_id}
        try:
            status, reason, text = self._exchange(body, headers)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise DeliveryFailed(f"cannot post to {self._target}: {reason}") from error
        if not 200 <= status <= 299:
            answer = f"{status} {reason}".strip() + (f": {text}" if text else "")
            raise DeliveryFailed(f"{self._target} answered {answer}")

    def release(self) -> None:
        if self._connection is not None:
            _idle_connections.give_back(self._target.address, self._connection)
            self._connection = None

    def _exchange(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, str]:
        if self._connection is not None:
            # The other side may close a connection between two requests: that says nothing about it.
            with suppress(ConnectionError, http.client.BadStatusLine):
                return self._send(body, headers)
        return self._send(body, headers)

    def _send(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, str]:
        connection, self._connection = self._connection or self._new_connection(), None
        try:
            self._ensure_connected(connection)
            connection.request("POST", self._target.path, body, headers)
            response = connection.getresponse()
            answer = response.read(ANSWER_BYTES_MAX)
            reusable = response.isclosed() and not response.will_close
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        if reusable:
            self._connection = connection
        else:
            response.close()
            connection.close()
        return response.status, response.reason, answer[:200].decode(errors="replace").strip()

    def _ensure_connected(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is None:
            connection.connect()
            socket: Any = connection.sock
            socket.settimeout(self._read_timeout_s)

    def _new_connection(self) -> http.client.HTTPConnection:
        secure, host, port = self._target.address
        if secure:
            context = _tls_context()
            return http.client.HTTPSConnection(host, port, timeout=self._connect_timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._connect_timeout_s)


class _IdleConnections:
    """Threads come and go with each Spark task; connections outlive them here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: list[tuple[Address, http.client.HTTPConnection]] = []  # latest used last

    def take(self, address: Address) -> http.client.HTTPConnection | None:
        with self._lock:
            for index in reversed(range(len(self._connections))):
                if self._connections[index][0] == address:
                    return self._connections.pop(index)[1]
        return None

    def give_back(self, address: Address, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._connections.append((address, connection))
            surplus = self._connections[:-IDLE_CONNECTIONS_MAX]
            del self._connections[:-IDLE_CONNECTIONS_MAX]
        for _, oldest in surplus:
            oldest.close()

    def close(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, []
        for _, connection in connections:
            connection.close()


_idle_connections = _IdleConnections()


@cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()
