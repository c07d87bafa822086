from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stream_manager import data as sdk
from stream_manager.utilinternal import UtilInternal

from penstock.doors.streammanager.codec import decode_map
from penstock.doors.streammanager.requests import (
    AppendMessage,
    DeleteMessageStream,
    DescribeMessageStream,
    ListStreams,
    ReadMessages,
    parse_append_message,
    parse_delete_message_stream,
    parse_describe_message_stream,
    parse_list_streams,
    parse_read_messages,
    request_id_problem,
)
from penstock.errors import InvalidRequest
from penstock.model import INT64_MAX

INT32_MAX = 2147483647
BAD_NAMES = ["", "s" * 256, "é", "a/b", "a\n", 5, b"s"]


def problem(parse: Callable[[dict[str, Any]], object], body: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    return str(caught.value)


def read(**options: object) -> ReadMessages:
    return parse_read_messages({"streamName": "s", "readMessagesOptions": options})


def read_problem(**options: object) -> str:
    return problem(parse_read_messages, {"streamName": "s", "readMessagesOptions": options})


@pytest.mark.parametrize("value", [" ", "r1", "11111111-2222-3333-4444-555555555555", "x" * 5000, "a,b.c_d"])
def test_request_ids_that_are_allowed(value: str) -> None:
    assert request_id_problem(value) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "requestId is required."),
        ("", "requestId: must have a length of at least 1."),
        ("a/b", 'requestId: must match regular expression "^[\\w ,.\\-_]*$".'),
        ("a\n", 'requestId: must match regular expression "^[\\w ,.\\-_]*$".'),
        (5, "requestId: must be text."),
        (b"r", "requestId: must be text."),
    ],
)
def test_request_ids_that_are_not(value: object, text: str) -> None:
    assert request_id_problem(value) == text


def test_append() -> None:
    body = {"requestId": "r", "name": "s", "payload": b"\x00", "unknown": 1}
    assert parse_append_message(body) == AppendMessage("s", b"\x00")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "name is required. payload is required."),
        ({"name": "s", "payload": "hi"}, "payload: must be bytes."),
        ({"name": "s", "payload": [1]}, "payload: must be bytes."),
        ({"name": "s", "payload": b""}, "payload: must have a length of at least 1."),
        (
            {"name": "", "payload": b""},
            "name: must have a length of at least 1. payload: must have a length of at least 1.",
        ),
    ],
)
def test_append_problems(body: dict[str, Any], text: str) -> None:
    assert problem(parse_append_message, body) == text


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_are_checked_everywhere(name: object) -> None:
    assert problem(parse_append_message, {"name": name, "payload": b"x"}).startswith("name: must ")
    assert problem(parse_delete_message_stream, {"name": name}).startswith("name: must ")
    assert problem(parse_describe_message_stream, {"name": name}).startswith("name: must ")
    assert problem(parse_read_messages, {"streamName": name}).startswith("streamName: must ")


def test_delete_describe_list() -> None:
    assert parse_delete_message_stream({"name": ".."}) == DeleteMessageStream("..")
    assert parse_describe_message_stream({"name": " "}) == DescribeMessageStream(" ")
    assert parse_list_streams({"requestId": "r"}) == ListStreams()
    assert problem(parse_delete_message_stream, {"streamName": "s"}) == "name is required."
    assert problem(parse_describe_message_stream, {}) == "name is required."


def test_read_uses_stream_name() -> None:
    assert problem(parse_read_messages, {"name": "s"}) == "streamName is required."


def test_read_defaults() -> None:
    expected = ReadMessages("s", start=0, min_count=1, max_count=1, timeout_ms=0)
    assert parse_read_messages({"streamName": "s"}) == expected
    assert read() == expected
    assert read(minMessageCount=1, readTimeoutMillis=0) == expected


def test_read_max_is_min_unless_given() -> None:
    assert read(minMessageCount=2) == ReadMessages("s", min_count=2, max_count=2)
    assert read(maxMessageCount=7) == ReadMessages("s", min_count=1, max_count=7)
    assert read(minMessageCount=3, maxMessageCount=3).max_count == 3


def test_read_with_everything() -> None:
    assert read(
        desiredStartSequenceNumber=5, minMessageCount=2.0, maxMessageCount=10, readTimeoutMillis=1000
    ) == ReadMessages("s", 5, 2, 10, 1000)


def test_read_min_above_max() -> None:
    assert read_problem(minMessageCount=3, maxMessageCount=2) == (
        "readMessagesOptions.maxMessageCount: must be at least minMessageCount, which is 3."
    )


READ_LIMITS = [
    ("desiredStartSequenceNumber", 0, INT64_MAX),
    ("minMessageCount", 1, INT32_MAX),
    ("maxMessageCount", 1, INT32_MAX),
    ("readTimeoutMillis", 0, 9223372036854),
]


@pytest.mark.parametrize(("key", "least", "most"), READ_LIMITS)
def test_read_limits(key: str, least: int, most: int) -> None:
    read(**{key: least})
    read(**{key: most})
    assert read_problem(**{key: least - 1}) == f"readMessagesOptions.{key}: must be at least {least}."
    if most != INT64_MAX:
        assert read_problem(**{key: most + 1}) == f"readMessagesOptions.{key}: must be at most {most}."
    for bad in (True, "1", 1.5, [], b"1"):
        assert read_problem(**{key: bad}) == f"readMessagesOptions.{key}: must be an integer."


def test_read_from_beyond_int64_is_clamped() -> None:
    assert read(desiredStartSequenceNumber=2.0**63).start == INT64_MAX


def test_read_problems_are_all_told() -> None:
    body = {"readMessagesOptions": {"minMessageCount": 0, "readTimeoutMillis": -1}}
    assert problem(parse_read_messages, body) == (
        "streamName is required. readMessagesOptions.minMessageCount: must be at least 1. "
        "readMessagesOptions.readTimeoutMillis: must be at least 0."
    )
    assert problem(parse_read_messages, {"streamName": "s", "readMessagesOptions": []}) == (
        "readMessagesOptions: must be a map."
    )


def test_null_is_absent() -> None:
    body = decode_map(b"\xa2\x6astreamName\x61s\x73readMessagesOptions\xf6")
    assert parse_read_messages(body) == ReadMessages("s")
    assert problem(parse_delete_message_stream, decode_map(b"\xa1\x64name\xf7")) == "name is required."


def test_limits_are_those_of_the_sdk() -> None:
    for attribute, rules in sdk.ReadMessagesOptions._validations_map.items():
        for value in (rules["minimum"], rules["minimum"] - 1, rules["maximum"], rules["maximum"] + 1):
            if value == INT64_MAX + 1:
                continue  # clamped, for JavaScript's sake
            options = sdk.ReadMessagesOptions(**{attribute: value})
            request = sdk.ReadMessagesRequest(request_id="r", stream_name="s", read_messages_options=options)
            body = request.as_dict()
            if UtilInternal.is_invalid(request):
                problem(parse_read_messages, body)
            else:
                assert parse_read_messages(body).stream_name == "s"
