"""New flushes and their settings, in the catalog before anybody gets them: a retry must find the same ones."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import Callable

import msgspec

from penstock.bandwidth import Bandwidth
from penstock.catalog import FlushRow
from penstock.errors import PenstockError
from penstock.exports import Exports
from penstock.failures import BACKOFF_FIRST_S
from penstock.flush import Flush
from penstock.log.store import Store
from penstock.model import ExportKind
from penstock.runs import NUMBER_BITS, ExportRun, FlushRun, PlannedRange

logger = logging.getLogger(__name__)

FLUSH_BYTES_MAX = 64 * 1024 * 1024


class Planning:
    def __init__(
        self, exports: Exports, store: Store, bandwidth: Bandwidth | None, monotonic_s: Callable[[], float]
    ) -> None:
        self._exports = exports
        self._store = store
        self._bandwidth = bandwidth
        self._monotonic_s = monotonic_s
        # Under a cap no more than it allows in a second: a larger burst would be no cap at all.
        cap_bytes = FLUSH_BYTES_MAX if bandwidth is None else bandwidth.bytes_per_s
        self._flush_bytes_max = min(FLUSH_BYTES_MAX, cap_bytes)
        # Pipelines outlive servers: what they report of a flush must not be taken for that of another one.
        self._next_flush_id = secrets.randbits(NUMBER_BITS)
        self.lock = asyncio.Lock()  # whoever plans, or moves what others would plan from

    async def plan(self, runs: list[ExportRun]) -> None:
        """New flushes for these."""
        rows: list[FlushRow] = []
        planned: list[tuple[ExportRun, Flush, int, int]] = []
        for run in runs:
            for part in await self._next_ranges(run):
                flush, row = self._next_flush(run, part)
                rows.append(row)
                planned.append((run, flush, part.payload_bytes, run.moves))
        if not rows:
            return
        try:
            await asyncio.to_thread(self._store.catalog.add_flushes, rows)
        except sqlite3.IntegrityError:
            return  # a stream was deleted just now: the others are planned in the next round
        except sqlite3.Error as error:
            logger.error("the catalog failed (%s): nothing is handed out for now; check the disk", error)
            for run in runs:
                run.held_until_s = self._monotonic_s() + BACKOFF_FIRST_S
            return
        now_s = self._monotonic_s()
        for run, flush, payload_bytes, moves in planned:
            if self._exports.is_present(run) and run.moves == moves:
                run.planned(flush, payload_bytes, now_s)
                self._exports.flushes[flush.id] = run.flushes[flush.id]
            else:  # cancelled while it was being written down
                self._exports.notes.finished(flush.id)
                self._exports.notes.write_soon()

    def _next_flush(self, run: ExportRun, part: PlannedRange) -> tuple[Flush, FlushRow]:
        settings = run.export.settings
        nonce = secrets.token_hex(8)
        flush = run.new_flush(self._next_flush_id, settings, (part.first, part.next, part.planned_ms, nonce))
        self._next_flush_id += 1
        frozen = msgspec.json.encode(settings) if flush.kind is ExportKind.DELIVERY else None
        row = FlushRow(
            flush.id,
            run.stream.key,
            flush.identifier,
            flush.first,
            flush.next,
            flush.planned_ms,
            nonce,
            frozen,
        )
        return flush, row

    async def _next_ranges(self, run: ExportRun) -> list[PlannedRange]:
        bounds = (self._flush_bytes_max, run.stream.visible_next, self._store.wall_ms())
        if run.export.kind is not ExportKind.DELIVERY:
            return run.next_ranges(*bounds)
        try:
            return await asyncio.to_thread(run.next_ranges, *bounds)
        except (OSError, PenstockError) as error:
            logger.error("stream %s cannot be measured: %s", run.stream.definition.name, error)
            run.held_until_s = self._monotonic_s() + BACKOFF_FIRST_S
            return []

    def within_bandwidth(self, due: list[ExportRun], now_s: float) -> list[ExportRun]:
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

    async def with_settings(self, flush_runs: list[FlushRun]) -> list[FlushRun]:
        """Those that can go out, with the settings of this attempt; where names depend on them, they are frozen before.

        What is frozen may thaw as soon as anybody else has a turn: hand out at once.
        """
        to_freeze = {}
        for flush_run in flush_runs:
            settings = flush_run.run.settings_for(flush_run)
            if flush_run.flush.kind is not ExportKind.DELIVERY:
                flush_run.flush.settings = settings
            elif settings != flush_run.flush.settings or not flush_run.frozen:
                to_freeze[flush_run] = settings
        if to_freeze:
            try:
                await self._exports.notes.freeze(to_freeze)
            except sqlite3.Error as error:
                logger.error(
                    "the catalog failed (%s): retries are not handed out for now; check the disk", error
                )
                for flush_run in to_freeze:
                    flush_run.run.held_until_s = self._monotonic_s() + BACKOFF_FIRST_S
                flush_runs = [flush_run for flush_run in flush_runs if flush_run not in to_freeze]
        return [
            flush_run
            for flush_run in flush_runs
            if flush_run.flush.id in self._exports.flushes
            and (flush_run.frozen or flush_run.flush.kind is not ExportKind.DELIVERY)
        ]
