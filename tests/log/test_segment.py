"""Segments: written, synced, sealed, opened again, and read around damage."""

from __future__ import annotations

import contextlib
import errno
import itertools
import sys
import threading
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


# -- rule 8: sealing ----------------------------------------------------------------------------------


def content_of(segment: Segment) -> list[tuple[int, int, bytes]]:
    """Number, arrival and payload of every message."""
    return [
        (frame.first_sequence + i, arrival, payload)
        for frame in segment.read_frames(segment.base, segment.next_sequence)
        for i, (arrival, payload) in enumerate(zip(frame.arrivals.tolist(), frame.payloads(), strict=True))
    ]


BATCHES = {
    "nothing": [],
    "one frame": [[b"a", b"", b"c" * 100]],
    "small frames": [[b"%d" % i, b"x" * i] for i in range(100)],
    "large frames": [[bytes([i]) * 100_000] for i in range(5)],
    "mixed": [[b"a"], [b"b" * 200_000], [b"c"], [b"d" * 100_000, b"e" * 100_000], [b"f"]] * 3,
    "many small": [[b"y" * 100] * 50 for _ in range(200)],
}


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("base", [0, 2**40])
def test_rule_8_a_sealed_segment_holds_the_same_messages(disk: FaultyDisk, kind: str, base: int) -> None:
    segment = new_segment(disk, base)
    fill(segment, BATCHES[kind])
    before = content_of(segment)
    figures = (segment.next_sequence, segment.charged_bytes, segment.newest_arrival_ms)
    reader = segment.read_frames(base, segment.next_sequence) if before else iter(())
    first = list(itertools.islice(reader, 1))
    segment.seal()
    assert content_of(segment) == before
    assert sum(frame.count for frame in itertools.chain(first, reader)) == len(before), (
        "under way while sealing"
    )
    reopened = Segment.open_sealed(disk, segment.path, KEY, base)
    assert reopened is not None
    assert content_of(reopened) == before
    assert (reopened.next_sequence, reopened.charged_bytes, reopened.newest_arrival_ms) == figures
    assert [path.suffix for path in disk.paths()] == [".seg"]


def test_rule_8_small_frames_are_merged(disk: FaultyDisk) -> None:
    segment = new_segment(disk)
    fill(segment, BATCHES["small frames"])
    size_bytes = segment.size_bytes
    segment.seal()
    assert segment.frame_count == 1
    assert segment.size_bytes < size_bytes * 0.6


def test_rule_8_opening_reads_only_the_trailer(disk: FaultyDisk) -> None:
    segment = new_segment(disk)
    fill(segment, BATCHES["large frames"])
    segment.seal()
    disk.inode(segment.path).bad_pages = set(range(segment.size_bytes // 4096))
    reopened = Segment.open_sealed(disk, segment.path, KEY, 0)
    assert reopened is not None
    assert reopened.next_sequence == 5


@pytest.mark.parametrize("kind", ["small frames", "large frames"])
def test_rule_8_every_damaged_byte_of_the_footer_is_noticed(disk: FaultyDisk, kind: str) -> None:
    """Then the frames are read instead, and say the same."""
    segment = new_segment(disk)
    fill(segment, BATCHES[kind])
    before = content_of(segment)
    segment.seal()
    footer = range(segment.size_bytes, len(disk.inode(segment.path).cached))
    for offset in footer:
        disk.flip(segment.path, offset, 1 << offset % 8)
        reopened = Segment.open_sealed(disk, segment.path, KEY, 0)
        if reopened is None:
            reopened, scan = Segment.open_scanned(disk, segment.path, KEY, 0)
            assert scan.gaps == []
        assert content_of(reopened) == before
        assert reopened.gaps == []
        disk.flip(segment.path, offset, 1 << offset % 8)


def test_rule_8_a_footer_of_another_segment_is_refused(disk: FaultyDisk) -> None:
    segment = new_segment(disk)
    fill(segment, BATCHES["large frames"])
    segment.seal()
    assert Segment.open_sealed(disk, segment.path, KEY + 1, 0) is None
    assert Segment.open_sealed(disk, segment.path, KEY, 1) is None


@pytest.mark.parametrize("kind", ["small frames", "large frames"])
@pytest.mark.parametrize(
    "operation", ["write", "sync", "create", "rename", "remove", "sync_directory", "truncate"]
)
def test_rule_8_a_segment_that_cannot_be_sealed_stays_readable(
    disk: FaultyDisk, kind: str, operation: str
) -> None:
    segment = new_segment(disk)
    fill(segment, BATCHES[kind])
    segment.sync()
    before = content_of(segment)
    with disk.failing(operation, "*"), contextlib.suppress(OSError):
        segment.seal()
    assert content_of(segment) == before
    segment.drop()
    assert [path for path in disk.paths() if path.suffix == ".seg"] == []


def test_a_segment_dropped_while_it_is_sealed_is_gone(disk: FaultyDisk) -> None:
    segment = new_segment(disk)
    fill(segment, BATCHES["small frames"])
    hold = disk.hold_syncs("*.tmp")
    sealing = threading.Thread(target=segment.seal)
    sealing.start()
    assert hold.reached.wait(10)
    segment.drop()
    hold.let_go()
    sealing.join(10)
    assert disk.paths() == []


def test_readers_beside_a_writer(disk: FaultyDisk) -> None:
    """Threads look up frames while others are added: never too many, never an error."""
    segment = new_segment(disk)
    fill(segment, [[b"first"]])
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                visible = segment.next_sequence
                frames_read = list(segment.read_frames(max(0, visible - 3), visible))
                assert frames_read[-1].header.next_sequence == visible
        except BaseException as error:
            failures.append(error)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    fill(segment, [[b"x"]] * 3000)
    stop.set()
    for reader in readers:
        reader.join()
    sys.setswitchinterval(interval_s)
    assert failures == []
