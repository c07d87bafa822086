"""The cap on what all exports send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.rig import (
    PlannerRig,
    export,
    ranges,
)


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
