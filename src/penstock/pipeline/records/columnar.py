"""Files of typed columns: Parquet and ORC, written as their SerDe options say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet

from penstock.hive_types import Array, Column, HiveType, Map, Struct

PARQUET_BLOCK_BYTES = 256 * 1024 * 1024
PARQUET_PAGE_BYTES = 1024 * 1024
ORC_STRIPE_BYTES = 64 * 1024 * 1024
ORC_ROW_INDEX_STRIDE = 10_000
ORC_PADDING_TOLERANCE = 0.05
ORC_BLOOM_FILTER_FPP = 0.05

_SCALARS = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),  # UTC without saying so, as Hive has it
}
_ORC_COMPRESSIONS = {"NONE": "uncompressed", "ZLIB": "zlib", "SNAPPY": "snappy"}
_ORC_VERSIONS = {"V0_11": "0.11", "V0_12": "0.12"}


def arrow_type(type_: HiveType) -> pa.DataType:
    if isinstance(type_, Array):
        return pa.list_(arrow_type(type_.element))
    if isinstance(type_, Map):
        return pa.map_(arrow_type(type_.key), arrow_type(type_.value))
    if isinstance(type_, Struct):
        return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in type_.fields])
    return pa.decimal128(*type_.sizes) if type_.kind == "decimal" else _SCALARS[type_.kind]


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])


class ColumnarFile(ABC):
    """A file under way, in memory: what is compressed already, and rows that wait for their block to be full."""

    extension: str
    block_bytes: int

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any]) -> None:
        self.schema = schema
        self._body = BytesIO()
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0

    def add(self, table: pa.Table) -> None:
        if table.num_rows == 0:
            return
        self._waiting.append(table.cast(self.schema))
        self._waiting_bytes += table.nbytes
        if self._waiting_bytes >= self.block_bytes:
            self._write_waiting()

    def finish(self) -> memoryview:
        """The file."""
        self._write_waiting()
        self._close()
        return self._body.getbuffer()

    def _write_waiting(self) -> None:
        if self._waiting:
            self._write(pa.concat_tables(self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    @abstractmethod
    def _write(self, table: pa.Table) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class ParquetFile(ColumnarFile):
    extension = ".parquet"

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any]) -> None:
        super().__init__(schema, options)
        self.block_bytes = int(options.get("BlockSizeBytes") or PARQUET_BLOCK_BYTES)
        second_version = options.get("WriterVersion") == "V2"
        compression = str(options.get("Compression") or "SNAPPY")
        self._writer = pyarrow.parquet.ParquetWriter(
            self._body,
            schema,
            version="2.6" if second_version else "1.0",
            data_page_version="2.0" if second_version else "1.0",
            compression="none" if compression == "UNCOMPRESSED" else compression.lower(),
            use_dictionary=bool(options.get("EnableDictionaryCompression")),
            data_page_size=int(options.get("PageSizeBytes") or PARQUET_PAGE_BYTES),
            use_deprecated_int96_timestamps=True,  # what Hive writes, and every reader of its tables knows
            store_schema=False,
        )

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=table.num_rows)

    def _close(self) -> None:
        self._writer.close()


class OrcFile(ColumnarFile):
    extension = ".orc"

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any]) -> None:
        super().__init__(schema, options)
        self.block_bytes = int(options.get("StripeSizeBytes") or ORC_STRIPE_BYTES)
        padding_tolerance = float(options.get("PaddingTolerance", ORC_PADDING_TOLERANCE))
        self._writer = pyarrow.orc.ORCWriter(
            self._body,
            file_version=_ORC_VERSIONS[options.get("FormatVersion") or "V0_12"],
            stripe_size=self.block_bytes,
            compression=_ORC_COMPRESSIONS[options.get("Compression") or "SNAPPY"],
            row_index_stride=int(options.get("RowIndexStride") or ORC_ROW_INDEX_STRIDE),
            padding_tolerance=padding_tolerance if options.get("EnablePadding") else 0.0,
            dictionary_key_size_threshold=float(options.get("DictionaryKeyThreshold") or 0.0),
            bloom_filter_columns=_positions(schema, options.get("BloomFilterColumns") or []),
            bloom_filter_fpp=float(options.get("BloomFilterFalsePositiveProbability", ORC_BLOOM_FILTER_FPP)),
        )

    def _write(self, table: pa.Table) -> None:
        self._writer.write(table)

    def _close(self) -> None:
        self._writer.close()


def _positions(schema: pa.Schema, names: Iterable[str]) -> list[int] | None:
    """Of columns, with all that is nested inside them counted, as ORC numbers them. The row itself is number 0."""
    wanted = {name.lower() for name in names}
    found = []
    position = 1
    for field in schema:
        if field.name.lower() in wanted:
            found.append(position)
        position += _columns_in(field.type)
    return found or None


def _columns_in(type_: pa.DataType) -> int:
    if pa.types.is_map(type_):
        return 1 + _columns_in(type_.key_type) + _columns_in(type_.item_type)
    return 1 + sum(_columns_in(type_.field(number).type) for number in range(type_.num_fields))


def file_for(serializer: Mapping[str, Any], columns: Sequence[Column]) -> ColumnarFile:
    """An empty file of the format that a Serializer names."""
    schema = arrow_schema(columns)
    if "OrcSerDe" in serializer:
        return OrcFile(schema, serializer["OrcSerDe"] or {})
    return ParquetFile(schema, serializer.get("ParquetSerDe") or {})
