"""A frame: consecutive messages in columns, under two checksums. docs/log-format.md draws the bytes.

The body is laid out as an Arrow binary column (int32 offsets, then data), so a reader can use it in place.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from crc32c import crc32c

from penstock.log.files import Buffer

MAGIC = b"PSF1"
VERSION = 1
HEADER_BYTES = 64
ALIGNMENT_BYTES = 8
DATA_BYTES_MAX = 2**31 - 1
OVERHEAD_BYTES_PER_MESSAGE = 12  # arrival time + offset

# magic, version, flags, header size, stream key, first sequence, count, data bytes, body bytes,
# body checksum, newest arrival, reserved; then the checksum of these
_FIELDS = struct.Struct("<4sBBHQQIIIIqQI")
_CHECKSUM = struct.Struct("<I")


class BadFrame(Exception):
    """The bytes here are not a valid frame."""


class Header(NamedTuple):
    stream_key: int
    first_sequence: int
    message_count: int
    data_bytes: int
    frame_bytes: int
    body_checksum: int
    newest_arrival_ms: int

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.message_count

    @property
    def body_bytes(self) -> int:
        return self.frame_bytes - HEADER_BYTES

    @property
    def charged_bytes(self) -> int:
        """What the messages count against the stream's maxSize, however they are framed."""
        return self.data_bytes + self.message_count * OVERHEAD_BYTES_PER_MESSAGE


def _padding(size_bytes: int) -> int:
    return -size_bytes % ALIGNMENT_BYTES


def _data_start(count: int) -> int:
    columns_bytes = 8 * count + 4 * (count + 1)
    return columns_bytes + _padding(columns_bytes)


def body_size(count: int, data_bytes: int) -> int:
    return _data_start(count) + data_bytes + _padding(data_bytes)


def encode(
    stream_key: int, first_sequence: int, arrivals_ms: int | Sequence[int], payloads: Sequence[Buffer]
) -> tuple[Header, list[Buffer]]:
    """The frame of `payloads`, as buffers to write one after the other. One arrival time may serve for all."""
    count = len(payloads)
    if count == 1 and isinstance(arrivals_ms, int):
        return _encode_single(stream_key, first_sequence, arrivals_ms, payloads[0])
    if isinstance(arrivals_ms, int):
        newest_arrival_ms = arrivals_ms
        arrivals = arrivals_ms.to_bytes(8, "little", signed=True) * count
    else:
        newest_arrival_ms = max(arrivals_ms)
        arrivals = array("q", arrivals_ms).tobytes()
    offsets = array("i", accumulate(map(len, payloads), initial=0))
    data_bytes = offsets[-1]
    columns_padding = bytes(_data_start(count) - 8 * count - 4 * (count + 1))
    body = b"".join((arrivals, offsets.tobytes(), columns_padding, *payloads, bytes(_padding(data_bytes))))
    return _with_header(stream_key, first_sequence, count, data_bytes, body, newest_arrival_ms)


_SINGLE_COLUMNS = struct.Struct("<qii")


def _encode_single(
    stream_key: int, first_sequence: int, arrival_ms: int, payload: Buffer
) -> tuple[Header, list[Buffer]]:
    """A frame of one message, as above but without arrays: the usual frame where clients wait for each answer."""
    data_bytes = len(payload)
    columns = _SINGLE_COLUMNS.pack(arrival_ms, 0, data_bytes)
    body = b"".join((columns, payload, bytes(-data_bytes % ALIGNMENT_BYTES)))
    return _with_header(stream_key, first_sequence, 1, data_bytes, body, arrival_ms)


def _with_header(
    stream_key: int, first_sequence: int, count: int, data_bytes: int, body: bytes, newest_arrival_ms: int
) -> tuple[Header, list[Buffer]]:
    body_bytes = len(body)
    checksum = crc32c(body)
    fields = _FIELDS.pack(
        MAGIC, VERSION, 0, HEADER_BYTES,
        stream_key, first_sequence, count, data_bytes, body_bytes, checksum, newest_arrival_ms, 0, 0,
    )  # fmt: skip
    header = Header(
        stream_key, first_sequence, count, data_bytes, HEADER_BYTES + body_bytes, checksum, newest_arrival_ms
    )
    return header, [fields + _CHECKSUM.pack(crc32c(fields)), body]


def decode_header(buffer: Buffer, offset: int = 0) -> Header:
    """Check and read a header. After this its lengths can be trusted; the body still has its own checksum."""
    if len(buffer) - offset < HEADER_BYTES:
        raise BadFrame("incomplete header")
    fields = memoryview(buffer)[offset : offset + _FIELDS.size]
    if fields[:4] != MAGIC:
        raise BadFrame("no frame begins here")
    (checksum,) = _CHECKSUM.unpack_from(buffer, offset + _FIELDS.size)
    if crc32c(fields) != checksum:
        raise BadFrame("header checksum differs")
    (
        _,
        version,
        flags,
        header_bytes,
        key,
        first,
        count,
        data_bytes,
        body_bytes,
        body_checksum,
        newest,
        _,
        _,
    ) = _FIELDS.unpack(fields)
    header = Header(key, first, count, data_bytes, HEADER_BYTES + body_bytes, body_checksum, newest)
    if version != VERSION or header_bytes != HEADER_BYTES or flags:
        raise BadFrame(f"frame version {version}, flags {flags} were written by a newer Penstock")
    if (
        header.message_count < 1
        or header.data_bytes > DATA_BYTES_MAX
        or header.body_bytes != body_size(header.message_count, header.data_bytes)
    ):
        raise BadFrame("header lengths contradict each other")
    return header


class Frame:
    """A decoded frame: columns over the bytes they were read from, nothing copied."""

    __slots__ = ("_body", "header")

    def __init__(self, header: Header, body: memoryview) -> None:
        self.header = header
        self._body = body

    @property
    def first_sequence(self) -> int:
        return self.header.first_sequence

    @property
    def count(self) -> int:
        return self.header.message_count

    @property
    def arrivals(self) -> memoryview:
        return self._body[: 8 * self.count].cast("q")

    @property
    def offsets(self) -> memoryview:
        start = 8 * self.count
        return self._body[start : start + 4 * (self.count + 1)].cast("i")

    @property
    def data(self) -> memoryview:
        start = _data_start(self.count)
        return self._body[start : start + self.header.data_bytes]

    def payloads(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Messages `start` to `stop` of the frame, by position."""
        stop = self.count if stop is None else min(stop, self.count)
        offsets = self.offsets[start : stop + 1].tolist()
        base = offsets[0]
        data = bytes(self.data[base : offsets[-1]])
        return [data[a - base : b - base] for a, b in pairwise(offsets)]


def decode(buffer: Buffer, offset: int = 0) -> Frame:
    """The frame at `offset`, both checksums verified."""
    header = decode_header(buffer, offset)
    start = offset + HEADER_BYTES
    body = memoryview(buffer)[start : start + header.body_bytes]
    if len(body) < header.body_bytes:
        raise BadFrame("incomplete body")
    if crc32c(body) != header.body_checksum:
        raise BadFrame("body checksum differs")
    frame = Frame(header, body)
    offsets = frame.offsets
    if offsets[0] != 0 or offsets[-1] != header.data_bytes:
        raise BadFrame("offsets contradict the header")
    return frame


def decode_frames(buffer: Buffer) -> Iterator[Frame]:
    """All frames of a buffer that holds whole frames and nothing else."""
    offset = 0
    while offset < len(buffer):
        frame = decode(buffer, offset)
        offset += frame.header.frame_bytes
        yield frame
