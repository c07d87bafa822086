"""Whatever bytes come, the server answers or hangs up, and nobody else notices."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import cbor2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from running import RunningServer

from conformance.raw_client import RawClient
from conformance.wire import CONNECT_VERSION, Op, connect_request, decode_response, frame

SOAK = os.environ.get("PENSTOCK_SOAK") == "1"
EXAMPLES = 20_000 if SOAK else 200
ANSWER_S = 20

pytestmark = pytest.mark.soak


class Neighbour:
    """A client that works all the time, and for which nothing may change."""

    def __init__(self, server: RunningServer) -> None:
        self._client = RawClient(server.port)
        self._client.create("neighbour", strategyOnFull=1, maxSize=2**20)
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self.appended = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                number = self._client.append("neighbour", b"%d" % self.appended)
                assert number == self.appended
                (message,) = self._client.read("neighbour", desiredStartSequenceNumber=number)
                assert message["payload"] == b"%d" % number
                self.appended += 1
                time.sleep(0.001)  # it must not be all that the server has to do
        except BaseException as error:
            self.failure = error

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def end(self) -> None:
        self._stop.set()
        self._thread.join(ANSWER_S)
        self._client.close()
        assert not self._thread.is_alive()
        self.check()
        assert self.appended


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("fuzz") / "data"
    with RunningServer(directory, message_size_max_bytes=2**20, input_buffer_max_bytes=2**22) as running:
        neighbour = Neighbour(running)
        running.neighbour = neighbour  # type: ignore[attr-defined]
        yield running
        neighbour.end()
        running.assert_nothing_left()


def converse(server: RunningServer, pieces: Sequence[bytes]) -> list[tuple[int, dict[str, Any]]]:
    """Send the pieces, hear all answers up to the FIN; a reset or an answer that SDKs cannot digest raises."""
    server.neighbour.check()  # type: ignore[attr-defined]
    with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        heard = bytearray()
        for piece in pieces:
            if not exchange(connection, piece, heard):
                break
        connection.setblocking(True)
        connection.settimeout(ANSWER_S)
        connection.shutdown(socket.SHUT_WR)
        while chunk := connection.recv(1 << 20):
            heard += chunk
    return list(answers_in(bytes(heard)))


def exchange(connection: socket.socket, piece: bytes, heard: bytearray) -> bool:
    """Send all of it, reading beside; False when the server hung up, which it may do before it has read all."""
    view = memoryview(piece)
    while view:
        readable, writable, _ = select.select([connection], [connection], [], ANSWER_S)
        assert readable or writable, "the server neither reads nor hangs up"
        if readable:
            chunk = connection.recv(1 << 20)
            if not chunk:
                return False
            heard += chunk
        if writable:
            view = view[connection.send(view) :]
    return True


def answers_in(heard: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    if not heard:
        return
    assert heard[:1] == CONNECT_VERSION
    position = 1
    while position < len(heard):
        length, op = struct.unpack_from(">ib", heard, position)
        payload = heard[position + 5 : position + 4 + length]
        assert len(payload) == length - 1, "the last answer is cut short"
        yield op, decode_response(op, payload)
        position += 4 + length


HANDSHAKE = CONNECT_VERSION + frame(Op.CONNECT, cbor2.dumps(connect_request()))


def request(op: int, **body: Any) -> bytes:
    return frame(op, cbor2.dumps({"requestId": f"id-{op}", **body}))


def definition(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "strategyOnFull": 1, "maxSize": 65536, "streamSegmentSize": 4096, **fields}


KINESIS = {"kinesis": [{"identifier": "k", "kinesisStreamName": "k", "batchSize": 5, "priority": 1}]}
CONVERSATION = [
    request(Op.CREATE, definition=definition("a")),
    request(Op.CREATE, definition=definition("b", flushOnWrite=True, exportDefinition=KINESIS)),
    request(Op.CREATE, definition=definition("c", persistence=1, timeToLiveMillis=60_000)),
    *(request(Op.APPEND, name="a", payload=b"%d" % n) for n in range(12)),
    *(request(Op.APPEND, name=name, payload=bytes(100)) for name in "bcab"),
    request(Op.APPEND, name="a", payload=bytes(5000)),
    request(Op.READ, streamName="a", readMessagesOptions={"maxMessageCount": 10}),
    request(
        Op.READ, streamName="b", readMessagesOptions={"readTimeoutMillis": 60_000, "minMessageCount": 99}
    ),
    request(Op.DESCRIBE, name="b"),
    request(Op.LIST),
    request(Op.UPDATE, definition=definition("b", flushOnWrite=False)),
    request(Op.DELETE, name="c"),
    request(Op.CONNECT, protocolVersion="1.1.0"),
    request(42, name="a"),
]


def cut(stream: bytes, points: Sequence[float]) -> list[bytes]:
    edges = sorted({0, len(stream), *(int(point * len(stream)) for point in points)})
    return [stream[edge:following] for edge, following in zip(edges, [*edges[1:], len(stream)], strict=True)]


fractions = st.floats(0, 1, exclude_max=True)
unsteady = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(st.binary(max_size=300), st.lists(fractions, max_size=3), st.booleans())
@unsteady
@example(b"", [], False)
@example(b"\x00" * 4, [], True)
@example(b"\x7f\xff\xff\xff" * 2, [], True)
def test_random_bytes(server: RunningServer, data: bytes, points: list[float], after_handshake: bool) -> None:
    answers = converse(server, cut(HANDSHAKE * after_handshake + data, points))
    assert len(answers) >= after_handshake


@given(st.randoms(use_true_random=False), st.integers(1, 6), st.lists(fractions, max_size=4))
@unsteady
def test_a_conversation_with_some_bytes_changed(
    server: RunningServer, chance: random.Random, changes: int, points: list[float]
) -> None:
    frames = CONVERSATION[:]
    chance.shuffle(frames)
    stream = bytearray(b"".join(frames))
    for _ in range(changes):
        at = chance.randrange(len(stream))
        length = chance.choice([1, 1, 1, 4, 30])
        how = chance.randrange(5)
        if how == 0:
            stream[at] = chance.randrange(256)
        elif how == 1:
            stream[at] ^= 1 << chance.randrange(8)
        elif how == 2:
            del stream[at : at + length]
        elif how == 3:
            stream[at:at] = chance.randbytes(length)
        else:
            stream[at:at] = stream[at : at + length]
    answers = converse(server, cut(HANDSHAKE + bytes(stream), points))
    assert answers


@given(st.randoms(use_true_random=False), st.integers(0, len(CONVERSATION)), st.lists(fractions, max_size=4))
@unsteady
def test_bodies_changed_inside_sound_frames(
    server: RunningServer, chance: random.Random, count: int, points: list[float]
) -> None:
    """The framing stays right, so every frame is judged by itself and the conversation goes on longer."""
    stream = b""
    for whole in chance.sample(CONVERSATION, count):
        body = bytearray(whole[5:])
        at = chance.randrange(len(body))
        if chance.random() < 0.7:
            body[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        stream += frame(whole[4], bytes(body))
    converse(server, cut(HANDSHAKE + stream, points))


lengths = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 1, 2, 5, 2**16 - 5, 2**16 - 4, 2**16, 2**20, 2**21, 2**30, 2**30 + 1, -1, -(2**31)]),
)


@given(lengths, st.sampled_from([*Op, 0, 99, -1]), st.binary(max_size=100), st.integers(0, 3), st.booleans())
@unsteady
def test_length_fields_that_lie(
    server: RunningServer, length: int, op: int, body: bytes, before: int, in_handshake: bool
) -> None:
    lie = struct.pack(">ib", length, op) + body
    if in_handshake:
        converse(server, [CONNECT_VERSION + lie])
        return
    appends = b"".join(request(Op.APPEND, name="absent", payload=b"m") for _ in range(before))
    answers = converse(server, [HANDSHAKE + appends + lie])
    assert len(answers) >= 1 + before


@given(st.integers(0, 10**6), st.booleans())
@unsteady
def test_a_conversation_that_ends_anywhere(server: RunningServer, length: int, reset: bool) -> None:
    stream = HANDSHAKE + b"".join(CONVERSATION)
    stream = stream[: length % (len(stream) + 1)]
    if not reset:
        converse(server, [stream])
        return
    with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_S) as connection:
        connection.sendall(stream)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7]), min_size=1, max_size=40),
    st.lists(
        st.sampled_from([0x00, 0x1B, 0x38, 0x5F, 0x7F, 0x81, 0x9B, 0x9F, 0xA1, 0xBF, 0xC2, 0xD8, 0xF6, 0xFF]),
        max_size=60,
    ),
)
@unsteady
@example([Op.CONNECT], [0, 0])  # a second Connect whose body is refused
def test_hostile_cbor(server: RunningServer, ops: list[int], items: list[int]) -> None:
    prefix = b"\xa2" + cbor2.dumps("requestId") + cbor2.dumps("id-x") + cbor2.dumps("definition")
    stream = b"".join(frame(op, prefix + bytes(items)) for op in ops)
    converse(server, [HANDSHAKE + stream])


def test_deep_wide_and_endless_bodies(server: RunningServer) -> None:
    opening = b"\xa2" + cbor2.dumps("requestId") + cbor2.dumps("id-x") + cbor2.dumps("definition")
    for inside in (
        b"\x81" * 60_000 + b"\x00",
        b"\xa1\x61a" * 20_000 + b"\x00",
        b"\x9f" + b"\x00" * 60_000,
        b"\x9a\xff\xff\xff\xff",
        b"\xbb" + b"\xff" * 8,
        b"\x5f" + b"\x41a" * 20_000 + b"\xff",
        b"\x99\xff\xff" + b"\xa0" * 65_535,
        b"\xc1" * 50_000 + b"\x00",
    ):
        answers = converse(server, [HANDSHAKE + frame(Op.CREATE, opening + inside) + request(Op.LIST)])
        assert answers[0][1]["status"] == 0
