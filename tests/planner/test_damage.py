"""Damaged messages that a pipeline meets."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.failures import BACKOFF_MAX_S, RETENTION_S
from penstock.flush import Flush, Outcome, ReportAnswer
from penstock.log.frame import BadFrame, Frame, decode, decode_header
from penstock.log.segment import FrameRun
from penstock.model import ExportStatus
from planner.rig import ARN, DeliveryRig, PlannerRig, export, failed


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


# -- delivery streams -------------------------------------------------------------------------------


def put_numbered(rig: DeliveryRig, count: int) -> None:
    for number in range(count):
        rig.append(ARN, b"record %d." % number)


def flip(rig: DeliveryRig, *numbers: int) -> None:
    """Records that nobody has read yet are damaged."""
    for number in numbers:
        text = b"record %d." % number
        for segment in rig.delivery.stream.segments:
            stored = bytes(rig.disk.inode(segment.path).cached)
            if text in stored:
                rig.disk.flip(segment.path, stored.index(text))


def deliver_readable(rig: DeliveryRig, flush: Flush) -> None:
    """As the pipeline does: what is known to be damaged is not handed to it, of the rest it notices."""
    first = flush.first
    while True:
        runs, _ = rig.delivery.stream.locate(first, flush.next, 2**30)
        frames = [frame for run in runs for frame in frames_of(run)]
        if all(frames):
            break
        rig.fail(flush, error="stored messages are damaged", damaged=True)
        rig.clock.advance(BACKOFF_MAX_S)
        flush = rig.lease_one(probing=True)
    count = sum(frame.count for frame in frames if frame is not None)
    rig.report(Outcome(flush.id, flush.attempt, flush.next, messages=count, done=True))


def frames_of(run: FrameRun) -> Iterator[Frame | None]:
    raw = run.file.read_at(run.end - run.begin, run.begin)
    position = 0
    while position < len(raw):
        header = decode_header(raw, position)
        try:
            yield decode(raw, position)
        except BadFrame:
            yield None
        position += header.frame_bytes


def figures(status: ExportStatus) -> tuple[int, int]:
    return status.exported_messages, status.lost_messages


@given(data=st.data())
@hypothesis_settings(max_examples=25, deadline=None)
def test_every_record_is_delivered_or_counted_as_lost(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    damaged = data.draw(st.sets(st.integers(0, count - 1)))
    with TemporaryDirectory() as directory:
        rig = DeliveryRig(Path(directory) / "data")
        try:
            rig.create_delivery(interval_ms=0)
            put_numbered(rig, count)
            flip(rig, *damaged)
            deliver_readable(rig, rig.lease_one())
            assert figures(rig.status(ARN, "delivery")) == (count - len(damaged), len(damaged))
        finally:
            rig.dispose()


def test_damaged_records_are_counted_once_across_restarts(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    put_numbered(rig, 10)
    flip(rig, 3, 4)
    rig.fail(rig.lease_one(), error="stored messages are damaged", damaged=True)
    rig.restart()
    assert figures(rig.status(ARN, "delivery")) == (0, 0)
    deliver_readable(rig, rig.lease_one())
    for end in (rig.kill, rig.restart):
        end()
        assert figures(rig.status(ARN, "delivery")) == (8, 2)
    put_numbered(rig, 1)
    deliver_readable(rig, rig.lease_one())
    assert figures(rig.status(ARN, "delivery")) == (9, 2)


def test_damaged_records_that_the_journal_restores_are_delivered(rig: DeliveryRig) -> None:
    """So they do not count as lost before the flush is done."""
    rig.create_delivery(interval_ms=0)
    put_numbered(rig, 10)
    flip(rig, 3, 4)
    rig.fail(rig.lease_one(), error="stored messages are damaged", damaged=True)
    rig.kill()
    deliver_readable(rig, rig.lease_one())
    assert figures(rig.status(ARN, "delivery")) == (10, 0)


def test_damaged_records_that_are_given_up_are_counted_once(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    put_numbered(rig, 10)
    flip(rig, 3)
    rig.fail(rig.lease_one(), error="stored messages are damaged", damaged=True)
    rig.clock.advance(RETENTION_S + 1)
    rig.fail(rig.lease_one(probing=True))
    assert figures(rig.status(ARN, "delivery")) == (0, 10)


def test_records_that_went_with_their_file_are_counted(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    put_numbered(rig, 3)
    rig.lease_one()
    [segment] = rig.delivery.stream.segments
    rig.close()
    rig.disk.inode(segment.path).truncate(0)
    rig.open()
    deliver_readable(rig, rig.lease_one())
    assert figures(rig.status(ARN, "delivery")) == (0, 3)


def test_numbers_of_puts_that_failed_are_not_lost(rig: DeliveryRig) -> None:
    rig.create_delivery(interval_ms=0)
    put_numbered(rig, 2)
    rig.disk.fail("write", "*.open", error=errno.ENOSPC)
    assert rig.append(ARN, b"refused").errors
    put_numbered(rig, 2)
    flush = rig.lease_one()
    assert (flush.first, flush.next) == (0, 5)
    deliver_readable(rig, flush)
    assert figures(rig.status(ARN, "delivery")) == (4, 0)


@pytest.mark.parametrize("end", ["restart", "kill"])
@pytest.mark.parametrize("before", [0, 2])
def test_numbers_of_puts_that_failed_are_not_lost_after_a_restart_either(
    rig: DeliveryRig, before: int, end: str
) -> None:
    """As on a full disk: nothing was acknowledged, and nobody shall look for it."""
    rig.create_delivery(interval_ms=0)
    if before:
        put_numbered(rig, before)
        deliver_readable(rig, rig.lease_one())
    for _ in range(2):
        rig.disk.fail("write", "*.open", error=errno.ENOSPC)
        assert rig.append(ARN, b"refused").errors
    getattr(rig, end)()
    put_numbered(rig, 3)
    deliver_readable(rig, rig.lease_one())
    rig.restart()
    assert figures(rig.status(ARN, "delivery")) == (before + 3, 0)
