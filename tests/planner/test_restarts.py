"""Positions and planned flushes over a restart of the server."""

from __future__ import annotations

import msgspec

from penstock.model import (
    Persistence,
)
from planner.rig import (
    PlannerRig,
    delivered,
    export,
    ranges,
)


def test_a_restart_keeps_positions_counters_and_errors(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    rig.report(delivered(rig.lease_one(), 6, error="full", done=True))
    before = msgspec.structs.astuple(rig.status("s"))
    rig.kill()
    assert msgspec.structs.astuple(rig.status("s")) == before
    assert before[1] == 5


def test_after_a_restart_it_is_the_same_flush(rig: PlannerRig) -> None:
    """The names of objects are made of it."""
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    rig.report(delivered(flush, 4))
    rig.append_many("s", 5)
    rig.kill()
    again = rig.lease_one()
    assert (again.first, again.next) == (4, 10)
    assert (again.planned_ms, again.nonce) == (flush.planned_ms, flush.nonce)
    rig.deliver(again)
    assert ranges(rig.lease()) == [("e", 10, 15)]


def test_a_delivered_flush_does_not_come_back_after_a_restart(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    rig.deliver(rig.lease_one())
    rig.kill()
    assert rig.lease() == []
    assert rig.store.catalog.flushes() == []


def test_a_memory_stream_starts_from_nothing_after_a_restart(rig: PlannerRig) -> None:
    """Its messages are gone, and their numbers are used again: what was planned for them must not be."""
    rig.create_exported("s", export(), messages=10, persistence=Persistence.MEMORY)
    rig.report(delivered(rig.lease_one(), 5))
    rig.kill()
    assert rig.lease() == []
    rig.append_many("s", 3)
    assert ranges(rig.lease()) == [("e", 0, 3)]


def test_a_planned_flush_never_leaves_messages_out(rig: PlannerRig) -> None:
    """A crash may leave a plan behind that the position was moved away from."""
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    rig.report(delivered(flush, 8))
    row = rig.store.catalog.flushes()
    rig.update("s", export(startSequenceNumber=2), moved={"e": 2})
    rig.kill()
    rig.store.catalog.add_flushes(row)
    rig.kill()
    assert ranges(rig.lease()) == [("e", 2, 10)]
