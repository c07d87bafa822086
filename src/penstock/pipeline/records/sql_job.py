"""Flushes that need Spark SQL: format conversion and queries. One narrow job for flushes of the same settings.

    flushes -> mapInArrow(read) -> the query -> JSON to columns -> mapInArrow(write) -> what is left to report

Every flush stays in one task and in its order, so it gives one object for each place, and nothing is staged anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TypeAlias

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.delivery.sealing import CannotOpen, Opener
from penstock.delivery.settings import DeliverySettings, conversion_of
from penstock.flush import Flush, Outcome
from penstock.hive_types import parse_columns
from penstock.log.frame import BadFrame
from penstock.pipeline.delivery import Task, frame_parts
from penstock.pipeline.destinations.base import DeliveryFailed
from penstock.pipeline.records.conversion import RowColumns, row_columns
from penstock.pipeline.records.joda import BadPattern
from penstock.pipeline.records.key_spelling import common_spellings
from penstock.pipeline.records.row_contents import SAMPLE_RECORDS
from penstock.pipeline.records.serde import deserializer_for, deserializer_of, serializer_of
from penstock.pipeline.records.sql_frames import (
    Conversion,
    as_they_are,
    for_files,
    with_odd,
    without_result,
    wrapped,
)
from penstock.pipeline.records.sql_rows import OUTCOME_SCHEMA, SOURCE_SCHEMA, SinkTask, SourceTask
from penstock.pipeline.records.sql_sink import write_flushes
from penstock.pipeline.records.sql_source import read_flushes
from penstock.pipeline.records.transform import Transform, analyse, query_error, transformed
from penstock.pipeline.server_client import ServerClient, ServerLost
from penstock.record_query import BadQuery
from penstock.schemas import BadSchema, SchemaCache, SchemaError, SchemaNotFound, TableName

logger = logging.getLogger(__name__)

REMEMBERED_MAX = 1000
# Not as text, which Spark would have to parse for each job.
_SOURCE, _OUTCOME = from_arrow_schema(SOURCE_SCHEMA), from_arrow_schema(OUTCOME_SCHEMA)
WARM_UP_SQL = "SELECT upper(data) AS data FROM records WHERE length(data) > 0"
# Results must not depend on where the driver runs, and no single value may fail a job.
SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
}

Batches: TypeAlias = Iterator[pa.RecordBatch]
Step: TypeAlias = Callable[[bytes, Batches], Batches]


class SqlJobs:
    """Runs such jobs on one session, and remembers what makes the next ones quicker. Threads may share it."""

    def __init__(self, spark: SparkSession, schemas: str) -> None:
        self._spark = spark
        self._schemas = SchemaCache(schemas)
        self._transforms: dict[str, Transform] = {}  # by query
        self._rows: dict[str, RowColumns] = {}  # by table, deserializer and spellings
        self._spellings: dict[str, dict[str, str]] = {}  # of keys, by delivery stream
        for name, value in SESSION.items():
            spark.conf.set(name, value)

    def run(self, flushes: list[Flush], task: Task) -> list[Outcome]:
        """One attempt at flushes of the same shape. Returns what the server has not heard."""
        delivery = msgspec.convert(flushes[0].settings, DeliverySettings)
        try:
            transform = self._transform(delivery)
            conversion = self._conversion(delivery)
        except DeliveryFailed as error:
            return [_not_tried(flush, error) for flush in flushes]
        if conversion is not None and transform is None and delivery.arn not in self._spellings:
            self._spellings[delivery.arn] = _first_spellings(flushes[0], task, delivery, conversion)
        try:
            return self._collect(flushes, task, delivery.arn, transform, conversion)
        except (PySparkException, Py4JJavaError) as error:
            reason = query_error(error) if transform is not None else None
            if reason is None:
                raise
        if len(flushes) > 1:  # the others shall not suffer
            return [outcome for flush in flushes for outcome in self.run([flush], task)]
        logger.warning(
            "%s: the records of flush %d go to the error output: %s", delivery.arn, flushes[0].id, reason
        )
        return self._collect(flushes, task, delivery.arn, transform, conversion, failure=reason)

    def warm_up(self, task: Task) -> None:
        """The first jobs are slow: better now than when somebody waits for them."""
        columns = parse_columns("id BIGINT, name STRING, value DOUBLE, at TIMESTAMP")
        conversion = Conversion(columns, {}, {})
        self._collect([], task, "", analyse(self._spark, WARM_UP_SQL), conversion)

    # -- what a job is made of ----------------------------------------------------------------------

    def _transform(self, delivery: DeliverySettings) -> Transform | None:
        sql = delivery.sql
        if not sql:
            return None
        if sql not in self._transforms:
            if len(self._transforms) >= REMEMBERED_MAX:
                self._transforms.clear()
            try:
                self._transforms[sql] = analyse(self._spark, sql)
            except BadQuery as error:
                text = f"the SparkSQL transform cannot be used: {error}; correct the query, or remove it"
                raise DeliveryFailed(text, permanent=True) from error
        return self._transforms[sql]

    def _conversion(self, delivery: DeliverySettings) -> Conversion | None:
        conversion = conversion_of(delivery.config)
        if conversion is None:
            return None
        try:
            name = TableName.of(conversion["SchemaConfiguration"], delivery.region)
            columns = self._schemas.columns(name)
            deserializer_for(deserializer_of(conversion), columns)
        except (SchemaNotFound, BadSchema, BadPattern) as error:
            raise DeliveryFailed(f"records cannot be converted: {error}", permanent=True) from error
        except SchemaError as error:
            raise DeliveryFailed(f"records cannot be converted: {error}") from error
        return Conversion(columns, deserializer_of(conversion), serializer_of(conversion))

    def _row_columns(self, conversion: Conversion, spellings: Mapping[str, str]) -> RowColumns:
        key = str((conversion.columns, conversion.deserializer, sorted(spellings.items())))
        if key not in self._rows:
            if len(self._rows) >= REMEMBERED_MAX:
                self._rows.clear()
            deserializer = deserializer_for(conversion.deserializer, conversion.columns)
            self._rows[key] = row_columns(deserializer, spellings)
        return self._rows[key]

    # -- Spark --------------------------------------------------------------------------------------

    def _collect(
        self,
        flushes: list[Flush],
        task: Task,
        arn: str,
        transform: Transform | None,
        conversion: Conversion | None,
        failure: str = "",
    ) -> list[Outcome]:
        spellings = self._spellings.get(arn, {})
        source, sink = SourceTask(task), SinkTask(task, flushes, failure=failure)
        if conversion is not None:
            sink.columns = [(name, str(type_)) for name, type_ in conversion.columns]
            sink.deserializer, sink.serializer = conversion.deserializer, conversion.serializer
            if transform is None:
                source.columns, source.deserializer = sink.columns, sink.deserializer
                source.spellings = spellings
        column = pa.array([msgspec.json.encode(flush) for flush in flushes] or [b""], pa.binary())
        # One task, which Spark would otherwise make as many of as there are rows and cores.
        frame = self._spark.createDataFrame(pa.table({"flush": column})).coalesce(1)
        frame = frame.mapInArrow(_step(read_flushes, source), _SOURCE)
        if failure:
            frame = without_result(frame)
        elif transform is not None:
            frame = transformed(frame, transform, newline=conversion is None)
            frame = with_odd(frame, conversion, spellings)
            frame = wrapped(frame) if conversion is not None else frame
        if conversion is not None:
            frame = for_files(frame, self._row_columns(conversion, spellings))
        else:
            frame = as_they_are(frame)
        rows = frame.mapInArrow(_step(write_flushes, sink), _OUTCOME).collect()
        return self._heard(flushes, rows, arn, spellings)

    def _heard(
        self, flushes: list[Flush], rows: list[Row], arn: str, spellings: dict[str, str]
    ) -> list[Outcome]:
        for row in rows:
            found = msgspec.json.decode(row.spellings, type=dict[str, str])
            if found:
                self._spellings[arn] = {**spellings, **found}
        ended = {row.flush for row in rows}
        lost = DeliveryFailed("the Spark job has lost the end of the flush")
        return [
            *(msgspec.json.decode(row.outcome, type=Outcome) for row in rows if row.outcome is not None),
            *(_not_tried(flush, lost) for flush in flushes if flush.id not in ended),
        ]


def _first_spellings(
    flush: Flush, task: Task, delivery: DeliverySettings, conversion: Conversion
) -> dict[str, str]:
    """A look at the first records of a stream that is new to us. Wrong guesses cost time and nothing else."""
    deserializer = deserializer_for(conversion.deserializer, conversion.columns)
    opener = Opener(delivery.data_keys, delivery.arn)
    some = msgspec.structs.replace(flush, next=min(flush.next, flush.first + SAMPLE_RECORDS))
    try:
        with closing(ServerClient(task.server_url, task.token)) as server:
            columns = [part.columns() for part in frame_parts(server, some, some.first, lambda: None)]
            records = [
                record for part in columns for record in opener.open(part.sequence_numbers, part.payloads)
            ]
    except (ServerLost, BadFrame, CannotOpen):
        return {}  # whoever delivers the flush will meet that too, and report it
    return common_spellings(deserializer, records)


def _not_tried(flush: Flush, error: DeliveryFailed) -> Outcome:
    return Outcome(
        flush.id, flush.attempt, flush.first, error=str(error), permanent=error.permanent, done=True
    )


def _step(function: Step, task: SourceTask | SinkTask) -> Callable[[Batches], Batches]:
    """A function of one argument, which is what Spark wants."""
    encoded = msgspec.json.encode(task)

    def step(batches: Batches) -> Batches:
        return function(encoded, batches)

    return step
