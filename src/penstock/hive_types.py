"""Types of columns as Hive, Glue and Spark's DDL write them, and lists of columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from penstock.errors import PenstockError

DECIMAL_DIGITS_MAX = 38
LENGTH_MAX = {"char": 255, "varchar": 65535}

_TOKEN = re.compile(
    r"\s*(?:--[^\n]*|`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s`'\"<>(),:]+|[<>(),:])"
)
_NAME = re.compile(r"\w+")
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "character": "char",
    "timestamp_ntz": "timestamp",
    "timestamp_ltz": "timestamp",
}
_PLAIN = frozenset(
    (
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "timestamp",
    )
)


class BadType(PenstockError):
    """The text is not a type, or one that records cannot be converted to."""


@dataclass(frozen=True)
class Scalar:
    kind: str  # boolean, tinyint, smallint, int, bigint, float, double, decimal, string, char, varchar, ...
    sizes: tuple[int, ...] = ()  # precision and scale, or length

    def __str__(self) -> str:
        return self.kind + (f"({','.join(map(str, self.sizes))})" if self.sizes else "")


@dataclass(frozen=True)
class Array:
    element: HiveType

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True)
class Map:
    key: Scalar
    value: HiveType

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True)
class Struct:
    fields: tuple[Column, ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{_quoted(field.name)}:{field.type}' for field in self.fields)}>"


def _quoted(name: str) -> str:
    """So that it is read as a name again."""
    if _NAME.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"


HiveType: TypeAlias = Scalar | Array | Map | Struct


class Column(NamedTuple):
    name: str
    type: HiveType


def parse_type(text: str) -> HiveType:
    """A type such as `array<struct<id:bigint,price:decimal(10,2)>>`. Raises BadType."""
    tokens = _Tokens(text)
    found = tokens.type()
    tokens.end()
    return found


def parse_columns(text: str) -> tuple[Column, ...]:
    """A list of columns in Spark's DDL, such as `id BIGINT, price DECIMAL(10,2) COMMENT 'net'`. Raises BadType."""
    tokens = _Tokens(text)
    columns = tokens.fields(end="")
    tokens.end()
    return checked(columns)


def checked(columns: Sequence[Column]) -> tuple[Column, ...]:
    """At least one column, and no name twice."""
    if not columns:
        raise BadType("there are no columns; there must be at least one")
    _refuse_repeated([column.name for column in columns])
    return tuple(columns)


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._position = 0

    def _split(self, text: str) -> list[str]:
        tokens = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            found = _TOKEN.match(text, position)
            if found is None:
                raise BadType(
                    f"{text!r} is not a type or a list of columns: {text[position:].strip()[:20]!r}"
                )
            position = found.end()
            if not found[0].lstrip().startswith("--"):
                tokens.append(found[0].strip())
        return tokens

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._position += 1
        return token

    def _expect(self, token: str) -> None:
        found = self._take()
        if found != token:
            raise BadType(f"{self._text!r}: {token!r} is expected where {found or 'the end'!r} stands")

    def end(self) -> None:
        if self._peek():
            raise BadType(f"{self._text!r}: {self._peek()!r} is too much")

    def type(self) -> HiveType:
        name = self._take().lower()
        kind = _ALIASES.get(name, name)
        if kind == "double" and self._peek().lower() == "precision":
            self._take()
        if kind in _PLAIN:
            return Scalar(kind)
        if kind == "decimal":
            return self._decimal()
        if kind in LENGTH_MAX:
            return self._sized_text(kind)
        if kind in ("array", "map", "struct"):
            return self._nested(kind)
        raise BadType(_refusal(name, self._text))

    def _nested(self, kind: str) -> HiveType:
        self._expect("<")
        made: HiveType
        if kind == "array":
            made = Array(self.type())
        elif kind == "map":
            key = self.type()
            if not isinstance(key, Scalar):
                raise BadType(f"{self._text!r}: the keys of a map must be of a plain type, not {key}")
            self._expect(",")
            made = Map(key, self.type())
        else:
            made = Struct(tuple(self.fields(end=">")))
            _refuse_repeated([field.name for field in made.fields])
        self._expect(">")
        return made

    def fields(self, end: str) -> list[Column]:
        fields: list[Column] = []
        while self._peek() != end:
            if fields:
                self._expect(",")
            name = self._take()
            if not name or name in "<>(),:":
                raise BadType(
                    f"{self._text!r}: the name of a column is expected where {name or 'the end'!r} stands"
                )
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            if self._peek() == ":":
                self._take()
            fields.append(Column(name, self.type()))
            self._skip_remarks()
        return fields

    def _skip_remarks(self) -> None:
        if self._peek().lower() == "not":
            self._take()
            if self._take().lower() != "null":
                raise BadType(f"{self._text!r}: only NULL may follow NOT")
        if self._peek().lower() == "comment":
            self._take()
            while self._peek().startswith(("'", '"')):  # quotes inside are doubled
                self._take()

    def _sizes(self) -> list[int]:
        if self._peek() != "(":
            return []
        self._take()
        sizes = []
        while True:
            number = self._take()
            if not number.isdecimal() or len(number) > 5:
                raise BadType(f"{self._text!r}: a number is expected where {number or 'the end'!r} stands")
            sizes.append(int(number))
            if self._peek() != ",":
                break
            self._take()
        self._expect(")")
        return sizes

    def _decimal(self) -> Scalar:
        sizes = self._sizes()
        precision, scale = (*sizes, *(10, 0)[len(sizes) :])[:2]
        if len(sizes) > 2 or not 1 <= precision <= DECIMAL_DIGITS_MAX or scale > precision:
            raise BadType(
                f"{self._text!r}: a decimal has a precision of 1 to {DECIMAL_DIGITS_MAX} and a scale of at most that"
            )
        return Scalar("decimal", (precision, scale))

    def _sized_text(self, kind: str) -> Scalar:
        sizes = self._sizes()
        if len(sizes) != 1 or not 1 <= sizes[0] <= LENGTH_MAX[kind]:
            raise BadType(f"{self._text!r}: {kind} must have a length of 1 to {LENGTH_MAX[kind]}")
        return Scalar(kind, (sizes[0],))


def _refusal(name: str, text: str) -> str:
    if name == "set":
        return f"{text!r}: a set cannot be converted; use an array"
    if name == "uniontype":
        return f"{text!r}: a uniontype cannot be converted; use a struct, or a string"
    return f"{text!r}: {name or 'the end'!r} is not a type that records can be converted to"


def _refuse_repeated(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise BadType(f"the column {name!r} is there twice; upper and lower case are the same to Hive")
        seen.add(name.lower())
