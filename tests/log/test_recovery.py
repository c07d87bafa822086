"""Opening a stream again: what is cut, what is kept, and which numbers are not used again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from faults.rig import Rig, read_all
from penstock.errors import CorruptMessages
from penstock.log.stream import Stream

BIG = 10**6


def filled(rig: Rig, *, durable: bool = True, **fields: object) -> Path:
    """Messages 0 to 5, two to a frame. Returns the path of the segment."""
    stream = rig.create("s", flush_on_write=durable, **fields)
    for first in (0, 2, 4):
        assert rig.append("s", b"message %d" % first, b"message %d" % (first + 1)).errors == []
    return stream.segments[0].path


def reopened(rig: Rig) -> Stream:
    return rig.store.streams["s"]


def readable(stream: Stream) -> list[int]:
    numbers = []
    sequence = 0
    while sequence < stream.visible_next:
        try:
            reading = stream.read(sequence, 1000, BIG)
        except CorruptMessages as damage:
            sequence = damage.next_readable
        else:
            for message in reading.messages:
                assert message.payload == b"message %d" % message.sequence_number
                numbers.append(message.sequence_number)
            sequence = reading.next_sequence
    return numbers


def flip_in(rig: Rig, path: Path, text: bytes) -> None:
    rig.disk.flip(path, bytes(rig.disk.inode(path).cached).index(text))


def test_rule_3_every_torn_tail_of_the_last_segment_is_cut(rig: Rig) -> None:
    path = filled(rig, durable=False)
    whole = bytes(rig.disk.inode(path).cached)
    last_frame = len(whole) - len(whole) // 3
    for size_bytes in range(last_frame, len(whole)):
        inode = rig.disk.inode(path)
        inode.cached = bytearray(whole[:size_bytes])
        rig.kill()
        assert readable(reopened(rig)) == [0, 1, 2, 3]
        assert len(rig.disk.inode(path).cached) == last_frame
        assert reopened(rig).next_sequence == 4
        assert reopened(rig).gaps() == []


@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("where", [b"message 5", b"PSF1"])
def test_rule_3_a_damaged_last_frame_is_not_taken_for_a_torn_write(rig: Rig, how: str, where: bytes) -> None:
    """No write that was cut short leaves all the bytes of a frame: these were acknowledged."""
    path = filled(rig)
    if how == "restart":
        rig.close()
    content = bytes(rig.disk.inode(path).cached)
    rig.disk.flip(path, content.rindex(where))
    damaged = bytes(rig.disk.inode(path).cached)
    if how == "restart":
        rig.disk.remove(rig.disk.root / "journal-0")
        rig.open()
    else:
        rig.disk.remove(rig.disk.root / "journal-0")
        rig.kill()
    stream = reopened(rig)
    assert readable(stream) == [0, 1, 2, 3]
    with pytest.raises(CorruptMessages):
        stream.read(4, 1, 1)
    assert stream.next_sequence >= 6
    [number] = rig.append("s", b"new").numbers
    assert number >= 6
    rig.restart()
    assert bytes(rig.disk.inode(path).cached) == damaged
    assert readable_new(reopened(rig)) == (number, b"new")


def readable_new(stream: Stream) -> tuple[int, bytes]:
    message = stream.read(stream.visible_next - 1, 1, 1).messages[0]
    return message.sequence_number, message.payload


def test_rule_3_a_broken_end_after_a_power_cut_is_cut(rig: Rig) -> None:
    path = filled(rig, durable=False)
    rig.background_sync()
    rig.append("s", b"x" * 9000)
    inode = rig.disk.inode(path)
    inode.cached[-5000:] = bytes(5000)
    inode.persist(set(inode.dirty_pages))
    rig.power_cut(random.Random(1))
    assert readable(reopened(rig)) == [0, 1, 2, 3, 4, 5]
    assert reopened(rig).segments[0].gaps == []
    assert rig.append("s", b"new").numbers[0] > 6


def test_rule_3_a_torn_tail_of_an_earlier_segment_is_a_gap(rig: Rig) -> None:
    path = filled(rig)
    stream = reopened(rig)
    stream._roll(6)
    stream.to_seal.clear()
    rig.append("s", b"message 6")
    rig.close()
    inode = rig.disk.inode(path)
    del inode.cached[-8:], inode.stable[-8:]
    torn = bytes(inode.cached)
    rig.disk.remove(rig.disk.root / "journal-0")
    rig.open()
    rig.store.seal_segments()
    assert readable(reopened(rig)) == [0, 1, 2, 3, 6]
    assert reopened(rig).gaps() == [(4, 6)]
    assert bytes(rig.disk.inode(path).cached) == torn


@pytest.mark.parametrize("sealed", [False, True])
def test_rule_3_an_unreadable_end_does_not_stop_the_server(rig: Rig, sealed: bool) -> None:
    """And if the disk can read again one day, the messages are back, under numbers that nobody else got."""
    stream = rig.create("s", flush_on_write=True)
    for number in range(4):
        rig.append("s", b"message %d" % number)
        rig.append("s", b"filler %d" % number * (20_000 if sealed else 500))  # large frames are not merged
    if sealed:
        stream._roll(8)
        rig.store.seal_segments()
        rig.append("s", b"message 8")
    path = stream.segments[0].path
    rig.close()
    rig.disk.remove(rig.disk.root / "journal-0")
    bad = len(rig.disk.inode(path).cached) // 4096
    rig.disk.inode(path).bad_pages = {bad}
    rig.open()
    stream = reopened(rig)
    assert stream.read(0, 1, 1).messages[0].payload == b"message 0"
    [number] = rig.append("s", b"new").numbers
    assert number >= 8
    rig.disk.inode(path).bad_pages = set()
    rig.restart()
    payloads = {message.sequence_number: message.payload for message in read_all(reopened(rig))}
    assert payloads[7][:16] == b"filler 3filler 3"
    assert payloads[number] == b"new"


def test_a_segment_that_was_being_sealed_is_sealed_after_all(rig: Rig) -> None:
    """The footer is written, the new name is not there: nothing is missing, so the end can be replaced."""
    path = filled(rig)
    stream = reopened(rig)
    stream._roll(6)
    segment = stream.segments[0]
    segment._index_in_place(segment._content, path.with_suffix(".seg"))
    rig.kill()
    rig.store.seal_segments()
    assert [p.suffix for p in rig.disk.paths() if p.parent == path.parent] == [".seg", ".open"]
    rig.restart()
    assert readable(reopened(rig)) == [0, 1, 2, 3, 4, 5]
    assert reopened(rig).segments[0].sealed


@pytest.mark.parametrize("seed", range(20))
def test_rule_6_a_name_that_a_killed_server_did_not_sync_is_synced(rig: Rig, seed: int) -> None:
    """It made the file and died; its successor writes to it, and must not lose it to a power cut."""
    rig.create("s", flush_on_write=True)
    rig.append("s", bytes(900))
    rig.disk.crash_after(1)  # the file is made, its directory is not synced
    reopened(rig).segment_size_bytes = 1024
    assert rig.append("s", bytes(900)).numbers == []
    rig.kill()
    assert rig.append("s", b"acknowledged").errors == []
    rig.power_cut(random.Random(seed))
    assert b"acknowledged" in [message.payload for message in rig.read("s")]


@pytest.mark.parametrize("seed", range(20))
def test_rule_6_a_segment_that_was_being_renamed_is_not_lost(rig: Rig, seed: int) -> None:
    filled(rig)
    reopened(rig)._roll(6)
    rig.background_sync()
    rig.disk.fail("sync_directory", "*-s/*")
    rig.store.seal_segments()  # renamed, but not synced, and both files are there
    rig.kill()
    rig.power_cut(random.Random(seed))
    assert readable(reopened(rig)) == [0, 1, 2, 3, 4, 5]
