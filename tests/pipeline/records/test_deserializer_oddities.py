"""Records that hardly anybody would write: each becomes rows, or fails by itself. Nothing else may come of it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.hive_types import parse_columns
from penstock.pipeline.records.columnar import arrow_schema
from penstock.pipeline.records.deserializer import Deserializer
from penstock.pipeline.records.hive import Hive
from penstock.pipeline.records.json_text import ConversionFailed
from penstock.pipeline.records.openx import OpenX

TYPES = [
    *("boolean", "tinyint", "bigint", "float", "double", "string", "char(3)", "binary", "date", "timestamp"),
    *("decimal(10,2)", "decimal(38,38)", "array<int>", "map<string,int>", "map<double,string>"),
    *("map<decimal(5,2),int>", "struct<x:int,y:string>", "array<struct<x:timestamp>>"),
]
VALUES = [
    *("null", "true", "-0", "1.5", "1e400", "-1e-400", "1e99999999999999999999", "9" * 39, "1" * 5000),
    *(
        '"\\ud800"',
        '"\\udc00x"',
        '"\\u0000"',
        '"NaN"',
        '"-Infinity"',
        '"1e-999999999999"',
        '"1_000"',
        '"\u0663"',
    ),
    *('"0000-01-01 00:00:00"', '"0001-01-01 00:00:00"', '"9999-12-31T23:59:59.999999999Z"', "1e15", "-1e13"),
    *("[]", "[null]", '["a",{"b":1}]', "{}", '{"x":"\\ud800"}', '{"1":"a","01":"b"}', '{"":1}', '{"NaN":1}'),
    *("[" * 900 + "]" * 900, "[" * 5000 + "]" * 5000, '{"x":' * 900 + "1" + "}" * 900),
]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("dialect", [OpenX, Hive])
def test_every_record_becomes_rows_or_fails_by_itself(dialect: type[Deserializer], type_: str) -> None:
    columns = parse_columns(f"c {type_}")
    deserializer = dialect(columns, {})  # type: ignore[call-arg, arg-type]
    for value in VALUES:
        for record in (f'{{"c":{value}}}', f'{{"c":null}}{{"c":{value}}}'):
            try:
                rows = deserializer.rows(record.encode())
            except ConversionFailed:
                continue
            assert pa.Table.from_pylist(rows, schema=arrow_schema(columns)).num_rows == len(rows)


@pytest.mark.parametrize("dialect", [OpenX, Hive])
def test_half_a_character_is_what_java_makes_of_it(dialect: type[Deserializer]) -> None:
    columns = parse_columns("c string")
    deserializer = dialect(columns, {})  # type: ignore[call-arg, arg-type]
    assert deserializer.rows(rb'{"c":"cut \ud83d"}{"c":"\ud83d\ude00"}') == [{"c": "cut ?"}, {"c": "😀"}]
