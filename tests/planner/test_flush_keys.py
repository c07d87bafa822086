"""Data keys go with the flushes of a delivery stream, and without them there is none."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock import flush_keys
from penstock.delivery.settings import DataKey, DeliverySettings
from penstock.errors import StorageFailed
from penstock.model import (
    Export,
    ExportKind,
)
from planner.rig import (
    ARN,
    MIB,
    DeliveryRig,
    settings,
    spans,
)


def test_data_keys_go_with_the_lease_and_are_not_stored(rig: DeliveryRig) -> None:
    async def keys(stream: str) -> list[DataKey]:
        assert stream == ARN
        return [DataKey(0, b"k" * 32)]

    rig.create_delivery(interval_ms=0)
    rig.planner.data_keys = keys
    rig.put(1)
    flush = rig.lease_one()
    assert msgspec.convert(flush.settings, DeliverySettings).data_keys == [DataKey(0, b"k" * 32)]
    [row] = rig.store.catalog.flushes()
    assert row.settings is not None
    assert b"a2tra2" not in row.settings
    rig.deliver(flush)


def test_without_its_key_a_flush_waits_and_says_why(rig: DeliveryRig) -> None:
    async def no_keys(stream: str) -> list[DataKey]:
        raise StorageFailed("the key service does not answer")

    rig.create_delivery(interval_ms=0)
    keys, rig.planner.data_keys = rig.planner.data_keys, no_keys
    rig.put(1)
    assert rig.lease() == []
    assert rig.status(ARN, "delivery").error_message == "the key service does not answer"
    rig.planner.data_keys = keys
    rig.clock.advance(2)
    assert spans(rig.lease(probing=True)) == [(0, 1)]


def test_a_key_that_takes_its_time_holds_up_nobody_else(
    rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_keys, "KEYS_S", 0.05)
    other = f"{ARN}-other"
    rig.create_delivery(buffer_bytes=MIB)
    rig.create_exported(
        other, Export(ExportKind.DELIVERY, settings(interval_ms=0)), flush_on_write=True, max_size_bytes=2**40
    )
    answered = asyncio.Event()
    asked: list[str] = []

    async def keys(stream: str) -> list[DataKey]:
        asked.append(stream)
        if stream == ARN:
            await answered.wait()
        return []

    rig.planner.data_keys = keys
    for _ in range(3):
        rig.put(2, bytes(600_000))
    rig.append_many(other, 1)
    assert [flush.stream for flush in rig.lease()] == [other]
    assert sorted(asked) == [ARN, other], "once for each stream"
    assert rig.status(ARN, "delivery").error_message
    answered.set()
    rig.clock.advance(2)
    assert len(rig.lease(probing=True)) == 3
