"""What rows become on their way into objects: bytes as they are, or files of typed columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.delivery.settings import DeliverySettings
from penstock.hive_types import Column, parse_type
from penstock.pipeline.records.columnar import ColumnarFile, arrow_schema, file_for
from penstock.pipeline.records.compression import Buffer
from penstock.pipeline.records.deserializer import Row
from penstock.pipeline.records.error_output import FORMAT_CONVERSION_FAILED, PROCESSING_FAILED
from penstock.pipeline.records.json_text import ConversionFailed
from penstock.pipeline.records.key_spelling import common_spellings
from penstock.pipeline.records.processors import processors_for
from penstock.pipeline.records.processors.base import Processor
from penstock.pipeline.records.record import Failed, Record
from penstock.pipeline.records.serde import deserializer_for
from penstock.pipeline.records.sql_rows import SinkTask, value_name
from penstock.pipeline.records.sql_source import only_delimiter

NULL_RESULT = "SparkSQL.NullResult"
NULL_RESULT_TEXT = "The query gave NULL for this record. To leave a record out, use WHERE."
QUERY_FAILED = "SparkSQL.QueryFailed"
SAMPLE_RECORDS = 200


class Contents(ABC):
    """Of the objects of one flush, by the place of each."""

    extension = ""  # of converted data

    def __init__(self, task: SinkTask, failures: list[Failed]) -> None:
        self._task = task
        self._failures = failures

    @abstractmethod
    def add(self, rows: pa.RecordBatch) -> None:
        """Rows that are records; those that fail are added to the failures."""

    @abstractmethod
    def bodies(self) -> Iterator[tuple[int, Iterable[Buffer]]]:
        """Each place with what its object holds."""

    def spellings(self) -> dict[str, str]:
        """How the records that were not for Spark spell their keys, if they were most."""
        return {}

    def _reject_nulls(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows whose query gave nothing."""
        missing = pc.is_null(rows.column("data"))
        if self._task.columns:
            missing = pc.and_(missing, rows.column("left"))
        if not pc.any(missing).as_py():
            return rows
        code, text = (
            (QUERY_FAILED, self._task.failure) if self._task.failure else (NULL_RESULT, NULL_RESULT_TEXT)
        )
        for record in _records(rows.filter(missing)):
            self._failures.append(Failed(record, PROCESSING_FAILED, code, text))
        return rows.filter(pc.invert(missing))


class PlainRows(Contents):
    """The bytes of each row, one behind the other, with a delimiter if somebody wants that."""

    def __init__(self, task: SinkTask, failures: list[Failed], delimiter: Processor | None) -> None:
        super().__init__(task, failures)
        self._delimiter = delimiter
        self._chunks: dict[int, list[Buffer]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        for place, group in _by_place(self._reject_nulls(rows)):
            chunks = self._chunks.setdefault(place, [])
            if self._delimiter is None:
                chunks.append(_joined(group.column("data")))
            else:
                delimited, _ = self._delimiter.process(list(_records(group)))
                chunks.append(b"".join(record.data for record in delimited))

    def bodies(self) -> Iterator[tuple[int, Iterable[Buffer]]]:
        yield from self._chunks.items()


class ConvertedRows(Contents):
    """Rows that Spark has typed, and the rest, which is judged here one by one. `data` holds only the latter."""

    def __init__(self, task: SinkTask, failures: list[Failed]) -> None:
        super().__init__(task, failures)
        self._columns = [Column(name, parse_type(text)) for name, text in task.columns]
        self._deserializer = deserializer_for(task.deserializer, self._columns)
        self._schema = arrow_schema(self._columns)
        self.extension = file_for(task.serializer, self._columns).extension
        self._files: dict[int, ColumnarFile] = {}
        self._rows = 0
        self._left_rows = 0
        self._sample: list[bytes] = []

    def add(self, rows: pa.RecordBatch) -> None:
        rows = self._reject_nulls(rows)
        self._rows += rows.num_rows
        for place, group in _by_place(rows):
            left = group.column("left")
            if pc.any(left).as_py():
                self._add_left(place, group.filter(left))
                group = group.filter(pc.invert(left))
            if group.num_rows:
                values = [group.column(value_name(position)) for position in range(len(self._columns))]
                self._file(place).add(pa.Table.from_arrays(values, self._schema.names))

    def _add_left(self, place: int, rows: pa.RecordBatch) -> None:
        converted: list[Row] = []
        for record in _records(rows):
            try:
                converted += self._deserializer.rows(record.data)
            except ConversionFailed as error:
                self._failures.append(Failed(record, FORMAT_CONVERSION_FAILED, error.code, str(error)))
            if len(self._sample) < SAMPLE_RECORDS:
                self._sample.append(record.data)
        self._left_rows += rows.num_rows
        if converted:
            self._file(place).add(pa.Table.from_pylist(converted, schema=self._schema))

    def _file(self, place: int) -> ColumnarFile:
        if place not in self._files:
            self._files[place] = file_for(self._task.serializer, self._columns)
        return self._files[place]

    def bodies(self) -> Iterator[tuple[int, Iterable[Buffer]]]:
        for place, file in self._files.items():
            yield place, [file.finish()]

    def spellings(self) -> dict[str, str]:
        if 2 * self._left_rows < self._rows:
            return {}
        return common_spellings(self._deserializer, self._sample)


def contents_for(task: SinkTask, delivery: DeliverySettings, failures: list[Failed]) -> Contents:
    if task.columns:
        return ConvertedRows(task, failures)
    delimiters = processors_for(only_delimiter(delivery.config), delivery, task.task.settings)
    return PlainRows(task, failures, delimiters[0] if delimiters else None)


def _joined(values: pa.Array) -> memoryview:
    """The bytes of an array without nulls lie behind each other already."""
    offsets, data = values.buffers()[1:]
    if len(values) == 0 or data is None:
        return memoryview(b"")
    bounds = memoryview(offsets).cast("i")
    return memoryview(data)[bounds[values.offset] : bounds[values.offset + len(values)]]


def _records(rows: pa.RecordBatch) -> Iterator[Record]:
    columns = (rows.column(name).to_pylist() for name in ("sequence", "arrival_ms", "data", "raw"))
    for sequence, arrival_ms, data, raw in zip(*columns, strict=True):
        yield Record(sequence, arrival_ms, data, data if raw is None else raw)


def _by_place(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    places = rows.column("place")
    found = pc.unique(places).to_pylist()
    if len(found) == 1:
        yield found[0], rows
        return
    for place in found:
        yield place, rows.filter(pc.equal(places, place))
