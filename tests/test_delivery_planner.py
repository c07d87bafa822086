"""Flushes of delivery streams: when they are due, how large they are, many at a time, and never planned twice."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import flush_keys
from penstock.catalog import FlushRow
from penstock.delivery.settings import DataKey, DeliverySettings
from penstock.delivery_run import DELIVERY_FLUSHES_MAX, DeliveryRun
from penstock.errors import StorageFailed
from penstock.failures import RETENTION_S
from penstock.flush import Flush, LeaseRequest, Outcome
from penstock.leasing import LEASE_S
from penstock.model import Export, ExportKind
from test_planner import PlannerRig, delivered, failed

ARN = "arn:aws:firehose:eu-west-1:000000000000:deliverystream/d"
MIB = 2**20
DAY_S = 86_400


def settings(version: str = "1", buffer_bytes: int = 5 * MIB, interval_ms: int = 300_000) -> dict[str, Any]:
    delivery = DeliverySettings(
        arn=ARN,
        name="d",
        account="000000000000",
        region="eu-west-1",
        version=version,
        buffer_bytes=buffer_bytes,
        interval_ms=interval_ms,
        destination="ExtendedS3",
        config={"BucketARN": "arn:aws:s3:::b"},
    )
    built: dict[str, Any] = msgspec.to_builtins(delivery)
    return built


class DeliveryRig(PlannerRig):
    def create_delivery(
        self, max_size_bytes: int = 2**40, segment_size_bytes: int = 16 * MIB, **fields: Any
    ) -> None:
        self.create_exported(
            ARN,
            Export(ExportKind.DELIVERY, settings(**fields)),
            flush_on_write=True,
            max_size_bytes=max_size_bytes,
            segment_size_bytes=segment_size_bytes,
        )

    def put(self, count: int, payload: bytes = b"x" * 100) -> None:
        self.append_many(ARN, count, payload)

    @property
    def delivery(self) -> DeliveryRun:
        run = self.planner.delivery(ARN)
        assert run is not None
        return run

    def trim(self) -> None:
        self.run(self.streams.expire())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DeliveryRig]:
    made = DeliveryRig(tmp_path / "data")
    yield made
    made.dispose()


def spans(flushes: list[Flush]) -> list[tuple[int, int]]:
    return [(flush.first, flush.next) for flush in flushes]


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


def request() -> LeaseRequest:
    return LeaseRequest("p", wait_ms=0)


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
        writing, add_flushes = threading.Event(), catalog.add_flushes

        def add_slowly(rows: Iterable[FlushRow]) -> None:
            writing.set()
            add_flushes(rows)

        monkeypatch.setattr(catalog, "add_flushes", add_slowly)
        leasing = asyncio.ensure_future(rig.planner.lease(request()))
        await asyncio.to_thread(writing.wait, 10)
        leasing.cancel()
        await asyncio.wait({leasing})
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
