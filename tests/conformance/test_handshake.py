"""Version negotiation, and each way a handshake can fail: answered, then closed with FIN, never reset."""

from __future__ import annotations

import socket
from typing import Any

import cbor2
import pytest

from conformance.raw_client import RawClient
from conformance.wire import CONNECT_VERSION, FRAME_LENGTH_MAX, Op, Status, connect_request, frame
from harness import ServerProcess

CONNECT_FRAME = frame(Op.CONNECT, cbor2.dumps(connect_request()))


def refused(port: int, sent: bytes) -> dict[str, Any]:
    with RawClient(port, connect=False) as client:
        client.send_bytes(sent)
        response = client.receive_handshake()
        client.assert_closed_cleanly()
    return response


def test_response_names_everything(shared_server: ServerProcess) -> None:
    with RawClient(shared_server.port, connect=False) as client:
        response = client.handshake(requestId="11111111-2222-3333-4444-555555555555")
    assert response["requestId"] == "11111111-2222-3333-4444-555555555555"
    assert response["status"] == Status.SUCCESS
    assert response["protocolVersion"] == "1.1.0"
    assert response["supportedProtocolVersions"] == ["1.1.0", "1.0.0"]
    assert response["serverVersion"]


def test_client_identifiers_differ(shared_server: ServerProcess) -> None:
    identifiers = set()
    for _ in range(3):
        with RawClient(shared_server.port, connect=False) as client:
            identifiers.add(client.handshake()["clientIdentifier"])
    assert len(identifiers) == 3


@pytest.mark.parametrize(
    ("version", "others", "negotiated"),
    [
        ("1.1.0", ["1.0.0"], "1.1.0"),
        ("1.0.0", None, "1.0.0"),
        ("1.0.0", ["1.1.0"], "1.1.0"),
        ("1.1.0", None, "1.1.0"),
        ("1.1.0", [], "1.1.0"),
        ("1.1.9", [], "1.1.0"),
        ("1.1", [], "1.1.0"),
        ("1.3.0", [], "1.1.0"),
        ("1.3.0", ["1.0.0"], "1.0.0"),
        ("2.0.0", ["1.0.0"], "1.0.0"),
        ("2.0.0", ["1.1.0", "1.0.0"], "1.1.0"),
        ("2.0.0", ["nonsense", "1.1.0"], "1.1.0"),
    ],
)
def test_negotiation(
    shared_server: ServerProcess, version: str, others: list[str] | None, negotiated: str
) -> None:
    with RawClient(
        shared_server.port, protocolVersion=version, otherSupportedProtocolVersions=others
    ) as client:
        assert client.protocol_version == negotiated
        client.list()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        (
            {"protocolVersion": "2.0.0", "otherSupportedProtocolVersions": None},
            Status.UNSUPPORTED_PROTOCOL_VERSION,
        ),
        (
            {"protocolVersion": "3.1.0", "otherSupportedProtocolVersions": ["2.0.0"]},
            Status.UNSUPPORTED_PROTOCOL_VERSION,
        ),
        ({"protocolVersion": "nonsense"}, Status.INVALID_PROTOCOL_VERSION),
        ({"protocolVersion": ""}, Status.INVALID_PROTOCOL_VERSION),
        ({"protocolVersion": "1"}, Status.INVALID_PROTOCOL_VERSION),
    ],
)
def test_versions_that_cannot_be_served(
    shared_server: ServerProcess, changes: dict[str, Any], status: Status
) -> None:
    sent = CONNECT_VERSION + frame(Op.CONNECT, cbor2.dumps(connect_request(**changes)))
    response = refused(shared_server.port, sent)
    assert response["status"] == status
    assert response["requestId"] == "connect-1"


@pytest.mark.parametrize("first_byte", [b"\x00", b"\x02", b"\xff"])
@pytest.mark.parametrize("rest", [b"", CONNECT_FRAME], ids=["alone", "with-frame"])
def test_wrong_connect_version(shared_server: ServerProcess, first_byte: bytes, rest: bytes) -> None:
    assert refused(shared_server.port, first_byte + rest)["status"] == Status.UNSUPPORTED_CONNECT_VERSION


