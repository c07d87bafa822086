"""What tests of destinations need: a flush, records, and a progress that remembers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.flush import Flush
from penstock.model import ExportKind
from penstock.pipeline.destinations import destination_for
from penstock.pipeline.destinations.base import (
    Cancelled,
    DeliveryFailed,
    PipelineSettings,
    Progress,
    Record,
)
from penstock.pipeline.server_client import ServerClient

NONCE = "0123456789abcdef"
NO_SERVER = ServerClient("http://127.0.0.1:9", "")


class Recording(Progress):
    """Refuses what no destination may do: to go back, to overlap, to leave a hole in silence."""

    def __init__(self, first: int = 0, cancel_after: int | None = None) -> None:
        self.next = first
        self.messages = 0
        self.payload_bytes = 0
        self.skips: dict[int, str] = {}
        self.calls = 0
        self._cancel_after = cancel_after

    def delivered(self, next_sequence: int, messages: int, payload_bytes: int) -> None:
        assert next_sequence >= self.next + messages
        assert messages > 0
        self.next = next_sequence
        self.messages += messages
        self.payload_bytes += payload_bytes
        self._count_call()

    def skipped(self, next_sequence: int, reason: str) -> None:
        assert next_sequence > self.next
        assert reason
        self.next = next_sequence
        self.skips[next_sequence - 1] = reason
        self._count_call()

    def status(self, message: str) -> None:
        raise AssertionError("only file tasks have statuses")

    def _count_call(self) -> None:
        self.calls += 1
        if self._cancel_after is not None and self.calls >= self._cancel_after:
            raise Cancelled("the test has seen enough")


def flush_of(kind: ExportKind, count: int, first: int = 0, **settings: Any) -> Flush:
    return Flush(
        id=1,
        stream="readings",
        identifier="export",
        kind=kind,
        settings={"identifier": "export", **settings},
        first=first,
        next=first + count,
        planned_ms=1_700_000_000_000,
        nonce=NONCE,
        attempt=1,
    )


def records_of(payloads: Iterable[bytes], first: int = 0) -> Iterator[Record]:
    for number, payload in enumerate(payloads, first):
        yield Record(number, 1_700_000_000_000 + number, payload)


def deliver(
    kind: ExportKind,
    payloads: list[bytes],
    *,
    first: int = 0,
    options: PipelineSettings | None = None,
    progress: Recording | None = None,
    **settings: Any,
) -> tuple[Recording, DeliveryFailed | None]:
    """One attempt: how far it came, and why not further."""
    progress = progress or Recording(first)
    flush = flush_of(kind, len(payloads), first, **settings)
    try:
        destination = destination_for(flush, options or PipelineSettings(), NO_SERVER)
        destination.deliver(records_of(payloads, first), progress)
    except DeliveryFailed as error:
        return progress, error
    return progress, None
