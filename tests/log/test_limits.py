"""Rules 7, 9 and 11: sizes, both strategies when full, time to live, clocks that jump, disks that fill up."""

from __future__ import annotations

import errno

import pytest

from faults.rig import Rig
from penstock.errors import DiskFull, MemoryExhausted, MessageTooLarge, StreamFull
from penstock.model import Persistence, StrategyOnFull

SEGMENT_BYTES = 2048
DAY_MS = 24 * 3600 * 1000
OVERWRITE = StrategyOnFull.OVERWRITE_OLDEST_DATA
PERSISTENCES = pytest.mark.parametrize("persistence", list(Persistence))


def numbers_of(rig: Rig, name: str = "s") -> list[int]:
    return [message.sequence_number for message in rig.read(name)]


# -- rule 9: sizes ------------------------------------------------------------------------------------


@PERSISTENCES
def test_rule_9_segments_keep_to_their_size(rig: Rig, persistence: Persistence) -> None:
    stream = rig.create("s", segment_size_bytes=SEGMENT_BYTES, persistence=persistence)
    for number in range(50):
        rig.append("s", *[b"%d" % number * 50] * 3)
    assert len(stream.segments) > 5
    assert all(segment.size_bytes <= SEGMENT_BYTES for segment in stream.segments)
    assert numbers_of(rig) == list(range(150))


@PERSISTENCES
def test_rule_9_a_large_batch_is_split_at_segments(rig: Rig, persistence: Persistence) -> None:
    stream = rig.create("s", segment_size_bytes=SEGMENT_BYTES, persistence=persistence)
    assert rig.append("s", *[bytes(100)] * 500).numbers == list(range(500))
    assert all(segment.size_bytes <= SEGMENT_BYTES for segment in stream.segments)
    assert numbers_of(rig) == list(range(500))


@PERSISTENCES
def test_rule_9_a_message_larger_than_a_segment_has_one_of_its_own(
    rig: Rig, persistence: Persistence
) -> None:
    stream = rig.create("s", segment_size_bytes=SEGMENT_BYTES, persistence=persistence)
    large = bytes(range(256)) * 40
    assert rig.append("s", b"a", large, b"b").numbers == [0, 1, 2]
    assert [segment.base for segment in stream.segments] == [0, 1, 2]
    rig.store.seal_segments()
    assert [message.payload for message in rig.read("s")] == [b"a", large, b"b"]


@PERSISTENCES
def test_rule_9_reject_new_data_takes_what_fits(rig: Rig, persistence: Persistence) -> None:
    stream = rig.create("s", max_size_bytes=4096, segment_size_bytes=1024, persistence=persistence)
    payload = bytes(100 - 12)
    sink = rig.append("s", *[payload] * 50)
    assert sink.numbers == list(range(40))
    assert {type(error) for error in sink.errors} == {StreamFull}
    assert "full" in str(sink.errors[0])
    assert stream.charged_bytes == 4000
    assert rig.append("s", bytes(96 - 12)).numbers == [40]
    assert isinstance(rig.append("s", b"").results[0], StreamFull)
    assert numbers_of(rig) == list(range(41))


@PERSISTENCES
@pytest.mark.parametrize("strategy", list(StrategyOnFull))
def test_rule_9_a_message_that_can_never_fit(
    rig: Rig, persistence: Persistence, strategy: StrategyOnFull
) -> None:
    rig.create("s", max_size_bytes=4096, persistence=persistence, strategy_on_full=strategy)
    assert isinstance(rig.append("s", bytes(4096 - 11)).results[0], MessageTooLarge)
    assert rig.append("s", bytes(4096 - 12)).numbers == [0]


