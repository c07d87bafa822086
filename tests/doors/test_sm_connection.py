"""Connections under stress, over real sockets: who waits for whom, how much is held, how it ends."""

from __future__ import annotations

import asyncio
import itertools
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cbor2
import pytest
from running import RunningServer, resident_bytes

from conformance.raw_client import RawClient
from conformance.wire import Op, Status, frame
from penstock.doors.streammanager import connection as connection_module
from penstock.doors.streammanager import door as door_module
from penstock.errors import PenstockError
from penstock.model import StreamDefinition

MIB = 1024 * 1024
OVERHEAD_BYTES = 12


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    started: list[RunningServer] = []

    def start(**settings: Any) -> RunningServer:
        server = RunningServer(tmp_path / f"data-{len(started)}", **settings)
        started.append(server)
        return server.__enter__()

    yield start
    for server in started:
        server.__exit__(None, None, None)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("shared") / "data") as running:
        yield running


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    yield shared
    shared.make_as_new()


def append_bytes(request_id: str, name: str, payload: bytes) -> bytes:
    return frame(Op.APPEND, cbor2.dumps({"requestId": request_id, "name": name, "payload": payload}))


def read_bytes(request_id: str, name: str, **options: int) -> bytes:
    body = {"requestId": request_id, "streamName": name, "readMessagesOptions": options}
    return frame(Op.READ, cbor2.dumps(body))


def answers(client: RawClient, count: int) -> list[dict[str, Any]]:
    return [client.receive()[1] for _ in range(count)]


def answers_to_the_end(client: RawClient) -> list[dict[str, Any]]:
    """All answers up to the FIN; a reset raises."""
    received: list[dict[str, Any]] = []
    while client.socket.recv(1, socket.MSG_PEEK):
        received.append(client.receive()[1])
    return received


# -- order and refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", [False, True])
def test_a_run_of_appends_is_answered_in_order(server: RunningServer, flush: bool) -> None:
    with server.client() as client:
        client.create("s", flushOnWrite=flush)
        client.send_bytes(b"".join(append_bytes(f"id-{n:05d}", "s", b"m%d" % n) for n in range(3000)))
        received = answers(client, 3000)
        assert [a["requestId"] for a in received] == [f"id-{n:05d}" for n in range(3000)]
        assert [a["sequenceNumber"] for a in received] == list(range(3000))


@pytest.mark.parametrize("flush", [False, True])
def test_a_stream_that_fills_up_in_a_run_takes_exactly_what_fits(server: RunningServer, flush: bool) -> None:
    fitting = 4096 // (100 + OVERHEAD_BYTES)
    with server.client() as client:
        client.create("s", maxSize=4096, flushOnWrite=flush)
        client.send_bytes(b"".join(append_bytes(f"id-{n:03d}", "s", bytes(100)) for n in range(60)))
        received = answers(client, 60)
        assert [a["requestId"] for a in received] == [f"id-{n:03d}" for n in range(60)]
        assert [a["sequenceNumber"] for a in received[:fitting]] == list(range(fitting))
        assert {a["status"] for a in received[fitting:]} == {Status.INVALID_REQUEST}
        assert "full" in received[-1]["errorMessage"]
        assert client.append("s", b"small") == fitting
        assert client.storage("s") == (0, fitting, fitting * (100 + OVERHEAD_BYTES) + 5 + OVERHEAD_BYTES)


def test_small_messages_pass_where_large_ones_do_not(server: RunningServer) -> None:
    """A run of equal shape, but of sizes that do and do not fit: numbers have no holes, answers no disorder."""
    sizes = [1000, 1000, 1000, 1000, 20, 1000, 20, 900, 20]
    with server.client() as client:
        client.create("s", maxSize=4096)
        client.send_bytes(b"".join(append_bytes(f"id-{n}", "s", bytes(size)) for n, size in enumerate(sizes)))
        received = answers(client, len(sizes))
        assert [a["requestId"] for a in received] == [f"id-{n}" for n in range(len(sizes))]
        assert [a.get("sequenceNumber") for a in received] == [0, 1, 2, 3, 4, None, None, None, None]


