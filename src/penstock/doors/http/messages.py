"""Streams over HTTP, for Spark tasks and scripts: append runs of messages, look at streams."""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.doors.http.access import Access, Guarded, Handler
from penstock.errors import (
    DiskFull,
    InvalidRequest,
    MemoryExhausted,
    MessageTooLarge,
    PenstockError,
    StreamFull,
    StreamNotFound,
)
from penstock.log.segment import Segment
from penstock.model import INT64_MAX
from penstock.streams import Streams

BODY_BYTES_MAX = 64 * 1024 * 1024
BODIES_BYTES_MAX = 4 * BODY_BYTES_MAX
MESSAGES_MAX = 65_536
RANGES_MAX = 4_096
STALL_S = 30.0

_LENGTH = struct.Struct("<I")


class BodyTooLarge(PenstockError):
    """More bytes than one request may bring."""


class ClientStalled(PenstockError):
    """The rest of a body does not come."""


_STATUSES: tuple[tuple[type[PenstockError], int], ...] = (
    (StreamNotFound, 404),
    (MessageTooLarge, 413),
    (BodyTooLarge, 413),
    (StreamFull, 507),
    (DiskFull, 507),
    (MemoryExhausted, 507),
    (InvalidRequest, 400),
)


class Piece(NamedTuple):
    """The part of a segment that lies in a range."""

    first: int
    behind: int
    size_bytes: int


class _Sink:
    """Hears what became of one run of messages."""

    def __init__(self, count: int) -> None:
        self._untold = count
        self.first_sequence: int | None = None
        self.acknowledged = 0
        self.error: PenstockError | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def appended(self, first_sequence: int, count: int) -> None:
        if self.first_sequence is None:
            self.first_sequence = first_sequence
        self.acknowledged += count
        self._told(count)

    def append_failed(self, count: int, error: PenstockError) -> None:
        self.error = self.error or error
        self._told(count)

    def _told(self, count: int) -> None:
        self._untold -= count
        if self._untold == 0 and not self.done.done():
            self.done.set_result(None)


class _Budget:
    """Bytes that all bodies together may take; who needs more waits, unread, until others are done."""

    def __init__(self, size_bytes: int) -> None:
        self._free_bytes = size_bytes
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncIterator[None]:
        async with self._freed:
            await self._freed.wait_for(lambda: self._free_bytes >= size_bytes)
            self._free_bytes -= size_bytes
        try:
            yield
        finally:
            self._free_bytes += size_bytes
            async with self._freed:
                self._freed.notify_all()


class _Messages:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._budget = _Budget(BODIES_BYTES_MAX)

    async def append(self, request: Request) -> Response:
        name = _stream_name(request)
        if self._streams.find(name).definition.is_delivery_stream:
            raise InvalidRequest(
                "records of delivery streams are sealed on their way in: send them with PutRecord or PutRecordBatch"
            )
        async with self._budget.reserve(_announced_bytes(request)):
            body = await _read_body(request)
            payloads = await asyncio.to_thread(split_body, body)
            sink = _Sink(len(payloads))
            self._streams.append(name, payloads, sink)
            await sink.done
        told = {"first_sequence": sink.first_sequence, "count": sink.acknowledged}
        if sink.error is not None:
            return JSONResponse({"error": str(sink.error), **told}, status_code=_status_of(sink.error))
        return JSONResponse(told)

    async def names(self, request: Request) -> Response:
        return JSONResponse({"streams": self._streams.names()})

    async def info(self, request: Request) -> Response:
        name = _stream_name(request)
        stream = self._streams.find(name)
        described = self._streams.describe(name)
        definition = described.definition
        if definition.is_delivery_stream:  # what it delivers to, and with which password, is not for readers
            definition = msgspec.structs.replace(definition, exports=())
        return JSONResponse(
            {
                "name": name,
                "key": f"{stream.key:016x}",
                "oldest_sequence_number": described.oldest_sequence_number,
                "newest_sequence_number": described.newest_sequence_number,
                "end_sequence_number": stream.visible_next,
                "total_bytes": described.total_bytes,
                "definition": msgspec.to_builtins(definition),
            }
        )

    async def ranges(self, request: Request) -> Response:
        stream = self._streams.find(_stream_name(request))
        first = max(_number(request, "from", 0, INT64_MAX), stream.oldest_sequence)
        behind = min(_number(request, "to", INT64_MAX, INT64_MAX), stream.visible_next)
        count_max = max(_number(request, "count", 1, RANGES_MAX), 1)
        size_min_bytes = _number(request, "min_bytes", 0, INT64_MAX)
        cut = split_range(list(stream.segments), first, behind, count_max, size_min_bytes)
        return JSONResponse({"ranges": cut})


