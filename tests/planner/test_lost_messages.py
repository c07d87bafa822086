"""Messages that were deleted before they were exported are counted, each once."""

from __future__ import annotations

import random

from penstock.flush import Outcome
from penstock.model import (
    StrategyOnFull,
)
from planner.rig import (
    MINUTE_MS,
    PlannerRig,
    delivered,
    export,
    ranges,
    stored_status,
)

SMALL = {
    "max_size_bytes": 4096,
    "segment_size_bytes": 1024,
    "strategy_on_full": StrategyOnFull.OVERWRITE_OLDEST_DATA,
}


def overwrite(rig: PlannerRig, name: str = "s") -> int:
    """Append until everything that was there is gone. Returns the oldest number now."""
    before = rig.store.streams[name].visible_next
    for _ in range(100):
        rig.append_many(name, 10, b"y" * 50)
        if rig.store.streams[name].oldest_sequence > before:
            return rig.store.streams[name].oldest_sequence
    raise AssertionError("nothing was overwritten")


def test_an_export_goes_on_with_the_oldest_message_when_its_own_were_overwritten(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10, **SMALL)
    rig.deliver(rig.lease_one())
    rig.append_many("s", 10)
    oldest = overwrite(rig)
    flush = rig.lease_one()
    assert flush.first == oldest
    assert rig.status("s").lost_messages == oldest - 10


def test_messages_lost_before_the_first_flush_are_counted(rig: PlannerRig) -> None:
    rig.create_exported("s", export(disabled=True), messages=10, **SMALL)
    oldest = overwrite(rig)
    rig.update("s", export())
    assert rig.lease_one().first == oldest
    assert rig.status("s").lost_messages == oldest


def test_what_went_before_there_was_an_export_is_not_its_loss(rig: PlannerRig) -> None:
    rig.create_exported("s", messages=10, **SMALL)
    oldest = overwrite(rig)
    rig.update("s", export())
    assert rig.lease_one().first == oldest
    assert rig.status("s").lost_messages == 0


def test_messages_of_a_planned_flush_that_were_overwritten_are_counted(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10, **SMALL)
    rig.fail(rig.lease_one())
    oldest = overwrite(rig)
    rig.clock.advance(2)
    flush = rig.lease_one(probing=True)
    assert flush.first == oldest
    assert rig.status("s").lost_messages == oldest
    rig.deliver(flush)
    status = rig.status("s")
    assert (status.lost_messages, status.exported_messages) == (oldest, flush.next - oldest)


def test_messages_overwritten_under_the_hands_of_a_pipeline_are_counted(rig: PlannerRig) -> None:
    """It finds nothing to read any more, and says that the flush is done."""
    rig.create_exported("s", export(), messages=10, **SMALL)
    flush = rig.lease_one()
    rig.report(delivered(flush, 3))
    oldest = overwrite(rig)
    rig.report(Outcome(flush.id, flush.attempt, flush.next, done=True))
    assert rig.status("s").lost_messages == 7
    assert rig.lease_one().first == oldest
    assert rig.status("s").lost_messages == oldest - 3


def test_messages_delivered_before_they_were_overwritten_are_not_lost(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10, **SMALL)
    flush = rig.lease_one()
    overwrite(rig)
    rig.deliver(flush)
    assert rig.status("s").lost_messages == 0


def test_expired_messages_are_counted(rig: PlannerRig) -> None:
    rig.create_exported("s", export(disabled=True), messages=10, ttl_ms=MINUTE_MS)
    rig.clock.advance(120)
    rig.run(rig.streams.expire())
    rig.append_many("s", 1)
    rig.update("s", export())
    assert ranges(rig.lease()) == [("e", 10, 11)]
    assert rig.status("s").lost_messages == 10


def test_losses_are_kept_over_a_restart(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10, **SMALL)
    rig.fail(rig.lease_one())
    oldest = overwrite(rig)
    rig.kill()
    flush = rig.lease_one()
    assert flush.first == oldest
    rig.deliver(flush)
    assert stored_status(rig, "s").lost_messages == oldest


def test_numbers_that_were_never_used_are_not_lost(rig: PlannerRig) -> None:
    """After a power cut numbers are left out; nobody ever had a message there."""
    rig.create_exported("s", export(), messages=3)
    rig.deliver(rig.lease_one())
    rig.power_cut(random.Random(1))
    rig.append_many("s", 2)
    flush = rig.lease_one()
    rig.report(Outcome(flush.id, flush.attempt, flush.next, messages=2, done=True))
    assert rig.status("s").lost_messages == 0
