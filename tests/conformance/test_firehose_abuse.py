"""Requests that no client of Firehose makes: refused in time, in JSON, and nothing of them stays in memory."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from conformance.firehose import (
    Answer,
    FirehoseClient,
    check_answer,
    check_envelope,
    stored_records,
)
from harness import ServerProcess

MIB = 1024 * 1024
SOAK = os.environ.get("PENSTOCK_SOAK") == "1"
ROUNDS = 100 if SOAK else 5
GROWTH_MAX_BYTES = 16 * MIB
IN_TIME_S = 10.0
BODY_S = 60.0  # how long the server waits for a body

NOT_JSON = {
    "text": b"DeliveryStreamName=abuse",
    "half": b'{"DeliveryStreamName":"abuse","Records":[{"Data":"',
    "more behind": b"{}{}",
    "invalid UTF-8": b'{"DeliveryStreamName":"\xff\xfe"}',
    "NaN": b'{"DeliveryStreamName":"abuse","Record":NaN}',
    "UTF-16": '{"DeliveryStreamName":"abuse"}'.encode("utf-16"),
    "control characters": b'{"DeliveryStreamName":"a\x00b"}',
    "deep lists": b'{"Records":' + b"[" * 1_000_000,
    "deep objects": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "deep and unknown": b'{"DeliveryStreamName":"abuse","X":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a list": b"[" + b"1," * 500_000 + b"1]",
    "zeros": bytes(MIB),
}
PUTS = ("PutRecord", "PutRecordBatch")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("abuse") / "data").start()
    with FirehoseClient(process.http_port) as client:
        client.create("abuse")
    yield process
    process.stop()
    assert "Traceback" not in process.log_text, process.log_text


@pytest.fixture
def client(server: ServerProcess) -> Iterator[FirehoseClient]:
    with FirehoseClient(server.http_port) as client:
        yield client


def refused(operation: str, answer: Answer, code: str) -> None:
    check_answer(operation, answer)
    assert answer.code == code, answer.body[:200]


@pytest.mark.parametrize("operation", [*PUTS, "CreateDeliveryStream"])
@pytest.mark.parametrize("kind", NOT_JSON)
def test_what_is_not_json(client: FirehoseClient, operation: str, kind: str) -> None:
    refused(operation, client.send(operation, NOT_JSON[kind]), "SerializationException")


@pytest.mark.parametrize("data", ["%%%", "YQ", "YQ=", "YQ==\n", "YQ-_", "ä", 1, ["YQ=="]])
def test_data_that_is_not_base64(client: FirehoseClient, data: object) -> None:
    for operation, body in (
        ("PutRecord", {"DeliveryStreamName": "abuse", "Record": {"Data": data}}),
        ("PutRecordBatch", {"DeliveryStreamName": "abuse", "Records": [{"Data": "YQ=="}, {"Data": data}]}),
    ):
        assert client.call(operation, body).code == "SerializationException"


def test_members_twice(client: FirehoseClient, server: ServerProcess) -> None:
    """The last one counts, in the fast path as in the check behind it; nothing is stored twice."""
    with FirehoseClient(server.http_port) as other:
        arn = other.create("twice")
    body = b'{"DeliveryStreamName":"nobody","Record":{"Data":"YQ=="},'
    body += b'"DeliveryStreamName":"twice","Record":{"Data":"Yg=="}}'
    check_answer("PutRecord", client.send("PutRecord", body))
    assert stored_records(server, arn) == [b"b"]
    body = b'{"DeliveryStreamName":"nobody","X":null,"DeliveryStreamName":"twice"}'
    assert client.send("DescribeDeliveryStream", body).status == 200


@pytest.mark.parametrize("content_type", ["text/html", "application/x-www-form-urlencoded", "", "\xff"])
def test_content_types_do_not_matter(client: FirehoseClient, content_type: str) -> None:
    answer = client.send("ListDeliveryStreams", b"{}", {"Content-Type": content_type})
    check_answer("ListDeliveryStreams", answer)
    assert answer.status == 200


@pytest.mark.parametrize(
    "target", ["", "Firehose_20150804", "Firehose_20150804.", "Kinesis_20131202.PutRecord", "\xff" * 5000]
)
def test_targets_that_are_none(client: FirehoseClient, target: str) -> None:
    refused(
        "PutRecord", client.send("PutRecord", b"{}", {"X-Amz-Target": target}), "UnknownOperationException"
    )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("PUT", "/", 404),
        ("DELETE", "/", 404),
        ("POST", "/firehose", 404),
        ("POST", "//", 404),
        ("POST", "/%2e%2e/etc/passwd", 404),
        ("POST", "/healthz", 405),
    ],
)
def test_other_paths_and_methods(client: FirehoseClient, method: str, path: str, status: int) -> None:
    """Some clients decode every answer that is not 200."""
    answer = client.request(method, path, b"{}", client.signed("ListDeliveryStreams", b"{}"))
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json["error"]


@pytest.mark.parametrize("operation", [*PUTS, "UpdateDestination"])
def test_ten_megabytes(client: FirehoseClient, operation: str) -> None:
    body = b'{"DeliveryStreamName":"' + b"x" * 10_000_000
    refused(operation, client.send(operation, body), "RequestEntityTooLargeException")


# -- connections that say little --------------------------------------------------------------------


HEAD = b"POST / HTTP/1.1\r\nhost: localhost\r\nx-amz-target: Firehose_20150804.PutRecord\r\n"
STALLED = {
    "nothing": b"",
    "half a head": b"POST / HTTP/1.1\r\nhost: loc",
    "half a body": HEAD + b"content-length: 100\r\n\r\n" + b'{"DeliveryStreamName":',
    "half a chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n40\r\n{",
    "half a large body": HEAD + b"content-length: 5000000\r\n\r\n" + b" " * 100_000,
}
TRICKLES = {"half a head": b"x", "half a large body": b" "}


def test_others_are_served_beside_stalled_connections(server: ServerProcess, client: FirehoseClient) -> None:
    before_bytes = memory_bytes(server)
    with ExitStack() as stack:
        for said in STALLED.values():
            for _ in range(40):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port)))
                connection.sendall(said)
        started_s = time.monotonic()
        for _ in range(20):
            assert client.put_batch("abuse", [b"x"] * 10).status == 200
        assert time.monotonic() - started_s < IN_TIME_S
    assert memory_bytes(server) - before_bytes < GROWTH_MAX_BYTES


def heard(server: ServerProcess, said: bytes, trickle: bytes) -> bytes:
    """What comes before the server hangs up, though something arrives all the time."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=0.5) as connection:
        connection.sendall(said)
        deadline_s = time.monotonic() + BODY_S + IN_TIME_S
        while time.monotonic() < deadline_s:
            try:
                chunk = connection.recv(65536)
            except TimeoutError:
                connection.sendall(trickle)
                continue
            except ConnectionError:  # it was hung up while we wrote
                return answer
            if not chunk:
                return answer
            answer += chunk
    raise AssertionError("the server still waits")


