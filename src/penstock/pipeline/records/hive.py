"""Hive JSON SerDe: strict. A value must be of the column's type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from penstock.hive_types import Column, Scalar, Struct
from penstock.pipeline.records.deserializer import (
    INTEGER_BITS,
    TEXTS,
    Deserializer,
    KeyRule,
    Row,
    binary_from_text,
    date_from_text,
    decimal_from_text,
    fitted_integer,
    fitted_text,
    float_from_text,
    lenient_timestamp,
    moderate_decimal,
    not_a_value,
    timestamp_of_micros,
)
from penstock.pipeline.records.joda import JodaPattern
from penstock.pipeline.records.json_text import (
    ARRAY,
    FALSE,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    MalformedData,
    elements_of,
    kind_of,
    members_of,
    text_of,
)

MILLIS = "millis"
NESTED_IN_TEXT = "One or more fields have incorrect format. Exception when validating field (root)"

_TOKENS = {
    STRING: "VALUE_STRING",
    TRUE: "VALUE_TRUE",
    FALSE: "VALUE_FALSE",
    OBJECT: "START_OBJECT",
    ARRAY: "START_ARRAY",
}


class Hive(Deserializer):
    folds_map_keys = False

    def __init__(self, columns: Sequence[Column], options: Mapping[str, Any]) -> None:
        super().__init__(columns, KeyRule())
        self.timestamp_formats: list[str] = list(options.get("TimestampFormats") or [])
        self._patterns = [
            None if pattern == MILLIS else JodaPattern(pattern) for pattern in self.timestamp_formats
        ]

    def _scalar(self, type_: Scalar, token: bytes) -> Any:
        kind = kind_of(token)
        if type_.kind in TEXTS:
            if kind in (OBJECT, ARRAY):
                raise MalformedData(NESTED_IN_TEXT, whole=True)
            return fitted_text(type_, text_of(token))
        if type_.kind == "boolean":
            if kind not in (TRUE, FALSE):
                raise MalformedData(f"Current token ({_token_name(token, kind)}) not of boolean type")
            return kind == TRUE
        if type_.kind in ("timestamp", "date", "binary"):
            return self._from_text(type_.kind, token, kind)
        return _number(type_, token, kind)

    def _from_text(self, column_kind: str, token: bytes, kind: str) -> Any:
        if kind in (OBJECT, ARRAY):
            raise MalformedData(NESTED_IN_TEXT, whole=True)
        text = text_of(token)
        if column_kind == "date":
            return date_from_text(text)
        if column_kind == "binary":
            return binary_from_text(text)
        return self._timestamp(text)

    def _timestamp(self, text: str) -> datetime:
        for pattern in self._patterns:
            found = _from_millis(text) if pattern is None else pattern.parse(text)
            if found is not None:
                return found
        if not self._patterns:
            found = lenient_timestamp(text)
            if found is not None:
                return found
        raise not_a_value(text)

    def _elements(self, token: bytes) -> list[bytes]:
        if kind_of(token) != ARRAY:
            raise MalformedData("java.io.IOException: Start of Array expected")
        return elements_of(token)

    def _object_members(self, token: bytes) -> dict[str, bytes]:
        if kind_of(token) != OBJECT:
            raise MalformedData("java.io.IOException: Start of Object expected")
        return members_of(token)

    def _struct(self, type_: Struct, token: bytes) -> Row:
        return self._members(type_, self._object_members(token))


def _token_name(token: bytes, kind: str) -> str:
    if kind == NUMBER:
        return "VALUE_NUMBER_INT" if token.lstrip(b"-").isdigit() else "VALUE_NUMBER_FLOAT"
    return _TOKENS[kind]


def _number(type_: Scalar, token: bytes, kind: str) -> int | float | Decimal:
    if type_.kind == "decimal" and kind in (NUMBER, STRING):  # the only number that Hive reads from text too
        return decimal_from_text(type_, text_of(token))
    if kind != NUMBER:
        name = _token_name(token, kind)
        raise MalformedData(f"Current token ({name}) not numeric, can not use numeric value accessors")
    text = token.decode()
    if type_.kind not in INTEGER_BITS:
        return float_from_text(text)
    value = moderate_decimal(text)
    if value is None:
        raise not_a_value(text)
    return fitted_integer(type_.kind, int(value), text)  # as Jackson does: the fraction is cut off


def _from_millis(text: str) -> datetime | None:
    millis = moderate_decimal(text)
    return None if millis is None else timestamp_of_micros(int(millis * 1000), text)
