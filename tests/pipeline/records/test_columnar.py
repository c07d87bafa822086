"""Files of typed columns, and that the options of their SerDes are to be seen in them."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest

from penstock.hive_types import parse_columns
from penstock.pipeline.records.columnar import arrow_schema, file_for

DDL = """
  b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, de DECIMAL(20,3), text STRING, c CHAR(5),
  bin BINARY, at TIMESTAMP, day DATE, tags ARRAY<STRING>, attrs MAP<STRING,INT>, geo STRUCT<lat: DOUBLE, on: TIMESTAMP>
"""
COLUMNS = parse_columns(DDL)
ROW = {
    "b": True,
    "t": -1,
    "s": 2,
    "i": 3,
    "l": 2**40,
    "f": 0.5,
    "d": 0.1,
    "de": Decimal("12345678901234567.891"),
    "text": "é😀",
    "c": "abc",
    "bin": b"\x00\xff",
    "at": datetime(2026, 7, 13, 14, 5, 0, 123456),
    "day": date(2026, 7, 13),
    "tags": ["a", None],
    "attrs": [("k", 1)],
    "geo": {"lat": 48.1, "on": datetime(1969, 12, 31, 23, 59, 59)},
}
EMPTY: dict[str, Any] = dict.fromkeys(ROW)


def written(serializer: dict[str, Any], rows: list[dict[str, Any]], ddl: str = DDL, parts: int = 1) -> bytes:
    columns = parse_columns(ddl)
    file = file_for(serializer, columns)
    for start in range(parts):
        file.add(pa.Table.from_pylist(rows[start::parts], schema=arrow_schema(columns)))
    return bytes(file.finish())


@pytest.mark.parametrize("name", ["ParquetSerDe", "OrcSerDe"])
def test_every_type_comes_back(name: str) -> None:
    body = written({name: {}}, [ROW, EMPTY])
    reader = pyarrow.parquet.read_table if name == "ParquetSerDe" else pyarrow.orc.read_table
    found = reader(BytesIO(body))
    assert found.column_names == [column.name for column in COLUMNS]
    back = found.cast(arrow_schema(COLUMNS)).to_pylist()
    assert back == [ROW, EMPTY]


def test_duckdb_reads_parquet(tmp_path: Any) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(written({"ParquetSerDe": {}}, [ROW]))
    with duckdb.connect() as connection:
        [found] = connection.execute(f"SELECT l, de, \"at\", tags, attrs, geo.lat FROM '{path}'").fetchall()
    assert found == (2**40, ROW["de"], ROW["at"], ["a", None], {"k": 1}, 48.1)


# -- Parquet ----------------------------------------------------------------------------------------


def metadata(options: dict[str, Any], rows: int = 1, parts: int = 1) -> Any:
    records = [{"id": number, "text": f"text {number % 7}"} for number in range(rows)]
    body = written({"ParquetSerDe": options}, records, "id BIGINT, text STRING", parts)
    return pyarrow.parquet.ParquetFile(BytesIO(body)).metadata


@pytest.mark.parametrize("compression", ["SNAPPY", "GZIP", "UNCOMPRESSED"])
def test_parquet_compression(compression: str) -> None:
    assert metadata({"Compression": compression}).row_group(0).column(0).compression == compression


def test_parquet_defaults() -> None:
    found = metadata({})
    assert (found.format_version, found.row_group(0).column(0).compression) == ("1.0", "SNAPPY")
    assert not found.row_group(0).column(1).has_dictionary_page


def test_parquet_versions_and_dictionaries() -> None:
    found = metadata({"WriterVersion": "V2", "EnableDictionaryCompression": True}, rows=100)
    assert found.format_version == "2.6"
    assert found.row_group(0).column(1).has_dictionary_page


def test_parquet_blocks_are_row_groups() -> None:
    """A block holds what came up to its size, however it came."""
    assert metadata({}, rows=1000, parts=10).num_row_groups == 1
    assert metadata({"BlockSizeBytes": 4000}, rows=1000, parts=10).num_row_groups == 4


def test_timestamps_are_those_of_hive() -> None:
    body = written({"ParquetSerDe": {}}, [ROW])
    schema = pyarrow.parquet.ParquetFile(BytesIO(body)).schema
    assert schema.column(11).physical_type == "INT96"


# -- ORC --------------------------------------------------------------------------------------------


def orc(options: dict[str, Any], rows: int = 1) -> Any:
    records = [{"id": number, "text": f"text {number}"} for number in range(rows)]
    body = written({"OrcSerDe": options}, records, "id BIGINT, text STRING")
    return pyarrow.orc.ORCFile(BytesIO(body))


@pytest.mark.parametrize(
    ("compression", "expected"), [("SNAPPY", "SNAPPY"), ("ZLIB", "ZLIB"), ("NONE", "UNCOMPRESSED")]
)
def test_orc_compression(compression: str, expected: str) -> None:
    assert orc({"Compression": compression}).compression == expected


def test_orc_defaults() -> None:
    found = orc({})
    assert (found.compression, found.file_version, found.row_index_stride) == ("SNAPPY", "0.12", 10_000)


def test_orc_versions_and_strides() -> None:
    found = orc({"FormatVersion": "V0_11", "RowIndexStride": 1000})
    assert (found.file_version, found.row_index_stride) == ("0.11", 1000)


def test_orc_bloom_filters_are_larger_when_they_lie_less() -> None:
    plain, filtered, honest = (
        orc({**options, "Compression": "NONE"}, rows=20_000).file_length
        for options in (
            {},
            {"BloomFilterColumns": ["TEXT"]},
            {"BloomFilterColumns": ["text"], "BloomFilterFalsePositiveProbability": 0.0001},
        )
    )
    assert plain < filtered < honest
