"""The pipelined client: one process, plain sockets, one epoll, the same work for every protocol.

Each connection owns a ring of prepared appends. For every acknowledgement it sends the next append of the
ring, all that are due in one `send`; answers are read in one `recv` and counted by their marker. Nothing is
built, parsed or allocated per message.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence

from bench.protocols import Address, Protocol

RECEIVE_BUFFER_BYTES = 256 * 1024
SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
STALL_S = 20.0
RING_APPENDS_MIN = 64


class Stalled(Exception):
    """The server stopped acknowledging, or answered with errors, which are not counted."""


class Connection:
    """One client: a stream of its own and a fixed number of appends in flight."""

    def __init__(
        self, protocol: Protocol, address: Address, stream: str, in_flight: int, payload_bytes: int
    ) -> None:
        payload = bytes(i * 31 % 251 for i in range(payload_bytes))
        ring_appends = max(RING_APPENDS_MIN, 2 * in_flight)
        appends = [protocol.append(stream, index, payload) for index in range(ring_appends)]
        self.stream = stream
        self.in_flight = in_flight
        self.acks = 0
        self.append_bytes = len(appends[0])
        self._ring_bytes = ring_appends * self.append_bytes
        # The start of the ring is repeated at its end: any run of appends in flight is one slice.
        self._ring = memoryview(b"".join(appends + appends[:in_flight]))
        self._position_bytes = 0
        self.owed_bytes = in_flight * self.append_bytes
        self.waits_for_room = False
        self._marker = protocol.ack_marker
        self._tail_bytes = len(self._marker) - 1
        self._received = bytearray(RECEIVE_BUFFER_BYTES)
        self._received_view = memoryview(self._received)
        self._last_received_bytes = 0
        self.socket = protocol.connect(address, stream)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        self.socket.setblocking(False)

    def send(self) -> None:
        start = self._position_bytes
        try:
            sent_bytes = self.socket.send(self._ring[start : start + self.owed_bytes])
        except BlockingIOError:
            return
        self.owed_bytes -= sent_bytes
        self._position_bytes = (start + sent_bytes) % self._ring_bytes

    def receive(self) -> int:
        """Read what is there and count the acknowledgements.

        A marker may be split between two reads: the tail of the last one, a byte shorter than a marker, stays
        in front.
        """
        tail_bytes = self._tail_bytes
        received_bytes = self.socket.recv_into(self._received_view[tail_bytes:])
        if not received_bytes:
            raise Stalled(f"the server closed the connection of {self.stream}: {self.last_answer()!r}")
        end = tail_bytes + received_bytes
        acks = self._received.count(self._marker, 0, end)
        self._received[:tail_bytes] = self._received[received_bytes:end]
        self._last_received_bytes = received_bytes
        self.acks += acks
        return acks

    def last_answer(self) -> bytes:
        return bytes(
            self._received[self._tail_bytes : self._tail_bytes + min(self._last_received_bytes, 300)]
        )


class Load:
    """All clients of one measurement, driven by one epoll."""

    def __init__(
        self,
        protocol: Protocol,
        address: Address,
        streams: Sequence[str],
        in_flight: int,
        payload_bytes: int,
    ) -> None:
        self._connections = {}
        self._epoll = select.epoll()
        for stream in streams:
            connection = Connection(protocol, address, stream, in_flight, payload_bytes)
            self._connections[connection.socket.fileno()] = connection
            self._epoll.register(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
            connection.waits_for_room = True
        self._refill = True

    @property
    def acks(self) -> int:
        return sum(connection.acks for connection in self._connections.values())

    def acks_by_stream(self) -> dict[str, int]:
        return {connection.stream: connection.acks for connection in self._connections.values()}

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._turn()

    def run_until(self, acks: int) -> None:
        """At least so many acknowledgements since the start."""
        left = acks - self.acks
        while left > 0:
            left -= self._turn()

    def drain(self) -> None:
        """Send nothing new, and wait until everything in flight is acknowledged."""
        self._refill = False
        left = sum(connection.in_flight for connection in self._connections.values())
        while left > 0:
            left -= self._turn()

    def close(self) -> None:
        self._epoll.close()
        for connection in self._connections.values():
            connection.socket.close()

    def _turn(self) -> int:
        events = self._epoll.poll(STALL_S)
        if not events:
            answers = {c.stream: c.last_answer() for c in self._connections.values()}
            raise Stalled(f"no acknowledgement for {STALL_S:.0f} s; last answers: {answers}")
        total_acks = 0
        for descriptor, event in events:
            connection = self._connections[descriptor]
            if event & ~select.EPOLLOUT:
                acks = connection.receive()
                total_acks += acks
                if self._refill:
                    connection.owed_bytes += acks * connection.append_bytes
            if connection.owed_bytes:
                connection.send()
            if bool(connection.owed_bytes) != connection.waits_for_room:
                self._watch_room(descriptor, connection)
        return total_acks

    def _watch_room(self, descriptor: int, connection: Connection) -> None:
        connection.waits_for_room = bool(connection.owed_bytes)
        self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if connection.waits_for_room else 0))
