"""Partition keys for Kinesis: random, a path into the message's JSON, or a template with both."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.errors import ConfigError
from penstock.pipeline.destinations.base import Record

LENGTH_MAX = 256

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"\s]+)|\[(?P<index>-?\d+)\]|\[(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)")\]"""
)

Value = Callable[[Record, Any], str]
_NOTHING = object()


class PartitionKey:
    """Makes the key of each record. Where a message has no value for it, the key is random: none is held up."""

    def __init__(self, template: str, stream: str) -> None:
        """`$.device.id`, or text with `{$.device.id}`, `{stream}`, `{sequence}` and `{arrival_ms}` in it."""
        text = f"{{{template}}}" if template.startswith("$") else template
        self._needs_json = False
        self._parts: list[str | Value] = []
        for index, piece in enumerate(_PLACEHOLDER.split(text)):  # text and placeholder in turn
            if index % 2:
                self._parts.append(self._value(piece, stream, template))
            elif "{" in piece or "}" in piece:
                raise ConfigError(f"partition key {template!r}: a brace has no partner")
            else:
                self._parts.append(piece)
        if not any(self._parts):
            raise ConfigError("a partition key is empty; give a template or a JSON path such as $.device.id")

    def __call__(self, record: Record) -> str:
        document = _decoded(record.payload) if self._needs_json else None
        try:
            key = "".join(part if isinstance(part, str) else part(record, document) for part in self._parts)
        except LookupError:
            return random_key()
        return key[:LENGTH_MAX] or random_key()

    def _value(self, name: str, stream: str, template: str) -> Value:
        if name == "stream":
            return lambda record, document: stream
        if name == "sequence":
            return lambda record, document: str(record.sequence_number)
        if name == "arrival_ms":
            return lambda record, document: str(record.arrival_ms)
        if name.startswith("$"):
            self._needs_json = True
            steps = parse_path(name)
            return lambda record, document: _text(_follow(document, steps))
        raise ConfigError(
            f"partition key {template!r}: {{{name}}} is unknown; "
            "use {stream}, {sequence}, {arrival_ms} or a JSON path such as {$.device.id}"
        )


def random_key() -> str:
    return str(uuid.uuid4())


def parse_path(path: str) -> list[str | int]:
    """The steps of a JSON path: `$.name`, `$['name']` and `$[0]`, one after another."""
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise ConfigError(
                f"JSON path {path!r} cannot be read from {path[at:]!r} on; "
                "write $.name, $['name'] or $[0], one after another"
            )
        if step["index"] is not None:
            steps.append(int(step["index"]))
        else:
            steps.append(
                next(name for name in (step["name"], step["single"], step["double"]) if name is not None)
            )
        at = step.end()
    return steps


def _decoded(payload: bytes) -> Any:
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return _NOTHING


def _follow(document: Any, steps: Iterable[Any]) -> Any:
    for step in steps:
        if type(document) is not (dict if isinstance(step, str) else list):
            raise LookupError
        document = document[step]
    return document


def _text(value: Any) -> str:
    if value is None or value is _NOTHING:
        raise LookupError
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
