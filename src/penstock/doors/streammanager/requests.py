"""The requests other than Connect, as types: every field checked, every default filled in."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.doors.streammanager.fields import INT32_MAX, MILLISECONDS_MAX, NAME, Bytes, Int, Map, Text
from penstock.errors import InvalidRequest
from penstock.model import INT64_MAX


class AppendMessage(msgspec.Struct, frozen=True):
    name: str
    payload: bytes


class ReadMessages(msgspec.Struct, frozen=True):
    stream_name: str
    start: int = 0
    min_count: int = 1
    max_count: int = 1
    timeout_ms: int = 0


class DeleteMessageStream(msgspec.Struct, frozen=True):
    name: str


class DescribeMessageStream(msgspec.Struct, frozen=True):
    name: str


class ListStreams(msgspec.Struct, frozen=True):
    pass


_REQUEST_ID = Text(length_min=1, name_like=True)
_NAMED = Map(required={"name": NAME}, optional={})
_APPEND = Map(required={"name": NAME, "payload": Bytes(length_min=1)}, optional={})
_READ = Map(
    required={"streamName": NAME},
    optional={
        "readMessagesOptions": Map(
            required={},
            optional={
                "desiredStartSequenceNumber": Int(0, INT64_MAX),
                "minMessageCount": Int(1, INT32_MAX),
                "maxMessageCount": Int(1, INT32_MAX),
                "readTimeoutMillis": Int(0, MILLISECONDS_MAX),
            },
        )
    },
)


def request_id_problem(value: object) -> str | None:
    """What is wrong with a requestId, if anything."""
    if value is None:
        return "requestId is required."
    problems: list[str] = []
    _REQUEST_ID.convert(value, "requestId", problems)
    return " ".join(problems) or None


def parse_append_message(body: dict[str, Any]) -> AppendMessage:
    fields = _checked(_APPEND, body)
    return AppendMessage(fields["name"], fields["payload"])


def parse_read_messages(body: dict[str, Any]) -> ReadMessages:
    fields = _checked(_READ, body)
    options = fields.get("readMessagesOptions", {})
    min_count = options.get("minMessageCount", 1)
    max_count = options.get("maxMessageCount", min_count)
    if min_count > max_count:
        raise InvalidRequest(
            f"readMessagesOptions.maxMessageCount: must be at least minMessageCount, which is {min_count}."
        )
    return ReadMessages(
        fields["streamName"],
        options.get("desiredStartSequenceNumber", 0),
        min_count,
        max_count,
        options.get("readTimeoutMillis", 0),
    )


def parse_delete_message_stream(body: dict[str, Any]) -> DeleteMessageStream:
    return DeleteMessageStream(_checked(_NAMED, body)["name"])


def parse_describe_message_stream(body: dict[str, Any]) -> DescribeMessageStream:
    return DescribeMessageStream(_checked(_NAMED, body)["name"])


def parse_list_streams(body: dict[str, Any]) -> ListStreams:
    return ListStreams()


def _checked(rule: Map, body: dict[str, Any]) -> dict[str, Any]:
    problems: list[str] = []
    fields: dict[str, Any] = rule.convert(body, "", problems)
    if problems:
        raise InvalidRequest(" ".join(problems))
    return fields
