"""The export of a delivery stream at work: what it would take next and when."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from penstock.damage import damaged_count
from penstock.delivery.settings import DeliverySettings, with_backup_of
from penstock.errors import PenstockError
from penstock.flush import Flush
from penstock.log.frame import OVERHEAD_BYTES_PER_MESSAGE
from penstock.log.stream import Stream
from penstock.model import Export, ExportKind, ExportStatus
from penstock.runs import ExportRun, FlushRun, PlannedRange

logger = logging.getLogger(__name__)

DELIVERY_FLUSHES_MAX = 16  # of one delivery stream at the same time


class DeliveryRun(ExportRun):
    """The export of a delivery stream: buffered by bytes and age, many flushes in flight, each all or nothing."""

    def __init__(self, stream: Stream, export: Export, status: ExportStatus) -> None:
        super().__init__(stream, export, status)
        self._unplanned_from_bytes = stream.visible_bytes - self._stored_bytes()
        self.flush_upto = 0  # somebody will not wait for records before this
        self.noted_from = 0  # all records before are delivered, or lost, and the catalog knows it

    @property
    def delivery(self) -> DeliverySettings:
        return msgspec.convert(self.export.settings, DeliverySettings)

    @property
    def position(self) -> int:
        """The next record to plan."""
        return max(self.status.planned_next, self.stream.oldest_sequence)

    @property
    def undelivered_from(self) -> int:
        """All records before are delivered, or lost."""
        return min([self.position, *(run.flush.first for run in self.flushes.values())])

    @property
    def has_delivered_segments(self) -> bool:
        segments = self.stream.segments
        return len(segments) > 1 and segments[1].base <= self.noted_from

    @property
    def unplanned_messages(self) -> int:
        return max(0, self.stream.visible_next - self.position)

    @property
    def waiting_messages(self) -> int:
        planned = sum(run.flush.next - run.flush.first for run in self.flushes.values())
        return self.unplanned_messages + planned

    @property
    def unplanned_bytes(self) -> int:
        return self.stream.visible_bytes - self._unplanned_from_bytes

    @property
    def _fills_the_stream(self) -> bool:
        """A buffer larger than the stream would never be full, and puts be refused meanwhile."""
        charged_bytes = self.unplanned_bytes + self.unplanned_messages * OVERHEAD_BYTES_PER_MESSAGE
        return charged_bytes >= self.stream.definition.max_size_bytes // 2

    @property
    def buffer_bytes(self) -> int:
        return int(self.export.settings["buffer_bytes"])

    def _stored_bytes(self) -> int:
        try:
            return self.stream.measure(self.position, self.stream.visible_next, 2**62)[1]
        except (OSError, PenstockError) as error:
            logger.error("stream %s cannot be measured: %s", self.stream.definition.name, error)
            return 0

    def flush_now(self, upto: int | None) -> int:
        """Wait for neither size nor age with what is before `upto`, or with all there is. Returns the end of it."""
        visible_next = self.stream.visible_next
        wanted = visible_next if upto is None else min(upto, visible_next)
        self.flush_upto = max(self.flush_upto, wanted)
        return wanted

    def note_deleted(self) -> bool:
        """Only what is delivered is deleted here, so numbers that are gone held nothing, and nothing is lost."""
        first, oldest = self.status.planned_next, self.stream.oldest_sequence
        if oldest <= first:
            return False
        logger.warning(
            "stream %s: there are no records %d to %d: their puts were refused, or somebody has removed files",
            self.stream.definition.name, first, oldest - 1,
        )  # fmt: skip
        self.status.planned_next = oldest
        return True

    def due_at_s(self, now_s: float, probing: bool) -> float | None:
        if self.flushes:
            return super().due_at_s(now_s, probing)
        new_s = self.new_flush_at_s(now_s, probing)  # the usual case, of thousands of streams
        return None if new_s is None else max(self.held_until_s, new_s)

    def new_flush_at_s(self, now_s: float, probing: bool) -> float | None:
        if probing or self.status.planned_next >= self.stream.visible_next:
            return None
        if len(self.flushes) >= DELIVERY_FLUSHES_MAX or self.unplanned_messages == 0:
            return None
        full = self.unplanned_bytes >= self.buffer_bytes or self._fills_the_stream
        if full or self.position < self.flush_upto:
            return now_s
        since_s = self.pending_since_s if self.pending_since_s is not None else now_s
        return since_s + float(self.export.settings["interval_ms"]) / 1000

    def next_ranges(self, size_max_bytes: int, visible_next: int, wall_ms: int) -> list[PlannedRange]:
        """As many full buffers as there are, and the rest if that is due too. Reads indexes from disk."""
        ranges: list[PlannedRange] = []
        first = self.position
        while first < visible_next and len(self.flushes) + len(ranges) < DELIVERY_FLUSHES_MAX:
            behind, payload_bytes = self.stream.measure(first, visible_next, self.buffer_bytes)
            if ranges and payload_bytes < self.buffer_bytes and first >= self.flush_upto:
                break
            behind = max(behind, first + 1)
            arrival_ms = self.stream.arrival_ms(first)
            ranges.append(
                PlannedRange(first, behind, payload_bytes, wall_ms if arrival_ms is None else arrival_ms)
            )
            first = behind
        return ranges

    def due_bytes(self, now_s: float, size_max_bytes: int) -> int:
        planned = sum(
            run.flush.next - run.flush.first for run in self.due_flushes(now_s, bool(self.failures))
        )
        return planned * self.average_bytes + self.unplanned_bytes

    def planned(self, flush: Flush, payload_bytes: int, now_s: float) -> None:
        flush_run = self.flushes[flush.id] = FlushRun(self, flush)
        flush_run.frozen = True
        self.status.planned_next = flush.next
        rest = flush.next < self.stream.visible_next
        self.pending_since_s = now_s if rest else None
        left_bytes = max(0, self.unplanned_bytes - payload_bytes) if rest else 0
        self._unplanned_from_bytes = self.stream.visible_bytes - left_bytes

    def settings_for(self, flush_run: FlushRun) -> dict[str, Any]:
        """A retry must make the same names: another configuration counts only for what has left nothing behind."""
        if not flush_run.touched:
            return self.export.settings
        return with_backup_of(flush_run.flush.settings, self.export.settings)

    def adopt(self, flush: Flush, *, frozen: bool) -> None:
        flush_run = self.flushes[flush.id] = FlushRun(self, flush)
        flush_run.frozen = flush_run.touched = frozen  # by an attempt that was under way: who knows
        if flush.next > self.status.planned_next:
            self.status.planned_next = flush.next
            self._unplanned_from_bytes = self.stream.visible_bytes - self._stored_bytes()
        if not self.unplanned_messages:
            self.pending_since_s = None

    def still_wants(self, first: int, behind: int) -> bool:
        return True

    def messages_visible(self, now_s: float) -> None:
        if self.pending_since_s is None and self.unplanned_messages:
            self.pending_since_s = now_s

    def delivered_to(self, run: FlushRun, messages: int, skipped: int, position: int) -> None:
        flush = run.flush
        before, flush.first = flush.first, min(position, flush.next)
        unseen = flush.first - before - messages - skipped
        if unseen > 0:
            self._lose_damaged(before, flush.first, unseen)
        self.status.last_exported_sequence_number = max(
            self.status.last_exported_sequence_number, self.undelivered_from - 1
        )

    def _lose_damaged(self, first: int, behind: int, unseen: int) -> None:
        damaged = min(unseen, damaged_count(self.stream, first, behind))
        if damaged:
            self.status.lost_messages += damaged
            logger.error(
                "stream %s: %d of the records %d to %d are damaged and lost; 'penstock log verify' shows where",
                self.stream.definition.name, damaged, first, behind - 1,
            )  # fmt: skip


def run_for(stream: Stream, export: Export, status: ExportStatus) -> ExportRun:
    kind = DeliveryRun if export.kind is ExportKind.DELIVERY else ExportRun
    return kind(stream, export, status)
