"""The HTTP door: bulk reads give back every message, whatever happens to the stream meanwhile; and health."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bulk_reader import MIB, STOPPED_READS, Answer, Reader, fill, open_files, payload_of
from running import TOKEN, RunningServer

from conformance.raw_client import RawClient
from conformance.wire import Op
from penstock.log import stream as stream_module
from penstock.log.frame import HEADER_BYTES


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("shared") / "data", background_sync_interval_ms=20) as running:
        running.expected_complaints = STOPPED_READS
        yield running


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    yield shared
    shared.make_as_new()


def wait_until_sealed(server: RunningServer, name: str) -> None:
    stream = server.store.streams[name]
    server.wait_until(lambda: not stream.to_seal, "segments wait to be sealed")


@pytest.mark.parametrize(
    "definition",
    [
        {},
        {"streamSegmentSize": 8192},
        {"flushOnWrite": True, "streamSegmentSize": 8192},
        {"persistence": 1},
        {"persistence": 1, "streamSegmentSize": 8192},
    ],
    ids=["one segment", "many segments", "durable", "memory", "memory, many segments"],
)
def test_every_message_comes_back(server: RunningServer, definition: dict[str, Any]) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s", **definition)
        stored: dict[int, bytes] = {}
        for first in range(0, 1200, 200):
            stored |= fill(client, "s", 200, first)
        assert reader.read_all("s") == stored
        wait_until_sealed(server, "s")
        assert reader.read_all("s") == stored
        for limit in (1, 1000, 5000, 100_000):
            assert reader.read_all("s", max_bytes=limit) == stored


def test_ranges(server: RunningServer) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s", streamSegmentSize=8192)
        stored = fill(client, "s", 1000)
        wait_until_sealed(server, "s")
        for start, to in [(0, 1), (0, 1000), (500, 501), (999, 1000), (999, 5000), (3, 997), (0, 2**63 - 1)]:
            answer = reader.frames("s", start=start, to=to)
            assert answer.status == 200
            expected = {n: stored[n] for n in range(start, min(to, 1000))}
            # whole frames: there may be more at both ends, never less
            assert answer.messages.items() >= expected.items()
            assert stored.items() >= answer.messages.items()
            assert answer.next_sequence == min(to, 1000)
        for start, to in [(1000, 2000), (5, 5), (7, 3), (2**63 - 1, 2**63 - 1), (0, 0)]:
            answer = reader.frames("s", start=start, to=to)
            assert (answer.status, answer.body) == (204, b"")
            assert answer.headers["penstock-end-sequence"] == "1000"


def test_a_cut_answer_holds_what_it_says(server: RunningServer) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s")
        stored: dict[int, bytes] = {}
        for n in range(100):
            stored |= fill(client, "s", 1, n)  # a frame each
        for limit in (1, HEADER_BYTES, 500, 5000):
            sequence = 0
            while sequence < 100:
                answer = reader.frames("s", start=sequence, max_bytes=limit)
                found = answer.messages
                assert sorted(found) == list(range(sequence, answer.next_sequence))
                assert len(answer.body) <= limit or len(found) == 1
                sequence = answer.next_sequence


def test_a_stream_of_very_many_segments_needs_few_files_at_a_time(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "RUNS_MAX", 20)
    with server.client() as client, Reader(server) as reader:
        client.create("s", streamSegmentSize=1024)
        stored: dict[int, bytes] = {}
        for first in range(0, 100, 50):
            messages = {n: bytes([n % 256]) * 900 for n in range(first, first + 50)}
            for payload in messages.values():
                client.send(Op.APPEND, name="s", payload=payload)
            for _ in messages:
                client.receive()
            stored |= messages
        wait_until_sealed(server, "s")
        answer = reader.frames("s")
        assert answer.next_sequence == 20
        assert reader.read_all("s") == stored


def test_numbers_that_are_gone_are_passed_over(server: RunningServer) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s", maxSize=16384, streamSegmentSize=4096, strategyOnFull=1)
        stored = fill(client, "s", 1000)
        oldest, newest, _ = client.storage("s")
        assert 0 < oldest < newest == 999
        answer = reader.frames("s")
        assert int(answer.headers["penstock-oldest-sequence"]) == oldest
        assert answer.messages == {n: stored[n] for n in range(oldest, 1000)}


def test_numbers_that_were_skipped_are_passed_over(start: Callable[..., RunningServer]) -> None:
    server = start()
    with server.client() as client, Reader(server) as reader:
        client.create("s")
        stored = fill(client, "s", 10)
        server.look(lambda: server.store.streams["s"].skip_to(1000))
        later = fill(client, "s", 10)
        assert min(later) == 1000
        assert reader.read_all("s") == stored | later
        assert reader.frames("s", start=500).messages == later


def test_refusals(server: RunningServer) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s")
        client.append("s", b"m")
        for headers in (
            {},
            {"authorization": ""},
            {"authorization": "Bearer"},
            {"authorization": "Bearer "},
            {"authorization": "Bearer wrong"},
            {"authorization": f"Basic {TOKEN.decode()}"},
            {"authorization": f"Bearer {TOKEN.decode()}x"},
            {"authorization": "Bearer \xe9"},
        ):
            answer = reader.request("/v1/frames?stream=s", headers=headers)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "token" in json.loads(answer.body)["error"]
        assert reader.frames("absent").status == 404
        assert "absent" in json.loads(reader.frames("absent").body)["error"]
        assert reader.request("/v1/frames").status == 400
        for query in (
            "from=-1",
            "from=x",
            "to=1.5",
            "max_bytes=",
            f"from={2**63}",
            "from=%D9%A1",
            "from=" + "0" * 20,
        ):
            answer = reader.request(f"/v1/frames?stream=s&{query}")
            assert answer.status == 400, query
            assert query.split("=")[0] in json.loads(answer.body)["error"]
        assert reader.request("/nowhere").status == 404
        assert reader.request("/v1/frames?stream=s", method="DELETE").status == 405
        assert reader.frames("s").messages == {0: b"m"}


def test_an_empty_stream_has_nothing_to_send(server: RunningServer) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s")
        answer = reader.frames("s")
        assert (answer.status, answer.body) == (204, b"")
        assert answer.next_sequence == 0


def test_health(start: Callable[..., RunningServer]) -> None:
    sound, full = start(), start(free_space_floor_bytes=2**60)
    with Reader(sound) as reader:
        answer = reader.request("/healthz", headers={})
        assert (answer.status, json.loads(answer.body)["status"]) == (200, "ok")
    with Reader(full) as reader:
        told = json.loads(reader.request("/healthz", headers={}).body)
        assert told["status"] == "degraded"
        assert "full" in told["problems"][0]


@pytest.mark.parametrize("persistence", [0, 1])
def test_the_head_alone_and_then_the_same_connection(server: RunningServer, persistence: int) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s", persistence=persistence)
        stored = fill(client, "s", 100)
        for _ in range(3):
            head = reader.request("/v1/frames?stream=s", method="HEAD")
            assert (head.status, head.body) == (200, b"")
            whole = reader.frames("s")
            assert int(head.headers["content-length"]) == len(whole.body)
            assert whole.messages == stored


def test_one_connection_serves_bulk_reads_and_others_in_turn(server: RunningServer) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s")
        stored = fill(client, "s", 2000)
        reader.connection.connect()
        port = reader.connection.sock.getsockname()[1]
        for _ in range(50):
            assert reader.frames("s").messages == stored
            assert reader.frames("s", start=1990).messages.items() <= stored.items()
            assert reader.request("/healthz").status == 200
            assert reader.frames("absent").status == 404
        assert reader.connection.sock.getsockname()[1] == port


def test_requests_sent_at_once_are_answered_in_turn(server: RunningServer) -> None:
    with server.client() as client:
        client.create("s")
        stored = fill(client, "s", 2000)
    request = b"GET /v1/frames?stream=s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + TOKEN + b"\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as connection:
        connection.sendall(request * 20)
        stream = connection.makefile("rb")
        for _ in range(20):
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            fields = http.client.parse_headers(stream)
            body = stream.read(int(fields["content-length"]))
            assert Answer(200, {}, body).messages == stored
        stream.close()


def test_the_kernel_sends_the_files(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    real = os.sendfile

    def counted(target: int, source: int, offset: int, count: int) -> int:
        sent.append(real(target, source, offset, count))
        return sent[-1]

    monkeypatch.setattr(os, "sendfile", counted)
    with server.client() as client, Reader(server) as reader:
        client.create("file", streamSegmentSize=65536)
        client.create("memory", persistence=1)
        fill(client, "file", 5000)
        fill(client, "memory", 1000)
        assert sum(sent) == 0
        body = reader.frames("file").body
        server.wait_until(lambda: sum(sent) == len(body) > 0, "not all was sent by the kernel")
        sent.clear()
        assert reader.frames("memory").body
        assert sum(sent) == 0


# -- while the stream changes ----------------------------------------------------------------------------


class Changing:
    """Does something to the server again and again until told to stop."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self._running = self._threads.submit(self._run)

    def _run(self) -> int:
        rounds = 0
        while not self._stop.is_set():
            self._work()
            rounds += 1
        return rounds

    def end(self) -> int:
        self._stop.set()
        rounds = self._running.result(20)
        self._threads.shutdown()
        return rounds


