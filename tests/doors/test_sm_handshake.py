from __future__ import annotations

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_manager import data as sdk

import penstock
from penstock.doors.streammanager.handshake import (
    HandshakeRefused,
    connect_frame,
    connect_response,
    negotiate,
)
from penstock.doors.streammanager.protocol import SUPPORTED_VERSIONS, Status


@pytest.mark.parametrize(
    ("protocol_version", "other", "agreed"),
    [
        ("1.1.0", ["1.0.0"], "1.1.0"),  # what SDKs send today
        ("1.0.0", None, "1.0.0"),  # and what the first ones sent
        ("1.0.0", ["1.1.0"], "1.1.0"),
        ("1.0.0", ["2.0.0", "1.1.0"], "1.1.0"),
        ("2.0.0", ["1.0.0"], "1.0.0"),
        ("1.1", None, "1.1.0"),
        ("1.1.7-beta", None, "1.1.0"),
        ("1.3.0", None, "1.1.0"),  # same major version
        ("1.3.0", ["1.0.0"], "1.0.0"),  # an exact match goes first
        ("2.0.0", ["1.7.0"], "1.1.0"),
        ("1.1.0", ["nonsense", 5, None, "2.0"], "1.1.0"),
        ("1.1.0", "1.0.0", "1.1.0"),
        ("1.1.0", {"1.0.0": 1}, "1.1.0"),
    ],
)
def test_versions_that_meet(protocol_version: str, other: object, agreed: str) -> None:
    assert negotiate(protocol_version, other) == agreed


@pytest.mark.parametrize(
    "protocol_version",
    [None, "", "1", "one", "1.", ".1", "v1.1.0", " 1.1.0", 1.1, b"1.1.0", "١.١", "1." + "1" * 10**5],
)
def test_versions_that_cannot_be_read(protocol_version: object) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        negotiate(protocol_version, ["1.1.0"])
    assert refused.value.status is Status.INVALID_PROTOCOL_VERSION
    assert str(refused.value)


@pytest.mark.parametrize(
    ("protocol_version", "other"), [("2.0.0", None), ("0.9.0", ["2.1.0"]), ("11.0.0", [])]
)
def test_versions_that_do_not_meet(protocol_version: str, other: object) -> None:
    with pytest.raises(HandshakeRefused, match=r"1\.1\.0, 1\.0\.0") as refused:
        negotiate(protocol_version, other)
    assert refused.value.status is Status.UNSUPPORTED_PROTOCOL_VERSION


anything = st.none() | st.integers() | st.text() | st.from_regex(r"[0-2]\.[0-2]", fullmatch=True)


@settings(deadline=None)
@given(anything, anything | st.lists(anything))
def test_any_input_is_agreed_or_refused(protocol_version: object, other: object) -> None:
    try:
        agreed = negotiate(protocol_version, other)
    except HandshakeRefused as refused:
        agreed = ""
        expected = {Status.INVALID_PROTOCOL_VERSION, Status.UNSUPPORTED_PROTOCOL_VERSION}
        known = refused.status in expected
    else:
        known = agreed in SUPPORTED_VERSIONS
    assert known


def test_success() -> None:
    answer = connect_response("r1", "client-1", protocol_version="1.0.0")
    assert answer[0] == 1
    assert int.from_bytes(answer[1:5], "big") == len(answer) - 5
    assert answer[5] == 6
    assert cbor2.loads(answer[6:]) == {
        "requestId": "r1",
        "status": 0,
        "errorMessage": "",
        "protocolVersion": "1.0.0",
        "supportedProtocolVersions": ["1.1.0", "1.0.0"],
        "serverVersion": penstock.__version__,
        "clientIdentifier": "client-1",
    }


@pytest.mark.parametrize("status", [Status.UNAUTHORIZED, *map(Status, range(8, 13))])
def test_refusals_have_all_keys_and_are_read_by_the_sdk(status: Status) -> None:
    answer = connect_response("", "client-1", status, "why")
    body = cbor2.loads(answer[6:])
    assert len(body) == 7
    response = sdk.ConnectResponse.from_dict(body)
    assert response.status.value == status
    assert response.error_message == "why"
    assert response.protocol_version == "1.1.0"


def test_a_second_connect_is_answered_without_the_version_byte() -> None:
    arguments = ("r", "client-1", Status.UNEXPECTED_OPERATION, "already connected")
    assert b"\x01" + connect_frame(*arguments) == connect_response(*arguments)
