"""Unusual records, tables and queries, through Spark: each record ends in one place, and none holds up others."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.records.test_sql_job import Site, Stream, conversion


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("oddities"), spark)
    yield made
    made.close()


def failed(stream: Stream, output_type: str) -> list[bytes]:
    return [base64.b64decode(line["rawData"]) for line in stream.errors(output_type)]


def test_text_that_would_end_what_a_record_is_wrapped_in(site: Site) -> None:
    site.table("db", "wrapped", "id INT, objects ARRAY<STRUCT<x: INT>>")
    stream = site.stream(**conversion(table="wrapped"))
    bad = [
        b'{"id":1},{}]} and more',
        b'{"id":1},{}]}',
        b'{"id":1}],"objects":[{"id":9}',
        b'{"id":1},{"id":2}',
        b'{"id":1}]',
        b'{"id":1},',
    ]
    stream.deliver({"id": 0, "objects": [{"x": 1}, {}]}, *bad)
    assert stream.rows() == [{"id": 0, "objects": [{"x": 1}, {"x": None}]}]
    assert failed(stream, "format-conversion-failed") == bad


OUR_NAMES = [
    "flush",
    "sequence",
    "arrival_ms",
    "place",
    "note",
    "odd",
    "raw",
    "payload",
    "data",
    "left",
    "value0",
]
OUR_NAMES += ["value1", "wrapped", "parsed", "corrupt", "objects", "~o", "~e", "__penstock", "outcome"]


def test_columns_that_are_named_as_ours(site: Site) -> None:
    site.table("db", "ours", ", ".join(f"`{name}` INT" for name in OUR_NAMES))
    stream = site.stream(**conversion(table="ours"))
    record = {name: number for number, name in enumerate(OUR_NAMES)}
    stream.deliver(record, {**record, "note": "x"})
    assert stream.rows() == [record]
    assert len(failed(stream, "format-conversion-failed")) == 1


def test_names_with_odd_characters(site: Site) -> None:
    site.table(
        "db",
        "odd",
        "`a.b` INT, `c d` INT, `é` INT, `x``y` INT, s STRUCT<`t.u`: INT, `v w`: INT, `b``t`: INT>",
    )
    stream = site.stream(**conversion(table="odd"))
    record = {"a.b": 1, "c d": 2, "é": 3, "x`y": 4, "s": {"t.u": 5, "v w": 6, "b`t": 7}}
    stream.deliver(record)
    assert stream.rows() == [record]


@pytest.mark.parametrize("mapped", [{"x": "A", "y": "a"}, {"x": "k", "y": "k"}], ids=["case", "same"])
def test_keys_that_mappings_bring_together(site: Site, mapped: dict[str, str]) -> None:
    """In the table and in a struct."""
    site.table("db", "mapped", "x INT, y STRING, s STRUCT<x: INT, y: STRING>")
    openx: dict[str, Any] = {"CaseInsensitive": False, "ColumnToJsonKeyMappings": mapped}
    stream = site.stream(**conversion(table="mapped", OpenXJsonSerDe=openx))
    keys = dict.fromkeys(mapped.values(), 5)
    stream.deliver({**keys, "s": keys})
    assert stream.rows() == [{"x": 5, "y": "5", "s": {"x": 5, "y": "5"}}]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT xpath_string(data, 'a/b') AS data FROM records", "Error loading expression"),
        ("SELECT format_string('%d', data) AS data FROM records", "IllegalFormatConversionException"),
        ("SELECT split(data, '(') AS data FROM records", "Unclosed group"),
        ("SELECT data FROM records WHERE data RLIKE '('", "Unclosed group"),
        ("SELECT array_repeat(data, 2147483647) AS data FROM records", "2147483647 elements"),
        ("SELECT sequence(1, 3000000000) AS x FROM records", "3000000000 elements"),
        ("SELECT to_timestamp(data, 'YYYY-ww') AS x FROM records", "DATETIME_PATTERN"),
    ],
)
def test_whatever_a_query_runs_into_holds_up_nothing(site: Site, sql: str, reason: str) -> None:
    stream = site.stream(sql=sql)
    stream.deliver(b"a", b"b")
    assert failed(stream, "processing-failed") == [b"a", b"b"]
    assert all(reason in line["errorMessage"] for line in stream.errors("processing-failed"))
