"""JSON records to typed columns by Spark SQL: the plain cases, which are nearly all. It says which ones it leaves.

A record that is left goes to the deserializer, one by one. Both must give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from penstock.hive_types import Array, HiveType, Map, Scalar, Struct
from penstock.hive_types import Column as TableColumn
from penstock.pipeline.records.deserializer import Deserializer
from penstock.pipeline.records.hive import MILLIS, Hive
from penstock.pipeline.records.joda import JodaPattern
from penstock.pipeline.records.sql_rows import END, OBJECTS, value_name

CORRUPT = "corrupt"
OPTIONS = {
    "columnNameOfCorruptRecord": CORRUPT,
    "mode": "PERMISSIVE",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
ISO_TIME = r"\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z?"  # behind the year
LENIENT_TIME = r"\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}:\d{1,2}(\.\d{1,9})?"
LENIENT_TIMESTAMP = rf"^(?!0000)\d{{4}}-{LENIENT_TIME}$"
ANY_TIMESTAMP = rf"^(?!0000)\d{{4}}-({ISO_TIME}|{LENIENT_TIME})$"
LENIENT_DATE = r"^(?!0000)\d{4}-\d{1,2}-\d{1,2}$"
EPOCH_SECONDS = r"^-?(\d{1,11}(\.\d{1,6})?|\d\.\d{1,14}E(7|8|9|10))$"  # as Java writes large fractions
EPOCH_MILLIS = r"^-?[1-9]\d{12,13}$"
MILLIS_TEXT = r"^-?\d{1,14}$"
NO_TEXT = r"^([\[{\"]|-?\d+\.\d+(E-?\d+)?$)"  # that was none, but may have been
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

_PLAIN: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "smallint": T.ShortType(),
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
}
_AS_PARSED = frozenset({*_PLAIN, "decimal"} - {"tinyint"})
_OUTPUT: dict[str, T.DataType] = {
    **_PLAIN,
    "string": T.StringType(),
    "char": T.StringType(),
    "varchar": T.StringType(),
    "timestamp": T.TimestampType(),
    "date": T.DateType(),
    "binary": T.BinaryType(),
}


class Typed(NamedTuple):
    value: Column
    left: list[Column]  # conditions, each of which means: not for us


class RowColumns(NamedTuple):
    """Expressions that can serve for many frames: making them takes longer than a small job."""

    parsed: Column  # of the text column `wrapped`
    values: tuple[Column, ...]  # of `parsed`: the columns of the table, named by their positions
    left: Column  # of `parsed`: there are no values, and somebody must look at this record by itself


def row_columns(deserializer: Deserializer, spellings: Mapping[str, str]) -> RowColumns:
    """For records that hold one JSON object, whose keys are spelt so, and which have been wrapped."""
    conversion = _Conversion(deserializer, spellings)
    table = Struct(deserializer.columns)
    if not conversion.is_for_spark(table):
        values = [F.lit(None).cast(_output(field.type)) for field in table.fields]
        return RowColumns(F.lit(None).alias("parsed"), _named(values), F.lit(True).alias("left"))
    schema = T.StructType(
        [
            T.StructField(OBJECTS, T.ArrayType(conversion.parsed_table(table))),
            T.StructField(CORRUPT, T.StringType()),
        ]
    )
    objects = F.col("parsed").getField(OBJECTS)
    single = F.get(objects, F.lit(0))
    marked = F.coalesce(F.get(objects, F.lit(1)).getField(END), F.lit(False))
    unread = F.col(f"parsed.{CORRUPT}").isNotNull() | (F.size(objects) != 2) | ~marked
    typed = conversion.fields(table, single)
    return RowColumns(
        F.from_json(F.col("wrapped"), schema, OPTIONS).alias("parsed"),
        _named([field.value for field in typed]),
        _any([unread, single.isNull(), *(left for field in typed for left in field.left)]).alias("left"),
    )


def _named(values: list[Column]) -> tuple[Column, ...]:
    return tuple(value.alias(value_name(position)) for position, value in enumerate(values))


def _any(conditions: list[Column]) -> Column:
    """Unknown is no."""
    return reduce(or_, [F.coalesce(condition, F.lit(False)) for condition in conditions])


class _Conversion:
    def __init__(self, deserializer: Deserializer, spellings: Mapping[str, str]) -> None:
        self._deserializer = deserializer
        self._spellings = spellings
        if isinstance(deserializer, Hive):
            formats = deserializer.timestamp_formats
            self._timestamp: Callable[[Column], Column] = lambda text: _hive_timestamp(text, formats)
        else:
            self._timestamp = _openx_timestamp

    def _key(self, field: TableColumn) -> str:
        key = self._deserializer.keys.key_of(field.name)
        return self._spellings.get(key, key)

    def is_for_spark(self, type_: HiveType) -> bool:
        """No key belongs to two fields of other types, nor differs from another by case alone, as mappings allow."""
        if isinstance(type_, Array):
            return self.is_for_spark(type_.element)
        if isinstance(type_, Map):
            return self.is_for_spark(type_.value)
        if not isinstance(type_, Struct):
            return True
        keys: dict[str, tuple[str, T.DataType | None]] = {END: ("", None)}
        found = [(self._key(field), self.parsed(field.type)) for field in type_.fields]
        return all(
            keys.setdefault(key.lower(), (key, parsed)) == (key, parsed) for key, parsed in found
        ) and all(self.is_for_spark(field.type) for field in type_.fields)

    def parsed_table(self, table: Struct) -> T.StructType:
        """The elements of the array that a record is wrapped in: itself, and the mark of the end."""
        fields = {self._key(field): self.parsed(field.type) for field in table.fields} | {
            END: T.BooleanType()
        }
        return T.StructType([T.StructField(key, parsed) for key, parsed in fields.items()])

    def parsed(self, type_: HiveType) -> T.DataType:
        """What is parsed as: types that JSON has, and text for those that it has not."""
        if isinstance(type_, Array):
            return T.ArrayType(self.parsed(type_.element))
        if isinstance(type_, Map):
            return T.MapType(T.StringType(), self.parsed(type_.value))
        if isinstance(type_, Struct):
            fields = {self._key(field): self.parsed(field.type) for field in type_.fields}
            return T.StructType([T.StructField(key, parsed) for key, parsed in fields.items()])
        if type_.kind == "decimal":
            return T.DecimalType(*type_.sizes)
        if type_.kind == "tinyint":  # of which Spark takes up to 255
            return T.ShortType()
        return _PLAIN.get(type_.kind, T.StringType())

    def typed(self, type_: HiveType, column: Column, *, named: bool = True) -> Typed:
        """`named`: the value stands under a key that we know, not in an array or map."""
        if isinstance(type_, Array):
            return self._array(type_, column)
        if isinstance(type_, Map):
            return self._map(type_, column)
        if isinstance(type_, Struct):
            return self._struct(type_, column)
        return self._scalar(type_, column, named)

    def _scalar(self, type_: Scalar, column: Column, named: bool) -> Typed:
        kind = type_.kind
        if kind == "tinyint":
            value = F.when(column.between(-128, 127), column.cast("tinyint"))
            return Typed(value, [column.isNotNull() & value.isNull()])
        if kind in _AS_PARSED:
            return Typed(column, [])
        if kind in ("string", "char", "varchar"):
            value = F.substring(column, 1, type_.sizes[0]) if type_.sizes else column
            return Typed(value, [] if named else [column.rlike(NO_TEXT)])
        if kind == "timestamp":
            value = self._timestamp(column)
        elif kind == "date":
            value = F.when(column.rlike(LENIENT_DATE), column.try_cast("date"))
        else:
            value = F.when(column.rlike(BASE64), F.unbase64(column))
        return Typed(value, [column.isNotNull() & value.isNull()])

    def _struct(self, type_: Struct, column: Column) -> Typed:
        fields = self.fields(type_, column)
        left = [condition for typed in fields for condition in typed.left]
        names = (field.name for field in type_.fields)
        value = F.struct(*(typed.value.alias(name) for name, typed in zip(names, fields, strict=True)))
        return Typed(F.when(column.isNotNull(), value), left)

    def fields(self, type_: Struct, column: Column) -> list[Typed]:
        return [self.typed(field.type, column.getField(self._key(field))) for field in type_.fields]

    def _array(self, type_: Array, column: Column) -> Typed:
        def element(item: Column) -> Typed:
            return self.typed(type_.element, item, named=False)

        value = (
            F.transform(column, lambda item: element(item).value) if self._changes(type_.element) else column
        )
        leaves = self._leaves(type_.element)
        return Typed(value, [F.exists(column, lambda item: _any(element(item).left))] if leaves else [])

    def _map(self, type_: Map, column: Column) -> Typed:
        if type_.key != Scalar("string"):  # keys of JSON are text
            return Typed(F.lit(None).cast(_output(type_)), [column.isNotNull()])

        def inner(item: Column) -> Typed:
            return self.typed(type_.value, item, named=False)

        value = column
        if self._changes(type_.value):
            value = F.transform_values(value, lambda _, item: inner(item).value)
        if self._deserializer.folds_map_keys:
            value = F.transform_keys(value, lambda key, _: self._folded(key))
        leaves = self._leaves(type_.value)
        values = F.map_values(column)
        return Typed(value, [F.exists(values, lambda item: _any(inner(item).left))] if leaves else [])

    def _folded(self, key: Column) -> Column:
        rule = self._deserializer.keys
        if rule.dots_to_underscores:
            key = F.translate(key, ".", "_")
        return F.lower(key) if rule.ignore_case else key

    def _changes(self, type_: HiveType) -> bool:
        """The value is another one than was parsed."""
        if isinstance(type_, Scalar):
            return type_.kind not in _AS_PARSED and type_.kind != "string"
        if isinstance(type_, Array):
            return self._changes(type_.element)
        if isinstance(type_, Map):
            folds = self._deserializer.folds_map_keys or type_.key != Scalar("string")
            return folds or self._changes(type_.value)
        return any(self._key(field) != field.name or self._changes(field.type) for field in type_.fields)

    def _leaves(self, type_: HiveType) -> bool:
        """There are values inside that we leave to others."""
        if isinstance(type_, Scalar):
            return type_.kind not in _AS_PARSED
        if isinstance(type_, Array):
            return self._leaves(type_.element)
        if isinstance(type_, Map):
            return type_.key != Scalar("string") or self._leaves(type_.value)
        return any(
            self._leaves(field.type)
            for field in type_.fields
            if not (isinstance(field.type, Scalar) and field.type.kind in ("string", "char", "varchar"))
        )


def _output(type_: HiveType) -> T.DataType:
    if isinstance(type_, Array):
        return T.ArrayType(_output(type_.element))
    if isinstance(type_, Map):
        return T.MapType(_output(type_.key), _output(type_.value))
    if isinstance(type_, Struct):
        return T.StructType([T.StructField(field.name, _output(field.type)) for field in type_.fields])
    return T.DecimalType(*type_.sizes) if type_.kind == "decimal" else _OUTPUT[type_.kind]


# -- timestamps -------------------------------------------------------------------------------------


def _openx_timestamp(text: Column) -> Column:
    micros = (text.try_cast("decimal(20,6)") * F.lit(1_000_000)).cast("bigint")
    return (
        # A cast takes UTC where there is no zone, and is much quicker then.
        F.when(text.rlike(ANY_TIMESTAMP), F.rtrim(text, F.lit("Z")).try_cast("timestamp"))
        .when(text.rlike(EPOCH_MILLIS), F.timestamp_millis(text.try_cast("bigint")))
        .when(text.rlike(EPOCH_SECONDS), F.timestamp_micros(micros))
    )


def _hive_timestamp(text: Column, formats: list[str]) -> Column:
    """In the order of the formats, up to the first that Spark cannot read as Joda does."""
    if not formats:
        return F.when(text.rlike(LENIENT_TIMESTAMP), text.try_cast("timestamp"))
    values = []
    for pattern in formats:
        if pattern == MILLIS:
            values.append(F.when(text.rlike(MILLIS_TEXT), F.timestamp_millis(text.try_cast("bigint"))))
            continue
        spark_pattern = JodaPattern(pattern).spark_pattern
        if spark_pattern is None:
            break
        values.append(F.try_to_timestamp(text, F.lit(spark_pattern)))
    return F.coalesce(*values) if values else F.lit(None).cast("timestamp")
