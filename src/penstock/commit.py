"""Group commit: what arrives in one turn of the event loop is written together and synced together.

Two stages, one write and one sync under way at a time. While one runs, the next batch gathers. A stage runs in its
own thread, or in the event loop itself as long as the disk has been answering so fast that handing the work to a
thread would cost more than doing it (docs/decisions/0002).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock.errors import PenstockError, StorageFailed
from penstock.log.files import Buffer
from penstock.log.frame import OVERHEAD_BYTES_PER_MESSAGE
from penstock.log.segment import Segment, WrittenFrame
from penstock.log.store import Store
from penstock.log.stream import Stream, Written
from penstock.model import Persistence
from penstock.worker import Worker

logger = logging.getLogger(__name__)

INLINE_WRITE_BYTES_MAX = 128 * 1024
INLINE_SYNC_BYTES_MAX = 64 * 1024
INLINE_SHORT_S = 0.002
INLINE_AFTER = 32


_NOTHING_WRITTEN = Written([], None, None)


class AppendSink(Protocol):
    """Whoever waits for appended messages, told once for each run of them, in order."""

    def appended(self, first_sequence: int, count: int) -> None: ...

    def append_failed(self, count: int, error: PenstockError) -> None: ...


class Pace:
    """Whether a disk operation has been short, time after time, so that the event loop can afford to do it."""

    def __init__(self) -> None:
        self._short_in_a_row = 0

    def note(self, duration_s: float) -> None:
        self._short_in_a_row = self._short_in_a_row + 1 if duration_s < INLINE_SHORT_S else 0

    @property
    def fast(self) -> bool:
        return self._short_in_a_row >= INLINE_AFTER


class Failure(NamedTuple):
    """Messages that are not committed, and why."""

    first_sequence: int
    next_sequence: int
    error: PenstockError


class Batch:
    """Messages of one stream that are committed together."""

    __slots__ = ("data_bytes", "first_sequence", "payloads", "stream", "waiting", "written")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.first_sequence = stream.next_sequence
        self.payloads: list[Buffer] = []
        self.waiting: list[tuple[AppendSink, int, PenstockError | None]] = []
        self.data_bytes = 0
        self.written = _NOTHING_WRITTEN

    @property
    def charged_bytes(self) -> int:
        return self.data_bytes + len(self.payloads) * OVERHEAD_BYTES_PER_MESSAGE

    def failures_of_write(self) -> list[Failure]:
        failed_from, error = self.written.failed_from, self.written.error
        if failed_from is None or error is None:
            return []
        return [Failure(failed_from, self.first_sequence + len(self.payloads), error)]

    def finish(self, failures: list[Failure]) -> int:
        """Tell everybody who waits. Returns the number behind the last message that is committed."""
        sequence = self.first_sequence
        if not failures and len(self.waiting) == 1 and self.waiting[0][2] is None:
            self.waiting[0][0].appended(sequence, len(self.payloads))
            return sequence + len(self.payloads)
        committed_next = sequence
        for sink, count, refusal in self.waiting:
            if refusal is not None:
                sink.append_failed(count, refusal)
                continue
            end = sequence + count
            while sequence < end:
                failure = next((f for f in failures if f.next_sequence > sequence), None)
                if failure is not None and failure.first_sequence <= sequence:
                    stop = min(failure.next_sequence, end)
                    sink.append_failed(stop - sequence, failure.error)
                else:
                    stop = end if failure is None else min(failure.first_sequence, end)
                    sink.appended(sequence, stop - sequence)
                    committed_next = stop
                sequence = stop
        return committed_next


class _Call:
    """Work for the write thread and whoever waits for it."""

    def __init__(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self._work = work
        self._outcome: Any = None
        self._error: Exception | None = StorageFailed(
            "the server failed inside before it came to this request"
        )
        self.future = future

    def run(self) -> None:
        try:
            self._outcome = self._work()
            self._error = None
        except Exception as error:  # carried to the one who asked for the work
            self._error = error

    def settle(self) -> None:
        if self.future.cancelled():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._outcome)


class Committer:
    def __init__(self, store: Store, on_visible: Callable[[Stream], None]) -> None:
        self._store = store
        self._on_visible = on_visible
        self._loop = asyncio.get_running_loop()
        self._staged: dict[Stream, Batch] = {}
        self._newest: dict[Stream, Batch] = {}  # of each stream, while nobody has heard of its outcome
        self._calls: list[_Call] = []
        self._turn_due = False
        self._settle_all()
        self._being_written: dict[Stream, Batch] = {}
        self._writing = False
        self._write_pace = Pace()
        self._write_thread = Worker("penstock-write")
        self._unsynced: list[Batch] = []
        self._syncing = False
        self._sync_pace = Pace()
        self._sync_thread = Worker("penstock-sync")
        self._idle = asyncio.Event()
        self._idle.set()
        self.dirty: set[Segment] = set()  # written, waiting for the background sync
        self.sync_wanted = asyncio.Event()  # the background sync should not wait for its time

    # -- entry --------------------------------------------------------------------------------------

    def append(self, stream: Stream, payloads: Sequence[Buffer], data_bytes: int, sink: AppendSink) -> None:
        """Give the messages the next numbers and see that they are stored. Admission was checked before."""
        count = len(payloads)
        batch = self._staged.get(stream)
        if batch is None:
            batch = self._staged[stream] = self._newest[stream] = Batch(stream)
        batch.payloads += payloads
        batch.waiting.append((sink, count, None))
        batch.data_bytes += data_bytes
        stream.next_sequence += count
        if not self._turn_due and not self._writing:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def refuse(self, stream: Stream, sink: AppendSink, refusal: PenstockError) -> None:
        """A message is not taken; its sink hears of it in its turn, behind those it sent before."""
        batch = self._newest.get(stream)
        if batch is None:
            sink.append_failed(1, refusal)
        else:
            batch.waiting.append((sink, 1, refusal))

    def used_bytes(self, stream: Stream) -> int:
        """What the stream will hold when everything accepted so far is written."""
        unwritten = (self._staged.get(stream), self._being_written.get(stream))
        return stream.settled_bytes + sum(batch.charged_bytes for batch in unwritten if batch is not None)

    async def call(self, work: Callable[[], Any]) -> Any:
        """Run something that changes streams, after all that was appended before, with no write beside it."""
        call = _Call(work, self._loop.create_future())
        self._calls.append(call)
        self._schedule()
        return await call.future

    async def drain(self) -> None:
        """Wait until nothing is staged, being written or being synced."""
        while self._staged or self._calls or self._writing or self._unsynced or self._syncing:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        self._write_thread.close()
        self._sync_thread.close()

    def _schedule(self) -> None:
        if not self._turn_due and not self._writing:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    # -- writing ------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._turn_due = False
        if self._writing:  # begun by an append that came while others were being told; it is not forgotten
            return
        self._being_written, self._staged = self._staged, {}
        batches = list(self._being_written.values())
        calls, self._calls = self._calls, []
        if not calls and self._write_pace.fast:
            batches = self._write_inline(batches)
            if not batches:
                self._being_written = {}
                return
        self._writing = True
        done = self._write_thread.run(partial(self._write_and_call, batches, calls))
        done.add_done_callback(partial(self._write_finished, batches, calls))

    def _write_inline(self, batches: list[Batch]) -> list[Batch]:
        """Write what is small and needs no new segment at once; returns what is left for the thread."""
        arrival_ms = self._store.wall_ms()
        started_s = time.monotonic()
        budget_bytes = INLINE_WRITE_BYTES_MAX
        left: list[Batch] = []
        done: list[Batch] = []
        for batch in batches:
            budget_bytes -= batch.data_bytes
            written = None
            if budget_bytes >= 0:
                written = batch.stream.write_fitting(
                    batch.first_sequence, batch.payloads, batch.data_bytes, arrival_ms
                )
            if written is None:
                left.append(batch)
            else:
                batch.written = written
                done.append(batch)
        if done:
            self._write_pace.note((time.monotonic() - started_s) / len(done))
            self._after_write(done)
        return left

    def _write(self, batches: list[Batch]) -> None:
        arrival_ms = self._store.wall_ms()
        started_s = time.monotonic()
        for batch in batches:
            stream = batch.stream
            try:
                self._store.reserve(stream, batch.first_sequence + len(batch.payloads))
            except PenstockError as error:
                batch.written = Written([], batch.first_sequence, error)
                continue
            batch.written = stream.write(batch.first_sequence, batch.payloads, arrival_ms)
        if batches:
            self._write_pace.note((time.monotonic() - started_s) / len(batches))

    def _write_and_call(self, batches: list[Batch], calls: list[_Call]) -> None:
        self._write(batches)
        for call in calls:
            call.run()

    def _write_finished(self, batches: list[Batch], calls: list[_Call], done: asyncio.Future[None]) -> None:
        self._writing = False
        unexpected = done.exception()
        if unexpected is not None:
            self._fail_unwritten(batches, unexpected)
        if calls or unexpected is not None:
            self._settle_all()
        self._after_write(batches)
        for call in calls:
            call.settle()
        if self._staged or self._calls:
            self._schedule()

    def _fail_unwritten(self, batches: list[Batch], unexpected: BaseException) -> None:
        """A fault of ours in the write thread: those who wait hear of it, and everybody else goes on."""
        logger.critical("the write thread failed", exc_info=unexpected)
        error = StorageFailed(f"the server failed inside ({unexpected!r}); the message may not be stored")
        for batch in batches:
            if batch.written is _NOTHING_WRITTEN:
                batch.stream.write_next = batch.first_sequence + len(batch.payloads)
                batch.written = Written([], batch.first_sequence, error)

    def _settle_all(self) -> None:
        """Sizes and rules may have changed: admission must look at them again."""
        for stream in self._store.streams.values():
            stream.settled_bytes = stream.charged_bytes
            stream.room_bytes = 0

    def _after_write(self, batches: list[Batch]) -> None:
        for batch in batches:
            stream = batch.stream
            del self._being_written[stream]
            stream.settled_bytes = stream.charged_bytes
            written_frames = batch.written.frames
            definition = stream.definition
            if definition.persistence is Persistence.FILE and written_frames:
                if definition.flush_on_write:
                    self._unsynced.append(batch)
                    continue
                for frame in written_frames:
                    self.dirty.add(frame.segment)
            self._publish(batch, batch.failures_of_write())
        if self._unsynced:
            self._sync_turn()
        self._note_idle()

    # -- syncing ------------------------------------------------------------------------------------

    def _sync_turn(self) -> None:
        if self._syncing or not self._unsynced:
            return
        batches, self._unsynced = self._unsynced, []
        if self._sync_pace.fast and sum(batch.data_bytes for batch in batches) <= INLINE_SYNC_BYTES_MAX:
            self._after_sync(batches, self._sync(batches))
            return
        self._syncing = True
        done = self._sync_thread.run(partial(self._sync, batches))
        done.add_done_callback(partial(self._sync_finished, batches))

    def _sync(self, batches: list[Batch]) -> dict[Segment, PenstockError]:
        """Make all frames durable; returns the segments for which that failed."""
        written = [frame for batch in batches for frame in batch.written.frames]
        started_s = time.monotonic()
        try:
            journaled = self._store.journal.write(written)
        except OSError as error:
            logger.error("the journal failed (%s): from now on each segment is synced by itself", error)
            journaled = False
        failures = {} if journaled else self._sync_segments(batches)
        self._sync_pace.note(time.monotonic() - started_s)
        return failures

    def _sync_segments(self, batches: list[Batch]) -> dict[Segment, PenstockError]:
        failures: dict[Segment, PenstockError] = {}
        streams = {frame.segment: batch.stream for batch in batches for frame in batch.written.frames}
        for segment, stream in streams.items():
            try:
                stream.sync(segment)
            except PenstockError as error:
                failures[segment] = error
        return failures

    def _sync_finished(
        self, batches: list[Batch], done: asyncio.Future[dict[Segment, PenstockError]]
    ) -> None:
        self._syncing = False
        self._after_sync(batches, done.result())
        self._sync_turn()
        self._note_idle()

    def _after_sync(self, batches: list[Batch], failures: dict[Segment, PenstockError]) -> None:
        if self._store.journal.needs_release:
            self.sync_wanted.set()
        for batch in batches:
            unsynced = [f for f in batch.written.frames if f.segment in failures] if failures else []
            failed = [
                Failure(f.header.first_sequence, f.header.next_sequence, failures[f.segment])
                for f in unsynced
            ]
            self._publish(batch, failed + batch.failures_of_write())
            if unsynced:
                self._calls.append(
                    _Call(partial(_take_back, batch.stream, unsynced), self._loop.create_future())
                )
                self._schedule()

    def _publish(self, batch: Batch, failures: list[Failure]) -> None:
        stream = batch.stream
        if self._newest.get(stream) is batch:
            del self._newest[stream]
        committed_next = batch.finish(failures)
        if committed_next > max(batch.first_sequence, stream.visible_next):
            stream.visible_next = committed_next
            stream.visible_bytes += batch.data_bytes
        if stream.watched or stream.exported:
            self._on_visible(stream)

    def _note_idle(self) -> None:
        if not (self._staged or self._calls or self._writing or self._unsynced or self._syncing):
            self._idle.set()


def _take_back(stream: Stream, unsynced: list[WrittenFrame]) -> None:
    for frame in unsynced:
        stream.poison(frame.segment, frame.header.first_sequence)
