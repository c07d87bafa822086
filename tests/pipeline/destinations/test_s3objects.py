"""Delivery streams to S3: every record in exactly one object, whatever happens on the way."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import pytest

from object_stores import FaultyS3, TestStore, faulty_s3, folder_store, moto_store, s3_at
from penstock.delivery.sealing import Sealer
from penstock.delivery.settings import DataKey, DeliverySettings
from penstock.pipeline.destinations import destination_for
from penstock.pipeline.destinations.base import DeliveryFailed, PipelineSettings
from penstock.pipeline.records.compression import XERIAL_HEADER
from penstock.pipeline.server_client import ServerClient
from pipeline.destinations.recording import Recording
from pipeline.records.deliveries import ARN, ARRIVAL_MS, HOUR, delivery_settings, flush_of, frame_parts

NO_SERVER = ServerClient("http://127.0.0.1:9", "")
FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:flaky"


class Stored(Recording):
    """Remembers what delivery streams tell besides."""

    failed_records = 0
    objects = 0

    def failed(self, records: int) -> None:
        self.failed_records += records

    def stored(self) -> None:
        self.objects += 1


@pytest.fixture
def aws_environment() -> None:
    """Not that of the other destinations: the stores set their own."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[TestStore]:
    with folder_store(tmp_path / "objects") as store:
        yield store


def deliver(
    stores: TestStore,
    delivery: DeliverySettings,
    records: list[bytes],
    *,
    settings: PipelineSettings | None = None,
    first: int = 0,
    **framing: int,
) -> Stored:
    progress = Stored(first)
    flush = flush_of(delivery, len(records), first)
    destination = destination_for(flush, settings or stores.settings, NO_SERVER)
    destination.deliver_frames(frame_parts(records, first, **framing), progress)
    return progress


def attempt(
    stores: TestStore, delivery: DeliverySettings, records: list[bytes]
) -> tuple[Stored, DeliveryFailed | None]:
    """How far it came, and why not further."""
    progress = Stored()
    destination = destination_for(flush_of(delivery, len(records)), stores.settings, NO_SERVER)
    try:
        destination.deliver_frames(frame_parts(records), progress)
    except DeliveryFailed as error:
        return progress, error
    return progress, None


def bodies(stores: TestStore, bucket: str) -> dict[str, bytes]:
    store = stores.store
    return {key: store.get(bucket, key).body for key in store.keys(bucket)}


def by_prefix(stores: TestStore, bucket: str) -> dict[str, bytes]:
    """What each prefix holds; there is one object in each."""
    found = bodies(stores, bucket)
    prefixes = {key.rpartition("/")[0] + "/": body for key, body in found.items()}
    assert len(prefixes) == len(found)
    return prefixes


