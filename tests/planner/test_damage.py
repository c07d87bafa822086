"""Damaged messages that a pipeline meets."""

from __future__ import annotations

import asyncio

from penstock.flush import ReportAnswer
from planner.rig import (
    PlannerRig,
    export,
    failed,
)


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
