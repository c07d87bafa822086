"""Records that cannot be delivered are tried for a day, and then given up."""

from __future__ import annotations

import pytest

from penstock.delivery.settings import DataKey
from penstock.delivery_run import DELIVERY_FLUSHES_MAX
from penstock.errors import StorageFailed
from penstock.failures import BACKOFF_MAX_S, RETENTION_S
from planner.rig import ARN, MIB, DeliveryRig, stored_status

DAY_S = 86_400


def test_records_that_could_not_be_delivered_for_a_day_are_given_up_and_counted(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(3)
    rig.fail(rig.lease_one())
    rig.clock.advance(RETENTION_S + 1)
    rig.fail(rig.lease_one(probing=True))
    assert rig.lease() == rig.lease(probing=True) == []
    assert rig.status(ARN, "delivery").lost_messages == 3
    assert rig.delivery.waiting_messages == 0


def test_old_records_that_were_never_tried_are_not_given_up(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(3)
    rig.clock.advance(3 * DAY_S)
    rig.fail(rig.lease_one())
    rig.clock.advance(2)
    rig.deliver(rig.lease_one(probing=True))
    assert rig.status(ARN, "delivery").lost_messages == 0


async def no_keys(stream: str) -> list[DataKey]:
    raise StorageFailed("the key service does not answer")


def test_records_whose_key_could_not_be_had_for_a_day_are_given_up_and_counted(
    rig: DeliveryRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.create_delivery(interval_ms=0)
    rig.planner.data_keys = no_keys
    rig.put(3)
    assert rig.lease() == []
    rig.clock.advance(RETENTION_S - 60)
    assert rig.lease(probing=True) == []
    assert rig.delivery.waiting_messages == 3
    rig.clock.advance(BACKOFF_MAX_S)
    assert rig.lease(probing=True) == []
    assert rig.delivery.waiting_messages == 0
    assert rig.status(ARN, "delivery").lost_messages == 3
    assert "records 0 to 2 are given up after 24 hours without success: the key service" in caplog.text
    rig.drain()
    assert stored_status(rig, ARN, "delivery").lost_messages == 3
    assert rig.store.catalog.flushes() == []


def test_a_backlog_without_its_key_is_given_up_to_its_last_record(rig: DeliveryRig) -> None:
    """More flushes than there can be at the same time."""
    rig.create_delivery(buffer_bytes=MIB, interval_ms=0)
    rig.planner.data_keys = no_keys
    count = DELIVERY_FLUSHES_MAX + 5
    for _ in range(count):
        rig.put(1, bytes(MIB))
    rig.clock.advance(RETENTION_S + 1)
    for _ in range(4):
        assert rig.lease() == rig.lease(probing=True) == []
        rig.clock.advance(BACKOFF_MAX_S)
    assert rig.status(ARN, "delivery").lost_messages == count
    assert rig.delivery.undelivered_from == count


def test_a_flush_that_is_delivered_does_not_hide_why_another_is_not(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    delivered_later = rig.lease_one()
    keys, rig.planner.data_keys = rig.planner.data_keys, no_keys
    rig.put(1)
    assert rig.lease() == []
    rig.deliver(delivered_later)
    assert rig.status(ARN, "delivery").error_message == "the key service does not answer"
    rig.planner.data_keys = keys
    rig.clock.advance(2)
    rig.deliver(rig.lease_one(probing=True))
    assert rig.status(ARN, "delivery").error_message == ""
