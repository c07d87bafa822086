"""A small synchronous client of the Stream Manager protocol, for the command line and for scripts."""

from __future__ import annotations

import itertools
import re
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cbor2

from penstock import __version__, errors
from penstock.config import load_first_token
from penstock.doors.streammanager.protocol import FRAME_LENGTH_MAX, SUPPORTED_VERSIONS, Op, Status
from penstock.model import Message

CONNECT_VERSION = b"\x01"
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0
SEND_BUFFER_BYTES = 64 * 1024
RECEIVE_BYTES = 256 * 1024

_FRAME_HEADER = struct.Struct(">ib")
_DAMAGED_RANGE = re.compile(r"messages (\d+) to \d+ are damaged.* from sequence number (\d+)")


class ServerUnreachable(errors.PenstockError):
    """Nothing that speaks the protocol answers at the address, or it stopped answering."""


class Unauthorized(errors.PenstockError):
    """The server asks for a client token, and ours is missing or not listed."""


class ServerFailed(errors.PenstockError):
    """The server could not do what was asked, for a reason of its own."""


_ERROR_OF_STATUS: Mapping[int, type[errors.PenstockError]] = {
    Status.UNAUTHORIZED: Unauthorized,
    Status.INVALID_REQUEST: errors.InvalidRequest,
    Status.REQUEST_PAYLOAD_TOO_LARGE: errors.MessageTooLarge,
    Status.RESPONSE_PAYLOAD_TOO_LARGE: errors.ResponseTooLarge,
    Status.NOT_ENOUGH_MESSAGES: errors.NotEnoughMessages,
    Status.OUT_OF_MEMORY_ERROR: errors.MemoryExhausted,
    Status.UPDATE_FAILED: errors.UpdateFailed,
    Status.UPDATE_NOT_ALLOWED: errors.UpdateNotAllowed,
}


def error_of(status: int, text: str) -> errors.PenstockError:
    if text == str(errors.StreamExists()):
        return errors.StreamExists()
    if status == Status.MESSAGE_STORE_READ_ERROR and (match := _DAMAGED_RANGE.match(text)):
        return errors.CorruptMessages(int(match[1]), int(match[2]))
    text = text or f"the server answered with status {status}"
    if status == Status.RESOURCE_NOT_FOUND:  # in AWS's words, which do not say what to do
        return errors.StreamNotFound(f"{text}; 'penstock streams list' shows all")
    return _ERROR_OF_STATUS.get(status, ServerFailed)(text)


def load_token(token_file: Path | None, env: Mapping[str, str]) -> str | None:
    if token_file is not None:
        return load_first_token(token_file)
    return env.get("PENSTOCK_CLIENT_TOKEN") or env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN") or None