def lines(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def raw(text: bytes) -> list[bytes]:
    return [base64.b64decode(line["rawData"]) for line in lines(text)]


def processing(*processors: tuple[str, dict[str, str]]) -> dict[str, Any]:
    listed = [
        {
            "Type": kind,
            "Parameters": [{"ParameterName": n, "ParameterValue": v} for n, v in parameters.items()],
        }
        for kind, parameters in processors
    ]
    return {"ProcessingConfiguration": {"Enabled": True, "Processors": listed}}


def numbered(count: int) -> list[bytes]:
    return [b'{"n":%d,"device":"d%d"}' % (number, number % 3) for number in range(count)]


# -- one object -------------------------------------------------------------------------------------


def unsnappied(body: bytes) -> bytes:
    """Blocks of a length and raw snappy; Hadoop's have the length of the content in front."""
    xerial = body.startswith(XERIAL_HEADER)
    stream, out = io.BytesIO(body[len(XERIAL_HEADER) :] if xerial else body), b""
    while size := stream.read(4 if xerial else 8)[-4:]:
        out += bytes(cramjam.snappy.decompress_raw(stream.read(int.from_bytes(size, "big"))))
    return out


def unzipped(body: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        [name] = archive.namelist()
        assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", name)
        return archive.read(name)


READERS: dict[str, Callable[[bytes], bytes]] = {
    "UNCOMPRESSED": bytes,
    "GZIP": gzip.decompress,
    "ZIP": unzipped,
    "Snappy": unsnappied,
    "HADOOP_SNAPPY": unsnappied,
}


@pytest.mark.parametrize("compression", READERS)
def test_records_are_joined_and_nothing_else(stores: TestStore, compression: str) -> None:
    bucket, records = stores.new_bucket(), numbered(3000)
    delivery = delivery_settings(bucket, CompressionFormat=compression)
    progress = deliver(stores, delivery, records, first=20, frame_records=700, margin=3)
    [(key, body)] = bodies(stores, bucket).items()
    assert key.startswith(f"{HOUR}clicks-3-2026-07-13-14-05-00-")
    assert READERS[compression](body) == b"".join(records)
    size_bytes = len(b"".join(records))
    assert (progress.next, progress.messages, progress.payload_bytes) == (3020, 3000, size_bytes)
    assert (progress.calls, progress.failed_records, progress.objects) == (1, 0, 1)
    headers = stores.store.get(bucket, key).headers
    encoding = {"GZIP": "gzip", "ZIP": "zip", "Snappy": "snappy-java", "HADOOP_SNAPPY": "hadoop-snappy"}
    assert headers.content_type == "application/octet-stream"
    if stores.kind != "rclone":  # which keeps the type only
        assert headers.content_encoding == encoding.get(compression)


def test_record_by_record_gives_the_same_object(folder: TestStore) -> None:
    """The fast way against the slow one: a disabled processor, records that come one by one, a sealed stream."""
    records = [*numbered(500), b"", b"\n", bytes(100_000)]
    delivery = delivery_settings("landing", CompressionFormat="GZIP")
    deliver(folder, delivery, records)
    expected = bodies(folder, "landing")

    key = DataKey(0, bytes(range(32)))
    sealed = Sealer(key.key, ARN).seal(records)
    settings = DeliverySettings(
        **{**{f: getattr(delivery, f) for f in delivery.__struct_fields__}, "data_keys": [key]}
    )
    progress = deliver(folder, settings, sealed)
    assert bodies(folder, "landing") == expected
    assert progress.payload_bytes == len(b"".join(records))

    disabled = processing(("AppendDelimiterToRecord", {}))
    disabled["ProcessingConfiguration"]["Enabled"] = False
    deliver(folder, delivery_settings("landing", CompressionFormat="GZIP", **disabled), records)
    assert bodies(folder, "landing") == expected


def test_nothing_is_left_to_deliver(folder: TestStore) -> None:
    progress = deliver(folder, delivery_settings("landing"), [])
    assert (progress.calls, folder.store.keys("landing")) == (0, [])


def test_a_record_that_cannot_be_opened_holds_up_its_flush(folder: TestStore) -> None:
    delivery = delivery_settings("landing")
    fields = {name: getattr(delivery, name) for name in delivery.__struct_fields__}
    with pytest.raises(DeliveryFailed, match="cannot be decrypted"):
        deliver(
            folder, DeliverySettings(**{**fields, "data_keys": [DataKey(0, bytes(32))]}), [b"not sealed" * 9]
        )
    assert folder.store.keys("landing") == []


# -- processors, partitions, errors, backup ---------------------------------------------------------

PARTITIONED = {
    "Prefix": "device=!{partitionKeyFromQuery:device}/!{timestamp:yyyy}/",
    "ErrorOutputPrefix": "errors/!{firehose:error-output-type}/",
    **processing(
        (
            "MetadataExtraction",
            {"MetadataExtractionQuery": "{device:.device}", "JsonParsingEngine": "JQ-1.6"},
        ),
        ("AppendDelimiterToRecord", {}),
    ),
}


def test_partitions_errors_and_backup(stores: TestStore) -> None:
    bucket, backup = stores.new_bucket(), stores.new_bucket()
    good = numbered(100)
    bad = [b"not json", b'{"device":""}', b'{"device":null}', b"{}"]
    records = [*good[:50], *bad, *good[50:]]
    delivery = delivery_settings(
        bucket,
        **PARTITIONED,
        S3BackupMode="Enabled",
        S3BackupDescription={
            "BucketARN": f"arn:aws:s3:::{backup}",
            "CompressionFormat": "GZIP",
            "Prefix": "raw/",
        },
    )
    progress = deliver(stores, delivery, records)
    found = by_prefix(stores, bucket)
    assert raw(found.pop("errors/processing-failed/")) == bad
    assert found == {
        f"device=d{device}/2026/": b"".join(record + b"\n" for record in good[device::3])
        for device in range(3)
    }
    assert gzip.decompress(by_prefix(stores, backup)[f"raw/{HOUR}"]) == b"".join(records)
    assert (progress.messages, progress.failed_records, progress.next, progress.objects) == (104, 4, 104, 5)


def test_more_partitions_than_there_may_be(folder: TestStore) -> None:
    records = [b'{"device":"d%d"}' % (number % 7) for number in range(70)]
    settings = PipelineSettings(object_store=folder.settings.object_store, active_partitions=5)
    progress = deliver(folder, delivery_settings("landing", **PARTITIONED), records, settings=settings)
    found = by_prefix(folder, "landing")
    failed = found.pop("errors/activePartitionExceeded/")
    assert sorted(found) == [f"device=d{device}/2026/" for device in range(5)]
    assert raw(failed) == [record for record in records if record[-3:-2] in b"56"]
    assert (
        lines(failed)[0]["errorMessage"]
        == "The number of active partitions has exceeded the configured limit"
    )
    assert progress.failed_records == 20


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("x" * 513, "at most 512 are allowed"),
        ("é" * 490, "it must have 1 to 1024"),
        ("a\nb", "control characters"),
    ],
)
def test_keys_that_make_no_name(folder: TestStore, value: str, why: str) -> None:
    records = [json.dumps({"device": device}).encode() for device in ("good", value, "good")]
    deliver(folder, delivery_settings("landing", **PARTITIONED), records)
    found = by_prefix(folder, "landing")
    assert found["device=good/2026/"] == records[0] + b"\n" + records[2] + b"\n"
    [line] = lines(found["errors/processing-failed/"])
    assert line["errorCode"] == "DynamicPartitioning.MetadataExtractionFailed"
    assert why in line["errorMessage"]


