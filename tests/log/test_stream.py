"""A stream's segments: when they come and go, and what is read from them."""

from __future__ import annotations

import asyncio
import errno

import pytest

from faults.rig import Rig, Sink
from penstock.errors import CorruptMessages, DiskFull, PenstockError, StorageFailed
from penstock.log import frame as frames
from penstock.log.stream import Stream
from penstock.model import StrategyOnFull


def payloads_of(rig: Rig, name: str = "s") -> list[bytes]:
    return [message.payload for message in rig.read(name)]


def numbers_of(rig: Rig, name: str = "s") -> list[int]:
    return [message.sequence_number for message in rig.read(name)]


def charged(stream: Stream) -> int:
    """The true charge, counted from what the segments hold."""
    return sum(segment.charged_bytes for segment in stream.segments)


def assert_failed(sink: Sink, kind: type[PenstockError], count: int) -> None:
    assert [type(error) for error in sink.results] == [kind] * count


# -- rule 5 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("after_bytes", [0, 1, 63, 64, 100])
def test_rule_5_a_failed_write_poisons_the_segment(rig: Rig, durable: bool, after_bytes: int) -> None:
    stream = rig.create("s", flush_on_write=durable)
    assert rig.append("s", b"one", b"two").numbers == [0, 1]
    rig.disk.fail("write", "*.open", after_bytes=after_bytes)
    assert_failed(rig.append("s", b"lost" * 10, b"lost"), StorageFailed, 2)
    assert rig.append("s", b"three").numbers == [4]
    assert [segment.base for segment in stream.segments] == [0, 4]
    assert payloads_of(rig) == [b"one", b"two", b"three"]
    assert stream.charged_bytes == charged(stream) == 3 * 12 + 11
    rig.restart()
    assert payloads_of(rig) == [b"one", b"two", b"three"]
    assert rig.append("s", b"four").numbers == [5]


def test_rule_5_a_new_segment_that_cannot_be_made_harms_no_other(rig: Rig) -> None:
    stream = rig.create("s", segment_size_bytes=1024)
    rig.append("s", bytes(900))
    rig.disk.fail("create", "*.open", error=errno.ENOSPC)
    assert_failed(rig.append("s", bytes(900)), DiskFull, 1)
    rig.store.seal_segments()
    assert not stream.segments[0].poisoned
    assert rig.append("s", b"x").numbers == [2]
    assert numbers_of(rig) == [0, 2]


def test_rule_5_a_stream_whose_last_segment_is_sealed_survives_a_failed_roll(rig: Rig) -> None:
    stream = rig.create("s", flush_on_write=True)
    rig.append("s", b"x")
    stream.segments[0].seal()
    rig.disk.fail("create", "*.open", error=errno.ENOSPC, times=2)
    for _ in range(2):
        assert_failed(rig.append("s", b"lost"), DiskFull, 1)
    assert rig.append("s", b"y").numbers == [3]
    assert payloads_of(rig) == [b"x", b"y"]


def test_rule_5_sizes_stay_right_when_not_even_the_cut_works(rig: Rig) -> None:
    stream = rig.create("s", flush_on_write=True)
    rig.disk.fail("write", "*/journal-?")
    rig.append("s", b"one")
    rig.disk.fail("sync", "*.open")
    rig.disk.fail("truncate", "*.open")
    assert_failed(rig.append("s", b"lost"), StorageFailed, 1)
    assert stream.charged_bytes == charged(stream) == 15
    assert rig.append("s", b"two").numbers == [2]
    assert payloads_of(rig) == [b"one", b"two"]


# -- reading around damage ----------------------------------------------------------------------------


def three_frames(rig: Rig) -> Stream:
    """Messages 0-2, 3-5 and 6-8 in a frame each."""
    stream = rig.create("s")
    for first in (0, 3, 6):
        rig.append("s", *(b"message %d" % n for n in range(first, first + 3)))
    return stream


def damage_middle_frame(rig: Rig, stream: Stream) -> None:
    path = stream.segments[0].path
    content = bytes(rig.disk.inode(path).cached)
    rig.disk.flip(path, content.index(b"message 4"))


def assert_gap_3_to_6(stream: Stream) -> None:
    assert [m.sequence_number for m in stream.read(0, 100, 10**6).messages] == [0, 1, 2]
    for start in (3, 4, 5):
        for _ in range(2):
            with pytest.raises(CorruptMessages) as caught:
                stream.read(start, 100, 10**6)
            assert (caught.value.first, caught.value.next_readable) == (3, 6)
    assert [m.payload for m in stream.read(6, 100, 10**6).messages] == [b"message %d" % n for n in (6, 7, 8)]
    assert stream.count_from(0) == 6
    assert stream.gaps() == [(3, 6)]


def test_rule_3_damage_met_while_reading_is_a_gap(rig: Rig) -> None:
    stream = three_frames(rig)
    damage_middle_frame(rig, stream)
    assert_gap_3_to_6(stream)


