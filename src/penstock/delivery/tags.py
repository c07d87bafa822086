"""Tags of a delivery stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.delivery.errors import ApiError

TAGS_MAX = 50

Tags = dict[str, str | None]


def tags_from(wire: Iterable[Mapping[str, Any]]) -> Tags:
    return {tag["Key"]: tag.get("Value") for tag in wire}


def tagged(tags: Tags, more: Tags) -> Tags:
    """A key that was there keeps its place."""
    result = {**tags, **more}
    if len(result) > TAGS_MAX:
        raise ApiError(
            "LimitExceededException",
            f"Failed to add tags to the firehose. A firehose can have at most {TAGS_MAX} tags.",
        )
    return result


def untagged(tags: Tags, keys: Iterable[str]) -> Tags:
    gone = set(keys)
    return {key: value for key, value in tags.items() if key not in gone}


def page(tags: Tags, start_key: str | None, limit: int) -> tuple[list[dict[str, str]], bool]:
    """Tags behind `start_key`, from the beginning if there is no such tag; and whether there are more."""
    keys = list(tags)
    begin = keys.index(start_key) + 1 if start_key in tags else 0
    shown = []
    for key in keys[begin : begin + limit]:
        value = tags[key]
        shown.append({"Key": key} if value is None else {"Key": key, "Value": value})
    return shown, begin + limit < len(keys)
