"""The hot path of AppendMessage, held to the answers of the full decoder."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import cbor2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conformance.wire import frame
from penstock.doors.streammanager.append import (
    ID_BYTES_MAX,
    UNIFORM_FRAMES_MIN,
    Shape,
    encode_append_answers,
    parse_append,
)
from penstock.doors.streammanager.codec import MalformedPayload, decode_map, encode_response
from penstock.doors.streammanager.connection import Connection
from penstock.doors.streammanager.door import Door
from penstock.doors.streammanager.handshake import connect_response
from penstock.doors.streammanager.protocol import Op, Status
from penstock.doors.streammanager.requests import parse_append_message, request_id_problem
from penstock.errors import InvalidRequest, StreamNotFound
from penstock.log.files import Buffer
from penstock.log.store import Store
from penstock.model import Persistence, StreamDefinition
from penstock.streams import Streams

WIDTH_BOUNDS = (24, 2**8, 2**16, 2**32)
PAYLOAD_SIZES = (1, 2, 22, 23, 24, 25, 254, 255, 256, 257, 65534, 65535, 65536, 65537)
DEADLINE_S = 20


# -- frames as clients make them, and as they should not -------------------------------------------------


def header(major: int, length: int, width: int | None = None) -> bytes:
    """The beginning of a CBOR string, in the smallest form or in one of `width` bytes."""
    if width is None:
        width = next((w for w, bound in ((0, 24), (1, 2**8), (2, 2**16), (4, 2**32)) if length < bound), 8)
    if width == 0:
        return bytes([major << 5 | length])
    return bytes([major << 5 | 24 + (1, 2, 4, 8).index(width)]) + length.to_bytes(width, "big")


def text(value: bytes, width: int | None = None) -> bytes:
    return header(3, len(value), width) + value


def data(value: bytes, width: int | None = None) -> bytes:
    return header(2, len(value), width) + value


def append_frame(
    request_id: bytes, name: bytes, payload: bytes, widths: Sequence[int | None] = (None,) * 3
) -> bytes:
    body = (
        b"\xa3"
        + (text(b"requestId") + text(request_id, widths[0]))
        + (text(b"name") + text(name, widths[1]))
        + (text(b"payload") + data(payload, widths[2]))
    )
    return frame(Op.APPEND_MESSAGE, body)


def oracle(whole: bytes) -> tuple[str, str, bytes] | None:
    """What the full decoder makes of a frame: requestId, name, payload; None if it is no good append."""
    try:
        body = decode_map(whole[5:])
        request_id = body.get("requestId")
        if whole[4] != Op.APPEND_MESSAGE or request_id_problem(request_id) is not None:
            return None
        append = parse_append_message(body)
    except (MalformedPayload, InvalidRequest):
        return None
    return str(request_id), append.name, append.payload


names = st.sampled_from([b"s", b"t", b"absent", b"a longer name, with-all_kinds.of 0 characters", b"n" * 255])
odd_names = st.sampled_from([b"", b"n" * 256, "é".encode(), b"\xff\xfe", b"a/b", b"a\n", b"\x00"])
ids = st.one_of(
    st.text("abcdef0123456789-", min_size=1, max_size=40).map(str.encode),
    st.sampled_from([b"i" * n for n in (23, 24, 36, 255, 256, 300)]),
)
odd_ids = st.sampled_from([b"", "é".encode(), b"\xff", b"a\x00", b"a\nb", b"a/b"])
payloads = st.one_of(st.binary(min_size=1, max_size=40), st.sampled_from(PAYLOAD_SIZES[2:10]).map(bytes))
widths = st.sampled_from([None, None, None, 1, 2, 4, 8])


@st.composite
def usual_frames(draw: st.DrawFn) -> bytes:
    return append_frame(draw(ids), draw(names), draw(payloads))


@st.composite
def odd_frames(draw: st.DrawFn) -> bytes:
    """Frames that must be understood, or refused, exactly as the full decoder does it."""
    chosen = [draw(widths) for _ in range(3)]
    request_id = draw(st.one_of(ids, odd_ids))
    name = draw(st.one_of(names, odd_names))
    payload = draw(st.one_of(payloads, st.just(b"")))
    for position, value in enumerate((request_id, name, payload)):
        if chosen[position] == 1 and len(value) > 255:
            chosen[position] = None
    return append_frame(request_id, name, payload, chosen)


@st.composite
def mutated_frames(draw: st.DrawFn) -> bytes:
    """A usual frame with some bytes of its body changed, cut out or added; its length field fits."""
    body = bytearray(draw(usual_frames())[5:])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(body) - 1, 0)))
        how = draw(st.integers(0, 2))
        byte = draw(
            st.one_of(st.integers(0, 255), st.sampled_from([0x58, 0x59, 0x5A, 0x5F, 0x78, 0x79, 0x7F, 0xFF]))
        )
        if how == 0 and body:
            body[at] = byte
        elif how == 1 and len(body) > 2:
            del body[at]
        else:
            body.insert(at, byte)
    return frame(Op.APPEND_MESSAGE, bytes(body))


any_frame = st.one_of(usual_frames(), odd_frames(), mutated_frames())


# -- parse_append and Shape.take alone -------------------------------------------------------------------


@given(any_frame, st.binary(max_size=20), st.binary(max_size=20))
@settings(max_examples=500, deadline=None)
def test_what_parse_append_understands_the_full_decoder_understands_alike(
    whole: bytes, before: bytes, behind: bytes
) -> None:
    found = parse_append(before + whole + behind, len(before), len(before) + len(whole))
    expected = oracle(whole)
    if found is None:
        return
    assert (found.request_id.decode(), found.name.decode(), found.payload) == expected


@given(ids.filter(lambda value: len(value) <= ID_BYTES_MAX), names, payloads)
@settings(max_examples=200, deadline=None)
def test_the_usual_frame_is_always_understood(request_id: bytes, name: bytes, payload: bytes) -> None:
    whole = append_frame(request_id, name, payload)
    found = parse_append(whole, 0, len(whole))
    assert found is not None
    assert (found.request_id, found.name, found.payload) == (request_id, name, payload)


def test_requestids_of_every_length() -> None:
    for id_bytes in range(1, 301):
        request_id = bytes(97 + i % 26 for i in range(id_bytes))
        for payload in (b"p", bytes(300)):
            whole = append_frame(request_id, b"s", payload)
            found = parse_append(whole, 0, len(whole))
            assert (found is not None) == (id_bytes <= ID_BYTES_MAX)
            assert oracle(whole) == (request_id.decode(), "s", payload)
            assert found is None or (found.request_id, found.name, found.payload) == (
                request_id,
                b"s",
                payload,
            )


@pytest.mark.parametrize("size", PAYLOAD_SIZES)
@pytest.mark.parametrize("width", [None, 1, 2, 4, 8])
def test_payload_lengths_around_every_width(size: int, width: int | None) -> None:
    if width is not None and size >= 256**width:
        return
    payload = bytes(i % 251 for i in range(size))
    whole = append_frame(b"id", b"s", payload, (None, None, width))
    found = parse_append(whole, 0, len(whole))
    assert oracle(whole) == ("id", "s", payload)
    assert found is None if width == 8 else found is not None and found.payload == payload
    taken: list[Buffer] = []
    taken_ids: list[bytes] = []
    usual = append_frame(b"id", b"s", b"p")
    first = parse_append(usual, 0, len(usual))
    assert first is not None
    end = Shape(usual, 0, first).take(whole, 0, len(whole), taken_ids, taken)
    assert end in (0, len(whole))
    assert taken == ([payload] if end else [])


def take_all(shape: Shape, chunk: bytes) -> tuple[int, list[bytes], list[bytes]]:
    joined_ids: list[bytes] = []
    taken: list[Buffer] = []
    end = shape.take(chunk, 0, len(chunk), joined_ids, taken)
    together = b"".join(joined_ids)
    size = shape.id_bytes
    return end, [together[i : i + size] for i in range(0, len(together), size)], [bytes(p) for p in taken]


def shape_of(whole: bytes) -> Shape:
    append = parse_append(whole, 0, len(whole))
    assert append is not None
    return Shape(whole, 0, append)


@given(
    st.integers(1, 3 * UNIFORM_FRAMES_MIN),
    st.integers(0, 3 * UNIFORM_FRAMES_MIN),
    any_frame,
    st.integers(1, 300),
    st.integers(0, 60),
)
@settings(max_examples=300, deadline=None)
def test_a_run_of_equal_frames_is_taken_up_to_the_odd_one(
    before: int, behind: int, odd: bytes, payload_bytes: int, cut_bytes: int
) -> None:
    run = [append_frame(b"id-%04d" % n, b"s", bytes([n]) * payload_bytes) for n in range(before + behind)]
    stream = b"".join([*run[:before], odd, *run[before:]])
    stream = stream[: len(stream) - min(cut_bytes, len(stream) - 1)]
    shape = shape_of(run[0])
    end, taken_ids, taken = take_all(shape, stream)
    position = 0
    for request_id, payload in zip(taken_ids, taken, strict=True):
        length = struct.unpack_from(">i", stream, position)[0]
        whole = stream[position : position + 4 + length]
        assert len(whole) == 4 + length, "a frame was taken that is not all there"
        read = parse_append(whole, 0, len(whole))
        assert read is not None
        assert (read.request_id, read.name, read.payload) == (request_id, b"s", payload)
        position += 4 + length
    assert position == end
    whole_frames = min(before, len(stream) // len(run[0]))
    # the very last of a buffer may be left to the careful path when it is shorter than the loop looks ahead
    assert len(taken) >= whole_frames - 1
    if odd not in run and before:
        assert len(taken) <= before + 1 + behind


@pytest.mark.parametrize("what", [b"\x00\x8e", b"\x04\xa3", b"\xa3i", b"gid-", b"stream", b"\x58\x64"])
def test_one_byte_that_differs_in_a_run_ends_the_run_there(what: bytes) -> None:
    run = [append_frame(b"id-%04d" % n, b"stream", bytes([n]) * 100) for n in range(20)]
    at = run[0].index(what) + (what[0] == 0)
    for position in range(20):
        changed = bytearray(run[position])
        changed[at] ^= 1
        stream = b"".join([*run[:position], bytes(changed), *run[position + 1 :]])
        _, taken_ids, taken = take_all(shape_of(run[0]), stream)
        assert taken_ids == [b"id-%04d" % n for n in range(position)]
        assert taken == [bytes([n]) * 100 for n in range(position)]


# -- the answers -----------------------------------------------------------------------------------------


def expected_answers(request_ids: Sequence[str], first_sequence: int) -> bytes:
    return b"".join(
        encode_response(Op.APPEND_MESSAGE_RESPONSE, request_id, Status.SUCCESS, sequenceNumber=sequence)
        for sequence, request_id in enumerate(request_ids, first_sequence)
    )


@pytest.mark.parametrize("bound", [0, *WIDTH_BOUNDS, 2**53, 2**63 - 66])
def test_answers_are_those_of_the_full_encoder_across_every_width(bound: int) -> None:
    for id_bytes in (1, 2, 23, 24, 36, 255):
        for count in range(1, 65):
            request_ids = [f"{n:0{id_bytes}d}"[-id_bytes:] for n in range(count)]
            joined = "".join(request_ids).encode()
            for first in {max(bound - count, 0), max(bound - count // 2, 0), max(bound - 1, 0), bound}:
                assert encode_append_answers(joined, id_bytes, first) == expected_answers(request_ids, first)


def test_answers_cross_several_widths_at_once() -> None:
    request_ids = [f"{n:06d}" for n in range(70_000)]
    joined = "".join(request_ids).encode()
    assert encode_append_answers(joined, 6, 10) == expected_answers(request_ids, 10)


@given(
    st.lists(st.text("abc-_ ,.019", min_size=5, max_size=5), min_size=1, max_size=64),
    st.integers(0, 2**63 - 65),
)
@settings(deadline=None)
def test_answers_to_any_ids_and_numbers(request_ids: list[str], first: int) -> None:
    joined = "".join(request_ids).encode()
    assert encode_append_answers(joined, 5, first) == expected_answers(request_ids, first)


def test_the_longest_requestid_of_the_hot_path_has_an_answer_of_the_right_size() -> None:
    request_id = "r" * ID_BYTES_MAX
    assert encode_append_answers(request_id.encode(), ID_BYTES_MAX, 7) == expected_answers([request_id], 7)


# -- a whole connection, fed in any pieces ---------------------------------------------------------------


class Wire(asyncio.Transport):
    """The other end of a connection that has no socket."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.ended = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:  # type: ignore[type-arg, unused-ignore]
        assert not self.ended, "written after the end"
        self.sent += data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Outcome(NamedTuple):
    answers: list[bytes]
    closed: bool
    stored: dict[str, list[bytes]]


