"""A jq query for partition keys, made fast: jq sees only the fields it needs, and nothing twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jq
import msgspec

from penstock.pipeline.records.processors.keys import BadKeys, checked_keys

QUERIES_MAX = 512
KEPT_MAX = 20_000  # answers that are remembered; partitions are few, texts may not be
KEPT_TEXT_CHARACTERS_MAX = 512
RESULTS_MAX = 1000  # of one record in a batch: a query may well go on forever

Keys = Mapping[str, str]
Answer = Keys | BadKeys

# Every input gives its results and then null. Queries see nothing of the process they run in, and no clock:
# a flush that is tried again must make the same keys.
_PROGRAM = """
def env: {};
{} as $ENV
| .[0] as $arrival
| .[1]
| def now: $arrival;
(try ((
%s
) | tojson) catch ["\\(.)"]), null
"""

_STRING = r'"(?:[^"\\]|\\[^(])*"'
_NAME = r"[A-Za-z_]\w*"
_TOKEN = re.compile(rf"\s+|{_STRING}|{_NAME}|[0-9.]+|[^\s\"#$\\]", re.ASCII)
_PATH = re.compile(rf"\. ({_NAME})(?: \?)?(?: \. {_NAME}(?: \?)?)*", re.ASCII)
_OPENING = frozenset("{[(")
_CLOSING = frozenset("}])")


class Query:
    """Compiled once for a process; threads may share it."""

    def __init__(self, text: str) -> None:
        self._kept: dict[str, Answer] = {}
        self._keys_of_results: dict[str, Answer] = {}
        self.problem: BadKeys | None = None
        try:
            jq.compile(text)  # by itself, so that it cannot end what is around it
            self._program = jq.compile(_PROGRAM % text)
        except ValueError as error:
            self.problem = BadKeys(f"the MetadataExtractionQuery cannot be compiled: {_first_line(error)}")
        self._needs_arrival = re.search(r"\bnow\b", text) is not None
        fields = fields_used(text)
        self._pruner = None if fields is None else _pruner(fields)

    def answers(self, records: Iterable[tuple[bytes, int]]) -> list[Answer]:
        """The keys of each JSON text with its arrival time, or why it has none."""
        if self.problem is not None:
            return [self.problem for _ in records]
        inputs = [self._input(data, arrival_ms) for data, arrival_ms in records]
        new = {text: None for text in inputs if isinstance(text, str) and text not in self._kept}
        found = dict(self._run(list(new)))
        self._keep(found)
        # One that was remembered a moment ago may be forgotten by now, for another thread forgot all.
        return [
            text
            if isinstance(text, BadKeys)
            else found.get(text) or self._kept.get(text) or self._alone(text)
            for text in inputs
        ]

    def _input(self, data: bytes, arrival_ms: int) -> str | BadKeys:
        try:
            text = self._pruned(data).decode(errors="replace")
        except (msgspec.DecodeError, RecursionError) as error:
            return BadKeys(f"the record is not JSON: {error}")
        return f"[{arrival_ms / 1000 if self._needs_arrival else 0},{text}]"

    def _pruned(self, data: bytes) -> bytes:
        if self._pruner is not None:
            try:
                return msgspec.json.encode(self._pruner.decode(data))
            except msgspec.ValidationError:
                pass  # JSON, and no object: jq has its own word for that
        return bytes(_value.decode(data))

    def _run(self, texts: Sequence[str]) -> Iterator[tuple[str, Answer]]:
        answers: list[Answer] = []
        try:
            for results in _results(self._program.input_text("\n".join(texts))):
                answers.append(self._answer(results))
        except (ValueError, _Endless):
            answers = []
        if len(answers) != len(texts):  # one of them broke it, or halted it
            answers = [self._alone(text) for text in texts]
        return zip(texts, answers, strict=True)

    def _alone(self, text: str) -> Answer:
        try:
            return self._answer(next(_results(self._program.input_text(text)), []))
        except ValueError as error:
            return BadKeys(f"the record is not JSON for jq: {_first_line(error)}")
        except _Endless:
            return BadKeys("the MetadataExtractionQuery gives more than one result")

    def _answer(self, results: list[Any]) -> Answer:
        if len(results) != 1:
            number = "more than one result" if results else "no result"
            return BadKeys(f"the MetadataExtractionQuery gives {number}")
        [result] = results
        if isinstance(result, list):
            return BadKeys(f"the MetadataExtractionQuery failed: {result[0]}")
        known = self._keys_of_results.get(result)
        if known is None:
            known = keys_of(result)
            if len(self._keys_of_results) >= KEPT_MAX:
                self._keys_of_results.clear()
            if len(result) <= KEPT_TEXT_CHARACTERS_MAX:
                self._keys_of_results[result] = known
        return known

    def _keep(self, found: Mapping[str, Answer]) -> None:
        if len(self._kept) + len(found) > KEPT_MAX:
            self._kept.clear()
        kept = {text: answer for text, answer in found.items() if len(text) <= KEPT_TEXT_CHARACTERS_MAX}
        if len(kept) <= KEPT_MAX:
            self._kept.update(kept)


class _Endless(Exception):
    """A record has so many results that there may be no end to them."""


def _results(outputs: Iterable[Any]) -> Iterator[list[Any]]:
    """What each input gave; of many results the first two, which tell enough."""
    results: list[Any] = []
    count = 0
    for output in outputs:
        if output is None:
            yield results
            results, count = [], 0
            continue
        count += 1
        if count <= 2:
            results.append(output)
        elif count > RESULTS_MAX:
            raise _Endless


@lru_cache(QUERIES_MAX)
def compiled(text: str) -> Query:
    return Query(text)


def keys_of(result: str) -> Answer:
    """The partition keys that a result of the query holds. Numbers stay as jq writes them."""
    try:
        values = _object.decode(result)
    except msgspec.ValidationError:
        return BadKeys("the MetadataExtractionQuery must give an object, such as {customer: .customer}")
    if not values:
        return BadKeys("the MetadataExtractionQuery gives no partitionKeys")
    try:
        return checked_keys({key: _scalar(raw) for key, raw in values.items()})
    except BadKeys as error:
        return error


def fields_used(query: str) -> list[str] | None:
    """The fields of the record that an object of plain paths reads, such as {year: .ts | strftime("%Y")}.

    None where this is not sure: then jq gets the whole record. What stands behind the first | of a value sees
    only what the path leads to, whatever it does.
    """
    tokens = _tokens(query)
    if tokens is None or len(tokens) < 2 or tokens[0] != "{" or tokens[-1] != "}":
        return None
    entries = _entries(tokens[1:-1])
    fields = [None] if entries is None else [_field(entry) for entry in entries]
    found = [field for field in fields if field is not None]
    return list(dict.fromkeys(found)) if len(found) == len(fields) else None


def _tokens(query: str) -> list[str] | None:
    tokens = []
    at = 0
    while at < len(query):
        token = _TOKEN.match(query, at)
        if token is None:  # a comment, a variable, text with a query inside
            return None
        if not token[0].isspace():
            tokens.append(token[0])
        at = token.end()
    return tokens


def _entries(tokens: Sequence[str]) -> list[list[str]] | None:
    """The tokens between commas that stand in no brackets."""
    entries: list[list[str]] = [[]]
    opened = 0
    for text in tokens:
        opened += (text in _OPENING) - (text in _CLOSING)
        if opened < 0:
            return None
        if text == "," and not opened:
            entries.append([])
        else:
            entries[-1].append(text)
    return entries


def _field(entry: Sequence[str]) -> str | None:
    if entry[1:2] != [":"]:
        return None
    value = entry[2:]
    while value and _in_brackets(value):
        value = value[1:-1]
    path = value[: value.index("|")] if "|" in value else value
    match = _PATH.fullmatch(" ".join(path))
    return match and match[1]


def _in_brackets(value: Sequence[str]) -> bool:
    return value[0] == "(" and value[-1] == ")" and _entries(value[1:-1]) is not None


def _pruner(fields: Sequence[str]) -> msgspec.json.Decoder[Any]:
    """Reads the fields, as they are written, and nothing else. A field that is missing is null, as for jq."""
    names = [f"field_{number}" for number in range(len(fields))]
    kept = msgspec.defstruct(
        "Kept",
        [(name, msgspec.Raw, msgspec.Raw(b"null")) for name in names],
        rename=dict(zip(names, fields, strict=True)),
    )
    return msgspec.json.Decoder(kept)


def _scalar(raw: msgspec.Raw) -> object:
    text = bytes(raw)
    return raw if text[:1] in b"-0123456789" else msgspec.json.decode(text)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip()


_value = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
