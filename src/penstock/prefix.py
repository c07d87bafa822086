"""Prefixes of object keys with expressions: `!{timestamp:...}`, `!{firehose:...}` and keys of partitions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timezone, tzinfo
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from penstock.java_time import BadPattern, Instant, format_timestamp

EVALUATED_LENGTH_MAX = 512
RANDOM_STRING_LENGTH = 11
HOURLY_PATTERN = "yyyy/MM/dd/HH/"

_EXPRESSION = re.compile(r"!\{([^{}:]*):([^{}]*)\}")
_NOT_IN_KEYS = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_RANDOM_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class BadPrefix(ValueError):
    """The text is not a prefix: an expression is malformed or means nothing."""


class CannotEvaluate(ValueError):
    """The prefix is well-formed, but for this object it gives no key."""


class MissingKey(CannotEvaluate):
    """A record lacks a key that the prefix names, or has nothing in it."""


class Namespace(str, Enum):
    TIMESTAMP = "timestamp"
    FIREHOSE = "firehose"
    QUERY = "partitionKeyFromQuery"
    LAMBDA = "partitionKeyFromLambda"


RANDOM_STRING = "random-string"
ERROR_OUTPUT_TYPE = "error-output-type"
PARTITION_NAMESPACES = frozenset({Namespace.QUERY.value, Namespace.LAMBDA.value})
NO_KEYS: Mapping[str, str] = {}


class Expression(NamedTuple):
    namespace: str
    value: str

    def __str__(self) -> str:
        return f"!{{{self.namespace}:{self.value}}}"


Part: TypeAlias = str | Expression


class Prefix:
    """A parsed prefix: literal text and expressions, in order."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self._parts = parts

    @property
    def expressions(self) -> list[Expression]:
        return [part for part in self._parts if isinstance(part, Expression)]

    @property
    def has_expressions(self) -> bool:
        return bool(self.expressions)

    @property
    def namespaces(self) -> set[str]:
        return {expression.namespace for expression in self.expressions}

    def names(self, namespace: str) -> list[str]:
        """What the expressions of a namespace ask for, in order, as often as they do."""
        return [expression.value for expression in self.expressions if expression.namespace == namespace]

    def partition(
        self, query_keys: Mapping[str, str] = NO_KEYS, lambda_keys: Mapping[str, str] = NO_KEYS
    ) -> tuple[str, ...]:
        """What tells the partitions apart: the values of the keys that the prefix names."""
        return tuple(
            _partition_value(expression, query_keys, lambda_keys)
            for expression in self.expressions
            if expression.namespace in PARTITION_NAMESPACES
        )

    def evaluate(
        self,
        arrival_ms: int,
        zone: tzinfo = timezone.utc,
        *,
        seed: str = "",
        error_output_type: str | None = None,
        query_keys: Mapping[str, str] = NO_KEYS,
        lambda_keys: Mapping[str, str] = NO_KEYS,
    ) -> str:
        """The prefix of an object. Random strings follow from `seed`: the same seed gives the same ones.

        Without any expression the hour is appended, and before it the type of an error output.
        """
        instant = Instant.from_epoch_ms(arrival_ms, zone)
        texts: list[str] = []
        for number, part in enumerate(self._parts):
            if isinstance(part, str):
                texts.append(part)
            elif part.namespace == Namespace.TIMESTAMP:
                texts.append(format_timestamp(part.value, instant))
            elif part.namespace == Namespace.FIREHOSE:
                texts.append(_firehose_value(part, f"{seed}/{number}", error_output_type))
            else:
                texts.append(_partition_value(part, query_keys, lambda_keys))
        if not self.has_expressions:
            texts += [f"{error_output_type}/"] if error_output_type else []
            texts.append(format_timestamp(HOURLY_PATTERN, instant))
        return _checked("".join(texts))


def parse_prefix(text: str) -> Prefix:
    """Take a prefix apart. Raises BadPrefix."""
    return Prefix(tuple(_parts(text)))


def _parts(text: str) -> Iterator[Part]:
    start = 0
    for found in _EXPRESSION.finditer(text):
        yield from _literal(text[start : found.start()])
        yield _expression(found[1], found[2])
        start = found.end()
    yield from _literal(text[start:])


def _literal(text: str) -> Iterator[str]:
    if "!{" in text:
        shown = text[text.index("!{") :][:80]
        raise BadPrefix(f"{shown!r} begins an expression, but is none; expressions are !{{namespace:value}}")
    if text:
        yield text


def _expression(namespace: str, value: str) -> Expression:
    expression = Expression(namespace, value)
    if namespace not in {known.value for known in Namespace}:
        raise BadPrefix(
            f"{expression}: the namespace {namespace!r} is not known; use one of "
            + ", ".join(known.value for known in Namespace)
        )
    if not value:
        raise BadPrefix(f"{expression}: a value must follow the colon")
    if namespace == Namespace.FIREHOSE and value not in (RANDOM_STRING, ERROR_OUTPUT_TYPE):
        raise BadPrefix(f"{expression}: the value must be {RANDOM_STRING} or {ERROR_OUTPUT_TYPE}")
    if namespace == Namespace.TIMESTAMP:
        try:
            format_timestamp(value, Instant.from_epoch_ms(0))
        except BadPattern as error:
            raise BadPrefix(str(error)) from error
    return expression


def _firehose_value(expression: Expression, seed: str, error_output_type: str | None) -> str:
    if expression.value == RANDOM_STRING:
        return random_string(seed)
    if error_output_type is None:
        raise CannotEvaluate(f"{expression} has a meaning in the prefix of errors only")
    return error_output_type


def _partition_value(
    expression: Expression, query_keys: Mapping[str, str], lambda_keys: Mapping[str, str]
) -> str:
    keys = query_keys if expression.namespace == Namespace.QUERY else lambda_keys
    value = keys.get(expression.value)
    if not value:
        raise MissingKey(f"{expression}: the record has no value for this key")
    if _NOT_IN_KEYS.search(value):
        raise CannotEvaluate(f"{expression}: {value[:80]!r} has characters that names of objects cannot have")
    return value


def _checked(evaluated: str) -> str:
    if len(evaluated) > EVALUATED_LENGTH_MAX:
        raise CannotEvaluate(
            f"the evaluated prefix has {len(evaluated)} characters; at most {EVALUATED_LENGTH_MAX} are allowed"
        )
    return evaluated


def random_string(seed: str) -> str:
    """Eleven letters and digits that look random, the same ones for the same seed."""
    number = int.from_bytes(blake2b(seed.encode(), digest_size=16).digest(), "big")
    characters = []
    for _ in range(RANDOM_STRING_LENGTH):
        number, digit = divmod(number, len(_RANDOM_ALPHABET))
        characters.append(_RANDOM_ALPHABET[digit])
    return "".join(characters)
