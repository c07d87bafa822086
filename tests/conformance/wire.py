"""The numbers of the protocol, and its frames, written down independently of the server's own code."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import cbor2

CONNECT_VERSION = b"\x01"
FRAME_LENGTH_MAX = 2**30


class Op(IntEnum):
    UNKNOWN = 0
    CONNECT = 1
    CREATE = 2
    DELETE = 3
    APPEND = 4
    READ = 5
    CONNECT_RESPONSE = 6
    CREATE_RESPONSE = 7
    DELETE_RESPONSE = 8
    APPEND_RESPONSE = 9
    READ_RESPONSE = 10
    LIST = 11
    LIST_RESPONSE = 12
    DESCRIBE = 13
    DESCRIBE_RESPONSE = 14
    UPDATE = 15
    UPDATE_RESPONSE = 16
    UNKNOWN_OPERATION_ERROR = 17


class Status(IntEnum):
    SUCCESS = 0
    UNKNOWN_FAILURE = 1
    UNAUTHORIZED = 2
    INVALID_REQUEST = 3
    REQUEST_PAYLOAD_TOO_LARGE = 4
    RESOURCE_NOT_FOUND = 5
    SERVER_TIMEOUT = 6
    RESPONSE_PAYLOAD_TOO_LARGE = 7
    UNSUPPORTED_CONNECT_VERSION = 8
    UNEXPECTED_OPERATION = 9
    UNSUPPORTED_PROTOCOL_VERSION = 10
    INVALID_PROTOCOL_VERSION = 11
    FAILED_TO_CONNECT = 12
    NOT_ENOUGH_MESSAGES = 13
    MESSAGE_STORE_READ_ERROR = 14
    OUT_OF_MEMORY = 15
    UPDATE_FAILED = 16
    UPDATE_NOT_ALLOWED = 17
    UNKNOWN_OPERATION = 18


RESPONSE_OF = {
    Op.CONNECT: Op.CONNECT_RESPONSE,
    Op.CREATE: Op.CREATE_RESPONSE,
    Op.DELETE: Op.DELETE_RESPONSE,
    Op.APPEND: Op.APPEND_RESPONSE,
    Op.READ: Op.READ_RESPONSE,
    Op.LIST: Op.LIST_RESPONSE,
    Op.DESCRIBE: Op.DESCRIBE_RESPONSE,
    Op.UPDATE: Op.UPDATE_RESPONSE,
}
EXTRA_KEYS_ON_SUCCESS = {
    Op.APPEND_RESPONSE: {"sequenceNumber"},
    Op.READ_RESPONSE: {"messages"},
    Op.LIST_RESPONSE: {"streams"},
    Op.DESCRIBE_RESPONSE: {"messageStreamInfo"},
}
CONNECT_RESPONSE_KEYS = {
    *("requestId", "status", "errorMessage", "protocolVersion"),
    *("supportedProtocolVersions", "serverVersion", "clientIdentifier"),
}


def frame(op: int, payload: bytes) -> bytes:
    return struct.pack(">ib", 1 + len(payload), op) + payload


def connect_request(**changes: Any) -> dict[str, Any]:
    """What the Python SDK sends. A change to None takes the key away."""
    request = {
        "requestId": "connect-1",
        "protocolVersion": "1.1.0",
        "otherSupportedProtocolVersions": ["1.0.0"],
        "sdkVersion": "1.1.2",
        **changes,
    }
    return {key: value for key, value in request.items() if value is not None}


def decode_response(op: int, payload: bytes) -> dict[str, Any]:
    """Every answer of every test passes here: it must be what all SDKs can digest."""
    body = cbor2.loads(payload)
    assert isinstance(body, dict)
    assert cbor2.dumps(body) == payload, "not definite-length CBOR with the smallest integers"
    assert_no_nulls(body)
    assert isinstance(body["requestId"], str)
    assert isinstance(body["errorMessage"], str)
    status = Status(body["status"])
    assert bool(body["errorMessage"]) == (status is not Status.SUCCESS)
    assert set(body) == expected_keys(op, status)
    return body


def expected_keys(op: int, status: int) -> set[str]:
    if op == Op.CONNECT_RESPONSE:
        return CONNECT_RESPONSE_KEYS
    extra = EXTRA_KEYS_ON_SUCCESS.get(Op(op), set()) if status == Status.SUCCESS else set()
    return {"requestId", "status", "errorMessage"} | extra


def assert_no_nulls(value: Any) -> None:
    assert value is not None
    assert value is not cbor2.undefined
    if isinstance(value, dict):
        for key, item in value.items():
            assert isinstance(key, str)
            assert_no_nulls(item)
    elif isinstance(value, list):
        for item in value:
            assert_no_nulls(item)
