"""What exports have done, in memory ahead of the catalog, and how it gets there: many changes in one transaction."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from penstock.catalog import Catalog
from penstock.delivery_run import DeliveryRun
from penstock.runs import ExportRun, FlushRun

logger = logging.getLogger(__name__)

LATER_S = 0.1


class ProgressNotes:
    def __init__(
        self, catalog: Catalog, is_present: Callable[[ExportRun], bool], noted: Callable[[], None]
    ) -> None:
        self._catalog = catalog
        self._is_present = is_present
        self._noted = noted
        self._loop = asyncio.get_running_loop()
        self._unnoted: dict[ExportRun, None] = {}
        self._finished: list[int] = []  # flushes that the catalog still has
        self._noting = asyncio.Lock()
        self._due = False
        self.tasks: set[asyncio.Task[None]] = set()

    def changed(self, run: ExportRun) -> None:
        """The run's status or flushes are not as the catalog has them; somebody will call `write`."""
        self._unnoted[run] = None

    def finished(self, *numbers: int) -> None:
        """Flushes that are not needed any more."""
        self._finished += numbers

    def definitions_changed(self, runs: Iterable[ExportRun]) -> None:
        """What is being noted may be of before the change, and be stored behind it: then note all once more."""
        if self._noting.locked():
            self._unnoted |= dict.fromkeys(runs)
            self.write_soon()

    async def write(self) -> None:
        """Write down what has changed since the last time, in the order it changed."""
        async with self._noting:
            runs, self._unnoted = self._unnoted, {}
            finished, self._finished = self._finished, []
            if not runs and not finished:
                return  # somebody else's note had ours too
            present = [run for run in runs if self._is_present(run)]
            statuses = [(run.stream.key, msgspec.structs.replace(run.status)) for run in present]
            moved = [
                (number, flush_run.flush.first)
                for run in present
                for number, flush_run in run.flushes.items()
            ]
            # Now: whoever hands one of them out meanwhile must see that, and freeze it again.
            thawed = [
                flush_run for run in present for flush_run in run.flushes.values() if flush_run.may_thaw
            ]
            _set_frozen(thawed, False)
            marks = [(run, run.undelivered_from) for run in present if isinstance(run, DeliveryRun)]
            try:
                numbers = [flush_run.flush.id for flush_run in thawed]
                await asyncio.to_thread(self._catalog.note_progress, statuses, moved, finished, numbers)
            except sqlite3.Error:
                _set_frozen(thawed, True)
                self._unnoted = {**runs, **self._unnoted}
                self._finished = finished + self._finished
                raise
            for run, undelivered_from in marks:
                run.noted_from = undelivered_from
        self._noted()

    async def freeze(self, settings: Mapping[FlushRun, dict[str, Any]]) -> None:
        """The settings with which flushes of delivery streams go out: names of objects depend on them."""
        async with self._noting:
            rows = [(run.flush.id, msgspec.json.encode(changed)) for run, changed in settings.items()]
            await asyncio.to_thread(self._catalog.change_flushes, rows)
            for flush_run, changed in settings.items():
                flush_run.flush.settings = changed
            _set_frozen(settings, True)

    def write_soon(self) -> None:
        if not self._due:
            self._due = True
            task = self._loop.create_task(self._write_later())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _write_later(self) -> None:
        await asyncio.sleep(LATER_S)
        self._due = False
        try:
            await self.write()
        except sqlite3.Error as error:
            logger.error(
                "the catalog failed (%s): what exports have done is noted later; check the disk", error
            )


def _set_frozen(flush_runs: Iterable[FlushRun], frozen: bool) -> None:
    for flush_run in flush_runs:
        flush_run.frozen = frozen
