"""The planner over a real store: what is due, who gets it, and what reports make of it. No Spark in sight."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from faults.rig import Rig
from penstock.bandwidth import Bandwidth
from penstock.failures import BACKOFF_MAX_S
from penstock.flush import Flush, LeaseRequest, Outcome, ReportAnswer
from penstock.leasing import LEASE_S
from penstock.model import (
    Export,
    ExportKind,
    ExportStatus,
    Persistence,
    StrategyOnFull,
    StreamDefinition,
    StreamInfo,
)
from penstock.planner import Planner
from penstock.runs import ExportRun

HTTP = {"uri": "http://127.0.0.1:1/"}
MINUTE_MS = 60_000


def export(identifier: str = "e", kind: ExportKind = ExportKind.HTTP, **settings: Any) -> Export:
    needed = HTTP if kind is ExportKind.HTTP else {}
    return Export(kind, {"identifier": identifier, **needed, **settings})


class PlannerRig(Rig):
    """A rig with a planner on top, whose pipelines are the test itself."""

    bandwidth_kbps: int | None = None
    planner: Planner

    def open(self) -> None:
        super().open()
        self.planner = self.run(self._open_planner())

    async def _open_planner(self) -> Planner:
        kbps = self.bandwidth_kbps
        bandwidth = Bandwidth(kbps, self.clock.monotonic_s) if kbps is not None else None
        return Planner(self.streams, slots=5, bandwidth=bandwidth, monotonic_s=self.clock.monotonic_s)

    def drain(self) -> None:
        super().drain()
        self.run(self.planner.settled())

    def dispose(self) -> None:
        self.drain()
        super().dispose()

    def create_exported(self, name: str, *exports: Export, messages: int = 0, **fields: Any) -> None:
        self.create(name, exports=exports, **fields)
        self.append_many(name, messages)

    def append_many(self, name: str, count: int, payload: bytes = b"x" * 10) -> None:
        if count:
            self.append(name, *[payload] * count)

    def update(self, name: str, *exports: Export, moved: dict[str, int] | None = None) -> None:
        def change(info: StreamInfo) -> tuple[StreamDefinition, dict[str, int]]:
            return msgspec.structs.replace(info.definition, exports=exports), moved or {}

        self.run(self.streams.update(name, change))
        self.drain()

    def lease(self, pipeline: str = "p", *, probing: bool = False, flushes_max: int = 256) -> list[Flush]:
        """What is due right now, as a pipeline would have it: a copy."""
        request = LeaseRequest(pipeline, flushes_max=flushes_max, wait_ms=0, probing=probing)
        leases = self.run(self.planner.lease(request))
        return msgspec.json.decode(msgspec.json.encode(leases.flushes), type=list[Flush])

    def lease_one(self, pipeline: str = "p", *, probing: bool = False) -> Flush:
        [flush] = self.lease(pipeline, probing=probing)
        return flush

    def report(self, *outcomes: Outcome, pipeline: str = "p") -> ReportAnswer:
        answer = self.run(self.planner.report(pipeline, outcomes))
        self.drain()
        return answer

    def deliver(self, flush: Flush, pipeline: str = "p") -> ReportAnswer:
        return self.report(delivered(flush, done=True), pipeline=pipeline)

    def fail(self, flush: Flush, pipeline: str = "p", **fields: Any) -> ReportAnswer:
        return self.report(failed(flush, **fields), pipeline=pipeline)

    def status(self, stream: str, identifier: str = "e") -> ExportStatus:
        statuses = self.streams.describe(stream).export_statuses
        return next(status for status in statuses if status.identifier == identifier)

    def export_run(self, identifier: str = "e") -> ExportRun:
        return next(run for run in self.planner.runs() if run.export.identifier == identifier)

    def payloads(self, name: str) -> list[bytes]:
        return [bytes(message.payload) for message in self.read(name)]


def delivered(flush: Flush, upto: int | None = None, since: int | None = None, **fields: Any) -> Outcome:
    """Ten bytes a message, confirmed up to a number."""
    upto = flush.next if upto is None else upto
    count = upto - (flush.first if since is None else since)
    return Outcome(flush.id, flush.attempt, upto, messages=count, payload_bytes=10 * count, **fields)


def failed(flush: Flush, error: str = "no such host", **fields: Any) -> Outcome:
    return Outcome(flush.id, flush.attempt, flush.first, error=error, done=True, **fields)


def ranges(flushes: Sequence[Flush]) -> list[tuple[str, int, int]]:
    return [(flush.identifier, flush.first, flush.next) for flush in flushes]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[PlannerRig]:
    made = PlannerRig(tmp_path / "data")
    yield made
    made.dispose()


# -- what is due ------------------------------------------------------------------------------------


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


# -- where it starts --------------------------------------------------------------------------------


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


# -- updates ----------------------------------------------------------------------------------------


def test_a_disabled_export_pauses_and_goes_on_from_where_it_was(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    rig.deliver(rig.lease_one())
    rig.update("s", export(disabled=True))
    rig.append_many("s", 2)
    assert rig.lease() == []
    rig.update("s", export(disabled=False))
    assert ranges(rig.lease()) == [("e", 3, 5)]


def test_disabling_stops_the_flush_under_way_and_keeps_what_it_did(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    rig.update("s", export(disabled=True))
    assert rig.report(delivered(flush, 4)).cancelled == [flush.id]
    rig.report(Outcome(flush.id, flush.attempt, 4, done=True))
    assert rig.lease() == []
    rig.update("s", export())
    again = rig.lease_one()
    assert (again.first, again.next, again.nonce) == (4, 10, flush.nonce)
    assert rig.status("s").last_exported_sequence_number == 3


def test_removing_an_export_cancels_its_flush(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    flush = rig.lease_one()
    rig.update("s")
    assert rig.report(delivered(flush, 1)).cancelled == [flush.id]
    rig.update("s", export())
    assert rig.status("s").last_exported_sequence_number == -1
    assert ranges(rig.lease()) == [("e", 0, 3)]
    assert rig.report(delivered(flush)).cancelled == [flush.id]


def test_removing_an_export_tells_of_the_tasks_it_cancels(rig: PlannerRig) -> None:
    rig.create("told")
    status_config = {"statusStreamName": "told", "statusLevel": 1}
    rig.create("s", exports=(export(kind=ExportKind.S3_TASK_EXECUTOR, statusConfig=status_config),))
    rig.append("s", b'{"inputUrl": "file:/x", "bucket": "bbb", "key": "k"}', b"no task")
    rig.lease_one()
    rig.update("s")
    messages = [msgspec.json.decode(payload) for payload in rig.payloads("told")]
    assert [(m["status"], m["statusContext"]["sequenceNumber"]) for m in messages] == [(4, 0), (4, 1)]
    assert messages[0]["statusContext"]["s3ExportTaskDefinition"]["bucket"] == "bbb"


def test_deleting_a_stream_cancels_its_flushes(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    flush = rig.lease_one()
    rig.run(rig.streams.delete("s"))
    assert rig.report(delivered(flush)).cancelled == [flush.id]
    assert rig.planner.runs() == []
    rig.create_exported("s", export(), messages=1)
    assert ranges(rig.lease()) == [("e", 0, 1)]


def test_another_start_sequence_number_moves_the_export(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    rig.deliver(rig.lease_one())
    rig.append_many("s", 2)
    flush = rig.lease_one()
    rig.update("s", export(startSequenceNumber=4), moved={"e": 4})
    assert rig.report(delivered(flush)).cancelled == [flush.id]
    again = rig.lease_one()
    assert (again.first, again.next) == (4, 12)
    assert again.nonce != flush.nonce


def test_the_next_attempt_has_the_settings_of_the_update(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    flush = rig.lease_one()
    rig.update("s", export(uri="http://127.0.0.1:2/"))
    rig.fail(flush)
    rig.clock.advance(BACKOFF_MAX_S)
    assert rig.lease_one(probing=True).settings["uri"] == "http://127.0.0.1:2/"


# -- failures ---------------------------------------------------------------------------------------


def wait_s(rig: PlannerRig) -> float:
    return rig.export_run().not_before_s - rig.clock.monotonic


def test_the_wait_after_a_failure_doubles_up_to_five_minutes(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    waits = []
    for attempt in range(14):
        rig.fail(rig.lease_one(probing=attempt > 0))
        waits.append(wait_s(rig))
        assert rig.lease() == rig.lease(probing=True) == []
        rig.clock.advance(waits[-1])
    expected = [min(2.0**n, BACKOFF_MAX_S) for n in range(14)]
    assert all(0.8 * most <= waited <= most for waited, most in zip(waits, expected, strict=True)), waits
    assert max(waits) > 0.8 * BACKOFF_MAX_S


def test_a_permanent_error_is_not_tried_again_soon(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    rig.fail(rig.lease_one(), permanent=True)
    assert wait_s(rig) == BACKOFF_MAX_S


def test_after_a_success_the_wait_is_short_again(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    for attempt in range(6):
        rig.fail(rig.lease_one(probing=attempt > 0))
        rig.clock.advance(BACKOFF_MAX_S)
    rig.deliver(rig.lease_one(probing=True))
    rig.append_many("s", 1)
    rig.fail(rig.lease_one())
    assert wait_s(rig) <= 1.0


def test_an_attempt_that_delivers_a_part_does_not_lengthen_the_wait(rig: PlannerRig) -> None:
    """A destination that takes less than it gets is slow, not dead."""
    rig.create_exported("s", export(), messages=100)
    for attempt in range(8):
        flush = rig.lease_one(probing=attempt > 0)
        rig.report(delivered(flush, flush.first + 1))
        rig.fail(flush, error="throttled")
        assert wait_s(rig) <= 1.0
        rig.clock.advance(1)


@pytest.mark.parametrize("changed", [{"uri": "http://127.0.0.1:2/"}, {"priority": 1}, {"disabled": True}])
def test_an_update_of_the_export_ends_the_wait(rig: PlannerRig, changed: dict[str, Any]) -> None:
    """Whoever mends the address does not want to wait five minutes for the next try."""
    rig.create_exported("s", export(), messages=3)
    rig.fail(rig.lease_one(), permanent=True)
    rig.update("s", export(**changed))
    rig.update("s", export(**{**changed, "disabled": False}))
    assert ranges(rig.lease()) == [("e", 0, 3)]


def test_an_update_of_something_else_does_not_end_the_wait(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    rig.fail(rig.lease_one(), permanent=True)
    rig.update("s", export(), export("other", disabled=True))
    assert rig.lease() == rig.lease(probing=True) == []


def test_the_error_is_shown_until_something_is_delivered(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    rig.fail(rig.lease_one())
    assert rig.status("s").error_message == "no such host"
    rig.clock.advance(2)
    flush = rig.lease_one(probing=True)
    rig.report(Outcome(flush.id, flush.attempt, flush.first))
    assert rig.status("s").error_message == "no such host"
    rig.report(delivered(flush, 1))
    assert rig.status("s").error_message == ""


def test_the_reason_of_a_skip_is_shown_and_its_bytes_are_not_counted(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    flush = rig.lease_one()
    rig.report(
        Outcome(flush.id, flush.attempt, 3, messages=2, payload_bytes=20, skipped=1, error="bad", done=True)
    )
    status = rig.status("s")
    assert (status.exported_messages, status.exported_bytes, status.skipped_messages) == (2, 20, 1)
    assert (status.last_exported_sequence_number, status.error_message) == (2, "bad")
    rig.append_many("s", 1)
    rig.deliver(rig.lease_one())
    assert rig.status("s").error_message == ""


def test_exports_that_fail_never_hold_up_the_others(rig: PlannerRig) -> None:
    """They are handed out on a lane of their own, however important they are."""
    rig.create_exported("bad", *(export(f"bad-{n}", priority=1) for n in range(20)), messages=1)
    rig.create_exported("good", export("good"), messages=1)
    for flush in rig.lease():
        if flush.stream == "bad":
            rig.fail(flush)
        else:
            rig.deliver(flush)
    rig.clock.advance(BACKOFF_MAX_S)
    rig.append_many("good", 1)
    assert [flush.identifier for flush in rig.lease(flushes_max=1)] == ["good"]
    assert {flush.stream for flush in rig.lease(probing=True)} == {"bad"}


def test_retry_now_ends_the_wait(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    rig.fail(rig.lease_one(), permanent=True)
    assert rig.planner.retry_now("s", "e")
    assert ranges(rig.lease()) == [("e", 0, 3)]
    assert not rig.planner.retry_now("s", "other")


# -- reports ----------------------------------------------------------------------------------------


def counted(rig: PlannerRig, stream: str = "s", identifier: str = "e") -> tuple[int, int, int]:
    status = rig.status(stream, identifier)
    return status.last_exported_sequence_number, status.exported_messages, status.exported_bytes


def test_hearing_a_report_twice_changes_nothing(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    for _ in range(2):
        assert rig.report(delivered(flush, 4)).positions == {flush.id: 4}
        assert counted(rig) == (3, 4, 40)
    for _ in range(2):
        rig.report(delivered(flush, 10, since=4, done=True))
        assert counted(rig) == (9, 10, 100)


def test_hearing_of_a_failure_twice_counts_it_once(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    for _ in range(2):
        rig.fail(flush)
    assert rig.export_run().failures == 1


def test_an_old_report_behind_a_newer_one_changes_nothing(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    rig.report(delivered(flush, 4))
    rig.report(delivered(flush, 8, since=4))
    assert rig.report(delivered(flush, 4)).positions == {flush.id: 8}
    rig.report(delivered(flush, 10, since=8, done=True))
    assert counted(rig) == (9, 10, 100)


def test_a_report_behind_the_end_of_its_attempt_does_not_bring_it_back(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    rig.fail(flush)
    rig.report(delivered(flush, 4))
    rig.clock.advance(BACKOFF_MAX_S)
    assert rig.lease_one(probing=True).first == 4


def test_an_attempt_that_was_given_up_is_told_to_stop_and_its_work_counts(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    old = rig.lease_one("first")
    rig.clock.advance(LEASE_S + 1)
    new = rig.lease_one("second")
    answer = rig.report(delivered(old, 4), pipeline="first")
    assert (answer.cancelled, answer.positions) == ([old.id], {old.id: 4})
    assert rig.report(Outcome(new.id, new.attempt, 0), pipeline="second").positions == {new.id: 4}
    rig.report(delivered(new, 10, since=4, done=True), pipeline="second")
    assert counted(rig) == (9, 10, 100)


def test_an_attempt_that_was_given_up_cannot_end_the_present_one(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    old = rig.lease_one("first")
    rig.clock.advance(LEASE_S + 1)
    rig.lease_one("second")
    rig.fail(old, "first")
    assert (rig.export_run().failures, rig.status("s").error_message) == (0, "")
    assert rig.lease("third") == []


def test_an_attempt_that_was_given_up_may_be_the_one_that_delivers_all(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    old = rig.lease_one("first")
    rig.clock.advance(LEASE_S + 1)
    new = rig.lease_one("second")
    rig.deliver(old, "first")
    assert counted(rig) == (9, 10, 100)
    assert rig.report(Outcome(new.id, new.attempt, 2), pipeline="second").cancelled == [new.id]
    rig.append_many("s", 1)
    assert ranges(rig.lease("second")) == [("e", 10, 11)]


def test_a_pipeline_that_was_only_slow_keeps_the_flush_that_nobody_took(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one("first")
    rig.clock.advance(LEASE_S + 1)
    rig.lease("second", flushes_max=0)
    assert rig.report(delivered(flush, 4), pipeline="first").cancelled == []
    assert rig.lease("second") == []


def test_what_a_pipeline_reports_of_before_a_restart_counts(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    rig.kill()
    assert rig.report(delivered(flush, 4)).cancelled == [flush.id]
    assert ranges(rig.lease()) == [("e", 4, 10)]
    assert counted(rig) == (3, 4, 40)


def test_what_a_pipeline_reports_of_before_a_restart_is_never_taken_for_something_else(
    rig: PlannerRig,
) -> None:
    """Or messages would count as delivered that nobody has seen."""
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    rig.deliver(flush)
    rig.kill()
    rig.create_exported("t", export("other"), messages=10)
    rig.lease_one()
    assert rig.report(delivered(flush, done=True)).cancelled == [flush.id]
    assert counted(rig, "t", "other") == (-1, 0, 0)


def test_part_of_a_flush_is_enough_for_the_status(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    assert rig.status("s").last_export_time_ms == 0
    rig.report(Outcome(flush.id, flush.attempt, flush.first))
    assert rig.status("s").last_export_time_ms == 0
    rig.report(delivered(flush, 4))
    assert rig.status("s").last_export_time_ms == rig.clock.wall
    rig.clock.advance(5)
    rig.fail(flush)
    assert rig.status("s").last_export_time_ms == rig.clock.wall - 5000, "nothing was exported since"


def test_a_pause_does_not_hide_the_error(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    rig.fail(rig.lease_one())
    rig.clock.advance(2)
    flush = rig.lease_one(probing=True)
    rig.update("s", export(disabled=True))
    rig.report(Outcome(flush.id, flush.attempt, flush.first, done=True))
    assert rig.status("s").error_message == "no such host"


# -- leases -----------------------------------------------------------------------------------------


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


# -- status and positions over a restart ------------------------------------------------------------


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


# -- bandwidth --------------------------------------------------------------------------------------


class CappedRig(PlannerRig):
    bandwidth_kbps = 80  # ten thousand bytes a second


@pytest.fixture
def capped_rig(tmp_path: Path) -> Iterator[CappedRig]:
    made = CappedRig(tmp_path / "data")
    yield made
    made.dispose()


def drain_for(rig: PlannerRig, seconds: float) -> int:
    """Deliver all that is handed out, at once. Returns how many messages that were."""
    count = 0
    for _ in range(int(seconds * 10)):
        for flush in rig.lease():
            count += flush.next - flush.first
            rig.deliver(flush)
        rig.clock.advance(0.1)
    return count


def test_the_bandwidth_holds_on_average_over_all_exports(capped_rig: CappedRig) -> None:
    for name in ("a", "b", "c"):
        capped_rig.create_exported(name, export(name))
        capped_rig.append_many(name, 1000, bytes(976))
    drain_for(capped_rig, 5)
    assert 90 <= drain_for(capped_rig, 10) <= 110  # of about 1,000 bytes each


def test_a_long_backlog_is_charged_as_it_goes_not_at_once(capped_rig: CappedRig) -> None:
    capped_rig.create_exported("s", export(), max_size_bytes=2**28, segment_size_bytes=2**26)
    capped_rig.append_many("s", 100, bytes(2**20 - 1000))
    first = capped_rig.lease_one()
    assert first.next == 1, "a single message is more than the bandwidth has in a second"
    capped_rig.deliver(first)
    capped_rig.clock.advance(100)
    assert capped_rig.lease() == []
    capped_rig.clock.advance(10)
    assert ranges(capped_rig.lease()) == [("e", 1, 2)]


def test_without_traffic_credit_does_not_grow_without_end(capped_rig: CappedRig) -> None:
    capped_rig.create_exported("s", export())
    capped_rig.clock.advance(1000)
    capped_rig.append_many("s", 1000, bytes(976))
    assert drain_for(capped_rig, 1) <= 30


# -- the catalog ------------------------------------------------------------------------------------


def stored_status(rig: PlannerRig, stream: str, identifier: str = "e") -> ExportStatus:
    streams = {stored.definition.name: stored for stored in rig.store.catalog.streams()}
    return streams[stream].statuses[identifier]


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


# -- status messages of S3 tasks --------------------------------------------------------------------


def task_export(**settings: Any) -> Export:
    status = {"statusStreamName": "status", "statusLevel": 2}
    return export(kind=ExportKind.S3_TASK_EXECUTOR, statusConfig=status, **settings)


def test_status_messages_are_appended_once_and_in_order(rig: PlannerRig) -> None:
    rig.create("status")
    rig.create_exported("s", task_export(), messages=2)
    flush = rig.lease_one()
    first = Outcome(flush.id, flush.attempt, 0, status_messages=["0 in progress"])
    second = delivered(flush, 1, statuses_before=1, status_messages=["0 done", "1 in progress"])
    for outcome in (first, first, second, first, second):
        rig.report(outcome)
    assert rig.payloads("status") == [b"0 in progress", b"0 done", b"1 in progress"]


def test_the_next_attempt_tells_anew(rig: PlannerRig) -> None:
    rig.create("status")
    rig.create_exported("s", task_export(), messages=1)
    rig.fail(rig.lease_one(), status_messages=["in progress"])
    rig.clock.advance(2)
    flush = rig.lease_one(probing=True)
    rig.report(Outcome(flush.id, flush.attempt, 0, status_messages=["in progress"]))
    assert rig.payloads("status") == [b"in progress", b"in progress"]


def test_a_success_that_an_attempt_that_was_given_up_tells_is_not_lost(rig: PlannerRig) -> None:
    """It tells first and counts then: the second must not be heard without the first."""
    rig.create("status")
    rig.create_exported("s", task_export(), messages=2)
    flush = rig.lease_one()
    rig.report(Outcome(flush.id, flush.attempt, 0, status_messages=["0 in progress"]))
    rig.kill()
    told = Outcome(flush.id, flush.attempt, 0, statuses_before=1, status_messages=["0 done"])
    assert rig.report(told).cancelled == [flush.id]
    rig.report(delivered(flush, 1, statuses_before=2))
    assert rig.status("s").last_exported_sequence_number == 0
    assert rig.payloads("status") == [b"0 in progress", b"0 done"]


def test_a_success_is_told_before_it_counts(rig: PlannerRig) -> None:
    """If the server dies in between, it is told again; the other way round it would never be."""
    rig.create("status", flush_on_write=True)
    rig.create_exported("s", task_export(), messages=1)
    flush = rig.lease_one()
    hold = rig.disk.hold_syncs("*journal*")

    async def report_and_look() -> bool:
        outcome = delivered(flush, 1, status_messages=["done"], done=True)
        reporting = asyncio.ensure_future(rig.planner.report("p", [outcome]))
        await asyncio.sleep(0.05)
        counted = stored_status(rig, "s").last_exported_sequence_number == 0
        hold.let_go()
        await reporting
        return counted

    assert not rig.run(report_and_look())
    assert stored_status(rig, "s").last_exported_sequence_number == 0
    assert rig.payloads("status") == [b"done"]


@pytest.mark.parametrize("trouble", ["full", "deleted"])
def test_a_status_stream_that_takes_nothing_holds_up_nothing(rig: PlannerRig, trouble: str) -> None:
    rig.create("status", max_size_bytes=1024)
    rig.create_exported("s", task_export(), messages=1)
    if trouble == "full":
        rig.append("status", bytes(990))
    else:
        rig.run(rig.streams.delete("status"))
    flush = rig.lease_one()
    rig.report(delivered(flush, status_messages=["in progress", "done"], done=True))
    assert rig.status("s").last_exported_sequence_number == 0
    assert rig.lease() == []


# -- damage -----------------------------------------------------------------------------------------


def test_damage_is_found_wherever_in_the_flush_it_is(rig: PlannerRig) -> None:
    """Not only at its beginning: or the same flush would meet it again and again."""
    rig.create_exported("s", export())
    for n in range(10):
        rig.append("s", b"message %d" % n)
    stream = rig.store.streams["s"]
    path = stream.segments[0].path
    for bad in (b"message 4", b"message 7"):
        rig.disk.flip(path, bytes(rig.disk.inode(path).cached).index(bad))
    rig.fail(rig.lease_one(), error="stored messages are damaged", damaged=True)
    assert [gap.first for gap in stream.gaps()] == [4, 7]


def test_an_export_that_goes_while_its_damage_is_looked_for(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    flush = rig.lease_one()

    async def report_and_remove() -> ReportAnswer:
        outcome = failed(flush, damaged=True)
        reporting = asyncio.ensure_future(rig.planner.report("p", [outcome]))
        await asyncio.sleep(0)
        await rig.streams.delete("s")
        return await reporting

    assert rig.run(report_and_remove()).positions.keys() <= {flush.id}


# -- messages deleted before they are exported ------------------------------------------------------

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
