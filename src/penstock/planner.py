"""The planner: which range of which export is due, who has it, and what came of it.

It lives in the event loop, where every append is seen the moment it becomes visible. A flush is in the catalog
before anybody gets it, so that whoever tries it again tries the same one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from penstock.catalog import FlushRow
from penstock.errors import CorruptMessages, InvalidRequest, PenstockError
from penstock.flush import Flush, LeaseRequest, Leases, Outcome, ReportAnswer, batch_size
from penstock.log.stream import Stream
from penstock.model import Export, ExportKind, ExportStatus, Persistence, StreamDefinition, StreamInfo
from penstock.s3_status import Status, StatusLevel, status_message, task_as_sent, wants_status
from penstock.streams import Streams

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 300.0
LEASE_S = 10.0
LEASE_RENEWAL_MS = 3000
FLUSH_BYTES_MAX = 64 * 1024 * 1024
TASKS_MAX = 16  # S3 file tasks in one flush
LAST_PRIORITY = 11
NUMBER_BITS = 48
NOTE_LATER_S = 0.1
DAMAGE_READ_BYTES = 1024 * 1024


class ExportRun:
    """One export at work: its configuration, its position, and the flush it is busy with."""

    def __init__(self, stream: Stream, export: Export, status: ExportStatus) -> None:
        self.stream = stream
        self.export = export
        self.status = status
        self.flush: Flush | None = None
        self.holder: str | None = None  # the pipeline that has the flush
        self.handed_out_s = 0.0
        self.attempt_ended = True
        self.progressed = False  # the present attempt has delivered something
        self.statuses_heard = 0  # status messages of the present attempt
        self.upload = (0, 0)  # bytes done and bytes in all of its long upload, if it is at one
        self.failures = 0
        self.not_before_s = 0.0
        self.pending_since_s: float | None = None
        self.accounted_next = self.position  # what became of all messages before is known

    @property
    def key(self) -> tuple[int, str]:
        return self.stream.key, self.export.identifier

    @property
    def priority(self) -> int:
        return int(self.export.settings.get("priority", LAST_PRIORITY))

    @property
    def position(self) -> int:
        """The next message to export."""
        done = self.status.last_exported_sequence_number
        wanted = done + 1 if done >= 0 else self.export.start_sequence_number
        return max(wanted, self.stream.oldest_sequence)

    @property
    def waiting_messages(self) -> int:
        return max(0, self.stream.visible_next - self.position)

    @property
    def state(self) -> str:
        """In a word, for operators."""
        if self.export.disabled:
            return "paused"
        if self.holder is not None:
            return "retrying" if self.failures else "delivering"
        if self.failures:
            return "failing"
        return "waiting" if self.waiting_messages else "idle"

    def lose(self, messages: int) -> None:
        if messages > 0:
            self.status.lost_messages += messages
            logger.warning(
                "stream %s: %d messages were deleted before export %s had them",
                self.stream.definition.name, messages, self.export.identifier,
            )  # fmt: skip

    def due_at_s(self, now_s: float) -> float | None:
        """When the export can be handed out next; None if that depends on something else happening."""
        if self.export.disabled or self.holder is not None:
            return None
        if self.flush is not None:
            return self.not_before_s
        if self.waiting_messages == 0:
            return None
        interval_ms = self.export.settings.get("batchIntervalMillis")
        if interval_ms is None or self.waiting_messages >= self.batch_size:
            return self.not_before_s
        since_s = self.pending_since_s if self.pending_since_s is not None else now_s
        return max(self.not_before_s, since_s + float(interval_ms) / 1000)

    @property
    def batch_size(self) -> int:
        return batch_size(self.export.kind, self.export.settings)

    @property
    def average_bytes(self) -> int:
        """Of a message of the stream, roughly."""
        held = max(1, self.stream.visible_next - self.stream.oldest_sequence)
        return max(1, self.stream.charged_bytes // held)

    def next_range(self, size_max_bytes: int) -> tuple[int, int]:
        """What an attempt would take: what is left of the flush, or else all that waits, within bounds."""
        if self.flush is not None:
            return self.flush.first, self.flush.next
        first = self.position
        waiting = self.stream.visible_next - first
        if self.export.kind is ExportKind.S3_TASK_EXECUTOR:
            return first, first + min(waiting, TASKS_MAX)
        return first, first + min(waiting, max(1, size_max_bytes // self.average_bytes))


class Planner:
    def __init__(
        self,
        streams: Streams,
        *,
        slots: int,
        bandwidth_kbps: int | None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams = streams
        self._store = streams.store
        self.monotonic_s = monotonic_s
        self._loop = asyncio.get_running_loop()
        self._slots = slots
        self._bandwidth_bytes_per_s = bandwidth_kbps * 125 if bandwidth_kbps else None
        self._credit_bytes = float(self._bandwidth_bytes_per_s or 0)
        self._credit_at_s = self.monotonic_s()
        # Under a cap no more than it allows in a second: a larger burst would be no cap at all.
        self._flush_bytes_max = min(FLUSH_BYTES_MAX, self._bandwidth_bytes_per_s or FLUSH_BYTES_MAX)
        self._runs: dict[tuple[int, str], ExportRun] = {}
        self._by_flush: dict[int, ExportRun] = {}
        self._pipelines: dict[str, float] = {}  # when each was heard of last
        self._sleepers: set[asyncio.Event] = set()  # leases that wait for something to become due
        self._closing = False
        self._planning = asyncio.Lock()
        self._unnoted: dict[ExportRun, None] = {}  # in memory ahead of the catalog
        self._finished: list[int] = []  # flushes that the catalog still has
        self._noting = asyncio.Lock()
        self._note_due = False
        self._tasks: set[asyncio.Task[None]] = set()
        rows = self._store.catalog.flushes()
        # Pipelines outlive servers: what they report of a flush must not be taken for that of another one.
        self._next_flush_id = secrets.randbits(NUMBER_BITS)
        self.definitions_changed()
        for row in rows:
            self._adopt(row)
        streams.watch(self._messages_visible, self.definitions_changed)

    # -- following the streams ----------------------------------------------------------------------

    def definitions_changed(self) -> None:
        """Streams or exports came, went or changed: exports that stay go on where they are."""
        runs: dict[tuple[int, str], ExportRun] = {}
        moved = []
        for name, stream in self._store.streams.items():
            statuses = self._store.statuses[name]
            for export in stream.definition.exports:
                run = self._runs.get((stream.key, export.identifier))
                status = statuses[export.identifier]
                if run is None or run.export.kind is not export.kind:
                    run = ExportRun(stream, export, status)
                    if run.waiting_messages:
                        run.pending_since_s = self.monotonic_s()
                elif status.last_exported_sequence_number != run.status.last_exported_sequence_number:
                    # The position was moved by hand: what was planned from the old one is void.
                    self._forget_flush(run)
                    moved.append(run)
                if export.settings != run.export.settings:
                    run.failures, run.not_before_s = 0, 0.0  # whatever was wrong may be right now
                run.export, run.status = export, status
                runs[run.key] = run
            stream.exported = bool(stream.definition.exports)
        for run in moved:
            run.accounted_next = run.position
        for key, run in self._runs.items():
            if runs.get(key) is not run:
                self._tell_of_cancelled_tasks(run)
                self._forget_flush(run)
        self._runs = runs
        if self._noting.locked():
            # What is being noted may be of before the change, and be stored behind it: note all once more.
            self._unnoted |= dict.fromkeys(runs.values())
            self._note_soon()
        self._wake()

    def _tell_of_cancelled_tasks(self, run: ExportRun) -> None:
        """The export is deleted: S3 tasks that a pipeline was busy with end as Canceled."""
        flush = run.flush
        if flush is None or run.holder is None or run.export.kind is not ExportKind.S3_TASK_EXECUTOR:
            return
        if wants_status(run.export.settings, StatusLevel.WARN):
            task = self._loop.create_task(self._append_cancelled(run, flush.first, flush.next))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _append_cancelled(self, run: ExportRun, first: int, behind: int) -> None:
        try:
            reading = await asyncio.to_thread(run.stream.read, first, behind - first, FLUSH_BYTES_MAX)
        except PenstockError as error:
            logger.warning("export %s: cancelled tasks cannot be read: %s", run.key, error)
            return
        texts = [
            status_message(
                status=Status.CANCELED,
                level=StatusLevel.WARN,
                text="the export was deleted before the task was done",
                task=task_as_sent(message.payload),
                export_identifier=run.export.identifier,
                stream=run.stream.definition.name,
                sequence_number=message.sequence_number,
            )
            for message in reading.messages
            if message.sequence_number < behind
        ]
        self._append_status_messages(run.export.status_stream_name, texts)

    def _forget_flush(self, run: ExportRun) -> None:
        if run.flush is not None:
            self._by_flush.pop(run.flush.id, None)
            self._finished.append(run.flush.id)
            self._note_soon()
        run.flush = run.holder = None

    def _adopt(self, row: FlushRow) -> None:
        """A flush from before the restart: the same range and name, to be handed out again."""
        run = self._runs.get((row.stream_key, row.identifier))
        if run is None or run.flush is not None or not self._still_holds(row, run):
            self._store.catalog.remove_flush(row.id)
            return
        run.accounted_next = row.first
        run.flush = self._new_flush(run, row.id, row.first, row.next, row.planned_ms, row.nonce)
        self._by_flush[row.id] = run

    def _still_holds(self, row: FlushRow, run: ExportRun) -> bool:
        """Not if the position is elsewhere, or the messages went with the process that had them."""
        in_memory = run.stream.definition.persistence is Persistence.MEMORY
        return row.first <= run.position < row.next and not in_memory

    def _new_flush(
        self, run: ExportRun, number: int, first: int, behind: int, planned_ms: int, nonce: str
    ) -> Flush:
        return Flush(
            id=number,
            stream=run.stream.definition.name,
            identifier=run.export.identifier,
            kind=run.export.kind,
            settings=run.export.settings,
            first=first,
            next=behind,
            planned_ms=planned_ms,
            nonce=nonce,
            attempt=secrets.randbits(NUMBER_BITS),
        )

    def _messages_visible(self, stream: Stream) -> None:
        """Called for every group of appends: leases are woken only if something becomes due by it."""
        now_s = self.monotonic_s()
        news = False
        for export in stream.definition.exports:
            run = self._runs.get((stream.key, export.identifier))
            if run is None:
                continue
            self._note_loss(run)
            if run.pending_since_s is None and run.waiting_messages:
                run.pending_since_s = now_s
                news = True
            if not news:
                due_s = run.due_at_s(now_s)
                news = due_s is not None and due_s <= now_s
        if news:
            self._wake()

    def _note_loss(self, run: ExportRun) -> None:
        """Count messages that were deleted before anybody could export them."""
        oldest = run.stream.oldest_sequence
        if oldest <= run.accounted_next or run.holder is not None:  # its holder may have had them before
            return
        run.lose(oldest - run.accounted_next)
        run.accounted_next = oldest
        if run.flush is not None:
            run.flush.first = min(oldest, run.flush.next)
            if run.flush.first == run.flush.next:
                self._forget_flush(run)
        self._unnoted[run] = None
        self._note_soon()

    # -- leasing ------------------------------------------------------------------------------------

    async def lease(self, request: LeaseRequest) -> Leases:
        """Flushes for a pipeline, as soon as there are any; an empty list when the wait is over."""
        deadline_s = self.monotonic_s() + request.wait_ms / 1000
        self.renew(request.pipeline)  # now, and not while it waits: it may be gone
        while True:
            self._take_back_expired()
            if request.pipeline not in self._pipelines:
                return Leases([], self._slots, LEASE_RENEWAL_MS)
            async with self._planning:
                flushes = await self._plan(request)
            now_s = self.monotonic_s()
            if flushes:
                self.renew(request.pipeline)
            if flushes or now_s >= deadline_s or self._closing:
                return Leases(flushes, self._slots, LEASE_RENEWAL_MS)
            await self._sleep(min(deadline_s, self._next_due_s(now_s, request.probing)) - now_s)

    async def _sleep(self, wait_s: float) -> None:
        woken = asyncio.Event()
        self._sleepers.add(woken)
        try:
            await asyncio.wait_for(woken.wait(), max(0.005, wait_s))
        except asyncio.TimeoutError:
            pass
        finally:
            self._sleepers.discard(woken)

    def _wake(self) -> None:
        for sleeper in self._sleepers:
            sleeper.set()

    def close(self) -> None:
        """The server stops: answer every lease that waits."""
        self._closing = True
        self._wake()

    def renew(self, pipeline: str, flushes: Iterable[int] | None = None) -> None:
        """The pipeline is there. What it does not know that it has never reached it, and goes back."""
        now_s = self._pipelines[pipeline] = self.monotonic_s()
        if flushes is None:
            return
        known = set(flushes)
        for number, run in self._by_flush.items():
            # Not what was handed out just now, and may be on its way.
            if run.holder == pipeline and number not in known and run.handed_out_s <= now_s - LEASE_S:
                logger.warning(
                    "the pipeline %s does not know of its flush %s; it goes back", pipeline, run.key
                )
                run.holder, run.attempt_ended = None, True
                self._wake()

    def give_back(self, leases: Leases) -> None:
        """Nobody is there to take them."""
        for flush in leases.flushes:
            run = self._by_flush.get(flush.id)
            if run is not None:
                run.holder, run.attempt_ended = None, True
        self._wake()

    def _take_back_expired(self) -> None:
        deadline_s = self.monotonic_s() - LEASE_S
        expired = {name for name, heard_s in self._pipelines.items() if heard_s <= deadline_s}
        for name in expired:
            del self._pipelines[name]
        for run in self._by_flush.values():
            if run.holder is not None and run.holder not in self._pipelines:
                logger.warning("the pipeline %s is gone; its flush %s goes back", run.holder, run.key)
                run.holder = None

    def _next_due_s(self, now_s: float, probing: bool) -> float:
        times = (run.due_at_s(now_s) for run in self._runs.values() if bool(run.failures) == probing)
        next_s = min((at_s for at_s in times if at_s is not None), default=now_s + LEASE_S)
        if any(run.holder is not None for run in self._by_flush.values()):
            next_s = min(next_s, min(self._pipelines.values(), default=now_s) + LEASE_S)
        return next_s

    async def _plan(self, request: LeaseRequest) -> list[Flush]:
        now_s = self.monotonic_s()
        due = []
        for run in self._runs.values():
            self._note_loss(run)
            at_s = run.due_at_s(now_s)
            if at_s is not None and at_s <= now_s and bool(run.failures) == request.probing:
                due.append(run)
        due.sort(key=lambda run: (run.priority, run.pending_since_s or 0.0))
        chosen = self._within_bandwidth(due[: request.flushes_max], now_s)
        new = [run for run in chosen if run.flush is None]
        if new:
            await self._plan_flushes(new)
        flushes = []
        for run in chosen:
            flush = run.flush
            if flush is None:  # cancelled while it was being written down
                continue
            flush.attempt += 1
            flush.settings = run.export.settings
            run.holder, run.handed_out_s = request.pipeline, now_s
            run.attempt_ended, run.progressed, run.statuses_heard = False, False, 0
            run.upload = (0, 0)
            flushes.append(flush)
        return flushes

    async def _plan_flushes(self, runs: list[ExportRun]) -> None:
        """Afterwards each run has a flush that is in the catalog, or none."""
        rows = []
        for run in runs:
            flush = self._plan_flush(run)
            rows.append(
                FlushRow(
                    flush.id, run.stream.key, flush.identifier,
                    flush.first, flush.next, flush.planned_ms, flush.nonce,
                )
            )  # fmt: skip
        try:
            await asyncio.to_thread(self._store.catalog.add_flushes, rows)
        except sqlite3.Error as error:
            logger.error("the catalog failed (%s): nothing is handed out for now; check the disk", error)
            for run, row in zip(runs, rows, strict=True):
                self._by_flush.pop(row.id, None)
                run.flush = None
                run.not_before_s = self.monotonic_s() + BACKOFF_FIRST_S
        self._finished += [row.id for row in rows if row.id not in self._by_flush]

    def _plan_flush(self, run: ExportRun) -> Flush:
        first, behind = run.next_range(self._flush_bytes_max)
        run.accounted_next = first
        number = self._next_flush_id
        self._next_flush_id += 1
        run.flush = self._new_flush(run, number, first, behind, self._store.wall_ms(), secrets.token_hex(8))
        run.pending_since_s = None if behind >= run.stream.visible_next else self.monotonic_s()
        self._by_flush[number] = run
        return run.flush

    def _within_bandwidth(self, due: list[ExportRun], now_s: float) -> list[ExportRun]:
        """As many as the average rate allows: credit grows with time, and a flush may overdraw it once."""
        rate = self._bandwidth_bytes_per_s
        if rate is None:
            return due
        self._credit_bytes = min(rate * 1.0, self._credit_bytes + (now_s - self._credit_at_s) * rate)
        self._credit_at_s = now_s
        chosen = []
        for run in due:
            if self._credit_bytes <= 0:
                run.not_before_s = now_s + (1 - self._credit_bytes) / rate
                continue
            chosen.append(run)
            first, behind = run.next_range(self._flush_bytes_max)
            self._credit_bytes -= (behind - first) * run.average_bytes
        return chosen

    # -- reports ------------------------------------------------------------------------------------

    async def report(self, pipeline: str, outcomes: Iterable[Outcome]) -> ReportAnswer:
        """Take note of what happened, durably. Hearing the same twice changes nothing."""
        self.renew(pipeline)
        answer = ReportAnswer([], {})
        outcomes = list(outcomes)
        for outcome in outcomes:
            if outcome.damaged:
                await self._look_at_damage(outcome.flush)
        # First: a task that counts as done is never told of again.
        for sink in [self._append_statuses_of(outcome) for outcome in outcomes if outcome.status_messages]:
            await sink.stored
        for outcome in outcomes:
            run = self._by_flush.get(outcome.flush)
            if run is None or run.flush is None:
                answer.cancelled.append(outcome.flush)
                continue
            present = outcome.attempt == run.flush.attempt
            self._apply(run, outcome, present)
            answer.positions[outcome.flush] = run.flush.first
            if run.export.disabled or not present:
                answer.cancelled.append(outcome.flush)
            self._unnoted[run] = None
            if run.flush.first >= run.flush.next:
                self._finish(run)
            elif present:
                self._follow_attempt(run, outcome, pipeline)
        await self._note_progress()
        return answer

    def _append_statuses_of(self, outcome: Outcome) -> _StatusSink:
        """Those that are new; all of an attempt that was given up, for what it tells is true all the same."""
        run = self._by_flush.get(outcome.flush)
        if run is None or run.flush is None:
            return self._append_status_messages(None, [])
        heard = 0
        if outcome.attempt == run.flush.attempt:
            heard = run.statuses_heard
            run.statuses_heard = max(heard, outcome.statuses_before + len(outcome.status_messages))
        name = run.export.status_stream_name
        return self._append_status_messages(
            name, outcome.status_messages[max(0, heard - outcome.statuses_before) :]
        )

    async def _note_progress(self) -> None:
        """Write down what has changed since the last time, in the order it changed."""
        async with self._noting:
            runs, self._unnoted = self._unnoted, {}
            finished, self._finished = self._finished, []
            if not runs and not finished:
                return  # somebody else's note had ours too
            present = [run for run in runs if self._runs.get(run.key) is run]
            statuses = [(run.stream.key, msgspec.structs.replace(run.status)) for run in present]
            moved = [(run.flush.id, run.flush.first) for run in present if run.flush is not None]
            try:
                await asyncio.to_thread(self._store.catalog.note_progress, statuses, moved, finished)
            except sqlite3.Error:
                self._unnoted = {**runs, **self._unnoted}
                self._finished = finished + self._finished
                raise
        self._wake()

    def _note_soon(self) -> None:
        if not self._note_due:
            self._note_due = True
            task = self._loop.create_task(self._note_later())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _note_later(self) -> None:
        await asyncio.sleep(NOTE_LATER_S)
        self._note_due = False
        try:
            await self._note_progress()
        except sqlite3.Error as error:
            logger.error(
                "the catalog failed (%s): what exports have done is noted later; check the disk", error
            )

    def _apply(self, run: ExportRun, outcome: Outcome, present: bool) -> None:
        """What was delivered is delivered, whoever did it: also by an attempt that nobody waits for any more."""
        flush, status = run.flush, run.status
        assert flush is not None
        if present and outcome.error:
            status.error_message = outcome.error
        if outcome.next > flush.first:
            before, flush.first = flush.first, min(outcome.next, flush.next)
            unseen = flush.first - before - outcome.messages - outcome.skipped
            run.lose(min(unseen, run.stream.oldest_sequence - before))
            run.accounted_next = flush.first
            status.exported_messages += outcome.messages
            status.exported_bytes += outcome.payload_bytes
            status.skipped_messages += outcome.skipped
            status.last_exported_sequence_number = max(status.last_exported_sequence_number, flush.first - 1)
            status.error_message = outcome.error
            run.progressed = run.progressed or present
            if outcome.messages:
                status.last_export_time_ms = self._store.wall_ms()

    def _finish(self, run: ExportRun) -> None:
        assert run.flush is not None
        del self._by_flush[run.flush.id]
        self._finished.append(run.flush.id)
        run.flush = run.holder = None
        run.failures = 0
        run.not_before_s = 0.0

    def _follow_attempt(self, run: ExportRun, outcome: Outcome, pipeline: str) -> None:
        """Whether the attempt goes on, or the rest of the flush is to be tried again later."""
        if run.attempt_ended:
            return
        if not outcome.done:
            run.holder = pipeline  # it may have been given up too soon
            return
        run.attempt_ended = True
        run.holder = None
        if outcome.error:
            run.failures = 1 if run.progressed else run.failures + 1
            wait_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(run.failures - 1, 12))
            wait_s = BACKOFF_MAX_S if outcome.permanent else wait_s * random.uniform(0.8, 1.0)  # noqa: S311
            run.not_before_s = self.monotonic_s() + wait_s

    def _append_status_messages(self, name: str | None, texts: list[str]) -> _StatusSink:
        sink = _StatusSink(name or "", len(texts), self._loop.create_future())
        if name is None or not texts:
            sink.stored.set_result(None)
        else:
            self._streams.append(name, [text.encode() for text in texts], sink)
        return sink

    async def _look_at_damage(self, number: int) -> None:
        """Read what the pipeline could not: the log then knows the damage and hands it out no more."""
        run = self._by_flush.get(number)
        if run is not None and run.flush is not None:
            await asyncio.to_thread(_find_damage, run.stream, run.flush.first, run.flush.next)

    # -- operators ----------------------------------------------------------------------------------

    def runs(self) -> list[ExportRun]:
        for run in self._runs.values():
            self._note_loss(run)
        return list(self._runs.values())

    def retry_now(self, stream: str, identifier: str) -> bool:
        """Forget the back-off of an export."""
        run = self._run_of(stream, identifier)
        if run is None:
            return False
        run.not_before_s = 0.0
        run.failures = 0
        self._wake()
        return True

    async def rewind(self, stream: str, identifier: str, position: int) -> ExportRun | None:
        """Go on from another sequence number, before or behind the present one; None if there is no such export.

        An update with another startSequenceNumber does the same, but not with the number that is set already.
        """
        async with self._planning:  # or a flush could be planned from the old position meanwhile
            run = self._run_of(stream, identifier)
            if run is None:
                return None
            if position > run.stream.visible_next:
                raise InvalidRequest(
                    f"{position} is behind the end of stream {stream}: give a number up to {run.stream.visible_next}"
                )
            if run.flush is not None:
                # First, and durably: a flush that a restart finds would carry on from the old position.
                number = run.flush.id
                self._forget_flush(run)
                await asyncio.to_thread(self._store.catalog.remove_flush, number)
            await self._streams.update(stream, partial(_moved, identifier, position))
            run.failures, run.not_before_s = 0, 0.0
            return self._run_of(stream, identifier)

    def _run_of(self, stream: str, identifier: str) -> ExportRun | None:
        found = self._store.streams.get(stream)
        return None if found is None else self._runs.get((found.key, identifier))


def _moved(identifier: str, position: int, info: StreamInfo) -> tuple[StreamDefinition, dict[str, int]]:
    """The definition as it is, but for where the export starts: before anything is exported, that decides."""
    exports = tuple(
        msgspec.structs.replace(export, settings={**export.settings, "startSequenceNumber": position})
        if export.identifier == identifier and export.kind is not ExportKind.S3_TASK_EXECUTOR
        else export
        for export in info.definition.exports
    )
    return msgspec.structs.replace(info.definition, exports=exports), {identifier: position}


def _find_damage(stream: Stream, first: int, behind: int) -> None:
    sequence = first
    while sequence < behind:
        try:
            reading = stream.read(sequence, behind - sequence, DAMAGE_READ_BYTES)
        except CorruptMessages as error:
            logger.error("stream %s: %s", stream.definition.name, error)
            sequence = error.next_readable
        except PenstockError as error:
            logger.error("stream %s: %s", stream.definition.name, error)
            return
        else:
            if reading.next_sequence <= sequence:
                return
            sequence = reading.next_sequence


class _StatusSink:
    """Status messages that cannot be stored are lost with a line in the log; they never hold up a delivery."""

    def __init__(self, stream: str, count: int, stored: asyncio.Future[None]) -> None:
        self._stream = stream
        self._left = count
        self.stored = stored

    def appended(self, first_sequence: int, count: int) -> None:
        self._left -= count
        if self._left <= 0 and not self.stored.done():
            self.stored.set_result(None)

    def append_failed(self, count: int, error: PenstockError) -> None:
        logger.warning("%d status messages for stream %s were dropped: %s", count, self._stream, error)
        self.appended(-1, count)
