"""MetadataExtraction: what a jq query makes of a record, and that the fast way there is the right one."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.records.processors import query as query_module
from penstock.pipeline.records.processors.keys import BadKeys
from penstock.pipeline.records.processors.metadata import MetadataExtraction
from penstock.pipeline.records.processors.query import Query
from penstock.pipeline.records.processors.query_text import fields_used
from penstock.pipeline.records.record import Failed, Record
from pipeline.records.functions import records_of


def extract(query: str, *payloads: bytes) -> tuple[list[Record], list[Failed]]:
    parameters = {"MetadataExtractionQuery": query, "JsonParsingEngine": "JQ-1.6"}
    return MetadataExtraction(parameters).process(records_of(*payloads))


def keys_of(query: str, document: bytes) -> dict[str, str]:
    [record], failed = extract(query, document)
    assert not failed
    return dict(record.query_keys)


def failure_of(query: str, document: bytes) -> str:
    done, [failure] = extract(query, document)
    assert not done
    assert (failure.output_type, failure.attempts, failure.lambda_arn) == ("processing-failed", 1, None)
    assert failure.code == "DynamicPartitioning.MetadataExtractionFailed"
    assert failure.record.raw == document
    return failure.message


def test_the_query_of_the_developer_guide() -> None:
    query = '{customer_id:.customer_id,device:.type.device,year:.event_timestamp|strftime("%Y")}'
    document = b'{"type":{"device":"mobile","event":"click"},"customer_id":"1234567890","event_timestamp":1565382027}'
    assert keys_of(query, document) == {"customer_id": "1234567890", "device": "mobile", "year": "2019"}


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('"a/b/../c"', "a/b/../c"),
        ("0", "0"),
        ("-12", "-12"),
        ("1.10", "1.10"),
        ("12345678901234567890", "12345678901234567890"),
        ("true", "true"),
        ("false", "false"),
        ('"\\u00e9\\ud83d\\ude00"', "é😀"),
        ('" "', " "),
    ],
)
def test_scalars_are_written_as_jq_writes_them(value: str, key: str) -> None:
    document = f'{{"v": {value}}}'
    assert keys_of("{v: .v}", document.encode()) == {"v": key}
    assert jq.first(".v | tostring", text=document) == key


@pytest.mark.parametrize("value", ["null", '""'])
def test_null_empty_and_missing_values(value: str) -> None:
    text = "partitionKeys values must not be null or empty: v"
    assert failure_of("{v: .v}", f'{{"v": {value}}}'.encode()) == text
    assert failure_of("{v: .v}", b'{"w": 1}') == text


@pytest.mark.parametrize("value", ['"a\\nb"', '"\\u0000"', '"\\u007f"', '"\\u0085"'])
def test_control_characters_are_refused(value: str) -> None:
    assert "control characters: v" in failure_of("{v: .v}", f'{{"v": {value}}}'.encode())


@pytest.mark.parametrize("value", ["[]", "{}", "[1]"])
def test_values_that_are_no_scalars(value: str) -> None:
    assert "must be strings, numbers or booleans: v" in failure_of("{v: .v}", f'{{"v": {value}}}'.encode())


@pytest.mark.parametrize(
    "data", [b"", b"text", b'{"v": 1', b'{"v": 1}{"v": 2}', b'{"v": NaN}', b"[" * 100_000]
)
@pytest.mark.parametrize("query", ["{v: .v}", "{v: (.v // 1)}"])
def test_what_is_not_one_json_text(query: str, data: bytes) -> None:
    assert failure_of(query, data).startswith("the record is not JSON")


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        (".v", "must give an object"),
        ("{v: .v} | tostring", "must give an object"),
        ("{}", "gives no partitionKeys"),
        ("{v: .v[]}", "gives more than one result"),
        ("{v: .v[]} | select(.v > 5)", "gives no result"),
        ("{v: repeat(1)}", "gives more than one result"),
        ("{v: .v.x}", "the MetadataExtractionQuery failed: Cannot index array with string"),
        ("{v: error(null)}", "the MetadataExtractionQuery failed: null"),
        ("halt", "gives no result"),
        ("{v: input}", "the MetadataExtractionQuery failed"),
        ("{v: .v", "cannot be compiled"),
        (".) | (.", "cannot be compiled"),
        ("{v: nonsense}", "cannot be compiled"),
        ("{v: $x}", "cannot be compiled"),
    ],
)
def test_queries_that_give_no_keys(query: str, problem: str) -> None:
    assert problem in failure_of(query, b'{"v": [1, 2]}')


def test_as_many_keys_as_aws_allows() -> None:
    document = json.dumps({f"k{number}": "v" for number in range(51)}).encode()
    assert "51 partitionKeys, and 50 is the most" in failure_of(".", document)
    assert len(keys_of("del(.k50)", document)) == 50


def test_one_bad_record_spoils_no_other() -> None:
    good = [b'{"v": "%d"}' % number for number in range(5)]
    for query in ("{v: .v}", "{v: (.v // null)}"):
        done, failed = extract(
            query, good[0], b"nothing", good[1], b"[]", good[2], b'{"v": null}', good[3], b"3"
        )
        assert [record.query_keys["v"] for record in done] == ["0", "1", "2", "3"]
        assert [failure.record.sequence for failure in failed] == [1, 3, 5, 7]


def test_a_query_that_stops_jq_spoils_no_other_record() -> None:
    halting = 'if .v == "1" then halt else {v: .v} end'
    done, failed = extract(halting, b'{"v": "0"}', b'{"v": "1"}', b'{"v": "2"}')
    assert [record.query_keys["v"] for record in done] == ["0", "2"]
    assert [failure.record.sequence for failure in failed] == [1]


def test_a_record_that_never_ends_spoils_no_other() -> None:
    endless = '{v: (if .v == "1" then repeat("x") else .v end)}'
    done, failed = extract(endless, b'{"v": "0"}', b'{"v": "1"}', b'{"v": "2"}')
    assert [record.query_keys["v"] for record in done] == ["0", "2"]
    assert [failure.record.sequence for failure in failed] == [1]


@pytest.mark.parametrize("query", ["{v: env.SECRET}", "{v: $ENV.SECRET}", '{v: (env | .["SECRET"])}'])
def test_queries_see_nothing_of_the_process(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the worker")
    assert "null or empty" in failure_of(query, b"{}")


def test_now_is_the_arrival_so_that_a_retry_makes_the_same_keys() -> None:
    assert keys_of('{day: now | strftime("%Y-%m-%d")}', b"{}") == {"day": "2023-11-14"}
    [first, second], _ = extract("{ms: (now * 1000 | floor)}", b"{}", b"{}")
    assert [first.query_keys["ms"], second.query_keys["ms"]] == ["1700000000000", "1700000000001"]


def test_keys_of_the_lambda_function_stay() -> None:
    record = Record(1, 2, b'{"v":"a"}', b"raw", {}, {"k": "from lambda"})
    [done], _ = MetadataExtraction({"MetadataExtractionQuery": "{v:.v}"}).process([record])
    assert done == record._replace(query_keys={"v": "a"})


# -- the fast way -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("{a: .x}", ["x"]),
        ('{a:.x.y|f, "b c":(.z|tostring), c: ((.x?)) }', ["x", "z"]),
        ('{a: .x | test("a,b\\"}") }', ["x"]),
        ("{a:.x|.b,c:.d}", ["x", "d"]),
        ("{a:.x|if . then .b else .c end}", ["x"]),
        # Whatever is not surely a path from the record on:
        ("{a:.}", None),
        ("{a:..}", None),
        ("{a}", None),
        ("{a:.x and .y}", None),
        ("{a:.x // .y}", None),
        ("{a:(.x // .y)}", None),
        ("{a:(.x)|(.y)}", None),
        ("{a:(.x,.y)}", None),
        ("{a:.x[.y]}", None),
        ('{"a|b":.x.y[.z]}', None),
        ("{a:.x,b:[.y]}", None),
        ("{(.a):.b}", None),
        ('{"a\\(.z)":.x}', None),
        ("{a:.x} | {b:.a}", None),
        ("{a:.x} # }", None),
        ("{a:.x as $y | $y}", None),
        ('{a:."x"}', None),
        ("{a:-.x}", None),
        ("{}", None),
        ("", None),
    ],
)
def test_fields_that_a_query_reads(query: str, fields: list[str] | None) -> None:
    assert fields_used(query) == fields


NAMES = ["x", "y", "z", "\u00e9", "x y"]
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["1.50", "1e3"]).map(float)
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
SIMPLE = [".x", ".y.x", ".x?.y", "(.z)", ".x|tostring", "(.y|length)", ".x|.y", ".z|if . then .x? else 1 end"]
OTHERS = [
    ".",
    "(.x // .y)",
    ".x[.y]?",
    "(.x, .y)",
    "length",
    "[.x]|tostring",
    "keys[0]?",
    '"\\(.z)"',
    "..|.x?",
    "now",
]
values = st.sampled_from([*SIMPLE, *OTHERS])
queries = st.lists(values, min_size=1, max_size=3).map(
    lambda found: "{" + ", ".join(f"k{number}: {value}" for number, value in enumerate(found)) + "}"
)


def comparable(answers: list[Any]) -> list[Any]:
    return [str(answer) if isinstance(answer, BadKeys) else dict(answer) for answer in answers]


@given(queries, st.lists(st.tuples(documents, st.booleans()), max_size=8))
def test_pruned_remembered_and_batched_answers_are_those_of_jq_alone(
    text: str, found: list[tuple[Any, bool]]
) -> None:
    records = [(json.dumps(document, ensure_ascii=ascii_).encode(), 1000) for document, ascii_ in found]
    fast, plain = Query(text), Query(text)
    plain._pruner = None
    expected = [answer for record in records for answer in plain.answers([record])]
    assert comparable(fast.answers(records)) == comparable(expected)
    assert comparable(fast.answers(records)) == comparable(expected)  # remembered


def test_little_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "KEPT_MAX", 10)
    query = Query("{v: .v}")
    for start in range(0, 100, 7):
        answers = query.answers([(b'{"v": %d}' % n, 0) for n in range(start, start + 7)])
        assert comparable(answers) == [{"v": str(n)} for n in range(start, start + 7)]
        assert len(query._kept) <= 10
        assert len(query._keys_of_results) <= 10
    query.answers([(b'{"v": %d}' % n, 0) for n in range(50)])
    query.answers([(json.dumps({"v": "long" * 1000}).encode(), 0)])
    assert len(query._kept) <= 10
    assert all(len(text) < 1000 for text in [*query._kept, *query._keys_of_results])


def test_threads_share_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "KEPT_MAX", 50)  # so that they forget under each other's hands
    query = Query("{v: .v}")

    def answers(start: int) -> list[Any]:
        return comparable(query.answers([(b'{"v": %d}' % (n % 90), 0) for n in range(start, start + 40)]))

    with ThreadPoolExecutor(8) as threads:
        for start, found in enumerate(threads.map(answers, range(300))):
            assert found == [{"v": str(n % 90)} for n in range(start, start + 40)]
