"""What reports change: heard twice, out of order, of attempts that were given up, of before a restart."""

from __future__ import annotations

from penstock.failures import BACKOFF_MAX_S
from penstock.flush import Outcome
from penstock.leasing import LEASE_S
from planner.rig import (
    PlannerRig,
    counted,
    delivered,
    export,
    ranges,
)


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