@PERSISTENCES
def test_rule_9_overwrite_drops_the_oldest_segments_and_no_more(rig: Rig, persistence: Persistence) -> None:
    stream = rig.create(
        "s",
        max_size_bytes=8192,
        segment_size_bytes=1024,
        strategy_on_full=OVERWRITE,
        persistence=persistence,
    )
    for number in range(200):
        assert rig.append("s", bytes(200)).numbers == [number]
        assert stream.charged_bytes <= 8192
        assert stream.charged_bytes + 212 > 8192 - 1024 or stream.oldest_sequence == 0
    found = numbers_of(rig)
    assert found == list(range(stream.oldest_sequence, 200))
    assert stream.lost_messages == stream.oldest_sequence
    rig.store.seal_segments()
    assert numbers_of(rig) == found


def test_rule_9_overwrite_rolls_and_drops_an_only_segment(rig: Rig) -> None:
    stream = rig.create("s", max_size_bytes=4096, segment_size_bytes=1 << 20, strategy_on_full=OVERWRITE)
    rig.append("s", bytes(2000), bytes(2000))
    assert rig.append("s", bytes(4000)).numbers == [2]
    assert numbers_of(rig) == [2]
    assert stream.charged_bytes == 4012
    rig.restart()
    assert numbers_of(rig) == [2]


def test_rule_9_a_lowered_size_drops_old_segments(rig: Rig) -> None:
    stream = rig.create("s", segment_size_bytes=1024, strategy_on_full=OVERWRITE)
    for _ in range(20):
        rig.append("s", bytes(500))

    def change(info: object) -> object:
        definition = stream.definition
        return type(definition)("s", 4096, 1024, strategy_on_full=OVERWRITE), {}

    rig.run(rig.streams.update("s", change))  # type: ignore[arg-type]
    assert stream.charged_bytes <= 4096
    assert numbers_of(rig)[-1] == 19


