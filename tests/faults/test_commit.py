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
    rig.disk.fail("write", "*/journal-?")
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
        hold = rig.disk.hold_syncs("*/journal-?")
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


# -- rule 1: who waits, and for what ------------------------------------------------------------------


def sync_count(rig: Rig) -> int:
    return rig.disk.syncs.total()


def test_rule_1_a_durable_append_is_acknowledged_after_its_sync(rig: Rig) -> None:
    rig.create("s", flush_on_write=True)

    async def scenario() -> None:
        hold = rig.disk.hold_syncs()
        sink = rig.submit("s", [b"x"])
        await reached(hold)
        await asyncio.sleep(0.05)  # that nothing happens cannot be awaited
        assert sink.results == []
        assert rig.store.streams["s"].visible_next == 0, "and nobody sees it before"
        hold.let_go()
        await until_told(sink)
        assert sink.numbers == [0]

    rig.run(scenario())


def test_rule_1_a_relaxed_append_waits_for_no_sync(rig: Rig) -> None:
    rig.create("s")
    rig.disk.syncs.clear()
    assert rig.append("s", b"x").numbers == [0]
    assert sync_count(rig) == 0
    rig.background_sync()
    assert sync_count(rig) == 1


def test_rule_1_one_turn_is_one_frame(rig: Rig) -> None:
    stream = rig.create("s")
    sinks = [rig.submit("s", [b"%d" % number]) for number in range(100)]
    rig.drain()
    assert [sink.numbers for sink in sinks] == [[number] for number in range(100)]
    assert stream.segments[0].frame_count == 1


@pytest.mark.parametrize("journal", [True, False])
def test_rule_1_appends_that_wait_at_the_same_time_share_a_sync(rig: Rig, journal: bool) -> None:
    if not journal:
        without_journal(rig)
    rig.create("s", flush_on_write=True)
    rig.append("s", b"first")

    async def scenario() -> None:
        hold = rig.disk.hold_syncs()
        first = rig.submit("s", [b"x"])
        await reached(hold)
        sinks = []
        for turn in range(10):
            sinks += [rig.submit("s", [b"x"]) for _ in range(10)]
            await until_written(rig, "s", 2 + 10 * (turn + 1))
        rig.disk.syncs.clear()
        hold.let_go()
        await rig.streams.committer.drain()
        assert [number for sink in [first, *sinks] for number in sink.numbers] == list(range(1, 102))

    rig.run(scenario())
    assert sync_count(rig) == 2, "the one that was held, and one for all that came meanwhile"


def test_rule_1_streams_share_a_sync(rig: Rig) -> None:
    names = [f"s{number}" for number in range(50)]
    for name in names:
        rig.create(name, flush_on_write=True)
    rig.append(names[0], b"the journal is made now")
    rig.disk.syncs.clear()
    sinks = [rig.submit(name, [name.encode()]) for name in names]
    rig.drain()
    assert all(len(sink.numbers) == 1 for sink in sinks)
    assert sync_count(rig) == 1
    rig.power_cut(random.Random(1))
    assert [payloads_of(rig, name)[-1] for name in names] == [name.encode() for name in names]


@pytest.mark.parametrize("seed", range(5))
def test_rule_1_the_journal_is_recycled_for_ever(rig: Rig, seed: int) -> None:
    """Twenty times its size goes through it; whenever the power goes, everything acknowledged is there."""
    rng = random.Random(seed)
    names = [f"s{number}" for number in range(4)]
    for name in names:
        rig.create(name, flush_on_write=True, segment_size_bytes=50_000)
    sent: dict[str, list[bytes]] = {name: [] for name in names}
    for step in range(400):
        name = rng.choice(names)
        payload = rng.randbytes(rng.randrange(6000))
        assert rig.append(name, payload).errors == []
        sent[name].append(payload)
        if step % 7 == 0:
            rig.background_sync()
        if rng.random() < 0.02:
            rig.power_cut(rng)
        if rng.random() < 0.05:
            rig.store.seal_segments()
    rig.power_cut(rng)
    assert {name: payloads_of(rig, name) for name in names} == sent
    assert min(rig.disk.syncs["journal-0"], rig.disk.syncs["journal-1"]) > 10


