"""What may be a partition key."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

KEYS_MAX = 50
FAILURE_CODE = "DynamicPartitioning.MetadataExtractionFailed"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class BadKeys(ValueError):
    """These cannot be the partition keys of a record."""


def checked_keys(values: Mapping[str, object]) -> dict[str, str]:
    """Numbers and booleans as jq writes them; `msgspec.Raw` stands for a number as it was written."""
    if len(values) > KEYS_MAX:
        raise BadKeys(f"there are {len(values)} partitionKeys, and {KEYS_MAX} is the most")
    return {key: _text(key, value) for key, value in values.items()}


def _text(key: str, value: object) -> str:
    if isinstance(value, (bool, int, float)):
        return msgspec.json.encode(value).decode()
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    if value is None or value == "":
        raise BadKeys(f"partitionKeys values must not be null or empty: {key}")
    if not isinstance(value, str):
        raise BadKeys(f"partitionKeys values must be strings, numbers or booleans: {key}")
    if _CONTROL.search(value):
        raise BadKeys(f"partitionKeys values must not hold control characters: {key}")
    return value
