"""Dynamic partitioning: what is held until all records of a flush are sorted."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from penstock.pipeline.object_folder import FolderStore
from penstock.pipeline.objects import KEY_BYTES_MAX
from penstock.pipeline.records.objects import FlushObjects, Partition
from penstock.pipeline.records.partitions import Partitions, Places
from penstock.pipeline.records.record import Failed, Record
from pipeline.destinations.recording import Recording
from pipeline.records.deliveries import ARRIVAL_MS, delivery_settings, flush_of

PREFIX = "device=!{partitionKeyFromQuery:device}/"
BATCHES, BATCH_RECORDS, RECORD_BYTES = 50, 1000, 40


def batch(number: int) -> list[Record]:
    first = number * BATCH_RECORDS
    return [
        Record(n, ARRIVAL_MS, b"%040d" % n, b"", {"device": f"d{n % 3}"})
        for n in range(first, first + BATCH_RECORDS)
    ]


def test_a_name_that_only_its_extension_makes_too_long_has_no_place(tmp_path: Path) -> None:
    """It would be refused when everything else is stored, and hold up the flush for ever."""
    plain, converting = [
        FlushObjects(flush_of(delivery, 1), delivery, FolderStore(tmp_path), Recording())
        for delivery in (
            delivery_settings(Prefix=PREFIX),
            delivery_settings(Prefix=PREFIX, DataFormatConversionConfiguration={"Enabled": True}),
        )
    ]
    around_bytes = len(plain.data_key(Partition(("x",), ARRIVAL_MS, {"device": "x"}, {}))) - 1
    record = Record(0, ARRIVAL_MS, b"", b"", {"device": "é" * ((KEY_BYTES_MAX - around_bytes) // 2)})
    assert Places(plain, 500).place(record) == 0
    failed = Places(converting, 500).place(record)
    assert isinstance(failed, Failed)
    assert "it must have 1 to 1024" in failed.message


def test_records_take_no_more_room_than_their_bytes(tmp_path: Path) -> None:
    delivery = delivery_settings(Prefix=PREFIX)
    flush = flush_of(delivery, BATCHES * BATCH_RECORDS)
    objects = FlushObjects(flush, delivery, FolderStore(tmp_path), Recording())
    partitions = Partitions(objects, 500)
    partitions.add(batch(0))
    tracemalloc.start()
    try:
        for number in range(1, BATCHES):
            assert partitions.add(batch(number)) == []
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1.2 * BATCHES * BATCH_RECORDS * RECORD_BYTES
    sorted_records = {partition.values: b"".join(parts) for partition, parts in partitions}
    everything = [record for number in range(BATCHES) for record in batch(number)]
    assert sorted_records == {
        (device,): b"".join(r.data for r in everything if r.query_keys["device"] == device)
        for device in ("d0", "d1", "d2")
    }
