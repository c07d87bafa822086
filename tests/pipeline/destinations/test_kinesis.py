"""Kinesis Data Streams, against moto's server and a proxy before it that makes it fail."""

from __future__ import annotations

import base64
import hashlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from penstock.model import ExportKind
from penstock.pipeline import shards
from penstock.pipeline.destinations import answers
from penstock.pipeline.destinations.base import Cancelled, PipelineSettings
from penstock.pipeline.shards import Load, Shards
from pipeline.destinations.aws_endpoint import FaultyKinesis, refusal, serving
from pipeline.destinations.recording import Recording, deliver

UNPACED = PipelineSettings(kinesis_inter_call_delay_ms=0)
MIB = 1024 * 1024
_names = (f"stream-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def endpoint(moto_url: str) -> Iterator[tuple[FaultyKinesis, str]]:
    faulty = FaultyKinesis(moto_url)
    with serving(faulty) as url:
        yield faulty, url


@pytest.fixture
def kinesis(endpoint: tuple[FaultyKinesis, str], monkeypatch: pytest.MonkeyPatch) -> FaultyKinesis:
    faulty, url = endpoint
    faulty.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", url)
    return faulty


@pytest.fixture(scope="module")
def client(moto_url: str) -> Iterator[Any]:
    made = boto3.client(
        "kinesis",
        region_name="eu-west-1",
        endpoint_url=moto_url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    yield made
    made.close()


@pytest.fixture
def stream(client: Any, kinesis: FaultyKinesis) -> str:
    name = next(_names)
    client.create_stream(StreamName=name, ShardCount=2)
    return name


def stored(client: Any, stream: str) -> dict[str, list[dict[str, Any]]]:
    """Records by shard."""
    found = {}
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        found[shard["ShardId"]] = client.get_records(ShardIterator=iterator, Limit=10_000)["Records"]
    return found


def payloads(client: Any, stream: str) -> list[bytes]:
    return sorted(record["Data"] for records in stored(client, stream).values() for record in records)


def test_every_message_is_a_record(kinesis: FaultyKinesis, client: Any, stream: str) -> None:
    sent = [b"message %d \x00\xff" % number for number in range(1200)]
    progress, error = deliver(ExportKind.KINESIS, sent, first=7, kinesisStreamName=stream, options=UNPACED)
    assert error is None
    assert (progress.next, progress.messages) == (1207, 1200)
    assert progress.payload_bytes == sum(map(len, sent))
    assert payloads(client, stream) == sorted(sent)
    assert [len(request["Records"]) for request in kinesis.requests] == [500, 500, 200]


def test_messages_go_out_in_order_and_in_batches_of_the_export(kinesis: FaultyKinesis, stream: str) -> None:
    sent = [b"%d" % number for number in range(25)]
    deliver(ExportKind.KINESIS, sent, kinesisStreamName=stream, batchSize=10, options=UNPACED)
    assert [len(request["Records"]) for request in kinesis.requests] == [10, 10, 5]
    in_order = [base64.b64decode(r["Data"]) for request in kinesis.requests for r in request["Records"]]
    assert in_order == sent


def test_a_call_stays_below_the_size_limit(kinesis: FaultyKinesis, client: Any, stream: str) -> None:
    sent = [bytes([number]) * (MIB - 2048) for number in range(12)]
    progress, error = deliver(ExportKind.KINESIS, sent, kinesisStreamName=stream, options=UNPACED)
    assert error is None
    assert progress.messages == 12
    assert [len(request["Records"]) for request in kinesis.requests] == [5, 5, 2]


def test_a_record_too_large_for_its_stream_is_skipped_alone(client: Any, stream: str) -> None:
    sent = [b"before", bytes(MIB + 1), b"after", bytes(11 * MIB), b"last"]
    progress, error = deliver(ExportKind.KINESIS, sent, kinesisStreamName=stream, options=UNPACED)
    assert error is None
    assert (progress.next, progress.messages) == (5, 3)
    assert progress.skips.keys() == {1, 3}
    assert f"{MIB + 1} bytes" in progress.skips[1]
    assert payloads(client, stream) == [b"after", b"before", b"last"]


def test_a_refused_call_with_small_records_skips_nothing(kinesis: FaultyKinesis, stream: str) -> None:
    kinesis.arrange(refusal("ValidationException"), refusal("ValidationException"))
    for sent in ([b"a"], [b"a", b"b"]):
        progress, error = deliver(ExportKind.KINESIS, sent, kinesisStreamName=stream, options=UNPACED)
        assert (progress.next, progress.skips) == (0, {})
        assert "ValidationException" in str(error)


def test_only_failed_records_are_sent_again(kinesis: FaultyKinesis, client: Any, stream: str) -> None:
    seen: set[str] = set()

    def refused(record: dict[str, Any]) -> str | None:
        first_time = record["Data"] not in seen
        seen.add(record["Data"])
        return "ProvisionedThroughputExceededException" if first_time and record["Data"][0] == "Q" else None

    kinesis.records_refused = refused
    sent = [b"A%02d" % number if number % 3 else b"F%02d" % number for number in range(30)]
    refused_count = sum(base64.b64encode(payload).startswith(b"Q") for payload in sent)
    progress, error = deliver(ExportKind.KINESIS, sent, kinesisStreamName=stream, options=UNPACED)
    assert error is None
    assert progress.messages == 30
    assert [len(request["Records"]) for request in kinesis.requests] == [30, refused_count]
    assert payloads(client, stream) == sorted(sent)


def test_only_the_beginning_without_a_hole_is_confirmed(
    kinesis: FaultyKinesis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "RETRY_WAITS_S", (0.01, 0.01))
    stubborn = base64.b64encode(b"6").decode()
    kinesis.records_refused = lambda record: "InternalFailure" if record["Data"] == stubborn else None
    sent = [b"%d" % number for number in range(10)]
    progress, error = deliver(ExportKind.KINESIS, sent, kinesisStreamName=stream, options=UNPACED)
    assert (progress.next, progress.messages) == (6, 6)
    assert error is not None
    assert "1 of 1 records failed: InternalFailure: arranged" in str(error)
    assert not error.permanent
    assert [len(request["Records"]) for request in kinesis.requests] == [10, 1, 1]


def test_a_record_that_the_service_calls_invalid_is_skipped(kinesis: FaultyKinesis, stream: str) -> None:
    wrong = base64.b64encode(b"1").decode()
    kinesis.records_refused = lambda record: "InvalidArgumentException" if record["Data"] == wrong else None
    progress, error = deliver(
        ExportKind.KINESIS, [b"0", b"1", b"2"], kinesisStreamName=stream, options=UNPACED
    )
    assert error is None
    assert (progress.next, progress.messages, progress.skips) == (
        3,
        2,
        {1: "InvalidArgumentException: arranged"},
    )


def test_a_throttled_call_is_tried_again(kinesis: FaultyKinesis, client: Any, stream: str) -> None:
    throttled = refusal("ProvisionedThroughputExceededException")
    kinesis.arrange(throttled, throttled, throttled)
    progress, error = deliver(ExportKind.KINESIS, [b"0", b"1"], kinesisStreamName=stream, options=UNPACED)
    assert error is None
    assert progress.next == 2
    assert payloads(client, stream) == [b"0", b"1"]


@pytest.mark.parametrize("delay_ms", [0, 10])
def test_a_stream_that_is_not_there(kinesis: FaultyKinesis, delay_ms: int) -> None:
    options = PipelineSettings(kinesis_inter_call_delay_ms=delay_ms)
    progress, error = deliver(ExportKind.KINESIS, [b"0"], kinesisStreamName="nowhere", options=options)
    assert str(error) == "export stream nowhere doesn't exist"
    assert progress.calls == 0


def test_access_denied(kinesis: FaultyKinesis, stream: str) -> None:
    kinesis.arrange(refusal("AccessDeniedException", text="not authorized to perform kinesis:PutRecords"))
    _, error = deliver(ExportKind.KINESIS, [b"0"], kinesisStreamName=stream, options=UNPACED)
    assert error is not None
    assert not error.permanent
    assert "AccessDeniedException: not authorized to perform kinesis:PutRecords" in str(error)
    progress, error = deliver(ExportKind.KINESIS, [b"0"], kinesisStreamName=stream, options=UNPACED)
    assert (progress.next, error) == (1, None)


def test_endpoint_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    progress, error = deliver(ExportKind.KINESIS, [b"0"], kinesisStreamName="s", options=UNPACED)
    assert progress.calls == 0
    assert error is not None
    assert not error.permanent
    assert "Could not connect" in str(error)


def test_no_region(kinesis: FaultyKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    _, error = deliver(ExportKind.KINESIS, [b"0"], kinesisStreamName="s", options=UNPACED)
    assert error is not None
    assert error.permanent
    assert "AWS_REGION" in str(error)


def test_credentials_that_appear_later_are_used(
    kinesis: FaultyKinesis, client: Any, stream: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    _, error = deliver(ExportKind.KINESIS, [b"0"], kinesisStreamName=stream, options=UNPACED)
    assert error is not None
    assert not error.permanent
    assert "credentials" in str(error)
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    progress, error = deliver(ExportKind.KINESIS, [b"0"], kinesisStreamName=stream, options=UNPACED)
    assert (progress.next, error) == (1, None)


def test_cancelled_between_calls(kinesis: FaultyKinesis, stream: str) -> None:
    progress = Recording(cancel_after=1)
    with pytest.raises(Cancelled):
        deliver(
            ExportKind.KINESIS,
            [b"0"] * 30,
            kinesisStreamName=stream,
            batchSize=10,
            options=UNPACED,
            progress=progress,
        )
    assert progress.next == 10
    assert len(kinesis.requests) == 1


# -- shards and keys --------------------------------------------------------------------------------


def test_listed_shards_get_the_same_number_of_records(client: Any, stream: str) -> None:
    progress, error = deliver(ExportKind.KINESIS, [b"x"] * 100, kinesisStreamName=stream)
    assert error is None
    assert progress.messages == 100
    assert [len(records) for records in stored(client, stream).values()] == [50, 50]


def test_calls_are_apart_where_shards_may_not_be_listed(
    kinesis: FaultyKinesis, client: Any, stream: str
) -> None:
    kinesis.list_shards_answer = refusal("AccessDeniedException")
    options = PipelineSettings(kinesis_inter_call_delay_ms=150)
    started_s = time.monotonic()
    progress, error = deliver(
        ExportKind.KINESIS, [b"x"] * 30, kinesisStreamName=stream, batchSize=10, options=options
    )
    assert error is None
    assert progress.messages == 30
    assert 0.3 <= time.monotonic() - started_s < 2
    assert not any("ExplicitHashKey" in r for request in kinesis.requests for r in request["Records"])
    assert len({r["PartitionKey"] for request in kinesis.requests for r in request["Records"]}) == 30


def test_pace_of_shards() -> None:
    half = 2**127
    both = Shards([(half, 2 * half - 1), (0, half - 1)])
    full_second = [Load(0, 100)] * shards.RECORDS_PER_S
    assert both.reserve(full_second, 100.0) == 0  # what was not used before
    assert both.reserve(full_second, 100.0) == 0  # the present second
    assert both.reserve(full_second, 100.0) == pytest.approx(1.0)
    assert both.reserve([Load(1, 100)], 100.0) == 0
    assert both.reserve([Load(1, 3 * shards.BYTES_PER_S)], 100.0) == 0
    assert both.reserve([Load(1, 1)], 100.0) == pytest.approx(2.0, abs=0.01)
    assert both.reserve([Load(0, 1), Load(1, 1)], 1000.0) == 0


def test_shard_of_a_key_is_found_as_kinesis_does() -> None:
    ranges = [(start * 2**125, (start + 1) * 2**125 - 1) for start in range(8)]
    eight = Shards(ranges)
    for number in range(100):
        value = int(hashlib.md5(str(number).encode()).hexdigest(), 16)
        start, end = ranges[eight.shard_of(str(number))]
        assert start <= value <= end


def test_partition_keys_from_the_message(kinesis: FaultyKinesis, client: Any, stream: str) -> None:
    options = PipelineSettings(partition_keys={"export": "$.device.id"})
    sent = [b'{"device": {"id": "pump-%d"}}' % (number % 3) for number in range(9)] + [b"not JSON"]
    progress, error = deliver(ExportKind.KINESIS, sent, kinesisStreamName=stream, options=options)
    assert error is None
    assert progress.messages == 10
    keys = [record["PartitionKey"] for record in kinesis.requests[0]["Records"]]
    assert keys[:9] == ["pump-0", "pump-1", "pump-2"] * 3
    assert len(keys[9]) == 36
    for records in stored(client, stream).values():
        of_device = [
            record["PartitionKey"] for record in records if record["PartitionKey"].startswith("pump")
        ]
        assert all(of_device.count(key) == 3 for key in of_device)


def test_a_wrong_partition_key_is_told(kinesis: FaultyKinesis, stream: str) -> None:
    options = PipelineSettings(partition_keys={"export": "{device}"})
    _, error = deliver(ExportKind.KINESIS, [b"{}"], kinesisStreamName=stream, options=options)
    assert error is not None
    assert error.permanent
    assert "{device} is unknown" in str(error)
