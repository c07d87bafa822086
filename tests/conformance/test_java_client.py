"""A client that writes what the Java SDK writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.java_client import JavaClient, jackson_encode
from conformance.wire import Op, Status
from harness import ServerProcess


@pytest.fixture
def java(shared_server: ServerProcess) -> Iterator[JavaClient]:
    with JavaClient(shared_server.port) as client:
        yield client


def test_the_bytes_are_those_of_jackson() -> None:
    options = {"minMessageCount": 1, "readTimeoutMillis": 0, "maxMessageCount": None}
    read = jackson_encode({"requestId": "r", "streamName": "s", "readMessagesOptions": options, "none": []})
    assert read.hex() == (
        "bf6972657175657374496461726a73747265616d4e616d65617373726561644d657373616765734f7074696f6e73"
        "bf6f6d696e4d657373616765436f756e7401717265616454696d656f75744d696c6c697300ffff"
    )
    assert jackson_encode("x" * 3996)[:3].hex() == "790f9c"
    assert jackson_encode("x" * 3997)[:4].hex() == "7f790f9c"
    assert jackson_encode("x" * 3997)[-3:] == b"\x61x\xff"


def test_empty_token_is_no_token(java: JavaClient) -> None:
    assert java.connect_response["status"] == Status.SUCCESS
    assert java.connect_response["protocolVersion"] == "1.1.0"


def test_life_of_a_stream(java: JavaClient, name: str) -> None:
    java.create(name, persistence=0, exportDefinition={})
    assert name in java.list()
    text = java.fail(Status.INVALID_REQUEST, Op.CREATE, definition={"name": name, "strategyOnFull": 0})
    assert text == "the message stream already exists"
    assert [java.append(name, b"m%d" % i) for i in range(3)] == [0, 1, 2]
    messages = java.read(name, minMessageCount=1, maxMessageCount=10, readTimeoutMillis=0)
    assert [message["payload"] for message in messages] == [b"m0", b"m1", b"m2"]
    java.succeed(Op.DELETE, name=name)
    java.fail(Status.RESOURCE_NOT_FOUND, Op.DELETE, name=name)


def test_describe_and_update(java: JavaClient, name: str) -> None:
    exports = {
        "kinesis": [{"identifier": "k", "kinesisStreamName": "k", "disabled": True}],
        "IotSitewise": [{"identifier": "i", "batchSize": 3, "disabled": True}],
    }
    java.create(name, exportDefinition=exports, timeToLiveMillis=60000)
    before = java.describe(name)
    java.succeed(Op.UPDATE, definition=before["definition"])
    assert java.describe(name) == before


def test_long_text_arrives_in_chunks(java: JavaClient, name: str) -> None:
    uri = "http://127.0.0.1/" + "".join(f"{i:05}" for i in range(2000))
    java.create(name, exportDefinition={"http": [{"identifier": "h", "uri": uri, "disabled": True}]})
    assert java.definition(name)["exportDefinition"]["http"][0]["uri"] == uri


def test_large_payload(java: JavaClient, name: str) -> None:
    java.create(name)
    payload = bytes(range(256)) * 8192
    java.append(name, payload)
    assert java.read(name)[0]["payload"] == payload


def test_many_requests_in_flight(java: JavaClient, name: str) -> None:
    java.create(name)
    sent = [java.send(Op.APPEND, name=name, payload=b"%d" % i) for i in range(200)]
    answers = [java.receive()[1] for _ in sent]
    assert {answer["requestId"]: answer["sequenceNumber"] for answer in answers} == {
        request_id: i for i, request_id in enumerate(sent)
    }


@pytest.mark.parametrize(("token", "status"), [("first-token", 0), ("", 2), ("wrong", 2)])
def test_token(server_with_tokens: ServerProcess, token: str, status: int) -> None:
    with JavaClient(server_with_tokens.port, auth_token=token) as client:
        assert client.connect_response["status"] == status
        if status:
            client.assert_closed_cleanly()
