"""The stream of the log that is inside of a delivery stream."""

from __future__ import annotations

import msgspec

from penstock.delivery.destinations import buffering_hints, filled
from penstock.delivery.settings import DeliverySettings
from penstock.delivery.stored import StoredDelivery
from penstock.log.stream import Stream
from penstock.model import Export, ExportKind, StreamDefinition
from penstock.streams import Streams

SEGMENT_SIZE_BYTES = 16 * 1024 * 1024
MIB = 1024 * 1024


def settings_of(record: StoredDelivery) -> DeliverySettings:
    """What the pipeline must know."""
    complete = filled(record.destination, record.config)
    size_mib, interval_s = buffering_hints(record.destination, complete)
    return DeliverySettings(
        arn=record.arn,
        name=record.name,
        account=record.account,
        region=record.region,
        version=str(record.version),
        buffer_bytes=size_mib * MIB,
        interval_ms=interval_s * 1000,
        destination=record.destination,
        config=complete,
        sql=record.sql,
    )


def definition_of(record: StoredDelivery, size_max_bytes: int) -> StreamDefinition:
    return StreamDefinition(
        name=record.arn,
        max_size_bytes=size_max_bytes,
        # Delivered records make room by whole segments, and never by the one that is being written.
        segment_size_bytes=min(SEGMENT_SIZE_BYTES, size_max_bytes // 4),
        flush_on_write=True,
        exports=(Export(ExportKind.DELIVERY, msgspec.to_builtins(settings_of(record))),),
    )


async def ensure_stream(streams: Streams, record: StoredDelivery, size_max_bytes: int) -> Stream:
    """The log's stream, made or changed if it is not as the record says."""
    stream = streams.store.streams.get(record.arn)
    if stream is None:
        await streams.create(definition_of(record, size_max_bytes))
        return streams.find(record.arn)
    # A lower bound than what is there would have acknowledged records dropped.
    definition = definition_of(record, max(size_max_bytes, stream.charged_bytes))
    if stream.definition != definition:
        await streams.update(record.arn, lambda _: (definition, {}))
    return stream