def numbered(client: RawClient, name: str, count: int) -> None:
    """Messages whose number says what they must hold."""
    _, newest, _ = client.storage(name)
    fill(client, name, count, newest + 1)


@pytest.mark.parametrize("definition", [{}, {"flushOnWrite": True}, {"persistence": 1}])
def test_bulk_reads_beside_appends_and_sealing(server: RunningServer, definition: dict[str, Any]) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s", streamSegmentSize=16384, maxSize=2**30, **definition)
        appending = Changing(lambda: numbered(client, "s", 50))
        deadline_s = time.monotonic() + 0.8
        reads = 0
        while time.monotonic() < deadline_s:
            found = reader.read_all("s", max_bytes=200_000)
            assert sorted(found) == list(range(len(found)))
            for number, payload in found.items():
                assert payload == payload_of(number)
            reads += 1
        assert appending.end() > 1
        assert reads > 1


def test_bulk_reads_beside_overwriting(server: RunningServer) -> None:
    with server.client() as client, Reader(server) as reader:
        client.create("s", streamSegmentSize=4096, maxSize=32768, strategyOnFull=1)
        numbered(client, "s", 50)
        appending = Changing(lambda: numbered(client, "s", 50))
        deadline_s = time.monotonic() + 0.8
        while time.monotonic() < deadline_s:
            answer = reader.frames("s")
            assert answer.status == 200
            for number, payload in answer.messages.items():
                assert payload == payload_of(number)
        assert appending.end() > 1