def test_time_in_the_name_of_a_partition_is_that_of_its_oldest_record(folder: TestStore) -> None:
    config = {**PARTITIONED, "Prefix": "!{partitionKeyFromQuery:device}-!{timestamp:SSS}/"}
    deliver(folder, delivery_settings("landing", **config), numbered(6))
    oldest = ARRIVAL_MS % 1000
    assert sorted(by_prefix(folder, "landing")) == [f"d{device}-{oldest + device}/" for device in range(3)]


def test_all_records_failed(folder: TestStore) -> None:
    config = processing(("Decompression", {"CompressionFormat": "GZIP"}))
    progress = deliver(folder, delivery_settings("landing", **config), [b"plain", b"text"])
    found = by_prefix(folder, "landing")
    assert raw(found.pop(f"decompression-failed/{HOUR}")) == [b"plain", b"text"]
    assert found == {}
    assert (progress.messages, progress.failed_records) == (2, 2)


def test_a_record_of_many_is_told_of_once(folder: TestStore) -> None:
    """De-aggregated, a record may fail as often as it has bytes, and each line would hold all of it."""
    config = {
        **PARTITIONED,
        **processing(
            ("RecordDeAggregation", {"SubRecordType": "JSON"}),
            (
                "MetadataExtraction",
                {"MetadataExtractionQuery": "{device:.device}", "JsonParsingEngine": "JQ-1.6"},
            ),
        ),
    }
    together = b'{"device":"a"}{"other":1}{"other":2}'
    progress = deliver(folder, delivery_settings("landing", **config), [together, b'{"device":"a"}'])
    found = by_prefix(folder, "landing")
    assert found["device=a/2026/"] == b'{"device":"a"}' * 2
    assert raw(found["errors/processing-failed/"]) == [together]
    assert (progress.messages, progress.failed_records) == (2, 1)


# -- trying again -----------------------------------------------------------------------------------

working = True


def flaky(event: dict[str, Any], context: object) -> dict[str, Any]:
    """A function that refuses some records for a while."""
    results = [
        {
            "recordId": record["recordId"],
            "result": "Ok" if working or number % 2 else "ProcessingFailed",
            "data": record["data"],
        }
        for number, record in enumerate(event["records"])
    ]
    return {"records": results}


