"""What a client sends: bytes in any pieces become requests, and are read no faster than they can be held.

Appends of one chunk of input are handed on together, in the order they came; every other request by itself.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from socket import IPPROTO_TCP, TCP_QUICKACK
from typing import TYPE_CHECKING

from penstock.doors.streammanager.append import Shape, frame_length, parse_append
from penstock.doors.streammanager.protocol import FRAME_LENGTH_MAX
from penstock.log.files import Buffer

if TYPE_CHECKING:
    from penstock.doors.streammanager.door import Door

SMALL_FRAME_BYTES = 64 * 1024
SALVAGE_BYTES = 4096
PACE_BYTES = 64 * 1024  # the least that must come of a large frame in the stall time while others wait for it
SHARED_REQUEST_ID = " "  # what one generation of the JavaScript SDK sends as the requestId of every request


class _LargeFrame:
    """A frame that comes in many pieces. What exceeds the limit is counted, not kept."""

    __slots__ = ("_paced_bytes", "discard", "have_bytes", "need_bytes", "paced_s", "pieces", "progress_s")

    def __init__(self, need_bytes: int, *, discard: bool, now_s: float) -> None:
        self.need_bytes = need_bytes
        self.have_bytes = 0
        self.pieces: list[bytes] = []
        self.discard = discard
        self._paced_bytes = 0
        self.start_clock(now_s)

    def start_clock(self, now_s: float) -> None:
        self.progress_s = now_s  # when anything came last
        self.paced_s = now_s  # when PACE_BYTES more had come

    def add(self, piece: bytes, now_s: float) -> None:
        if not self.discard or self.have_bytes < SALVAGE_BYTES:
            self.pieces.append(piece)
        self.have_bytes += len(piece)
        self.progress_s = now_s
        if self.have_bytes - self._paced_bytes >= PACE_BYTES:
            self._paced_bytes = self.have_bytes
            self.paced_s = now_s


class Input(asyncio.Protocol, ABC):
    """The half of a connection that reads. It is a base of the other half, so that appends cross no border."""

    _transport: asyncio.Transport

    def __init__(self, door: Door) -> None:
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._version: str | None = None  # negotiated; None before the handshake
        self._tail = b""
        self._large: _LargeFrame | None = None
        self._shape: Shape | None = None
        self._discarding = False
        self._ordered = False
        self._closed = False
        self._paused: set[str] = set()  # why we do not read at present

    # -- what the other half does with it ------------------------------------------------------------

    @abstractmethod
    def _handshake(self, data: bytes) -> None:
        """All that has come so far, before the version is known."""

    @abstractmethod
    def _stage(self, shape: Shape | None, ids: list[bytes], payloads: list[Buffer], size_bytes: int) -> None:
        """Appends of one shape, one after the other; none at all if there are no payloads."""

    @abstractmethod
    def _dispatch(self, op: int, payload: bytes) -> None:
        """Any other request."""

    @abstractmethod
    def _refuse_oversized(self, beginning: bytes, need_bytes: int) -> None:
        """A request that was too large to be kept."""

    @abstractmethod
    def _protocol_error(self, problem: str) -> None:
        """What comes cannot be made sense of: there is nothing more to read."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Requests wait for their answers."""

    # -- pieces -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        if self._large is not None:
            self._continue_large(data)
            return
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if self._version is None:
            self._handshake(data)
        else:
            self._parse(data, 0)

    def _pause(self, reason: str) -> None:
        if not self._paused:
            self._transport.pause_reading()
        self._paused.add(reason)

    def _resume(self, reason: str) -> None:
        if reason in self._paused:
            self._paused.discard(reason)
            if not self._paused and not self._transport.is_closing():
                self._transport.resume_reading()
                if self._large is not None:
                    self._large.start_clock(self._loop.time())

    # -- frames -------------------------------------------------------------------------------------

    def _parse(self, data: bytes, position: int) -> None:
        if self._ordered:
            self._parse_one(data, position)
            return
        end = len(data)
        run_at = position
        ids: list[bytes] = []
        payloads: list[Buffer] = []
        shape = self._shape
        while True:
            if shape is not None:
                position = shape.take(data, position, end, ids, payloads)
            if end - position < 5:
                break
            length = frame_length(data, position)
            frame_end = position + 4 + length
            if frame_end > end or length < 2:
                break
            append = parse_append(data, position, frame_end)
            if append is not None and len(append.request_id) > len(SHARED_REQUEST_ID):
                found = Shape(data, position, append)
                if shape is None or not shape.matches(found):
                    self._stage(shape, ids, payloads, position - run_at)
                    ids, payloads, run_at = [], [], position
                    self._shape = shape = found
                ids.append(append.request_id)
                payloads.append(append.payload)
            else:
                self._stage(shape, ids, payloads, position - run_at)
                ids, payloads, run_at = [], [], frame_end
                if not self._discarding:
                    self._dispatch(data[position + 4], data[position + 5 : frame_end])
            if self._discarding:
                return
            position = frame_end
            if self._ordered:
                self._parse_one(data, position)
                return
        self._stage(shape, ids, payloads, position - run_at)
        if not self._discarding:
            self._keep_rest(data, position)

    def _parse_one(self, data: bytes, position: int) -> None:
        """For a client that gives all its requests the same requestId: one at a time, answers in order."""
        while not self.busy and not self._discarding:
            length = frame_length(data, position) if len(data) - position >= 4 else 0
            if length < 2 or position + 4 + length > len(data):
                self._keep_rest(data, position)
                return
            frame_end = position + 4 + length
            self._dispatch(data[position + 4], data[position + 5 : frame_end])
            position = frame_end
        if not self._discarding:
            self._tail = data[position:]
            self._pause("ordered")

    def _continue_ordered(self) -> None:
        if self._ordered and not self.busy and not self._discarding and not self._closed:
            tail, self._tail = self._tail, b""
            self._resume("ordered")
            if tail:
                self._parse(tail, 0)

    def _keep_rest(self, data: bytes, position: int) -> None:
        rest_bytes = len(data) - position
        if rest_bytes == 0:
            return
        self._acknowledge_quickly()
        if rest_bytes < 4:
            self._tail = data[position:]
            return
        length = frame_length(data, position)
        if not 2 <= length <= FRAME_LENGTH_MAX:
            self._protocol_error(f"a frame length of {length}")
        elif 4 + length <= SMALL_FRAME_BYTES:
            self._tail = data[position:]
        else:
            discard = length > self._door.frame_size_max_bytes
            now_s = self._loop.time()
            self._large = _LargeFrame(4 + length, discard=discard, now_s=now_s)
            self._large.add(data[position:], now_s)
            self._door.input_grew(self)

    def _acknowledge_quickly(self) -> None:
        """Half a frame is here: clients that write header and body apart, with Nagle's algorithm on, wait for
        our kernel's acknowledgement before they send the rest. It would take its time (40 ms)."""
        socket = self._transport.get_extra_info("socket")
        if socket is not None:
            with suppress(OSError):
                socket.setsockopt(IPPROTO_TCP, TCP_QUICKACK, 1)

    @property
    def held_input_bytes(self) -> int:
        return 0 if self._large is None or self._large.discard else self._large.have_bytes

    @property
    def assembling(self) -> bool:
        return self._large is not None

    @property
    def held_back(self) -> bool:
        """It is we who do not read, for another reason than what large frames may take together."""
        return not self._paused <= {"input"}

    def stalled_since_s(self, *, hurried: bool) -> float | None:
        """Since when the client has sent nothing of its large frame (or too little, if others wait for it)."""
        if self._large is None or self._paused:
            return None
        return self._large.paced_s if hurried else self._large.progress_s

    def pause_input(self, paused: bool) -> None:
        if paused:
            self._pause("input")
        else:
            self._resume("input")

    def _continue_large(self, data: bytes) -> None:
        large = self._large
        assert large is not None
        missing_bytes = large.need_bytes - large.have_bytes
        large.add(data[:missing_bytes], self._loop.time())
        if len(data) < missing_bytes:
            self._door.input_grew(self)
            return
        self._large = None
        self._door.input_grew(self)
        frame = b"".join(large.pieces)
        if large.discard:
            self._refuse_oversized(frame, large.need_bytes)
        else:
            self._parse(frame, 0)
        if not self._discarding and len(data) > missing_bytes:
            self.data_received(data[missing_bytes:])

    def give_up_frame(self) -> None:
        self._protocol_error("a frame that made no progress")
        self._door.input_grew(self)
