"""Which settings a flush of a delivery stream goes out with: names of objects depend on them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable

import pytest

from penstock.delivery.settings import DataKey
from penstock.errors import StorageFailed
from penstock.flush import LeaseRequest, Leases
from penstock.leasing import LEASE_S
from penstock.model import Export, ExportKind
from planner.rig import ARN, DeliveryRig, export, failed, settings


def test_a_flush_keeps_the_settings_it_was_planned_with(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    flush = rig.lease_one()
    rig.update(ARN, Export(ExportKind.DELIVERY, settings(version="2", interval_ms=0)))
    rig.drain()
    rig.restart()
    again = rig.lease_one()
    assert (again.id, again.settings["version"]) == (flush.id, "1")


def test_a_flush_that_failed_and_left_nothing_gets_the_new_settings_at_once_and_for_good(
    rig: DeliveryRig,
) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    rig.fail(rig.lease_one())
    rig.update(ARN, Export(ExportKind.DELIVERY, settings(version="2", interval_ms=0)))
    assert rig.lease_one().settings["version"] == "2"
    rig.drain()
    rig.restart()
    assert rig.lease_one().settings["version"] == "2"


def test_new_settings_that_could_not_be_stored_are_stored_before_they_count(
    rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    rig.fail(rig.lease_one())
    rig.update(ARN, Export(ExportKind.DELIVERY, settings(version="2", interval_ms=0)))

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(rig.store.catalog, "change_flushes", fail)
    assert rig.lease() == []
    monkeypatch.undo()
    rig.clock.advance(5)
    assert rig.lease_one().settings["version"] == "2"
    rig.drain()
    rig.restart()
    assert rig.lease_one().settings["version"] == "2", "or the records are delivered twice, by two names"


def test_a_flush_that_failed_and_left_objects_keeps_its_settings(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    rig.report(failed(rig.lease_one(), objects=1))
    rig.update(ARN, Export(ExportKind.DELIVERY, settings(version="2", interval_ms=0)))
    rig.clock.advance(5)
    assert rig.lease_one().settings["version"] == "1"


def backed_up(version: str, bucket: str) -> Export:
    block = {"BucketARN": f"arn:aws:s3:::{bucket}"}
    made = settings(version=version, interval_ms=0)
    config = {**made["config"], "S3BackupMode": "Enabled", "S3BackupDescription": block}
    return Export(ExportKind.DELIVERY, {**made, "config": config})


def test_where_the_backup_goes_can_be_corrected_all_the_same(rig: DeliveryRig) -> None:
    """It is stored last: otherwise a wrong bucket would hold up the stream for a day."""
    rig.create_delivery(interval_ms=0)
    rig.update(ARN, backed_up("1", "mistyped"))
    rig.put(1)
    rig.report(failed(rig.lease_one(), objects=1))
    rig.update(ARN, backed_up("2", "kept"))
    rig.clock.advance(5)
    again = rig.lease_one().settings
    assert again["config"]["S3BackupDescription"]["BucketARN"] == "arn:aws:s3:::kept"
    assert again["version"] == "1"


def test_a_flush_whose_pipeline_vanished_keeps_its_settings(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    rig.lease_one("gone")
    rig.clock.advance(LEASE_S + 1)
    rig.fail(rig.lease_one())
    rig.update(ARN, Export(ExportKind.DELIVERY, settings(version="2", interval_ms=0)))
    assert rig.lease_one().settings["version"] == "1"


# -- over a restart ---------------------------------------------------------------------------------


def change_settings(rig: DeliveryRig, version: str) -> None:
    rig.update(ARN, Export(ExportKind.DELIVERY, settings(version=version, interval_ms=0)))


def frozen_settings(rig: DeliveryRig) -> list[bytes | None]:
    return [row.settings for row in rig.store.catalog.flushes()]


async def no_keys(stream: str) -> list[DataKey]:
    raise StorageFailed("the key service does not answer")


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_flush_that_left_nothing_gets_new_settings_also_after_a_restart(rig: DeliveryRig, end: str) -> None:
    """Or a wrong name of a bucket, mended after the restart, would cost the records that wait."""
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    flush = rig.lease_one()
    rig.fail(flush)
    getattr(rig, end)()
    change_settings(rig, "2")
    again = rig.lease_one()
    assert (again.id, again.nonce, again.settings["version"]) == (flush.id, flush.nonce, "2")


def test_a_flush_that_never_went_out_for_want_of_its_key_gets_new_settings_after_a_restart(
    rig: DeliveryRig,
) -> None:
    rig.create_delivery(interval_ms=0)
    rig.planner.data_keys = no_keys
    rig.put(1)
    assert rig.lease() == []
    rig.restart()
    change_settings(rig, "2")
    assert rig.lease_one().settings["version"] == "2"


@pytest.mark.parametrize("objects", [0, 1])
def test_a_retry_that_was_under_way_at_a_restart_keeps_its_settings(rig: DeliveryRig, objects: int) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    rig.report(failed(rig.lease_one(), objects=objects))
    rig.clock.advance(2)
    rig.lease_one(probing=True)
    rig.kill()
    change_settings(rig, "2")
    assert rig.lease_one().settings["version"] == "1"


def test_hearing_of_a_failure_again_after_a_restart_freezes_nothing(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    flush = rig.lease_one()
    rig.fail(flush)
    rig.kill()
    rig.fail(flush)
    change_settings(rig, "2")
    assert rig.lease_one().settings["version"] == "2"


def test_settings_are_frozen_again_before_a_retry_goes_out_while_the_failure_is_being_noted(
    rig: DeliveryRig,
) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    flush = rig.lease_one()

    async def report_and_retry() -> Leases:
        with rig.store.catalog._lock:
            reporting = asyncio.ensure_future(rig.planner.report("p", [failed(flush)]))
            while not rig.delivery.failures:
                await asyncio.sleep(0)
            rig.clock.advance(2)
            leasing = asyncio.ensure_future(rig.planner.lease(LeaseRequest("p", wait_ms=0, probing=True)))
            await asyncio.wait({leasing}, timeout=0.05)  # nothing tells that it waits for the catalog
            assert not leasing.done()
        await reporting
        return await leasing

    assert len(rig.run(report_and_retry()).flushes) == 1
    rig.drain()
    assert None not in frozen_settings(rig)


def test_only_retries_cost_another_write(rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.create_delivery(interval_ms=0)
    change_flushes = rig.store.catalog.change_flushes
    writes = 0

    def count_writes(rows: Iterable[tuple[int, bytes]]) -> None:
        nonlocal writes
        writes += 1
        change_flushes(rows)

    monkeypatch.setattr(rig.store.catalog, "change_flushes", count_writes)
    flushes = []
    for _ in range(5):
        rig.put(1)
        flushes.append(rig.lease_one())
    assert writes == 0
    for flush in flushes:
        rig.fail(flush)
    assert frozen_settings(rig) == [None] * 5
    rig.clock.advance(2)
    assert len(rig.lease(probing=True)) == 5
    assert writes == 1


def test_while_the_catalog_fails_only_retries_are_held_back(
    rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create_delivery(interval_ms=0)
    rig.create_exported("s", export(), messages=3)
    rig.put(1)
    delivery, other = sorted(rig.lease(), key=lambda flush: flush.stream)
    rig.fail(delivery)
    rig.fail(other)
    rig.clock.advance(2)

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(rig.store.catalog, "change_flushes", fail)
    assert [flush.stream for flush in rig.lease(probing=True)] == ["s"]
    monkeypatch.undo()
    rig.clock.advance(1)
    assert [flush.stream for flush in rig.lease(probing=True)] == [ARN]
