"""What turns JSON records into rows: one record at a time, exactly, with the words that AWS has for what fails.

Spark SQL does the same for most records, and much faster (conversion.py); here is what it is measured against, and
what takes the records that it does not.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from penstock.hive_types import Array, Column, HiveType, Map, Scalar, Struct
from penstock.pipeline.records.json_text import MalformedData, ParseError, objects_of

DIGITS_MAX = 30
INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
FLOATS = frozenset({"float", "double"})
TEXTS = frozenset({"string", "char", "varchar"})
EPOCH = datetime(1970, 1, 1)
KEYS_REMEMBERED_MAX = 10_000

_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})", re.ASCII)
_LENIENT_TIMESTAMP = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2}) (\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,9}))?", re.ASCII
)
_FLOAT = re.compile(r"[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_WIDE = Context(prec=100, Emax=10_000, Emin=-10_000)

Row = dict[str, Any]


class KeyRule(NamedTuple):
    """Which key of an object belongs to which column."""

    ignore_case: bool = True
    dots_to_underscores: bool = False
    mappings: Mapping[str, str] = {}  # keys by column

    def canonical(self, key: str) -> str:
        """Keys that are the same to us are equal in this form."""
        if self.dots_to_underscores:
            key = key.replace(".", "_")
        return key.lower() if self.ignore_case else key

    def key_of(self, column: str) -> str:
        """The key of a column, in its canonical form."""
        return self.canonical(self.mappings.get(column, column))


class Deserializer(ABC):
    """Rows of one table from records in one dialect of JSON."""

    keys: KeyRule
    folds_map_keys: bool  # the keys of maps are taken in their canonical form too

    def __init__(self, columns: Sequence[Column], keys: KeyRule) -> None:
        self.columns = tuple(columns)
        self.keys = keys
        self._table = Struct(self.columns)
        self._fields: dict[int, list[tuple[str, str, HiveType]]] = {}  # of each struct, with their keys
        self._canonical: dict[str, str] = {}

    def rows(self, data: bytes) -> list[Row]:
        """The rows of a record, mostly one. Raises ConversionFailed."""
        try:
            return [self._members(self._table, members) for members in objects_of(data)]
        except (msgspec.DecodeError, RecursionError) as error:  # as deep as nobody looks at first
            raise ParseError(str(error)) from error

    def _members(self, struct: Struct, members: Mapping[str, bytes]) -> Row:
        fields = self._fields.get(id(struct))
        if fields is None:
            fields = [(field.name, self.keys.key_of(field.name), field.type) for field in struct.fields]
            self._fields[id(struct)] = fields
        by_key = {self._canonical_key(key): token for key, token in members.items()}
        return {
            name: self._value(type_, by_key[key]) if key in by_key else None for name, key, type_ in fields
        }

    def _canonical_key(self, key: str) -> str:
        """A stream has few keys, and each many times."""
        found = self._canonical.get(key)
        if found is None:
            found = self.keys.canonical(key)
            if len(self._canonical) < KEYS_REMEMBERED_MAX:
                self._canonical[key] = found
        return found

    def _value(self, type_: HiveType, token: bytes) -> Any:
        if token == b"null":
            return None
        if isinstance(type_, Scalar):
            return self._scalar(type_, token)
        if isinstance(type_, Array):
            return [self._value(type_.element, element) for element in self._elements(token)]
        if isinstance(type_, Map):
            return self._map(type_, token)
        return self._struct(type_, token)

    def _map(self, type_: Map, token: bytes) -> list[tuple[Any, Any]]:
        """As Arrow takes it: a list of pairs."""
        pairs = {}
        for key, value in self._object_members(token).items():
            if self.folds_map_keys:
                key = self.keys.canonical(key)
            pairs[self._map_key(type_.key, key)] = self._value(type_.value, value)
        return list(pairs.items())

    def _map_key(self, type_: Scalar, key: str) -> Any:
        if type_.kind in TEXTS:
            return fitted_text(type_, key)
        return number_from_text(type_, key)

    @abstractmethod
    def _scalar(self, type_: Scalar, token: bytes) -> Any: ...

    @abstractmethod
    def _elements(self, token: bytes) -> list[bytes]: ...

    @abstractmethod
    def _object_members(self, token: bytes) -> dict[str, bytes]: ...

    @abstractmethod
    def _struct(self, type_: Struct, token: bytes) -> Row: ...


# -- values from text -------------------------------------------------------------------------------


def not_a_value(text: str) -> MalformedData:
    """In the words of Java's NumberFormatException, which AWS passes on."""
    return MalformedData(f'For input string: "{text}"')


def fitted_text(type_: Scalar, text: str) -> str:
    return text[: type_.sizes[0]] if type_.sizes else text


def integer_from_text(kind: str, text: str) -> int:
    if _INTEGER.fullmatch(text) is None or len(text) > 30:
        raise not_a_value(text)
    return fitted_integer(kind, int(text), text)


def fitted_integer(kind: str, value: int, text: str) -> int:
    limit = 1 << (INTEGER_BITS[kind] - 1)
    if not -limit <= value < limit:
        raise not_a_value(text)
    return value


def float_from_text(text: str) -> float:
    if _FLOAT.fullmatch(text) is None:
        raise not_a_value(text)
    value = float(text.replace("Infinity", "inf"))
    return 0.0 if value == 0 and _INTEGER.fullmatch(text) else value  # whole numbers have no -0


def moderate_decimal(text: str) -> Decimal | None:
    """None if it is no number, or one that would take too much memory when written out."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    return value if value.is_finite() and value.adjusted() <= DIGITS_MAX else None


def decimal_from_text(type_: Scalar, text: str) -> Decimal:
    """Rounded to the scale of the column, if its precision allows."""
    precision, scale = type_.sizes
    try:
        value = Decimal(text)
        rounded = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _WIDE)
    except InvalidOperation:
        raise not_a_value(text) from None
    if not rounded.is_finite() or rounded.adjusted() >= precision - scale:
        raise not_a_value(text)
    return rounded


def number_from_text(type_: Scalar, text: str) -> int | float | Decimal:
    if type_.kind in INTEGER_BITS:
        return integer_from_text(type_.kind, text)
    if type_.kind in FLOATS:
        return float_from_text(text)
    if type_.kind == "decimal":
        return decimal_from_text(type_, text)
    raise MalformedData(f"{text!r} cannot be a {type_}.")


def binary_from_text(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise not_a_value(text) from None


def date_from_text(text: str) -> date:
    found = _DATE.fullmatch(text)
    if found is None:
        raise not_a_value(text)
    try:
        return date(*map(int, found.groups()))
    except ValueError:
        raise not_a_value(text) from None


def lenient_timestamp(text: str) -> datetime | None:
    """`yyyy-M-d H:m:s[.fraction]`, with one digit or two."""
    found = _LENIENT_TIMESTAMP.fullmatch(text)
    return None if found is None else timestamp_of_parts(text, found.groups())


def timestamp_of_parts(text: str, parts: Sequence[str | None]) -> datetime:
    """Of year to second and the digits of the fraction; finer than a microsecond there is nothing."""
    year, month, day, hour, minute, second = (int(number or 0) for number in parts[:6])
    micros = int((parts[6] or "").ljust(6, "0")[:6])
    try:
        return datetime(year, month, day, hour, minute, second, micros)
    except ValueError:
        raise not_a_value(text) from None


def timestamp_of_micros(micros: int, text: str) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise not_a_value(text) from None
