"""Streams that are deleted, made again and changed while clients append to them without a pause."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from running import RunningServer
from sm_requests import answers, append_bytes

from conformance.wire import Op, Status


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    yield shared
    shared.make_as_new()


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
            time.sleep(0.01)  # appends meet a stream that is there, one that goes, and none
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
            time.sleep(0.05)  # long enough for a few segments
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
            time.sleep(0.005)  # a few appends either way
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
