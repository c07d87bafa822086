"""Crowds, slow clients and clients that do not read: everybody else goes on."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import cbor2
import pytest

from conformance.raw_client import RawClient
from conformance.wire import CONNECT_VERSION, Op, connect_request, decode_response, frame
from harness import ServerProcess

MIB = 1 << 20
RESPONSIVE_S = 1.0


@pytest.fixture(autouse=True, scope="module")
def _enough_file_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def peak_memory_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def assert_responsive(server: ServerProcess, name: str) -> None:
    started = time.monotonic()
    with RawClient(server.port) as client:
        client.append(name, b"x")
        client.list()
        client.describe(name)
    assert time.monotonic() - started < RESPONSIVE_S


async def receive(reader: asyncio.StreamReader) -> dict[str, object]:
    length, op = struct.unpack(">ib", await reader.readexactly(5))
    return decode_response(op, await reader.readexactly(length - 1))


def test_a_thousand_connections_at_once(server: ServerProcess) -> None:
    connections, appends_each = 1000, 3
    with RawClient(server.port) as client:
        client.create("crowd")

    async def one_client(connected: asyncio.Semaphore, go: asyncio.Event) -> list[object]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(CONNECT_VERSION + frame(Op.CONNECT, cbor2.dumps(connect_request())))
        assert await reader.readexactly(1) == CONNECT_VERSION
        assert (await receive(reader))["status"] == 0
        connected.release()
        await go.wait()
        append = frame(Op.APPEND, cbor2.dumps({"requestId": "r", "name": "crowd", "payload": b"x"}))
        writer.write(append * appends_each)
        numbers = [(await receive(reader))["sequenceNumber"] for _ in range(appends_each)]
        writer.close()
        await writer.wait_closed()
        return numbers

    async def crowd() -> list[list[object]]:
        connected, go = asyncio.Semaphore(0), asyncio.Event()
        tasks = [asyncio.create_task(one_client(connected, go)) for _ in range(connections)]
        for _ in tasks:
            await asyncio.wait_for(connected.acquire(), 30)
        go.set()
        return await asyncio.wait_for(asyncio.gather(*tasks), 30)

    numbers = [number for one in asyncio.run(crowd()) for number in one]
    assert sorted(numbers) == list(range(connections * appends_each))


def test_a_thousand_streams(server: ServerProcess) -> None:
    names = [f"stream-{i:04}" for i in range(1000)]
    with RawClient(server.port) as client:
        for name in names:
            client.send(Op.CREATE, definition={"name": name, "strategyOnFull": 0})
        assert {client.receive()[1]["status"] for _ in names} == {0}
        for _ in range(2):
            for name in names:
                client.send(Op.APPEND, name=name, payload=name.encode())
            assert {client.receive()[1]["status"] for _ in names} == {0}
        assert client.list() == names
    server.restart()
    with RawClient(server.port) as client:
        assert client.list() == names
        for name in names:
            client.send(Op.READ, streamName=name, readMessagesOptions={"minMessageCount": 2})
        for name, (_, response) in zip(names, [client.receive() for _ in names], strict=True):
            assert [message["payload"] for message in response["messages"]] == [name.encode()] * 2


@pytest.mark.parametrize("persistence", [0, 1])
def test_a_reader_that_does_not_read(server: ServerProcess, persistence: int) -> None:
    with RawClient(server.port) as client:
        client.create("large", persistence=persistence)
        for _ in range(16):
            client.append("large", bytes(MIB))
        client.create("other")
    before_bytes = peak_memory_bytes(server)

    with RawClient(server.port) as lazy:
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        for _ in range(500):
            lazy.send(Op.READ, streamName="large", readMessagesOptions={"minMessageCount": 16})
        for _ in range(10):
            assert_responsive(server, "other")
            time.sleep(0.1)  # a second in all, for memory to grow if it does
        assert peak_memory_bytes(server) - before_bytes < 200 * MIB
        # It reads after all: nothing was dropped.
        for _ in range(3):
            assert len(lazy.receive()[1]["messages"]) == 16


def test_a_reader_that_does_not_read_cannot_keep_the_server_from_stopping(server: ServerProcess) -> None:
    with RawClient(server.port) as lazy:
        lazy.create("large")
        for _ in range(16):
            lazy.append("large", bytes(MIB))
        lazy.send(Op.READ, streamName="large", readMessagesOptions={"minMessageCount": 16})
        lazy.receive_exactly(5)
        server.stop()


def test_readers_that_leave_in_the_middle_of_an_answer(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.create("large")
        client.create("other")
        for _ in range(16):
            client.append("large", bytes(MIB))
    for _ in range(20):
        with RawClient(server.port) as leaving:
            leaving.send(Op.READ, streamName="large", readMessagesOptions={"minMessageCount": 16})
            leaving.receive_exactly(5)
    assert_responsive(server, "other")


def test_a_writer_that_does_not_read_its_answers(server: ServerProcess) -> None:
    """It stops being read, so its own socket fills: that is how it learns to slow down."""
    with RawClient(server.port) as client:
        client.create("s")
        client.create("other")
    before_bytes = peak_memory_bytes(server)
    with RawClient(server.port) as lazy:
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.socket.settimeout(1)
        request = frame(Op.APPEND, cbor2.dumps({"requestId": "r" * 1000, "name": "s", "payload": b"x"}))
        sent_bytes = 0
        try:
            while sent_bytes < 100 * MIB:
                sent_bytes += lazy.socket.send(request * 64)
        except TimeoutError:
            pass
        assert sent_bytes < 100 * MIB, (
            "the server takes requests without end from a client that reads no answers"
        )
        assert_responsive(server, "other")
    assert peak_memory_bytes(server) - before_bytes < 200 * MIB


def test_slow_clients_hold_up_nobody(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.create("s")
        client.create("other")
    append = frame(Op.APPEND, cbor2.dumps({"requestId": "r", "name": "s", "payload": bytes(100)}))
    slow = [RawClient(server.port) for _ in range(20)]
    stuck = RawClient(server.port)
    stuck.send_bytes(append[:-1])
    greedy = RawClient(server.port)
    greedy.send_bytes(struct.pack(">ib", 2**30, Op.APPEND) + bytes(1000))
    for position in range(0, len(append), 8):
        for client in slow:
            client.send_bytes(append[position : position + 8])
        assert_responsive(server, "other")
    assert sorted(client.receive()[1]["sequenceNumber"] for client in slow) == list(range(20))
    assert peak_memory_bytes(server) < 300 * MIB, "memory is taken for bytes that were announced, not sent"
    server.stop()
    for client in (*slow, stuck, greedy):
        client.assert_closed_cleanly()
        client.close()


def test_large_frames_from_many_clients(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.create("large")
        client.create("other")
    writers = [RawClient(server.port) for _ in range(8)]
    for writer in writers:
        writer.send(Op.APPEND, name="large", payload=bytes(8 * MIB))
    assert_responsive(server, "other")
    assert sorted(writer.receive()[1]["sequenceNumber"] for writer in writers) == list(range(8))
    for writer in writers:
        writer.close()


def test_connections_that_come_and_go_leave_nothing_behind(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.create("s")
    descriptors = Path(f"/proc/{server.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(300):
        with RawClient(server.port) as client:
            client.send(Op.READ, streamName="s", readMessagesOptions={"readTimeoutMillis": 60000})
    deadline = time.monotonic() + 10
    while len(list(descriptors.iterdir())) > before + 3 and time.monotonic() < deadline:
        time.sleep(0.05)  # nothing tells of the descriptors of another process
    assert len(list(descriptors.iterdir())) <= before + 3
