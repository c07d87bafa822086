"""Flushes of delivery streams: when they are due, how large they are, many at a time."""

from __future__ import annotations

import asyncio

import pytest

from penstock.delivery_run import DELIVERY_FLUSHES_MAX
from penstock.flush import LeaseRequest
from planner.rig import (
    ARN,
    MIB,
    DeliveryRig,
    delivered,
    request,
    spans,
)


def test_records_wait_until_the_oldest_is_as_old_as_the_interval(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=60_000)
    rig.put(1)
    rig.clock.advance(30)
    rig.put(1)
    rig.clock.advance(29.9)
    assert rig.lease() == []
    rig.clock.advance(0.2)
    assert spans(rig.lease()) == [(0, 2)]


def test_a_full_buffer_does_not_wait(rig: DeliveryRig) -> None:
    rig.create_delivery(buffer_bytes=MIB)
    rig.put(10, bytes(100_000))
    assert rig.lease() == []
    rig.put(1, bytes(100_000))
    flush = rig.lease_one()
    assert flush.first == 0
    assert flush.next == 11


@pytest.mark.parametrize("payload", [bytes(100_000), b""], ids=["large", "empty"])
def test_a_buffer_that_the_stream_has_no_room_for_does_not_wait_until_it_is_full(
    rig: DeliveryRig, payload: bytes
) -> None:
    rig.create_delivery(buffer_bytes=128 * MIB, max_size_bytes=MIB)
    stream = rig.delivery.stream
    while stream.charged_bytes < 0.4 * MIB:
        rig.put(1 if payload else 1000, payload)
    assert rig.lease() == []
    while stream.charged_bytes < 0.6 * MIB:
        rig.put(1 if payload else 1000, payload)
    assert spans(rig.lease()) == [(0, stream.visible_next)]


def test_an_interval_of_zero_holds_nothing_back(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(3)
    assert spans(rig.lease()) == [(0, 3)]


def test_a_backlog_becomes_many_flushes_of_about_the_buffer_size(rig: DeliveryRig) -> None:
    rig.create_delivery(buffer_bytes=MIB)
    for _ in range(50):
        rig.put(10, bytes(10_000))
    flushes = rig.lease()
    assert [flush.first for flush in flushes[1:]] == [flush.next for flush in flushes[:-1]]
    sizes = [10_000 * (flush.next - flush.first) for flush in flushes]
    assert len(sizes) == 4
    assert all(MIB <= size < MIB + 256 * 1024 for size in sizes)
    assert flushes[-1].next < 500, "the rest is no full buffer"


def test_no_more_than_so_many_flushes_are_in_flight(rig: DeliveryRig) -> None:
    rig.create_delivery(buffer_bytes=MIB)
    for _ in range(DELIVERY_FLUSHES_MAX + 4):
        rig.put(1, bytes(1_000_000))
        rig.put(1, bytes(1_000_000))
    flushes = rig.lease()
    assert len(flushes) == DELIVERY_FLUSHES_MAX
    assert rig.lease() == []
    rig.deliver(flushes[3])
    assert len(rig.lease()) == 1


def test_a_flush_tells_when_its_first_record_arrived(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=60_000)
    arrival_ms = rig.clock.wall_ms()
    rig.put(1)
    rig.clock.advance(61)
    assert rig.lease_one().planned_ms == arrival_ms


def test_the_age_of_records_counts_across_a_restart(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=60_000)
    rig.put(1)
    rig.clock.advance(50)
    rig.drain()
    rig.restart()
    assert rig.lease() == []
    rig.clock.advance(11)
    assert spans(rig.lease()) == [(0, 1)]


def test_the_size_of_the_buffer_counts_across_a_restart(rig: DeliveryRig) -> None:
    rig.create_delivery(buffer_bytes=MIB)
    rig.put(1, bytes(900_000))
    rig.drain()
    rig.restart()
    assert rig.lease() == []
    rig.put(1, bytes(200_000))
    assert spans(rig.lease()) == [(0, 2)]


def test_after_a_restart_new_records_wait_as_long_as_ever(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=60_000)
    rig.put(1)
    rig.clock.advance(61)
    rig.lease_one()
    rig.drain()
    rig.restart()
    assert spans(rig.lease()) == [(0, 1)]
    rig.put(1)
    assert rig.lease() == []
    rig.clock.advance(61)
    assert spans(rig.lease()) == [(1, 2)]


def test_records_in_the_error_output_are_counted(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(3)
    flush = rig.lease_one()
    rig.report(delivered(flush, failed_records=1))
    status = rig.status(ARN, "delivery")
    assert (status.exported_messages, status.skipped_messages) == (3, 1)


def test_one_flush_that_fails_does_not_hold_up_the_others(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    rig.fail(rig.lease_one())
    rig.put(1)
    assert spans(rig.lease()) == [(1, 2)]
    rig.clock.advance(2)
    assert spans(rig.lease(probing=True)) == [(0, 1)]


def test_a_lease_that_waits_is_not_woken_by_records_that_wait_longer(
    rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create_delivery(interval_ms=60_000, buffer_bytes=MIB)
    looks = 0
    leasing = rig.planner._leasing
    next_due_s = leasing._next_due_s

    def count_looks(now_s: float, probing: bool) -> float:
        nonlocal looks
        looks += 1
        return next_due_s(now_s, probing)

    monkeypatch.setattr(leasing, "_next_due_s", count_looks)

    async def wait_and_put() -> int:
        waiting = asyncio.ensure_future(rig.planner.lease(LeaseRequest("p", wait_ms=10_000)))
        for _ in range(3):
            rig.submit(ARN, [b"x"])
            await rig.streams.committer.drain()
            await asyncio.sleep(0.01)  # nothing tells that a lease was not woken
        looked = looks  # each look is at all streams there are
        rig.submit(ARN, [bytes(MIB)])
        await waiting
        return looked

    assert rig.run(wait_and_put()) == 1


def test_flush_now_waits_for_neither_size_nor_age(rig: DeliveryRig) -> None:
    rig.create_delivery()
    rig.put(5)
    assert rig.lease() == []
    rig.run(rig.planner.flush_now(ARN, 0))
    assert spans(rig.lease()) == [(0, 5)]
    rig.put(1)
    assert rig.lease() == [], "what comes later waits as usual"


def test_flush_now_returns_when_all_is_delivered(rig: DeliveryRig) -> None:
    rig.create_delivery()
    rig.put(5)

    async def flush_and_deliver() -> int:
        flushing = asyncio.ensure_future(rig.planner.flush_now(ARN, 30))
        await asyncio.sleep(0)
        leases = await rig.planner.lease(request())
        assert not flushing.done()
        await rig.planner.report("p", [delivered(flush) for flush in leases.flushes])
        run = await flushing
        assert run is not None
        return run.undelivered_from

    assert rig.run(flush_and_deliver()) == 5
