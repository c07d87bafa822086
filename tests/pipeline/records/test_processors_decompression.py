"""Decompression and CloudWatchLogProcessing."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.destinations.base import DeliveryFailed
from penstock.pipeline.records.processors import decompression, processed
from penstock.pipeline.records.processors.cloudwatch_logs import CloudWatchLogs
from penstock.pipeline.records.processors.decompression import Decompression
from penstock.pipeline.records.record import Failed
from pipeline.records.functions import records_of

WHOLE = gzip.compress(b"a log line, and another log line", mtime=0)


@given(st.lists(st.binary(), max_size=5))
def test_what_was_compressed_comes_back(payloads: list[bytes]) -> None:
    records = records_of(*[gzip.compress(data) for data in payloads])
    done, failed = Decompression({"CompressionFormat": "GZIP"}).process(records)
    assert [record.data for record in done] == payloads
    assert [record.raw for record in done] == [record.raw for record in records]
    assert not failed


def test_members_of_a_file_are_joined() -> None:
    [record], failed = Decompression({}).process(records_of(gzip.compress(b"a") + gzip.compress(b"b")))
    assert (record.data, failed) == (b"ab", [])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"plain text", "not gzip"),
        (b"", "not gzip"),
        (WHOLE[:-1], "incomplete"),
        (WHOLE[:12], "incomplete"),
        (WHOLE[:-8] + bytes(4) + WHOLE[-4:], "checksum"),
        (WHOLE + b"rest", "not gzip"),
        (gzip.compress(bytes(decompression.DECOMPRESSED_BYTES_MAX + 1), mtime=0), "larger than"),
    ],
)
def test_what_cannot_be_decompressed_keeps_its_bytes_and_holds_up_nobody(data: bytes, problem: str) -> None:
    done, [failure] = Decompression({}).process(records_of(WHOLE, data, WHOLE))
    assert [record.sequence for record in done] == [0, 2]
    assert failure.record.raw == data
    assert (failure.output_type, failure.code) == ("decompression-failed", "Decompression failed.")
    assert (failure.attempts, failure.lambda_arn) == (1, None)
    assert problem in failure.message


def test_the_largest_record_that_may_be() -> None:
    size_bytes = decompression.DECOMPRESSED_BYTES_MAX
    [record], failed = Decompression({}).process(records_of(gzip.compress(bytes(size_bytes), 1)))
    assert (len(record.data), failed) == (size_bytes, [])


def test_records_that_swell_are_not_all_held_at_once() -> None:
    swollen_bytes = 8 << 20
    bomb = gzip.compress(bytes(swollen_bytes))
    per_batch = Decompression.batch_bytes // len(bomb) + 1
    records = records_of(*[bomb] * (per_batch * 4))
    failed: list[Failed] = []
    tracemalloc.start()
    try:
        count = sum(len(batch) for batch in processed([Decompression({})], [records], failed.extend))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (count, failed) == (len(records), [])
    # Two batches, for one is being made while the one before is not yet let go, and what the last record takes.
    assert peak_bytes < swollen_bytes * (2 * per_batch + 2) < swollen_bytes * len(records)


def test_an_unknown_format_is_told() -> None:
    with pytest.raises(DeliveryFailed, match="set CompressionFormat to GZIP") as raised:
        Decompression({"CompressionFormat": "ZSTD"})
    assert raised.value.permanent


# -- log events -------------------------------------------------------------------------------------


def envelope(*messages: str, kind: str = "DATA_MESSAGE") -> bytes:
    events = [{"id": str(n), "timestamp": 1_700_000_000_000, "message": m} for n, m in enumerate(messages)]
    document: dict[str, Any] = {
        "messageType": kind,
        "owner": "123456789012",
        "logGroup": "g",
        "logStream": "s",
    }
    return json.dumps({**document, "subscriptionFilters": ["all"], "logEvents": events}).encode()


@given(st.lists(st.text(), min_size=1))
def test_only_the_messages_remain_a_line_each(messages: list[str]) -> None:
    extraction = CloudWatchLogs({"DataMessageExtraction": "true"})
    [record], failed = extraction.process(records_of(envelope(*messages)))
    assert record.data.decode() == "".join(f"{message}\n" for message in messages)
    assert not failed


def test_a_message_that_was_cut_inside_a_character_is_a_message() -> None:
    text = (
        rb'{"messageType":"DATA_MESSAGE","logEvents":[{"message":"cut \ud83d"},{"message":"\ud83d\ude00"}]}'
    )
    [record], failed = CloudWatchLogs({}).process(records_of(text))
    assert (record.data.decode(), failed) == ("cut ?\n😀\n", [])


def test_control_messages_are_dropped() -> None:
    control = envelope("CWL CONTROL MESSAGE: Checking health of destination", kind="CONTROL_MESSAGE")
    done, failed = CloudWatchLogs({}).process(records_of(control, envelope("kept"), envelope()))
    assert [record.data for record in done] == [b"kept\n"]
    assert not failed


@pytest.mark.parametrize(
    "data", [b"", b"text", b"[]", b"{}", b'{"messageType": "DATA_MESSAGE"}', envelope("a")[:-1], b"\xff"]
)
def test_what_is_no_log_record_goes_to_the_error_output(data: bytes) -> None:
    done, [failure] = CloudWatchLogs({}).process(records_of(data))
    assert not done
    assert (failure.output_type, failure.code) == ("decompression-failed", "Decompression failed.")
    assert "not what CloudWatch Logs sends" in failure.message


def test_without_extraction_records_pass_as_they_are() -> None:
    records = records_of(b"anything")
    assert CloudWatchLogs({"DataMessageExtraction": "false"}).process(records) == (records, [])


def test_from_gzip_to_lines_with_the_compressed_bytes_kept_for_later_failures() -> None:
    compressed = gzip.compress(envelope("one", "two"))
    failed: list[Failed] = []
    chain = [Decompression({}), CloudWatchLogs({})]
    [[record]] = processed(chain, [records_of(compressed)], failed.extend)
    assert (record.data, record.raw, failed) == (b"one\ntwo\n", compressed, [])
