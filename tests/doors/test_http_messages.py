"""Appending over HTTP, and what the server tells about streams there."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from conformance.raw_client import RawClient
from conformance.wire import Op
from harness import ServerProcess
from penstock.doors.http.messages import BODY_BYTES_MAX, MESSAGES_MAX


def body_of(*payloads: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(payload)) + payload for payload in payloads)


def call(
    server: ServerProcess, method: str, path: str, body: Any = None, token: str | None = None, **query: object
) -> tuple[int, dict[str, Any]]:
    token = token or (server.data_dir / "http-token").read_text().strip()
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    headers = {"Authorization": f"Bearer {token}"}
    connection.request(method, f"{path}?{urlencode(query)}", body, headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def append(server: ServerProcess, stream: str, body: Any) -> tuple[int, dict[str, Any]]:
    return call(server, "POST", "/v1/messages", body, stream=stream)


def create(server: ServerProcess, name: str, **definition: Any) -> None:
    with RawClient(server.port) as client:
        client.create(name, **definition)


def payloads_of(server: ServerProcess, name: str, count: int) -> list[bytes]:
    with RawClient(server.port) as client:
        options = {"desiredStartSequenceNumber": 0, "minMessageCount": count, "maxMessageCount": count}
        return [message["payload"] for message in client.read(name, **options)]


# -- appending --------------------------------------------------------------------------------------


def test_a_run_gets_numbers_in_a_row(shared_server: ServerProcess) -> None:
    create(shared_server, "http-run ..")
    first, second = [b"a", b"bb" * 70_000, b"ccc"], [b"d"]
    assert append(shared_server, "http-run ..", body_of(*first)) == (200, {"first_sequence": 0, "count": 3})
    assert append(shared_server, "http-run ..", body_of(*second)) == (200, {"first_sequence": 3, "count": 1})
    assert payloads_of(shared_server, "http-run ..", 4) == first + second


def test_a_body_may_come_in_chunks_of_unknown_number(shared_server: ServerProcess) -> None:
    create(shared_server, "http-chunks")
    body = body_of(b"x" * 100_000, b"y")
    parts = iter([body[:3], body[3:50_000], body[50_000:]])
    assert append(shared_server, "http-chunks", parts) == (200, {"first_sequence": 0, "count": 2})
    assert payloads_of(shared_server, "http-chunks", 2) == [b"x" * 100_000, b"y"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "no message"),
        (b"\x01\x00", 400, "ends inside message 0"),
        (body_of(b"good") + b"\x05\x00\x00\x00four", 400, "ends inside message 1"),
        (body_of(b"good", b""), 400, "message 1 of the body is empty"),
        (b"\xff\xff\xff\xff", 400, "ends inside message 0"),
        (body_of(b"x") * (MESSAGES_MAX + 1), 413, "at most 65536 messages"),
    ],
)
def test_a_body_that_is_wrong_stores_nothing(
    shared_server: ServerProcess, body: bytes, status: int, text: str
) -> None:
    with RawClient(shared_server.port) as client:
        if "http-wrong" not in client.list():
            client.create("http-wrong")
        answered, answer = append(shared_server, "http-wrong", body)
        assert (answered, text in answer["error"]) == (status, True), answer
        assert client.storage("http-wrong")[1] == -1


def test_a_body_that_is_too_large_is_refused_unread(shared_server: ServerProcess) -> None:
    create(shared_server, "http-large")
    token = (shared_server.data_dir / "http-token").read_text().strip()
    with socket.create_connection(("127.0.0.1", shared_server.http_port), timeout=20) as client:
        client.sendall(
            b"POST /v1/messages?stream=http-large HTTP/1.1\r\nHost: x\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (token.encode(), BODY_BYTES_MAX + 1)
        )
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_a_length_is_cut_off_when_it_is_too_large(shared_server: ServerProcess) -> None:
    create(shared_server, "http-endless")
    part = bytes(1024 * 1024)
    status, answer = append(shared_server, "http-endless", iter([part] * 65))
    assert (status, "at most 67108864 bytes" in answer["error"]) == (413, True)


def test_clients_that_go_away_give_back_the_room_they_reserved(shared_server: ServerProcess) -> None:
    """Eight clients announce 64 MiB each, which is more than there is for all bodies, and leave."""
    create(shared_server, "http-crowd")
    token = (shared_server.data_dir / "http-token").read_text().strip()
    head = (
        b"POST /v1/messages?stream=http-crowd HTTP/1.1\r\nHost: x\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (token.encode(), BODY_BYTES_MAX)
    )
    crowd = [socket.create_connection(("127.0.0.1", shared_server.http_port), timeout=20) for _ in range(8)]
    for client in crowd:
        client.sendall(head + bytes(100_000))
    for client in crowd:
        client.close()
    assert append(shared_server, "http-crowd", body_of(b"x"))[0] == 200


def test_a_stream_that_is_full_takes_what_it_can(shared_server: ServerProcess) -> None:
    create(shared_server, "http-full", maxSize=4096, streamSegmentSize=4096)
    status, answer = append(shared_server, "http-full", body_of(*[bytes(1000)] * 5))
    assert status == 507
    assert "is full" in answer.pop("error")
    assert answer == {"first_sequence": 0, "count": 4}
    status, answer = append(shared_server, "http-full", body_of(bytes(1000)))
    assert (status, answer["first_sequence"], answer["count"]) == (507, None, 0)


def test_a_message_larger_than_the_stream(shared_server: ServerProcess) -> None:
    create(shared_server, "http-small", maxSize=4096, streamSegmentSize=4096)
    status, answer = append(shared_server, "http-small", body_of(bytes(5000)))
    assert (status, "does not fit" in answer["error"]) == (413, True)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/streams/info", "/v1/streams/ranges"])
def test_streams_that_are_not_named_or_not_there(shared_server: ServerProcess, path: str) -> None:
    method = "POST" if path == "/v1/messages" else "GET"
    status, answer = call(shared_server, method, path, stream="nobody")
    assert (status, answer) == (404, {"error": "the message stream nobody does not exist"})
    status, answer = call(shared_server, method, path)
    assert (status, "'stream' is missing" in answer["error"]) == (400, True)
    assert call(shared_server, method, path, token="wrong", stream="nobody")[0] == 401


# -- looking ----------------------------------------------------------------------------------------


def test_names_and_info(shared_server: ServerProcess) -> None:
    create(shared_server, "http-info", timeToLiveMillis=86_400_000)
    append(shared_server, "http-info", body_of(b"one", b"two"))
    status, answer = call(shared_server, "GET", "/v1/streams")
    assert (status, "http-info" in answer["streams"]) == (200, True)
    status, info = call(shared_server, "GET", "/v1/streams/info", stream="http-info")
    numbers = ("oldest_sequence_number", "newest_sequence_number", "end_sequence_number", "total_bytes")
    assert [info[name] for name in numbers] == [0, 1, 2, 6 + 2 * 12]
    assert (info["name"], info["definition"]["ttl_ms"]) == ("http-info", 86_400_000)
    assert (info["definition"]["name"], info["definition"]["strategy_on_full"]) == ("http-info", 0)


def test_a_stream_created_again_has_another_key(shared_server: ServerProcess) -> None:
    keys = set()
    for _ in range(2):
        create(shared_server, "http-again")
        keys.add(call(shared_server, "GET", "/v1/streams/info", stream="http-again")[1]["key"])
        with RawClient(shared_server.port) as client:
            client.succeed(Op.DELETE, name="http-again")
    assert len(keys) == 2


def test_ranges_are_cut_by_bytes(shared_server: ServerProcess) -> None:
    """1,000 small messages weigh as much as 10 large ones, so the cut is between them."""
    create(shared_server, "http-ranges", streamSegmentSize=110_000)
    append(shared_server, "http-ranges", body_of(*[bytes(88)] * 1000))
    append(shared_server, "http-ranges", body_of(*[bytes(9988)] * 10))

    def ranges(**query: object) -> list[list[int]]:
        status, answer = call(shared_server, "GET", "/v1/streams/ranges", stream="http-ranges", **query)
        assert status == 200, answer
        return list(answer["ranges"])

    assert ranges() == [[0, 1010]]
    (first, cut), (cut_again, behind) = ranges(count=2)
    assert (first, cut_again, behind) == (0, cut, 1010)
    assert 990 <= cut <= 1001
    assert len(ranges(count=4)) == 4
    assert len(ranges(count=4, min_bytes=100_000)) == 2
    assert ranges(**{"from": 3, "to": 5}, count=100) == [[3, 4], [4, 5]]
    assert ranges(**{"from": 1010}) == []
    assert call(shared_server, "GET", "/v1/streams/ranges", stream="http-ranges", count="x")[0] == 400


def test_ranges_leave_out_what_is_deleted(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    create(server, "short", maxSize=8192, streamSegmentSize=1024, strategyOnFull=1)
    for _ in range(20):
        append(server, "short", body_of(bytes(900)))
    oldest = call(server, "GET", "/v1/streams/info", stream="short")[1]["oldest_sequence_number"]
    ranges = call(server, "GET", "/v1/streams/ranges", stream="short", count=3)[1]["ranges"]
    assert oldest > 0
    assert (ranges[0][0], ranges[-1][1], len(ranges)) == (oldest, 20, 3)


# -- delivery streams -------------------------------------------------------------------------------


def create_delivery_stream(server: ServerProcess, name: str) -> str:
    """Returns its ARN."""
    s3 = {"RoleARN": "arn:aws:iam::000000000000:role/r", "BucketARN": "arn:aws:s3:::b"}
    body = {"DeliveryStreamName": name, "ExtendedS3DestinationConfiguration": s3}
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    headers = {"X-Amz-Target": "Firehose_20150804.CreateDeliveryStream"}
    connection.request("POST", "/", json.dumps(body), headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    arn: str = answer["DeliveryStreamARN"]
    return arn


def test_delivery_streams_take_records_only_from_firehose_and_keep_their_configuration_to_themselves(
    shared_server: ServerProcess,
) -> None:
    arn = create_delivery_stream(shared_server, "http-delivery")
    status, answer = 404, {"error": ""}
    while status == 404:  # its log is there a moment after the answer
        status, answer = append(shared_server, arn, body_of(b"not sealed"))
    assert (status, "PutRecord" in answer["error"]) == (400, True)
    status, answer = call(shared_server, "GET", "/v1/streams/info", stream=arn)
    assert (status, answer["end_sequence_number"]) == (200, 0)
    assert answer["definition"]["exports"] == [], "the configuration of a destination may hold passwords"
