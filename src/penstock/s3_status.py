"""Status messages of S3 file tasks, as the Stream Manager SDKs read them from a status stream."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import msgspec


class StatusLevel(IntEnum):
    ERROR = 0
    WARN = 1
    INFO = 2
    DEBUG = 3
    TRACE = 4


class Status(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    IN_PROGRESS = 2
    WARNING = 3
    CANCELED = 4


EVENT_S3_TASK = 0


def wants_status(config: Mapping[str, Any], level: StatusLevel) -> bool:
    """Whether an export with this configuration gets messages of this level."""
    status_config = config.get("statusConfig") or {}
    return "statusStreamName" in status_config and level <= status_config.get("statusLevel", StatusLevel.INFO)


def status_message(
    *,
    status: Status,
    level: StatusLevel,
    text: str,
    task: Mapping[str, Any],
    export_identifier: str,
    stream: str,
    sequence_number: int,
) -> str:
    """All fields are written and none is null: the SDKs fail on what is missing, or read it as success."""
    message = {
        "eventType": EVENT_S3_TASK,
        "statusLevel": int(level),
        "status": int(status),
        "statusContext": {
            "s3ExportTaskDefinition": task,
            "exportIdentifier": export_identifier,
            "streamName": stream,
            "sequenceNumber": sequence_number,
        },
        "message": text,
        "timestampEpochMs": time.time_ns() // 1_000_000,
    }
    return msgspec.json.encode(message).decode()


def task_as_sent(payload: bytes) -> dict[str, Any]:
    """The task that a message holds, for status messages: whatever of it can be shown, however bad it is."""
    try:
        fields = msgspec.json.decode(payload)
    except (ValueError, RecursionError):  # msgspec.DecodeError, bad UTF-8, or nested without end
        return {}
    if not isinstance(fields, dict):
        return {}
    task: dict[str, Any] = {
        name: fields[name] for name in ("inputUrl", "bucket", "key") if isinstance(fields.get(name), str)
    }
    metadata = fields.get("userMetadata")
    if isinstance(metadata, dict):
        task["userMetadata"] = {name: value for name, value in metadata.items() if isinstance(value, str)}
    return task