def messages_routes(streams: Streams, access: Access) -> list[Route]:
    messages = _Messages(streams)
    guarded = Guarded(access)
    return [
        Route("/v1/messages", guarded(_telling(messages.append)), methods=["POST"]),
        Route("/v1/streams", guarded(_telling(messages.names))),
        Route("/v1/streams/info", guarded(_telling(messages.info))),
        Route("/v1/streams/ranges", guarded(_telling(messages.ranges))),
    ]


def _telling(handler: Handler) -> Handler:
    """The handler, with its failures as JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientStalled as error:
            return JSONResponse({"error": str(error)}, status_code=408, headers={"connection": "close"})
        except PenstockError as error:
            return JSONResponse({"error": str(error)}, status_code=_status_of(error))

    return answer


# -- requests ---------------------------------------------------------------------------------------


def _stream_name(request: Request) -> str:
    name = request.query_params.get("stream")
    if name is None:
        raise InvalidRequest("the parameter 'stream' is missing: give the name of a stream")
    return name


def _number(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > maximum:
        raise InvalidRequest(
            f"the parameter '{name}' must be a number from 0 to {maximum}, not {text[:40]!r}"
        )
    return int(text)


def _announced_bytes(request: Request) -> int:
    """What the body will take: as its header says, or the most that is allowed."""
    text = request.headers.get("content-length", "")
    if not text.isdigit():
        return BODY_BYTES_MAX
    if len(text) > 19 or int(text) > BODY_BYTES_MAX:
        raise BodyTooLarge(f"a body takes at most {BODY_BYTES_MAX} bytes: send the messages in parts")
    return int(text)


async def _read_body(request: Request) -> bytearray:
    body = bytearray()
    chunks = request.stream()
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks), STALL_S)
        except StopAsyncIteration:
            return body
        except ClientDisconnect as error:
            raise ClientStalled("the client went away before it had sent all") from error
        except asyncio.TimeoutError as error:
            raise ClientStalled(f"nothing more of the body has come for {STALL_S:.0f} s") from error
        if len(body) + len(chunk) > BODY_BYTES_MAX:
            raise BodyTooLarge(f"a body takes at most {BODY_BYTES_MAX} bytes: send the messages in parts")
        body += chunk


def split_body(body: bytearray) -> list[memoryview]:
    """The messages of a body, each behind its length (u32, little-endian), nothing copied."""
    view = memoryview(body)
    size_bytes = len(body)
    payloads: list[memoryview] = []
    position = 0
    while position + _LENGTH.size <= size_bytes:
        start = position + _LENGTH.size
        (length,) = _LENGTH.unpack_from(body, position)
        position = start + length
        if length == 0:
            raise InvalidRequest(
                f"message {len(payloads)} of the body is empty: a message has a byte at least"
            )
        if len(payloads) == MESSAGES_MAX:
            raise BodyTooLarge(f"a body holds at most {MESSAGES_MAX} messages: send them in parts")
        payloads.append(view[start:position])
    if position != size_bytes:
        raise InvalidRequest(
            f"the body ends inside message {len(payloads) - (position > size_bytes)}: "
            "it must be repeated [length, u32 little-endian][payload]"
        )
    if not payloads:
        raise InvalidRequest("the body holds no message")
    return payloads


def _status_of(error: PenstockError) -> int:
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


# -- ranges -----------------------------------------------------------------------------------------


def split_range(
    segments: Sequence[Segment], first: int, behind: int, count_max: int, size_min_bytes: int
) -> list[tuple[int, int]]:
    """Cut `first` up to `behind` into ranges of about equal bytes, none of them much below `size_min_bytes`.

    Segments know their bytes; inside a segment messages are taken to be of one size.
    """
    pieces = [piece for segment in segments if (piece := _piece_of(segment, first, behind)) is not None]
    total_bytes = sum(piece.size_bytes for piece in pieces)
    if not pieces:
        return []
    parts = count_max if size_min_bytes == 0 else min(count_max, max(1, total_bytes // size_min_bytes))
    sums = list(accumulate((piece.size_bytes for piece in pieces), initial=0))
    cuts = {_sequence_at(pieces, sums, total_bytes * part / parts) for part in range(1, parts)}
    edges = sorted({pieces[0].first, pieces[-1].behind, *cuts})
    return list(pairwise(edges))


def _piece_of(segment: Segment, first: int, behind: int) -> Piece | None:
    start, stop = max(segment.base, first), min(segment.next_sequence, behind)
    if start >= stop:
        return None
    share = (stop - start) / (segment.next_sequence - segment.base)
    return Piece(start, stop, max(1, int(segment.charged_bytes * share)))


def _sequence_at(pieces: Sequence[Piece], sums: Sequence[int], position_bytes: float) -> int:
    index = min(bisect_right(sums, position_bytes) - 1, len(pieces) - 1)
    piece = pieces[index]
    share = (position_bytes - sums[index]) / piece.size_bytes
    return piece.first + int((piece.behind - piece.first) * share)
