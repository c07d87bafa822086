"""The Stream Manager door: the listening socket, who may come in, and what all connections share."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Sequence

from penstock.doors.streammanager.connection import Connection
from penstock.doors.streammanager.input import Input
from penstock.streams import Streams

logger = logging.getLogger(__name__)

FRAME_OVERHEAD_BYTES = 64 * 1024  # what a request may have besides its message
BACKLOG = 4096
STALL_S = 30.0
SWEEP_INTERVAL_S = 5.0
STOP_S = 3.0


class Door:
    def __init__(
        self,
        streams: Streams,
        *,
        authenticate: bool,
        client_tokens: Sequence[bytes],
        message_size_max_bytes: int,
        input_buffer_max_bytes: int,
    ) -> None:
        self.streams = streams
        self.frame_size_max_bytes = message_size_max_bytes + FRAME_OVERHEAD_BYTES
        self._authenticate = authenticate
        self._client_tokens = tuple(client_tokens)
        self._input_buffer_max_bytes = input_buffer_max_bytes
        self._held_append_bytes = 0
        self.crowded = False  # appends of all clients together hold more memory than they may
        self._connections: set[Connection] = set()
        self._assembling: set[Input] = set()
        self._empty = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), host, port, backlog=BACKLOG, family=socket.AF_UNSPEC
        )
        self._sweeper = loop.create_task(self._sweep())
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def close(self) -> None:
        """Stop listening, let every connection answer what it has, then hang up."""
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            try:
                await asyncio.wait_for(self._empty.wait(), STOP_S)
            except asyncio.TimeoutError:
                logger.warning("%d connections did not take their answers in time", len(self._connections))
                for connection in list(self._connections):
                    connection.abort()

    def authorized(self, token: object) -> bool:
        """Compare with every token, in constant time each, so that timing tells nothing."""
        if not self._authenticate:
            return True
        given = token.encode() if isinstance(token, str) else b""
        matches = [hmac.compare_digest(given, known) for known in self._client_tokens]
        return bool(given) and any(matches)

    # -- connections --------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._empty.clear()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._assembling.discard(connection)
        self._share_input_buffer()
        if not self._connections:
            self._empty.set()

    def hold(self, size_bytes: int) -> None:
        """Appends were taken that are not answered yet."""
        self._held_append_bytes += size_bytes
        if self._held_append_bytes > self._input_buffer_max_bytes:
            self.crowded = True

    def let_go(self, size_bytes: int) -> None:
        self._held_append_bytes -= size_bytes
        if self.crowded and self._held_append_bytes <= self._input_buffer_max_bytes // 2:
            self.crowded = False
            for connection in self._connections:
                connection.relieve()

    def input_grew(self, connection: Input) -> None:
        """A connection has gathered more (or no more) of a large frame: keep the sum of all within bounds."""
        if connection.assembling:
            self._assembling.add(connection)
        else:
            self._assembling.discard(connection)
            connection.pause_input(False)
        self._share_input_buffer()

    def _share_input_buffer(self) -> None:
        """Over the limit only the frame that has gathered most goes on, so that one always gets finished."""
        over = self._over_input_buffer()
        favoured = max(self._assembling, key=_turn_in_line) if over else None
        for connection in self._assembling:
            connection.pause_input(over and connection is not favoured and connection.held_input_bytes > 0)

    def _over_input_buffer(self) -> bool:
        held_bytes = sum(connection.held_input_bytes for connection in self._assembling)
        return held_bytes > self._input_buffer_max_bytes

    async def _sweep(self) -> None:
        """A large frame that makes no progress gives its memory back; reads of clients that left end."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            deadline_s = loop.time() - STALL_S
            hurried = self._over_input_buffer()
            for connection in list(self._assembling):
                since_s = connection.stalled_since_s(hurried=hurried)
                if since_s is not None and since_s < deadline_s:
                    connection.give_up_frame()
            for connection in self._connections:
                if connection.left_unseen:
                    connection.drop_waiting_reads()


def _turn_in_line(connection: Input) -> tuple[bool, int]:
    return not connection.held_back, connection.held_input_bytes
