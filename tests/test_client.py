"""Our own client: what a server process answers, and what it makes of peers that are none."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import ServerProcess
from penstock import errors
from penstock.client import (
    ServerFailed,
    ServerUnreachable,
    StreamManagerClient,
    Unauthorized,
    error_of,
    load_token,
)
from penstock.doors.streammanager.protocol import Status


@pytest.fixture
def client(shared_server: ServerProcess) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(shared_server.host, shared_server.port) as client:
        yield client


@pytest.fixture
def stream(client: StreamManagerClient) -> str:
    name = f"c-{uuid.uuid4()}"
    client.create({"name": name, "strategyOnFull": 0})
    return name


def test_every_operation(client: StreamManagerClient, stream: str) -> None:
    assert stream in client.list_streams()
    assert client.append(stream, b"payload") == 0
    [message] = client.read(stream, 0)
    assert (message.sequence_number, message.payload) == (0, b"payload")
    client.update({"name": stream, "strategyOnFull": 1})
    assert client.describe(stream)["definition"]["strategyOnFull"] == 1
    client.delete(stream)
    assert stream not in client.list_streams()


def test_errors(client: StreamManagerClient, stream: str) -> None:
    with pytest.raises(errors.StreamExists):
        client.create({"name": stream, "strategyOnFull": 0})
    with pytest.raises(errors.StreamNotFound):
        client.describe("no such stream")
    with pytest.raises(errors.NotEnoughMessages):
        client.read(stream, 0)
    with pytest.raises(errors.UpdateNotAllowed):
        client.update({"name": stream, "strategyOnFull": 0, "persistence": 1})
    with pytest.raises(errors.InvalidRequest, match="payload"):
        client.append(stream, b"")


def test_long_poll(client: StreamManagerClient, shared_server: ServerProcess, stream: str) -> None:
    with StreamManagerClient(shared_server.host, shared_server.port) as other:
        append = threading.Timer(0.2, other.append, (stream, b"late"))
        append.start()
        [message] = client.read(stream, 0, timeout_ms=30_000)
        append.join()
    assert message.payload == b"late"


@pytest.mark.parametrize("window", [1, 2, 7, 500])
def test_pipelined_appends_keep_their_order(client: StreamManagerClient, stream: str, window: int) -> None:
    payloads = [b"%d" % number for number in range(1200)]
    assert list(client.append_many(stream, payloads, window)) == list(range(1200))
    assert [message.payload for message in client.read(stream, 0, 1200, 1200)] == payloads


def test_a_pause_settles_what_was_sent(client: StreamManagerClient, stream: str) -> None:
    settled: list[int | errors.PenstockError] = []

    def payloads() -> Iterator[bytes | None]:
        yield b"a"
        yield b"b"
        yield None
        assert settled == [0, 1]
        yield b"c"

    for result in client.append_many(stream, payloads()):
        settled.append(result)
    assert settled == [0, 1, 2]


def test_a_refused_append_is_a_result_in_its_place(client: StreamManagerClient, stream: str) -> None:
    first, refused, last = client.append_many(stream, [b"a", b"", b"b"])
    assert (first, last) == (0, 1)
    assert isinstance(refused, errors.InvalidRequest)


def test_more_bytes_than_all_buffers_hold(client: StreamManagerClient, stream: str) -> None:
    payload = bytes(1_000_000)
    assert list(client.append_many(stream, [payload] * 60)) == list(range(60))


def test_appends_that_nobody_waited_for_do_not_disturb_the_next_call(
    client: StreamManagerClient, stream: str
) -> None:
    appends = client.append_many(stream, (b"%d" % number for number in range(1000)))
    assert next(appends) == 0
    del appends
    assert stream in client.list_streams()


@pytest.mark.parametrize("status", [status for status in Status if status != Status.SUCCESS])
def test_every_status_is_an_error_with_the_servers_text(status: Status) -> None:
    assert str(error_of(status, "because")).removesuffix("; 'penstock streams list' shows all") == "because"
    assert str(status.value) in str(error_of(status, ""))


def test_kinds_of_errors() -> None:
    assert isinstance(error_of(Status.UNAUTHORIZED, "x"), Unauthorized)
    assert isinstance(error_of(Status.UNKNOWN_FAILURE, "x"), ServerFailed)
    assert type(error_of(Status.UPDATE_NOT_ALLOWED, "x")) is errors.UpdateNotAllowed
    original = errors.CorruptMessages(3, 9)
    damaged = error_of(Status.MESSAGE_STORE_READ_ERROR, str(original))
    assert isinstance(damaged, errors.CorruptMessages)
    assert (damaged.first, damaged.next_readable, str(damaged)) == (3, 9, str(original))


@contextmanager
def peer(answer: bytes) -> Iterator[int]:
    """Something that listens, says `answer` to whoever comes, and hangs up."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not its HTTP port"),
        (b"", "closed the connection"),
        (b"\x01\x00\x00", "closed the connection"),
        (b"\x01\x7f\xff\xff\xff\x06", "not the Stream Manager protocol"),
    ],
)
def test_peers_that_are_no_server(answer: bytes, said: str) -> None:
    with peer(answer) as port, pytest.raises(ServerUnreachable, match=said):
        StreamManagerClient("127.0.0.1", port)


def test_a_peer_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServerUnreachable, match="did not answer in time"):
            StreamManagerClient("127.0.0.1", port, request_timeout_s=0.1)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ServerUnreachable, match=r"'penstock up'.*--server HOST:PORT"):
        StreamManagerClient("127.0.0.1", port)


def test_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("# mine\nfrom-file\n")
    path.chmod(0o600)
    env = {"PENSTOCK_CLIENT_TOKEN": "ours", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "theirs"}
    assert load_token(path, env) == "from-file"
    assert load_token(None, env) == "ours"
    assert load_token(None, env | {"PENSTOCK_CLIENT_TOKEN": ""}) == "theirs"
    assert load_token(None, {}) is None
    path.write_text("# none\n")
    with pytest.raises(errors.ConfigError, match="holds no token"):
        load_token(path, env)
