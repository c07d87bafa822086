"""The store as a whole: the journal, the catalog beside it, and how one server follows another."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import sys
import threading
from pathlib import Path

import pytest

from faults.disk import FaultyDisk
from faults.rig import Clock, Rig, open_store
from penstock.errors import DataDirectoryInUse, StorageFailed
from penstock.log.store import RESERVE_MESSAGES, Store
from penstock.model import Persistence

RNG_SEEDS = range(20)


def payloads_of(rig: Rig, name: str = "s") -> list[bytes]:
    return [message.payload for message in rig.read(name)]


# -- rule 4 -------------------------------------------------------------------------------------------


def test_rule_4_numbers_go_on_after_a_restart_and_a_kill(rig: Rig) -> None:
    rig.create("s")
    assert rig.append("s", b"0", b"1").numbers == [0, 1]
    rig.restart()
    assert rig.append("s", b"2").numbers == [2]
    rig.kill()
    assert rig.append("s", b"3").numbers == [3]


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_rule_4_relaxed_streams_skip_what_a_power_cut_may_have_taken(rig: Rig, seed: int) -> None:
    rig.create("s")
    rig.append("s", *(b"%d" % n for n in range(100)))
    rig.power_cut(random.Random(seed))
    [number] = rig.append("s", b"new").numbers
    assert number == RESERVE_MESSAGES
    rig.power_cut(random.Random(seed))
    assert rig.append("s", b"newer").numbers == [RESERVE_MESSAGES + 1 + RESERVE_MESSAGES]


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_rule_4_durable_streams_need_no_skip(rig: Rig, seed: int) -> None:
    rig.create("s", flush_on_write=True)
    for number in range(10):
        assert rig.append("s", b"%d" % number).numbers == [number]
    rig.power_cut(random.Random(seed))
    assert payloads_of(rig) == [b"%d" % n for n in range(10)]
    assert rig.append("s", b"new").numbers == [10]


def test_rule_4_numbers_are_reserved_before_they_run_out(rig: Rig) -> None:
    rig.create("s")
    batch = [b""] * 20_000
    for _ in range(4):
        assert len(rig.append("s", *batch).numbers) == 20_000
    rig.power_cut(random.Random(1))
    assert rig.append("s", b"new").numbers[0] >= 80_000


def test_rule_4_a_server_that_dies_while_opening_does_not_hide_the_power_cut(rig: Rig) -> None:
    rig.create("s")
    rig.append("s", b"x")
    rig.disk.power_cut(random.Random(1))
    rig.abandon()
    rig.boot += 1
    rig.disk.crash_after(0)
    with pytest.raises(OSError, match="Input/output"):
        rig.open()
    rig.disk.kill()
    rig.open()
    assert rig.append("s", b"new").numbers == [RESERVE_MESSAGES]


def test_rule_4_an_expired_stream_goes_on_where_it_was(rig: Rig) -> None:
    rig.create("s", ttl_ms=60_000, flush_on_write=True)
    rig.append("s", b"a", b"b", b"c")
    rig.clock.advance(61)
    rig.run(rig.streams.expire())
    stream = rig.store.streams["s"]
    assert (stream.oldest_sequence, stream.visible_next, stream.charged_bytes) == (3, 3, 0)
    rig.power_cut(random.Random(3))
    assert rig.append("s", b"d").numbers == [3]


# -- rule 5 -------------------------------------------------------------------------------------------


def test_rule_5_what_the_journal_holds_is_restored_even_if_it_seems_to_be_in_place(rig: Rig) -> None:
    """A failed sync leaves pages that can be read but are not on disk; a restart must not be fooled by them."""
    rig.create("s", flush_on_write=True)
    assert rig.append("s", b"acknowledged").numbers == [0]
    rig.disk.fail("sync", "*.open")
    with pytest.raises(StorageFailed):
        rig.store.streams["s"].sync(rig.store.streams["s"].segments[0])
    rig.kill()
    assert payloads_of(rig) == [b"acknowledged"]
    rig.power_cut(random.Random(1))
    assert payloads_of(rig) == [b"acknowledged"]


def test_rule_5_a_stop_with_a_failing_disk_is_not_clean(rig: Rig) -> None:
    rig.create("s")
    rig.append("s", b"x")
    rig.disk.fail("sync", "*.open")
    rig.close()
    rig.disk.power_cut(random.Random(1))
    rig.boot += 1
    rig.open()
    assert rig.append("s", b"new").numbers == [RESERVE_MESSAGES]


def test_rule_5_the_journal_is_used_again_after_a_failed_write(rig: Rig) -> None:
    """A segment that a write failed in is synced all the same, and must not hold the journal for ever."""
    rig.create("s", flush_on_write=True)
    rig.append("s", b"x")
    rig.disk.fail("write", "*.open")
    assert rig.append("s", b"lost").numbers == []
    for _ in range(60):
        assert rig.append("s", bytes(2000)).errors == []
        rig.background_sync()
    before = rig.disk.syncs["journal-0"] + rig.disk.syncs["journal-1"]
    assert rig.append("s", b"y").errors == []
    assert rig.disk.syncs["journal-0"] + rig.disk.syncs["journal-1"] == before + 1


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_what_a_killed_server_left_in_the_page_cache_is_synced(rig: Rig, seed: int) -> None:
    rig.create("s")
    rig.append("s", b"x" * 5000)
    rig.kill()
    rig.background_sync()
    rig.power_cut(random.Random(seed))
    assert payloads_of(rig) == [b"x" * 5000]


def test_a_clean_stop_leaves_nothing_to_do(rig: Rig) -> None:
    rig.create("s", flush_on_write=True)
    rig.append("s", b"x")
    rig.restart()
    rig.disk.syncs.clear()
    rig.background_sync()
    assert rig.append("s", b"y").numbers == [1]
    assert set(rig.disk.syncs) == {"journal-0"}


# -- opening ------------------------------------------------------------------------------------------


def test_a_second_server_is_refused(rig: Rig) -> None:
    with pytest.raises(DataDirectoryInUse, match="in use by another penstock server"):
        open_store(rig.disk, rig.clock)


def test_a_server_that_cannot_open_lets_go_of_the_directory(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "data")
    open_store(disk, Clock()).close()
    disk.fail("list")
    with pytest.raises(OSError, match="Input/output"):
        open_store(disk, Clock())
    open_store(disk, Clock()).close()


def test_a_catalog_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite3").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(
        StorageFailed, match=r"catalog\.sqlite3 cannot be used \(file is not a database\); is there"
    ):
        Store(tmp_path)


def test_journaled_frames_that_cannot_be_restored_are_kept_and_their_numbers_not_used(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.create("s", flush_on_write=True)
    rig.append("s", b"0", b"1")
    rig.append("s", b"2", b"3")
    rig.disk.power_cut(random.Random(0))
    rig.abandon()
    rig.disk.fail("write", "*.open")
    with caplog.at_level(logging.ERROR):
        rig.open()
    assert "cannot be restored" in caplog.text
    assert rig.append("s", b"new").numbers[0] >= 4
    [kept] = [path for path in rig.disk.paths() if "failed" in path.name]
    assert b"PSJ1" in rig.disk.inode(kept).cached


def test_an_unreadable_journal_does_not_stop_the_server(rig: Rig) -> None:
    rig.create("s", flush_on_write=True)
    for number in range(8):
        rig.append("s", b"%d" % number * 3000)
    rig.disk.inode(rig.disk.root / "journal-0").bad_pages = {3}
    rig.kill()
    assert [payload[:1] for payload in payloads_of(rig)] == [b"%d" % n for n in range(8)]
    assert any("failed" in path.name for path in rig.disk.paths())
    assert rig.append("s", b"new").numbers == [8]


# -- streams that come and go -------------------------------------------------------------------------


def folders(rig: Rig) -> set[str]:
    return {path.parent.name for path in rig.disk.paths() if path.parent != rig.disk.root}


def test_messages_of_a_lost_catalog_are_not_removed(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.create("s")
    rig.append("s", b"precious")
    rig.close()
    before = rig.disk.snapshot()
    for path in rig.disk.root.glob("catalog*"):
        path.unlink()
    with caplog.at_level(logging.ERROR):
        rig.open()
    assert "belongs to no stream" in caplog.text
    kept = {path: content for path, content in rig.disk.snapshot().items() if path.suffix == ".open"}
    assert kept == {path: content for path, content in before.items() if path.suffix == ".open"}


def test_strange_things_among_the_folders_do_not_stop_the_server(tmp_path: Path) -> None:
    (tmp_path / "streams" / "lost+found" / "deep").mkdir(parents=True)
    (tmp_path / "streams" / "notes.txt").write_text("x")
    Store(tmp_path).close()
    assert (tmp_path / "streams" / "notes.txt").exists()
    assert (tmp_path / "streams" / "lost+found" / "deep").exists()


@pytest.mark.parametrize("changes", range(6))
def test_a_deletion_that_was_cut_short_is_finished(rig: Rig, changes: int) -> None:
    rig.create("s", segment_size_bytes=1024)
    rig.create("other")
    rig.append("other", b"x")
    for _ in range(5):
        rig.append("s", bytes(1000))
    rig.disk.crash_after(changes)
    rig.run(rig.streams.delete("s"))
    rig.kill()
    assert set(rig.store.streams) == {"other"}
    assert len(folders(rig)) == 1
    rig.restart()
    assert payloads_of(rig, "other") == [b"x"]
    assert rig.store.catalog.removed_streams() == set()


@pytest.mark.parametrize("changes", range(6))
@pytest.mark.parametrize("power", [False, True])
def test_a_creation_that_was_cut_short_leaves_nothing(rig: Rig, changes: int, power: bool) -> None:
    rig.disk.crash_after(changes)
    created = True
    try:
        rig.create("s", flush_on_write=True)
    except StorageFailed:
        created = False
    if power:
        rig.power_cut(random.Random(changes))
    else:
        rig.kill()
    assert (set(rig.store.streams) == {"s"}) == created
    assert len(folders(rig)) == int(created)
    if not created:
        rig.create("s")
    assert rig.append("s", b"x").numbers == [0]


def test_a_creation_that_failed_leaves_nothing(rig: Rig) -> None:
    rig.disk.fail("sync_directory", "*streams*")
    with pytest.raises(StorageFailed):
        rig.create("s")
    assert folders(rig) == set()
    rig.create("s")
    assert rig.append("s", b"x").numbers == [0]


def test_a_stream_deleted_while_it_is_sealed_is_gone(rig: Rig) -> None:
    stream = rig.create("s", segment_size_bytes=1024)
    for _ in range(10):
        rig.append("s", bytes(300))
    hold = rig.disk.hold_syncs("*.tmp")
    sealing = threading.Thread(target=rig.store.seal_segments)
    sealing.start()
    assert hold.reached.wait(10)
    rig.run(rig.streams.delete("s"))
    hold.let_go()
    sealing.join(10)
    assert not sealing.is_alive()
    assert stream.deleted
    rig.restart()
    assert folders(rig) == set()


def test_rule_10_names_on_disk(rig: Rig) -> None:
    names = [
        "..",
        ".",
        " ",
        "a",
        "A",
        "É".encode().hex(),
        "x" * 255,
        "X" * 255,
        "con",
        "a.log",
        "-",
        ",",
        "a/b",
    ]
    for name in names:
        rig.create(name)
        assert rig.append(name, name.encode()).numbers == [0]
    for path in rig.disk.paths():
        assert path.is_relative_to(rig.disk.root)
        assert ".." not in path.parts
        assert all(len(part.encode()) <= 255 for part in path.relative_to(rig.disk.root).parts)
    lowered = [folder.lower() for folder in folders(rig)]
    assert len(set(lowered)) == len(names), "a file system that ignores case must keep them apart"
    rig.restart()
    for name in names:
        assert payloads_of(rig, name) == [name.encode()]


def test_rule_9_memory_streams_leave_nothing_on_disk(rig: Rig) -> None:
    before = rig.disk.snapshot()
    rig.create("m", persistence=Persistence.MEMORY, segment_size_bytes=1024)
    for number in range(20):
        assert rig.append("m", b"%d" % number * 100).numbers == [number]
    rig.store.seal_segments()
    assert [payload[:2] for payload in payloads_of(rig, "m")] == [b"%d" % n * 2 for n in range(10)] + [
        b"%d" % n for n in range(10, 20)
    ]
    assert rig.disk.snapshot() == before
    rig.restart()
    assert payloads_of(rig, "m") == []
    assert rig.append("m", b"again").numbers == [0]


# -- upkeep -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "remove", "sync_directory"])
def test_rule_7_expiry_on_a_failing_disk_is_tried_again(rig: Rig, operation: str) -> None:
    rig.create("s", ttl_ms=60_000)
    rig.append("s", b"old")
    rig.clock.advance(61)
    rig.disk.fail(operation, error=errno.ENOSPC)
    rig.run(rig.streams.expire())
    assert rig.append("s", b"new").errors == []
    rig.clock.advance(61)
    rig.run(rig.streams.expire())
    assert payloads_of(rig) == []
    assert rig.append("s", b"newer").numbers == [2]


def test_upkeep_while_streams_come_and_go(rig: Rig) -> None:
    """The event loop looks at all streams while the write thread adds and removes some."""
    rig.create("m", persistence=Persistence.MEMORY)
    failures: list[BaseException] = []
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            for number in range(50):
                rig.store.streams[f"x{number}"] = rig.store.streams["m"]
            for number in range(50):
                del rig.store.streams[f"x{number}"]

    thread = threading.Thread(target=come_and_go)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(300):
            rig.streams._memory_in_use()
            rig.run(rig.streams.expire())
            rig.streams.names()
    except RuntimeError as error:
        failures.append(error)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval_s)
    assert failures == []


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_readers_of_a_durable_stream_see_nothing_that_a_power_cut_can_take_back(rig: Rig, seed: int) -> None:
    """Also not what a server wrote just before it was killed, and never acknowledged."""
    rig.create("s", flush_on_write=True)
    rig.disk.fail("write", "*/journal-?")
    hold = rig.disk.hold_syncs("*.open")
    rig.submit("s", [b"x" * 5000])

    async def until_syncing() -> None:
        assert await asyncio.to_thread(hold.reached.wait, 10)

    rig.run(until_syncing())
    rig.kill()
    assert payloads_of(rig) == [b"x" * 5000]
    rig.power_cut(random.Random(seed))
    assert payloads_of(rig) == [b"x" * 5000]
