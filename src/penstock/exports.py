"""Every export there is and every flush it is busy with, kept in step with the streams and their definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from penstock.catalog import FlushRow
from penstock.delivery_run import DeliveryRun, run_for
from penstock.log.stream import Stream
from penstock.model import Export, ExportKind, ExportStatus
from penstock.progress_notes import ProgressNotes
from penstock.runs import ExportRun, FlushRun
from penstock.sleepers import Sleepers
from penstock.streams import Streams
from penstock.task_statuses import TaskStatuses


class Exports:
    def __init__(
        self, streams: Streams, statuses: TaskStatuses, sleepers: Sleepers, monotonic_s: Callable[[], float]
    ) -> None:
        self._store = streams.store
        self._statuses = statuses
        self._sleepers = sleepers
        self._monotonic_s = monotonic_s
        self.notes = ProgressNotes(self._store.catalog, self.is_present, sleepers.wake)
        self.flushes: dict[int, FlushRun] = {}
        self._runs: dict[tuple[int, str], ExportRun] = {}
        rows = self._store.catalog.flushes()
        self.definitions_changed()
        for row in rows:
            self._adopt(row)
        for run in self._runs.values():
            if isinstance(run, DeliveryRun):
                run.noted_from = run.undelivered_from
        streams.watch(self._messages_visible, self.definitions_changed)

    def __iter__(self) -> Iterator[ExportRun]:
        return iter(self._runs.values())

    def of(self, stream: str, identifier: str) -> ExportRun | None:
        found = self._store.streams.get(stream)
        return None if found is None else self._runs.get((found.key, identifier))

    def is_present(self, run: ExportRun) -> bool:
        return self._runs.get(run.key) is run

    # -- definitions --------------------------------------------------------------------------------

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
                    self.forget_flushes(run)
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
        self.notes.definitions_changed(runs.values())
        self._sleepers.wake()

    def _new_run(self, stream: Stream, export: Export, status: ExportStatus) -> ExportRun:
        run = run_for(stream, export, status)
        if run.waiting_messages:
            # They have waited before the server was started too.
            arrival_ms = stream.arrival_ms(run.position)
            age_ms = 0 if arrival_ms is None else max(0, self._store.wall_ms() - arrival_ms)
            run.pending_since_s = self._monotonic_s() - age_ms / 1000
        return run

    def _cancel(self, run: ExportRun) -> None:
        """The export is deleted."""
        for flush_run in run.flushes.values():
            if flush_run.holder is not None and run.export.kind is ExportKind.S3_TASK_EXECUTOR:
                self._statuses.tell_of_cancelled(flush_run)
        self.forget_flushes(run)

    # -- messages -----------------------------------------------------------------------------------

    def _messages_visible(self, stream: Stream) -> None:
        """Called for every group of appends: leases are woken only if something becomes due before they wake up."""
        now_s = self._monotonic_s()
        for export in stream.definition.exports:
            run = self._runs.get((stream.key, export.identifier))
            if run is None:
                continue
            self.note_deleted(run)
            run.messages_visible(now_s)
            self._sleepers.wake_before(run.due_at_s(now_s, probing=False), probing=False)
            if run.failures:
                self._sleepers.wake_before(run.due_at_s(now_s, probing=True), probing=True)

    def note_deleted(self, run: ExportRun) -> None:
        """Messages that went before they were exported, if there are any."""
        if run.note_deleted():
            for flush_run in list(run.flushes.values()):
                if flush_run.flush.first >= flush_run.flush.next:
                    self.drop(flush_run)
            self.notes.changed(run)
            self.notes.write_soon()

    # -- flushes ------------------------------------------------------------------------------------

    def _adopt(self, row: FlushRow) -> None:
        """A flush from before the restart: the same range and name, to be handed out again."""
        run = self._runs.get((row.stream_key, row.identifier))
        if run is None or not run.still_wants(row.first, row.next):
            self._store.catalog.remove_flush(row.id)
            return
        settings = run.export.settings if row.settings is None else msgspec.json.decode(row.settings)
        run.adopt(run.new_flush(row.id, settings, row[3:7]), frozen=row.settings is not None)
        self.flushes[row.id] = run.flushes[row.id]

    def finish(self, flush_run: FlushRun) -> None:
        """All of it is delivered."""
        number = flush_run.flush.id
        del self.flushes[number]
        del flush_run.run.flushes[number]
        self.notes.finished(number)
        flush_run.run.held_until_s = 0.0

    def drop(self, flush_run: FlushRun) -> None:
        """Nobody wants it any more."""
        number = flush_run.flush.id
        del flush_run.run.flushes[number]
        self.flushes.pop(number, None)
        self.notes.finished(number)
        self.notes.write_soon()

    def forget_flushes(self, run: ExportRun) -> None:
        for flush_run in list(run.flushes.values()):
            self.drop(flush_run)
