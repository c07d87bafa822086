"""A flush and what becomes of it: what the server hands to the pipeline, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.model import ExportKind

BATCH_SIZES = {ExportKind.IOT_ANALYTICS: 100, ExportKind.IOT_SITEWISE: 10, ExportKind.S3_TASK_EXECUTOR: 1}


def batch_size(kind: ExportKind, settings: Mapping[str, Any]) -> int:
    """How many messages an export sends at a time."""
    return int(settings.get("batchSize", BATCH_SIZES.get(kind, 500)))


class Flush(msgspec.Struct):
    """A planned range of messages of one export. However often it is tried, it stays the same flush."""

    id: int
    stream: str
    identifier: str
    kind: ExportKind
    settings: dict[str, Any]  # the export's configuration, by wire key
    first: int  # the first message not yet delivered
    next: int  # behind the last message
    planned_ms: int  # object names are made of this instant
    nonce: str  # and of this random part
    attempt: int = (
        0  # one more whenever it is handed out, and elsewhere after a restart: never the same twice
    )


class Outcome(msgspec.Struct):
    """What an attempt has done since its last report that was answered. Heard twice, it says nothing new."""

    flush: int
    attempt: int
    next: int  # delivered or skipped up to here
    messages: int = 0
    payload_bytes: int = 0
    skipped: int = 0
    failed_records: int = 0  # of the messages, those that are in the error output of a delivery stream
    objects: int = 0  # stored since the attempt began, also if it failed in the end
    upload_bytes: int = 0  # of the one long upload that is under way, if there is one
    upload_total_bytes: int = 0
    error: str = ""
    damaged: bool = False  # frames could not be decoded
    done: bool = False  # the attempt has ended
    permanent: bool = False  # with an error that trying again soon will not cure
    statuses_before: int = 0  # status messages of this attempt in earlier reports
    status_messages: list[str] = []  # for the export's status stream, in order


class LeaseRequest(msgspec.Struct):
    pipeline: str
    flushes_max: int = 256
    wait_ms: int = 10_000
    probing: bool = False  # ask for exports whose last attempt failed, instead of the healthy ones


class Leases(msgspec.Struct):
    flushes: list[Flush]
    slots: int  # how many may be delivered at the same time
    renew_within_ms: int
    spark_sql: bool = False  # some stream needs it: who has nothing else to do may get ready


class Renewal(msgspec.Struct):
    pipeline: str
    flushes: list[int] | None = None  # those it knows that it has, if it says so


class Report(msgspec.Struct):
    pipeline: str
    outcomes: list[Outcome]


class ReportAnswer(msgspec.Struct):
    cancelled: list[int]  # flushes that nobody wants any more: stop
    positions: dict[int, int] = {}  # where each of the others stands
