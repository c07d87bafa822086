"""The reading end of a Spark SQL job: the records of flushes as rows, after their processors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.delivery.sealing import CannotOpen, Opener
from penstock.delivery.settings import DeliverySettings
from penstock.flush import Flush
from penstock.hive_types import Column, parse_type
from penstock.java_time import BadZone
from penstock.pipeline.delivery import Reporter, Task, failure_noted, frame_parts, settle_worker
from penstock.pipeline.destinations.base import (
    Cancelled,
    DeliveryFailed,
    FramePart,
    apply_environment,
)
from penstock.pipeline.objects import store_for
from penstock.pipeline.records.key_spelling import OddRecords
from penstock.pipeline.records.objects import FlushObjects, once_each
from penstock.pipeline.records.partitions import Places
from penstock.pipeline.records.processors import processed, processors_for
from penstock.pipeline.records.reading import Tally, record_batches
from penstock.pipeline.records.record import Failed, Record
from penstock.pipeline.records.serde import deserializer_for
from penstock.pipeline.records.sql_rows import (
    SOURCE_SCHEMA,
    WRAPPED_HEAD,
    WRAPPED_TAIL,
    Ended,
    Note,
    Placed,
    Rejected,
    SourceTask,
    Whole,
    encode_note,
)
from penstock.pipeline.server_client import ServerClient
from penstock.prefix import BadPrefix, CannotEvaluate

BATCH_ROWS = 4096
BATCH_BYTES = 4 * 1024 * 1024
DELIMITER = "AppendDelimiterToRecord"


def read_flushes(encoded_task: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of the first Spark step: encoded flushes in, rows of records out."""
    settle_worker()
    task = msgspec.json.decode(encoded_task, type=SourceTask)
    apply_environment(task.task.settings.environment)
    rows = [row for batch in batches for row in batch.column("flush").to_pylist()]
    with closing(ServerClient(task.task.server_url, task.task.token)) as server:
        for number, row in enumerate(filter(None, rows)):
            flush = msgspec.json.decode(row, type=Flush)
            yield from FlushSource(number, flush, task, server).batches()


class FlushSource:
    """The rows of one flush, and in the end what became of the reading."""

    def __init__(self, number: int, flush: Flush, task: SourceTask, server: ServerClient) -> None:
        self._number = number
        self._flush = flush
        self._task: Task = task.task
        self._odd_records = _odd_records(task)
        self._server = server
        self._tally = Tally()
        self._ended = Ended()
        self._failures: list[Failed] = []
        self._last_sequence = self._whole_sequence = -1

    def batches(self) -> Iterator[pa.RecordBatch]:
        ended = self._ended
        with failure_noted(self._flush, ended):
            try:
                yield from self._read()
            except Cancelled:
                ended.cancelled = True
            except (BadPrefix, BadZone, CannotEvaluate, CannotOpen) as error:
                raise DeliveryFailed(str(error), permanent=True) from error
        ended.messages, ended.payload_bytes = self._tally.messages, self._tally.payload_bytes
        yield self._notes([ended])

    def _read(self) -> Iterator[pa.RecordBatch]:
        reporter = Reporter(self._flush, self._server, self._task.pipeline)
        first = reporter.begin()
        delivery = msgspec.convert(self._flush.settings, DeliverySettings)
        parts = frame_parts(self._server, self._flush, first, reporter.begin)
        objects = FlushObjects(self._flush, delivery, store_for(self._task.settings), reporter)
        processors = processors_for(
            without_delimiter(delivery.config), delivery, self._task.settings, reporter.working
        )
        opener = Opener(delivery.data_keys, delivery.arn)
        if not processors and not objects.partitioned and opener.opens_nothing:
            yield from self._whole_frames(parts)
            return
        columns = self._tally.columns((part.columns() for part in parts), opener)
        records = processed(processors, record_batches(columns), self._failures.extend)
        places = Places(objects, self._task.settings.active_partitions) if objects.partitioned else None
        for batch in records:
            reporter.working()
            yield from self._records(batch, places)
        if self._failures:
            yield self._notes([Rejected.of(failed) for failed in once_each(self._failures)])

    # -- rows ---------------------------------------------------------------------------------------

    def _whole_frames(self, parts: Iterable[FramePart]) -> Iterator[pa.RecordBatch]:
        """Frames are laid out as Arrow wants them."""
        for group in _groups(parts):
            columns = [_arrays(part) for part in group]
            for part in group:
                self._tally.messages += part.messages
                self._tally.payload_bytes += len(part.data)
            yield self._batch(*(pa.concat_arrays(arrays) for arrays in zip(*columns, strict=True)))

    def _records(self, records: list[Record], places: Places | None) -> Iterator[pa.RecordBatch]:
        numbers: pa.Array | None = None
        if places is not None:
            opened = len(places.partitions)
            placed = [places.place(record) for record in records]
            self._failures += [place for place in placed if isinstance(place, Failed)]
            yield from self._opened(places, opened)
            kept = [(r, p) for r, p in zip(records, placed, strict=True) if not isinstance(p, Failed)]
            records = [record for record, _ in kept]
            numbers = pa.array([place for _, place in kept], pa.int32())
        for start in range(0, len(records), BATCH_ROWS):
            batch = records[start : start + BATCH_ROWS]
            raws, wholes = self._as_put(batch)
            if wholes:
                yield self._notes(wholes)
            yield self._batch(
                pa.array([record.sequence for record in batch], pa.int64()),
                pa.array([record.arrival_ms for record in batch], pa.int64()),
                pa.array([record.data for record in batch], pa.binary()),
                None if numbers is None else numbers[start : start + BATCH_ROWS],
                pa.array(raws, pa.binary()),
            )

    def _as_put(self, records: list[Record]) -> tuple[list[bytes | None], list[Whole]]:
        """What was put, in the rows of records that have become something else; of those that are many, in a note."""
        raws: list[bytes | None] = []
        wholes: list[Whole] = []
        following = [*(record.sequence for record in records[1:]), -1]
        for record, next_sequence in zip(records, following, strict=True):
            sequence, raw = record.sequence, record.raw
            is_part = sequence in (self._last_sequence, next_sequence)
            raws.append(None if is_part or raw == record.data else raw)
            if is_part and sequence != self._whole_sequence:
                wholes.append(Whole(sequence, raw))
                self._whole_sequence = sequence
            self._last_sequence = sequence
        return raws, wholes

    def _batch(
        self,
        sequences: pa.Array,
        arrivals: pa.Array,
        payloads: pa.Array,
        places: pa.Array | None = None,
        raws: pa.Array | None = None,
    ) -> pa.RecordBatch:
        count = len(payloads)
        zeros = pa.array(np.zeros(count, np.int32))
        columns = [
            pa.array(np.full(count, self._number, np.int32)),
            sequences,
            arrivals,
            zeros if places is None else places,
            self._odd(payloads),
            pa.nulls(count, pa.binary()),
            pa.nulls(count, pa.binary()) if raws is None else raws,
            payloads if self._odd_records is None else _wrapped(payloads),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA)

    def _odd(self, payloads: pa.Array) -> pa.Array:
        if self._odd_records is None:
            return pa.array(np.zeros(len(payloads), np.bool_))
        return self._odd_records.find(payloads)

    # -- notes --------------------------------------------------------------------------------------

    def _opened(self, places: Places, before: int) -> Iterator[pa.RecordBatch]:
        notes = [
            Placed(number, p.values, p.arrival_ms, dict(p.query_keys), dict(p.lambda_keys))
            for number, p in enumerate(places.partitions[before:], before)
        ]
        if notes:
            yield self._notes(notes)

    def _notes(self, notes: Sequence[Note]) -> pa.RecordBatch:
        texts: list[bytes] = [encode_note(note) for note in notes]
        count = len(texts)
        columns = [
            pa.array([self._number] * count, field.type)
            if field.name == "flush"
            else pa.array(texts, field.type)
            if field.name == "note"
            else pa.nulls(count, field.type)
            for field in SOURCE_SCHEMA
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA)


