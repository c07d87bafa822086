"""What each request other than Connect and AppendMessage does, from decoded map to answer's fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from penstock.doors.streammanager.codec import encode_response
from penstock.doors.streammanager.definitions import (
    info_to_wire,
    moved_starts,
    parse_definition,
    parse_update_definition,
    update_problem,
    updated_definition,
)
from penstock.doors.streammanager.protocol import Op, Status
from penstock.doors.streammanager.requests import (
    ReadMessages,
    parse_delete_message_stream,
    parse_describe_message_stream,
    parse_list_streams,
    parse_read_messages,
)
from penstock.errors import InvalidRequest
from penstock.model import Message, StreamDefinition, StreamInfo
from penstock.streams import Streams


class Operations:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._handlers: dict[Op, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            Op.CREATE_MESSAGE_STREAM: self._create,
            Op.UPDATE_MESSAGE_STREAM: self._update,
            Op.DELETE_MESSAGE_STREAM: self._delete,
            Op.DESCRIBE_MESSAGE_STREAM: self._describe,
            Op.LIST_STREAMS: self._list,
        }

    async def run(self, op: Op, body: dict[str, Any]) -> dict[str, Any]:
        """The fields that the answer has besides the usual three. Raises PenstockError."""
        return await self._handlers[op](body)

    async def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        definition, problems = parse_definition(body.get("definition"))
        if definition is None:
            raise InvalidRequest(" ".join(problems))
        await self._streams.create(definition)
        return {}

    async def _update(self, body: dict[str, Any]) -> dict[str, Any]:
        definition, persistence_given, problems = parse_update_definition(body.get("definition"))
        if definition is None:
            raise InvalidRequest(" ".join(problems))
        change = partial(_changed, definition, persistence_given)
        await self._streams.update(definition.name, change)
        return {}

    async def _delete(self, body: dict[str, Any]) -> dict[str, Any]:
        await self._streams.delete(parse_delete_message_stream(body).name)
        return {}

    async def _describe(self, body: dict[str, Any]) -> dict[str, Any]:
        name = parse_describe_message_stream(body).name
        return {"messageStreamInfo": info_to_wire(self._streams.describe(name))}

    async def _list(self, body: dict[str, Any]) -> dict[str, Any]:
        parse_list_streams(body)
        return {"streams": self._streams.names()}

    # -- reading ------------------------------------------------------------------------------------

    def parse_read(self, body: dict[str, Any]) -> ReadMessages:
        return parse_read_messages(body)

    async def wait_for_messages(self, request: ReadMessages) -> None:
        await self._streams.wait_for_messages(
            request.stream_name, request.start, request.min_count, request.timeout_ms
        )

    async def read(self, request: ReadMessages, request_id: str) -> bytes:
        """The whole answer, built in the thread that reads."""
        return await self._streams.read(
            request.stream_name, request.start, request.min_count, request.max_count,
            partial(_encode_messages, request.stream_name, request_id),
        )  # fmt: skip


def _changed(
    definition: StreamDefinition, persistence_given: bool, info: StreamInfo
) -> tuple[StreamDefinition, dict[str, int]]:
    problem = update_problem(info, definition, persistence_given)
    if problem is not None:
        raise problem
    new = updated_definition(info.definition, definition, persistence_given)
    return new, moved_starts(info.definition, new)


def _encode_messages(stream_name: str, request_id: str, messages: list[Message]) -> bytes:
    wire = [
        {
            "streamName": stream_name,
            "sequenceNumber": message.sequence_number,
            "ingestTime": message.arrival_ms,
            "payload": message.payload,
        }
        for message in messages
    ]
    return encode_response(Op.READ_MESSAGES_RESPONSE, request_id, Status.SUCCESS, messages=wire)