@pytest.mark.skipif(not SOAK, reason="takes as long as the server waits for a body")
def test_trickling_ends_in_time(server: ServerProcess) -> None:
    """Who has told what he wants hears why; who has not is hung up on."""
    with ThreadPoolExecutor(len(STALLED)) as threads:
        answers = {
            kind: threads.submit(heard, server, said, TRICKLES.get(kind, b""))
            for kind, said in STALLED.items()
        }
    for kind, answer in answers.items():
        if "head" in kind or kind == "nothing":
            assert answer.result() == b""
        else:
            assert answer.result().startswith(b"HTTP/1.1 408 ")
            assert b'"__type":"RequestTimeoutException"' in answer.result()


# -- memory -----------------------------------------------------------------------------------------


def memory_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def abuse(client: FirehoseClient, server: ServerProcess) -> None:
    for body in NOT_JSON.values():
        for operation in (*PUTS, "CreateDeliveryStream"):
            client.send(operation, body)
    for _ in range(3):
        client.send("PutRecordBatch", b"x" * 10_000_000)
        client.send("PutRecordBatch", b" " * 8 * MIB)
        assert client.put_batch("abuse", [b"x" * 1_024_001]).code == "ValidationException"
        assert client.put_batch("abuse", [b"y" * 1_024_000] * 5).code == "InvalidArgumentException"
        assert (
            client.put_batch("abuse", [b"%d" % number for number in range(501)]).code == "ValidationException"
        )
    many = {"DeliveryStreamName": "abuse", "Records": [{"Data": None}] * 200_000}
    assert client.call("PutRecordBatch", many).code == "ValidationException"
    for number in range(200):
        client.send(f"Operation{number}", b"{}", {f"X-Header-{number}": "x" * 1000})
        answer = client.call(
            "DescribeDeliveryStream", {"DeliveryStreamName": f"nobody-{number}-{time.time_ns()}"}
        )
        assert answer.code == "ResourceNotFoundException"
    for _ in range(20):
        for said in STALLED.values():
            with socket.create_connection(("127.0.0.1", server.http_port)) as connection:
                connection.sendall(said)


@pytest.mark.timeout(600 if SOAK else 120)
def test_memory_does_not_grow(server: ServerProcess, client: FirehoseClient) -> None:
    abuse(client, server)
    before_bytes = memory_bytes(server)
    for _ in range(ROUNDS):
        abuse(client, server)
    grown_bytes = memory_bytes(server) - before_bytes
    assert grown_bytes < GROWTH_MAX_BYTES, f"{grown_bytes / MIB:.1f} MiB more than before"
    check_envelope(client.call("ListDeliveryStreams", {}))
