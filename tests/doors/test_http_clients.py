"""Clients of the HTTP door that do not read, leave, stop halfway, or send nothing at all."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from bulk_reader import MIB, STOPPED_READS, Answer, Reader, open_files
from running import TOKEN, RunningServer, resident_bytes

from penstock.doors.http import bulk, door


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    shared.expected_complaints = STOPPED_READS
    yield shared
    shared.make_as_new()


@pytest.mark.parametrize("persistence", [0, 1])
def test_a_client_that_does_not_read_is_dropped(
    start: Callable[..., RunningServer], persistence: int
) -> None:
    server = start(bulk_stall_s=0.5)
    with server.client() as client, Reader(server) as reader:
        client.create("s", maxSize=2**30, persistence=persistence)
        for n in range(16):
            client.append("s", bytes([n]) * (2 * MIB))
        assert reader.request("/healthz").status == 200
        before = open_files()
        deaf = [request_frames(server) for _ in range(2 * bulk.THREADS)]
        memory = resident_bytes()
        # more of them than threads, and yet others are served
        started = time.monotonic()
        assert len(reader.frames("s").messages) == 16
        assert time.monotonic() - started < 10
        assert resident_bytes() - memory < 300 * MIB
        server.wait_until(lambda: not server.http._server.server_state.tasks, "stalled reads go on")
        for connection in deaf:
            assert received_to_the_end(connection) < 32 * MIB
            connection.close()
        server.wait_until(lambda: open_files() <= before, "files stay open")


def request_frames(server: RunningServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.sendall(
        b"GET /v1/frames?stream=s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + TOKEN + b"\r\n\r\n"
    )
    return connection


def received_to_the_end(connection: socket.socket) -> int:
    total = 0
    try:
        while chunk := connection.recv(MIB):
            total += len(chunk)
    except ConnectionResetError:
        pass
    return total


def test_a_slow_client_gets_everything(start: Callable[..., RunningServer]) -> None:
    server = start(bulk_stall_s=0.5)
    with server.client() as client:
        client.create("s", maxSize=2**30)
        for n in range(4):
            client.append("s", bytes([n]) * (4 * MIB))
        connection = request_frames(server)
        stream = connection.makefile("rb")
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
        size = int(http.client.parse_headers(stream)["content-length"])
        body = b""
        while len(body) < size:
            body += stream.read(min(size - len(body), 2 * MIB))
            time.sleep(0.2)  # two seconds in all, but never half a second without a byte
        assert len(Answer(200, {}, body).messages) == 4
        stream.close()
        connection.close()


def test_clients_that_leave_leave_nothing_behind(server: RunningServer) -> None:
    with server.client() as client:
        client.create("s", maxSize=2**30)
        client.append("s", bytes(16 * MIB))
        before = open_files()
        for n in range(40):
            connection = request_frames(server)
            if n % 2:
                connection.recv(1000)
            if n % 3 == 0:
                connection.shutdown(socket.SHUT_WR)
            connection.close()
        server.wait_until(lambda: not server.http._server.server_state.tasks, "requests go on")
        server.wait_until(lambda: open_files() <= before, "files stay open")


def test_stopping_does_not_wait_for_a_client_that_does_not_read(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "STOP_S", 1)
    server = start()
    with server.client() as client:
        client.create("s", maxSize=2**30)
        client.append("s", bytes(32 * MIB))
    connections = [request_frames(server) for _ in range(12)]
    for connection in connections:
        assert connection.recv(10)
    server.expected_complaints = STOPPED_READS
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 10
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("head", [b"GET /" + b"a" * 300_000, b"GET / HTTP/1.1\r\nx: " + b"a" * 300_000])
def test_a_request_that_never_ends_is_refused(server: RunningServer, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as connection:
        refused = b""
        try:
            for start in range(0, len(head), 10_000):
                connection.sendall(head[start : start + 10_000])
                time.sleep(0.001)  # piece by piece, as a head that comes from far away
            refused = connection.recv(100)
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert refused in (b"", b"HTTP/1.1 400 Bad Request\r\n") or refused.startswith(b"HTTP/1.1 400 ")
    server.wait_until(lambda: not server.http._server.server_state.connections, "the connection stays open")


@pytest.mark.parametrize(
    "beginning", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n"], ids=["silent", "half a head"]
)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used before"])
def test_a_request_that_does_not_come_is_not_waited_for(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch, beginning: bytes, used: bool
) -> None:
    """A connection that has been used before may be idle for longer, but its next head may not stop halfway."""
    monkeypatch.setattr(door, "HEAD_S", 0.3)
    monkeypatch.setattr(door, "KEEP_ALIVE_S", 1)
    server = start()
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as connection:
        if used:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(MIB).startswith(b"HTTP/1.1 200 ")
        started_s = time.monotonic()
        connection.sendall(beginning)
        assert connection.recv(100) == b""
        # The loop's clock counts milliseconds, and a turn of the loop begins a little before its timers are set.
        assert time.monotonic() - started_s >= (0.9 if used and not beginning else 0.29)


def test_an_answer_that_takes_longer_than_a_head_may_is_waited_for(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "HEAD_S", 0.2)
    server = start()
    with server.client() as client:
        client.create("s", maxSize=2**30)
        for n in range(4):
            client.append("s", bytes([n]) * (4 * MIB))
        with request_frames(server) as connection:
            server.wait_until(
                lambda: bool(server.http._server.server_state.tasks), "the answer has not begun"
            )
            time.sleep(0.5)  # longer than the server waits for a head
            received_bytes = 0
            while received_bytes < 16 * MIB:
                chunk = connection.recv(MIB)
                assert chunk, "the server has hung up in the middle of its answer"
                received_bytes += len(chunk)