class Listener:
    """Hears what becomes of one append."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self._name = name
        self._heard = heard

    def appended(self, first_sequence: int, count: int) -> None:
        self._heard.append(f"{self._name} stored")

    def append_failed(self, count: int, error: PenstockError) -> None:
        self._heard.append(f"{self._name} refused")


def test_a_refused_append_does_not_overtake_one_that_is_being_written(server: RunningServer) -> None:
    """Clients that give every request the same requestId match answers by their order."""
    heard: list[str] = []
    written, refused = threading.Event(), threading.Event()

    def while_written() -> None:
        written.set()
        refused.wait(10)

    async def append() -> None:
        await server.streams.create(StreamDefinition("s", max_size_bytes=1024))
        beside = asyncio.create_task(server.streams.committer.call(while_written))
        await asyncio.sleep(0)  # so that it goes to the write thread together with the append
        server.streams.append("s", [bytes(800)], Listener("first", heard))
        while not written.is_set():
            await asyncio.sleep(0.001)
        server.streams.append("s", [bytes(800)], Listener("second", heard))
        refused.set()
        await beside

    server.run(append())
    assert heard == ["first stored", "second refused"]


def test_a_message_that_is_too_large_in_a_run(start: Callable[..., RunningServer]) -> None:
    server = start(message_size_max_bytes=1000)
    with server.client() as client:
        client.create("s")
        sizes = [10, 10, 1000, 1001, 10, 2000, 1000]
        client.send_bytes(b"".join(append_bytes(f"id-{n}", "s", bytes(size)) for n, size in enumerate(sizes)))
        received = answers(client, len(sizes))
        assert [a["requestId"] for a in received] == [f"id-{n}" for n in range(len(sizes))]
        too_large = Status.REQUEST_PAYLOAD_TOO_LARGE
        assert [a["status"] for a in received] == [0, 0, 0, too_large, 0, too_large, 0]
        assert [a["sequenceNumber"] for a in received if "sequenceNumber" in a] == [0, 1, 2, 3, 4]


def test_appends_to_many_streams_in_one_piece(server: RunningServer) -> None:
    with server.client() as client:
        for n in range(5):
            client.create(f"s{n}", flushOnWrite=n % 2 == 0)
        order = [random.Random(n).randrange(5) for n in range(1000)]
        client.send_bytes(
            b"".join(append_bytes(f"id-{n:04d}", f"s{stream}", b"%d" % n) for n, stream in enumerate(order))
        )
        by_id = {a["requestId"]: a["sequenceNumber"] for a in answers(client, 1000)}
        for stream in range(5):
            sent = [n for n, chosen in enumerate(order) if chosen == stream]
            assert [by_id[f"id-{n:04d}"] for n in sent] == list(range(len(sent)))
            stored = client.read(f"s{stream}", minMessageCount=len(sent))
            assert [message["payload"] for message in stored] == [b"%d" % n for n in sent]


# -- the end of a connection -----------------------------------------------------------------------------


@pytest.mark.parametrize("flush", [False, True])
def test_a_client_that_has_said_all_still_gets_every_answer(server: RunningServer, flush: bool) -> None:
    with server.client() as client:
        client.create("s", flushOnWrite=flush)
        client.send_bytes(b"".join(append_bytes(f"id-{n:04d}", "s", bytes(1000)) for n in range(2000)))
        client.send(Op.DESCRIBE, name="s")
        client.send(Op.READ, streamName="s", requestId="read")
        client.socket.shutdown(socket.SHUT_WR)
        received = answers_to_the_end(client)
        assert len(received) == 2002
        assert sorted(a["sequenceNumber"] for a in received if "sequenceNumber" in a) == list(range(2000))
    server.assert_nothing_left()


def test_what_came_before_bad_bytes_is_answered_before_the_end(server: RunningServer) -> None:
    with server.client() as client, server.client() as other:
        client.create("s", flushOnWrite=True)
        other.send_bytes(b"".join(append_bytes(f"other-{n:04d}", "s", b"x") for n in range(500)))
        client.send_bytes(
            b"".join(append_bytes(f"id-{n:04d}", "s", b"y") for n in range(500)) + b"\xff" * 100
        )
        assert len(answers_to_the_end(client)) == 500
        assert len(answers(other, 500)) == 500
        assert client_count(server) == 1
        other.append("s", b"still there")


def client_count(server: RunningServer) -> int:
    server.wait_until(lambda: len(server.door._connections) <= 1, "a connection does not end")
    return server.look(lambda: len(server.door._connections))


def test_bytes_sent_behind_a_bad_frame_cause_no_reset(server: RunningServer) -> None:
    with server.client() as client:
        client.send_bytes(b"\xff" * 10)
        for _ in range(20):
            client.send_bytes(bytes(10_000))
            time.sleep(0.01)
        client.assert_closed_cleanly()
        client.socket.shutdown(socket.SHUT_WR)
    server.assert_nothing_left()


def test_a_shared_requestid_and_then_bad_bytes_end_without_reset(server: RunningServer) -> None:
    with server.client() as client:
        client.create("s")
        pieces = [append_bytes(" ", "s", b"m") for _ in range(50)]
        client.send_bytes(b"".join(pieces) + frame(Op.LIST, b"\xff") + b"".join(pieces))
        client.send_bytes(bytes(100_000))
        assert len(answers_to_the_end(client)) == 50
        client.socket.shutdown(socket.SHUT_WR)
    server.assert_nothing_left()


def test_reads_that_wait_go_with_their_connection(server: RunningServer) -> None:
    with server.client() as client:
        client.create("s")
    for _ in range(3):
        with server.client() as client:
            waiting = (read_bytes(f"r{n:04d}", "s", readTimeoutMillis=9_223_372_036_854) for n in range(500))
            client.send_bytes(b"".join(waiting))
            server.wait_until(lambda: sum(map(len, server.streams._waiters.values())) == 500, "reads wait")
        server.assert_nothing_left()
    assert not server.look(lambda: server.streams._waiters)


def test_more_waiting_reads_than_a_connection_may_have_go_with_it_too(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not read from such a connection, and must yet see that it is gone."""
    monkeypatch.setattr(door_module, "SWEEP_INTERVAL_S", 0.05)
    server = start()
    with server.client() as client:
        client.create("s")
    client = server.client()
    count = connection_module.TASKS_MAX + 1000
    requests = b"".join(
        read_bytes(f"r{n:04d}", "s", readTimeoutMillis=9_223_372_036_854) for n in range(count)
    )
    client.send_bytes(requests)
    limit = connection_module.TASKS_MAX
    server.wait_until(lambda: sum(map(len, server.streams._waiters.values())) >= limit, "reads wait")
    client.close()
    server.assert_nothing_left()