def test_somebody_speaks_http(shared_server: ServerProcess) -> None:
    response = refused(shared_server.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert response["status"] == Status.UNSUPPORTED_CONNECT_VERSION


@pytest.mark.parametrize("op", [Op.LIST, Op.APPEND, Op.CONNECT_RESPONSE, 99, -1])
def test_first_frame_is_not_connect(shared_server: ServerProcess, op: int) -> None:
    sent = CONNECT_VERSION + frame(op, cbor2.dumps({"requestId": "r"}))
    assert refused(shared_server.port, sent)["status"] == Status.UNEXPECTED_OPERATION


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(Op.CONNECT, b"\xff\xff"), id="not-cbor"),
        pytest.param(frame(Op.CONNECT, cbor2.dumps([1])), id="not-a-map"),
        pytest.param(frame(Op.CONNECT, b""), id="empty"),
        pytest.param(frame(Op.CONNECT, cbor2.dumps({"protocolVersion": "1.1.0"})), id="no-request-id"),
        pytest.param(frame(Op.CONNECT, cbor2.dumps(connect_request(requestId=7))), id="number-as-request-id"),
        pytest.param(b"\x00\x00\x00\x00", id="length-0"),
        pytest.param(b"\xff\xff\xff\xff", id="length-negative"),
        pytest.param((FRAME_LENGTH_MAX + 1).to_bytes(4, "big"), id="length-too-large"),
    ],
)
def test_anything_else_fails_to_connect(shared_server: ServerProcess, sent: bytes) -> None:
    assert refused(shared_server.port, CONNECT_VERSION + sent)["status"] == Status.FAILED_TO_CONNECT


@pytest.mark.parametrize("version", [None, 11])
def test_version_is_missing_or_no_text(shared_server: ServerProcess, version: int | None) -> None:
    sent = CONNECT_VERSION + frame(Op.CONNECT, cbor2.dumps(connect_request(protocolVersion=version)))
    status = refused(shared_server.port, sent)["status"]
    assert status in (Status.INVALID_PROTOCOL_VERSION, Status.FAILED_TO_CONNECT)


def test_unread_input_does_not_turn_the_close_into_a_reset(shared_server: ServerProcess) -> None:
    response = refused(shared_server.port, b"\x07" + bytes(1 << 18))
    assert response["status"] == Status.UNSUPPORTED_CONNECT_VERSION


@pytest.mark.parametrize("sent", [b"", CONNECT_VERSION, CONNECT_VERSION + CONNECT_FRAME[:-3]])
def test_client_goes_away_inside_the_handshake(shared_server: ServerProcess, sent: bytes) -> None:
    with RawClient(shared_server.port, connect=False) as client:
        client.send_bytes(sent)
        client.socket.shutdown(socket.SHUT_WR)
        while client.socket.recv(4096):
            pass


def test_requests_may_follow_the_handshake_in_one_packet(shared_server: ServerProcess) -> None:
    with RawClient(shared_server.port, connect=False) as client:
        listing = frame(Op.LIST, cbor2.dumps({"requestId": "early"}))
        client.send_bytes(CONNECT_VERSION + CONNECT_FRAME + listing * 2)
        assert client.receive_handshake()["status"] == Status.SUCCESS
        for _ in range(2):
            op, response = client.receive()
            assert (op, response["requestId"]) == (Op.LIST_RESPONSE, "early")


def test_second_connect_is_refused_and_the_connection_goes_on(raw: RawClient) -> None:
    raw.send(Op.CONNECT, **connect_request(requestId="again"))
    op, response = raw.receive()
    assert (op, response["status"]) == (Op.CONNECT_RESPONSE, Status.UNEXPECTED_OPERATION)
    assert response["requestId"] == "again"
    raw.list()
