"""Names of objects: what Firehose would call them, and the same ones whenever the same flush is tried again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.delivery.settings import DeliverySettings
from penstock.pipeline.object_folder import FolderStore
from penstock.pipeline.records.objects import FlushObjects, Partition
from penstock.pipeline.records.record import Failed, Record
from pipeline.destinations.recording import Recording
from pipeline.records.deliveries import ARRIVAL_MS, HOUR, TIME, delivery_settings, flush_of

UUID4 = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
BACKUP = {"S3BackupMode": "Enabled"}


def objects_of(delivery: DeliverySettings, root: Path = Path("unused")) -> FlushObjects:
    return FlushObjects(flush_of(delivery, 10), delivery, FolderStore(root), Recording())


def data_key(**config: Any) -> str:
    objects = objects_of(delivery_settings(**config))
    return objects.data_key(objects.whole)


@pytest.mark.parametrize(
    ("prefix", "evaluated"),
    [
        (None, HOUR),
        ("", HOUR),
        ("events/", f"events/{HOUR}"),
        ("legacy", f"legacy{HOUR}"),
        ("data/!{timestamp:yyyy/MM/dd}/", "data/2026/07/13/"),
        ("static!{timestamp:'/'}", "static/"),
    ],
)
def test_names_of_data(prefix: str | None, evaluated: str) -> None:
    key = data_key(Prefix=prefix)
    assert re.fullmatch(f"{re.escape(evaluated)}clicks-3-{TIME}-{UUID4}", key), key


def test_the_same_flush_makes_the_same_names_for_ever() -> None:
    """A flush may be planned by one release and delivered by the next."""
    prefix = "!{firehose:random-string}/"
    backup = {"BucketARN": "arn:aws:s3:::raw", "CompressionFormat": "GZIP"}
    objects = objects_of(
        delivery_settings(Prefix=prefix, ErrorOutputPrefix="e/", S3BackupDescription=backup, **BACKUP)
    )
    partition = Partition(("a", "b"), ARRIVAL_MS + 5000, {}, {})
    assert objects.backup_target is not None
    assert [
        objects.data_key(objects.whole),
        objects.data_key(objects.whole, 1, ".parquet"),
        objects.data_key(partition),
        objects.error_key("processing-failed"),
        objects.backup_key(objects.backup_target),
    ] == [
        "zzkN2iRdyXX/clicks-3-2026-07-13-14-05-00-3dd06a06-c735-451c-8b5c-41b50ef38ddb",
        "e5wqWRhiMEn/clicks-3-2026-07-13-14-05-00-87d0ee87-cef1-44d5-b959-b35c903cdddb.parquet",
        "Nv3OQzbNW5s/clicks-3-2026-07-13-14-05-05-7d4cf6f4-c2ab-4fd7-b6d0-fdb556a4a33b",
        "e/processing-failed/2026/07/13/14/clicks-3-2026-07-13-14-05-00-28cd275f-fffa-435c-a6ab-c10b9f96aa0b",
        "2026/07/13/14/clicks-3-2026-07-13-14-05-00-dd914bb2-735a-472a-8d92-aabb02122ac9.gz",
    ]


@pytest.mark.parametrize("compression", ["UNCOMPRESSED", "GZIP", "ZIP", "Snappy", "HADOOP_SNAPPY"])
def test_extensions(compression: str) -> None:
    automatic = {"GZIP": ".gz", "ZIP": ".zip", "Snappy": ".snappy", "HADOOP_SNAPPY": ".snappy"}
    plain = data_key(CompressionFormat=compression)
    assert re.search(r"[0-9a-f]{12}(\.\w+)?$", plain)[1] == automatic.get(compression)  # type: ignore[index]
    assert data_key(CompressionFormat=compression, FileExtension="") == plain
    assert data_key(CompressionFormat=compression, FileExtension=".custom.log").endswith(".custom.log")
    objects = objects_of(delivery_settings(FileExtension=".x"))
    assert objects.data_key(objects.whole, converted=".orc").endswith(".x")


def test_the_time_zone_is_that_of_prefix_and_suffix() -> None:
    key = data_key(CustomTimeZone="Asia/Kolkata")
    assert key.startswith("2026/07/13/19/clicks-3-2026-07-13-19-35-00-")


@pytest.mark.parametrize(
    ("prefix", "error_prefix", "evaluated"),
    [
        (None, None, f"processing-failed/{HOUR}"),
        ("events/", None, f"events/processing-failed/{HOUR}"),
        ("events/", "", f"events/processing-failed/{HOUR}"),
        ("events/", "errors/", f"errors/processing-failed/{HOUR}"),
        ("!{timestamp:yyyy}/", "bad-!{firehose:error-output-type}/", "bad-processing-failed/"),
        ("!{timestamp:yyyy}/", None, f"processing-failed/{HOUR}"),
    ],
)
def test_names_of_errors(prefix: str | None, error_prefix: str | None, evaluated: str) -> None:
    objects = objects_of(
        delivery_settings(
            Prefix=prefix, ErrorOutputPrefix=error_prefix, CompressionFormat="GZIP", FileExtension=".x"
        )
    )
    key = objects.error_key("processing-failed")
    assert re.fullmatch(f"{re.escape(evaluated)}clicks-3-{TIME}-{UUID4}", key), key


def test_backups_have_their_own_block() -> None:
    block = {"BucketARN": "arn:aws-cn:s3:::raw", "Prefix": "raw/", "CompressionFormat": "GZIP"}
    config = {"CustomTimeZone": "Asia/Kolkata", "FileExtension": ".x"}
    for member in ("S3BackupDescription", "S3BackupConfiguration"):
        objects = objects_of(delivery_settings(**config, **BACKUP, **{member: block}))
        target = objects.backup_target
        assert target is not None
        assert target.bucket == "raw"
        assert re.fullmatch(f"raw/{HOUR}clicks-3-{TIME}-{UUID4}.gz", objects.backup_key(target))
    assert objects_of(delivery_settings(S3BackupDescription=block)).backup_target is None


def test_each_object_of_a_flush_has_its_own_name() -> None:
    objects = objects_of(delivery_settings(Prefix="!{partitionKeyFromQuery:k}/", ErrorOutputPrefix="e/"))
    keys = {"k": "same for all"}
    partitions = [("a", "bc"), ("ab", "c"), ("a/1:bc",), ()]
    made = [
        objects.data_key(Partition(values, ARRIVAL_MS, keys, {}), n) for values in partitions for n in (0, 1)
    ]
    made += [objects.error_key(kind) for kind in ("processing-failed", "decompression-failed")]
    assert len({key.rpartition("/")[2] for key in made}) == len(made)


def test_other_flushes_make_other_names() -> None:
    delivery = delivery_settings()
    flush = flush_of(delivery, 10)
    flush.nonce = "another"
    objects = FlushObjects(flush, delivery, FolderStore(Path("unused")), Recording())
    assert objects.data_key(objects.whole) != data_key()


def test_failures_make_one_object_for_each_type(tmp_path: Path) -> None:
    objects = objects_of(delivery_settings(CompressionFormat="GZIP"), tmp_path)
    failures = [
        Failed(Record(n, ARRIVAL_MS, b"", b"%d" % n), kind, "Code", "why")
        for n, kind in enumerate(["processing-failed", "decompression-failed", "processing-failed"])
    ]
    assert objects.put_errors(failures) == {"processing-failed", "decompression-failed"}
    store = FolderStore(tmp_path)
    stored = {key.partition("/")[0]: store.get("landing", key) for key in store.keys("landing")}
    assert {kind: found.body.count(b"\n") for kind, found in stored.items()} == {
        "processing-failed": 2,
        "decompression-failed": 1,
    }
    headers = stored["processing-failed"].headers
    assert (headers.content_type, headers.content_encoding) == ("application/octet-stream", None)


def test_the_key_that_encrypts_is_passed_on(tmp_path: Path) -> None:
    key_arn = "arn:aws:kms:us-east-1:123456789012:key/k"
    encryption = {"KMSEncryptionConfig": {"AWSKMSKeyARN": key_arn}}
    objects = objects_of(delivery_settings(EncryptionConfiguration=encryption), tmp_path)
    objects.put_data([b"x"], objects.whole)
    stored = FolderStore(tmp_path).get("landing", objects.data_key(objects.whole))
    assert stored.headers.kms_key == key_arn
