"""Rules for the fields of a request, as data, and the problems that a value has with them.

Problems read like those of AWS's validator: `definition.maxSize: must be at least 1024.`
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, Protocol

import msgspec

from penstock.model import INT64_MAX

INT32_MAX = 2**31 - 1
MILLISECONDS_MAX = 9_223_372_036_854

NAME_PATTERN = r"^[\w ,.\-_]*$"
# ASCII, although Python clients can send more: Java and JavaScript clients could not address such a stream.
_NAME = re.compile(NAME_PATTERN, re.ASCII)


class Rule(Protocol):
    def convert(self, value: object, path: str, problems: list[str]) -> Any:
        """The value as it is kept. If problems are added to the list, what is returned is not to be used."""


class Text(msgspec.Struct, frozen=True):
    length_min: int = 0
    length_max: int | None = None
    name_like: bool = False

    def convert(self, value: object, path: str, problems: list[str]) -> Any:
        if not isinstance(value, str):
            problems.append(f"{path}: must be text.")
            return None
        if len(value) < self.length_min:
            problems.append(f"{path}: must have a length of at least {self.length_min}.")
        if self.length_max is not None and len(value) > self.length_max:
            problems.append(f"{path}: must have a length of at most {self.length_max}.")
        if self.name_like and _NAME.fullmatch(value) is None:
            problems.append(f'{path}: must match regular expression "{NAME_PATTERN}".')
        return value


class Bytes(msgspec.Struct, frozen=True):
    length_min: int = 0

    def convert(self, value: object, path: str, problems: list[str]) -> Any:
        if not isinstance(value, bytes):
            problems.append(f"{path}: must be bytes.")
        elif len(value) < self.length_min:
            problems.append(f"{path}: must have a length of at least {self.length_min}.")
        return value


class Int(msgspec.Struct, frozen=True):
    minimum: int
    maximum: int

    def convert(self, value: object, path: str, problems: list[str]) -> Any:
        number = _integer(value)
        if number is None:
            problems.append(f"{path}: must be an integer.")
            return None
        if self.maximum == INT64_MAX and number > INT64_MAX:
            # JavaScript has no 2^63-1: it sends the nearest float, which is 2^63.
            return INT64_MAX
        if number < self.minimum:
            problems.append(f"{path}: must be at least {self.minimum}.")
        if number > self.maximum:
            problems.append(f"{path}: must be at most {self.maximum}.")
        return number


class Choice(msgspec.Struct, frozen=True):
    """One of the numbers of an enum."""

    members: type[IntEnum]

    def convert(self, value: object, path: str, problems: list[str]) -> Any:
        number = _integer(value)
        if number not in [member.value for member in self.members]:
            listed = ", ".join(f"{member.value} ({member.name})" for member in self.members)
            problems.append(f"{path}: must be one of {listed}.")
        return number


class Flag(msgspec.Struct, frozen=True):
    def convert(self, value: object, path: str, problems: list[str]) -> Any:
        if not isinstance(value, bool):
            problems.append(f"{path}: must be true or false.")
        return value


class Map(msgspec.Struct, frozen=True):
    """A map with known keys. Keys that are not known are ignored, as newer clients may send them."""

    required: dict[str, Rule]
    optional: dict[str, Rule]

    def convert(self, value: object, path: str, problems: list[str]) -> Any:
        if not isinstance(value, dict):
            problems.append(f"{path}: must be a map.")
            return {}
        prefix = f"{path}." if path else ""
        problems.extend(f"{prefix}{key} is required." for key in self.required if key not in value)
        return {
            key: rule.convert(value[key], prefix + key, problems)
            for key, rule in (self.required | self.optional).items()
            if key in value
        }


class Array(msgspec.Struct, frozen=True):
    item: Rule

    def convert(self, value: object, path: str, problems: list[str]) -> Any:
        if not isinstance(value, list):
            problems.append(f"{path}: must be an array.")
            return []
        return [self.item.convert(item, f"{path}[{index}]", problems) for index, item in enumerate(value)]


NAME = Text(length_min=1, length_max=255, name_like=True)


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None
