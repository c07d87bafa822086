"""Queries that have no end: the record fails, the others do not, and nothing is held up for long."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.destinations.base import DeliveryFailed
from penstock.pipeline.records.processors import jq_apart
from penstock.pipeline.records.processors.jq_apart import TOO_LONG, TOO_MUCH, JqApart
from penstock.pipeline.records.processors.jq_program import JqHere, Patience
from penstock.pipeline.records.processors.metadata import MetadataExtraction
from penstock.pipeline.records.processors.query import Query
from penstock.pipeline.records.processors.query_text import certainly_ends
from penstock.pipeline.records.record import Failed, Record
from pipeline.records.functions import records_of
from pipeline.records.test_processors_metadata import comparable, documents, queries


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And no process is left."""
    monkeypatch.setattr(jq_apart, "TEXT_CPU_S", 0.3)
    yield
    jq_apart.close_idle()


def extract(query: str, *payloads: bytes) -> tuple[list[Record], list[Failed]]:
    return MetadataExtraction({"MetadataExtractionQuery": query}).process(records_of(*payloads))


@pytest.mark.parametrize(
    "endless",
    [
        "def f: f; f",
        "[range(infinite)]",
        "last(repeat(1))",
        "until(false; .)",
        "[limit(infinite; repeat(1))] | length",
        "reduce range(infinite) as $n (0; . + 1)",
        "[recurse([.])]",
    ],
)
def test_one_record_has_no_end_and_the_others_go_on(endless: str) -> None:
    began_s = time.monotonic()
    payloads = [b'{"v":"%d"}' % number for number in range(50)]
    done, [failed] = extract(f'{{v: (if .v == "7" then ({endless} | tostring) else .v end)}}', *payloads)
    assert [record.query_keys["v"] for record in done] == [str(n) for n in range(50) if n != 7]
    assert (failed.record.raw, failed.code) == (payloads[7], "DynamicPartitioning.MetadataExtractionFailed")
    assert failed.message in (TOO_LONG, TOO_MUCH)
    assert time.monotonic() - began_s < 60


def test_a_query_without_an_end_does_not_hold_up_the_flush() -> None:
    """A few records are tried, and no others, however many there are."""
    made = MetadataExtraction({"MetadataExtractionQuery": "def f: f; {v: f}"})
    failed: list[Failed] = []
    for first in range(0, 3000, 1000):
        done, failures = made.process(records_of(*[b'{"v":%d}' % (first + n) for n in range(1000)]))
        assert not done
        failed += failures
    assert len(failed) == 3000
    assert [failure.message for failure in failed].count(TOO_LONG) == Patience().texts
    assert "5 records before; this one was not tried" in failed[-1].message
    again = extract("def f: f; {v: f}", b'{"v":0}', b'{"v":2999}')[1]
    assert [failure.message for failure in again] == [TOO_LONG] * 2, "the next flush tries for itself"


def test_too_much_memory_ends_the_process_that_runs_jq_and_no_other() -> None:
    doubled = '{v: (.v | if type == "number" then reduce range(.) as $n ("xx"; . + .) else . end)}'
    [done], [failed] = extract(doubled, b'{"v":"a"}', b'{"v":40}')
    assert done.query_keys == {"v": "a"}
    assert failed.message in (TOO_LONG, TOO_MUCH)


COUNTING = "{v: (.v | until(. > 5; . + 1))}"


def test_the_process_serves_again_and_again() -> None:
    extract(COUNTING, b'{"v":1}')
    [process] = jq_apart._idle
    for query in (COUNTING, "{v: (.v | last(limit(3; repeat(.))))}", COUNTING):
        [done], _ = extract(query, b'{"v":%d}' % (time.monotonic_ns() + 10))
        assert int(done.query_keys["v"]) > 6
        assert jq_apart._idle == [process]


def test_a_process_that_somebody_else_ends_is_no_fault_of_the_record() -> None:
    extract(COUNTING, b'{"v":2}')
    [process] = jq_apart._idle
    process._process.send_signal(signal.SIGKILL)
    with pytest.raises(DeliveryFailed, match="ended by itself"):
        extract(COUNTING, b'{"v":3}')
    [done], _ = extract(COUNTING, b'{"v":3}')
    assert done.query_keys == {"v": "6"}


@pytest.mark.parametrize(
    "query",
    [
        '{customer: .customer, device: .type.device, year: .ts|strftime("%Y")}',
        "{a: .x.range, repeat: .until, b: (.c // 1)}",
        '{a: (if .a >= 3 then "x" else .b[0] end), b: .c["d"]?, c: @base64}',
        ".",
    ],
)
def test_queries_that_certainly_end(query: str) -> None:
    assert certainly_ends(query)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "{a: range(infinite)}",
        "{a: range}",
        "{a: (def f: f; f)}",
        "{a: .a|repeat(.)}",
        "{a: [.b[]|.c[]]}",
        "{a: [..]}",
        '{a: ("x" * .n)}',
        "{a: (.[1000000000] = 1)}",
        "{a: (.b |= 1)}",
        '{a: (.b | gsub("";"x"))}',
        "{a: $x}",
        '{a: "\\(range(9))"}',
        "{a: (.a|[.,.]|[.,.]|[.,.]|[.,.]|[.,.]|tojson)}",
        ".[recurse:2]",
    ],
)
def test_queries_of_which_that_is_not_sure(query: str) -> None:
    assert not certainly_ends(query)


@settings(max_examples=50)
@given(queries, st.lists(documents, max_size=5))
def test_both_places_give_the_same(text: str, found: list[Any]) -> None:
    records = [(json.dumps(document).encode(), 1000) for document in found]
    here, apart = Query(text), Query(text)
    here._program, apart._program = JqHere(text), JqApart(text)
    assert comparable(here.answers(records)) == comparable(apart.answers(records))
