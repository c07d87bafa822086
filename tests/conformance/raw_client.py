"""A client on a bare socket: sends any bytes, and checks every answer."""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType
from typing import Any

import cbor2

from conformance.wire import CONNECT_VERSION, RESPONSE_OF, Op, Status, connect_request, decode_response, frame

ANSWER_TIMEOUT_S = 20


class RawClient:
    """`connect=False` leaves the handshake to the test."""

    def __init__(self, port: int, *, connect: bool = True, **connect_changes: Any) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request_ids = (f"request-{number}" for number in itertools.count())
        if connect:
            response = self.handshake(**connect_changes)
            assert response["status"] == Status.SUCCESS, response
            self.protocol_version = response["protocolVersion"]

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # What goes out

    def encode(self, body: dict[str, Any]) -> bytes:
        return cbor2.dumps(body)

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, op: int, payload: bytes) -> None:
        self.send_bytes(frame(op, payload))

    def send(self, op: int, **body: Any) -> str:
        """A request without waiting for its answer; returns its requestId."""
        request_id = body.pop("requestId", None) or next(self._request_ids)
        self.send_frame(op, self.encode({"requestId": request_id, **body}))
        return str(request_id)

    # What comes back

    def receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(min(size - len(data), 1 << 20))
            assert chunk, f"the server closed the connection after {bytes(data)!r}"
            data += chunk
        return bytes(data)

    def receive(self) -> tuple[Op, dict[str, Any]]:
        length, op = struct.unpack(">ib", self.receive_exactly(5))
        return Op(op), decode_response(op, self.receive_exactly(length - 1))

    def assert_closed_cleanly(self) -> None:
        """FIN and nothing else: a reset would raise ConnectionResetError here."""
        assert self.socket.recv(1) == b""

    # Both

    def handshake(self, **connect_changes: Any) -> dict[str, Any]:
        self.send_bytes(CONNECT_VERSION)
        self.send_frame(Op.CONNECT, self.encode(connect_request(**connect_changes)))
        return self.receive_handshake()

    def receive_handshake(self) -> dict[str, Any]:
        assert self.receive_exactly(1) == CONNECT_VERSION
        op, response = self.receive()
        assert op is Op.CONNECT_RESPONSE
        return response

    def call(self, op: Op, **body: Any) -> dict[str, Any]:
        request_id = self.send(op, **body)
        response_op, response = self.receive()
        assert response_op is RESPONSE_OF[op]
        assert response["requestId"] == request_id
        return response

    def succeed(self, op: Op, **body: Any) -> dict[str, Any]:
        response = self.call(op, **body)
        assert response["status"] == Status.SUCCESS, response
        return response

    def fail(self, status: Status, op: Op, **body: Any) -> str:
        """The text of the error that the call is expected to meet."""
        response = self.call(op, **body)
        assert response["status"] == status, response
        return str(response["errorMessage"])

    # The operations, as a test says them

    def create(self, name: str, **definition: Any) -> None:
        self.succeed(Op.CREATE, definition={"name": name, "strategyOnFull": 0, **definition})

    def append(self, name: str, payload: bytes) -> int:
        return int(self.succeed(Op.APPEND, name=name, payload=payload)["sequenceNumber"])

    def read(self, name: str, **options: int) -> list[dict[str, Any]]:
        messages = self.succeed(Op.READ, streamName=name, readMessagesOptions=options)["messages"]
        assert messages, "a successful read has at least one message"
        for message in messages:
            assert set(message) == {"streamName", "sequenceNumber", "ingestTime", "payload"}
            assert message["streamName"] == name
        return list(messages)

    def list(self) -> list[str]:
        return list(self.succeed(Op.LIST)["streams"])

    def describe(self, name: str) -> dict[str, Any]:
        return dict(self.succeed(Op.DESCRIBE, name=name)["messageStreamInfo"])

    def definition(self, name: str) -> dict[str, Any]:
        return dict(self.describe(name)["definition"])

    def storage(self, name: str) -> tuple[int, int, int]:
        """Oldest and newest sequence number, and bytes."""
        status = self.describe(name)["storageStatus"]
        return status["oldestSequenceNumber"], status["newestSequenceNumber"], status["totalBytes"]
