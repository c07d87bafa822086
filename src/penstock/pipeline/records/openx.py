"""OpenX JSON SerDe: forgiving. What can be read as the column's type is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.hive_types import Column, Scalar, Struct
from penstock.pipeline.records.deserializer import (
    TEXTS,
    Deserializer,
    KeyRule,
    Row,
    binary_from_text,
    date_from_text,
    fitted_text,
    lenient_timestamp,
    moderate_decimal,
    not_a_value,
    number_from_text,
    timestamp_of_micros,
    timestamp_of_parts,
)
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
    value_of,
)

SECONDS_MAX = 10**12  # numbers from here on are milliseconds

_ISO_TIMESTAMP = re.compile(r"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?Z?", re.ASCII)
_JAVA_CLASSES = {STRING: "java.lang.String", TRUE: "java.lang.Boolean", FALSE: "java.lang.Boolean"}


class OpenX(Deserializer):
    def __init__(self, columns: Sequence[Column], options: Mapping[str, Any]) -> None:
        keys = KeyRule(
            ignore_case=options.get("CaseInsensitive") is not False,
            dots_to_underscores=bool(options.get("ConvertDotsInJsonKeysToUnderscores")),
            mappings=options.get("ColumnToJsonKeyMappings") or {},
        )
        super().__init__(columns, keys)
        self.folds_map_keys = keys.ignore_case or keys.dots_to_underscores

    def _scalar(self, type_: Scalar, token: bytes) -> Any:
        kind = kind_of(token)
        if type_.kind in TEXTS:
            return fitted_text(type_, self._text(token, kind))
        if kind in (OBJECT, ARRAY):
            raise MalformedData(f"A column of type {type_} cannot hold a JSON {kind}.")
        text = text_of(token)
        if type_.kind == "boolean":
            return _boolean(text)
        if type_.kind == "timestamp":
            return _timestamp(text)
        if type_.kind == "date":
            return date_from_text(text)
        if type_.kind == "binary":
            return binary_from_text(text)
        return number_from_text(type_, text)

    def _text(self, token: bytes, kind: str) -> str:
        """What is no text becomes one. By then OpenX has changed all keys inside."""
        if kind not in (OBJECT, ARRAY):
            return text_of(token)
        return msgspec.json.encode(self._with_canonical_keys(value_of(token))).decode()

    def _with_canonical_keys(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                self.keys.canonical(key): self._with_canonical_keys(inner) for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._with_canonical_keys(inner) for inner in value]
        return value

    def _elements(self, token: bytes) -> list[bytes]:
        return elements_of(token) if kind_of(token) == ARRAY else [token]

    def _object_members(self, token: bytes) -> dict[str, bytes]:
        kind = kind_of(token)
        if kind == OBJECT:
            return members_of(token)
        if kind == ARRAY:
            raise MalformedData("A map column cannot hold a JSON array.")
        raise _not_an_object(token, kind)

    def _struct(self, type_: Struct, token: bytes) -> Row:
        kind = kind_of(token)
        if kind == OBJECT:
            return self._members(type_, members_of(token))
        if kind != ARRAY:
            raise _not_an_object(token, kind)
        by_position = elements_of(token)
        missing = [b"null"] * (len(type_.fields) - len(by_position))
        return {
            field.name: self._value(field.type, element)
            for field, element in zip(type_.fields, [*by_position, *missing], strict=False)
        }


def _not_an_object(token: bytes, kind: str) -> MalformedData:
    text = text_of(token)
    if kind == NUMBER:
        java_class = "java.lang.Long" if text.lstrip("-").isdecimal() else "java.lang.Double"
    else:
        java_class = _JAVA_CLASSES[kind]
    return MalformedData(f"Data is not JSONObject  but {java_class} with value {text}")


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise not_a_value(text)
    return text.lower() == "true"


def _timestamp(text: str) -> datetime:
    found = _ISO_TIMESTAMP.fullmatch(text)
    if found is not None:
        return timestamp_of_parts(text, found.groups())
    return lenient_timestamp(text) or _epoch(text)


def _epoch(text: str) -> datetime:
    """Seconds or milliseconds since 1970, whichever gives a date near to ours."""
    number = moderate_decimal(text)
    if number is None:
        raise not_a_value(text)
    micros = number * (1_000_000 if abs(number) < SECONDS_MAX else 1_000)
    return timestamp_of_micros(int(micros.to_integral_value()), text)
