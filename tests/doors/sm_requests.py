"""Requests of the Stream Manager protocol as bytes, for tests that send many at once, and their answers."""

from __future__ import annotations

import socket
from typing import Any

import cbor2

from conformance.raw_client import RawClient
from conformance.wire import Op, frame


def append_bytes(request_id: str, name: str, payload: bytes) -> bytes:
    return frame(Op.APPEND, cbor2.dumps({"requestId": request_id, "name": name, "payload": payload}))


def read_bytes(request_id: str, name: str, **options: int) -> bytes:
    body = {"requestId": request_id, "streamName": name, "readMessagesOptions": options}
    return frame(Op.READ, cbor2.dumps(body))


def answers(client: RawClient, count: int) -> list[dict[str, Any]]:
    return [client.receive()[1] for _ in range(count)]


def answers_to_the_end(client: RawClient) -> list[dict[str, Any]]:
    """All answers up to the FIN; a reset raises."""
    received: list[dict[str, Any]] = []
    while client.socket.recv(1, socket.MSG_PEEK):
        received.append(client.receive()[1])
    return received
