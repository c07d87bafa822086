"""A jq query for partition keys, made fast: jq sees only the fields it needs, and nothing twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from penstock.pipeline.records.processors.jq_apart import JqApart
from penstock.pipeline.records.processors.jq_program import (
    SEVERAL_RESULTS,
    JqHere,
    JqProgram,
    Outcome,
    Patience,
    first_line,
)
from penstock.pipeline.records.processors.keys import BadKeys, checked_keys
from penstock.pipeline.records.processors.query_text import certainly_ends, fields_used

QUERIES_MAX = 512
KEPT_MAX = 20_000  # answers that are remembered; partitions are few, texts may not be
KEPT_TEXT_CHARACTERS_MAX = 512

Keys = Mapping[str, str]
Answer = Keys | BadKeys


class Query:
    """Compiled once for a process; threads may share it."""

    def __init__(self, text: str) -> None:
        self._kept: dict[str, Answer] = {}
        self._keys_of_results: dict[str, Answer] = {}
        self.problem: BadKeys | None = None
        self.may_take_too_long = not certainly_ends(text)
        try:
            self._program: JqProgram = JqApart(text) if self.may_take_too_long else JqHere(text)
        except ValueError as error:
            self.problem = BadKeys(f"the MetadataExtractionQuery cannot be compiled: {first_line(error)}")
        self._needs_arrival = re.search(r"\bnow\b", text) is not None
        fields = fields_used(text)
        self._pruner = None if fields is None else _pruner(fields)

    def answers(self, records: Iterable[tuple[bytes, int]], patience: Patience | None = None) -> list[Answer]:
        """The keys of each JSON text with its arrival time, or why it has none."""
        patience = Patience() if patience is None else patience
        if self.problem is not None:
            return [self.problem for _ in records]
        inputs = [self._input(data, arrival_ms) for data, arrival_ms in records]
        new = {text: None for text in inputs if isinstance(text, str) and text not in self._kept}
        found = self._run(list(new), patience)
        self._keep(found)
        # One that was remembered a moment ago may be forgotten by now, for another thread forgot all.
        return [
            text
            if isinstance(text, BadKeys)
            else found.get(text) or self._kept.get(text) or self._run([text], patience)[text]
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

    def _run(self, texts: Sequence[str], patience: Patience) -> dict[str, Answer]:
        outcomes = self._program.run(texts, patience)
        not_tried = _NotTried(
            f"the MetadataExtractionQuery takes too long for {patience.texts} records before; this one was not tried"
        )
        answers = (not_tried if outcome is None else self._answer(outcome) for outcome in outcomes)
        return dict(zip(texts, answers, strict=True))

    def _answer(self, results: Outcome) -> Answer:
        if isinstance(results, str):
            return BadKeys(results)
        if len(results) != 1:
            return BadKeys(SEVERAL_RESULTS if results else "the MetadataExtractionQuery gives no result")
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
        kept = {
            text: answer
            for text, answer in found.items()
            if len(text) <= KEPT_TEXT_CHARACTERS_MAX and not isinstance(answer, _NotTried)
        }
        if len(kept) <= KEPT_MAX:
            self._kept.update(kept)


class _NotTried(BadKeys):
    """Next time it may be."""


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


_value = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