def test_a_read_that_waits_with_a_shared_requestid_goes_with_its_connection(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "SWEEP_INTERVAL_S", 0.05)
    server = start()
    with server.client() as client:
        client.create("s")
        client.send_bytes(read_bytes(" ", "s", readTimeoutMillis=9_223_372_036_854) * 2)
        server.wait_until(lambda: any(server.streams._waiters.values()), "the read waits")
    server.assert_nothing_left()


def test_a_change_goes_through_although_its_client_left(server: RunningServer) -> None:
    """Whoever waits for messages of a deleted stream must hear of it, whatever became of the deleter."""
    with server.client() as client, server.client() as reader:
        for attempt in range(20):
            name = f"s{attempt}"
            client.create(name)
            reader.send(Op.READ, streamName=name, readMessagesOptions={"readTimeoutMillis": 20_000})
            server.wait_until(lambda: any(server.streams._waiters.values()), "the read waits")
            deleter = server.client()
            if attempt % 2:  # leave with a reset, not with a FIN
                deleter.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            deleter.send(Op.DELETE, name=name)
            deleter.close()
            _, answer = reader.receive()
            assert answer["status"] == Status.RESOURCE_NOT_FOUND
        assert client.list() == []
    server.assert_nothing_left()


def test_stopping_answers_everything_that_was_taken(start: Callable[..., RunningServer]) -> None:
    server = start()
    clients = [server.client() for _ in range(4)]
    clients[0].create("s", flushOnWrite=True)
    clients[0].create("t")
    stopping = threading.Event()

    def load(client: RawClient, name: str) -> list[int]:
        """Appends without pause, answers read beside, until the server hangs up."""
        numbers = itertools.count()
        received: list[int] = []
        client.send_bytes(read_bytes("waiting", "s", minMessageCount=2**30, readTimeoutMillis=60_000))
        client.socket.setblocking(False)
        unsent, unread = b"", b""
        while True:
            readable, writable, _ = select.select([client.socket], [client.socket], [], 20)
            assert readable or writable
            if readable:
                chunk = client.socket.recv(MIB)
                if not chunk:
                    break
                unread += chunk
                while len(unread) >= 4 and len(unread) >= (size := 4 + int.from_bytes(unread[:4], "big")):
                    answer = cbor2.loads(unread[5:size])
                    unread = unread[size:]
                    if answer["requestId"] == "waiting":
                        assert answer["status"] == Status.NOT_ENOUGH_MESSAGES
                    else:
                        assert answer["status"] == Status.SUCCESS
                        received.append(answer["sequenceNumber"])
            if writable and not stopping.is_set():
                if not unsent:
                    unsent = b"".join(
                        append_bytes(f"{next(numbers):08d}", name, bytes(100)) for _ in range(50)
                    )
                unsent = unsent[client.socket.send(unsent) :]
            elif stopping.is_set():
                time.sleep(0.001)
        assert not unread
        return received

    with ThreadPoolExecutor(4) as threads:
        results = [threads.submit(load, client, "st"[n % 2]) for n, client in enumerate(clients)]
        time.sleep(0.3)
        stopping.set()
        server.stop()
        acknowledged = [result.result(20) for result in results]
    for client in clients:
        client.close()
    for name, lists in (("s", acknowledged[::2]), ("t", acknowledged[1::2])):
        merged = sorted(itertools.chain(*lists))
        assert merged == list(range(len(merged)))
        assert len(merged) == server.store.streams[name].visible_next
        assert merged


