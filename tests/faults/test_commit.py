"""Group commit on a disk that fails: nobody is told what is not true, and the server goes on."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace

from faults.disk import Hold
from faults.rig import Rig, Sink
from penstock.errors import StorageFailed, StreamNotFound
from penstock.model import Persistence


def payloads_of(rig: Rig, name: str) -> list[bytes]:
    return [message.payload for message in rig.read(name)]


def without_journal(rig: Rig) -> None:
    """From now on every durable append syncs its segment."""
    rig.create("sacrificed", flush_on_write=True)
    rig.disk.fail("write", "*journal*")
    assert rig.append("sacrificed", b"x").numbers == [0]
    assert rig.store.journal.broken


async def reached(hold: Hold) -> None:
    assert await asyncio.to_thread(hold.reached.wait, 10)


async def until_written(rig: Rig, name: str, next_sequence: int) -> None:
    """The write stage is done with the messages; the sync stage may not be."""
    while rig.store.streams[name].write_next < next_sequence:
        await asyncio.sleep(0.001)


async def until_told(sink: Sink, count: int = 1) -> None:
    while len(sink.results) < count:
        await asyncio.sleep(0.001)


def test_rule_5_appends_behind_a_failed_sync_fail_too(rig: Rig) -> None:
    without_journal(rig)
    rig.create("s", flush_on_write=True)
    assert rig.append("s", b"before").numbers == [0]

    async def scenario() -> tuple[Sink, Sink]:
        hold = rig.disk.hold_syncs("*.open")
        first = rig.submit("s", [b"first"])
        await reached(hold)
        second = rig.submit("s", [b"second"])
        await until_written(rig, "s", 3)
        rig.disk.fail("sync", "*.open")
        hold.let_go()
        await rig.streams.committer.drain()
        return first, second

    first, second = rig.run(scenario())
    assert [type(error) for error in first.errors + second.errors] == [StorageFailed, StorageFailed]
    after = rig.append("s", b"after")
    assert after.numbers == [3]
    assert payloads_of(rig, "s") == [b"before", b"after"]


def test_rule_5_a_batch_over_two_segments_loses_only_the_one_that_failed(rig: Rig) -> None:
    without_journal(rig)
    stream = rig.create("s", flush_on_write=True, segment_size_bytes=4096)
    rig.append("s", b"before")
    rig.disk.fail("sync", f"*-s/{0:020d}.open")
    sink = rig.append("s", *(b"%d" % n * 1500 for n in range(6)))
    told = dict(enumerate(sink.results, 1))
    stored = {message.sequence_number for message in rig.read("s")}
    assert stored == {0, *sink.numbers}
    assert all(number == result for number, result in told.items() if isinstance(result, int))
    assert 0 < len(sink.errors) < 6
    assert rig.append("s", b"after").numbers == [7]
    assert stream.count_from(0) == len(rig.read("s")) == 2 + len(sink.numbers)
    rig.power_cut(random.Random(1))
    assert {0, 7, *sink.numbers} <= {message.sequence_number for message in rig.read("s")}


def test_visible_never_goes_back(rig: Rig) -> None:
    """A stream that stops syncing shows what it acknowledges while an earlier append still waits for its sync."""
    stream = rig.create("s", flush_on_write=True)

    async def scenario() -> list[int]:
        hold = rig.disk.hold_syncs("*journal*")
        first = rig.submit("s", [b"first"])
        await reached(hold)
        await rig.streams.update("s", lambda info: (replace(info.definition, flush_on_write=False), {}))
        second = rig.submit("s", [b"second"])
        await until_told(second)
        seen = [stream.visible_next]
        hold.let_go()
        await rig.streams.committer.drain()
        assert first.numbers + second.numbers == [0, 1]
        return [*seen, stream.visible_next]

    assert rig.run(scenario()) == [2, 2]


@pytest.mark.parametrize("seed", range(10))
def test_messages_appended_before_flush_on_write_is_turned_off_keep_their_promise(
    rig: Rig, seed: int
) -> None:
    rig.create("s", flush_on_write=True)

    async def scenario() -> Sink:
        sink = rig.submit("s", [b"x" * 5000])
        await rig.streams.update("s", lambda info: (replace(info.definition, flush_on_write=False), {}))
        await until_told(sink)
        return sink

    assert rig.run(scenario()).numbers == [0]
    rig.power_cut(random.Random(seed))
    assert payloads_of(rig, "s") == [b"x" * 5000]


@pytest.mark.parametrize("persistence", list(Persistence))
@pytest.mark.parametrize("durable", [False, True])
def test_an_append_to_a_stream_that_is_being_deleted_is_answered(
    rig: Rig, durable: bool, persistence: Persistence
) -> None:
    rig.create("s", flush_on_write=durable, persistence=persistence)
    rig.create("other")

    async def scenario() -> Sink:
        deleting = asyncio.create_task(rig.streams.delete("s"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the deletion is in the write thread now, or about to be
        sink = Sink()
        rig.streams.committer.append(stream, [b"late"], 4, sink)
        await deleting
        await until_told(sink)
        return sink

    stream = rig.store.streams["s"]
    [error] = rig.run(scenario()).errors
    assert isinstance(error, StreamNotFound)
    assert rig.append("other", b"x").numbers == [0]


def test_an_append_from_within_an_answer_is_not_lost(rig: Rig) -> None:
    """A client's next append may come while it is being told of the one before, in the midst of a turn."""
    for name in ("small", "large"):
        rig.create(name)
    for _ in range(40):  # until the disk counts as fast
        rig.append("small", b"x")
    again = Sink()

    class Eager(Sink):
        def appended(self, first_sequence: int, count: int) -> None:
            super().appended(first_sequence, count)
            rig.streams.append("large", [b"again"], again)
            rig.streams.append("small", [b"again"], again)

    async def scenario() -> None:
        rig.streams.append("small", [b"x"], Eager())
        large = rig.submit("large", [bytes(300_000)])
        await until_told(large)
        await until_told(again, 2)

    rig.run(scenario())
    assert sorted(again.numbers) == [1, 41]
    rig.drain()


def test_flush_on_write_can_be_turned_off_after_a_failed_sync(rig: Rig) -> None:
    without_journal(rig)
    rig.create("s", flush_on_write=True)
    rig.disk.fail("sync", "*.open")
    assert rig.append("s", b"lost").numbers == []
    rig.run(rig.streams.update("s", lambda info: (replace(info.definition, flush_on_write=False), {})))
    assert rig.append("s", b"x").numbers == [1]
