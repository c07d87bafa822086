"""Keys that match a column only when case and dots are overlooked. Spark looks for one spelling of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.hive_types import Array, HiveType, Map, Scalar, Struct
from penstock.pipeline.records.deserializer import TEXTS, Deserializer, KeyRule

EXACT_KEYS_MAX = 64  # with more the pattern gets slow
JUDGED_KEYS_MAX = 100_000

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


def keys_of(deserializer: Deserializer) -> set[str]:
    """The keys of all columns and fields, in their canonical form."""
    return {deserializer.keys.key_of(name) for name, _ in fields_of(Struct(deserializer.columns))}


def other_spellings(deserializer: Deserializer, spellings: Mapping[str, str]) -> str | None:
    """A pattern (RE2) that finds keys of columns in any spelling but the known ones. None if there can be none."""
    rule = deserializer.keys
    found = [_all_but(key, spellings.get(key, key), rule) for key in sorted(keys_of(deserializer))]
    patterns = [pattern for pattern in found if pattern]
    return rf'"(?:{"|".join(patterns)})"\s*:' if patterns else None


def any_other_key(deserializer: Deserializer, spellings: Mapping[str, str]) -> str | None:
    """A pattern that finds at least those, for tables so wide that the exact one would take too long."""
    rule = deserializer.keys
    if any(spelling != key for key, spelling in spellings.items()):
        return _KEY.pattern.decode()
    letters = ("A-Z" if rule.ignore_case else "") + ("." if rule.dots_to_underscores else "")
    return rf'"[^"\\]*[{letters}][^"\\]*"\s*:' if letters else None


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
    keys = keys_of(deserializer)
    counted: dict[str, Counter[str]] = {}
    for record in records:
        for spelling in _KEY.findall(record):
            text = spelling.decode(errors="replace")
            key = rule.canonical(text)
            if key in keys and len(key) == len(text):
                counted.setdefault(key, Counter())[text] += 1
    return {key: spellings.most_common(1)[0][0] for key, spellings in counted.items()}


class OddRecords:
    """Finds records that Spark would read otherwise than it should."""

    def __init__(self, deserializer: Deserializer, spellings: Mapping[str, str]) -> None:
        self._rule = deserializer.keys
        keys = keys_of(deserializer)
        self._known = {key: spellings.get(key, key) for key in keys}
        self._is_wide = len(keys) > EXACT_KEYS_MAX
        self._nested = nested_texts(deserializer, spellings)
        find = any_other_key if self._is_wide else other_spellings
        self._others = find(deserializer, spellings)
        self._judged: dict[bytes, bool] = {}

    def find(self, payloads: pa.Array) -> pa.Array:
        odd = pa.array(np.zeros(len(payloads), np.bool_))
        if self._nested is not None:
            odd = pc.or_(odd, pc.match_substring_regex(payloads, self._nested))
        if self._others is not None:
            found = pc.match_substring_regex(payloads, self._others)
            odd = pc.or_(odd, self._exact(payloads, found) if self._is_wide else found)
        return odd

    def _exact(self, payloads: pa.Array, suspects: pa.Array) -> pa.Array:
        """Of those that any_other_key has found. A stream has few keys: each is judged once."""
        found = suspects.to_numpy(zero_copy_only=False).copy()
        for row in np.flatnonzero(found).tolist():
            found[row] = any(map(self._is_other, _KEY.findall(payloads[row].as_py())))
        return pa.array(found)

    def _is_other(self, key: bytes) -> bool:
        judged = self._judged.get(key)
        if judged is None:
            text = key.decode(errors="replace")
            judged = self._known.get(self._rule.canonical(text), text) != text
            if len(self._judged) < JUDGED_KEYS_MAX:
                self._judged[key] = judged
        return judged


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
