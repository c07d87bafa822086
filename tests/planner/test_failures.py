"""What follows a failure: waits, what operators see, and that nobody else has to wait."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.failures import BACKOFF_MAX_S
from penstock.flush import Outcome
from planner.rig import (
    PlannerRig,
    delivered,
    export,
    ranges,
)


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
