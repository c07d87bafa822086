"""Group commit on a disk that fails: nobody is told what is not true, and the server goes on."""

from __future__ import annotations

import asyncio

from faults.disk import Hold
from faults.rig import Rig, Sink
from penstock.errors import StorageFailed


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
