"""Keys that match a column only when case and dots are overlooked. Spark looks for one spelling of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from penstock.hive_types import Array, HiveType, Map, Scalar, Struct
from penstock.pipeline.records.deserializer import TEXTS, Deserializer, KeyRule

_KEY = re.compile(rb'"([^"\\]+)"\s*:')


def fields_of(type_: HiveType) -> Iterator[tuple[str, HiveType]]:
    """Every field of every struct inside, by name."""
    if isinstance(type_, Struct):
        for field in type_.fields:
            yield field.name, field.type
            yield from fields_of(field.type)
    elif isinstance(type_, Array):
        yield from fields_of(type_.element)
    elif isinstance(type_, Map):
        yield from fields_of(type_.value)


def other_spellings(deserializer: Deserializer, spellings: Mapping[str, str]) -> str | None:
    """A pattern (RE2) that finds keys of columns in any spelling but the known ones. None if there can be none."""
    rule = deserializer.keys
    keys = {rule.key_of(name) for name, _ in fields_of(Struct(deserializer.columns))}
    found = [_all_but(key, spellings.get(key, key), rule) for key in sorted(keys)]
    patterns = [pattern for pattern in found if pattern]
    return rf'"(?:{"|".join(patterns)})"\s*:' if patterns else None


def nested_texts(deserializer: Deserializer, spellings: Mapping[str, str]) -> str | None:
    """A pattern that finds columns of text that hold what Spark would write otherwise: an object, array or fraction."""
    rule = deserializer.keys
    keys = {
        rule.key_of(name)
        for name, type_ in fields_of(Struct(deserializer.columns))
        if isinstance(type_, Scalar) and type_.kind in TEXTS
    }
    names = "|".join(re.escape(spellings.get(key, key)) for key in sorted(keys))
    return rf'"(?:{names})"\s*:\s*(?:[\[{{]|-?[0-9]+[.eE]|-0)' if keys else None


def common_spellings(deserializer: Deserializer, records: Iterable[bytes]) -> dict[str, str]:
    """How these records mostly spell the keys of columns, by the keys' canonical form."""
    rule = deserializer.keys
    keys = {rule.key_of(name) for name, _ in fields_of(Struct(deserializer.columns))}
    counted: dict[str, Counter[str]] = {}
    for record in records:
        for spelling in _KEY.findall(record):
            text = spelling.decode(errors="replace")
            key = rule.canonical(text)
            if key in keys:
                counted.setdefault(key, Counter())[text] += 1
    return {key: spellings.most_common(1)[0][0] for key, spellings in counted.items()}


def _all_but(key: str, known: str, rule: KeyRule) -> str:
    """Every spelling of `key` except `known`: the same up to some letter, which is another one, and then any."""
    any_rest = ""
    other_rest = ""
    for letter, known_letter in zip(reversed(key), reversed(known), strict=True):
        variants = _variants(letter, rule)
        branches = [re.escape(known_letter) + other_rest] if other_rest else []
        others = variants - {known_letter}
        if others:
            branches.append(_any_of(others) + any_rest)
        other_rest = f"(?:{'|'.join(branches)})" if len(branches) > 1 else "".join(branches)
        any_rest = _any_of(variants) + any_rest
    return other_rest


def _variants(letter: str, rule: KeyRule) -> set[str]:
    """Only letters of ASCII have two cases here: the pattern is matched against bytes."""
    if rule.dots_to_underscores and letter == "_":
        return {"_", "."}
    return {letter.lower(), letter.upper()} if rule.ignore_case and letter.isascii() else {letter}


def _any_of(choices: Iterable[str]) -> str:
    letters = sorted(choices)
    return re.escape(letters[0]) if len(letters) == 1 else f"[{''.join(map(re.escape, letters))}]"