# -- large frames and their memory -----------------------------------------------------------------------


def test_an_oversized_frame_is_read_away_and_answered(start: Callable[..., RunningServer]) -> None:
    server = start(message_size_max_bytes=MIB)
    with server.client() as client:
        client.create("s")
        before = resident_bytes()
        client.send_bytes(append_bytes("large", "s", bytes(200 * MIB)) + append_bytes("next", "s", b"m"))
        received = answers(client, 2)
        assert [a["requestId"] for a in received] == ["large", "next"]
        assert [a["status"] for a in received] == [Status.REQUEST_PAYLOAD_TOO_LARGE, Status.SUCCESS]
        assert client.append("s", b"usable") == 1
    del received
    assert resident_bytes() - before < 100 * MIB
    server.assert_nothing_left()


def test_a_frame_of_64_mib_that_trickles_in_holds_up_nobody(server: RunningServer) -> None:
    payload = random.Random(1).randbytes(64 * MIB)
    with server.client() as client, server.client() as other:
        other.create("s", maxSize=2**30)
        other.create("t")
        whole = memoryview(append_bytes("large", "s", payload))
        position = 0
        slowest_s = 0.0
        while position < len(whole):
            step = 1 if position < 10 else 3 * MIB + 1
            client.socket.sendall(whole[position : position + step])
            position += step
            started = time.monotonic()
            other.append("t", b"m")
            slowest_s = max(slowest_s, time.monotonic() - started)
        assert client.receive()[1]["sequenceNumber"] == 0
        assert client.read("s")[0]["payload"] == payload
        assert slowest_s < 2


def held(server: RunningServer) -> int:
    return server.look(lambda: sum(c.held_input_bytes for c in server.door._connections))


def test_many_large_frames_at_once_share_the_input_buffer(start: Callable[..., RunningServer]) -> None:
    server = start(input_buffer_max_bytes=2 * MIB)
    clients = [server.client() for _ in range(8)]
    clients[0].create("s", maxSize=2**30)
    frames = [append_bytes(f"id-{n}", "s", bytes([n]) * (4 * MIB)) for n in range(8)]
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, held(server))
            time.sleep(0.002)

    def send(n: int) -> int:
        clients[n].socket.sendall(frames[n])
        return int(clients[n].receive()[1]["sequenceNumber"])

    with ThreadPoolExecutor(9) as threads:
        watching = threads.submit(watch)
        numbers = list(threads.map(send, range(8)))
        done.set()
        watching.result()
    assert sorted(numbers) == list(range(8))
    one_frame, one_piece_each = 4 * MIB + 100, 8 * 256 * 1024
    assert most <= 2 * MIB + one_frame + one_piece_each
    for client in clients:
        client.close()
    server.assert_nothing_left()


