"""Connections under stress, over real sockets: who waits for whom, and how it ends."""

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

import cbor2
import pytest
from running import RunningServer
from sm_requests import answers, answers_to_the_end, append_bytes, read_bytes

from conformance.raw_client import RawClient
from conformance.wire import Op, Status, frame
from penstock.doors.streammanager import connection as connection_module
from penstock.doors.streammanager import door as door_module
from penstock.errors import PenstockError
from penstock.model import StreamDefinition

MIB = 1024 * 1024
OVERHEAD_BYTES = 12


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    yield shared
    shared.make_as_new()


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
            time.sleep(0.01)  # so that some of it comes when the server has hung up
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
            sending = [] if stopping.is_set() else [client.socket]
            readable, writable, _ = select.select([client.socket], sending, [], 20)
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
            if writable:
                if not unsent:
                    unsent = b"".join(
                        append_bytes(f"{next(numbers):08d}", name, bytes(100)) for _ in range(50)
                    )
                unsent = unsent[client.socket.send(unsent) :]
        assert not unread
        return received

    with ThreadPoolExecutor(4) as threads:
        results = [threads.submit(load, client, "st"[n % 2]) for n, client in enumerate(clients)]
        streams = server.store.streams
        server.wait_until(lambda: all(streams[name].visible_next > 500 for name in "st"), "there is no load")
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
