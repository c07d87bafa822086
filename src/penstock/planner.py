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
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from penstock.bandwidth import Bandwidth
from penstock.catalog import FlushRow
from penstock.delivery.settings import EXPORT_IDENTIFIER, DataKey, needs_spark_sql
from penstock.errors import CorruptMessages, InvalidRequest, PenstockError
from penstock.flush import Flush, LeaseRequest, Leases, Outcome, ReportAnswer
from penstock.log.stream import Stream
from penstock.model import Export, ExportKind, ExportStatus, StreamDefinition, StreamInfo
from penstock.progress_notes import ProgressNotes
from penstock.runs import DeliveryRun, ExportRun, FlushRun, PlannedRange, run_for
from penstock.streams import Streams
from penstock.task_statuses import TaskStatuses

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 300.0
RETENTION_S = 86_400.0
LEASE_S = 10.0
LEASE_RENEWAL_MS = 3000
FLUSH_BYTES_MAX = 64 * 1024 * 1024
NUMBER_BITS = 48
DAMAGE_READ_BYTES = 1024 * 1024
KEYS_S = 2.0


class _Sleep(NamedTuple):
    until_s: float
    probing: bool | None  # what the sleeper waits for; None: for something else than messages


class Planner:
    def __init__(
        self,
        streams: Streams,
        *,
        slots: int,
        bandwidth: Bandwidth | None = None,
        retention_s: float = RETENTION_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams = streams
        self._store = streams.store
        self.monotonic_s = monotonic_s
        self._slots = slots
        self._retention_ms = int(retention_s * 1000)
        self._bandwidth = bandwidth
        # Under a cap no more than it allows in a second: a larger burst would be no cap at all.
        cap_bytes = FLUSH_BYTES_MAX if bandwidth is None else bandwidth.bytes_per_s
        self._flush_bytes_max = min(FLUSH_BYTES_MAX, cap_bytes)
        self._runs: dict[tuple[int, str], ExportRun] = {}
        self._by_flush: dict[int, FlushRun] = {}
        self._pipelines: dict[str, float] = {}  # when each was heard of last
        self._sleepers: dict[asyncio.Event, _Sleep] = {}  # leases that wait for something to become due
        self._closing = False
        self._planning = asyncio.Lock()
        self._plannings: set[asyncio.Task[list[Flush]]] = set()  # a task that nobody holds may vanish
        self._statuses = TaskStatuses(streams)
        self._notes = ProgressNotes(self._store.catalog, self._is_present, self._wake)
        # How records of a delivery stream can be opened, by its name: asked whenever a flush is handed out.
        self.data_keys: Callable[[str], Awaitable[list[DataKey]]] = _no_data_keys
        rows = self._store.catalog.flushes()
        # Pipelines outlive servers: what they report of a flush must not be taken for that of another one.
        self._next_flush_id = secrets.randbits(NUMBER_BITS)
        self.definitions_changed()
        for row in rows:
            self._adopt(row)
        for run in self._runs.values():
            if isinstance(run, DeliveryRun):
                run.noted_from = run.undelivered_from
        streams.watch(self._messages_visible, self.definitions_changed)
        streams.trims = self.trims

    def _is_present(self, run: ExportRun) -> bool:
        return self._runs.get(run.key) is run

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
                    run = self._new_run(stream, export, status)
                elif status.last_exported_sequence_number != run.status.last_exported_sequence_number:
                    # The position was moved by hand: what was planned from the old one is void.
                    self._forget_flushes(run)
                    moved.append(run)
                if export.settings != run.export.settings:
                    run.retry_at_once()  # whatever was wrong may be right now
                run.export, run.status = export, status
                runs[run.key] = run
            stream.exported = bool(stream.definition.exports)
        for run in moved:
            run.accounted_next = run.position
            run.moves += 1
        for key, run in self._runs.items():
            if runs.get(key) is not run:
                self._cancel(run)
        self._runs = runs
        self._notes.definitions_changed(runs.values())
        self._wake()

    def _new_run(self, stream: Stream, export: Export, status: ExportStatus) -> ExportRun:
        run = run_for(stream, export, status)
        if run.waiting_messages:
            # They have waited before the server was started too.
            arrival_ms = stream.arrival_ms(run.position)
            age_ms = 0 if arrival_ms is None else max(0, self._store.wall_ms() - arrival_ms)
            run.pending_since_s = self.monotonic_s() - age_ms / 1000
        return run

    def _cancel(self, run: ExportRun) -> None:
        """The export is deleted."""
        for flush_run in run.flushes.values():
            if flush_run.holder is not None and run.export.kind is ExportKind.S3_TASK_EXECUTOR:
                self._statuses.tell_of_cancelled(flush_run)
        self._forget_flushes(run)

    def _forget_flushes(self, run: ExportRun) -> None:
        for flush_run in list(run.flushes.values()):
            self._drop(flush_run)

    def _drop(self, flush_run: FlushRun) -> None:
        number = flush_run.flush.id
        del flush_run.run.flushes[number]
        self._by_flush.pop(number, None)
        self._notes.finished(number)
        self._notes.write_soon()

    def _adopt(self, row: FlushRow) -> None:
        """A flush from before the restart: the same range and name, to be handed out again."""
        run = self._runs.get((row.stream_key, row.identifier))
        if run is None or not run.still_wants(row.first, row.next):
            self._store.catalog.remove_flush(row.id)
            return
        settings = run.export.settings if row.settings is None else msgspec.json.decode(row.settings)
        run.adopt(self._new_flush(run, row.id, settings, row[3:7]))
        self._by_flush[row.id] = run.flushes[row.id]

    def _new_flush(
        self, run: ExportRun, number: int, settings: dict[str, Any], planned: tuple[int, int, int, str]
    ) -> Flush:
        first, behind, planned_ms, nonce = planned
        return Flush(
            id=number,
            stream=run.stream.definition.name,
            identifier=run.export.identifier,
            kind=run.export.kind,
            settings=settings,
            first=first,
            next=behind,
            planned_ms=planned_ms,
            nonce=nonce,
            attempt=secrets.randbits(NUMBER_BITS),
        )

    def _messages_visible(self, stream: Stream) -> None:
        """Called for every group of appends: leases are woken only if something becomes due before they wake up."""
        now_s = self.monotonic_s()
        for export in stream.definition.exports:
            run = self._runs.get((stream.key, export.identifier))
            if run is None:
                continue
            self._note_deleted(run)
            run.messages_visible(now_s)
            self._wake_before(run.due_at_s(now_s, probing=False), probing=False)
            if run.failures:
                self._wake_before(run.due_at_s(now_s, probing=True), probing=True)

    def _note_deleted(self, run: ExportRun) -> None:
        if run.note_deleted():
            for flush_run in list(run.flushes.values()):
                if flush_run.flush.first >= flush_run.flush.next:
                    self._drop(flush_run)
            self._notes.changed(run)
            self._notes.write_soon()

    # -- leasing ------------------------------------------------------------------------------------

    async def lease(self, request: LeaseRequest) -> Leases:
        """Flushes for a pipeline, as soon as there are any; an empty list when the wait is over."""
        deadline_s = self.monotonic_s() + request.wait_ms / 1000
        self.renew(request.pipeline)  # now, and not while it waits: it may be gone
        while True:
            self._take_back_expired()
            if request.pipeline not in self._pipelines:
                return Leases([], self._slots, LEASE_RENEWAL_MS)
            flushes = await self._plan_to_the_end(request)
            now_s = self.monotonic_s()
            if flushes:
                self.renew(request.pipeline)
            if flushes or now_s >= deadline_s or self._closing:
                return Leases(flushes, self._slots, LEASE_RENEWAL_MS, not flushes and self._wants_spark_sql())
            until_s = min(deadline_s, self._next_due_s(now_s, request.probing))
            await self._sleep(until_s - now_s, request.probing)

    def _wants_spark_sql(self) -> bool:
        return any(
            needs_spark_sql(run.export.settings)
            for run in self._runs.values()
            if isinstance(run, DeliveryRun)
        )

    async def _plan_to_the_end(self, request: LeaseRequest) -> list[Flush]:
        """Also if the pipeline hangs up: what is in the catalog and nowhere else would be planned once more."""
        planning = asyncio.ensure_future(self._plan_alone(request))
        self._plannings.add(planning)
        planning.add_done_callback(self._plannings.discard)
        try:
            return await asyncio.shield(planning)
        except asyncio.CancelledError:
            planning.add_done_callback(self._give_back_planned)
            raise

    async def _plan_alone(self, request: LeaseRequest) -> list[Flush]:
        async with self._planning:
            return await self._plan(request)

    def _give_back_planned(self, planning: asyncio.Task[list[Flush]]) -> None:
        if not planning.cancelled() and planning.exception() is None:
            self.give_back(planning.result())

    async def _sleep(self, wait_s: float, probing: bool | None = None) -> None:
        woken = asyncio.Event()
        wait_s = max(0.005, wait_s)
        self._sleepers[woken] = _Sleep(self.monotonic_s() + wait_s, probing)
        try:
            await asyncio.wait_for(woken.wait(), wait_s)
        except asyncio.TimeoutError:
            pass
        finally:
            del self._sleepers[woken]

    def _wake(self) -> None:
        for sleeper in self._sleepers:
            sleeper.set()

    def _wake_before(self, due_s: float | None, *, probing: bool) -> None:
        """Wake those who wait for what is due then, and would oversleep: looking at all exports is dear."""
        if due_s is None:
            return
        for sleeper, sleep in self._sleepers.items():
            if sleep.probing is probing and sleep.until_s > due_s:
                sleeper.set()

    def close(self) -> None:
        """The server stops: answer every lease that waits."""
        self._closing = True
        self._wake()

    async def settled(self) -> None:
        """Return when nothing is left to be written of what has happened."""
        while tasks := {*self._plannings, *self._notes.tasks, *self._statuses.tasks}:
            await asyncio.wait(tasks)

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
                    "the pipeline %s does not know of its flush %s; it goes back", pipeline, run.run.key
                )
                run.give_back()
                run.touched = True
                self._wake()

    def give_back(self, flushes: Iterable[Flush]) -> None:
        """Nobody is there to take them."""
        for flush in flushes:
            run = self._by_flush.get(flush.id)
            if run is not None:
                run.give_back()
        self._wake()

    def _take_back_expired(self) -> None:
        deadline_s = self.monotonic_s() - LEASE_S
        expired = {name for name, heard_s in self._pipelines.items() if heard_s <= deadline_s}
        for name in expired:
            del self._pipelines[name]
        for run in self._by_flush.values():
            if run.holder is not None and run.holder not in self._pipelines:
                logger.warning("the pipeline %s is gone; its flush %s goes back", run.holder, run.run.key)
                run.holder = None
                run.touched = True

    def _next_due_s(self, now_s: float, probing: bool) -> float:
        times = (run.due_at_s(now_s, probing) for run in self._runs.values())
        next_s = min((at_s for at_s in times if at_s is not None), default=now_s + LEASE_S)
        if any(run.holder is not None for run in self._by_flush.values()):
            next_s = min(next_s, min(self._pipelines.values(), default=now_s) + LEASE_S)
        return next_s

    async def _plan(self, request: LeaseRequest) -> list[Flush]:
        now_s = self.monotonic_s()
        due = []
        for run in self._runs.values():
            self._note_deleted(run)
            at_s = run.due_at_s(now_s, request.probing)
            if at_s is not None and at_s <= now_s:
                due.append(run)
        due.sort(key=lambda run: (run.priority, run.pending_since_s or 0.0))
        chosen = self._within_bandwidth(due[: request.flushes_max], now_s)
        await self._plan_flushes(
            [run for run in chosen if _is_past(run.new_flush_at_s(now_s, request.probing), now_s)]
        )
        flush_runs = [
            flush_run
            for run in chosen
            if self._is_present(run) and not run.export.disabled
            for flush_run in run.due_flushes(now_s, request.probing)
        ]
        flush_runs = await self._with_settings(flush_runs[: request.flushes_max])
        keys = await self._keys_for(flush_runs)
        return [
            self._hand_out(flush_run, request.pipeline, now_s, keys.get(flush_run.flush.stream))
            for flush_run in flush_runs
            if flush_run.flush.id in self._by_flush and flush_run.not_before_s <= now_s
        ]

    def _hand_out(
        self, flush_run: FlushRun, pipeline: str, now_s: float, data_keys: list[DataKey] | None
    ) -> Flush:
        flush_run.begin_attempt(pipeline, now_s)
        flush = flush_run.flush
        if not data_keys:
            return flush
        settings = {**flush.settings, "data_keys": msgspec.to_builtins(data_keys)}
        return msgspec.structs.replace(flush, settings=settings)

    async def _keys_for(self, flush_runs: list[FlushRun]) -> dict[str, list[DataKey]]:
        """The data keys of each delivery stream; flushes of one whose keys cannot be had now wait for a while."""
        names = {run.flush.stream for run in flush_runs if run.flush.kind is ExportKind.DELIVERY}
        if not names:
            return {}
        asking = {name: asyncio.ensure_future(self._ask_for_keys(name)) for name in names}
        # Who keeps a key may be slow or away, and the streams of others must not wait for that.
        await asyncio.wait(asking.values(), timeout=KEYS_S)
        late = PenstockError(f"the keys of its records did not come within {KEYS_S:g} seconds; trying again")
        keys: dict[str, list[DataKey]] = {}
        for flush_run in flush_runs:
            name = flush_run.flush.stream
            if name not in asking:
                continue
            answer = asking[name].result() if asking[name].done() else late
            if isinstance(answer, PenstockError):
                flush_run.run.status.error_message = str(answer)
                self._notes.changed(flush_run.run)
                self._notes.write_soon()
                self._back_off(flush_run, permanent=False)
            else:
                keys[name] = answer
        return keys

    async def _ask_for_keys(self, stream: str) -> list[DataKey] | PenstockError:
        try:
            return await self.data_keys(stream)
        except PenstockError as error:
            return error

    async def _with_settings(self, flush_runs: list[FlushRun]) -> list[FlushRun]:
        """Each with the settings of its next attempt; where names depend on them, they are written down before."""
        changed = {}
        for flush_run in flush_runs:
            settings = flush_run.run.settings_for(flush_run)
            if settings != flush_run.flush.settings:
                if flush_run.flush.kind is ExportKind.DELIVERY:
                    changed[flush_run] = settings
                else:
                    flush_run.flush.settings = settings
        if changed:
            rows = [(run.flush.id, msgspec.json.encode(settings)) for run, settings in changed.items()]
            try:
                await asyncio.to_thread(self._store.catalog.change_flushes, rows)
            except sqlite3.Error as error:
                logger.error("the catalog failed (%s): nothing is handed out for now; check the disk", error)
                return []
            for flush_run, settings in changed.items():
                flush_run.flush.settings = settings
        return [flush_run for flush_run in flush_runs if flush_run.flush.id in self._by_flush]

    async def _plan_flushes(self, runs: list[ExportRun]) -> None:
        """New flushes for these, in the catalog before anybody gets them."""
        rows: list[FlushRow] = []
        planned: list[tuple[ExportRun, Flush, int, int]] = []
        for run in runs:
            for part in await self._next_ranges(run):
                settings = run.export.settings
                flush = self._new_flush(
                    run,
                    self._next_flush_id,
                    settings,
                    (part.first, part.next, part.planned_ms, secrets.token_hex(8)),
                )
                self._next_flush_id += 1
                frozen = msgspec.json.encode(settings) if flush.kind is ExportKind.DELIVERY else None
                rows.append(
                    FlushRow(
                        flush.id, run.stream.key, flush.identifier, flush.first, flush.next,
                        flush.planned_ms, flush.nonce, frozen,
                    )
                )  # fmt: skip
                planned.append((run, flush, part.payload_bytes, run.moves))
        if not rows:
            return
        try:
            await asyncio.to_thread(self._store.catalog.add_flushes, rows)
        except (
            sqlite3.IntegrityError
        ):  # a stream was deleted just now: the others are planned in the next round
            return
        except sqlite3.Error as error:
            logger.error("the catalog failed (%s): nothing is handed out for now; check the disk", error)
            for run in runs:
                run.held_until_s = self.monotonic_s() + BACKOFF_FIRST_S
            return
        now_s = self.monotonic_s()
        for run, flush, payload_bytes, moves in planned:
            if self._is_present(run) and run.moves == moves:
                run.planned(flush, payload_bytes, now_s)
                self._by_flush[flush.id] = run.flushes[flush.id]
            else:  # cancelled while it was being written down
                self._notes.finished(flush.id)
                self._notes.write_soon()

    async def _next_ranges(self, run: ExportRun) -> list[PlannedRange]:
        bounds = (self._flush_bytes_max, run.stream.visible_next, self._store.wall_ms())
        if run.export.kind is not ExportKind.DELIVERY:
            return run.next_ranges(*bounds)
        try:
            return await asyncio.to_thread(run.next_ranges, *bounds)
        except (OSError, PenstockError) as error:
            logger.error("stream %s cannot be measured: %s", run.stream.definition.name, error)
            run.held_until_s = self.monotonic_s() + BACKOFF_FIRST_S
            return []

    def _within_bandwidth(self, due: list[ExportRun], now_s: float) -> list[ExportRun]:
        """As many as the average rate allows."""
        bandwidth = self._bandwidth
        if bandwidth is None:
            return due
        chosen = []
        for run in due:
            wait_s = bandwidth.messages_wait_s()
            if wait_s > 0:
                run.held_until_s = now_s + wait_s
                continue
            chosen.append(run)
            bandwidth.spend(run.due_bytes(now_s, self._flush_bytes_max))
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
        for stored in [self._append_statuses_of(outcome) for outcome in outcomes if outcome.status_messages]:
            await stored
        for outcome in outcomes:
            flush_run = self._by_flush.get(outcome.flush)
            if flush_run is None:
                answer.cancelled.append(outcome.flush)
                continue
            run, flush = flush_run.run, flush_run.flush
            present = outcome.attempt == flush.attempt
            self._apply(flush_run, outcome, present)
            answer.positions[outcome.flush] = flush.first
            if run.export.disabled or not present:
                answer.cancelled.append(outcome.flush)
            self._notes.changed(run)
            if flush.first >= flush.next:
                self._finish(flush_run)
            elif present:
                self._follow_attempt(flush_run, outcome, pipeline)
        await self._notes.write()
        return answer

    def _append_statuses_of(self, outcome: Outcome) -> asyncio.Future[None]:
        """Those that are new; all of an attempt that was given up, for what it tells is true all the same."""
        flush_run = self._by_flush.get(outcome.flush)
        if flush_run is None:
            return self._statuses.append(None, [])
        heard = 0
        if outcome.attempt == flush_run.flush.attempt:
            heard = flush_run.statuses_heard
            flush_run.statuses_heard = max(heard, outcome.statuses_before + len(outcome.status_messages))
        name = flush_run.run.export.status_stream_name
        return self._statuses.append(name, outcome.status_messages[max(0, heard - outcome.statuses_before) :])

    def _apply(self, flush_run: FlushRun, outcome: Outcome, present: bool) -> None:
        """What was delivered is delivered, whoever did it: also by an attempt that nobody waits for any more."""
        run, flush = flush_run.run, flush_run.flush
        status = run.status
        flush_run.touched = flush_run.touched or bool(outcome.objects) or not present
        if present and outcome.upload_total_bytes:
            flush_run.upload = (outcome.upload_bytes, outcome.upload_total_bytes)
        if present and outcome.error:
            status.error_message = outcome.error
        if outcome.next > flush.first:
            run.delivered_to(flush_run, outcome.messages, outcome.skipped, outcome.next)
            status.exported_messages += outcome.messages
            status.exported_bytes += outcome.payload_bytes
            status.skipped_messages += outcome.skipped + outcome.failed_records
            status.error_message = outcome.error
            flush_run.progressed = flush_run.progressed or present
            if outcome.messages:
                status.last_export_time_ms = self._store.wall_ms()

    def _finish(self, flush_run: FlushRun) -> None:
        number = flush_run.flush.id
        del self._by_flush[number]
        del flush_run.run.flushes[number]
        self._notes.finished(number)
        flush_run.run.held_until_s = 0.0

    def _follow_attempt(self, flush_run: FlushRun, outcome: Outcome, pipeline: str) -> None:
        """Whether the attempt goes on, or the rest of the flush is to be tried again later."""
        if flush_run.attempt_ended:
            return
        if not outcome.done:
            flush_run.holder = pipeline  # it may have been given up too soon
            return
        flush_run.attempt_ended = True
        flush_run.holder = None
        if not outcome.error:
            return
        if self._is_too_old(flush_run):
            self._give_up(flush_run)
            return
        self._back_off(flush_run, outcome.permanent)

    def _back_off(self, flush_run: FlushRun, permanent: bool) -> None:
        flush_run.failures = 1 if flush_run.progressed else flush_run.failures + 1
        wait_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(flush_run.failures - 1, 12))
        wait_s = BACKOFF_MAX_S if permanent else wait_s * random.uniform(0.8, 1.0)  # noqa: S311
        flush_run.not_before_s = self.monotonic_s() + wait_s

    def _is_too_old(self, flush_run: FlushRun) -> bool:
        """Delivery streams keep trying for a day from when a record arrived; message streams for ever."""
        flush = flush_run.flush
        age_ms = self._store.wall_ms() - flush.planned_ms
        return flush.kind is ExportKind.DELIVERY and flush_run.failures > 0 and age_ms > self._retention_ms

    def _give_up(self, flush_run: FlushRun) -> None:
        flush, status = flush_run.flush, flush_run.run.status
        status.lost_messages += flush.next - flush.first
        logger.error(
            "stream %s: records %d to %d are given up after %.0f hours without success: %s",
            flush.stream, flush.first, flush.next - 1, self._retention_ms / 3_600_000, status.error_message,
        )  # fmt: skip
        self._drop(flush_run)

    async def _look_at_damage(self, number: int) -> None:
        """Read what the pipeline could not: the log then knows the damage and hands it out no more."""
        flush_run = self._by_flush.get(number)
        if flush_run is not None:
            flush = flush_run.flush
            await asyncio.to_thread(_find_damage, flush_run.run.stream, flush.first, flush.next)

    # -- operators ----------------------------------------------------------------------------------

    def runs(self) -> list[ExportRun]:
        """The exports of message streams."""
        runs = [run for run in self._runs.values() if not isinstance(run, DeliveryRun)]
        for run in runs:
            self._note_deleted(run)
        return runs

    def delivery(self, stream: str) -> DeliveryRun | None:
        """What is going on inside of a delivery stream, by its ARN."""
        run = self._run_of(stream, EXPORT_IDENTIFIER)
        return run if isinstance(run, DeliveryRun) else None

    async def flush_now(self, stream: str, wait_s: float, upto: int | None = None) -> DeliveryRun | None:
        """Deliver what is there (before `upto`), whatever its size or age.

        Returns when that is done, has failed, or time is up.
        """
        run = self.delivery(stream)
        if run is None:
            return None
        upto = run.flush_now(upto)
        run.retry_at_once()
        deadline_s = self.monotonic_s() + wait_s
        self._wake()
        while (
            self._is_present(run) and run.undelivered_from < upto and not run.failures and not self._closing
        ):
            left_s = deadline_s - self.monotonic_s()
            if left_s <= 0:
                break
            await self._sleep(left_s)
        return run

    def trims(self) -> list[tuple[Stream, int]]:
        """Delivery streams whose oldest segments hold nothing but delivered records, and how far.

        Not before the catalog knows it: what a restart finds undelivered must be there to be delivered again.
        """
        return [
            (run.stream, run.noted_from)
            for run in self._runs.values()
            if isinstance(run, DeliveryRun) and run.has_delivered_segments
        ]

    def retry_now(self, stream: str, identifier: str) -> bool:
        """Forget the back-off of an export."""
        run = self._run_of(stream, identifier)
        if run is None:
            return False
        run.retry_at_once()
        self._wake()
        return True

    async def rewind(self, stream: str, identifier: str, position: int) -> ExportRun | None:
        """Go on from another sequence number, before or behind the present one; None if there is no such export.

        An update with another startSequenceNumber does the same, but not with the number that is set already.
        """
        async with self._planning:  # or a flush could be planned from the old position meanwhile
            run = self._run_of(stream, identifier)
            if run is None or isinstance(run, DeliveryRun):
                return None
            if position > run.stream.visible_next:
                raise InvalidRequest(
                    f"{position} is behind the end of stream {stream}: give a number up to {run.stream.visible_next}"
                )
            # First, and durably: a flush that a restart finds would carry on from the old position.
            numbers = list(run.flushes)
            self._forget_flushes(run)
            for number in numbers:
                await asyncio.to_thread(self._store.catalog.remove_flush, number)
            await self._streams.update(stream, partial(_moved, identifier, position))
            run.retry_at_once()
            return self._run_of(stream, identifier)

    def _run_of(self, stream: str, identifier: str) -> ExportRun | None:
        found = self._store.streams.get(stream)
        return None if found is None else self._runs.get((found.key, identifier))


async def _no_data_keys(stream: str) -> list[DataKey]:
    return []


def _is_past(at_s: float | None, now_s: float) -> bool:
    return at_s is not None and at_s <= now_s


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
