"""A SparkSQL transform: the query of a delivery stream over its records, one row for each."""

from __future__ import annotations

import re
from typing import NamedTuple

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    ParseException,
    PySparkException,
    SparkNoSuchElementException,
    SparkRuntimeException,
    SparkUpgradeException,
    UnsupportedOperationException,
)
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from penstock.record_query import BadQuery, RecordQuery, parse_query

HIDDEN = "__penstock"
RESULT = "__result"
RESULT_NAMES = ("data", "value")
EMPTY = "flush int, sequence bigint, arrival_ms bigint, place int, note binary, raw binary, payload binary"

# Of a query over data that it cannot take. What Spark has not foreseen is Java's own, in the report of a task.
QUERY_ERRORS = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    SparkNoSuchElementException,
    SparkRuntimeException,
    SparkUpgradeException,
    UnsupportedOperationException,
)
INTERNAL_ERROR_STATE = "XX000"
_JAVA_PACKAGES = r"java\.(?:lang|math|text|time|util)|javax\.xml|org\.apache\.spark\.sql"
_JAVA_ERROR = re.compile(rf"\(TID \d+\) \([^)]*\): ((?:{_JAVA_PACKAGES})\.[\w.$]+(?:: [^\n]*)?)")
_NOT_THE_QUERY = ("OutOfMemory", "Interrupted", "IllegalState", "ClassNotFound", "NoClassDef", "concurrent")


class Transform(NamedTuple):
    """A query that has been analysed."""

    query: RecordQuery
    names: tuple[str, ...]
    text_column: str | None  # what holds the new bytes; if there is none, rows become JSON objects
    several: bool  # that column is an array: a record for each of its elements


def analyse(spark: SparkSession, sql: str) -> Transform:
    """Raises BadQuery, which says what is wrong with the query."""
    query = parse_query(sql)
    nothing = spark.createDataFrame([], EMPTY)
    try:
        names = tuple(_visible(nothing, query).selectExpr(*query.items).columns)
        if len(set(names)) < len(names):
            raise BadQuery("two columns of the result have the same name; rename one with AS")
        unnamed = Transform(query, names, None, several=False)
        [result] = _with_result(nothing, unnamed).select(RESULT).schema.fields
        assert isinstance(result.dataType, T.StructType)
        fields = result.dataType.fields
        text, several = _text_column(fields)
        transform = Transform(query, names, text, several)
        transformed(nothing, transform, newline=True).columns  # noqa: B018 - analyses it
    except (AnalysisException, ParseException) as error:
        raise BadQuery(_reason(error)) from error
    return transform


def transformed(frame: DataFrame, transform: Transform, *, newline: bool) -> DataFrame:
    """The same columns, `payload` with what the query gives and `raw` with what was put; rows with notes pass."""
    frame = _with_result(frame, transform)
    note, result = F.col(f"{HIDDEN}.note"), F.col(RESULT)
    frame = frame.where(note.isNotNull() | result.isNotNull())
    if transform.text_column is None:
        text = F.to_json(result)
        payload = F.concat(text, F.lit("\n")) if newline else text
    else:
        payload = result.getField(transform.text_column)
    if transform.several:
        frame = frame.where(note.isNotNull() | payload.isNull() | (F.size(payload) > 0))
        payload = F.explode_outer(payload)
    frame = frame.select(HIDDEN, payload.alias("payload"))
    return frame.select(f"{HIDDEN}.*", F.col("payload").cast("binary").alias("payload"))


def query_error(error: Exception) -> str | None:
    """What the query ran into, if that is what has failed a job: data that it cannot take, or its own raise_error."""
    if isinstance(error, PySparkException):
        state = error.getSqlState() or ""
        if state.startswith("22") or (isinstance(error, QUERY_ERRORS) and state != INTERNAL_ERROR_STATE):
            return _reason(error)
    found = _JAVA_ERROR.search(str(error))
    if found is None or any(name in found[1].partition(":")[0] for name in _NOT_THE_QUERY):
        return None
    return found[1][:1000]


def _visible(frame: DataFrame, query: RecordQuery) -> DataFrame:
    """The view `records`, and beside it what must not get lost."""
    hidden = F.struct(
        "flush",
        "sequence",
        "arrival_ms",
        "place",
        "note",
        F.coalesce("raw", "payload").alias("raw"),
    )
    return frame.select(
        hidden.alias(HIDDEN),
        F.col("payload").cast("string").alias("data"),
        "payload",
        F.col("sequence").alias("sequence_number"),
        F.timestamp_millis(F.col("arrival_ms")).alias("arrival"),
    ).alias(query.alias)


def _with_result(frame: DataFrame, transform: Transform) -> DataFrame:
    query = transform.query
    items = [F.expr(item).alias(name) for item, name in zip(query.items, transform.names, strict=True)]
    return _visible(frame, query).select(HIDDEN, F.when(_wanted(query), F.struct(*items)).alias(RESULT))


def _wanted(query: RecordQuery) -> Column:
    is_record = F.col(f"{HIDDEN}.note").isNull()
    return is_record if query.condition is None else is_record & F.expr(f"({query.condition}\n)")


def _text_column(fields: list[T.StructField]) -> tuple[str | None, bool]:
    if len(fields) != 1 or fields[0].name.lower() not in RESULT_NAMES:
        return None, False
    kind = fields[0].dataType
    if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StringType | T.BinaryType):
        return fields[0].name, True
    return (fields[0].name if isinstance(kind, T.StringType | T.BinaryType) else None), False


def _reason(error: PySparkException) -> str:
    """The first paragraph: what follows are plans and stack traces."""
    text = str(error).partition("\n\n")[0].partition(" SQLSTATE:")[0].partition("\n== SQL")[0]
    if error.getCondition() and str(error.getCondition()).startswith("UNSUPPORTED_GENERATOR"):
        text += "; to make several records of one, give data an array instead of exploding it"
    if error.getCondition() in ("MISSING_GROUP_BY", "MISSING_AGGREGATION"):
        text += "; aggregates bring several records together, which a transform cannot"
    return text.strip()[:1000]
