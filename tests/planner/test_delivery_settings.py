"""Which settings a flush of a delivery stream goes out with: names of objects depend on them."""

from __future__ import annotations

import sqlite3

import pytest

from penstock.leasing import LEASE_S
from penstock.model import (
    Export,
    ExportKind,
)
from planner.rig import (
    ARN,
    DeliveryRig,
    failed,
    settings,
)


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


def test_a_flush_whose_pipeline_vanished_keeps_its_settings(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    rig.lease_one("gone")
    rig.clock.advance(LEASE_S + 1)
    rig.fail(rig.lease_one())
    rig.update(ARN, Export(ExportKind.DELIVERY, settings(version="2", interval_ms=0)))
    assert rig.lease_one().settings["version"] == "1"