def test_what_a_function_refused_once_and_not_again_is_delivered_once(
    stores: TestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, records = stores.new_bucket(), numbered(4)
    lambdas = {"flaky": f"python:{__name__}:flaky"}
    settings = PipelineSettings(object_store=stores.settings.object_store, lambdas=lambdas)
    config = processing(("Lambda", {"LambdaArn": FUNCTION}))
    delivery = delivery_settings(bucket, **config)

    monkeypatch.setitem(globals(), "working", False)
    deliver(stores, delivery, records, settings=settings)
    halves = by_prefix(stores, bucket)
    assert halves[HOUR] == records[1] + records[3]
    failed = halves[f"processing-failed/{HOUR}"]
    assert raw(failed) == [records[0], records[2]]
    assert lines(failed)[0]["lambdaARN"] == FUNCTION

    # The pipeline is killed before it can tell, and another one tries the same flush.
    monkeypatch.setitem(globals(), "working", True)
    deliver(stores, delivery, records, settings=settings)
    assert by_prefix(stores, bucket) == {HOUR: b"".join(records)}


@pytest.fixture(scope="module")
def faulty() -> Iterator[tuple[FaultyS3, TestStore]]:
    with (
        moto_store(),
        faulty_s3(os.environ["AWS_ENDPOINT_URL_S3"]) as (proxy, url),
        s3_at(url, "moto") as store,
    ):
        yield proxy, store


@pytest.mark.parametrize("stored_before", range(6))
def test_a_failure_in_the_middle_leaves_the_same_names(
    faulty: tuple[FaultyS3, TestStore], stored_before: int
) -> None:
    proxy, stores = faulty
    buckets = stores.new_bucket(), stores.new_bucket(), stores.new_bucket(), stores.new_bucket()
    records = [*numbered(30), b"not json"]

    def delivery(bucket: str, backup: str) -> DeliverySettings:
        config = {**PARTITIONED, "Prefix": "!{partitionKeyFromQuery:device}/!{firehose:random-string}/"}
        block = {"BucketARN": f"arn:aws:s3:::{backup}", "Prefix": "!{firehose:random-string}/"}
        return delivery_settings(bucket, S3BackupMode="Enabled", S3BackupDescription=block, **config)

    undisturbed = deliver(stores, delivery(*buckets[:2]), records)
    assert undisturbed.objects == 5
    proxy.fail("PutObject", 500, "InternalError", after=stored_before)
    progress, error = attempt(stores, delivery(*buckets[2:]), records)
    if stored_before < 5:
        assert error is not None
        assert "S3.InternalError" in str(error)
        assert not error.permanent
        # Nothing is told before everything is stored; what S3 failed at may be there all the same.
        assert (progress.calls, progress.objects) == (0, stored_before + 1)
    else:
        assert error is None
    proxy.heal()
    deliver(stores, delivery(*buckets[2:]), records)
    for fresh, again in zip(buckets[:2], buckets[2:], strict=True):
        assert stores.store.keys(again) == stores.store.keys(fresh)
        without_errors = [key for key in stores.store.keys(again) if not key.startswith("errors/")]
        assert all(stores.store.get(again, k).body == stores.store.get(fresh, k).body for k in without_errors)


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (404, "NoSuchBucket"), (503, "SlowDown")]
)
def test_what_s3_says_is_told_and_tried_again(
    faulty: tuple[FaultyS3, TestStore], status: int, code: str
) -> None:
    proxy, stores = faulty
    bucket = stores.new_bucket()
    proxy.fail("PutObject", status, code)
    with pytest.raises(DeliveryFailed, match=f"S3.{code}: s3://{bucket}/") as caught:
        deliver(stores, delivery_settings(bucket), numbered(3))
    proxy.heal()
    assert not caught.value.permanent


@pytest.mark.parametrize("stores", ["moto", "rclone"], indirect=True)  # a folder makes its buckets
def test_a_bucket_that_is_missing(stores: TestStore) -> None:
    progress, error = attempt(stores, delivery_settings("nobody-made-it"), numbered(3))
    assert "S3.NoSuchBucket" in str(error)
    assert progress.objects == 0  # so that another configuration may take its place


def test_a_prefix_that_is_too_long_is_permanent(folder: TestStore) -> None:
    with pytest.raises(DeliveryFailed, match="at most 512") as caught:
        deliver(folder, delivery_settings("landing", Prefix="x" * 510), numbered(3))
    assert caught.value.permanent


def test_deleting_may_be_forbidden(faulty: tuple[FaultyS3, TestStore]) -> None:
    """AWS's own policy for delivery streams does not allow it."""
    proxy, stores = faulty
    bucket = stores.new_bucket()
    proxy.fail("AbortMultipartUpload", 403, "AccessDenied")  # which is a DELETE too
    settings = PipelineSettings(object_store="s3", lambdas={"flaky": f"python:{__name__}:flaky"})
    config = processing(("Lambda", {"LambdaArn": FUNCTION}))
    progress = deliver(stores, delivery_settings(bucket, **config), numbered(4), settings=settings)
    assert "AbortMultipartUpload" in proxy.operations()
    proxy.heal()
    assert progress.messages == 4
