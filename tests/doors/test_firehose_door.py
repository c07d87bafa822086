"""The wire of the Firehose door: headers, errors, bodies that are wrong, too large or too slow."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import ServerProcess
from penstock.delivery.errors import ApiError
from penstock.doors.firehose.body import BODY_BYTES_MAX, Bodies, Disconnected, UnreadBody
from penstock.doors.firehose.protocol import decode

PREFIX = "Firehose_20150804."
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
S3 = {"RoleARN": "arn:aws:iam::123456789012:role/r", "BucketARN": "arn:aws:s3:::b"}


@pytest.fixture
def connection(shared_server: ServerProcess) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", shared_server.http_port, timeout=30)
    yield connection
    connection.close()


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


def post(
    connection: http.client.HTTPConnection, target: str | None, body: bytes, path: str = "/", **headers: str
) -> Answer:
    if target is not None:
        headers["X-Amz-Target"] = target
    connection.request("POST", path, body, headers)
    answer = Answer(connection.getresponse())
    assert answer.headers["content-type"] == "application/x-amz-json-1.1"
    assert UUID.fullmatch(answer.headers["x-amzn-requestid"])
    assert int(answer.headers["content-length"]) == len(answer.body)
    if answer.status != 200:
        assert answer.headers["x-amzn-errortype"] == answer.json["__type"]
        assert answer.json["message"]
    return answer


def test_answers_are_compact_and_connections_kept(connection: http.client.HTTPConnection) -> None:
    first = post(connection, PREFIX + "ListDeliveryStreams", b"{}")
    used = connection.sock
    second = post(connection, PREFIX + "ListDeliveryStreams", b'{"Limit": 1}', path="/?any=query&is=ignored")
    assert connection.sock is used
    assert first.status == second.status == 200
    assert b" " not in first.body
    assert first.headers["x-amzn-requestid"] != second.headers["x-amzn-requestid"]


def test_an_empty_answer_is_an_empty_object(connection: http.client.HTTPConnection) -> None:
    create = {"DeliveryStreamName": "empty-answer", "ExtendedS3DestinationConfiguration": S3}
    post(connection, PREFIX + "CreateDeliveryStream", json.dumps(create).encode())
    name = b'{"DeliveryStreamName":"empty-answer"}'
    deadline_s = time.monotonic() + 10
    while (answer := post(connection, PREFIX + "DeleteDeliveryStream", name)).status != 200:
        assert answer.json["__type"] == "ResourceInUseException"
        assert time.monotonic() < deadline_s
    assert answer.body == b"{}"


def test_an_empty_body_is_an_empty_object(connection: http.client.HTTPConnection) -> None:
    assert post(connection, PREFIX + "ListDeliveryStreams", b"").status == 200
    missing = post(connection, PREFIX + "DescribeDeliveryStream", b"")
    assert (missing.status, missing.json["__type"]) == (400, "ValidationException")


@pytest.mark.parametrize("content_type", ["application/x-amz-json-1.1", "text/plain", ""])
def test_any_content_type(connection: http.client.HTTPConnection, content_type: str) -> None:
    headers = {"Content-Type": content_type}
    assert post(connection, PREFIX + "ListDeliveryStreams", b"{}", **headers).status == 200


@pytest.mark.parametrize(
    "target",
    [
        None,
        "",
        "ListDeliveryStreams",
        "Kinesis_20131202.PutRecord",
        PREFIX,
        PREFIX + "Nothing",
        PREFIX + "put",
    ],
)
def test_unknown_targets(connection: http.client.HTTPConnection, target: str | None) -> None:
    answer = post(connection, target, b"{}")
    assert (answer.status, answer.json["__type"]) == (400, "UnknownOperationException")


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"no", b'{"Limit":1}}', b"\xff\xfe", b'{"a":"\xff"}', b"[]", b"1", b'"text"', b"[" * 100_000),
        *(b'{"Limit":"1"}', b'{"Limit":true}', b'{"Limit":1.5}', b"NaN"),
    ],
)
def test_what_is_not_the_right_json(connection: http.client.HTTPConnection, body: bytes) -> None:
    answer = post(connection, PREFIX + "ListDeliveryStreams", body)
    assert (answer.status, answer.json["__type"]) == (400, "SerializationException")


def test_nulls_and_unknown_members_do_not_count(connection: http.client.HTTPConnection) -> None:
    body = b'{"Limit":null,"ExclusiveStartDeliveryStreamName":null,"New":{"Member":[1]}}'
    assert post(connection, PREFIX + "ListDeliveryStreams", body).status == 200


def test_other_methods(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/")
    assert connection.getresponse().status == 404


@pytest.mark.parametrize("operation", ["PutRecordBatch", "CreateDeliveryStream"])
@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_that_are_too_large(
    connection: http.client.HTTPConnection, operation: str, chunked: bool
) -> None:
    """Also the client that writes all of it before it listens hears why."""
    body = b"x" * 10_000_000
    parts = iter([body[:5_000_000], body[5_000_000:]]) if chunked else None
    connection.request(
        "POST", "/", parts or body, {"X-Amz-Target": PREFIX + operation}, encode_chunked=chunked
    )
    answer = Answer(connection.getresponse())
    assert (answer.status, answer.json["__type"]) == (413, "RequestEntityTooLargeException")
    assert answer.headers["connection"] == "close"


def test_the_largest_body_is_read(connection: http.client.HTTPConnection) -> None:
    body = b" " * (BODY_BYTES_MAX - 2) + b"{}"
    assert post(connection, PREFIX + "ListDeliveryStreams", body).status == 200


def test_a_server_with_keys_lets_no_stranger_in(
    start_server: Callable[..., ServerProcess], tmp_path: Any
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"AKIAKNOWN": {"secret": "s", "account": "123456789012"}}')
    keys.chmod(0o600)
    server = start_server(env={"PENSTOCK_ACCESS_KEYS_FILE": str(keys)})
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    for target in ("ListDeliveryStreams", "PutRecord", "Nothing"):
        answer = post(connection, PREFIX + target, b"{}")
        assert answer.json["__type"] == "MissingAuthenticationTokenException"
    connection.close()


# -- bodies, without a server -----------------------------------------------------------------------


class Sender:
    """A client's body, in pieces; then silence."""

    def __init__(self, *chunks: bytes, ends: bool = True) -> None:
        self.messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        if ends:
            self.messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive(self) -> dict[str, Any]:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)


