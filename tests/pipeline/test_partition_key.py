"""Partition keys: what a template or JSON path makes of a message."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.pipeline.destinations.base import Record
from penstock.pipeline.partition_key import LENGTH_MAX, PartitionKey, parse_path


def key_of(template: str, payload: bytes) -> str:
    return PartitionKey(template, "readings")(Record(41, 1_700_000_000_000, payload))


def is_random(key: str) -> bool:
    return len(key) == 36 and uuid.UUID(key).version == 4


@pytest.mark.parametrize(
    ("template", "payload", "key"),
    [
        ("$.device", b'{"device": "pump"}', "pump"),
        ("$.a.b[1]['c d']", b'{"a": {"b": [0, {"c d": "x"}]}}', "x"),
        ('$["a.b"]', b'{"a.b": "x"}', "x"),
        ("$[-1]", b"[1, 2, 3]", "3"),
        ("$", b'"whole"', "whole"),
        ("$.n", b'{"n": 7}', "7"),
        ("$.n", b'{"n": true}', "true"),
        ("$.n", b'{"n": {"b": 1, "a": [2]}}', '{"a":[2],"b":1}'),
        ("$.n", '{"n": "größe"}'.encode(), "größe"),
        ("fixed", b"anything", "fixed"),
        ("{stream}", b"", "readings"),
        ("{stream}/{$.line}-{sequence}@{arrival_ms}", b'{"line": 3}', "readings/3-41@1700000000000"),
    ],
)
def test_key(template: str, payload: bytes, key: str) -> None:
    assert key_of(template, payload) == key


@pytest.mark.parametrize(
    ("template", "payload"),
    [
        ("$.device", b"not JSON"),
        ("$.device", b"\xff\xfe"),
        ("$.device", b"{}"),
        ("$.device", b'{"device": null}'),
        ("$.device", b'{"device": ""}'),
        ("$.device.id", b'{"device": "text"}'),
        ("$[0]", b'"text"'),
        ("$[3]", b"[1, 2, 3]"),
        ("$.a", b"[1]"),
        ("$", b"null"),
        ("{stream}-{$.line}", b"{}"),
        ("$.a", b"[" * 100_000),
    ],
)
def test_a_message_without_the_value_gets_a_random_key(template: str, payload: bytes) -> None:
    assert is_random(key_of(template, payload))


@pytest.mark.parametrize(
    "template",
    ["", "{}", "{device}", "{stream", "stream}", "$.", "$..a", "$a", "$[x]", "$['a]", "{$.a b}", "{{x}}"],
)
def test_wrong_templates_are_told(template: str) -> None:
    with pytest.raises(ConfigError):
        PartitionKey(template, "readings")


@given(st.binary(), st.sampled_from(["$.a", "$[0]", "{stream}{$.a}", "$"]))
def test_any_message_gets_a_key_that_kinesis_takes(payload: bytes, template: str) -> None:
    assert 1 <= len(key_of(template, payload)) <= LENGTH_MAX


def test_long_values_are_cut() -> None:
    assert key_of("$", b'"%s"' % (b"x" * 1000)) == "x" * LENGTH_MAX


def test_steps_of_a_path() -> None:
    assert parse_path("$.a[0]['b'][\"c\"].d-e") == ["a", 0, "b", "c", "d-e"]
