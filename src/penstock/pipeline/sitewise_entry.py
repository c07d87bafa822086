"""A SiteWise entry as clients append it: JSON, checked before it is sent."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.errors import PenstockError

ID_LENGTH_MAX = 64
ALIAS_LENGTH_MAX = 2048
TEXT_LENGTH_MAX = 1024
VALUES_MAX = 10
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
SECONDS_MAX = 31_556_889_864_403_199
NANOS_MAX = 999_999_999
QUALITIES = ("GOOD", "BAD", "UNCERTAIN")

_ENTRY_ID = re.compile(rf"[a-zA-Z0-9_-]{{1,{ID_LENGTH_MAX}}}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Timestamp = tuple[int, int]


class InvalidEntry(PenstockError):
    """The message is not an entry that SiteWise could take."""


class Entry:
    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    @property
    def id(self) -> str:
        return str(self.fields["entryId"])

    @property
    def property_key(self) -> tuple[Any, ...]:
        return tuple(self.fields.get(name) for name in ("assetId", "propertyId", "propertyAlias"))

    @property
    def timestamps(self) -> list[Timestamp]:
        return [_timestamp(value) for value in self.fields["propertyValues"]]

    def without_conflicts(self) -> list[Entry]:
        """The entry, or several to be sent in turn if it has two values for the same instant."""
        rounds: list[dict[Timestamp, Any]] = [{}]
        for value in self.fields["propertyValues"]:
            at = _timestamp(value)
            free = next((values for values in rounds if at not in values), None)
            if free is None:
                rounds.append(free := {})
            free[at] = value
        if len(rounds) == 1:
            return [self]
        return [Entry({**self.fields, "propertyValues": list(values.values())}) for values in rounds]


def parse_entry(payload: bytes) -> Entry:
    try:
        fields = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidEntry(f"not JSON: {error}") from error
    _require(isinstance(fields, dict), "must be a JSON object")
    fields = _without_nulls(fields)
    entry_id = fields.get("entryId")
    _require(
        isinstance(entry_id, str) and _ENTRY_ID.fullmatch(entry_id) is not None,
        f"entryId must be 1 to {ID_LENGTH_MAX} letters, digits, '_' or '-'",
    )
    _check_property(fields)
    values = fields.get("propertyValues")
    _require(
        isinstance(values, list) and 1 <= len(values) <= VALUES_MAX,
        f"propertyValues must be a list of 1 to {VALUES_MAX}",
    )
    for value in values:
        _check_value(value)
    return Entry(fields)


def _check_property(fields: dict[str, Any]) -> None:
    for name in ("assetId", "propertyId"):
        _require(name not in fields or _is_text(fields[name], ALIAS_LENGTH_MAX), f"{name} must be text")
    alias = fields.get("propertyAlias")
    _require(
        alias is None or _is_text(alias, ALIAS_LENGTH_MAX),
        f"propertyAlias must be 1 to {ALIAS_LENGTH_MAX} characters, none of them control characters",
    )
    _require(
        alias is not None or ("assetId" in fields and "propertyId" in fields),
        "propertyAlias, or assetId and propertyId, must be given",
    )


def _check_value(value: Any) -> None:
    _require(isinstance(value, dict), "propertyValues must hold objects")
    variant = value.get("value")
    _require(isinstance(variant, dict) and len(variant) == 1, "value must have exactly one member")
    [(kind, content)] = variant.items()
    if kind == "stringValue":
        _require(
            _is_text(content, TEXT_LENGTH_MAX),
            f"stringValue must be 1 to {TEXT_LENGTH_MAX} characters, none of them control characters",
        )
    elif kind == "integerValue":
        _require(_is_int(content, INT32_MIN, INT32_MAX), "integerValue must be an integer of 32 bits")
    elif kind == "doubleValue":
        _require(
            isinstance(content, (int, float)) and not isinstance(content, bool),
            "doubleValue must be a number",
        )
    elif kind == "booleanValue":
        _require(isinstance(content, bool), "booleanValue must be true or false")
    timestamp = value.get("timestamp")
    _require(isinstance(timestamp, dict), "timestamp must be given")
    _require(
        _is_int(timestamp.get("timeInSeconds"), 1, SECONDS_MAX), "timeInSeconds must be a positive integer"
    )
    _require(
        _is_int(timestamp.get("offsetInNanos", 0), 0, NANOS_MAX), f"offsetInNanos must be 0 to {NANOS_MAX}"
    )
    _require(value.get("quality", "GOOD") in QUALITIES, f"quality must be one of {', '.join(QUALITIES)}")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise InvalidEntry(otherwise)


def _is_text(value: Any, length_max: int) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= length_max and _CONTROL.search(value) is None


def _is_int(value: Any, minimum: int, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def _timestamp(value: dict[str, Any]) -> Timestamp:
    timestamp = value["timestamp"]
    return timestamp["timeInSeconds"], timestamp.get("offsetInNanos", 0)


def _without_nulls(value: Any) -> Any:
    """The SDKs leave out what is null; the service refuses it."""
    if isinstance(value, dict):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(member) for member in value if member is not None]
    return value
