"""The journal: what it gives back after a crash, and what it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.disk import FaultyDisk
from penstock.log import frame as frames
from penstock.log.journal import BLOCK_ALIGNMENT_BYTES, BLOCK_BYTES_MAX, Entry, Journal
from penstock.log.segment import Segment, WrittenFrame

KEY = 5
SIZE_BYTES = 64 * 1024


class Writer:
    """A segment whose frames go through a journal."""

    def __init__(self, root: Path) -> None:
        self.disk = FaultyDisk(root)
        self.disk.make_directory(root / "s")
        self.journal = Journal(self.disk, root, SIZE_BYTES)
        self.segment = Segment.create(self.disk, root / "s", KEY, 0)
        self.entries: list[Entry] = []

    def frame(self, payload: bytes) -> WrittenFrame:
        header, buffers = frames.encode(KEY, self.segment.next_sequence, 1000, [payload])
        return self.segment.append(header, buffers)

    def write(self, *payloads: bytes) -> bool:
        written = [self.frame(payload) for payload in payloads]
        if not self.journal.write(written):
            return False
        self.entries += [Entry(KEY, 0, frame.offset, b"".join(frame.buffers)) for frame in written]
        return True

    def recovered(self) -> list[Entry]:
        return list(Journal(self.disk, self.disk.root, SIZE_BYTES).recover())


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def test_everything_comes_back_in_order(writer: Writer) -> None:
    for number in range(5):
        assert writer.write(*[b"%d" % number * 100] * (number + 1))
    assert writer.recovered() == writer.entries
    assert writer.segment.durable_bytes == writer.segment.size_bytes
    assert writer.segment.synced_bytes == 0


def test_nothing_comes_back_from_no_journal(writer: Writer) -> None:
    assert writer.recovered() == []


def test_both_files_come_back_in_the_order_of_writing(writer: Writer) -> None:
    while writer.journal._active == 0:
        assert writer.write(bytes(3000))
    assert writer.write(b"last")
    assert writer.recovered() == writer.entries


def test_a_file_is_not_used_again_before_its_segments_are_synced(writer: Writer) -> None:
    while writer.write(bytes(3000)):
        pass
    entries = writer.recovered()
    assert entries == writer.entries
    writer.segment.sync()
    writer.journal.release(writer.journal.resting_segments())
    assert writer.write(b"again")
    assert writer.recovered()[-1] == writer.entries[-1]


def test_old_blocks_behind_new_ones_are_not_taken_for_new(writer: Writer) -> None:
    for _ in range(6):
        while writer.write(bytes(2000)):
            pass
        writer.segment.sync()
        writer.journal.release(writer.journal.resting_segments())
    offsets = [entry.offset for entry in writer.recovered()]
    assert offsets == sorted(offsets)
    assert offsets[-1] == writer.entries[-1].offset


def test_a_torn_block_and_what_follows_is_left_out(writer: Writer) -> None:
    for number in range(4):
        assert writer.write(b"%d" % number * 3000)
    path = writer.disk.root / "journal-0"
    for page in range(4):
        content = bytes(writer.disk.inode(path).cached)
        writer.disk.flip(path, page * BLOCK_ALIGNMENT_BYTES + 2000)
        assert writer.recovered() == writer.entries[:page]
        writer.disk.inode(path).cached[:] = content


def test_a_cleared_journal_is_empty_and_can_be_used(writer: Writer) -> None:
    writer.write(b"x", b"y")
    writer.journal.clear()
    assert writer.recovered() == []
    second = Journal(writer.disk, writer.disk.root, SIZE_BYTES)
    frame = writer.frame(b"z")
    assert second.write([frame])
    assert [entry.frame for entry in writer.recovered()] == [b"".join(frame.buffers)]


def test_a_journal_of_another_size_is_made_anew(writer: Writer) -> None:
    writer.write(b"x")
    writer.journal.clear()
    larger = Journal(writer.disk, writer.disk.root, 2 * SIZE_BYTES)
    assert larger.write([writer.frame(b"y")])
    assert len(writer.disk.inode(writer.disk.root / "journal-0").cached) == SIZE_BYTES


def test_a_frame_behind_unsynced_ones_is_refused(writer: Writer) -> None:
    """After a power cut there would be a hole in front of it."""
    writer.frame(b"relaxed")
    assert not writer.journal.write([writer.frame(b"durable")])
    writer.segment.sync()
    assert writer.write(b"durable")


def test_too_much_is_refused(writer: Writer) -> None:
    assert not writer.write(bytes(SIZE_BYTES // 2))
    writer.segment.sync()
    assert writer.write(b"x")
    large = Journal(writer.disk, writer.disk.root, 8 * BLOCK_BYTES_MAX)
    assert not large.write([writer.frame(bytes(BLOCK_BYTES_MAX))])


@pytest.mark.parametrize("operation", ["create", "write", "sync", "sync_directory"])
def test_rule_5_after_a_failure_it_is_out_of_use(writer: Writer, operation: str) -> None:
    written = [writer.frame(b"x")]
    writer.disk.fail(operation)
    with pytest.raises(OSError, match="Input/output"):
        writer.journal.write(written)
    assert writer.journal.broken
    assert not writer.journal.write(written)
    assert writer.segment.durable_bytes == 0
