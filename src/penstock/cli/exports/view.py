"""An export on paper: as a row, as a list of properties, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.cli.units import format_duration, format_size, format_time

if TYPE_CHECKING:
    from penstock.export_view import ExportView

COLUMNS = ("stream", "export", "kind", "state", "next", "waiting", "exported", "skipped", "lost", "error")
NUMBER_COLUMNS = COLUMNS[4:9]


def to_row(view: ExportView) -> tuple[object, ...]:
    return (
        view.stream,
        view.identifier,
        view.kind,
        view.state,
        view.position,
        view.waiting_messages,
        view.exported_messages,
        view.skipped_messages,
        view.lost_messages,
        view.error or "-",
    )


def to_properties(view: ExportView) -> Iterator[tuple[str, object]]:
    yield "stream", view.stream
    yield "export", view.identifier
    yield "kind", view.kind
    yield "state", view.state
    yield "next sequence number", view.position
    yield "waiting messages", view.waiting_messages
    yield "exported messages", view.exported_messages
    yield "exported payload", format_size(view.exported_bytes)
    if view.upload_total_bytes:
        yield "present upload", upload_of(view)
    yield "skipped messages", view.skipped_messages
    yield "lost messages", view.lost_messages
    yield "last attempt", format_time(view.last_export_time_ms) if view.last_export_time_ms > 0 else "never"
    yield "failed attempts", view.failures
    if view.failures:
        yield "next attempt", "in " + format_duration(view.retry_in_ms // 1000 * 1000)
    yield "error", view.error or "-"


def upload_of(view: ExportView) -> str:
    return f"{format_size(view.upload_bytes)} of {format_size(view.upload_total_bytes)}"


def to_json(view: ExportView) -> dict[str, object]:
    return {
        "stream": view.stream,
        "export": view.identifier,
        "kind": view.kind,
        "state": view.state,
        "nextSequenceNumber": view.position,
        "waitingMessages": view.waiting_messages,
        "lastExportedSequenceNumber": view.last_exported_sequence_number,
        "lastExportTime": view.last_export_time_ms,
        "exportedMessagesCount": view.exported_messages,
        "exportedBytesFromStream": view.exported_bytes,
        "uploadedBytes": view.upload_bytes,
        "uploadTotalBytes": view.upload_total_bytes,
        "skippedMessagesCount": view.skipped_messages,
        "lostMessagesCount": view.lost_messages,
        "failures": view.failures,
        "retryInMillis": view.retry_in_ms,
        "errorMessage": view.error,
    }
