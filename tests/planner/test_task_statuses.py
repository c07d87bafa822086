"""Status messages of S3 tasks: once, in order, and before a task counts as done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.flush import Outcome
from penstock.model import (
    Export,
    ExportKind,
)
from planner.rig import (
    PlannerRig,
    delivered,
    export,
    stored_status,
)


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