def test_rule_3_damage_found_when_opening_is_a_gap(rig: Rig) -> None:
    damage_middle_frame(rig, three_frames(rig))
    before = rig.disk.snapshot()
    rig.restart()
    stream = rig.store.streams["s"]
    assert_gap_3_to_6(stream)
    assert rig.append("s", b"message 9").numbers == [9]
    assert [m.payload for m in stream.read(6, 100, 10**6).messages][-1] == b"message 9"
    assert {path: rig.disk.snapshot()[path] for path in before if path.suffix == ".open"} == {
        path: content for path, content in before.items() if path.suffix == ".open"
    }


@pytest.mark.parametrize("reopen", [False, True])
def test_rule_3_bulk_reads_leave_damage_out(rig: Rig, reopen: bool) -> None:
    stream = three_frames(rig)
    damage_middle_frame(rig, stream)
    if reopen:
        rig.restart()
        stream = rig.store.streams["s"]
    else:
        with pytest.raises(CorruptMessages):
            stream.read(3, 1, 1)
    runs, next_sequence = stream.locate(0, 9, 10**6)
    raw = b"".join(run.file.read_at(run.end - run.begin, run.begin) for run in runs)
    assert [frame.first_sequence for frame in frames.decode_frames(raw)] == [0, 6]
    assert next_sequence == 9


@pytest.mark.parametrize("count_max", [1, 100])
def test_rule_3_an_unreadable_page_is_a_gap(rig: Rig, count_max: int) -> None:
    stream = rig.create("s")
    for number in range(6):
        rig.append("s", b"%d" % number * 4000)
    rig.disk.inode(stream.segments[0].path).bad_pages = {2}  # messages 2 and 3 have a part in it
    found = []
    sequence = 0
    while sequence < 6:
        try:
            reading = stream.read(sequence, count_max, 10**6)
        except CorruptMessages as damage:
            sequence = damage.next_readable
        else:
            found += [message.payload[:1] for message in reading.messages]
            sequence = reading.next_sequence
    assert found == [b"0", b"1", b"4", b"5"]
    assert stream.gaps() == [(2, 3), (3, 4)]


def test_too_many_open_files_is_not_damage(rig: Rig) -> None:
    stream = three_frames(rig)
    stream._roll(9)
    rig.store.seal_segments()
    rig.disk.fail("open", "*.seg", error=errno.EMFILE)
    with pytest.raises(StorageFailed, match="try again"):
        stream.read(0, 100, 10**6)
    assert len(stream.read(0, 100, 10**6).messages) == 9
    assert stream.gaps() == []


def test_rule_3_a_segment_file_that_somebody_removed_is_a_gap(rig: Rig) -> None:
    stream = three_frames(rig)
    stream._roll(9)
    rig.store.seal_segments()
    rig.append("s", b"message 9")
    rig.disk.remove(stream.segments[0].path)
    with pytest.raises(CorruptMessages) as caught:
        stream.read(0, 100, 10**6)
    assert caught.value.next_readable == 9
    assert [m.payload for m in stream.read(9, 1, 1).messages] == [b"message 9"]


def test_reading_a_stream_that_was_deleted_meanwhile_ends(rig: Rig) -> None:
    stream = three_frames(rig)
    reader = stream.segments[0].read_frames(0, 9)
    assert next(reader).count == 3
    rig.run(rig.streams.delete("s"))
    assert [frame.count for frame in reader] == [3, 3]
    assert stream.read(0, 100, 10**6).messages == []


def test_rule_5_messages_before_a_failure_can_be_read_while_later_ones_wait(rig: Rig) -> None:
    """Numbers that failed are a gap in front of what nobody sees yet: it must not be counted."""
    stream = rig.create("s", flush_on_write=True)
    rig.append("s", b"a", b"b")
    rig.disk.fail("write", "*.open")
    rig.append("s", b"lost")

    async def while_syncing() -> int:
        hold = rig.disk.hold_syncs("*/journal-?")
        rig.submit("s", [b"c"])
        await asyncio.to_thread(hold.reached.wait, 10)
        count = stream.count_from(0)
        hold.let_go()
        await rig.streams.committer.drain()
        return count

    assert rig.run(while_syncing()) == 2
    assert stream.count_from(0) == 3


def test_rule_5_a_stream_whose_first_appends_fail_is_empty(rig: Rig) -> None:
    stream = rig.create("s", flush_on_write=True)
    for operation in ("write", "write", "create"):
        rig.disk.fail(operation, "*.open")
        assert rig.append("s", b"lost").numbers == []
    info = rig.streams.describe("s")
    assert (info.oldest_sequence_number, info.newest_sequence_number, info.total_bytes) == (0, -1, 0)
    assert stream.count_from(0) == 0
    assert rig.append("s", b"x").numbers == [3]
    assert rig.streams.describe("s").oldest_sequence_number == 3


def test_rule_5_a_segment_that_was_overwritten_before_its_sync_failed_is_charged_once(rig: Rig) -> None:
    stream = rig.create(
        "s",
        max_size_bytes=18_000,
        segment_size_bytes=6000,
        flush_on_write=True,
        strategy_on_full=StrategyOnFull.OVERWRITE_OLDEST_DATA,
    )
    rig.disk.fail("write", "*/journal-?")
    rig.disk.fail("sync", "*.open")
    rig.append("s", *[bytes(6500)] * 5)
    assert stream.charged_bytes == charged(stream) == 6512 * len(rig.read("s"))
