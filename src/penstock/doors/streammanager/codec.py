"""CBOR in and out of frames.

cbor2 builds the values, but it cannot be bounded: it goes 400 levels deep, runs tags (dates, regular
expressions, shared references), takes a stray break for a value and is silent about bytes that follow. So
every payload is first walked here, headers only, and cbor2 sees what is known to be plain and in proportion
to its size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import cbor2

from penstock.doors.streammanager.protocol import FRAME_LENGTH_MAX, Status
from penstock.errors import ResponseTooLarge

DEPTH_MAX = 32
# An empty map is one byte on the wire and 64 in memory, and each item costs the walk a microsecond. The
# largest sensible request, a definition with hundreds of exports, has some thousands of items.
ITEMS_MAX = 20_000

_FRAME_HEADER = struct.Struct(">ib")

_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = 2, 3, 4, 5, 6, 7
_BREAK = 0xFF
_NULLS = (22, 23)  # null and undefined
_CONTAINERS = frozenset((dict, list, tuple))
_PLAIN_SIMPLES = frozenset((20, 21, *_NULLS, 25, 26, 27))  # and booleans, and three widths of float


class MalformedPayload(Exception):
    """The payload cannot be understood. With `request_id` it can still be answered, without it cannot."""

    def __init__(self, problem: str, request_id: str | None = None) -> None:
        super().__init__(problem)
        self.request_id = request_id


class _NotCbor(Exception):
    """Broken or cut short: nothing after this point can be told apart."""


class _TooManyItems(Exception):
    """The walk was given up."""


class _Container:
    __slots__ = ("items", "keyed", "seen")

    def __init__(self, items: int | None, keyed: bool) -> None:
        self.items = items  # None: until a break
        self.keyed = keyed  # a map: every other item is a key
        self.seen = 0


class _Walk:
    """Steps over CBOR items without building them.

    `refusal` is the first thing met that is well-formed but not taken. The walk goes on after it, so that
    what follows is known to be well-formed too.
    """

    __slots__ = ("data", "end", "has_nulls", "items_left", "pos", "refusal")

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data
        self.pos = 0
        self.end = len(data)
        self.items_left = ITEMS_MAX
        self.refusal: str | None = None
        self.has_nulls = False

    def top_map(self) -> Iterator[tuple[int, int, int]]:
        """Steps over one map; yields start of key, start of value, end of value for each of its entries."""
        top = self._enter()
        if top is None or not top.keyed:
            raise _NotCbor("the payload is not a map")
        while not self._finished(top):
            top.seen += 2
            key = self.pos
            self._check_key()
            self._item()
            value = self.pos
            self._item()
            yield key, value, self.pos

    def _item(self) -> None:
        """Steps over one key or value of the top map, by a list instead of recursion."""
        entered = self._enter()
        open_containers = [] if entered is None else [entered]
        while open_containers:
            container = open_containers[-1]
            if self._finished(container):
                open_containers.pop()
                continue
            if container.keyed and container.seen % 2 == 0:
                self._check_key()
            container.seen += 1
            entered = self._enter()
            if entered is not None:
                open_containers.append(entered)
                if len(open_containers) >= DEPTH_MAX:  # the top map is one more
                    self._refuse(f"the payload is nested deeper than {DEPTH_MAX} levels")

    def _finished(self, container: _Container) -> bool:
        if container.items is not None:
            return container.seen == container.items
        if self.pos >= self.end:
            raise _NotCbor("the payload is cut short")
        if self.data[self.pos] != _BREAK:
            return False
        if container.keyed and container.seen % 2:
            raise _NotCbor("a map ends between key and value")
        self.pos += 1
        return True

    def _check_key(self) -> None:
        # Keys of other types can be made to collide in a dict; the hash of text has a secret in it.
        if self.pos < self.end and self.data[self.pos] >> 5 != _TEXT:
            self._refuse("a map key is not text")

    def _enter(self) -> _Container | None:
        """Steps over a whole string or number, or only over the header of what has items inside."""
        major, info, argument = self._header()
        if major <= _TEXT:
            if argument is None:
                self._chunks(major)
            elif major >= _BYTES:
                self._advance(argument)
            return None
        if major == _SIMPLE:
            self.has_nulls = self.has_nulls or info in _NULLS
            if info not in _PLAIN_SIMPLES:
                self._refuse("the payload has a simple value without a meaning")
            return None
        if major == _TAG:
            self._refuse("the payload has a CBOR tag")
            return _Container(1, keyed=False)
        items = None if argument is None else argument * (2 if major == _MAP else 1)
        return _Container(items, keyed=major == _MAP)

    def _header(self) -> tuple[int, int, int | None]:
        """Major type, additional information, argument (None: indefinite length)."""
        if self.pos >= self.end:
            raise _NotCbor("the payload is cut short")
        self.items_left -= 1
        if self.items_left < 0:
            raise _TooManyItems(f"the payload has more than {ITEMS_MAX} items")
        initial = self.data[self.pos]
        major, info = initial >> 5, initial & 31
        self.pos += 1
        if info < 24:
            return major, info, info
        if info < 28:
            start = self.pos
            self._advance(1 << (info - 24))
            return major, info, int.from_bytes(self.data[start : self.pos], "big")
        if info == 31 and _BYTES <= major <= _MAP:
            return major, info, None
        raise _NotCbor(f"the payload has the byte 0x{initial:02x} where an item should start")

    def _chunks(self, major: int) -> None:
        while True:
            if self.pos < self.end and self.data[self.pos] == _BREAK:
                self.pos += 1
                return
            chunk_major, _, length = self._header()
            if chunk_major != major or length is None:
                raise _NotCbor("a chunk of a string is not a string of the same kind")
            self._advance(length)

    def _advance(self, length: int) -> None:
        if length > self.end - self.pos:
            raise _NotCbor("the payload is cut short")
        self.pos += length

    def _refuse(self, problem: str) -> None:
        self.refusal = self.refusal or problem


def decode_map(payload: bytes | memoryview) -> dict[str, Any]:
    """The one map that a payload must be. Keys with null are left out; the last of equal keys counts.

    Refused, with the requestId if there is one: tags, keys that are not text (in any map), deep nesting, too
    many items, text that is not UTF-8, bytes after the map.
    """
    walk = _Walk(payload)
    try:
        for _ in walk.top_map():
            pass
    except _NotCbor as problem:
        raise MalformedPayload(str(problem)) from None
    except _TooManyItems as problem:
        raise MalformedPayload(str(problem), salvage_request_id(payload)) from None
    refusal = walk.refusal
    if refusal is None and walk.pos < walk.end:
        refusal = f"{walk.end - walk.pos} bytes follow the map"
    if refusal is not None:
        raise MalformedPayload(refusal, salvage_request_id(payload))
    try:
        decoded: dict[str, Any] = cbor2.loads(payload)
    except cbor2.CBORDecodeError as error:  # the walk leaves one thing to be found: text that is not UTF-8
        raise MalformedPayload(str(error), salvage_request_id(payload)) from None
    return _without_nulls(decoded) if walk.has_nulls else decoded


def salvage_request_id(prefix: bytes | memoryview) -> str | None:
    """The requestId of a map that is refused, or of which only the beginning is there."""
    walk = _Walk(prefix)
    found = None
    try:
        for key, value, end in walk.top_map():
            if _text(prefix[key:value]) == "requestId":
                found = _text(prefix[value:end])
    except (_NotCbor, _TooManyItems):
        pass
    return found


def _text(item: bytes | memoryview) -> str | None:
    if item[0] >> 5 != _TEXT:
        return None
    try:
        return str(cbor2.loads(item))
    except cbor2.CBORDecodeError:
        return None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if not _is_null(inner)}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return None if _is_null(value) else value


def _is_null(value: Any) -> bool:
    return value is None or value is cbor2.undefined


def encode_frame(op: int, body: dict[str, Any]) -> bytes:
    """Length, operation and CBOR map in one buffer: clients lose their place when a header comes in parts."""
    if _has_none(body):
        raise ValueError(f"a null in the body of operation {op} would kill the client's read loop")
    payload = cbor2.dumps(body)
    length = 1 + len(payload)
    if length > FRAME_LENGTH_MAX:
        raise ResponseTooLarge(f"the response has {length} bytes, more than {FRAME_LENGTH_MAX}; ask for less")
    return _FRAME_HEADER.pack(length, op) + payload


def encode_response(op: int, request_id: str, status: Status, error_message: str = "", **extra: Any) -> bytes:
    """A response. `extra` are the keys that only a success carries."""
    if extra and status is not Status.SUCCESS:
        raise ValueError(f"a response with status {status!r} must not carry {', '.join(extra)}")
    body = {"requestId": request_id, "status": int(status), "errorMessage": error_message, **extra}
    return encode_frame(op, body)


def _has_none(container: Any) -> bool:
    for value in container.values() if type(container) is dict else container:
        if value is None:
            return True
        if type(value) in _CONTAINERS and _has_none(value):
            return True
    return False
