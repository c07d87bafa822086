"""A store on a disk that fails, and the committer above it, driven one step at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from faults.disk import FaultyDisk
from penstock.errors import PenstockError
from penstock.log.store import Store
from penstock.log.stream import Stream
from penstock.model import Message, StreamDefinition
from penstock.streams import Streams

T = TypeVar("T")

JOURNAL_BYTES = 64 * 1024
DEADLINE_S = 20


class Sink:
    """Remembers what it was told: for each message in order its number, or why it is not stored."""

    def __init__(self) -> None:
        self.results: list[int | PenstockError] = []

    def appended(self, first_sequence: int, count: int) -> None:
        self.results += range(first_sequence, first_sequence + count)

    def append_failed(self, count: int, error: PenstockError) -> None:
        self.results += [error] * count

    @property
    def numbers(self) -> list[int]:
        return [result for result in self.results if isinstance(result, int)]

    @property
    def errors(self) -> list[PenstockError]:
        return [result for result in self.results if not isinstance(result, int)]


class Clock:
    """Two clocks: one that only runs on, and one that somebody may set."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.wall = 1_700_000_000_000

    def monotonic_s(self) -> float:
        return self.monotonic

    def wall_ms(self) -> int:
        return self.wall

    def advance(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += int(seconds * 1000)


def open_store(
    disk: FaultyDisk, clock: Clock, *, boot_id: str = "boot", journal_size_bytes: int = JOURNAL_BYTES
) -> Store:
    disk.root.mkdir(exist_ok=True)  # the catalog and the lock are real
    return Store(
        disk.root,
        files=disk,
        journal_size_bytes=journal_size_bytes,
        free_space_floor_bytes=0,
        boot_id=boot_id,
        monotonic_s=clock.monotonic_s,
        wall_ms=clock.wall_ms,
    )


def open_streams(store: Store) -> Streams:
    return Streams(
        store,
        message_size_max_bytes=2**20,
        memory_streams_size_max_bytes=2**22,
        read_soft_limit_bytes=2**20,
    )


def read_all(stream: Stream) -> list[Message]:
    """Everything that can be read, in one go; damage raises."""
    messages: list[Message] = []
    sequence = 0
    while sequence < stream.visible_next:
        reading = stream.read(sequence, 2**31, 2**31)
        assert reading.next_sequence > sequence, "reading makes no progress"
        messages += reading.messages
        sequence = reading.next_sequence
    return messages


class Rig:
    """Streams on a faulty disk, with an event loop of their own, so that each step can be awaited from outside."""

    def __init__(self, data_dir: Path, *, disk_size_bytes: int = 2**40) -> None:
        self.disk = FaultyDisk(data_dir, size_bytes=disk_size_bytes)
        self.clock = Clock()
        self.boot = 0
        self.loop = asyncio.new_event_loop()
        self.store: Store
        self.streams: Streams
        self.open()

    def open(self) -> None:
        self.store = open_store(self.disk, self.clock, boot_id=f"boot {self.boot}")
        self.streams = self.run(self._open_streams())

    async def _open_streams(self) -> Streams:
        return open_streams(self.store)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, DEADLINE_S))

    # -- steps --------------------------------------------------------------------------------------

    def create(self, name: str, **fields: Any) -> Stream:
        self.run(self.streams.create(StreamDefinition(name, **fields)))
        return self.store.streams[name]

    def submit(self, name: str, payloads: Sequence[bytes]) -> Sink:
        """Append without waiting for the outcome."""
        sink = Sink()
        self.streams.append(name, payloads, sink)
        return sink

    def append(self, name: str, *payloads: bytes) -> Sink:
        sink = self.submit(name, payloads)
        self.drain()
        return sink

    def drain(self) -> None:
        self.run(self.streams.committer.drain())

    async def until(self, happened: Awaitable[T]) -> T:
        return await asyncio.wait_for(happened, DEADLINE_S)

    def background_sync(self) -> None:
        dirty, self.streams.committer.dirty = self.streams.committer.dirty, set()
        self.store.sync_segments(dirty)

    def read(self, name: str) -> list[Message]:
        return read_all(self.store.streams[name])

    # -- ends ---------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """What is left of a process that was killed: nothing but its threads, which find a dead disk."""
        self.drain()
        self.streams.close()
        self.store.close(clean=False)

    def kill(self) -> None:
        self.disk.kill()
        self.abandon()
        self.open()

    def power_cut(self, rng: random.Random) -> None:
        self.disk.power_cut(rng)
        self.abandon()
        self.boot += 1
        self.open()

    def restart(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.drain()
        self.streams.close()
        self.store.close()

    def dispose(self) -> None:
        self.streams.close()
        self.loop.close()