STREAMS = ("s", "t", "a longer name, with-all_kinds.of 0 characters", "n" * 255)


class Bench:
    """Streams and a door, on an event loop that runs only while an example is judged."""

    def __init__(self, data_dir: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._store = Store(data_dir, free_space_floor_bytes=0)
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        self._streams = Streams(
            self._store,
            message_size_max_bytes=2**20,
            memory_streams_size_max_bytes=2**30,
            read_soft_limit_bytes=2**30,
        )
        self._door = Door(
            self._streams,
            authenticate=False,
            client_tokens=(),
            message_size_max_bytes=2**20,
            input_buffer_max_bytes=2**26,
        )
        for name in STREAMS:
            await self._streams.create(StreamDefinition(name, 2**40, persistence=Persistence.MEMORY))

    def close(self) -> None:
        self._streams.close()
        self._store.close()
        self._loop.close()

    def next_sequence(self, name: str) -> int:
        return self._store.streams[name].visible_next

    def feed(self, chunks: Sequence[bytes]) -> Outcome:
        return self._loop.run_until_complete(asyncio.wait_for(self._feed(chunks), DEADLINE_S))

    async def _feed(self, chunks: Sequence[bytes]) -> Outcome:
        before = {name: self.next_sequence(name) for name in STREAMS}
        connection, wire = Connection(self._door), Wire()
        connection.connection_made(wire)
        connection.data_received(
            b"\x01" + frame(1, cbor2.dumps({"requestId": "c", "protocolVersion": "1.1.0"}))
        )
        greeting = bytes(wire.sent)
        assert greeting == connect_response("c", connection._identifier)
        wire.sent.clear()
        for chunk in chunks:
            if not wire.ended:
                connection.data_received(chunk)
        await self._streams.committer.drain()
        outcome = Outcome(list(split(bytes(wire.sent))), wire.ended, {})
        for name in STREAMS:
            count = self.next_sequence(name) - before[name]
            if count:
                read = await self._streams.read(name, before[name], count, count, list)
                outcome.stored[name] = [message.payload for message in read]
        connection.connection_lost(None)
        return outcome


def split(answers: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(answers):
        length = struct.unpack_from(">i", answers, position)[0]
        yield answers[position : position + 4 + length]
        position += 4 + length


def judge(frames: Sequence[bytes], next_sequences: dict[str, int]) -> Outcome:
    """What must come of these frames, by the full decoder alone, one after the other."""
    answers: list[bytes] = []
    stored: dict[str, list[bytes]] = {}
    for whole in frames:
        try:
            body = decode_map(whole[5:])
            request_id = body.get("requestId")
        except MalformedPayload as error:
            if error.request_id is None:
                return Outcome(answers, True, stored)
            answers.append(refusal(error.request_id, str(error)))
            continue
        if not isinstance(request_id, str):
            return Outcome(answers, True, stored)
        problem = request_id_problem(request_id)
        try:
            if problem is not None:
                raise InvalidRequest(problem)
            append = parse_append_message(body)
        except InvalidRequest as error:
            answers.append(refusal(request_id, str(error)))
            continue
        if append.name not in STREAMS:
            error_text = str(StreamNotFound(f"the message stream {append.name} does not exist"))
            answers.append(refusal(request_id, error_text, Status.RESOURCE_NOT_FOUND))
            continue
        messages = stored.setdefault(append.name, [])
        sequence = next_sequences[append.name] + len(messages)
        messages.append(append.payload)
        answers.append(
            encode_response(Op.APPEND_MESSAGE_RESPONSE, request_id, Status.SUCCESS, sequenceNumber=sequence)
        )
    return Outcome(answers, False, stored)


def refusal(request_id: str, message: str, status: Status = Status.INVALID_REQUEST) -> bytes:
    return encode_response(Op.APPEND_MESSAGE_RESPONSE, request_id, status, message)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("bench") / "data")
    yield made
    made.close()


def cut(stream: bytes, points: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(point % (len(stream) + 1) for point in points)})
    return [stream[a:b] for a, b in pairwise(edges)]


