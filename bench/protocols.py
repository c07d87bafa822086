"""The three wire protocols, as far as the benchmarks speak them: prepared appends and a few control calls.

Every append of one stream has the same length, so that a client can send any run of them as one slice.
An answer counts as an acknowledgement only if it carries `ack_marker`, which no error answer does.
"""

from __future__ import annotations

import json
import socket
import struct
from abc import ABC, abstractmethod
from typing import Any

import cbor2

Address = tuple[str, int]

CONTROL = "control"  # in place of a stream: a connection for everything but appends
CONTROL_TIMEOUT_S = 30.0


class ProtocolError(Exception):
    """A server answered a control call with something other than success."""


class Protocol(ABC):
    ack_marker: bytes

    @abstractmethod
    def connect(self, address: Address, stream: str = CONTROL) -> socket.socket:
        """A connection that is ready for appends to `stream`, or for control calls."""

    @abstractmethod
    def create_stream(self, connection: socket.socket, stream: str, durable: bool) -> None: ...

    @abstractmethod
    def append(self, stream: str, index: int, payload: bytes) -> bytes:
        """One append request. Its length does not depend on `index`."""

    @abstractmethod
    def message_count(self, connection: socket.socket, stream: str) -> int:
        """How many messages the server says the stream holds."""


class StreamManagerProtocol(Protocol):
    """Penstock's door: what the Python SDK sends, from the same CBOR encoder."""

    ack_marker = b"fstatus\x00"  # CBOR: text "status" followed by integer 0

    CONNECT, CREATE, APPEND, DESCRIBE = 1, 2, 4, 13
    MAX_SIZE_BYTES = 2**40

    def connect(self, address: Address, stream: str = CONTROL) -> socket.socket:
        connection = _tcp_connection(address)
        hello = {
            "protocolVersion": "1.1.0",
            "otherSupportedProtocolVersions": ["1.0.0"],
            "sdkVersion": "1.1.2",
        }
        connection.sendall(b"\x01" + self._frame(self.CONNECT, hello))
        if _receive_exactly(connection, 1) != b"\x01":
            raise ProtocolError("the server does not speak connect version 1")
        self._answer(connection)
        return connection

    def create_stream(self, connection: socket.socket, stream: str, durable: bool) -> None:
        definition = {
            "name": stream,
            "maxSize": self.MAX_SIZE_BYTES,
            "streamSegmentSize": 16 * 1024 * 1024,
            "strategyOnFull": 0,
            "persistence": 0,
            "flushOnWrite": durable,
        }
        connection.sendall(self._frame(self.CREATE, {"definition": definition}))
        self._answer(connection)

    def append(self, stream: str, index: int, payload: bytes) -> bytes:
        return self._frame(self.APPEND, {"name": stream, "payload": payload}, index)

    def message_count(self, connection: socket.socket, stream: str) -> int:
        connection.sendall(self._frame(self.DESCRIBE, {"name": stream}))
        status = self._answer(connection)["messageStreamInfo"]["storageStatus"]
        return int(status["newestSequenceNumber"]) + 1

    @staticmethod
    def _frame(operation: int, body: dict[str, Any], index: int = 0) -> bytes:
        request_id = f"{index:08x}-7c1e-4f0a-9b3d-5e2f8a6c4d10"
        payload = cbor2.dumps({"requestId": request_id, **body})
        return struct.pack(">ib", len(payload) + 1, operation) + payload

    @staticmethod
    def _answer(connection: socket.socket) -> dict[str, Any]:
        length, _operation = struct.unpack(">ib", _receive_exactly(connection, 5))
        answer: dict[str, Any] = cbor2.loads(_receive_exactly(connection, length - 1))
        if answer["status"] != 0:
            raise ProtocolError(f"status {answer['status']}: {answer['errorMessage']}")
        return answer


class NatsProtocol(Protocol):
    """JetStream publish with a reply subject for each message, as its client libraries do it."""

    ack_marker = b'\r\n{"stream":"'  # an error answer starts with {"error":

    def connect(self, address: Address, stream: str = CONTROL) -> socket.socket:
        connection = _tcp_connection(address)
        _receive_line(connection)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": False}
        connection.sendall(
            b"CONNECT %s\r\nSUB %s.* 1\r\nPING\r\n" % (json.dumps(options).encode(), _inbox(stream))
        )
        if (line := _receive_line(connection)) != b"PONG":
            raise ProtocolError(line.decode())
        return connection

    def create_stream(self, connection: socket.socket, stream: str, durable: bool) -> None:
        config = {
            "name": stream,
            "subjects": [f"bench.{stream}"],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "num_replicas": 1,
        }
        self._call(connection, f"STREAM.CREATE.{stream}", json.dumps(config).encode())

    def append(self, stream: str, index: int, payload: bytes) -> bytes:
        return b"PUB bench.%s %s.%08x %d\r\n%s\r\n" % (
            stream.encode(),
            _inbox(stream),
            index,
            len(payload),
            payload,
        )

    def message_count(self, connection: socket.socket, stream: str) -> int:
        return int(self._call(connection, f"STREAM.INFO.{stream}", b"")["state"]["messages"])

    @staticmethod
    def _call(connection: socket.socket, api: str, body: bytes) -> dict[str, Any]:
        connection.sendall(
            b"PUB $JS.API.%s %s.call %d\r\n%s\r\n" % (api.encode(), _inbox(CONTROL), len(body), body)
        )
        line = _receive_line(connection)
        while not line.startswith(b"MSG "):
            if line != b"PING":
                raise ProtocolError(line.decode())
            connection.sendall(b"PONG\r\n")
            line = _receive_line(connection)
        answer: dict[str, Any] = json.loads(_receive_exactly(connection, int(line.split()[-1]) + 2))
        if "error" in answer:
            raise ProtocolError(str(answer["error"]))
        return answer


class ValkeyProtocol(Protocol):
    """XADD to one stream key."""

    ack_marker = b"$1"  # the length of an entry id, $15 to $19; ids hold digits and a dash only

    def connect(self, address: Address, stream: str = CONTROL) -> socket.socket:
        return _tcp_connection(address)

    def create_stream(self, connection: socket.socket, stream: str, durable: bool) -> None:
        """The first XADD makes the stream."""

    def append(self, stream: str, index: int, payload: bytes) -> bytes:
        return _resp(b"XADD", stream.encode(), b"*", b"d", payload)

    def message_count(self, connection: socket.socket, stream: str) -> int:
        connection.sendall(_resp(b"XLEN", stream.encode()))
        line = _receive_line(connection)
        if not line.startswith(b":"):
            raise ProtocolError(line.decode())
        return int(line[1:])


def _inbox(stream: str) -> bytes:
    return b"_INBOX." + stream.encode()


def _resp(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _tcp_connection(address: Address) -> socket.socket:
    connection = socket.create_connection(address, timeout=CONTROL_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ProtocolError("the server closed the connection")
        received += chunk
    return received


def _receive_line(connection: socket.socket) -> bytes:
    """Byte by byte, so that nothing after the line is taken; only for control calls."""
    line = b""
    while not line.endswith(b"\r\n"):
        line += _receive_exactly(connection, 1)
    return line[:-2]
