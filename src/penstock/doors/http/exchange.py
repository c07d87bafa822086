"""A request and its answer, for `POST /`: uvicorn's own cycle copies each part of a body twice, makes more objects, and
writes head and body of an answer apart, so that clients wake up twice. Many small puts feel that.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from penstock.doors.firehose.body import WHOLE_BODY_EXTENSION

UNREAD_BYTES_MAX = 256 * 1024  # more than this is left in the socket until the application has taken it


class Exchange:
    """In place of uvicorn's cycle: its protocol uses what has no underscore in front."""

    __slots__ = (
        *("_chunks", "_expects_continue", "_protocol", "_scope", "_start", "_unread_bytes", "_waiter"),
        *("disconnected", "keep_alive", "more_body", "response_complete"),
    )

    def __init__(
        self, protocol: HttpToolsProtocol, scope: Scope, *, keep_alive: bool, expects_continue: bool
    ) -> None:
        self._protocol = protocol
        self._scope = scope
        self._expects_continue = expects_continue
        self._chunks: list[bytes] = []
        self._unread_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._start: Message | None = None
        self.keep_alive = keep_alive
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        scope["extensions"] = {WHOLE_BODY_EXTENSION: self._has_whole_body}

    async def run_asgi(self, app: ASGIApp) -> None:
        scope = self._scope
        del self._scope  # it refers back to here: the garbage collector would have to find that out
        try:
            await app(scope, self._receive, self._send)
        finally:
            if not self.response_complete:
                self._protocol.transport.close()

    # -- the request --------------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._unread_bytes += len(chunk)
        if self._unread_bytes > UNREAD_BYTES_MAX:
            self._protocol.flow.pause_reading()
        self.set()

    @property
    def message_event(self) -> Exchange:
        return self

    def set(self) -> None:
        """There is something to receive."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _has_whole_body(self) -> bool:
        return not self.more_body

    async def _receive(self) -> Message:
        if not self._chunks and self.more_body and not self.disconnected:
            await self._wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        chunks, self._chunks, self._unread_bytes = self._chunks, [], 0
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def _wait(self) -> None:
        protocol = self._protocol
        if self._expects_continue and not protocol.transport.is_closing():
            self._expects_continue = False
            protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        protocol.flow.resume_reading()
        self._waiter = protocol.loop.create_future()
        await self._waiter

    # -- the answer ---------------------------------------------------------------------------------

    async def _send(self, message: Message) -> None:
        if self._start is None:
            self._start = message
            return
        assert not message.get("more_body", False), "an answer in one piece"
        flow, transport = self._protocol.flow, self._protocol.transport
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if self.disconnected:
            return
        transport.write(b"".join([*self._head(self._start), message["body"]]))
        self.response_complete = True
        if not self.keep_alive:
            transport.close()
        self._protocol.on_response_complete()

    def _head(self, start: Message) -> list[bytes]:
        parts = [STATUS_LINE[start["status"]]]
        for name, value in (*self._protocol.server_state.default_headers, *start["headers"]):
            if name == b"connection":  # the only one that is sent closes
                self.keep_alive = False
            else:
                parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        return parts
