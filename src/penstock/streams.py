"""Streams as the doors see them: every operation on them, with its rules, independent of any wire format."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from penstock.commit import AppendSink, Committer
from penstock.errors import (
    DiskFull,
    InvalidRequest,
    MemoryExhausted,
    MessageTooLarge,
    NotEnoughMessages,
    PenstockError,
    ResponseTooLarge,
    StorageFailed,
    StreamExists,
    StreamFull,
    StreamNotFound,
    UpdateFailed,
)
from penstock.log.files import Buffer
from penstock.log.frame import OVERHEAD_BYTES_PER_MESSAGE
from penstock.log.store import Store
from penstock.log.stream import Stream, charge_of
from penstock.model import (
    ExportStatus,
    Message,
    Persistence,
    StrategyOnFull,
    StreamDefinition,
    StreamInfo,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

READ_THREADS = 4
RESPONSE_BYTES_MAX = 2**30
MESSAGE_ENVELOPE_BYTES = (
    128  # more than what a message's other fields take in a response, its stream's name aside
)


class _Waiter:
    """A read that waits until `min_count` messages are there from `start` on."""

    __slots__ = ("future", "min_count", "start")

    def __init__(self, start: int, min_count: int) -> None:
        self.start = start
        self.min_count = min_count
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Streams:
    def __init__(
        self,
        store: Store,
        *,
        message_size_max_bytes: int,
        memory_streams_size_max_bytes: int,
        read_soft_limit_bytes: int,
    ) -> None:
        self.store = store
        self.committer = Committer(store, self._messages_visible)
        self._message_size_max_bytes = message_size_max_bytes
        self._memory_streams_size_max_bytes = memory_streams_size_max_bytes
        self._read_soft_limit_bytes = read_soft_limit_bytes
        self._waiters: dict[Stream, set[_Waiter]] = {}
        self._readers = ThreadPoolExecutor(READ_THREADS, "penstock-read")
        self._changing = asyncio.Lock()  # one create, update or delete at a time
        self._closing = False
        self._visible_watchers: list[Callable[[Stream], None]] = []
        self._definition_watchers: list[Callable[[], None]] = []
        # Streams that keep messages only until they are delivered, and up to where they are.
        self.trims: Callable[[], list[tuple[Stream, int]]] = list

    def watch(self, visible: Callable[[Stream], None], definitions: Callable[[], None]) -> None:
        """Have `visible` called when an exported stream has new messages, `definitions` when streams changed."""
        self._visible_watchers.append(visible)
        self._definition_watchers.append(definitions)

    def _definitions_changed(self) -> None:
        for watcher in self._definition_watchers:
            watcher()

    # -- looking ------------------------------------------------------------------------------------

    def find(self, name: str) -> Stream:
        try:
            return self.store.streams[name]
        except KeyError:
            raise StreamNotFound(f"the message stream {name} does not exist") from None

    def names(self) -> list[str]:
        """Of message streams; what is inside of delivery streams has no name for others."""
        streams = list(self.store.streams.items())  # the write thread adds and removes streams
        return sorted(name for name, stream in streams if not stream.definition.is_delivery_stream)

    def describe(self, name: str) -> StreamInfo:
        stream = self.find(name)
        definition = stream.definition
        # The write thread may be just about to store or drop the stream's statuses.
        statuses = self.store.statuses.get(name, {})
        return StreamInfo(
            definition=definition,
            oldest_sequence_number=stream.oldest_sequence,
            newest_sequence_number=stream.visible_next - 1,
            total_bytes=stream.charged_bytes,
            export_statuses=tuple(
                statuses.get(export.identifier) or ExportStatus(export.identifier)
                for export in definition.exports
            ),
        )

    # -- changing -----------------------------------------------------------------------------------

    async def create(self, definition: StreamDefinition) -> None:
        async with self._changing:
            if definition.name in self.store.streams:
                raise StreamExists
            self._check_status_streams(definition)
            try:
                await self.committer.call(partial(self.store.create_stream, definition))
            except (OSError, sqlite3.Error) as error:
                raise StorageFailed(f"the stream could not be stored ({error}); check the disk") from error
            self._definitions_changed()

    async def update(
        self, name: str, change: Callable[[StreamInfo], tuple[StreamDefinition, dict[str, int]]]
    ) -> None:
        """`change` gets the present state; it returns the new definition and the exports whose position moves
        (the number to go on from, by identifier), or raises what forbids the update."""
        async with self._changing:
            info = self.describe(name)
            definition, moved = change(info)
            self._check_status_streams(definition)
            stream = self.find(name)
            statuses = self._statuses_after(info.definition, definition, moved)
            try:
                await self.committer.call(partial(self.store.update_stream, stream, definition, statuses))
            except (OSError, sqlite3.Error) as error:
                raise UpdateFailed(f"the update could not be stored ({error}); check the disk") from error
            self._definitions_changed()
            self._messages_visible(stream)

    async def delete(self, name: str) -> None:
        async with self._changing:
            stream = self.find(name)
            try:
                await self.committer.call(partial(self.store.delete_stream, stream))
            except (OSError, sqlite3.Error) as error:
                raise StorageFailed(f"the stream could not be removed ({error}); check the disk") from error
            self._definitions_changed()
            gone = StreamNotFound(f"the message stream {name} was deleted")
            for waiter in self._waiters.pop(stream, set()):
                if not waiter.future.done():
                    waiter.future.set_exception(gone)

    def _check_status_streams(self, definition: StreamDefinition) -> None:
        for export in definition.exports:
            name = export.status_stream_name
            if name is not None and name not in self.store.streams:
                raise InvalidRequest(
                    f"export {export.identifier}: the status stream {name} does not exist; create it first."
                )

    def _statuses_after(
        self, old: StreamDefinition, new: StreamDefinition, moved: dict[str, int]
    ) -> dict[str, ExportStatus]:
        """An export keeps its status as long as its identifier and kind stay."""
        known = self.store.statuses[old.name]
        kinds = {export.identifier: export.kind for export in old.exports}
        statuses: dict[str, ExportStatus] = {}
        for export in new.exports:
            name = export.identifier
            kept = kinds.get(name) is export.kind
            statuses[name] = known[name] if kept else ExportStatus(name)
            if name in moved:
                position = moved[name] - 1
                statuses[name] = msgspec.structs.replace(known[name], last_exported_sequence_number=position)
        return statuses

    # -- appending ----------------------------------------------------------------------------------

    def append(
        self, name: str, payloads: Sequence[Buffer], sink: AppendSink, *, all_or_nothing: bool = False
    ) -> None:
        """Store messages; `sink` hears of each, in order, when they are what the stream promises.

        If there is no room for all of them, as many as there is room for, or none.
        """
        stream = self.store.streams.get(name)
        if stream is None:
            sink.append_failed(len(payloads), StreamNotFound(f"the message stream {name} does not exist"))
            return
        data_bytes = sum(map(len, payloads))
        charge_bytes = data_bytes + len(payloads) * OVERHEAD_BYTES_PER_MESSAGE
        if charge_bytes > stream.room_bytes or self.store.disk_full:
            if self._refusal(stream, charge_bytes) is not None:
                if all_or_nothing:
                    self._append_all_or_nothing(stream, payloads, data_bytes, sink)
                else:
                    self._append_singly(stream, payloads, sink)
                return
            stream.room_bytes = self._room_bytes(stream)
        stream.room_bytes -= charge_bytes
        self.committer.append(stream, payloads, data_bytes, sink)

    def _append_singly(self, stream: Stream, payloads: Sequence[Buffer], sink: AppendSink) -> None:
        """There is no room for all: take as many as there is room for."""
        stream.room_bytes = 0
        for payload in payloads:
            refusal = self._refusal(stream, charge_of(payload))
            if refusal is None:
                self.committer.append(stream, [payload], len(payload), sink)
            else:
                self.committer.refuse(stream, sink, refusal)

    def _append_all_or_nothing(
        self, stream: Stream, payloads: Sequence[Buffer], data_bytes: int, sink: AppendSink
    ) -> None:
        stream.room_bytes = 0
        charge_bytes = data_bytes + len(payloads) * OVERHEAD_BYTES_PER_MESSAGE
        largest = max(payloads, key=len)
        refusal = self._refusal(stream, charge_of(largest)) or self._fullness(stream, charge_bytes)
        if refusal is None:
            self.committer.append(stream, payloads, data_bytes, sink)
        else:
            sink.append_failed(len(payloads), refusal)

    def _refusal(self, stream: Stream, charge_bytes: int) -> PenstockError | None:
        """Why messages of this size cannot be taken now, if they cannot."""
        definition = stream.definition
        payload_bytes = charge_bytes - OVERHEAD_BYTES_PER_MESSAGE
        if payload_bytes > self._message_size_max_bytes or charge_bytes > definition.max_size_bytes:
            limit_bytes = min(
                self._message_size_max_bytes, definition.max_size_bytes - OVERHEAD_BYTES_PER_MESSAGE
            )
            return MessageTooLarge(
                f"a message of {payload_bytes} bytes does not fit: stream {definition.name} takes at most "
                f"{limit_bytes}; split it, or raise maxSize or PENSTOCK_MESSAGE_SIZE_MAX_BYTES"
            )
        if definition.persistence is Persistence.MEMORY:
            if self._memory_in_use() + charge_bytes > self._memory_streams_size_max_bytes:
                return MemoryExhausted(
                    "Memory streams are using all the memory they may have: delete one, lower their maxSize, "
                    "or raise PENSTOCK_MEMORY_STREAMS_SIZE_MAX_BYTES"
                )
        elif self.store.disk_full:
            return DiskFull(
                f"the disk is full ({self.store.free_bytes} bytes free, free_space_floor_bytes keeps "
                f"{self.store.free_space_floor_bytes}): free some space; appends resume by themselves"
            )
        return self._fullness(stream, charge_bytes)

    def _fullness(self, stream: Stream, charge_bytes: int) -> PenstockError | None:
        definition = stream.definition
        if definition.strategy_on_full is not StrategyOnFull.REJECT_NEW_DATA:
            return None
        used_bytes = self.committer.used_bytes(stream)
        if used_bytes + charge_bytes <= definition.max_size_bytes:
            return None
        size = f"{used_bytes} of {definition.max_size_bytes} bytes"
        if definition.is_delivery_stream:
            return StreamFull(
                f"the buffer of {definition.name} is full ({size}): see with 'penstock delivery describe' why "
                "records are not delivered, or raise PENSTOCK_FIREHOSE_STREAM_SIZE_MAX_BYTES"
            )
        return StreamFull(
            f"the message stream {definition.name} is full ({size}): "
            "raise maxSize, set a TTL, or choose OverwriteOldestData"
        )

    def _room_bytes(self, stream: Stream) -> int:
        """How much the stream certainly takes before its rules must be looked at again."""
        definition = stream.definition
        if definition.persistence is Persistence.MEMORY:
            return 0
        message_bytes = min(self._message_size_max_bytes, definition.max_size_bytes)
        if definition.strategy_on_full is StrategyOnFull.OVERWRITE_OLDEST_DATA:
            return message_bytes
        return min(message_bytes, definition.max_size_bytes - self.committer.used_bytes(stream))

    def _memory_in_use(self) -> int:
        return sum(
            self.committer.used_bytes(stream)
            for stream in list(self.store.streams.values())  # the write thread adds and removes streams
            if stream.definition.persistence is Persistence.MEMORY
        )

    def _messages_visible(self, stream: Stream) -> None:
        if stream.exported:
            for watcher in self._visible_watchers:
                watcher(stream)
        waiters = self._waiters.get(stream)
        if not waiters:
            return
        oldest, visible_next = stream.oldest_sequence, stream.visible_next
        for waiter in waiters:
            # Gaps only make it fewer: looking for them is worth its cost only if there could be enough.
            if visible_next - max(waiter.start, oldest) < waiter.min_count or waiter.future.done():
                continue
            if self._available(stream, waiter.start) >= waiter.min_count:
                waiter.future.set_result(None)

    # -- reading ------------------------------------------------------------------------------------

    def _available(self, stream: Stream, start: int) -> int:
        return stream.count_from(max(start, stream.oldest_sequence))

    async def wait_for_messages(self, name: str, start: int, min_count: int, timeout_ms: int) -> None:
        """Return when there are `min_count` messages from `start` on. Raises NotEnoughMessages in the end."""
        stream = self.find(name)
        # Answer a little early, or the client's own timer of the same length goes off first.
        remaining_s = (timeout_ms - min(100, timeout_ms * 0.05)) / 1000
        if self._available(stream, start) >= min_count:
            return
        if remaining_s <= 0 or self._closing:
            raise self._not_enough(stream, start, min_count)
        waiter = _Waiter(start, min_count)
        waiters = self._waiters.setdefault(stream, set())
        waiters.add(waiter)
        stream.watched = True
        try:
            await asyncio.wait_for(waiter.future, remaining_s)
        except asyncio.TimeoutError:
            raise self._not_enough(stream, start, min_count) from None
        finally:
            waiters.discard(waiter)
            if not waiters:
                stream.watched = False
                self._waiters.pop(stream, None)

    async def read(
        self, name: str, start: int, min_count: int, max_count: int, convert: Callable[[list[Message]], T]
    ) -> T:
        """At least `min_count` messages from `start` on, passed through `convert` in the reading thread."""
        stream = self.find(name)
        if self._available(stream, start) < min_count:
            raise self._not_enough(stream, start, min_count)
        work = partial(self._read, stream, start, min_count, max_count, convert)
        result = await asyncio.get_running_loop().run_in_executor(self._readers, work)
        if result is None:
            self.find(name)
            raise self._not_enough(stream, start, min_count)
        return result

    def _read(
        self,
        stream: Stream,
        start: int,
        min_count: int,
        max_count: int,
        convert: Callable[[list[Message]], T],
    ) -> T | None:
        """None when messages went away between the look and the read."""
        messages: list[Message] = []
        size_bytes = 0
        while len(messages) < min_count:
            reading = stream.read(start, max_count - len(messages), self._read_soft_limit_bytes)
            if not reading.messages:
                return None
            messages += reading.messages
            start = reading.next_sequence
            size_bytes += sum(len(m.payload) + MESSAGE_ENVELOPE_BYTES for m in reading.messages)
            if size_bytes > RESPONSE_BYTES_MAX and len(messages) < max_count:
                raise ResponseTooLarge(
                    f"{min_count} messages do not fit in one response: lower minMessageCount below {len(messages)}"
                )
        return convert(messages)

    def _not_enough(self, stream: Stream, start: int, min_count: int) -> NotEnoughMessages:
        newest = stream.visible_next - 1
        if start > newest:
            return NotEnoughMessages(
                f"the desired sequence number {start} is greater than the last sequence number {newest}"
            )
        return NotEnoughMessages(
            f"there are {self._available(stream, start)} messages from sequence number {start} on, "
            f"fewer than the {min_count} asked for"
        )

    # -- upkeep and end -----------------------------------------------------------------------------

    async def expire(self) -> None:
        """Drop what has outlived its TTL, and what delivery streams have delivered."""
        trims = self.trims()
        streams = list(self.store.streams.values())  # the write thread adds and removes streams
        if trims or any(stream.definition.ttl_ms is not None for stream in streams):
            await self.committer.call(partial(self._expire_all, trims))

    def _expire_all(self, trims: list[tuple[Stream, int]]) -> None:
        drops = [(stream, stream.expire) for stream in self.store.streams.values()]
        drops += [(stream, partial(stream.trim, sequence)) for stream, sequence in trims]
        for stream, drop in drops:
            try:
                drop()
            except OSError as error:
                logger.error("stream %r: messages could not be dropped (%s)", stream.definition.name, error)

    def release_waiters(self) -> None:
        """The server stops: every waiting read gets its answer now."""
        self._closing = True
        for stream, waiters in self._waiters.items():
            for waiter in waiters:
                if not waiter.future.done():
                    waiter.future.set_exception(self._not_enough(stream, waiter.start, waiter.min_count))

    def close(self) -> None:
        self._readers.shutdown()
        self.committer.close()
