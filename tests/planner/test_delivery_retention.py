"""Records that cannot be delivered are tried for a day, and then given up."""

from __future__ import annotations

from penstock.failures import RETENTION_S
from planner.rig import (
    ARN,
    DeliveryRig,
)

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
