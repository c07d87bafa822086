"""What is due when, how much of it, and in which order."""

from __future__ import annotations

import pytest

from penstock.model import (
    ExportKind,
)
from planner.rig import (
    MINUTE_MS,
    PlannerRig,
    export,
    ranges,
)


def test_without_an_interval_what_is_there_goes_at_once(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    assert ranges(rig.lease()) == [("e", 0, 3)]


def test_a_batch_size_without_an_interval_holds_nothing_back(rig: PlannerRig) -> None:
    rig.create_exported("s", export(batchSize=100), messages=3)
    assert ranges(rig.lease()) == [("e", 0, 3)]


def test_nothing_is_due_while_nothing_waits(rig: PlannerRig) -> None:
    rig.create_exported("s", export())
    assert rig.lease() == []


def test_an_interval_holds_messages_back_until_the_oldest_is_that_old(rig: PlannerRig) -> None:
    rig.create_exported("s", export(batchIntervalMillis=MINUTE_MS), messages=3)
    rig.clock.advance(59.9)
    rig.append_many("s", 1)
    assert rig.lease() == []
    rig.clock.advance(0.2)
    assert ranges(rig.lease()) == [("e", 0, 4)]


def test_a_full_batch_does_not_wait_for_the_interval(rig: PlannerRig) -> None:
    rig.create_exported("s", export(batchIntervalMillis=MINUTE_MS, batchSize=5), messages=4)
    assert rig.lease() == []
    rig.append_many("s", 1)
    assert ranges(rig.lease()) == [("e", 0, 5)]


def test_messages_that_come_during_a_flush_have_an_interval_of_their_own(rig: PlannerRig) -> None:
    rig.create_exported("s", export(batchIntervalMillis=MINUTE_MS), messages=3)
    rig.clock.advance(60)
    flush = rig.lease_one()
    rig.append_many("s", 1)
    rig.clock.advance(59)
    rig.deliver(flush)
    assert rig.lease() == []
    rig.clock.advance(1)
    assert ranges(rig.lease()) == [("e", 3, 4)]


@pytest.mark.parametrize(
    ("kind", "count"),
    [(ExportKind.IOT_SITEWISE, 10), (ExportKind.IOT_ANALYTICS, 100)],
    ids=["sitewise", "iota"],
)
def test_the_size_of_a_full_batch_depends_on_the_destination(
    rig: PlannerRig, kind: ExportKind, count: int
) -> None:
    rig.create_exported("s", export(kind=kind, batchIntervalMillis=MINUTE_MS), messages=count - 1)
    assert rig.lease() == []
    rig.append_many("s", 1)
    assert ranges(rig.lease()) == [("e", 0, count)]


def test_lower_priority_numbers_go_first_and_none_goes_last(rig: PlannerRig) -> None:
    rig.create_exported("a", export("none"), messages=1)
    rig.create_exported("b", export("ten", priority=10), messages=1)
    rig.create_exported("c", export("one", priority=1), messages=1)
    assert [flush.identifier for flush in rig.lease(flushes_max=1)] == ["one"]
    assert [flush.identifier for flush in rig.lease()] == ["ten", "none"]


def test_of_the_same_priority_the_oldest_data_goes_first(rig: PlannerRig) -> None:
    rig.create_exported("late", export("late"))
    rig.create_exported("early", export("early"), messages=1)
    rig.clock.advance(1)
    rig.append_many("late", 1)
    assert [flush.identifier for flush in rig.lease(flushes_max=1)] == ["early"]


def test_an_export_has_one_flush_in_flight(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    flush = rig.lease_one()
    rig.append_many("s", 2)
    assert rig.lease() == []
    rig.deliver(flush)
    assert ranges(rig.lease()) == [("e", 3, 5)]


def test_exports_of_a_stream_have_positions_of_their_own(rig: PlannerRig) -> None:
    rig.create_exported("s", export("a"), export("b"), messages=3)
    a, b = rig.lease()
    rig.deliver(a)
    rig.append_many("s", 1)
    assert ranges(rig.lease()) == [("a", 3, 4)]
    assert (rig.status("s", "a").exported_messages, rig.status("s", "b").exported_messages) == (3, 0)
    rig.deliver(b)
    assert ranges(rig.lease()) == [("b", 3, 4)]


def test_a_flush_of_tasks_is_short(rig: PlannerRig) -> None:
    rig.create_exported("s", export(kind=ExportKind.S3_TASK_EXECUTOR), messages=100)
    flush = rig.lease_one()
    assert (flush.first, flush.next) == (0, 16)


def test_a_backlog_is_cut_into_flushes_of_bounded_size(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), max_size_bytes=2**28, segment_size_bytes=2**26)
    for _ in range(3):
        rig.append_many("s", 40, bytes(2**20 - 1000))
    flush = rig.lease_one()
    assert 60 <= flush.next - flush.first <= 65
    rig.deliver(flush)
    assert rig.lease_one().first == flush.next


def test_the_first_flush_starts_at_the_start_sequence_number(rig: PlannerRig) -> None:
    rig.create_exported("s", export(startSequenceNumber=5), messages=4)
    assert rig.lease() == []
    rig.append_many("s", 4)
    assert ranges(rig.lease()) == [("e", 5, 8)]


def test_the_interval_begins_with_the_first_message_that_counts(rig: PlannerRig) -> None:
    rig.create_exported("s", export(startSequenceNumber=5, batchIntervalMillis=MINUTE_MS), messages=4)
    rig.clock.advance(120)
    rig.append_many("s", 4)
    assert rig.lease() == []
    rig.clock.advance(60)
    assert ranges(rig.lease()) == [("e", 5, 8)]


def test_an_export_added_by_an_update_starts_with_the_oldest_message(rig: PlannerRig) -> None:
    rig.create_exported("s", messages=3)
    assert rig.lease() == []
    rig.update("s", export())
    assert ranges(rig.lease()) == [("e", 0, 3)]