def assert_alike(bench: Bench, frames: Sequence[bytes], chunks: Sequence[bytes]) -> None:
    expected = judge(frames, {name: bench.next_sequence(name) for name in STREAMS})
    found = bench.feed(chunks)
    assert found.stored == expected.stored
    assert found.closed == expected.closed
    assert sorted(found.answers) == sorted(expected.answers)


run_of_frames = st.builds(
    lambda name, size, count, odd, at: (
        [*(append_frame(b"id-%04d" % n, name, bytes([n % 256]) * size) for n in range(count))][
            : at % (count + 1)
        ]
        + odd
        + [*(append_frame(b"id-%04d" % n, name, bytes([n % 256]) * size) for n in range(count))][
            at % (count + 1) :
        ]
    ),
    names,
    st.integers(1, 60),
    st.integers(0, 30),
    st.lists(any_frame, max_size=2),
    st.integers(0, 30),
)


@given(st.lists(st.one_of(any_frame, any_frame), max_size=12), st.lists(st.integers(0, 10**6), max_size=6))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([append_frame(b"id-1", b"\xff", b"p"), append_frame(b"id-2", b"s", b"p")], [])
@example([append_frame(b"\xff\xff", b"s", b"p"), append_frame(b"id", b"s", b"p")], [])
@example(
    [append_frame(b"i/", b"s", b"p"), append_frame(b"\xff\xff", b"s", b"p"), append_frame(b"id", b"s", b"p")],
    [],
)
def test_any_frames_in_any_pieces_get_the_answers_of_the_full_decoder(
    bench: Bench, frames: list[bytes], points: list[int]
) -> None:
    stream = b"".join(frames)
    assert_alike(bench, frames, cut(stream, points))


