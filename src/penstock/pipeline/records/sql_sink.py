"""The writing end of a Spark SQL job: rows become objects, and flushes are reported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.delivery.sealing import Opener
from penstock.delivery.settings import DeliverySettings
from penstock.flush import Flush, Outcome
from penstock.pipeline.delivery import Reporter, failure_noted, frame_parts, settle_worker
from penstock.pipeline.destinations.base import apply_environment
from penstock.pipeline.objects import store_for
from penstock.pipeline.records.backup import back_up
from penstock.pipeline.records.error_output import (
    ACTIVE_PARTITION_EXCEEDED,
    FORMAT_CONVERSION_FAILED,
    PROCESSING_FAILED,
)
from penstock.pipeline.records.objects import FlushObjects, Partition
from penstock.pipeline.records.record import Failed
from penstock.pipeline.records.row_contents import Contents, contents_for
from penstock.pipeline.records.sql_rows import (
    OUTCOME_SCHEMA,
    Ended,
    Placed,
    SinkTask,
    Whole,
    decode_note,
)
from penstock.pipeline.server_client import ServerClient, ServerLost

logger = logging.getLogger(__name__)

# What another attempt may have stored and this one has not: a query may give other results, a table other columns.
ERROR_TYPES = frozenset({PROCESSING_FAILED, FORMAT_CONVERSION_FAILED})


def write_flushes(encoded_task: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of the last Spark step: rows in, and out for each flush what its driver must know."""
    settle_worker()
    task = msgspec.json.decode(encoded_task, type=SinkTask)
    apply_environment(task.task.settings.environment)
    with closing(ServerClient(task.task.server_url, task.task.token)) as server:
        sink: FlushSink | None = None
        for batch in batches:
            for number, rows in _by_flush(batch):
                if sink is None or sink.number != number:
                    sink = FlushSink(number, task.flushes[number], task, server)
                ended = sink.add(rows)
                if ended is not None:
                    yield sink.finish(ended)


def _by_flush(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows come flush by flush."""
    numbers = batch.column("flush").to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(starts):
        if start < stop:
            yield int(numbers[start]), batch.slice(start, stop - start)


class FlushSink:
    """One attempt at one flush. Nothing is stored before the reading end says that it has read everything."""

    def __init__(self, number: int, flush: Flush, task: SinkTask, server: ServerClient) -> None:
        self.number = number
        self._flush = flush
        self._server = server
        self._reporter = Reporter(flush, server, task.task.pipeline)
        self._failed = Ended()  # what went wrong at this end
        self._places: dict[int, Partition] = {}
        self._wholes: dict[int, bytes] = {}
        self._failures: list[Failed] = []
        self._contents: Contents | None = None
        with failure_noted(flush, self._failed):
            self._delivery = msgspec.convert(flush.settings, DeliverySettings)
            self._objects = FlushObjects(flush, self._delivery, store_for(task.task.settings), self._reporter)
            self._contents = contents_for(task, self._delivery, self._failures)

    def add(self, rows: pa.RecordBatch) -> Ended | None:
        """Returns the end, when it comes."""
        ended = None
        notes = rows.column("note")
        if notes.null_count < len(notes):
            for note in notes.drop_null().to_pylist():
                noted = decode_note(note)
                if isinstance(noted, Ended):
                    ended = noted
                elif isinstance(noted, Placed):
                    self._places[noted.place] = Partition(
                        noted.values, noted.arrival_ms, noted.query_keys, noted.lambda_keys
                    )
                elif isinstance(noted, Whole):
                    self._wholes[noted.sequence] = noted.raw
                else:
                    self._failures.append(noted.failed())
            rows = rows.filter(pc.is_null(notes))
        if rows.num_rows and self._contents is not None and not self._failed.error:
            with failure_noted(self._flush, self._failed):
                self._contents.add(rows)
        return ended

    def finish(self, ended: Ended) -> pa.RecordBatch:
        """Store everything, or nothing, and report."""
        outcome = self._reporter.outcome
        verdict = ended if ended.error else self._failed
        if verdict.error:
            outcome.error, outcome.permanent, outcome.damaged = (
                verdict.error,
                verdict.permanent,
                verdict.damaged,
            )
        elif not ended.cancelled:
            with failure_noted(self._flush, outcome):
                self._store()
                self._back_up(ended.messages)
                if ended.messages:
                    self._reporter.failed(len({failed.record.sequence for failed in self._failures}))
                    self._reporter.delivered(self._flush.next, ended.messages, ended.payload_bytes)
                outcome.next = self._flush.next
        return self._told(outcome)

    def _store(self) -> None:
        assert self._contents is not None
        objects = self._objects
        stored = False
        for place, body in self._contents.bodies():
            partition = self._places.get(place, objects.whole)
            objects.put_data(body, partition, converted=self._contents.extension)
            stored = True
        if not stored and not objects.partitioned:
            objects.withdraw(objects.data_key(objects.whole, converted=self._contents.extension))
        types = objects.put_errors(map(self._as_put, self._failures))
        possible = ERROR_TYPES | {ACTIVE_PARTITION_EXCEEDED} if objects.partitioned else ERROR_TYPES
        for output_type in sorted(possible - types):
            objects.withdraw(objects.error_key(output_type))

    def _back_up(self, messages: int) -> None:
        delivery = self._delivery
        opener = Opener(delivery.data_keys, delivery.arn)
        parts = frame_parts(self._server, self._flush, self._flush.first, self._reporter.begin)
        back_up(self._objects, parts, opener, messages)

    def _as_put(self, failed: Failed) -> Failed:
        """With the record that it was a part of, if it was."""
        raw = self._wholes.get(failed.record.sequence)
        return failed if raw is None else failed._replace(record=failed.record._replace(raw=raw))

    def _told(self, outcome: Outcome) -> pa.RecordBatch:
        encoded = None
        try:
            self._reporter.finish()
        except ServerLost as error:
            logger.warning("flush %d: %s", self._flush.id, error)
            encoded = msgspec.json.encode(outcome)
        spellings = self._contents.spellings() if self._contents is not None else {}
        row = {"flush": self._flush.id, "outcome": encoded, "spellings": msgspec.json.encode(spellings)}
        return pa.RecordBatch.from_pylist([row], schema=OUTCOME_SCHEMA)