def test_a_frame_that_must_wait_for_its_turn_is_not_given_up(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "STALL_S", 0.3)
    monkeypatch.setattr(door_module, "SWEEP_INTERVAL_S", 0.05)
    server = start(input_buffer_max_bytes=MIB)
    with server.client() as slow, server.client() as waiting:
        slow.create("s", maxSize=2**30)
        whole = append_bytes("slow", "s", bytes(3 * MIB))
        slow.send_bytes(whole[: 2 * MIB])
        sender = threading.Thread(target=waiting.send_bytes, args=(append_bytes("waiting", "s", bytes(MIB)),))
        sender.start()
        position = 2 * MIB
        while position < len(whole):  # a second and more, a little all the time
            slow.send_bytes(whole[position : position + MIB // 16])
            position += MIB // 16
            time.sleep(0.1)
        assert slow.receive()[1]["status"] == Status.SUCCESS
        assert waiting.receive()[1]["status"] == Status.SUCCESS
        sender.join()


def test_a_frame_that_stands_still_is_given_up_and_others_go_on(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "STALL_S", 0.3)
    monkeypatch.setattr(door_module, "SWEEP_INTERVAL_S", 0.05)
    server = start(input_buffer_max_bytes=MIB)
    with server.client() as still, server.client() as other:
        other.create("s", maxSize=2**30)
        still.send_bytes(append_bytes("still", "s", bytes(3 * MIB))[: 2 * MIB])
        other.send_bytes(append_bytes("other", "s", bytes(3 * MIB)))
        assert other.receive()[1]["status"] == Status.SUCCESS
        still.assert_closed_cleanly()


# -- clients that do not read ----------------------------------------------------------------------------


def test_answers_to_a_client_that_does_not_read_are_bounded(server: RunningServer) -> None:
    with server.client() as other, server.client() as deaf:
        other.create("s", maxSize=2**30)
        for n in range(64):
            other.append("s", bytes([n]) * (64 * 1024))
        before = resident_bytes()
        reads = (read_bytes(f"r{n:04d}", "s", minMessageCount=64, maxMessageCount=64) for n in range(100))
        deaf.send_bytes(b"".join(reads))
        for n in range(200):
            other.append("s", b"m")
            assert len(other.read("s", desiredStartSequenceNumber=64 + n)) == 1
        grown = resident_bytes() - before
        assert grown < 50 * MIB, f"{grown // MIB} MiB for a client that does not read"
        assert [len(answer["messages"]) for answer in answers(deaf, 100)] == [64] * 100


@pytest.mark.parametrize("op", [Op.LIST, Op.DESCRIBE])
def test_large_answers_of_other_operations_are_bounded_too(server: RunningServer, op: Op) -> None:
    exports = [{"identifier": f"e{n}" + "x" * 200, "kinesisStreamName": "k" * 200} for n in range(50)]
    with server.client() as other, server.client() as deaf:
        other.create("s", exportDefinition={"kinesis": exports})
        for n in range(100):
            other.create(f"{n:03d}" + "n" * 250)
        body = {"name": "s"} if op is Op.DESCRIBE else {}
        deaf.send_bytes(
            b"".join(frame(op, cbor2.dumps({"requestId": f"id-{n:04d}", **body})) for n in range(1000))
        )
        time.sleep(0.3)
        other.append("s", b"m")
        buffered = server.look(
            lambda: max(c._transport.get_write_buffer_size() for c in server.door._connections)
        )
        assert buffered < 8 * MIB, f"{buffered // MIB} MiB wait for a client that does not read"
        assert len(answers(deaf, 1000)) == 1000


@contextmanager
def still_disk(server: RunningServer) -> Iterator[None]:
    """Within, nothing is written: the write thread has something else to do."""
    blocked, release = threading.Event(), threading.Event()

    def stand_still() -> None:
        blocked.set()
        release.wait(30)

    async def block() -> None:
        await server.streams.committer.call(stand_still)

    blocking = asyncio.run_coroutine_threadsafe(block(), server.loop)
    assert blocked.wait(10)
    yield
    release.set()
    blocking.result(10)


def send_what_is_taken(client: RawClient, data: bytes) -> int:
    """Send until the server has not read for a second. Returns how many bytes went."""
    view = memoryview(data)
    sent = 0
    while sent < len(view):
        _, writable, _ = select.select([], [client.socket], [], 1)
        if not writable:
            break
        sent += client.socket.send(view[sent : sent + 65536])
    return sent


def test_appends_faster_than_the_disk_are_bounded(server: RunningServer) -> None:
    """While the disk stands still, clients are not read from beyond a bound; then all goes on."""
    count = 2000
    data = b"".join(append_bytes(f"id-{n:04d}", "s", bytes(64 * 1024)) for n in range(count))
    with server.client() as client:
        client.create("s", maxSize=2**40)
        with still_disk(server):
            sent = send_what_is_taken(client, data)
            kept = server.look(lambda: server.door._held_append_bytes)
            assert sent < 32 * MIB
            assert kept < 8 * MIB
        rest = threading.Thread(target=client.send_bytes, args=(data[sent:],))
        rest.start()
        assert [a["sequenceNumber"] for a in answers(client, count)] == list(range(count))
        rest.join()
    assert server.look(lambda: server.door._held_append_bytes) == 0


def test_appends_of_many_clients_together_are_bounded(start: Callable[..., RunningServer]) -> None:
    server = start(input_buffer_max_bytes=4 * MIB)
    clients = [server.client() for _ in range(12)]
    clients[0].create("s", maxSize=2**40)
    data = b"".join(append_bytes(f"id-{n:04d}", "s", bytes(16 * 1024)) for n in range(200))
    with ThreadPoolExecutor(12) as threads:
        with still_disk(server):
            sent = list(threads.map(send_what_is_taken, clients, [data] * 12))
            kept = server.look(lambda: server.door._held_append_bytes)
            assert kept < 4 * MIB + 12 * 256 * 1024 + MIB
        resting = [
            threads.submit(client.send_bytes, data[n:]) for client, n in zip(clients, sent, strict=True)
        ]
        numbers = [a["sequenceNumber"] for client in clients for a in answers(client, 200)]
        for rest in resting:
            rest.result(20)
    assert sorted(numbers) == list(range(12 * 200))
    for client in clients:
        client.close()
    assert server.look(lambda: (server.door._held_append_bytes, server.door.crowded)) == (0, False)


# -- many waiting reads ----------------------------------------------------------------------------------


def test_thousands_of_waiting_reads_on_one_connection(server: RunningServer) -> None:
    count = 3000
    with server.client() as client, server.client() as writer:
        client.create("s")
        client.send_bytes(
            b"".join(read_bytes(f"r{n:04d}", "s", readTimeoutMillis=60_000) for n in range(count))
        )
        server.wait_until(lambda: sum(map(len, server.streams._waiters.values())) == count, "reads wait")
        client.send(Op.LIST, requestId="list")
        assert client.receive()[1]["requestId"] == "list"
        started = time.monotonic()
        writer.append("s", b"m")
        received = answers(client, count)
        assert {a["requestId"] for a in received} == {f"r{n:04d}" for n in range(count)}
        assert time.monotonic() - started < 10
    server.assert_nothing_left()


def test_reads_that_wait_for_later_numbers_cost_a_writer_little(server: RunningServer) -> None:
    """A stream of many segments, with thousands of reads waiting for what is far away."""
    with server.client() as client, server.client() as writer:
        client.create("s", streamSegmentSize=1024)
        for _ in range(10):
            writer.send_bytes(b"".join(append_bytes(f"w{n:04d}", "s", bytes(500)) for n in range(100)))
            answers(writer, 100)
        client.send_bytes(
            b"".join(
                read_bytes(f"r{n:04d}", "s", desiredStartSequenceNumber=10**6, readTimeoutMillis=60_000)
                for n in range(2000)
            )
        )
        server.wait_until(lambda: sum(map(len, server.streams._waiters.values())) == 2000, "reads wait")
        started = time.monotonic()
        for _ in range(100):
            writer.append("s", b"m")
        assert time.monotonic() - started < 2


def test_more_requests_than_a_connection_may_have_are_taken_up_again(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "TASKS_MAX", 300)
    count = 3000
    with server.client() as client:
        client.create("s")
        client.send_bytes(b"".join(read_bytes(f"r{n:05d}", "s", readTimeoutMillis=50) for n in range(count)))
        received = answers(client, count)
        assert {a["requestId"] for a in received} == {f"r{n:05d}" for n in range(count)}
        assert {a["status"] for a in received} == {Status.NOT_ENOUGH_MESSAGES}
    server.assert_nothing_left()


# -- streams that change under load ----------------------------------------------------------------------


class Load:
    """A client that appends to a stream all the time, and keeps every answer."""

    def __init__(self, server: RunningServer, name: str) -> None:
        self._client = server.client()
        self._name = name
        self._stop = threading.Event()
        self.answers: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for round_number in itertools.count():
            if self._stop.is_set():
                return
            ids = [f"{round_number:06d}-{n:02d}" for n in range(20)]
            self._client.send_bytes(b"".join(append_bytes(i, self._name, i.encode()) for i in ids))
            received = answers(self._client, len(ids))
            assert sorted(a["requestId"] for a in received) == ids
            self.answers += received

    def end(self) -> list[dict[str, Any]]:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive(), "a client waits for answers that do not come"
        self._client.close()
        return self.answers


@pytest.mark.parametrize(
    "definition", [{}, {"flushOnWrite": True}, {"persistence": 1}, {"streamSegmentSize": 2048}]
)
def test_a_stream_deleted_and_made_again_under_load(
    server: RunningServer, definition: dict[str, Any]
) -> None:
    with server.client() as client:
        client.create("s", **definition)
        loads = [Load(server, "s") for _ in range(3)]
        for _ in range(25):
            time.sleep(0.01)
            client.succeed(Op.DELETE, name="s")
            client.create("s", **definition)
        received = [answer for load in loads for answer in load.end()]
        statuses = {a["status"]: a["errorMessage"] for a in received}
        assert statuses.keys() <= {Status.SUCCESS, Status.RESOURCE_NOT_FOUND}, statuses
        first = client.append("s", b"last")
        oldest, newest, _ = client.storage("s")
        assert (oldest, newest) == (0, first)
        stored = [m["sequenceNumber"] for m in client.read("s", minMessageCount=first + 1)]
        assert stored == list(range(first + 1))


def test_streams_deleted_while_they_are_read_and_sealed(server: RunningServer) -> None:
    def read_all(stop: threading.Event) -> None:
        with server.client() as client:
            while not stop.is_set():
                answer = client.call(Op.READ, streamName="s", readMessagesOptions={"maxMessageCount": 1000})
                assert answer["status"] in {0, Status.RESOURCE_NOT_FOUND, Status.NOT_ENOUGH_MESSAGES}, answer

    stop = threading.Event()
    with server.client() as client, ThreadPoolExecutor(2) as threads:
        client.create("s", streamSegmentSize=4096)
        readers = [threads.submit(read_all, stop) for _ in range(2)]
        load = Load(server, "s")
        for _ in range(20):
            time.sleep(0.05)
            client.succeed(Op.DELETE, name="s")
            client.create("s", streamSegmentSize=4096)
        stop.set()
        load.end()
        for reader in readers:
            reader.result(20)
    folder = server.settings.data_dir / "streams"
    server.wait_until(lambda: len(list(folder.iterdir())) == 1, "a folder of a deleted stream is left")


def test_flush_on_write_switched_under_load(server: RunningServer) -> None:
    definition = {"name": "s", "strategyOnFull": 0, "maxSize": 2**30}
    with server.client() as client:
        client.create("s", maxSize=2**30)
        loads = [Load(server, "s") for _ in range(3)]
        for n in range(60):
            client.succeed(Op.UPDATE, definition={**definition, "flushOnWrite": n % 2 == 0})
            time.sleep(0.005)
        received = [answer for load in loads for answer in load.end()]
        assert {a["status"] for a in received} == {Status.SUCCESS}
        numbers = sorted(a["sequenceNumber"] for a in received)
        assert numbers == list(range(len(numbers)))
        assert client.storage("s")[:2] == (0, numbers[-1])
        by_number = {a["sequenceNumber"]: a["requestId"].encode() for a in received}
        position = 0
        while position < len(numbers):
            for message in client.read("s", desiredStartSequenceNumber=position, maxMessageCount=10_000):
                assert message["payload"] == by_number[message["sequenceNumber"]]
                assert message["sequenceNumber"] == position
                position += 1


def test_streams_come_and_go_beside_appends_to_memory(server: RunningServer) -> None:
    """Appends to Memory streams look at all streams, which change in another thread."""
    with server.client() as client:
        client.create("s", persistence=1, strategyOnFull=1)
        for n in range(100):
            client.create(f"x{n}", persistence=1)
        loads = [Load(server, "s") for _ in range(2)]
        for n in range(100):
            client.succeed(Op.DELETE, name=f"x{n}")
            client.create(f"y{n}", persistence=1, timeToLiveMillis=60_000)
        for load in loads:
            assert {a["status"] for a in load.end()} == {Status.SUCCESS}
