"""Layer 2 of the checks of the Firehose door: dynamic partitioning and its jq queries."""

from __future__ import annotations

from typing import Any

import jq
import pytest
from firehose_bodies import LAMBDA, ON, PREFIX_RULE, accept, partitioned, refusal
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.firehose.rules_query import query_keys

# -- dynamic partitioning ---------------------------------------------------------------------------


def test_partitions_need_large_buffers() -> None:
    def hints(size_mib: int, interval_s: int) -> dict[str, Any]:
        return partitioned(BufferingHints={"SizeInMBs": size_mib, "IntervalInSeconds": interval_s})

    size = "BufferingHints.SizeInMBs must be at least 64 when Dynamic Partitioning is enabled."
    interval = (
        "BufferingHints.IntervalInSeconds must be at least 60 seconds when Dynamic Partitioning is enabled."
    )
    assert refusal(hints(63, 300)) == size
    assert refusal(hints(64, 59)) == interval
    assert refusal(hints(64, 0)) == interval
    accept(hints(64, 60))
    accept(partitioned())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            partitioned(prefix="!{timestamp:yyyy}/"),
            "S3 Prefix should contain Dynamic Partitioning namespaces when Dynamic Partitioning is enabled",
        ),
        (partitioned(ErrorOutputPrefix=None), PREFIX_RULE + "ErrorOutputPrefix cannot be null or empty"),
        (
            partitioned("{a:.a,b:.b,c:.c}"),
            "When dynamic partitioning via inline parsing is enabled, you must use all",
        ),
        (partitioned("{b:.b}"), "When dynamic partitioning via inline parsing is enabled, you must use all"),
        (
            partitioned("{a:.a}", "!{partitionKeyFromQuery:a}/!{partitionKeyFromQuery:z}/"),
            "Prefix names keys that MetaDataExtraction JQ Query does not give: z",
        ),
        (
            partitioned(
                "{" + ",".join(f"k{number}:.a" for number in range(51)) + "}",
                "".join(f"!{{partitionKeyFromQuery:k{number}}}" for number in range(51))[:1024].rpartition(
                    "!"
                )[0],
            ),
            "MetaDataExtraction JQ Query has 51 keys; at most 50 are supported",
        ),
        (
            partitioned(None),
            "Prefix uses partitionKeyFromQuery, but there is no MetadataExtraction processor",
        ),
        (
            partitioned("{a:.a}", "!{partitionKeyFromQuery:a}/!{partitionKeyFromLambda:l}/"),
            "Prefix uses partitionKeyFromLambda, but there is no Lambda processor",
        ),
    ],
)
def test_rules_of_partitions(body: dict[str, Any], text: str) -> None:
    assert refusal(body).startswith(text)


@pytest.mark.parametrize(
    "body",
    [
        partitioned('{a:.ts|strftime("%Y")}'),
        partitioned('{"a":.x, b: (.y, .z)}', "!{partitionKeyFromQuery:b}!{partitionKeyFromQuery:a}"),
        partitioned(". as $x | {a: $x.y}"),  # nobody can see its keys
        partitioned('{("a" + .x): 1}'),
        partitioned(None, "!{partitionKeyFromLambda:l}/", (LAMBDA,)),
        partitioned("{a:.a}", "!{partitionKeyFromQuery:a}/!{partitionKeyFromLambda:l}/", (LAMBDA,)),
        partitioned(DynamicPartitioningConfiguration={**ON, "RetryOptions": {"DurationInSeconds": 0}}),
    ],
)
def test_partitions_that_are_accepted(body: dict[str, Any]) -> None:
    accept(body)


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("{}", []),
        ("{a, b}", ["a", "b"]),
        (' { a : .x , "b c": .y } ', ["a", "b c"]),
        ('{"ä\\u0041":1}', ["äA"]),
        ("{$__loc__, a: $__loc__}", ["__loc__", "a"]),
        ("{if:1, end:2, and:3}", ["if", "end", "and"]),
        ("{a: if .x then .y, .z else 1 end, b: 2}", ["a", "b"]),
        ("{a: {b: 1, c: 2}, d: [1, 2]}", ["a", "d"]),
        ('{a: "x, \\(.y, "}" | tostring), z", b: 1}', ["a", "b"]),
        ("{a: .x # , b: 1", None),
        ('{"a\\(.b)": 1}', None),
        ("{(.a): 1}", None),
        ("{a: 1} | {b: 2}", None),
        ("{a: 1} + {b: 2}", None),
        ('{@base64 "x": 1}', None),
        (".", None),
        ("", None),
        ("}", None),
        ('{"', None),
        ("{a: 1, a: 2}", ["a"]),
    ],
)
def test_keys_of_a_query(query: str, keys: list[str] | None) -> None:
    assert query_keys(query) == keys


names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)


@given(
    st.dictionaries(names, st.sampled_from([".a", '"\\(.b, .c)"', "[1,2]", "{x:1,y:2}", '(.a|tostring)+"}"']))
)
def test_keys_are_those_that_jq_gives(entries: dict[str, str]) -> None:
    query = "{" + ", ".join(f"{name}: {value}" for name, value in entries.items()) + "}"
    assert query_keys(query) == list(entries)
    assert set(jq.compile(query).input_value({"a": "x"}).first()) == set(entries)


@given(st.text('{}[]()"\\,:.#$@ abenvif\n', max_size=40))
def test_any_text_may_be_a_query(query: str) -> None:
    assert query_keys(query) is None or query.strip().startswith(("{", "#"))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("{a:", "MetaDataExtraction JQ Query is invalid: syntax error"),
        ("{a: nobody(1)}", "MetaDataExtraction JQ Query is invalid: nobody/1 is not defined"),
        ("{a: env.HOME}", "MetaDataExtraction JQ Query cannot use env"),
        ("{a: $ENV.HOME}", "MetaDataExtraction JQ Query cannot use $ENV"),
        ("{$ENV}", "MetaDataExtraction JQ Query cannot use $ENV"),
        ('{a: "x\\(env|tostring)"}', "MetaDataExtraction JQ Query cannot use env"),
        ("{a: [1, env]}", "MetaDataExtraction JQ Query cannot use env"),
        ("{a: input}", "MetaDataExtraction JQ Query cannot use input"),
        ('import "x" as $x; {a: $x}', "MetaDataExtraction JQ Query cannot use import"),
    ],
)
def test_bad_queries(query: str, text: str) -> None:
    assert refusal(partitioned(query)).startswith(text)


@pytest.mark.parametrize(
    "query", ["{a: .env}", "{a: .x.input}", '{a: "env"}', '{a: ."$ENV"}', "{a: {env: 1, input}}"]
)
def test_fields_may_be_called_anything(query: str) -> None:
    accept(partitioned(query))
