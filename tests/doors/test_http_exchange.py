"""Answers of Firehose leave in one piece, connections stay usable behind them, and all is as uvicorn would do it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import ServerProcess
from penstock.doors.firehose.body import BODY_BYTES_MAX

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


# -- the same requests through uvicorn's own cycle ---------------------------------------------------


class Post(NamedTuple):
    blanks_bytes: int  # in front of the text
    text: bytes
    chunk_bytes: int  # 0: not chunked
    version: bytes
    headers: tuple[bytes, ...]

    @property
    def is_the_last(self) -> bool:
        """The server hangs up behind the answer."""
        return (
            self.version == b"1.0"
            or b"Connection: close" in self.headers
            or self.blanks_bytes > BODY_BYTES_MAX
        )

    def encode(self, path: bytes) -> bytes:
        head = [
            b"POST %b HTTP/%b" % (path, self.version),
            b"Host: penstock",
            b"X-Amz-Target: Firehose_20150804.ListDeliveryStreams",
            *self.headers,
        ]
        body = b" " * self.blanks_bytes + self.text
        if not self.chunk_bytes:
            return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])
        starts = range(0, len(body), self.chunk_bytes)
        chunks = [body[start : start + self.chunk_bytes] for start in starts]
        chunked = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        return b"\r\n".join([*head, b"Transfer-Encoding: chunked", b"", chunked])


LAST = Post(0, BODY, 0, b"1.1", (b"Connection: close",))
posts = st.builds(
    Post,
    st.sampled_from([0, 0, 0, 70_000, 400_000, BODY_BYTES_MAX + 1]),
    st.sampled_from([BODY, b"", b"no json", b"[" * 2000]),
    st.sampled_from([0, 0, 7_000, 300_000]),
    st.sampled_from([b"1.1", b"1.1", b"1.1", b"1.0"]),
    st.sampled_from(
        [(), (), (b"Connection: close",), (b"Connection: keep-alive",), (b"Expect: 100-continue",)]
    ),
)


def answers(server: ServerProcess, pieces: list[bytes]) -> bytes:
    """All that comes back, but for what is another each time, and for what says only that the body is awaited."""
    with socket.create_connection((server.host, server.http_port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        received = b"".join(iter(partial(connection.recv, 65536), b""))
    received = received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    return re.sub(rb"(date|x-amzn-requestid|x-amz-id-2): [^\r]+", rb"\1", received)


@settings(max_examples=40, deadline=None)
@given(sent=st.lists(posts, min_size=1, max_size=3), cuts=st.lists(st.floats(0, 1), max_size=6))
def test_answers_are_those_of_uvicorn(server: ServerProcess, sent: list[Post], cuts: list[float]) -> None:
    """`/?` leads to the same door, but through uvicorn's own cycle."""
    kept = list(takewhile(lambda post: not post.is_the_last, sent))
    kept.append(sent[len(kept)] if len(kept) < len(sent) else LAST)

    def through(path: bytes) -> bytes:
        whole = b"".join(post.encode(path) for post in kept)
        edges = [0, *sorted(int(cut * len(whole)) for cut in cuts), len(whole)]
        return answers(server, [whole[a:b] for a, b in pairwise(edges)])

    expected = through(b"/?")
    assert expected.count(b"x-amz-id-2") == len(kept)
    assert through(b"/") == expected
