"""Delivery streams to S3, tried again: the backup, which is stored last, and what an earlier attempt has left."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from object_stores import TestStore, folder_store
from penstock.delivery.settings import DeliverySettings
from penstock.pipeline.destinations import destination_for
from penstock.pipeline.destinations.base import DeliveryFailed, FramePart
from penstock.pipeline.records.processors import jq_apart
from penstock.pipeline.records.processors.query import compiled
from pipeline.destinations.test_s3objects import NO_SERVER, Stored, bodies, deliver, lines, processing
from pipeline.records.deliveries import delivery_settings, flush_of, frame_parts


@pytest.fixture
def aws_environment() -> None:
    """There is no AWS here."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[TestStore]:
    with folder_store(tmp_path / "objects") as store:
        yield store


def backed_up(**config: Any) -> DeliverySettings:
    block = {"BucketARN": "arn:aws:s3:::kept", "CompressionFormat": "UNCOMPRESSED"}
    return delivery_settings(S3BackupMode="Enabled", S3BackupDescription=block, **config)


DELIMITED = processing(("AppendDelimiterToRecord", {}))


@pytest.mark.parametrize("config", [{}, DELIMITED], ids=["whole", "processed"])
def test_a_backup_that_cannot_be_stored_does_not_withhold_the_data(
    folder: TestStore, tmp_path: Path, config: dict[str, Any]
) -> None:
    in_the_way = tmp_path / "objects" / "kept"
    in_the_way.parent.mkdir(parents=True, exist_ok=True)
    in_the_way.write_bytes(b"a file where the bucket should be")
    with pytest.raises(DeliveryFailed, match="kept"):
        deliver(folder, backed_up(**config), [b"a", b"b"])
    [data] = bodies(folder, "landing").values()
    assert data.replace(b"\n", b"") == b"ab"
    in_the_way.unlink()
    deliver(folder, backed_up(**config), [b"a", b"b"])
    assert list(bodies(folder, "landing").values()) == [data]
    assert list(bodies(folder, "kept").values()) == [b"ab"]


class Lazy:
    """Frames of a megabyte that are made when they are asked for."""

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self.reads = 0

    def __iter__(self) -> Iterator[FramePart]:
        self.reads += 1
        for number in range(self._frames):
            yield from frame_parts([os.urandom(64 * 1024) for _ in range(16)], first=16 * number)


@pytest.mark.parametrize("config", [{}, DELIMITED], ids=["whole", "processed"])
def test_a_flush_with_a_backup_is_never_held_as_a_whole(folder: TestStore, config: dict[str, Any]) -> None:
    delivery = backed_up(**config)
    parts = Lazy(frames=64)
    destination = destination_for(flush_of(delivery, 64 * 16), folder.settings, NO_SERVER)
    progress = Stored(0)
    tracemalloc.start()
    try:
        destination.deliver_frames(parts, progress)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (parts.reads, progress.objects) == (2, 2)
    assert peak_bytes < 32 * 1024 * 1024


class Shrinking(list[FramePart]):
    """Something is deleted between the first look and the second."""

    def __iter__(self) -> Iterator[FramePart]:
        yield from list(super().__iter__())
        self.pop()


def test_a_backup_that_lacks_records_does_not_count(folder: TestStore) -> None:
    delivery = backed_up()
    destination = destination_for(flush_of(delivery, 4), folder.settings, NO_SERVER)
    parts = Shrinking(frame_parts([b"a", b"b", b"c", b"d"], frame_records=2))
    with pytest.raises(DeliveryFailed, match="4 records were delivered, but 2 are in the backup"):
        destination.deliver_frames(parts, Stored(0))


def test_a_record_that_took_too_long_and_then_did_not_is_in_one_place(
    folder: TestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "{v: (if .n > 0 then (last(range(.n)) | tostring) else .v end)}"
    parameters = {"MetadataExtractionQuery": query, "JsonParsingEngine": "JQ-1.6"}
    config = {
        "Prefix": "v=!{partitionKeyFromQuery:v}/",
        "ErrorOutputPrefix": "errors/",
        "DynamicPartitioningConfiguration": {"Enabled": True},
        **processing(("MetadataExtraction", parameters)),
    }
    records = [b'{"v":"a","n":0}', b'{"v":"b","n":1000000}']
    monkeypatch.setattr(jq_apart, "TEXT_CPU_S", 0.02)
    deliver(folder, delivery_settings(**config), records)
    [key] = [key for key in bodies(folder, "landing") if key.startswith("errors/")]
    [line] = lines(bodies(folder, "landing")[key])
    assert line["errorMessage"] == jq_apart.TOO_LONG
    monkeypatch.setattr(jq_apart, "TEXT_CPU_S", 60.0)  # however slow the machine is
    compiled.cache_clear()  # another worker tries it again, which nobody had heard of
    deliver(folder, delivery_settings(**config), records)
    assert sorted(bodies(folder, "landing").values()) == records
