"""Delivery streams to S3: a flush becomes an object, or one for each partition, all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeVar

import msgspec

from penstock.delivery.sealing import CannotOpen, Opener
from penstock.delivery.settings import DeliverySettings
from penstock.java_time import BadZone
from penstock.pipeline.destinations.base import (
    Columns,
    DeliveryFailed,
    Destination,
    FramePart,
    Progress,
    Record,
)
from penstock.pipeline.objects import store_for
from penstock.pipeline.records.backup import back_up
from penstock.pipeline.records.error_output import ACTIVE_PARTITION_EXCEEDED, PROCESSING_FAILED
from penstock.pipeline.records.objects import FlushObjects
from penstock.pipeline.records.partitions import Partitions
from penstock.pipeline.records.processors import processed, processors_for
from penstock.pipeline.records.reading import Tally, joined, record_batches
from penstock.pipeline.records.record import Failed
from penstock.prefix import PARTITION_NAMESPACES, BadPrefix, CannotEvaluate

T = TypeVar("T")

DIFFERING_ERROR_TYPES = frozenset({PROCESSING_FAILED, ACTIVE_PARTITION_EXCEEDED})


class S3Objects(Destination):
    """Nothing counts as delivered before everything is stored; whatever an earlier attempt stored is overwritten."""

    def deliver(self, records: Iterator[Record], progress: Progress) -> None:
        raise AssertionError("delivery streams are read by frames")

    def deliver_frames(self, parts: Iterable[FramePart], progress: Progress) -> None:
        try:
            delivery = msgspec.convert(self.flush.settings, DeliverySettings)
            run = _FlushRun(self, delivery, progress)
            run.store(parts)
        except (BadPrefix, BadZone, CannotEvaluate, CannotOpen) as error:
            raise DeliveryFailed(str(error), permanent=True) from error
        run.report()


class _FlushRun:
    """One attempt at one flush."""

    def __init__(self, destination: Destination, delivery: DeliverySettings, progress: Progress) -> None:
        self._flush = destination.flush
        self._settings = destination.settings
        self._delivery = delivery
        self._progress = progress
        self._objects = FlushObjects(destination.flush, delivery, store_for(destination.settings), progress)
        self._processors = processors_for(delivery.config, delivery, destination.settings, progress.working)
        self._opener = Opener(delivery.data_keys, delivery.arn)
        self._partitioned = bool(self._objects.target.prefix.namespaces & PARTITION_NAMESPACES)
        self._tally = Tally()
        self._failures: list[Failed] = []

    def store(self, parts: Iterable[FramePart]) -> None:
        """Data first, then what failed, then the backup, which is to hold up neither."""
        if self._keeps_records_whole:
            self._put_whole(self._tally.frames(parts))
        else:
            self._store_records(part.columns() for part in parts)
        back_up(self._objects, parts, self._opener, self._tally.messages)

    @property
    def _keeps_records_whole(self) -> bool:
        """Nobody looks into a record: then they need not be told apart."""
        return not self._processors and not self._partitioned and self._opener.opens_nothing

    def _store_records(self, columns: Iterable[Columns]) -> None:
        objects = self._objects
        columns = self._tally.columns(columns, self._opener)
        batches = self._watched(processed(self._processors, record_batches(columns), self._failures.extend))
        if self._partitioned:
            partitions = Partitions(objects, self._settings.active_partitions)
            for batch in batches:
                self._failures += partitions.add(batch)
            for partition, data in partitions:
                objects.put_data(data, partition)
        elif not self._put_whole(joined(batches)) and self._may_differ:
            objects.withdraw(objects.data_key(objects.whole))
        self._put_errors()

    def _watched(self, batches: Iterable[T]) -> Iterator[T]:
        """A function may take hours for a flush that nobody wants any more."""
        for batch in batches:
            self._progress.working()
            yield batch

    def _put_whole(self, chunks: Iterable[bytes | memoryview]) -> bool:
        """One object, if there is something to put into it."""
        chunks = iter(chunks)
        first = next(chunks, None)
        if first is None:
            return False
        self._objects.put_data(chain([first], chunks), self._objects.whole)
        return True

    def _put_errors(self) -> None:
        types = self._objects.put_errors(self._failures)
        if self._may_differ:
            for output_type in sorted(DIFFERING_ERROR_TYPES - types):
                self._objects.withdraw(self._objects.error_key(output_type))

    @property
    def _may_differ(self) -> bool:
        """From an earlier attempt, which may have stored other objects."""
        return any(processor.may_differ for processor in self._processors)

    def report(self) -> None:
        tally = self._tally
        if tally.messages:
            self._progress.failed(len({failed.record.sequence for failed in self._failures}))
            self._progress.delivered(self._flush.next, tally.messages, tally.payload_bytes)