def test_rule_9_memory_streams_share_a_limit(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.create(name, persistence=Persistence.MEMORY)
    rig.streams._memory_streams_size_max_bytes = 10_000
    assert rig.append("a", bytes(6000)).errors == []
    assert isinstance(rig.append("b", bytes(6000)).results[0], MemoryExhausted)
    rig.run(rig.streams.delete("a"))
    assert rig.append("b", bytes(6000)).numbers == [0]


# -- rules 9 and 11: time -----------------------------------------------------------------------------


@PERSISTENCES
def test_rule_9_messages_live_as_long_as_promised_and_then_go(rig: Rig, persistence: Persistence) -> None:
    stream = rig.create("s", ttl_ms=60_000, segment_size_bytes=1024, persistence=persistence)
    for _ in range(6):
        rig.append("s", bytes(900))
        rig.clock.advance(20)
        stream.expire()
    # Ages are now 120, 100, 80, 60, 40 and 20 seconds.
    assert numbers_of(rig) == [3, 4, 5]
    rig.clock.advance(0.001)
    stream.expire()
    assert numbers_of(rig) == [4, 5]


def test_rule_9_a_segment_lives_as_long_as_its_newest_message(rig: Rig) -> None:
    stream = rig.create("s", ttl_ms=60_000)
    rig.append("s", b"old")
    rig.clock.advance(50)
    rig.append("s", b"new")
    rig.clock.advance(50)
    assert stream.expire() == 0
    assert numbers_of(rig) == [0, 1]
    rig.clock.advance(11)
    assert stream.expire() == 1
    assert numbers_of(rig) == []
    assert (stream.oldest_sequence, stream.visible_next, stream.charged_bytes) == (2, 2, 0)
    assert rig.append("s", b"next").numbers == [2]


@pytest.mark.parametrize("jump_ms", [-1000 * DAY_MS, -DAY_MS, DAY_MS, 1000 * DAY_MS])
def test_rule_11_a_clock_that_jumps_expires_nothing_and_spares_nothing(rig: Rig, jump_ms: int) -> None:
    stream = rig.create("s", ttl_ms=60_000)
    rig.append("s", b"before")
    rig.clock.wall += jump_ms
    rig.append("s", b"after")
    assert stream.expire() == 0
    assert numbers_of(rig) == [0, 1]
    rig.clock.advance(61)
    assert stream.expire() == 1
    assert numbers_of(rig) == []


def test_rule_11_the_time_a_server_was_away_counts(rig: Rig) -> None:
    rig.create("s", ttl_ms=60_000)
    rig.append("s", b"x")
    rig.close()
    rig.clock.monotonic = 5.0  # the machine booted
    rig.clock.wall += 59_000
    rig.open()
    stream = rig.store.streams["s"]
    assert stream.expire() == 0
    rig.clock.advance(1.5)
    assert stream.expire() == 1


def test_rule_11_a_clock_set_back_while_the_server_was_away_expires_nothing_early(rig: Rig) -> None:
    rig.create("s", ttl_ms=60_000)
    rig.append("s", b"x")
    rig.close()
    rig.clock.wall -= 1000 * DAY_MS
    rig.open()
    stream = rig.store.streams["s"]
    rig.clock.advance(59)
    assert stream.expire() == 0
    rig.clock.advance(2)
    assert stream.expire() == 1
    assert rig.append("s", b"y").numbers == [1]


def test_rule_11_arrivals_are_the_wall_clock_s(rig: Rig) -> None:
    rig.create("s", segment_size_bytes=1024)
    expected = []
    for jump_ms in (0, 5000, -DAY_MS, 7, DAY_MS):
        rig.clock.wall += jump_ms
        expected += [rig.clock.wall] * 2
        rig.append("s", b"a", bytes(300))
    rig.store.seal_segments()
    assert [message.arrival_ms for message in rig.read("s")] == expected
    rig.restart()
    assert [message.arrival_ms for message in rig.read("s")] == expected


# -- rule 7: the disk is full -------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_rule_7_a_full_disk_refuses_appends_serves_reads_and_heals(rig: Rig, durable: bool) -> None:
    stream = rig.create("s", flush_on_write=durable, segment_size_bytes=4096)
    rig.create("memory", persistence=Persistence.MEMORY)
    assert rig.append("s", bytes(1000)).numbers == [0]
    used_bytes = rig.disk.size_bytes - rig.disk.free_bytes(rig.disk.root)
    rig.disk.size_bytes = used_bytes + 2000
    stored = [0]
    for _ in range(10):
        sink = rig.append("s", bytes(900))
        stored += sink.numbers
        assert {type(error) for error in sink.errors} <= {DiskFull}
    assert len(stored) < 5
    assert numbers_of(rig) == stored
    assert rig.append("memory", b"x").errors == []
    assert len(stream.segments) < 5, "refused appends leave no empty segments behind"
    rig.disk.size_bytes = 2**40
    [healed] = rig.append("s", b"healed").numbers
    assert numbers_of(rig) == [*stored, healed]
    rig.restart()
    assert numbers_of(rig) == [*stored, healed]


def test_rule_7_below_the_floor_nothing_is_written_and_nothing_sealed(rig: Rig) -> None:
    stream = rig.create("s", segment_size_bytes=1024)
    rig.append("s", *[bytes(100)] * 30)
    rig.store.free_space_floor_bytes = 10_000
    rig.disk.size_bytes = rig.disk.size_bytes - rig.disk.free_bytes(rig.disk.root) + 9_999
    rig.store.check_free_space()
    before = rig.disk.snapshot()
    assert isinstance(rig.append("s", b"x").results[0], DiskFull)
    rig.store.seal_segments()
    assert rig.disk.snapshot() == before
    assert numbers_of(rig) == list(range(30))
    rig.disk.size_bytes += 1
    rig.store.check_free_space()
    assert rig.append("s", b"x").numbers == [30]
    rig.store.seal_segments()
    assert stream.segments[0].sealed


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_rule_7_other_words_for_full(rig: Rig, error: int) -> None:
    rig.create("s")
    rig.disk.fail("write", "*.open", error=error, after_bytes=30)
    assert isinstance(rig.append("s", b"x").results[0], DiskFull)
    assert rig.append("s", b"y").numbers == [1]
