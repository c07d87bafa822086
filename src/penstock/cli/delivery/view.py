"""A delivery stream on paper: as a row, as a list of properties, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.cli.units import format_duration, format_size, format_time

if TYPE_CHECKING:
    from penstock.delivery.listing import DeliveryListing
    from penstock.delivery.view import DeliveryView

COLUMNS = (
    *("name", "region", "account", "status", "state", "waiting", "buffered", "delivered", "failed", "lost"),
    "error",
)
NUMBER_COLUMNS = COLUMNS[5:10]


def to_row(listing: DeliveryListing) -> tuple[object, ...]:
    where = (listing.name, listing.region, listing.account, listing.status)
    progress = listing.progress
    if progress is None:
        return (*where, *("-",) * 7)
    return (
        *where,
        progress.state,
        progress.waiting_records,
        format_size(progress.buffered_bytes),
        progress.delivered_records,
        progress.failed_records,
        progress.lost_records,
        progress.error or "-",
    )


def to_properties(listing: DeliveryListing) -> Iterator[tuple[str, object]]:
    yield "name", listing.name
    yield "ARN", listing.arn
    yield "status", listing.status
    yield "destination", listing.destination
    yield "version", listing.version
    yield "encryption", listing.encryption
    if listing.sql:
        yield "SQL transform", " ".join(listing.sql.split())
    if listing.progress is not None:
        yield from progress_properties(listing.progress)


def progress_properties(progress: DeliveryView) -> Iterator[tuple[str, object]]:
    yield "state", progress.state
    yield "waiting records", progress.waiting_records
    yield "buffered", format_size(progress.buffered_bytes)
    yield "flushes under way", progress.flushes
    yield "delivered records", progress.delivered_records
    yield "delivered", format_size(progress.delivered_bytes)
    yield "records in the error output", progress.failed_records
    yield "lost records", progress.lost_records
    last_ms = progress.last_delivery_time_ms
    yield "last delivery", format_time(last_ms) if last_ms > 0 else "never"
    yield "failed attempts", progress.failures
    if progress.failures:
        yield "next attempt", "in " + format_duration(progress.retry_in_ms // 1000 * 1000)
    yield "error", progress.error or "-"


def to_json(listing: DeliveryListing) -> dict[str, object]:
    return {
        "name": listing.name,
        "arn": listing.arn,
        "account": listing.account,
        "region": listing.region,
        "status": listing.status,
        "destination": listing.destination,
        "version": listing.version,
        "encryption": listing.encryption,
        "sql": listing.sql,
        "progress": None if listing.progress is None else progress_json(listing.progress),
    }


def progress_json(progress: DeliveryView) -> dict[str, object]:
    return {
        "state": progress.state,
        "waitingRecords": progress.waiting_records,
        "bufferedBytes": progress.buffered_bytes,
        "flushes": progress.flushes,
        "deliveredRecords": progress.delivered_records,
        "deliveredBytes": progress.delivered_bytes,
        "failedRecords": progress.failed_records,
        "lostRecords": progress.lost_records,
        "lastDeliveryTime": progress.last_delivery_time_ms,
        "failures": progress.failures,
        "retryInMillis": progress.retry_in_ms,
        "errorMessage": progress.error,
    }
