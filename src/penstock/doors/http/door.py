"""The HTTP door: uvicorn inside our event loop, with a way to the socket for sendfile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.doors.http.app import App
from penstock.doors.http.bulk import SENDFILE_EXTENSION
from penstock.doors.http.exchange import Exchange

BACKLOG = 1024
STOP_S = 5
HEAD_BYTES_MAX = 64 * 1024
KEEP_ALIVE_S = (
    75  # clients that put now and then keep their connection: longer than most of them wait in between
)
HEAD_S = 30.0  # for a request to begin on a new connection, and for its head to be complete


class _Protocol(HttpToolsProtocol):
    """Hands the application what it needs to let the kernel send a file: ASGI has no word for that.

    And bounds the head of a request, which the parser gathers without a limit and waits for without an end. What
    Firehose has, `POST /`, gets an exchange of ours.
    """

    _in_head = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._expect_no_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")
            elif self._head_timer is None:
                self._expect_head()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _expect_no_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expect_no_head()
        if self.url == b"/" and self.parser.get_method() == b"POST":
            self._begin_exchange()
            return
        super().on_headers_complete()
        extensions: dict[str, object] = {SENDFILE_EXTENSION: self.cycle}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]

    def _begin_exchange(self) -> None:
        version = self.parser.get_http_version()
        scope = {
            **self.scope,
            "method": "POST",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "http_version": version,
        }
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
        exchange: Any = Exchange(
            self, scope, keep_alive=keep_alive, expects_continue=self.expect_100_continue
        )
        earlier, self.cycle = self.cycle, exchange
        if earlier is None or earlier.response_complete:
            self._start_asgi_task(exchange, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def on_body(self, body: bytes) -> None:
        if not isinstance(self.cycle, Exchange):
            super().on_body(body)
        elif not self.cycle.response_complete:
            self.cycle.feed(body)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the business of penstock.server."""
        yield


class Door:
    def __init__(self, app: App) -> None:
        self._app = app
        self._server = _Server(
            uvicorn.Config(
                app.asgi,
                http=_Protocol,
                interface="asgi3",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_S,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int) -> tuple[str, int]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        address = listener.getsockname()
        return address[0], address[1]

    async def close(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._app.close()
