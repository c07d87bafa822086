"""Broken frames: answered where the request can be told, closed with FIN where not; nobody else notices."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import cbor2
import pytest

from conformance.raw_client import RawClient
from conformance.wire import FRAME_LENGTH_MAX, Op, Status, frame
from harness import ServerProcess

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _others_do_not_notice(shared_server: ServerProcess) -> Iterator[None]:
    with RawClient(shared_server.port) as bystander:
        bystander.list()
        yield
        bystander.list()


@pytest.mark.parametrize("length", [0, -1, -(2**31), FRAME_LENGTH_MAX + 1, 2**31 - 1])
def test_impossible_length(raw: RawClient, length: int) -> None:
    raw.send_bytes(length.to_bytes(4, "big", signed=True))
    raw.assert_closed_cleanly()


def test_impossible_length_with_a_lot_behind_it(raw: RawClient) -> None:
    raw.send_bytes(bytes(4) + bytes(1 << 18))
    raw.assert_closed_cleanly()


@pytest.mark.parametrize(
    "sent", [b"\x00", b"\x00\x00\x00\x21", b"\x00\x00\x00\x21\x04\xa3", frame(11, b"\xa1")[:-1]]
)
def test_end_inside_a_frame(raw: RawClient, sent: bytes) -> None:
    raw.send_bytes(sent)
    raw.socket.shutdown(socket.SHUT_WR)
    raw.assert_closed_cleanly()


UNREADABLE = {
    "empty": b"",
    "break": b"\xff",
    "reserved": b"\x1c",
    "truncated map": cbor2.dumps({"requestId": "r"})[:-1],
    "truncated indefinite map": b"\xbf" + cbor2.dumps("requestId") + cbor2.dumps("r"),
    "array": cbor2.dumps(["requestId", "r"]),
    "number": cbor2.dumps(1),
    "null": cbor2.dumps(None),
    "text": cbor2.dumps("requestId"),
    "map that claims 2^64-1 pairs": b"\xbb" + b"\xff" * 8,
    "text that claims 2^62 bytes": b"\xa1\x7b\x40" + bytes(7),
    "bad UTF-8": b"\xa1\x69requestId\x62\xc3\x28",
    "no requestId": cbor2.dumps({}),
    "requestId null": cbor2.dumps({"requestId": None}),
    "requestId number": cbor2.dumps({"requestId": 1}),
    "requestId bytes": cbor2.dumps({"requestId": b"r"}),
    "requestId list": cbor2.dumps({"requestId": ["r"]}),
}


@pytest.mark.parametrize("op", [Op.LIST, Op.APPEND, 99])
@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_request_that_cannot_be_told(raw: RawClient, payload: bytes, op: int) -> None:
    raw.send_frame(op, payload)
    raw.assert_closed_cleanly()


@pytest.mark.parametrize("request_id", ["", "a/b", "a\n", "\n", "a\x00", "{}"])
@pytest.mark.parametrize("op", [Op.LIST, Op.APPEND])
def test_request_id_breaks_its_pattern(raw: RawClient, request_id: str, op: Op, name: str) -> None:
    raw.send_frame(op, cbor2.dumps({"requestId": request_id, "name": name, "payload": b"x"}))
    response_op, response = raw.receive()
    assert response_op == {Op.LIST: Op.LIST_RESPONSE, Op.APPEND: Op.APPEND_RESPONSE}[op]
    assert (response["requestId"], response["status"]) == (request_id, Status.INVALID_REQUEST)
    raw.list()


def test_answers_that_came_before_the_bad_frame_are_delivered(raw: RawClient, name: str) -> None:
    raw.create(name)
    good = frame(Op.APPEND, cbor2.dumps({"requestId": "good", "name": name, "payload": b"x"}))
    raw.send_bytes(good * 3 + frame(Op.LIST, b"\xff"))
    assert [raw.receive()[1]["sequenceNumber"] for _ in range(3)] == [0, 1, 2]
    raw.assert_closed_cleanly()


def test_bad_frames_cost_others_no_answers(shared_server: ServerProcess, raw: RawClient, name: str) -> None:
    """Appends of all clients share a write: one that has hung up must not spoil it for the rest."""
    raw.create(name)
    append = frame(Op.APPEND, cbor2.dumps({"requestId": "r", "name": name, "payload": b"x"}))
    waiting_read = frame(
        Op.READ,
        cbor2.dumps(
            {
                "requestId": "r",
                "streamName": name,
                "readMessagesOptions": {"desiredStartSequenceNumber": 10**6, "readTimeoutMillis": 60000},
            }
        ),
    )
    for _ in range(50):
        with RawClient(shared_server.port) as bad, RawClient(shared_server.port) as good:
            bad.send_bytes(waiting_read + append * 3 + frame(Op.LIST, b"\xff"))
            good.send_bytes(append * 3)
            numbers = [good.receive()[1]["sequenceNumber"] for _ in range(3)]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("op", "body"),
    [
        (Op.CREATE, {}),
        (Op.CREATE, {"definition": None}),
        (Op.CREATE, {"definition": "x"}),
        (Op.CREATE, {"definition": []}),
        (Op.UPDATE, {}),
        (Op.DELETE, {}),
        (Op.DELETE, {"name": 1}),
        (Op.DELETE, {"name": "a/b"}),
        (Op.DESCRIBE, {}),
        (Op.DESCRIBE, {"name": b"bytes"}),
        (Op.DESCRIBE, {"name": ""}),
        (Op.APPEND, {}),
        (Op.APPEND, {"payload": b"x"}),
        (Op.APPEND, {"name": "s"}),
        (Op.APPEND, {"name": ["s"], "payload": b"x"}),
        (Op.APPEND, {"name": "s", "payload": None}),
        (Op.READ, {}),
        (Op.READ, {"name": "streamName is the key of this operation"}),
        (Op.READ, {"streamName": 3}),
    ],
)
def test_invalid_fields_have_the_matching_answer(raw: RawClient, op: Op, body: dict[str, Any]) -> None:
    raw.fail(Status.INVALID_REQUEST, op, **body)
    raw.list()


@pytest.mark.parametrize("op", [0, 6, 7, 8, 9, 10, 12, 14, 16, 17, 18, 99, 127, -1, -128])
def test_unknown_operation(raw: RawClient, op: int) -> None:
    request_id = raw.send(op, whatever=1)
    response_op, response = raw.receive()
    assert response_op is Op.UNKNOWN_OPERATION_ERROR
    assert (response["requestId"], response["status"]) == (request_id, Status.UNKNOWN_OPERATION)
    raw.list()


def test_trailing_garbage_is_refused(raw: RawClient, name: str) -> None:
    raw.create(name)
    for op, body in ((Op.LIST, {}), (Op.APPEND, {"name": name, "payload": b"x"})):
        raw.send_frame(op, cbor2.dumps({"requestId": "r", **body}) + b"\x00")
        _, response = raw.receive()
        assert (response["requestId"], response["status"]) == ("r", Status.INVALID_REQUEST)
    assert raw.append(name, b"x") == 0


@pytest.mark.parametrize("depth", [100, 5_000, 100_000])
def test_deep_nesting_harms_nobody(shared_server: ServerProcess, depth: int) -> None:
    with RawClient(shared_server.port) as client:
        deep = cbor2.dumps({"requestId": "r"})[1:] + cbor2.dumps("deep") + b"\x81" * depth + b"\x00"
        client.send_frame(Op.LIST, b"\xa2" + deep)
        first = client.socket.recv(1, socket.MSG_PEEK)
        if first:
            assert client.receive()[1]["status"] == Status.INVALID_REQUEST
            client.list()


def test_payload_above_the_servers_limit(raw: RawClient, name: str) -> None:
    raw.create(name)
    raw.fail(Status.REQUEST_PAYLOAD_TOO_LARGE, Op.APPEND, name=name, payload=bytes(64 * MIB + 1))
    assert raw.append(name, b"in sync") == 0


def test_no_message_of_zero_bytes(raw: RawClient, name: str) -> None:
    raw.create(name)
    for payload in (b"", "text", 7, [b"x"]):
        raw.fail(Status.INVALID_REQUEST, Op.APPEND, name=name, payload=payload)
    assert raw.append(name, b"x") == 0


def test_one_byte_at_a_time(shared_server: ServerProcess, name: str) -> None:
    with RawClient(shared_server.port) as client:
        client.create(name)
        for byte in frame(Op.APPEND, cbor2.dumps({"requestId": "r", "name": name, "payload": b"x"})):
            client.send_bytes(bytes([byte]))
        assert client.receive()[1]["sequenceNumber"] == 0
