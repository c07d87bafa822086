"""The hot path: AppendMessage taken apart, and its answers put together, without building a map.

Only frames of the shape that the SDKs send are understood here; for everything else `parse_append` says None and
the full decoder (codec, requests) does the work. Tests hold both to the same answers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.doors.streammanager.protocol import Op

_LENGTH = struct.Struct(">i")
_LENGTH_AND_OP = struct.Struct(">ib")
_OPENING = bytes([Op.APPEND_MESSAGE]) + b"\xa3irequestId"
_NAME_KEY = b"dname"
_PAYLOAD_KEY = b"gpayload"
_ANSWER_OPENING = b"\xa4irequestId"
_ANSWER_MIDDLE = b"fstatus\x00lerrorMessage`nsequenceNumber"

valid_request_ids = re.compile(rb"[\w ,.\-]+", re.ASCII).fullmatch


class Append(NamedTuple):
    request_id: bytes  # as CBOR text, header and all, to be echoed byte for byte
    name: bytes
    payload: bytes
    payload_key_end: int  # where, from the start of the frame, the payload's own header begins


def frame_length(data: bytes, position: int) -> int:
    return int(_LENGTH.unpack_from(data, position)[0])


def _header(data: bytes, position: int, major: int) -> tuple[int, int] | None:
    """Length and start of the string at `position` if it is of this major type and of definite length."""
    initial = data[position]
    width = initial & 0x1F
    if initial >> 5 != major:
        return None
    if width < 24:
        return width, position + 1
    if width > 26:
        return None
    size_bytes = 1 << (width - 24)
    start = position + 1 + size_bytes
    return int.from_bytes(data[position + 1 : start], "big"), start


def parse_append(data: bytes, position: int, end: int) -> Append | None:
    """The append in the frame from `position` (its length field) to `end`, if it has the usual shape."""
    if not data.startswith(_OPENING, position + 4):
        return None
    try:
        id_at = position + 4 + len(_OPENING)
        request_id = _header(data, id_at, 3)
        if request_id is None:
            return None
        key_at = request_id[0] + request_id[1]
        if not data.startswith(_NAME_KEY, key_at):
            return None
        name = _header(data, key_at + len(_NAME_KEY), 3)
        if name is None:
            return None
        payload_key_at = name[0] + name[1]
        if not data.startswith(_PAYLOAD_KEY, payload_key_at):
            return None
        payload_key_end = payload_key_at + len(_PAYLOAD_KEY)
        payload = _header(data, payload_key_end, 2)
    except IndexError:
        return None
    if payload is None or payload[0] + payload[1] != end or payload[0] == 0 or request_id[0] == 0:
        return None
    return Append(
        data[id_at:key_at],
        data[name[1] : payload_key_at],
        data[payload[1] : end],
        payload_key_end - position,
    )


class Shape:
    """What stays the same from one append to the next: same stream, same length of requestId.

    With it, a frame is recognised by two comparisons. `take` is the inner loop of the server.
    """

    __slots__ = ("_head", "_id_at", "_middle", "_middle_at", "name")

    def __init__(self, data: bytes, position: int, append: Append) -> None:
        self.name = append.name
        self._id_at = 4 + len(_OPENING)
        self._middle_at = self._id_at + len(append.request_id)
        id_header_bytes = 1 if len(append.request_id) <= 24 else 2
        self._head = data[position + 4 : position + self._id_at + id_header_bytes]
        self._middle = data[position + self._middle_at : position + append.payload_key_end]

    def take(
        self, data: bytes, position: int, end: int, request_ids: list[bytes], payloads: list[bytes]
    ) -> int:
        """Move frames of this shape into the lists; returns where the first other frame begins."""
        head, middle = self._head, self._middle
        id_at, middle_at = self._id_at, self._middle_at
        payload_header_at = middle_at + len(middle)
        unpack_length = _LENGTH.unpack_from
        starts_with = data.startswith
        while position + payload_header_at + 3 < end:
            middle_position = position + middle_at
            if not (starts_with(head, position + 4) and starts_with(middle, middle_position)):
                break
            frame_end = position + 4 + unpack_length(data, position)[0]
            if frame_end > end:
                break
            at = position + payload_header_at
            initial = data[at]
            if initial == 0x59:
                start = at + 3
                length = (data[at + 1] << 8) | data[at + 2]
            elif initial == 0x58:
                start = at + 2
                length = data[at + 1]
            elif 0x41 <= initial <= 0x57:
                start = at + 1
                length = initial - 0x40
            else:
                break
            if start + length != frame_end or not length:
                break
            request_ids.append(data[position + id_at : middle_position])
            payloads.append(data[start:frame_end])
            position = frame_end
        return position


def _integer_width(value: int) -> int:
    """Bytes behind the initial byte of a CBOR integer; 0 for those that fit in it."""
    if value < 24:
        return 0
    if value < 0x100:
        return 1
    if value < 0x10000:
        return 2
    return 4 if value < 0x100000000 else 8


_INITIAL = {1: b"\x18", 2: b"\x19", 4: b"\x1a", 8: b"\x1b"}


def encode_append_answers(request_ids: Sequence[bytes], first_sequence: int) -> bytes:
    """The successful AppendMessageResponses for requests that got consecutive numbers."""
    count = len(request_ids)
    width = _integer_width(first_sequence)
    id_bytes = len(request_ids[0])
    uniform = _integer_width(first_sequence + count - 1) == width and all(
        len(request_id) == id_bytes for request_id in request_ids
    )
    if not uniform:
        return b"".join(
            encode_append_answers((request_id,), first_sequence + i) for i, request_id in enumerate(request_ids)
        )
    frame_bytes = 1 + len(_ANSWER_OPENING) + id_bytes + len(_ANSWER_MIDDLE) + 1 + width
    opening = _LENGTH_AND_OP.pack(frame_bytes, Op.APPEND_MESSAGE_RESPONSE) + _ANSWER_OPENING
    middle = _ANSWER_MIDDLE + _INITIAL.get(width, b"")
    size_bytes = width or 1
    pieces: list[bytes] = []
    sequence = first_sequence
    for request_id in request_ids:
        pieces += (opening, request_id, middle, sequence.to_bytes(size_bytes, "big"))
        sequence += 1
    return b"".join(pieces)
