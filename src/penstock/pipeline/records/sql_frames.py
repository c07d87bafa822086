"""The steps between the two Python ends of a Spark SQL job that are not the query's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.hive_types import Column as TableColumn
from penstock.pipeline.records.conversion import RowColumns
from penstock.pipeline.records.key_spelling import (
    EXACT_KEYS_MAX,
    any_other_key,
    keys_of,
    nested_texts,
    other_spellings,
)
from penstock.pipeline.records.serde import deserializer_for
from penstock.pipeline.records.sql_rows import WRAPPED_HEAD, WRAPPED_TAIL, value_name

KEPT = ("flush", "sequence", "arrival_ms", "place", "note")


class Conversion(NamedTuple):
    """What records are converted to, and how."""

    columns: tuple[TableColumn, ...]
    deserializer: dict[str, Any]
    serializer: dict[str, Any]


def with_odd(frame: DataFrame, conversion: Conversion | None, spellings: Mapping[str, str]) -> DataFrame:
    """What tells JSON that Spark would read otherwise than it should. As the reading end, for what a query has made."""
    odd = F.lit(False)
    if conversion is not None:
        deserializer = deserializer_for(conversion.deserializer, conversion.columns)
        is_wide = len(keys_of(deserializer)) > EXACT_KEYS_MAX
        others = (any_other_key if is_wide else other_spellings)(deserializer, spellings)
        for pattern in (others, nested_texts(deserializer, spellings)):
            odd = odd | F.col("payload").cast("string").rlike(pattern) if pattern is not None else odd
    return frame.withColumn("odd", odd)


def without_result(frame: DataFrame) -> DataFrame:
    """For a query that fails: no record has become anything."""
    raw = F.coalesce("raw", "payload").alias("raw")
    return frame.select(*KEPT, F.lit(True).alias("odd"), raw, F.lit(None).cast("binary").alias("payload"))


def as_they_are(frame: DataFrame) -> DataFrame:
    """Rows for objects that hold what the query gave. What was put is needed where that is nothing."""
    raw = F.when(F.col("payload").isNull(), F.col("raw"))
    return frame.select(*KEPT, F.col("payload").alias("data"), raw.alias("raw"))


def wrapped(frame: DataFrame) -> DataFrame:
    """As the reading end does it, for what a query has made."""
    parts = (F.lit(WRAPPED_HEAD.encode()), F.col("payload"), F.lit(WRAPPED_TAIL.encode()))
    return frame.withColumn("payload", F.concat(*parts))


def for_files(frame: DataFrame, columns: RowColumns) -> DataFrame:
    """Rows for files of typed columns. What is left to the writing end comes with its bytes, the others without."""
    kept = (*KEPT, "raw", "payload", "odd")
    frame = frame.select(*kept, F.col("payload").cast("string").alias("wrapped"))
    frame = frame.select(*kept, columns.parsed)
    frame = frame.select(*kept, *columns.values, columns.left)
    left = (F.col("left") | F.col("odd")) & F.col("note").isNull()
    names = [value_name(position) for position in range(len(columns.values))]
    frame = frame.select(*KEPT, "raw", "payload", *names, left.alias("left"))
    length = F.octet_length("payload") - F.lit(len(WRAPPED_HEAD) + len(WRAPPED_TAIL))
    data = F.substring("payload", F.lit(len(WRAPPED_HEAD) + 1), length)
    return frame.select(
        *KEPT,
        "left",
        F.when(F.col("left"), data).alias("data"),
        F.when(F.col("left"), F.col("raw")).alias("raw"),
        *names,
    )
