"""JSON to rows: what AWS has been seen to do, and that Spark SQL does the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.hive_types import Column, parse_columns, parse_type
from penstock.pipeline.records.columnar import arrow_schema
from penstock.pipeline.records.conversion import row_columns
from penstock.pipeline.records.deserializer import Deserializer, Row
from penstock.pipeline.records.joda import BadPattern, JodaPattern
from penstock.pipeline.records.json_text import ConversionFailed, MalformedData
from penstock.pipeline.records.key_spelling import EXACT_KEYS_MAX, OddRecords, common_spellings
from penstock.pipeline.records.serde import deserializer_for
from penstock.pipeline.records.sql_frames import wrapped

OPENX: dict[str, Any] = {"OpenXJsonSerDe": {}}
HIVE: dict[str, Any] = {"HiveJsonSerDe": {}}
PARSE, MALFORMED = "DataFormatConversion.ParseError", "DataFormatConversion.MalformedData"


def deserializer(ddl: str, serde: Mapping[str, Any]) -> Deserializer:
    return deserializer_for(serde, parse_columns(ddl))


def value_of(type_: str, text: str, serde: Mapping[str, Any] = OPENX) -> Any:
    [row] = deserializer_for(serde, [Column("c", parse_type(type_))]).rows(f'{{"c":{text}}}'.encode())
    return row["c"]


def failure_of(type_: str, text: str, serde: Mapping[str, Any] = OPENX) -> tuple[str, str]:
    with pytest.raises(ConversionFailed) as caught:
        value_of(type_, text, serde)
    return caught.value.code, str(caught.value)


# -- OpenX ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("int", "null", None),
        ("int", '"12"', 12),
        ("bigint", "9223372036854775807", 2**63 - 1),
        ("double", '"1.5"', 1.5),
        ("double", "3", 3.0),
        ("boolean", '"TRUE"', True),
        ("decimal(5,2)", "1.005", Decimal("1.01")),
        ("decimal(5,2)", '"12"', Decimal("12.00")),
        ("string", "12", "12"),
        ("string", "1.50", "1.50"),
        ("string", "true", "true"),
        ("string", '{"Nested": {"Inner":[1, null]}}', '{"nested":{"inner":[1,null]}}'),
        ("string", '["a", {"B":1}]', '["a",{"b":1}]'),
        ("varchar(3)", '"abcdef"', "abc"),
        ("date", '"2026-9-7"', date(2026, 9, 7)),
        ("binary", '"aGk="', b"hi"),
        ("array<string>", '"solo"', ["solo"]),
        ("array<string>", "[1, null, [2]]", ["1", None, "[2]"]),
        ("array<struct<sku:string,qty:int>>", '{"sku":"x","qty":"1"}', [{"sku": "x", "qty": 1}]),
        ("struct<name:string,age:int>", '["Zoe", 9, "more"]', {"name": "Zoe", "age": 9}),
        ("struct<name:string,age:int>", '["Zoe"]', {"name": "Zoe", "age": None}),
        ("struct<name:string,age:int>", '{"NAME":"Bob","extra":1}', {"name": "Bob", "age": None}),
        ("struct<name:string>", "{}", {"name": None}),
        ("map<string,int>", '{"MixedKey":"1","b":null}', [("mixedkey", 1), ("b", None)]),
        ("map<int,string>", '{"7":"x"}', [(7, "x")]),
    ],
)
def test_openx_reads_what_it_can(type_: str, text: str, expected: Any) -> None:
    assert value_of(type_, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"2026-09-07T12:00:02Z"', datetime(2026, 9, 7, 12, 0, 2)),
        ('"2026-09-07T12:00:02.123456789Z"', datetime(2026, 9, 7, 12, 0, 2, 123456)),
        ('"2026-9-7 1:2:3"', datetime(2026, 9, 7, 1, 2, 3)),
        ('"2026-09-07 12:00:02.5"', datetime(2026, 9, 7, 12, 0, 2, 500000)),
        ("1518033528", datetime(2018, 2, 7, 19, 58, 48)),
        ("1518033528123", datetime(2018, 2, 7, 19, 58, 48, 123000)),
        ("1518033528.123", datetime(2018, 2, 7, 19, 58, 48, 123000)),
        ('"1518033528"', datetime(2018, 2, 7, 19, 58, 48)),
        ('"1518033528123"', datetime(2018, 2, 7, 19, 58, 48, 123000)),
        ("-1", datetime(1969, 12, 31, 23, 59, 59)),
    ],
)
def test_openx_timestamps(text: str, expected: datetime) -> None:
    assert value_of("timestamp", text) == expected


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        ("double", '"oops"', 'For input string: "oops"'),
        ("int", '"1.5"', 'For input string: "1.5"'),
        ("int", "2147483648", 'For input string: "2147483648"'),
        ("tinyint", "128", 'For input string: "128"'),
        ("decimal(5,2)", "1234.5", 'For input string: "1234.5"'),
        ("boolean", "1", 'For input string: "1"'),
        ("timestamp", '"2026-9-7T12:00:02Z"', 'For input string: "2026-9-7T12:00:02Z"'),
        ("timestamp", '"2026-02-30 00:00:00"', 'For input string: "2026-02-30 00:00:00"'),
        ("date", '"2026-13-01"', 'For input string: "2026-13-01"'),
        ("binary", '"a b"', 'For input string: "a b"'),
        ("struct<a:int>", "42", "Data is not JSONObject  but java.lang.Long with value 42"),
        ("array<struct<q:int>>", '[{"q":"oops"}]', 'For input string: "oops"'),
        ("map<string,int>", "[1]", "A map column cannot hold a JSON array."),
        ("int", "{}", "A column of type int cannot hold a JSON object."),
    ],
)
def test_openx_refusals(type_: str, text: str, message: str) -> None:
    assert failure_of(type_, text) == (MALFORMED, f"Data does not match the schema. {message}")


@pytest.mark.parametrize(
    ("record", "options", "expected"),
    [
        ('{"ID":1,"Extra":2}', {}, {"id": 1, "a_b": None}),
        ('{"ID":1}', {"CaseInsensitive": False}, {"id": None, "a_b": None}),
        ('{"a.b":1}', {}, {"id": None, "a_b": None}),
        ('{"A.B":1}', {"ConvertDotsInJsonKeysToUnderscores": True}, {"id": None, "a_b": 1}),
        ('{"TS":1,"id":2}', {"ColumnToJsonKeyMappings": {"id": "ts"}}, {"id": 1, "a_b": None}),
        ('{"id":1,"Id":2}', {}, {"id": 2, "a_b": None}),
    ],
)
def test_keys_of_columns(record: str, options: dict[str, Any], expected: Row) -> None:
    made = deserializer("id INT, a_b INT", {"OpenXJsonSerDe": options})
    assert made.rows(record.encode()) == [expected]


def test_map_keys_stay_when_case_counts() -> None:
    assert value_of("map<string,int>", '{"K":1}', {"OpenXJsonSerDe": {"CaseInsensitive": False}}) == [
        ("K", 1)
    ]


# -- Hive -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("string", "12", "12"),
        ("array<string>", "[1, null]", ["1", None]),
        ("struct<name:string,age:int>", '{"NAME":"Dan","extra":1}', {"name": "Dan", "age": None}),
        ("map<string,int>", '{"MixedKey":1}', [("MixedKey", 1)]),
        ("int", "1.9", 1),
        ("decimal(5,2)", '"1.5"', Decimal("1.50")),
        ("timestamp", '"2026-09-07 12:00:02.5"', datetime(2026, 9, 7, 12, 0, 2, 500000)),
    ],
)
def test_hive_reads_what_is_of_the_type(type_: str, text: str, expected: Any) -> None:
    assert value_of(type_, text, HIVE) == expected


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        (
            "array<string>",
            '"solo"',
            "Data does not match the schema. java.io.IOException: Start of Array expected",
        ),
        (
            "struct<a:int>",
            "42",
            "Data does not match the schema. java.io.IOException: Start of Object expected",
        ),
        (
            "map<string,int>",
            "[1]",
            "Data does not match the schema. java.io.IOException: Start of Object expected",
        ),
        (
            "int",
            '"7"',
            "Data does not match the schema. Current token (VALUE_STRING) not numeric, can not use numeric value "
            "accessors",
        ),
        (
            "string",
            '{"a":1}',
            "One or more fields have incorrect format. Exception when validating field (root)",
        ),
        (
            "array<string>",
            "[[1]]",
            "One or more fields have incorrect format. Exception when validating field (root)",
        ),
        (
            "boolean",
            '"true"',
            "Data does not match the schema. Current token (VALUE_STRING) not of boolean type",
        ),
        ("timestamp", "1518033528", 'Data does not match the schema. For input string: "1518033528"'),
    ],
)
def test_hive_refusals(type_: str, text: str, message: str) -> None:
    assert failure_of(type_, text, HIVE) == (MALFORMED, message)


@pytest.mark.parametrize(
    ("formats", "text", "expected"),
    [
        (["millis"], "1518033528123", datetime(2018, 2, 7, 19, 58, 48, 123000)),
        (["yyyy-MM-dd'T'HH:mm:ss"], '"2026-09-07T12:00:02"', datetime(2026, 9, 7, 12, 0, 2)),
        (["yyyy/MM/dd", "millis"], '"1000"', datetime(1970, 1, 1, 0, 0, 1)),
        (["dd MMM yy hh:mm a Z"], '"07 Sep 26 01:30 PM +0200"', datetime(2026, 9, 7, 11, 30)),
        (["EEE, d MMMM yyyy k"], '"Mon, 7 September 2026 24"', datetime(2026, 9, 7)),
    ],
)
def test_hive_timestamp_formats(formats: list[str], text: str, expected: datetime) -> None:
    assert value_of("timestamp", text, {"HiveJsonSerDe": {"TimestampFormats": formats}}) == expected


@pytest.mark.parametrize("pattern", ["yyyy-QQ", "yyyy yyyy", "yyyy 'open"])
def test_patterns_that_cannot_be_used(pattern: str) -> None:
    with pytest.raises(BadPattern, match="the timestamp format"):
        JodaPattern(pattern)


# -- records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "ids"),
    [
        (b'{"id":1}', [1]),
        (b' {"id":1}\n', [1]),
        (b'{"id":1}{"id":2}\n{"id":3} ', [1, 2, 3]),
        (b'{"id":1,"s":"\xff"}', [1]),
    ],
)
def test_objects_of_a_record(record: bytes, ids: list[int]) -> None:
    assert [row["id"] for row in deserializer("id INT, s STRING", OPENX).rows(record)] == ids


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (b"", PARSE),
        (b"not json", PARSE),
        (b'{"id":1', PARSE),
        (b'{"id":1} x', PARSE),
        (b'{"id":1},{"id":2}', PARSE),
        (b"{'id':1}", PARSE),
        (b'{"id":NaN}', PARSE),
        (b'{"id":01}', PARSE),
        (b"[" * 100_000, PARSE),
        (b'[{"id":1}]', MALFORMED),
        (b"null", MALFORMED),
        (b'{"id":1} 5', MALFORMED),
    ],
)
def test_records_that_are_no_objects(record: bytes, code: str) -> None:
    with pytest.raises(ConversionFailed) as caught:
        deserializer("id INT", OPENX).rows(record)
    assert caught.value.code == code
    intros = {PARSE: "Encountered malformed JSON. ", MALFORMED: "Data does not match the schema. "}
    assert str(caught.value).startswith(intros[code])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcABC"), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "A", "b", "c"]), json_values), min_size=1, max_size=3))
def test_any_record_is_converted_or_refused(objects: list[dict[str, Any]]) -> None:
    record = "\n".join(map(json.dumps, objects)).encode()
    made = deserializer("a BIGINT, b ARRAY<STRING>, c STRUCT<a: TIMESTAMP, b: DECIMAL(10,2)>", OPENX)
    try:
        rows = made.rows(record)
    except MalformedData:
        return
    assert pa.Table.from_pylist(rows, schema=arrow_schema(made.columns)).num_rows == len(objects)


# -- spellings --------------------------------------------------------------------------------------

spelt = st.text(st.sampled_from("aAbB_."), min_size=3, max_size=3)


@settings(deadline=None)
@given(spelt, st.booleans(), st.booleans(), st.sampled_from(["a_b", "A_b"]), st.booleans())
def test_only_other_spellings_are_found(
    key: str, ignore_case: bool, dots: bool, known: str, is_wide: bool
) -> None:
    options = {"CaseInsensitive": ignore_case, "ConvertDotsInJsonKeysToUnderscores": dots}
    others = ", ".join(f"c{number} INT" for number in range(EXACT_KEYS_MAX if is_wide else 1))
    made = deserializer(f"a_b INT, {others}", {"OpenXJsonSerDe": options})
    known = known if ignore_case else "a_b"
    payloads = pa.array([json.dumps({"x": 1, key: 1}).encode(), b'{"c0":1}'], pa.binary())
    found = OddRecords(made, {"a_b": known}).find(payloads).to_pylist()
    assert found == [made.keys.canonical(key) == "a_b" and key != known, False]


@pytest.mark.parametrize("name", ["plain", "odd name", "a-b+c", "größe", "d.e", "[x]"])
def test_any_name_can_be_looked_for(name: str) -> None:
    made = deserializer_for(OPENX, [Column(name, parse_type("string"))])
    payloads = [{name: "x"}, {name: {"nested": 1}}, {name: 1.5}, {"other": {}}]
    encoded = pa.array([json.dumps(each, ensure_ascii=False).encode() for each in payloads], pa.binary())
    assert OddRecords(made, {}).find(encoded).to_pylist() == [False, True, True, False]


def test_the_most_common_spelling_is_learned() -> None:
    made = deserializer("deviceid STRING, at STRUCT<lat: DOUBLE>", OPENX)
    records = [b'{"deviceId":"x","at":{"Lat":1}}'] * 3 + [b'{"DEVICEID":"x","other":1}']
    assert common_spellings(made, records) == {"deviceid": "deviceId", "at": "at", "lat": "Lat"}


# -- Spark ------------------------------------------------------------------------------------------

DDL = """
  b BOOLEAN, t TINYINT, i INT, l BIGINT, f FLOAT, d DOUBLE, de DECIMAL(5,2), s STRING, v VARCHAR(3), ts TIMESTAMP,
  da DATE, bi BINARY, a ARRAY<INT>, at ARRAY<TIMESTAMP>, ast ARRAY<STRING>, m MAP<STRING,INT>, mi MAP<INT,STRING>,
  st STRUCT<x: INT, y: STRING, z: ARRAY<STRUCT<q: TIMESTAMP, w: STRING>>>
