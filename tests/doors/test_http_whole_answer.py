"""Answers of Firehose leave in one piece, and connections stay usable behind them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import ServerProcess

BODY = b'{"Limit":1}'
ANSWER = b'{"DeliveryStreamNames":[],"HasMoreDeliveryStreams":false}'


def request(*headers: bytes, body: bytes = BODY) -> bytes:
    head = [
        b"POST / HTTP/1.1",
        b"Host: penstock",
        b"X-Amz-Target: Firehose_20150804.ListDeliveryStreams",
        b"Content-Length: %d" % len(body),
        *headers,
    ]
    return b"\r\n".join([*head, b"", b""]) + body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory: Path = tmp_path_factory.mktemp("whole")
    server = ServerProcess(directory / "data").start()
    yield server
    server.stop()


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[socket.socket]:
    with socket.create_connection((server.host, server.http_port), timeout=10) as connection:
        yield connection


def receive_until(connection: socket.socket, end: bytes, count: int = 1) -> bytes:
    received = b""
    while received.count(end) < count:
        chunk = connection.recv(65536)
        assert chunk, f"closed after {received!r}"
        received += chunk
    return received


def test_head_and_body_come_together(connection: socket.socket) -> None:
    for _ in range(20):
        connection.sendall(request())
        received = connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert received.endswith(b"\r\n\r\n" + ANSWER)


def test_pipelined_requests_are_answered_in_order(connection: socket.socket) -> None:
    wrong = request(body=b"no json")
    connection.sendall(request() + wrong + request())
    received = receive_until(connection, ANSWER, 2)
    statuses = re.findall(rb"HTTP/1.1 (\d+)", received)
    assert statuses == [b"200", b"400", b"200"]


def test_a_connection_that_is_to_be_closed(connection: socket.socket) -> None:
    connection.sendall(request(b"Connection: close"))
    received = receive_until(connection, ANSWER)
    assert b"connection: close" in received.lower()
    assert connection.recv(1) == b""


def test_a_client_that_waits_before_it_sends_its_body(connection: socket.socket) -> None:
    whole = request(b"Expect: 100-continue")
    connection.sendall(whole[: -len(BODY)])
    assert receive_until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(BODY)
    assert receive_until(connection, ANSWER).startswith(b"HTTP/1.1 200")
