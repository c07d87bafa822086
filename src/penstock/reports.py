"""What pipelines report of their flushes, and what it changes: positions, figures, who has the flush."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.damage import find_damage
from penstock.exports import Exports
from penstock.failures import Failures
from penstock.flush import Outcome, ReportAnswer
from penstock.runs import FlushRun
from penstock.task_statuses import TaskStatuses


class Reports:
    def __init__(
        self, exports: Exports, failures: Failures, statuses: TaskStatuses, wall_ms: Callable[[], int]
    ) -> None:
        self._exports = exports
        self._failures = failures
        self._statuses = statuses
        self._wall_ms = wall_ms

    async def take(self, pipeline: str, outcomes: list[Outcome]) -> ReportAnswer:
        """Note what happened, durably."""
        answer = ReportAnswer([], {})
        for outcome in outcomes:
            if outcome.damaged:
                await self._look_at_damage(outcome.flush)
        # First: a task that counts as done is never told of again.
        for stored in [self._append_statuses_of(outcome) for outcome in outcomes if outcome.status_messages]:
            await stored
        for outcome in outcomes:
            flush_run = self._exports.flushes.get(outcome.flush)
            if flush_run is None:
                answer.cancelled.append(outcome.flush)
                continue
            run, flush = flush_run.run, flush_run.flush
            present = outcome.attempt == flush.attempt
            self._apply(flush_run, outcome, present)
            answer.positions[outcome.flush] = flush.first
            if run.export.disabled or not present:
                answer.cancelled.append(outcome.flush)
            self._exports.notes.changed(run)
            if flush.first >= flush.next:
                self._exports.finish(flush_run)
            elif present:
                self._follow_attempt(flush_run, outcome, pipeline)
        await self._exports.notes.write()
        return answer

    async def _look_at_damage(self, number: int) -> None:
        flush_run = self._exports.flushes.get(number)
        if flush_run is not None:
            flush = flush_run.flush
            await asyncio.to_thread(find_damage, flush_run.run.stream, flush.first, flush.next)

    def _append_statuses_of(self, outcome: Outcome) -> asyncio.Future[None]:
        """Those that are new; all of an attempt that was given up, for what it tells is true all the same."""
        flush_run = self._exports.flushes.get(outcome.flush)
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
        unknown = not present and not outcome.done  # what an attempt that was given up is still about to do
        flush_run.touched = flush_run.touched or bool(outcome.objects) or unknown
        if present and outcome.upload_total_bytes:
            flush_run.upload = (outcome.upload_bytes, outcome.upload_total_bytes)
        if present and outcome.error:
            flush_run.error = status.error_message = outcome.error
        if outcome.next > flush.first:
            run.delivered_to(flush_run, outcome.messages, outcome.skipped, outcome.next)
            status.exported_messages += outcome.messages
            status.exported_bytes += outcome.payload_bytes
            status.skipped_messages += outcome.skipped + outcome.failed_records
            flush_run.error = outcome.error
            status.error_message = outcome.error or run.error
            flush_run.progressed = flush_run.progressed or present
            if outcome.messages:
                status.last_export_time_ms = self._wall_ms()

    def _follow_attempt(self, flush_run: FlushRun, outcome: Outcome, pipeline: str) -> None:
        """Whether the attempt goes on, or the rest of the flush is to be tried again later."""
        if flush_run.attempt_ended:
            return
        if not outcome.done:
            flush_run.holder = pipeline  # it may have been given up too soon
            return
        flush_run.attempt_ended = True
        flush_run.holder = None
        if outcome.error:
            self._failures.failed(flush_run, outcome.error, permanent=outcome.permanent)