def test_rule_1_a_hanging_sync_stalls_nobody_else(rig: Rig) -> None:
    rig.create("durable", flush_on_write=True)
    rig.create("relaxed")
    rig.create("memory", persistence=Persistence.MEMORY)
    rig.append("durable", b"old")

    async def scenario() -> None:
        hold = rig.disk.hold_syncs()
        stuck = rig.submit("durable", [b"stuck"])
        await reached(hold)
        for number in range(50):
            for name in ("relaxed", "memory"):
                sink = rig.submit(name, [b"x"])
                await asyncio.wait_for(until_told(sink), 1)
                assert sink.numbers == [number]
        behind = rig.submit("durable", [b"behind"])
        messages = await asyncio.wait_for(rig.streams.read("durable", 0, 1, 10, list), 1)
        assert [message.payload for message in messages] == [b"old"]
        assert rig.streams.describe("durable").newest_sequence_number == 0
        assert stuck.results == behind.results == []
        hold.let_go()
        await until_told(behind)
        assert stuck.numbers + behind.numbers == [1, 2]

    rig.run(scenario())


def test_rule_1_a_hanging_background_sync_stalls_nobody(rig: Rig) -> None:
    rig.create("s")
    rig.create("durable", flush_on_write=True)
    rig.append("durable", b"the journal is made now")
    rig.append("s", b"x")

    async def scenario() -> None:
        hold = rig.disk.hold_syncs("*-s/*")
        syncing = asyncio.create_task(asyncio.to_thread(rig.background_sync))
        await reached(hold)
        for name in ("s", "durable"):
            sink = rig.submit(name, [b"y"])
            await asyncio.wait_for(until_told(sink), 1)
            assert sink.numbers == [1]
        hold.let_go()
        await syncing

    rig.run(scenario())


# -- rules 5 and 7: failures --------------------------------------------------------------------------


def test_rule_5_a_failed_sync_fails_its_appends_and_no_others(rig: Rig) -> None:
    without_journal(rig)
    for name in ("bad", "good"):
        rig.create(name, flush_on_write=True)
        rig.append(name, b"before")
    rig.disk.fail("sync", "*-bad/*")
    bad = [rig.submit("bad", [b"lost", b"lost"]) for _ in range(3)]
    good = rig.submit("good", [b"kept"])
    rig.drain()
    assert {type(result) for sink in bad for result in sink.results} == {StorageFailed}
    assert "not stored" in str(bad[0].errors[0])
    assert good.numbers == [1]
    assert rig.append("bad", b"after").numbers == [7]
    assert payloads_of(rig, "bad") == [b"before", b"after"]
    rig.restart()
    assert payloads_of(rig, "bad") == [b"before", b"after"]
    assert payloads_of(rig, "good") == [b"before", b"kept"]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_rule_5_a_failed_journal_costs_speed_and_nothing_else(rig: Rig, operation: str) -> None:
    rig.create("s", flush_on_write=True)
    rig.append("s", b"0")
    rig.disk.fail(operation, "*/journal-?", after_bytes=40)
    assert rig.append("s", b"1").numbers == [1]
    for number in range(2, 10):
        assert rig.append("s", b"%d" % number).numbers == [number]
    rig.power_cut(random.Random(1))
    assert payloads_of(rig, "s") == [b"%d" % number for number in range(10)]
    rig.disk.syncs.clear()
    rig.append("s", b"10")
    assert rig.disk.syncs["journal-0"] == 1, "after a restart it is used again"


def test_rule_5_a_dead_disk_fails_everything_clearly_and_heals(rig: Rig) -> None:
    names = ["durable", "relaxed"]
    for name in names:
        rig.create(name, flush_on_write=name == "durable")
        rig.append(name, b"before")
    faults = [rig.disk.fail(operation, times=10**6) for operation in ("write", "sync", "create", "truncate")]
    for _ in range(3):
        for name in names:
            assert {type(result) for result in rig.append(name, b"lost").results} == {StorageFailed}
    rig.background_sync()
    rig.store.seal_segments()
    assert [payloads_of(rig, name) for name in names] == [[b"before"], [b"before"]]
    for fault in faults:
        fault.stop()
    for name in names:
        assert rig.append(name, b"after").errors == []
        assert payloads_of(rig, name) == [b"before", b"after"]


def test_rule_5_waiting_readers_are_not_woken_by_failures(rig: Rig) -> None:
    rig.create("s", flush_on_write=True)

    async def scenario() -> None:
        waiting = asyncio.create_task(rig.streams.wait_for_messages("s", 0, 1, 10_000))
        await asyncio.sleep(0)
        rig.disk.fail("write", "*.open")
        await until_told(rig.submit("s", [b"lost"]))
        assert not waiting.done()
        await until_told(rig.submit("s", [b"x"]))
        await asyncio.wait_for(waiting, 1)

    rig.run(scenario())


def test_a_catalog_that_cannot_reserve_numbers_refuses_appends(rig: Rig) -> None:
    stream = rig.create("s")
    rig.append("s", b"x")
    stream.reserved_next = 1
    rig.store.catalog.close()
    [error] = rig.append("s", b"y").errors
    assert isinstance(error, StorageFailed)
    assert payloads_of(rig, "s") == [b"x"]
