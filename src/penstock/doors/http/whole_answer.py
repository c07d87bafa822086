"""Answers in one piece: uvicorn writes head and body apart, uvloop sends each at once, and clients wake up twice."""

from __future__ import annotations

from typing import Any

from starlette.types import Message, Send


class _Joined:
    """In place of a transport, for as long as an answer is written."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._parts.append(data)

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        self.flush()
        self._transport.close()


class WholeAnswer:
    """An ASGI `send` for one answer whose body is not streamed. `cycle` is uvicorn's, of the same request."""

    __slots__ = ("_cycle", "_send", "_start")

    def __init__(self, cycle: Any, send: Send) -> None:
        self._cycle = cycle
        self._send = send
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if self._start is None:
            self._start = message
            return
        cycle = self._cycle
        transport = cycle.transport
        cycle.transport = joined = _Joined(transport)
        try:
            await self._send(self._start)
            await self._send(message)
        finally:
            cycle.transport = transport
            joined.flush()
