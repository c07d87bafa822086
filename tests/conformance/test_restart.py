"""What is there after the server stops, is killed, and starts again."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.raw_client import RawClient
from conformance.wire import Op, Status
from harness import ServerDidNotStart, ServerProcess

KINESIS = {"kinesis": [{"identifier": "k", "kinesisStreamName": "k", "disabled": True}]}
AWKWARD_NAMES = [
    *(".", "..", "...", " ", "  ", "-", "_", ",", "a,b", " a", "a ", "a.log", "0000000000000000000.log"),
    *("stream", "Stream", "STREAM", "con", "NUL", "x" * 255, "X" * 255, "." * 255, "a" * 254 + " "),
]


def stop_or_kill(server: ServerProcess, how: str) -> None:
    if how == "stop":
        server.stop()
    else:
        server.kill()


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("flush_on_write", [False, True])
def test_file_streams_keep_messages_and_numbering(
    server: ServerProcess, how: str, flush_on_write: bool
) -> None:
    fields = {"flushOnWrite": flush_on_write, "timeToLiveMillis": 3600000, "exportDefinition": KINESIS}
    with RawClient(server.port) as client:
        client.create("kept", **fields)
        for i in range(500):
            client.send(Op.APPEND, name="kept", payload=b"%d" % i)
        assert [client.receive()[1]["sequenceNumber"] for _ in range(500)] == list(range(500))
        before = client.describe("kept")
        messages = client.read("kept", minMessageCount=500)
    stop_or_kill(server, how)
    server.start()
    with RawClient(server.port) as client:
        assert client.list() == ["kept"]
        assert client.describe("kept") == before
        assert client.read("kept", minMessageCount=500) == messages
        assert client.append("kept", b"next") == 500


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_again_and_again(server: ServerProcess, how: str) -> None:
    with RawClient(server.port) as client:
        client.create("s", maxSize=1 << 20, streamSegmentSize=4096)
    for round_number in range(4):
        with RawClient(server.port) as client:
            first = round_number * 100
            assert [client.append("s", b"%d" % (first + i)) for i in range(100)] == list(
                range(first, first + 100)
            )
        stop_or_kill(server, how)
        server.start()
    with RawClient(server.port) as client:
        payloads = [message["payload"] for message in client.read("s", minMessageCount=400)]
    assert payloads == [b"%d" % i for i in range(400)]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_changes_that_were_acknowledged_stay(server: ServerProcess, how: str) -> None:
    with RawClient(server.port) as client:
        for name in ("deleted", "again", "updated", "memory"):
            client.create(name, persistence=int(name == "memory"))
            client.append(name, b"old")
        client.succeed(Op.DELETE, name="deleted")
        client.succeed(Op.DELETE, name="again")
        client.create("again")
        definition = {
            "name": "updated",
            "strategyOnFull": 1,
            "timeToLiveMillis": 60000,
            "exportDefinition": KINESIS,
        }
        client.succeed(Op.UPDATE, definition=definition)
        before = client.describe("updated")
    stop_or_kill(server, how)
    server.start()
    with RawClient(server.port) as client:
        assert client.list() == ["again", "memory", "updated"]
        assert client.describe("updated") == before
        assert client.storage("again") == (0, -1, 0)
        assert client.append("again", b"new") == 0
        assert client.storage("memory") == (0, -1, 0)
        assert client.definition("memory")["persistence"] == 1
        assert client.append("memory", b"new") == 0


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_overwritten_streams_keep_their_place(server: ServerProcess, how: str) -> None:
    with RawClient(server.port) as client:
        client.create("ring", maxSize=32768, streamSegmentSize=8192, strategyOnFull=1)
        for _ in range(100):
            client.append("ring", bytes(1000))
        oldest, newest, _ = client.storage("ring")
        assert (oldest > 0, newest) == (True, 99)
    stop_or_kill(server, how)
    server.start()
    with RawClient(server.port) as client:
        assert client.storage("ring")[:2] == (oldest, 99)
        assert client.read("ring")[0]["sequenceNumber"] == oldest
        assert client.append("ring", b"next") == 100


def test_awkward_names(server: ServerProcess) -> None:
    outside_before = {path.name for path in server.data_dir.parent.iterdir()}
    with RawClient(server.port) as client:
        for name in AWKWARD_NAMES:
            client.create(name, flushOnWrite=True)
            assert client.append(name, name.encode()) == 0
        assert client.list() == sorted(AWKWARD_NAMES)
    server.restart()
    with RawClient(server.port) as client:
        assert client.list() == sorted(AWKWARD_NAMES)
        for name in AWKWARD_NAMES:
            assert [message["payload"] for message in client.read(name)] == [name.encode()]
            client.succeed(Op.DELETE, name=name)
        assert client.list() == []
    assert {path.name for path in server.data_dir.parent.iterdir()} == outside_before


def test_stopping_answers_waiting_reads_and_closes(server: ServerProcess) -> None:
    with RawClient(server.port) as client, RawClient(server.port) as idle:
        client.create("s")
        waiting = {
            client.send(Op.READ, streamName="s", readMessagesOptions={"readTimeoutMillis": 60000})
            for _ in range(5)
        }
        client.list()
        server.stop()
        answers = [client.receive() for _ in waiting]
        assert {response["requestId"] for _, response in answers} == waiting
        assert {response["status"] for _, response in answers} == {Status.NOT_ENOUGH_MESSAGES}
        client.assert_closed_cleanly()
        idle.assert_closed_cleanly()


def test_appends_in_flight_when_stopping_are_acknowledged_or_absent(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.create("s", flushOnWrite=True)
        for i in range(2000):
            client.send(Op.APPEND, name="s", payload=b"%d" % i)
        server.stop()
        acknowledged = []
        while client.socket.recv(1, socket.MSG_PEEK):
            acknowledged.append(client.receive()[1]["sequenceNumber"])
    server.start()
    with RawClient(server.port) as client:
        newest = client.storage("s")[1]
        assert acknowledged == list(range(len(acknowledged)))
        assert newest >= len(acknowledged) - 1
        if newest >= 0:
            messages = client.read("s", minMessageCount=newest + 1)
            assert [message["payload"] for message in messages] == [b"%d" % i for i in range(newest + 1)]


def test_second_server_on_the_directory_is_refused(
    server: ServerProcess, start_server: Callable[..., ServerProcess]
) -> None:
    flags = ["--data-dir", str(server.data_dir), "--stream-manager-port", "0", "--http-port", "0"]
    with pytest.raises(ServerDidNotStart, match=r"(?i)in use|lock|another"):
        start_server(flags=flags)
    with RawClient(server.port) as client:
        client.list()


def test_settings_of_the_official_server(
    start_server: Callable[..., ServerProcess], tmp_path: Path, free_port: int
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    env = {"STREAM_MANAGER_STORE_ROOT_DIR": str(store), "STREAM_MANAGER_SERVER_PORT": str(free_port)}
    server = start_server(env={**env, "JVM_ARGS": "-Xmx1g", "LOG_LEVEL": "TRACE"}, flags=["--http-port", "0"])
    assert server.port == free_port
    with RawClient(server.port) as client:
        client.create("s")
        client.append("s", b"x")
    assert any(store.iterdir())
