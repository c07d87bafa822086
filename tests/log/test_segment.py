"""Segments: written, synced, sealed, opened again, and read around damage."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from faults.disk import FaultyDisk
from penstock.log import frame as frames
from penstock.log.segment import Segment

KEY = 77


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    made = FaultyDisk(tmp_path)
    made.make_directory(tmp_path / "s")
    return made


def new_segment(disk: FaultyDisk, base: int = 0) -> Segment:
    return Segment.create(disk, disk.root / "s", KEY, base)


def fill(segment: Segment, batches: list[list[bytes]], arrival_ms: int = 1000) -> None:
    for i, payloads in enumerate(batches):
        header, buffers = frames.encode(KEY, segment.next_sequence, arrival_ms + i, payloads)
        segment.append(header, buffers)


def test_rule_5_a_failed_sync_is_never_tried_again(disk: FaultyDisk) -> None:
    """After a failed sync the kernel takes the pages for clean: the next one would succeed and prove nothing."""
    segment = new_segment(disk)
    fill(segment, [[b"x"]])
    disk.fail("sync", error=errno.EIO)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            segment.sync()
    assert segment.poisoned
    assert (segment.synced_bytes, segment.durable_bytes) == (0, 0)


def test_rule_5_a_segment_whose_sync_failed_is_not_sealed(disk: FaultyDisk) -> None:
    segment = new_segment(disk)
    fill(segment, [[b"x"], [b"y"]])
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        segment.sync()
    with pytest.raises(OSError, match="Input/output"):
        segment.seal()
    assert not segment.sealed
