"""Who has which flush: pipelines that wait, renew, fall silent or never got it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.flush import Flush, LeaseRequest
from penstock.leasing import LEASE_S
from penstock.model import Export, ExportKind
from planner.rig import (
    MINUTE_MS,
    DeliveryRig,
    PlannerRig,
    delivered,
    export,
    ranges,
    request,
    settings,
)


def test_a_lease_that_waits_hears_of_an_append(rig: PlannerRig) -> None:
    rig.create_exported("s", export())

    async def wait_and_append() -> list[Flush]:
        leasing = asyncio.ensure_future(rig.planner.lease(LeaseRequest("p", wait_ms=10_000)))
        await asyncio.sleep(0)
        rig.submit("s", [b"x"])
        return (await leasing).flushes

    assert ranges(rig.run(wait_and_append())) == [("e", 0, 1)]


def test_all_leases_that_wait_end_when_the_server_stops(rig: PlannerRig) -> None:
    async def wait_and_close() -> list[list[Flush]]:
        requests = [LeaseRequest("p", wait_ms=30_000, probing=probing) for probing in (False, True)]
        leasing = [asyncio.ensure_future(rig.planner.lease(request)) for request in requests]
        await asyncio.sleep(0)
        rig.planner.close()
        return [leases.flushes for leases in await asyncio.gather(*leasing)]

    assert rig.run(wait_and_close()) == [[], []]


def test_a_pipeline_that_is_not_heard_of_loses_its_flushes(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one("first")
    rig.report(delivered(flush, 4), pipeline="first")
    rig.clock.advance(LEASE_S + 1)
    again = rig.lease_one("second")
    assert (again.id, again.first, again.next, again.nonce) == (flush.id, 4, 10, flush.nonce)
    assert again.attempt != flush.attempt


def test_a_pipeline_that_renews_keeps_its_flushes(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one("first")
    for _ in range(5):
        rig.clock.advance(LEASE_S / 2)
        rig.planner.renew("first")
        assert rig.lease("second") == []
    rig.deliver(flush, "first")
    assert rig.status("s").last_exported_sequence_number == 9


def test_a_flush_that_never_reached_its_pipeline_goes_back(rig: PlannerRig) -> None:
    """The answer to a lease may be lost; the pipeline lives on, and would keep it for ever."""
    rig.create_exported("s", export("a"), export("b"), messages=10)
    known, lost = rig.lease("first")
    for _ in range(3):
        rig.planner.renew("first", [known.id])
        assert rig.lease("first") == []
        rig.clock.advance(LEASE_S / 3)
    rig.clock.advance(0.1)
    rig.planner.renew("first", [known.id])
    assert [flush.id for flush in rig.lease("first")] == [lost.id]


def test_a_lease_that_waits_does_not_keep_the_pipeline_alive(rig: PlannerRig) -> None:
    """It may have been killed meanwhile."""
    rig.create_exported("s", export(), messages=10)
    rig.create_exported("other", export("other", batchIntervalMillis=MINUTE_MS))
    flush = rig.lease_one("first")

    async def wait_and_die() -> list[Flush]:
        waiting = asyncio.ensure_future(rig.planner.lease(LeaseRequest("first", wait_ms=600_000)))
        await asyncio.sleep(0.01)
        rig.clock.advance(LEASE_S + 1)
        rig.submit("other", [b"x"])
        await rig.streams.committer.drain()
        await asyncio.sleep(0.01)
        leases = await rig.planner.lease(LeaseRequest("second", wait_ms=0))
        waiting.cancel()
        return leases.flushes

    assert [again.id for again in rig.run(wait_and_die())] == [flush.id]


def test_appends_wake_a_lease_only_when_something_becomes_due(rig: PlannerRig) -> None:
    rig.create_exported("s", export(batchIntervalMillis=MINUTE_MS, batchSize=100))
    woken = 0
    leasing = rig.planner._leasing
    hand_out = leasing._hand_out_due

    async def hand_out_counted(request: LeaseRequest) -> list[Flush]:
        nonlocal woken
        woken += 1
        return await hand_out(request)

    leasing._hand_out_due = hand_out_counted  # type: ignore[method-assign]

    async def wait_and_append() -> list[Flush]:
        waiting = asyncio.ensure_future(rig.planner.lease(LeaseRequest("p", wait_ms=600_000)))
        for _ in range(100):
            await asyncio.sleep(0)
            rig.submit("s", [b"x"])
            await rig.streams.committer.drain()
        return (await waiting).flushes

    assert ranges(rig.run(wait_and_append())) == [("e", 0, 100)]
    assert woken <= 4


def delivery_export(**fields: Any) -> Export:
    return Export(ExportKind.DELIVERY, {**settings(), **fields})


CONVERSION = {"DataFormatConversionConfiguration": {"Enabled": True}}
NO_CONVERSION = {"DataFormatConversionConfiguration": {"Enabled": False}}


@pytest.mark.parametrize(
    ("exported", "wanted"),
    [
        ([], False),
        ([export(sql="SELECT 1")], False),
        ([delivery_export()], False),
        ([delivery_export(config=NO_CONVERSION)], False),
        ([delivery_export(sql="SELECT * FROM records")], True),
        ([delivery_export(config=CONVERSION)], True),
        ([delivery_export(), delivery_export(config=CONVERSION)], True),
    ],
    ids=["no streams", "message stream", "plain", "switched off", "transform", "conversion", "one of two"],
)
def test_who_gets_nothing_hears_whether_spark_sql_is_wanted(
    rig: DeliveryRig, exported: list[Export], wanted: bool
) -> None:
    for number, each in enumerate(exported):
        rig.create_exported(f"s{number}", each)
    assert rig.run(rig.planner.lease(request())).spark_sql is wanted


def test_who_gets_work_hears_nothing_of_spark_sql(rig: DeliveryRig) -> None:
    """There is no time to get ready."""
    rig.create_exported("sql", delivery_export(sql="SELECT * FROM records"))
    rig.create_exported("s", export(), messages=1)
    leases = rig.run(rig.planner.lease(request()))
    assert leases.flushes
    assert not leases.spark_sql
