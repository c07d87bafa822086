"""Exports at work: which range each would take next and when, and the flushes it is busy with."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.flush import Flush, batch_size
from penstock.log.stream import Stream
from penstock.model import Export, ExportKind, ExportStatus, Persistence

logger = logging.getLogger(__name__)

TASKS_MAX = 16  # S3 file tasks in one flush
LAST_PRIORITY = 11
NUMBER_BITS = 48  # of numbers that nobody may guess or use twice, also across restarts


class PlannedRange(NamedTuple):
    first: int
    next: int
    payload_bytes: int
    planned_ms: int


class FlushRun:
    """A planned flush: who has it, and how its attempts went."""

    def __init__(self, run: ExportRun, flush: Flush) -> None:
        self.run = run
        self.flush = flush
        self.holder: str | None = None  # the pipeline that has it
        self.handed_out_s = 0.0
        self.attempt_ended = True
        self.progressed = False  # the present attempt has delivered something
        self.touched = (
            False  # an attempt may have left something at the destination, under names of its settings
        )
        self.frozen = False  # the catalog has its settings: of a delivery stream it must before they go out
        self.statuses_heard = 0  # status messages of the present attempt
        self.upload = (0, 0)  # bytes done and bytes in all of its long upload, if it is at one
        self.error = ""  # why the last attempt failed, or could not begin
        self.failures = 0
        self.not_before_s = 0.0

    @property
    def may_thaw(self) -> bool:
        """Nothing was stored under names of the settings, and nobody is about to: others may take their place."""
        return self.frozen and self.failures > 0 and self.attempt_ended and not self.touched

    def begin_attempt(self, pipeline: str, now_s: float) -> None:
        self.flush.attempt += 1
        self.holder, self.handed_out_s = pipeline, now_s
        self.attempt_ended, self.progressed, self.statuses_heard = False, False, 0
        self.upload = (0, 0)

    def give_back(self) -> None:
        self.holder, self.attempt_ended = None, True

    def retry_at_once(self) -> None:
        self.failures, self.not_before_s = 0, 0.0


class ExportRun:
    """An export of a message stream: in order, with one flush in flight."""

    def __init__(self, stream: Stream, export: Export, status: ExportStatus) -> None:
        self.stream = stream
        self.export = export
        self.status = status
        self.flushes: dict[int, FlushRun] = {}
        self.held_until_s = 0.0  # nothing is handed out before, whatever is due
        self._failures_before = 0  # of a flush whose messages are gone: the destination is no better for that
        self.pending_since_s: float | None = None
        self.accounted_next = self.position  # what became of all messages before is known
        self.moves = 0  # how often the position was moved by hand

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
    def failures(self) -> int:
        return max([self._failures_before, *(flush.failures for flush in self.flushes.values())])

    @property
    def error(self) -> str:
        """Of a flush that is not delivered."""
        return next((flush.error for flush in self.flushes.values() if flush.error), "")

    @property
    def not_before_s(self) -> float:
        """When it is tried again, if it failed or must wait."""
        return max(
            [self.held_until_s, *(flush.not_before_s for flush in self.flushes.values() if flush.failures)]
        )

    @property
    def delivering(self) -> bool:
        return any(flush.holder is not None for flush in self.flushes.values())

    @property
    def upload(self) -> tuple[int, int]:
        return next((flush.upload for flush in self.flushes.values() if flush.holder is not None), (0, 0))

    @property
    def state(self) -> str:
        """In a word, for operators."""
        if self.export.disabled:
            return "paused"
        if self.delivering:
            return "retrying" if self.failures else "delivering"
        if self.failures:
            return "failing"
        return "waiting" if self.waiting_messages else "idle"

    def retry_at_once(self) -> None:
        self.held_until_s = 0.0
        self._failures_before = 0
        for flush in self.flushes.values():
            flush.retry_at_once()

    def lose(self, messages: int) -> None:
        if messages > 0:
            self.status.lost_messages += messages
            logger.warning(
                "stream %s: %d messages were deleted before export %s had them",
                self.stream.definition.name, messages, self.export.identifier,
            )  # fmt: skip

    def note_deleted(self) -> bool:
        """Count messages that were deleted before anybody could export them. True if there were any."""
        oldest = self.stream.oldest_sequence
        if oldest <= self.accounted_next or self.delivering:  # its holder may have had them before
            return False
        self.lose(oldest - self.accounted_next)
        self.accounted_next = oldest
        for run in self.flushes.values():
            run.flush.first = min(oldest, run.flush.next)
            if run.flush.first == run.flush.next:
                self._failures_before = run.failures
                self.held_until_s = max(self.held_until_s, run.not_before_s)
        return True

    # -- what is due --------------------------------------------------------------------------------

    def due_at_s(self, now_s: float, probing: bool) -> float | None:
        """When something can be handed out next; None if that depends on something else happening."""
        if self.export.disabled:
            return None
        times = [run.not_before_s for run in self._handable(probing)]
        new_s = self.new_flush_at_s(now_s, probing)
        if new_s is not None:
            times.append(new_s)
        return max(self.held_until_s, min(times)) if times else None

    def due_flushes(self, now_s: float, probing: bool) -> list[FlushRun]:
        """Planned before, and to be handed out now."""
        return [run for run in self._handable(probing) if run.not_before_s <= now_s]

    def _handable(self, probing: bool) -> Iterator[FlushRun]:
        return (run for run in self.flushes.values() if run.holder is None and bool(run.failures) == probing)

    def new_flush_at_s(self, now_s: float, probing: bool) -> float | None:
        """When another flush may be planned."""
        if self.flushes or self.waiting_messages == 0 or bool(self._failures_before) != probing:
            return None
        interval_ms = self.export.settings.get("batchIntervalMillis")
        if interval_ms is None or self.waiting_messages >= self.batch_size:
            return now_s
        since_s = self.pending_since_s if self.pending_since_s is not None else now_s
        return since_s + float(interval_ms) / 1000

    @property
    def batch_size(self) -> int:
        return batch_size(self.export.kind, self.export.settings)

    @property
    def average_bytes(self) -> int:
        """Of a message of the stream, roughly."""
        held = max(1, self.stream.visible_next - self.stream.oldest_sequence)
        return max(1, self.stream.charged_bytes // held)

    # -- planning -----------------------------------------------------------------------------------

    def next_ranges(self, size_max_bytes: int, visible_next: int, wall_ms: int) -> list[PlannedRange]:
        """What is to be planned now: all that waits, within bounds."""
        first = self.position
        waiting = visible_next - first
        count = min(waiting, self._count_max(size_max_bytes))
        return [PlannedRange(first, first + count, count * self.average_bytes, wall_ms)]

    def _count_max(self, size_max_bytes: int) -> int:
        if self.export.kind is ExportKind.S3_TASK_EXECUTOR:
            return TASKS_MAX
        return max(1, size_max_bytes // self.average_bytes)

    def due_bytes(self, now_s: float, size_max_bytes: int) -> int:
        """About how much would be handed out now."""
        planned = sum(
            run.flush.next - run.flush.first for run in self.due_flushes(now_s, bool(self.failures))
        )
        new = 0 if self.flushes else min(self.waiting_messages, self._count_max(size_max_bytes))
        return (planned + new) * self.average_bytes

    def new_flush(self, number: int, settings: dict[str, Any], planned: tuple[int, int, int, str]) -> Flush:
        """`planned` is its range, its instant and its random part."""
        first, behind, planned_ms, nonce = planned
        return Flush(
            id=number,
            stream=self.stream.definition.name,
            identifier=self.export.identifier,
            kind=self.export.kind,
            settings=settings,
            first=first,
            next=behind,
            planned_ms=planned_ms,
            nonce=nonce,
            attempt=secrets.randbits(NUMBER_BITS),
        )

    def planned(self, flush: Flush, payload_bytes: int, now_s: float) -> None:
        """The flush is in the catalog."""
        self.accounted_next = flush.first
        flush_run = self.flushes[flush.id] = FlushRun(self, flush)
        flush_run.failures, self._failures_before = self._failures_before, 0
        self.pending_since_s = None if flush.next >= self.stream.visible_next else now_s

    def settings_for(self, flush_run: FlushRun) -> dict[str, Any]:
        """What the next attempt gets: what the export says now."""
        return self.export.settings

    def adopt(self, flush: Flush, *, frozen: bool) -> None:
        """A flush from before a restart."""
        self.accounted_next = flush.first
        self.flushes[flush.id] = FlushRun(self, flush)

    def still_wants(self, first: int, behind: int) -> bool:
        """Not a flush from before a restart if the position is elsewhere, or the messages went with the process."""
        in_memory = self.stream.definition.persistence is Persistence.MEMORY
        return not self.flushes and first <= self.position < behind and not in_memory

    def messages_visible(self, now_s: float) -> None:
        if self.pending_since_s is None and self.waiting_messages:
            self.pending_since_s = now_s

    # -- outcomes -----------------------------------------------------------------------------------

    def delivered_to(self, run: FlushRun, messages: int, skipped: int, position: int) -> None:
        """A flush has come as far as `position`."""
        flush = run.flush
        before, flush.first = flush.first, min(position, flush.next)
        unseen = flush.first - before - messages - skipped
        self.lose(min(unseen, self.stream.oldest_sequence - before))
        self.accounted_next = flush.first
        self.status.last_exported_sequence_number = max(
            self.status.last_exported_sequence_number, flush.first - 1
        )
