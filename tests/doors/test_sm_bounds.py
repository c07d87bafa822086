"""How much the server holds for its clients: large frames, clients that do not read, reads that wait."""

from __future__ import annotations

import asyncio
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import cbor2
import pytest
from running import RunningServer, resident_bytes
from sm_requests import answers, append_bytes, read_bytes

from conformance.raw_client import RawClient
from conformance.wire import Op, Status, frame
from penstock.doors.streammanager import connection as connection_module
from penstock.doors.streammanager import door as door_module

MIB = 1024 * 1024


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    yield shared
    shared.make_as_new()


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
            time.sleep(0.002)  # or it would be most of what the server does

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
            time.sleep(0.1)  # the pace is the point
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
        server.wait_until(
            lambda: any("output" in c._paused for c in server.door._connections), "no answer has to wait"
        )
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
