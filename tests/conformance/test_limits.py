"""Limits of the server rather than of a stream: what it refuses, with which status, and what goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.raw_client import RawClient
from conformance.wire import Op, Status
from harness import ServerProcess

MIB = 1 << 20
StartServer = Callable[..., ServerProcess]


def test_size_of_a_message(start_server: StartServer) -> None:
    server = start_server(env={"PENSTOCK_MESSAGE_SIZE_MAX_BYTES": "65536"})
    with RawClient(server.port) as client:
        client.create("s")
        assert client.append("s", bytes(65536)) == 0
        for size in (65537, 10 * MIB):
            client.fail(Status.REQUEST_PAYLOAD_TOO_LARGE, Op.APPEND, name="s", payload=bytes(size))
        assert client.append("s", b"in sync") == 1


def test_memory_of_memory_streams(start_server: StartServer) -> None:
    server = start_server(env={"PENSTOCK_MEMORY_STREAMS_SIZE_MAX_BYTES": str(MIB)})
    first_generation = {"protocolVersion": "1.0.0", "otherSupportedProtocolVersions": None}
    with RawClient(server.port) as client, RawClient(server.port, **first_generation) as old:
        client.create("one", persistence=1)
        client.create("two", persistence=1)
        client.create("file")
        assert client.append("one", bytes(700_000)) == 0
        client.fail(Status.OUT_OF_MEMORY, Op.APPEND, name="two", payload=bytes(700_000))
        status = old.call(Op.APPEND, name="two", payload=bytes(700_000))["status"]
        assert status in (Status.UNKNOWN_FAILURE, Status.INVALID_REQUEST)
        assert client.append("file", bytes(700_000)) == 0
        client.succeed(Op.DELETE, name="one")
        assert client.append("two", bytes(700_000)) == 0


def test_free_space_on_the_disk(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(tmp_path / "data")
    with RawClient(server.port) as client:
        client.create("s")
        client.append("s", b"before")
    server.stop()
    floor_bytes = shutil.disk_usage(tmp_path).free + (16 << 30)
    server = start_server(tmp_path / "data", env={"PENSTOCK_FREE_SPACE_FLOOR_BYTES": str(floor_bytes)})
    with RawClient(server.port) as client:
        text = client.fail(Status.INVALID_REQUEST, Op.APPEND, name="s", payload=b"x")
        assert "space" in text
        assert client.read("s")[0]["payload"] == b"before"
        client.create("memory", persistence=1)
        assert client.append("memory", b"x") == 0
    server.stop()
    server = start_server(tmp_path / "data")
    with RawClient(server.port) as client:
        assert client.append("s", b"after") == 1


def test_damaged_message_is_reported_and_the_rest_is_readable(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.create("s", streamSegmentSize=65536)
        for i in range(300):
            client.append("s", b"<message %04d>" % i + bytes(1000))
    server.restart()
    flip_a_bit(server.data_dir, b"<message 0010>")  # perhaps before the background work reads it again
    with RawClient(server.port) as client:
        client.fail(
            Status.MESSAGE_STORE_READ_ERROR,
            Op.READ,
            streamName="s",
            readMessagesOptions={"desiredStartSequenceNumber": 10},
        )
        messages = client.read("s", desiredStartSequenceNumber=200, minMessageCount=100)
        assert [message["sequenceNumber"] for message in messages] == list(range(200, 300))
        assert client.append("s", b"next") == 300
    server.restart()
    with RawClient(server.port) as client:
        messages = client.read("s", desiredStartSequenceNumber=200, minMessageCount=101)
        assert [message["sequenceNumber"] for message in messages] == list(range(200, 301))


def flip_a_bit(directory: Path, marker: bytes) -> None:
    damaged = 0
    for path in directory.rglob("*"):
        position = path.read_bytes().find(marker) if path.is_file() else -1
        if position >= 0:
            with path.open("r+b") as file:
                file.seek(position + len(marker))
                file.write(b"\x01")
            damaged += 1
    assert damaged, "the message is nowhere on disk"


@pytest.mark.soak
@pytest.mark.skipif("PENSTOCK_SOAK" not in os.environ, reason="writes more than a gibibyte: make soak")
def test_answer_that_cannot_fit_in_a_frame(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.create("s", maxSize=4 << 30)
        for _ in range(17):
            client.append("s", bytes(64 * MIB))
        client.fail(
            Status.RESPONSE_PAYLOAD_TOO_LARGE,
            Op.READ,
            streamName="s",
            readMessagesOptions={"minMessageCount": 17},
        )
        assert len(client.read("s", maxMessageCount=17)) >= 1