def _odd_records(task: SourceTask) -> OddRecords | None:
    if not task.columns:
        return None
    columns = [Column(name, parse_type(text)) for name, text in task.columns]
    return OddRecords(deserializer_for(task.deserializer, columns), task.spellings)


def _wrapped(payloads: pa.Array) -> pa.Array:
    """Spark needs twenty times as long for it."""
    return pc.binary_join_element_wise(WRAPPED_HEAD.encode(), payloads, WRAPPED_TAIL.encode(), b"")


def _groups(parts: Iterable[FramePart]) -> Iterator[list[FramePart]]:
    """Parts of frames that make a batch of a good size: a few rows at a time cost more than they weigh."""
    group: list[FramePart] = []
    rows = size_bytes = 0
    for part in parts:
        for start in range(part.start, part.stop, BATCH_ROWS):
            piece = part._replace(start=start, stop=min(start + BATCH_ROWS, part.stop))
            piece_bytes = len(piece.data)
            if group and (rows + piece.messages > BATCH_ROWS or size_bytes + piece_bytes > BATCH_BYTES):
                yield group
                group, rows, size_bytes = [], 0, 0
            group.append(piece)
            rows += piece.messages
            size_bytes += piece_bytes
    if group:
        yield group


def _arrays(part: FramePart) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Numbers, arrivals and payloads; nothing is copied."""
    frame, cut = part.frame, slice(part.start, part.stop)
    offsets, data = pa.py_buffer(frame.offsets), pa.py_buffer(frame.data)
    payloads = pa.Array.from_buffers(pa.binary(), frame.count, [None, offsets, data])
    arrivals = pa.Array.from_buffers(pa.int64(), frame.count, [None, pa.py_buffer(frame.arrivals)])
    numbers = np.arange(part.start, part.stop, dtype=np.int64) + frame.first_sequence
    return pa.array(numbers), arrivals[cut], payloads[cut]


def without_delimiter(config: Mapping[str, Any]) -> dict[str, Any]:
    """Delimiters are put behind what the query gives, not behind what it is given."""
    return _with_processors(config, lambda kind: kind != DELIMITER)


def only_delimiter(config: Mapping[str, Any]) -> dict[str, Any]:
    return _with_processors(config, lambda kind: kind == DELIMITER)


def _with_processors(config: Mapping[str, Any], wanted: Callable[[str], bool]) -> dict[str, Any]:
    processing = config.get("ProcessingConfiguration") or {}
    chosen = [one for one in processing.get("Processors") or [] if wanted(one["Type"])]
    return {**config, "ProcessingConfiguration": {**processing, "Processors": chosen}}
