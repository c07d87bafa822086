"""Flushes of delivery streams whose segments or streams go, and none that is planned twice."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterable

import pytest

from penstock.catalog import FlushRow
from penstock.flush import Outcome
from penstock.model import (
    Export,
    ExportKind,
)
from planner.rig import (
    ARN,
    MIB,
    DeliveryRig,
    delivered,
    request,
    settings,
    spans,
)


def test_flushes_may_be_done_in_any_order_and_nothing_is_planned_twice(rig: DeliveryRig) -> None:
    rig.create_delivery(buffer_bytes=MIB)
    for _ in range(4):
        rig.put(2, bytes(1_000_000))
    first, second, third, *_ = rig.lease()
    rig.deliver(third)
    rig.deliver(second)
    rig.drain()
    rig.restart()
    again = rig.lease()
    assert (again[0].first, again[0].next, again[0].nonce) == (first.first, first.next, first.nonce)
    assert all(flush.first >= third.next for flush in again[1:])
    assert rig.delivery.undelivered_from == 0
    rig.deliver(again[0])
    assert rig.delivery.undelivered_from >= third.next


def test_records_do_not_get_numbers_that_were_planned_when_the_log_has_lost_them(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(3)
    rig.lease_one()  # never delivered
    rig.put(3)
    rig.deliver(rig.lease_one())
    [segment] = rig.delivery.stream.segments
    rig.close()
    rig.disk.inode(segment.path).truncate(0)
    rig.open()
    rig.put(2)
    assert (6, 8) in spans(rig.lease()), "what gets a lower number is never planned"


def test_segments_of_delivered_records_go_and_nothing_counts_as_lost(rig: DeliveryRig) -> None:
    rig.create_delivery(buffer_bytes=MIB)
    for _ in range(40):
        rig.put(2, bytes(900_000))
    while flushes := rig.lease():
        for flush in flushes[1:]:
            rig.deliver(flush)
        held = flushes[0]
        rig.trim()
        assert rig.delivery.stream.oldest_sequence <= held.first
        rig.deliver(held)
    before = len(rig.delivery.stream.segments)
    rig.trim()
    assert len(rig.delivery.stream.segments) < before
    assert rig.status(ARN, "delivery").lost_messages == 0
    assert rig.delivery.waiting_messages < 4


def test_a_pipeline_that_hangs_up_while_flushes_are_planned_leaves_nothing_that_is_planned_twice(
    rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(3)

    async def lease_and_hang_up() -> None:
        catalog = rig.store.catalog
        writing, hung_up, add_flushes = threading.Event(), threading.Event(), catalog.add_flushes

        def add_slowly(rows: Iterable[FlushRow]) -> None:
            writing.set()
            hung_up.wait(10)
            add_flushes(rows)

        monkeypatch.setattr(catalog, "add_flushes", add_slowly)
        leasing = asyncio.ensure_future(rig.planner.lease(request()))
        await asyncio.to_thread(writing.wait, 10)
        leasing.cancel()
        await asyncio.wait({leasing})
        hung_up.set()
        monkeypatch.undo()

    rig.run(lease_and_hang_up())
    rig.drain()
    flush = rig.lease_one()
    assert (flush.first, flush.next) == (0, 3)
    assert [row.id for row in rig.store.catalog.flushes()] == [flush.id]
    rig.deliver(flush)
    rig.restart()
    assert rig.lease() == []


def test_no_segment_goes_before_the_catalog_knows_that_its_records_are_delivered(
    rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create_delivery(buffer_bytes=MIB)
    for _ in range(20):
        rig.put(2, bytes(900_000))
    flushes = rig.lease()

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(rig.store.catalog, "note_progress", fail)
    with pytest.raises(sqlite3.OperationalError):
        rig.run(rig.planner.report("p", [delivered(flush, done=True) for flush in flushes]))
    rig.trim()
    assert rig.delivery.stream.oldest_sequence == 0, (
        "a restart would deliver the flushes again, without these"
    )
    monkeypatch.undo()
    rig.put(1)
    rig.run(rig.planner.flush_now(ARN, 0))
    for flush in rig.lease():
        rig.deliver(flush)
    rig.trim()
    assert rig.delivery.stream.oldest_sequence > 0


def test_segments_that_were_delivered_before_a_restart_go_after_it(rig: DeliveryRig) -> None:
    rig.create_delivery(buffer_bytes=MIB)
    for _ in range(20):
        rig.put(2, bytes(900_000))
    for flush in rig.lease():
        rig.deliver(flush)
    rig.restart()
    rig.trim()
    assert rig.delivery.stream.oldest_sequence > 0


def test_deleting_the_stream_cancels_its_flushes(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    rig.put(1)
    flush = rig.lease_one()
    rig.run(rig.streams.delete(ARN))
    assert rig.report(Outcome(flush.id, flush.attempt, flush.next, done=True)).cancelled == [flush.id]
    assert rig.store.catalog.flushes() == []


def test_a_stream_that_is_deleted_while_its_flush_is_written_down_holds_up_no_other(
    rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{ARN}-other"
    rig.create_delivery(interval_ms=0)
    rig.create_exported(other, Export(ExportKind.DELIVERY, settings(interval_ms=0)), flush_on_write=True)
    rig.put(1)
    rig.append_many(other, 1)
    catalog, stream = rig.store.catalog, rig.delivery.stream
    add_flushes = catalog.add_flushes

    def add_late(rows: Iterable[FlushRow]) -> None:
        monkeypatch.undo()
        rig.store.delete_stream(stream)  # as the write thread does, before the planner hears of it
        add_flushes(rows)

    monkeypatch.setattr(catalog, "add_flushes", add_late)
    assert rig.lease() == []
    rig.planner._exports.definitions_changed()
    assert [flush.stream for flush in rig.lease()] == [other]
    assert "check the disk" not in caplog.text


def test_delivery_streams_are_no_exports_and_no_message_streams_to_others(rig: DeliveryRig) -> None:
    rig.create_delivery()
    assert rig.planner.runs() == []
    assert rig.streams.names() == []