def test_bulk_reads_beside_deleting(server: RunningServer) -> None:
    """A read that is under way ends with the messages it began with, and never with those of another stream."""
    with server.client() as client, Reader(server) as reader:

        def make_again() -> None:
            client.create("s", streamSegmentSize=65536, maxSize=2**30)
            fill(client, "s", 500)
            client.succeed(Op.DELETE, name="s")

        changing = Changing(make_again)
        deadline_s = time.monotonic() + 1
        statuses: set[int] = set()
        while time.monotonic() < deadline_s:
            answer = reader.frames("s")
            statuses.add(answer.status)
            if answer.status == 200:
                for number, payload in answer.messages.items():
                    assert payload == payload_of(number)
        changing.end()
        assert statuses <= {200, 204, 404}
        assert 200 in statuses


def test_a_deleted_stream_is_sent_to_its_end_to_a_slow_reader(server: RunningServer) -> None:
    with server.client() as client:
        client.create("s", maxSize=2**30)
        for n in range(8):
            client.append("s", bytes([n]) * (4 * MIB))
        before = open_files()
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as connection:
            connection.sendall(
                b"GET /v1/frames?stream=s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + TOKEN + b"\r\n\r\n"
            )
            stream = connection.makefile("rb")
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            fields = http.client.parse_headers(stream)
            client.succeed(Op.DELETE, name="s")
            client.create("s", maxSize=2**30)
            client.append("s", bytes(32 * MIB))  # a new file, perhaps with the same descriptor
            body = stream.read(int(fields["content-length"]))
            stream.close()
        assert Answer(200, {}, body).messages == {n: bytes([n]) * (4 * MIB) for n in range(8)}
    server.wait_until(lambda: open_files() <= before, "files stay open")
