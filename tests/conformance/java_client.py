"""What the Java SDK writes, byte for byte: Jackson's CBOR behind a length that leaves in one-byte writes."""

from __future__ import annotations

import socket
import struct
from typing import Any

import cbor2

from conformance.raw_client import RawClient

TEXT_CHUNK_CHARS = 3996
BREAK = b"\xff"


def jackson_encode(value: Any) -> bytes:
    """Indefinite maps without nulls and empty collections, definite arrays, long text in chunks."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if item is not None and item != [] and item != {}}
        return b"\xbf" + b"".join(jackson_encode(part) for pair in kept.items() for part in pair) + BREAK
    if isinstance(value, list):
        return _array_header(len(value)) + b"".join(map(jackson_encode, value))
    if isinstance(value, str) and len(value) > TEXT_CHUNK_CHARS:
        chunks = [value[at : at + TEXT_CHUNK_CHARS] for at in range(0, len(value), TEXT_CHUNK_CHARS)]
        return b"\x7f" + b"".join(map(cbor2.dumps, chunks)) + BREAK
    return cbor2.dumps(value)


def _array_header(size: int) -> bytes:
    header = bytearray(cbor2.dumps(size))
    header[0] |= 0x80
    return bytes(header)


class JavaClient(RawClient):
    def __init__(self, port: int, *, auth_token: str = "") -> None:
        super().__init__(port, connect=False)
        # The SDK turns TCP_NODELAY on only after the handshake.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        self.connect_response = self.handshake(sdkVersion="1.1.0", authToken=auth_token)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def encode(self, body: dict[str, Any]) -> bytes:
        return jackson_encode(body)

    def send_frame(self, op: int, payload: bytes) -> None:
        for byte in struct.pack(">ib", 1 + len(payload), op):
            self.socket.send(bytes([byte]))
        self.socket.sendall(payload)