SCOPE: dict[str, Any] = {"type": "http", "headers": []}


async def refusal(bodies: Bodies, sender: Sender) -> ApiError:
    with pytest.raises(UnreadBody) as unread:
        async with bodies.reading(SCOPE, sender.receive):
            pass
    return unread.value.error


def test_a_body_that_trickles_is_cut_off() -> None:
    async def work() -> None:
        bodies = Bodies(1000, body_s=0.05)
        started_s = time.monotonic()
        error = await refusal(bodies, Sender(b"a", b"b", ends=False))
        assert (error.code, error.http_status) == ("RequestTimeoutException", 408)
        assert time.monotonic() - started_s < 5
        assert bodies._held_bytes == 0
        await asyncio.sleep(0)  # nothing is left that cancels the task later
        async with bodies.reading(SCOPE, Sender(b"x" * 1000).receive) as body:
            await asyncio.sleep(0.1)
            assert len(body) == 1000

    asyncio.run(work())


def test_cancelling_is_not_taken_for_a_deadline() -> None:
    async def work() -> None:
        bodies = Bodies(1000)

        async def reading() -> None:
            async with bodies.reading(SCOPE, Sender(b"a", ends=False).receive):
                pass

        task = asyncio.create_task(reading())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bodies._held_bytes == 0

    asyncio.run(work())


def test_all_bodies_together_hold_no_more_than_they_may() -> None:
    async def work() -> None:
        bodies = Bodies(100)
        async with bodies.reading(SCOPE, Sender(b"x" * 60).receive):
            error = await refusal(bodies, Sender(b"y" * 30, b"y" * 30))
            assert (error.code, error.message, error.http_status) == (
                "ServiceUnavailableException",
                "Slow down.",
                503,
            )
            async with bodies.reading(SCOPE, Sender(b"z" * 40).receive) as body:
                assert body == b"z" * 40
        assert bodies._held_bytes == 0

    asyncio.run(work())


def test_a_client_that_goes_away() -> None:
    async def work() -> None:
        bodies = Bodies(100)
        sender = Sender(b"x", ends=False)
        sender.messages.append({"type": "http.disconnect"})
        with pytest.raises(Disconnected):
            async with bodies.reading(SCOPE, sender.receive):
                pass
        assert bodies._held_bytes == 0

    asyncio.run(work())


def test_a_server_hears_of_half_bodies(shared_server: ServerProcess) -> None:
    """A client that sends half and goes leaves nothing behind that others would notice."""
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", shared_server.http_port)) as half:
            half.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 100_000)
    connection = http.client.HTTPConnection("127.0.0.1", shared_server.http_port, timeout=30)
    assert post(connection, PREFIX + "ListDeliveryStreams", b"{}").status == 200
    connection.close()


def test_deep_json() -> None:
    with pytest.raises(ApiError):
        decode(b'{"a":' * 5000 + b"1" + b"}" * 5000)