"""
VALUES = [
    *(
        "null",
        "1",
        "-1",
        "127",
        "128",
        "2147483648",
        "9223372036854775808",
        "1.0",
        "1.5",
        "1e2",
        "1e400",
        "-0",
    ),
    *("999.995", "999.994", '"1"', '" 1"', '"1.5"', '"oops"', '""', '"TRUE"', "true", '"abcdef"', '"NaN"'),
    *(
        '{"k":1}',
        '{"K":"1","k":2}',
        '{"x":1,"Y":"u"}',
        '{"x":"5"}',
        "[1,2]",
        '[1,"2",null]',
        '["a",["b"]]',
        "[]",
    ),
    *(
        "{}",
        "1518033528",
        "1518033528123",
        "1518033528.123",
        "1518033528.1234567",
        '"1518033528"',
        "1e9",
        "1e-5",
    ),
    *(
        '"2026-09-07T12:00:02Z"',
        '"2026-9-7T12:00:02Z"',
        '"2026-9-7 1:2:3"',
        '"2026-09-07 12:00:02.123456789"',
    ),
    *('"2026-02-30 00:00:00"', '"2026-2-3"', '"2026-02-30"', '"aGk="', '"aGk"', '"é😀xyz"', '"+5"', '"1e5"'),
    *(
        '[{"q":1,"w":"x"}]',
        '{"z":[{"q":"2026-09-07T12:00:02Z","w":{"a":1}}]}',
        '{"z":[{"q":"x"}]}',
        '{"1":"a"}',
    ),
    *(
        "99999999999",
        "999999999999",
        "253402300800",
        '"0000-01-01 00:00:00"',
        '["1.5", 1.5]',
        '"\\ud83d\\ude00"',
    ),
]
RECORDS = [
    *(
        b'{"i":1}{"i":2}',
        b'{"i":1} ',
        b'{"i":1},{"i":2}',
        b'[{"i":1}]',
        b"",
        b"null",
        b'{"i":1}}',
        b'{"i":1} x',
    ),
    *(
        b'{"i":}',
        b"{'i':1}",
        b'{"i":1,"i":2}',
        b'{"I":1}',
        b"\xff",
        b'{"s":"a\nb"}',
        b'{"i":NaN}',
        b'{"i":01}',
    ),
    *(
        b'{"i":1,}',
        b'"x"',
        b'{"d":1e5,"unknown":{"x":[1,2,{"y":3}]}}',
        b'{"s":1e5}',
        b'{"st":{"x":1,"extra":1}}',
    ),
    *(b'\xef\xbb\xbf{"i":1}', b'{"i":1} {"I":2}'),
    *(b'{"i":1}],"x":[{"i":2}', b'{"i":1}]}', b'{"s":"cut \\ud83d"}', b'{"i":1e99999999999999999999}'),
    *(b'{"s":' + b"[" * 900 + b"]" * 900 + b"}", b'{"x":' + b"[" * 5000 + b"]" * 5000 + b',"i":1}'),
]
SERDES = [
    OPENX,
    HIVE,
    {"HiveJsonSerDe": {"TimestampFormats": ["yyyy-MM-dd'T'HH:mm:ss'Z'", "millis"]}},
    {"HiveJsonSerDe": {"TimestampFormats": ["EEE d MMM yyyy", "yyyy-MM-dd"]}},
    {"OpenXJsonSerDe": {"CaseInsensitive": False}},
    {"OpenXJsonSerDe": {"ConvertDotsInJsonKeysToUnderscores": True, "ColumnToJsonKeyMappings": {"i": "l"}}},
]


def by_spark(spark: SparkSession, made: Deserializer, records: list[bytes]) -> tuple[list[Row], list[bool]]:
    payloads = pa.array(records, pa.binary())
    odd = OddRecords(made, {}).find(payloads)
    frame = spark.createDataFrame(pa.table({"payload": payloads})).coalesce(1)
    columns = row_columns(made, {})
    frame = wrapped(frame).select(F.col("payload").cast("string").alias("wrapped"))
    found = frame.select(columns.parsed).select(*columns.values, columns.left).toArrow()
    schema = arrow_schema(made.columns)
    rows = found.drop_columns("left").rename_columns(schema.names).cast(schema).to_pylist()
    return rows, pc.or_(found["left"], odd).to_pylist()


def one_by_one(made: Deserializer, record: bytes) -> list[Row] | str:
    try:
        rows: list[Row] = pa.Table.from_pylist(
            made.rows(record), schema=arrow_schema(made.columns)
        ).to_pylist()
        return rows
    except ConversionFailed as error:
        return str(error)


@pytest.mark.parametrize("serde", SERDES, ids=str)
def test_spark_gives_the_same_rows(spark: SparkSession, serde: dict[str, Any]) -> None:
    made = deserializer(DDL, serde)
    records = [
        f'{{"{column.name}":{value}}}'.encode() for column in made.columns for value in VALUES
    ] + RECORDS
    rows, left = by_spark(spark, made, records)
    for record, row, is_left in zip(records, rows, left, strict=True):
        if not is_left:
            assert repr(one_by_one(made, record)) == repr([row]), record


def test_spark_leaves_only_what_it_must(spark: SparkSession) -> None:
    made = deserializer(DDL, OPENX)
    plain = [
        b'{"b":true,"t":1,"i":2,"l":3,"f":1.5,"d":2,"de":1.25,"s":"text","v":"abc","bi":"aGk="}',
        b'{"ts":1518033528123,"at":["2026-09-07T12:00:02.123456789Z"],"da":"2026-09-07","a":[1],"m":{"k":1}}',
        b'{"ts":1518033528.123,"ast":["x","{"],"st":{"x":1,"y":"{not an object}","z":[{"q":1,"w":"v"}]}}',
        b'{"ts":"2026-09-07 12:00:02.5","unknown":{"deep":[1,{"er":2}]}}',
        b"{}",
    ]
    _, left = by_spark(spark, made, plain)
    assert left == [
        False,
        False,
        True,
        False,
        False,
    ]  # the third: a text in an array that may have been an object


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "A", "b", "c"]), json_values), min_size=50, max_size=200)
)
def test_spark_gives_the_same_rows_for_anything(spark: SparkSession, objects: list[dict[str, Any]]) -> None:
    made = deserializer(
        "a BIGINT, b ARRAY<STRING>, c STRUCT<a: TIMESTAMP, b: DECIMAL(10,2), c: STRING>", OPENX
    )
    records = [json.dumps(each).encode() for each in objects]
    rows, left = by_spark(spark, made, records)
    for record, row, is_left in zip(records, rows, left, strict=True):
        if not is_left:
            assert repr(one_by_one(made, record)) == repr([row]), record
