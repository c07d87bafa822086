"""The numbers of the Stream Manager protocol: operations, statuses, versions, limits."""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType

from penstock import errors

FRAME_LENGTH_MAX = 2**30  # inclusive; counts the operation byte and the payload
SUPPORTED_VERSIONS = ("1.1.0", "1.0.0")  # highest first


class Op(IntEnum):
    UNKNOWN = 0
    CONNECT = 1
    CREATE_MESSAGE_STREAM = 2
    DELETE_MESSAGE_STREAM = 3
    APPEND_MESSAGE = 4
    READ_MESSAGES = 5
    CONNECT_RESPONSE = 6
    CREATE_MESSAGE_STREAM_RESPONSE = 7
    DELETE_MESSAGE_STREAM_RESPONSE = 8
    APPEND_MESSAGE_RESPONSE = 9
    READ_MESSAGES_RESPONSE = 10
    LIST_STREAMS = 11
    LIST_STREAMS_RESPONSE = 12
    DESCRIBE_MESSAGE_STREAM = 13
    DESCRIBE_MESSAGE_STREAM_RESPONSE = 14
    UPDATE_MESSAGE_STREAM = 15
    UPDATE_MESSAGE_STREAM_RESPONSE = 16
    UNKNOWN_OPERATION_ERROR = 17


RESPONSE_OP: dict[Op, Op] = {
    Op.CONNECT: Op.CONNECT_RESPONSE,
    Op.CREATE_MESSAGE_STREAM: Op.CREATE_MESSAGE_STREAM_RESPONSE,
    Op.DELETE_MESSAGE_STREAM: Op.DELETE_MESSAGE_STREAM_RESPONSE,
    Op.APPEND_MESSAGE: Op.APPEND_MESSAGE_RESPONSE,
    Op.READ_MESSAGES: Op.READ_MESSAGES_RESPONSE,
    Op.LIST_STREAMS: Op.LIST_STREAMS_RESPONSE,
    Op.DESCRIBE_MESSAGE_STREAM: Op.DESCRIBE_MESSAGE_STREAM_RESPONSE,
    Op.UPDATE_MESSAGE_STREAM: Op.UPDATE_MESSAGE_STREAM_RESPONSE,
}


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
    OUT_OF_MEMORY_ERROR = 15
    UPDATE_FAILED = 16
    UPDATE_NOT_ALLOWED = 17
    UNKNOWN_OPERATION = 18


# A class that is not listed takes the status of its nearest listed base.
STATUS_OF_ERROR: MappingProxyType[type[BaseException], Status] = MappingProxyType(
    {
        errors.InvalidRequest: Status.INVALID_REQUEST,
        errors.UpdateNotAllowed: Status.UPDATE_NOT_ALLOWED,
        errors.StreamNotFound: Status.RESOURCE_NOT_FOUND,
        errors.MessageTooLarge: Status.REQUEST_PAYLOAD_TOO_LARGE,
        errors.NotEnoughMessages: Status.NOT_ENOUGH_MESSAGES,
        errors.CorruptMessages: Status.MESSAGE_STORE_READ_ERROR,
        errors.ResponseTooLarge: Status.RESPONSE_PAYLOAD_TOO_LARGE,
        errors.MemoryExhausted: Status.OUT_OF_MEMORY_ERROR,
        errors.StorageFailed: Status.UNKNOWN_FAILURE,
        errors.UpdateFailed: Status.UPDATE_FAILED,
        BaseException: Status.UNKNOWN_FAILURE,
    }
)

# First-generation clients have no such enum members: an unknown number would kill their read loop.
STATUS_IN_1_0: MappingProxyType[Status, Status] = MappingProxyType(
    {
        Status.OUT_OF_MEMORY_ERROR: Status.UNKNOWN_FAILURE,
        Status.UPDATE_FAILED: Status.UNKNOWN_FAILURE,
        Status.UPDATE_NOT_ALLOWED: Status.INVALID_REQUEST,
        Status.UNKNOWN_OPERATION: Status.INVALID_REQUEST,
    }
)


def status_of(error: BaseException) -> Status:
    return next(STATUS_OF_ERROR[kind] for kind in type(error).__mro__ if kind in STATUS_OF_ERROR)


def status_for_version(status: Status, version: str) -> Status:
    """The status as a connection of this negotiated version may see it."""
    return STATUS_IN_1_0.get(status, status) if version == "1.0.0" else status
