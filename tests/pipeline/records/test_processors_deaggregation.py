"""RecordDeAggregation and AppendDelimiterToRecord."""

from __future__ import annotations

import base64
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.destinations.base import DeliveryFailed
from penstock.pipeline.records.processors.deaggregation import DeAggregation
from penstock.pipeline.records.processors.delimiter import AppendDelimiter
from pipeline.records.functions import records_of

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.text(), values, max_size=4)
indents = st.sampled_from([None, 0, 2])


def json_of(data: bytes) -> list[bytes]:
    done, failed = DeAggregation({"SubRecordType": "JSON"}).process(records_of(data))
    assert not failed
    return [record.data for record in done]


@given(
    st.lists(st.tuples(objects, indents, st.booleans()), max_size=6),
    st.sampled_from(["", "\n", "\r\n", " ", "\n\n\t"]),
)
def test_objects_that_were_joined_come_apart_byte_for_byte(
    documents: list[tuple[object, int | None, bool]], separator: str
) -> None:
    texts = [
        json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
        for document, indent, ascii_only in documents
    ]
    assert json_of(separator.encode().join(texts)) == texts
    assert json_of(b"\n" + separator.encode().join(texts) + b" \n") == texts


def test_each_sub_record_keeps_number_arrival_and_the_record_as_it_was_put() -> None:
    [first, second] = records_of(b'{"a":1}{"a":2}', b'{"a":3}', first=41)
    done, failed = DeAggregation({}).process([first, second])
    assert [(r.sequence, r.arrival_ms, r.data, r.raw) for r in done] == [
        (41, first.arrival_ms, b'{"a":1}', first.raw),
        (41, first.arrival_ms, b'{"a":2}', first.raw),
        (42, second.arrival_ms, b'{"a":3}', second.raw),
    ]
    assert not failed


@given(st.lists(st.lists(st.sampled_from([r"\ud83d", r"\uDE00", r"\u00e9", "\\\\", "x", r"\n"])), max_size=4))
def test_half_a_character_stays_what_it_is(texts: list[list[str]]) -> None:
    """JavaScript writes one where a text was cut, and all but us can read it."""
    parts = [b'{"a":"%s"}' % "".join(text).encode() for text in texts]
    assert json_of(b"".join(parts)) == parts
    assert json_of(b" \n".join(parts)) == parts


@pytest.mark.parametrize("data", [b'[{"a":1},{"a":2}]', b'{"a":"}{"}', b'{"a":"\\"}{"}', b'{"a":\n[{}]}'])
def test_what_stays_whole(data: bytes) -> None:
    assert json_of(data) == [data]


@pytest.mark.parametrize(
    "data", [b"text", b'{"a":1}{', b'{"a":1}, {"a":2}', b'{"a":1} # more', b'{"a":1}\x00', b"[" * 100_000]
)
def test_a_record_that_is_not_json_fails_whole(data: bytes) -> None:
    done, [failure] = DeAggregation({}).process(records_of(b'{"b":1}', data))
    assert [record.data for record in done] == [b'{"b":1}']
    assert failure.record.data == failure.record.raw == data
    assert (failure.output_type, failure.code) == ("processing-failed", "RecordDeAggregation.InvalidJson")
    assert "not a sequence of JSON texts" in failure.message


def test_more_sub_records_than_aws_takes_are_split_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    processor = DeAggregation({})
    with caplog.at_level(logging.WARNING):
        done, _ = processor.process(records_of(b"{}" * 501, b"{}" * 502))
    assert len(done) == 1003
    assert [record.getMessage() for record in caplog.records] == [
        "a record holds 501 sub-records: AWS takes apart 500 at most"
    ]


# -- delimited --------------------------------------------------------------------------------------


# Of other bytes than the parts: their ends and beginnings together might look like one.
delimiters = st.text("\x00\x01\n#", min_size=1, max_size=4).map(str.encode)
parts_without = st.binary(min_size=1).map(lambda data: data.translate(bytes(b | 0x80 for b in range(256))))


@given(st.lists(parts_without), delimiters)
def test_parts_that_were_joined_come_apart(parts: list[bytes], delimiter: bytes) -> None:
    encoded = base64.b64encode(delimiter).decode()
    processor = DeAggregation({"SubRecordType": "DELIMITED", "Delimiter": encoded})
    done, failed = processor.process(records_of(delimiter.join(parts)))
    assert [record.data for record in done] == parts
    assert not failed


def test_delimiters_go_and_so_does_what_is_empty() -> None:
    processor = DeAggregation({"SubRecordType": "DELIMITED", "Delimiter": "IyMjIw=="})
    done, _ = processor.process(records_of(b"####a####b c########d####", b"####", b""))
    assert [record.data for record in done] == [b"a", b"b c", b"d"]


@pytest.mark.parametrize("parameters", [{}, {"Delimiter": "####"}, {"Delimiter": ""}])
def test_a_delimiter_that_is_not_base64_is_told(parameters: dict[str, str]) -> None:
    with pytest.raises(DeliveryFailed, match="is not base64") as raised:
        DeAggregation({"SubRecordType": "DELIMITED", **parameters})
    assert raised.value.permanent


def test_an_unknown_kind_is_told() -> None:
    with pytest.raises(DeliveryFailed, match="set SubRecordType to JSON or DELIMITED"):
        DeAggregation({"SubRecordType": "XML"})


# -- appended delimiters ----------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [None, "\\n", "\\\\n", "\n"])
def test_a_line_for_each_record(delimiter: str | None) -> None:
    parameters = {} if delimiter is None else {"Delimiter": delimiter}
    records = records_of(b"a", b"b\n", b"", b"c\r\n", b"\n")
    done, failed = AppendDelimiter(parameters).process(records)
    assert [record.data for record in done] == [b"a\n", b"b\n", b"\n", b"c\r\n", b"\n"]
    assert [record.raw for record in done] == [record.raw for record in records]
    assert not failed


def test_another_delimiter() -> None:
    done, _ = AppendDelimiter({"Delimiter": "|\\r\\n"}).process(records_of(b"a", b"b|\r\n"))
    assert [record.data for record in done] == [b"a|\r\n", b"b|\r\n"]