class StreamManagerClient:
    """One connection. Definitions and stream infos are dicts in the form they have on the wire."""

    def __init__(
        self, host: str, port: int, token: str | None = None, request_timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._request_timeout_s = request_timeout_s
        self._request_numbers = itertools.count(1)
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._socket = self._dial(host, port)
        try:
            self._connect(token)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> StreamManagerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def list_streams(self) -> list[str]:
        return list(self._call(Op.LIST_STREAMS, {})["streams"])

    def describe(self, name: str) -> dict[str, Any]:
        info: dict[str, Any] = self._call(Op.DESCRIBE_MESSAGE_STREAM, {"name": name})["messageStreamInfo"]
        return info

    def create(self, definition: Mapping[str, Any]) -> None:
        self._call(Op.CREATE_MESSAGE_STREAM, {"definition": dict(definition)})

    def update(self, definition: Mapping[str, Any]) -> None:
        self._call(Op.UPDATE_MESSAGE_STREAM, {"definition": dict(definition)})

    def delete(self, name: str) -> None:
        self._call(Op.DELETE_MESSAGE_STREAM, {"name": name})

    def append(self, name: str, payload: bytes) -> int:
        return int(self._call(Op.APPEND_MESSAGE, {"name": name, "payload": payload})["sequenceNumber"])

    def append_many(
        self, name: str, payloads: Iterable[bytes | None], window: int = 500
    ) -> Iterator[int | errors.PenstockError]:
        """Appends with up to `window` requests in flight; yields a number or an error for each, in order.

        A None among the payloads says that the next one may take a while: all before it are settled first.
        """
        waiting: deque[str] = deque()
        settled: dict[str, int | errors.PenstockError] = {}
        for payload in payloads:
            if payload is None:
                yield from self._settle(waiting, settled, 0)
                continue
            waiting.append(self._send(Op.APPEND_MESSAGE, {"name": name, "payload": payload}))
            if len(waiting) >= window:
                yield from self._settle(waiting, settled, window // 2)
            elif len(self._outgoing) >= SEND_BUFFER_BYTES:
                yield from self._settle(waiting, settled, window)
        yield from self._settle(waiting, settled, 0)

    def read(
        self, name: str, start: int, count_min: int = 1, count_max: int = 1, timeout_ms: int = 0
    ) -> list[Message]:
        """Raises NotEnoughMessages if `count_min` messages are not there before the timeout."""
        options = {
            "desiredStartSequenceNumber": start,
            "minMessageCount": count_min,
            "maxMessageCount": count_max,
            "readTimeoutMillis": timeout_ms,
        }
        request = {"streamName": name, "readMessagesOptions": options}
        answer = self._call(Op.READ_MESSAGES, request, wait_s=timeout_ms / 1000)
        return [
            Message(message["sequenceNumber"], message["ingestTime"], message["payload"])
            for message in answer["messages"]
        ]

    def _dial(self, host: str, port: int) -> socket.socket:
        try:
            connection = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            raise ServerUnreachable(
                f"no server answers at {self.address} ({error.strerror or error}); "
                "start one with 'penstock up', or name another with --server HOST:PORT"
            ) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        return connection

    def _connect(self, token: str | None) -> None:
        request: dict[str, Any] = {
            "protocolVersion": SUPPORTED_VERSIONS[0],
            "otherSupportedProtocolVersions": list(SUPPORTED_VERSIONS[1:]),
            "sdkVersion": __version__,
        }
        if token is not None:
            request["authToken"] = token
        self._outgoing += CONNECT_VERSION
        self._send(Op.CONNECT, request)
        deadline = time.monotonic() + self._request_timeout_s
        while not self._incoming:
            self._exchange(deadline)
        if self._incoming[:1] != CONNECT_VERSION:
            raise ServerUnreachable(
                f"what answers at {self.address} does not speak the Stream Manager protocol; "
                "give its Stream Manager port (not its HTTP port) with --server HOST:PORT"
            )
        del self._incoming[:1]
        while (answer := self._take_answer()) is None:
            self._exchange(deadline)
        if answer["status"] == Status.UNAUTHORIZED:
            raise Unauthorized(
                f"{answer.get('errorMessage') or 'the server refused the client token'}; "
                "give a token that the server lists with --token-file or PENSTOCK_CLIENT_TOKEN"
            )
        if answer["status"] != Status.SUCCESS:
            raise ServerFailed(f"{self.address} refused the connection: {answer.get('errorMessage')}")

    def _call(self, op: Op, request: Mapping[str, Any], wait_s: float = 0) -> dict[str, Any]:
        request_id = self._send(op, request)
        deadline = time.monotonic() + self._request_timeout_s + wait_s
        while (answer := self._take_answer()) is None or answer["requestId"] != request_id:
            if answer is None:
                self._exchange(deadline)
        if answer["status"] != Status.SUCCESS:
            raise error_of(answer["status"], answer["errorMessage"])
        return answer

    def _settle(
        self, waiting: deque[str], settled: dict[str, int | errors.PenstockError], in_flight_max: int
    ) -> Iterator[int | errors.PenstockError]:
        while len(waiting) > in_flight_max or len(self._outgoing) >= SEND_BUFFER_BYTES:
            self._exchange(time.monotonic() + self._request_timeout_s)
            while (answer := self._take_answer()) is not None:
                settled[answer["requestId"]] = _append_result(answer)
            while waiting and waiting[0] in settled:
                yield settled.pop(waiting.popleft())

    def _send(self, op: Op, request: Mapping[str, Any]) -> str:
        request_id = str(next(self._request_numbers))
        body = cbor2.dumps({"requestId": request_id, **request})
        if len(body) >= FRAME_LENGTH_MAX:
            raise errors.MessageTooLarge(
                f"a request is limited to {FRAME_LENGTH_MAX} bytes; this has {len(body)}"
            )
        self._outgoing += _FRAME_HEADER.pack(len(body) + 1, op)
        self._outgoing += body
        return request_id

    def _exchange(self, deadline: float) -> None:
        """Waits until bytes can go out or come in, and moves them; doing both keeps both sides going."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            raise ServerUnreachable(f"{self.address} did not answer in time; look at the server's log")
        events = ready[0][1]
        try:
            if events & select.POLLOUT:
                with memoryview(self._outgoing) as unsent:
                    sent_bytes = self._socket.send(unsent)
                del self._outgoing[:sent_bytes]
            chunk = self._socket.recv(RECEIVE_BYTES) if events & ~select.POLLOUT else None
        except OSError as error:
            raise ServerUnreachable(f"the connection to {self.address} broke: {error.strerror}") from error
        if chunk == b"":
            raise ServerUnreachable(
                f"{self.address} closed the connection; see whether the server still runs"
            )
        self._incoming += chunk or b""

    def _take_answer(self) -> dict[str, Any] | None:
        """The next whole response that has arrived, if there is one."""
        if len(self._incoming) < _FRAME_HEADER.size:
            return None
        length, _ = _FRAME_HEADER.unpack_from(self._incoming)
        if not 1 < length <= FRAME_LENGTH_MAX:
            raise ServerUnreachable(f"{self.address} sent something that is not the Stream Manager protocol")
        end = length + 4
        if len(self._incoming) < end:
            return None
        answer: dict[str, Any] = cbor2.loads(self._incoming[_FRAME_HEADER.size : end])
        del self._incoming[:end]
        return answer


def _append_result(answer: Mapping[str, Any]) -> int | errors.PenstockError:
    if answer["status"] == Status.SUCCESS:
        return int(answer["sequenceNumber"])
    return error_of(answer["status"], answer["errorMessage"])