@given(run_of_frames, st.lists(st.integers(0, 10**6), max_size=4))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_runs_with_odd_frames_in_any_pieces_get_the_answers_of_the_full_decoder(
    bench: Bench, frames: list[bytes], points: list[int]
) -> None:
    assert_alike(bench, frames, cut(b"".join(frames), points))


def test_every_single_cut_of_a_conversation(bench: Bench) -> None:
    frames = [
        *(append_frame(b"id-%02d" % n, b"s", b"m%d" % n) for n in range(10)),
        append_frame(b"id-x", b"t", b"other"),
        append_frame(b"id/y", b"t", b"bad id"),
        append_frame(b"id-z", b"absent", b"nowhere"),
        append_frame(b"id-11", b"s", bytes(300)),
    ]
    stream = b"".join(frames)
    for point in range(1, len(stream)):
        assert_alike(bench, frames, [stream[:point], stream[point:]])


def test_one_byte_at_a_time(bench: Bench) -> None:
    frames = [append_frame(b"id-%02d" % n, b"s", b"m" * n) for n in range(1, 30)]
    assert_alike(bench, frames, [bytes([byte]) for byte in b"".join(frames)])


@pytest.mark.parametrize("size", [65_400, 65_480, 65_536, 70_000, 300_000])
def test_large_frames_between_small_ones(bench: Bench, size: int) -> None:
    frames = [
        append_frame(b"id-1", b"s", b"small"),
        append_frame(b"id-2", b"s", bytes(size)),
        append_frame(b"id-3", b"s", bytes(size)),
        append_frame(b"id-4", b"t", b"small"),
    ]
    stream = b"".join(frames)
    for step in (1000, 65_536, 100_001, len(stream)):
        assert_alike(bench, frames, [stream[i : i + step] for i in range(0, len(stream), step)])
