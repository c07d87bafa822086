"""The hot path: AppendMessage taken apart, and its answers put together, without building a map.

Only frames of the shape that the SDKs send are understood here; for everything else `parse_append` says None and
the full decoder (codec, requests) does the work. Tests hold both to the same answers.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from functools import lru_cache
from typing import NamedTuple

from penstock.doors.streammanager.protocol import Op
from penstock.log.files import Buffer

_LENGTH = struct.Struct(">i")
_LENGTH_AND_OP = struct.Struct(">ib")
_OPENING = bytes([Op.APPEND_MESSAGE]) + b"\xa3irequestId"
_NAME_KEY = b"dname"
_PAYLOAD_KEY = b"gpayload"
_ANSWER_OPENING = b"\xa4irequestId"
_ANSWER_MIDDLE = b"fstatus\x00lerrorMessage`nsequenceNumber"

_NAME_CHARACTERS = bytes(c for c in range(128) if re.match(rb"[\w ,.\-]", bytes([c])))
UNIFORM_FRAMES_MIN = 8
UNIFORM_ANSWERS_MIN = 16
ID_BYTES_MAX = 255
NAME_BYTES_MAX = 255


def only_name_characters(text: bytes) -> bool:
    """Whether text is made of what requestIds and names may hold."""
    return not text.translate(None, _NAME_CHARACTERS)


class Append(NamedTuple):
    request_id: bytes
    name: bytes
    payload: bytes
    id_at: int  # positions in the frame: of the requestId's text,
    payload_header_at: int  # of the header of the payload
    payload_at: int  # and of the payload itself


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
    """The append in the frame from `position` (its length field) to `end`, if it has the usual shape and text."""
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
    if payload is None or payload[0] + payload[1] != end or payload[0] == 0:
        return None
    id_text, name_text = data[request_id[1] : key_at], data[name[1] : payload_key_at]
    if not (1 <= len(id_text) <= ID_BYTES_MAX and 1 <= len(name_text) <= NAME_BYTES_MAX):
        return None
    if not only_name_characters(id_text + name_text):
        return None
    return Append(
        id_text,
        name_text,
        data[payload[1] : end],
        request_id[1] - position,
        payload_key_end - position,
        payload[1] - position,
    )


class Shape:
    """What stays the same from one append to the next: same stream, same length of requestId.

    With it, a frame is recognised by two comparisons, and a run of frames of equal size by comparing columns.
    `take` is the inner loop of the server.
    """

    __slots__ = (
        "_head",
        "_id_at",
        "_middle",
        "_middle_at",
        "_payload_header_at",
        "id_bytes",
        "name",
    )

    def __init__(self, data: bytes, position: int, append: Append) -> None:
        self.name = append.name.decode()
        self.id_bytes = len(append.request_id)
        self._id_at = append.id_at
        self._middle_at = append.id_at + self.id_bytes
        self._payload_header_at = append.payload_header_at
        self._head = data[position + 4 : position + append.id_at]
        self._middle = data[position + self._middle_at : position + append.payload_header_at]

    def matches(self, other: Shape) -> bool:
        return self._head == other._head and self._middle == other._middle

    def take(self, data: bytes, position: int, end: int, ids: list[bytes], payloads: list[Buffer]) -> int:
        """Move appends of this shape into the lists; returns where the first other frame begins."""
        head, middle = self._head, self._middle
        id_at, middle_at, payload_header_at = self._id_at, self._middle_at, self._payload_header_at
        starts_with = data.startswith
        try_uniform = end - position > UNIFORM_FRAMES_MIN * payload_header_at
        while position + payload_header_at + 3 < end:
            middle_position = position + middle_at
            if not (starts_with(head, position + 4) and starts_with(middle, middle_position)):
                break
            frame_end = position + 4 + _LENGTH.unpack_from(data, position)[0]
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
            if try_uniform:
                taken_to = self._take_uniform(data, position, end, frame_end, start, ids, payloads)
                if taken_to > position:
                    position = taken_to
                    continue
                try_uniform = False
            ids.append(data[position + id_at : middle_position])
            payloads.append(data[start:frame_end])
            position = frame_end
        return position

    def _take_uniform(
        self, data: bytes, position: int, end: int, frame_end: int, payload_at: int,
        ids: list[bytes], payloads: list[Buffer],
    ) -> int:  # fmt: skip
        """All frames up to `end`, if each is like the first but for requestId and payload: column by column."""
        stride = frame_end - position
        count = (end - position) // stride
        if count < UNIFORM_FRAMES_MIN:
            return position
        stop = position + count * stride
        for first, last in ((position, position + self._id_at), (position + self._middle_at, payload_at)):
            for column in range(first, last):
                if data[column:stop:stride].count(data[column]) != count:
                    return position
        width = self.id_bytes
        joined = bytearray(count * width)
        id_position = position + self._id_at
        for column in range(width):
            joined[column::width] = data[id_position + column : stop : stride]
        ids.append(bytes(joined))
        view = memoryview(data)
        length = frame_end - payload_at
        payloads += [view[start : start + length] for start in range(payload_at, stop, stride)]
        return stop


def _integer_width(value: int) -> int:
    """Bytes behind the initial byte of a CBOR integer; 0 for those that fit in it."""
    if value < 24:
        return 0
    if value < 0x100:
        return 1
    if value < 0x10000:
        return 2
    return 4 if value < 0x100000000 else 8


_WIDTH_BOUNDS = (24, 0x100, 0x10000, 0x100000000)
_INITIAL = {1: b"\x18", 2: b"\x19", 4: b"\x1a", 8: b"\x1b"}


def _text_header(length: int) -> bytes:
    if length < 24:
        return bytes([0x60 + length])
    width = _integer_width(length)
    return bytes([0x60 + _INITIAL[width][0]]) + length.to_bytes(width, "big")


def encode_append_answers(ids: bytes, id_bytes: int, first_sequence: int) -> bytes:
    """The successful answers to appends that got consecutive numbers. `ids` are their requestIds, joined."""
    width = _integer_width(first_sequence)
    if len(ids) == id_bytes:
        opening, middle = _answer_parts(id_bytes, width)
        return b"".join((opening, ids, middle, first_sequence.to_bytes(width or 1, "big")))
    count = len(ids) // id_bytes
    if _integer_width(first_sequence + count - 1) != width:
        middle_sequence = next(bound for bound in _WIDTH_BOUNDS if bound > first_sequence)
        cut = (middle_sequence - first_sequence) * id_bytes
        return encode_append_answers(ids[:cut], id_bytes, first_sequence) + encode_append_answers(
            ids[cut:], id_bytes, middle_sequence
        )
    opening, middle = _answer_parts(id_bytes, width)
    if count >= UNIFORM_ANSWERS_MIN:
        return _uniform_answers(opening, ids, id_bytes, middle, first_sequence, width or 1)
    pieces: list[bytes] = []
    for index in range(count):
        request_id = ids[index * id_bytes : (index + 1) * id_bytes]
        pieces += (opening, request_id, middle, (first_sequence + index).to_bytes(width or 1, "big"))
    return b"".join(pieces)


@lru_cache(maxsize=256)
def _answer_parts(id_bytes: int, width: int) -> tuple[bytes, bytes]:
    """What stands before the requestId and between it and the digits of the sequence number."""
    id_header = _text_header(id_bytes)
    frame_bytes = 1 + len(_ANSWER_OPENING) + len(id_header) + id_bytes + len(_ANSWER_MIDDLE) + 1 + width
    opening = _LENGTH_AND_OP.pack(frame_bytes, Op.APPEND_MESSAGE_RESPONSE) + _ANSWER_OPENING + id_header
    return opening, _ANSWER_MIDDLE + _INITIAL.get(width, b"")


def _uniform_answers(
    opening: bytes, ids: bytes, id_bytes: int, middle: bytes, first_sequence: int, sequence_bytes: int
) -> bytes:
    """Answers of equal size, filled in column by column: no work in Python for each of them."""
    count = len(ids) // id_bytes
    answer = opening + bytes(id_bytes) + middle + bytes(sequence_bytes)
    stride = len(answer)
    answers = bytearray(answer * count)
    for column in range(id_bytes):
        answers[len(opening) + column :: stride] = ids[column::id_bytes]
    sequences = array("Q", range(first_sequence, first_sequence + count)).tobytes()
    for column in range(sequence_bytes):
        little_endian = column if sys.byteorder == "little" else 7 - column
        answers[stride - 1 - column :: stride] = sequences[little_endian::8]
    return bytes(answers)
