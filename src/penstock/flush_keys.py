"""How the records of a delivery stream can be opened: asked whenever a flush of it is handed out, and never stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.delivery.settings import DataKey
from penstock.errors import PenstockError
from penstock.exports import Exports
from penstock.failures import Failures
from penstock.model import ExportKind
from penstock.runs import FlushRun

KEYS_S = 2.0

DataKeys = Callable[[str], Awaitable[list[DataKey]]]


class FlushKeys:
    def __init__(self, exports: Exports, failures: Failures, data_keys: DataKeys) -> None:
        self._exports = exports
        self._failures = failures
        self._data_keys = data_keys

    async def of(self, flush_runs: list[FlushRun]) -> dict[str, list[DataKey]]:
        """The data keys of each delivery stream. For flushes of one whose keys cannot be had, that is a failure."""
        names = {run.flush.stream for run in flush_runs if run.flush.kind is ExportKind.DELIVERY}
        if not names:
            return {}
        asking = {name: asyncio.ensure_future(self._ask(name)) for name in names}
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
                self._failures.failed(flush_run, str(answer))
                self._exports.notes.write_soon()
            else:
                keys[name] = answer
        return keys

    async def _ask(self, stream: str) -> list[DataKey] | PenstockError:
        try:
            return await self._data_keys(stream)
        except PenstockError as error:
            return error
