"""Progress on its way to the catalog: in order, all or nothing, and again after a failure."""

from __future__ import annotations

import asyncio
import sqlite3

import msgspec
import pytest

from penstock.flush import Flush, LeaseRequest
from penstock.leasing import LEASE_S
from penstock.model import (
    StreamDefinition,
    StreamInfo,
)
from planner.rig import (
    PlannerRig,
    delivered,
    export,
    ranges,
    stored_status,
)


def test_reports_that_come_together_are_stored_in_their_order(rig: PlannerRig) -> None:
    """With the catalog busy, several wait for it; the oldest must not be the last to be written."""
    rig.create_exported("s", export(), messages=200)
    flush = rig.lease_one()

    async def report_in_a_row(start: int) -> None:
        reports = []
        with rig.store.catalog._lock:
            for upto in range(start + 1, start + 6):
                outcome = delivered(flush, upto, since=upto - 1)
                reports.append(asyncio.ensure_future(rig.planner.report("p", [outcome])))
                await asyncio.sleep(0.002)
        await asyncio.gather(*reports)

    for start in range(0, 100, 5):
        rig.run(report_in_a_row(start))
        assert stored_status(rig, "s") == rig.status("s")
        assert rig.store.catalog.flushes()[0].first == start + 5


def test_an_export_that_is_moved_while_a_report_is_stored_stays_moved(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=200)

    async def report_and_move(flush: Flush, start: int) -> None:
        def change(info: StreamInfo) -> tuple[StreamDefinition, dict[str, int]]:
            changed = export(startSequenceNumber=start)
            return msgspec.structs.replace(info.definition, exports=(changed,)), {"e": start}

        with rig.store.catalog._lock:
            reporting = asyncio.ensure_future(rig.planner.report("p", [delivered(flush, start + 50)]))
            await asyncio.sleep(0.002)
            updating = asyncio.ensure_future(rig.streams.update("s", change))
            await asyncio.sleep(0.002)
        await asyncio.gather(reporting, updating)

    for start in range(1, 20):
        rig.run(report_and_move(rig.lease_one(), start))
        rig.drain()
        assert stored_status(rig, "s").last_exported_sequence_number == start - 1
    rig.kill()
    assert ranges(rig.lease()) == [("e", 19, 200)]


def test_a_stream_that_is_deleted_while_a_flush_of_it_is_planned(rig: PlannerRig) -> None:
    """The others in the same lease are not to suffer."""
    rig.create_exported("gone", export("gone"), messages=3)
    rig.create_exported("s", export(), messages=3)

    async def lease_and_delete() -> None:
        with rig.store.catalog._lock:
            deleting = asyncio.ensure_future(rig.streams.delete("gone"))
            await asyncio.sleep(0.01)
            leasing = asyncio.ensure_future(rig.planner.lease(LeaseRequest("p", wait_ms=0)))
            await asyncio.sleep(0.01)
        await asyncio.gather(deleting, leasing)

    rig.run(lease_and_delete())
    rig.clock.advance(LEASE_S + 1)
    assert ranges(rig.lease()) == [("e", 0, 3)]
    rig.kill()
    assert ranges(rig.lease()) == [("e", 0, 3)]


def test_while_the_catalog_fails_nothing_is_handed_out(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    rig.store.catalog._database.execute("PRAGMA query_only = ON")
    assert rig.lease() == []
    rig.store.catalog._database.execute("PRAGMA query_only = OFF")
    rig.clock.advance(1)
    flush = rig.lease_one()
    assert [row.id for row in rig.store.catalog.flushes()] == [flush.id]


def test_what_the_catalog_did_not_take_is_stored_later(rig: PlannerRig) -> None:
    rig.create_exported("s", export("a"), export("b"), messages=10)
    a, b = rig.lease()
    rig.store.catalog._database.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.Error):
        rig.deliver(a)
    rig.store.catalog._database.execute("PRAGMA query_only = OFF")
    rig.deliver(b)
    assert stored_status(rig, "s", "a").last_exported_sequence_number == 9
    assert rig.store.catalog.flushes() == []


def test_plans_of_exports_that_went_are_removed(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    rig.lease_one()
    rig.update("s")
    rig.drain()
    assert rig.store.catalog.flushes() == []
