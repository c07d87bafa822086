"""The planner: which range of which export is due, who has it, and what came of it.

It lives in the event loop, where every append is seen the moment it becomes visible. Its parts stand beside it:
`exports` follows the streams, `planning` makes flushes, `leasing` hands them out, `reports` takes what came of them.
Here they are put together, and operators and the rest of the server find what they ask for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from penstock.bandwidth import Bandwidth
from penstock.delivery.settings import EXPORT_IDENTIFIER, DataKey
from penstock.delivery_run import DeliveryRun
from penstock.errors import InvalidRequest
from penstock.exports import Exports
from penstock.failures import RETENTION_S, Failures
from penstock.flush import Outcome, ReportAnswer
from penstock.flush_keys import DataKeys, FlushKeys
from penstock.leasing import Leasing
from penstock.log.stream import Stream
from penstock.model import ExportKind, StreamDefinition, StreamInfo
from penstock.planning import Planning
from penstock.reports import Reports
from penstock.runs import ExportRun
from penstock.sleepers import Sleepers
from penstock.streams import Streams
from penstock.task_statuses import TaskStatuses


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
        store = streams.store
        self._streams = streams
        self._catalog = store.catalog
        self.monotonic_s = monotonic_s
        self.data_keys: DataKeys = _no_data_keys  # by the name of a delivery stream
        self._statuses = TaskStatuses(streams)
        self._sleepers = Sleepers(monotonic_s)
        self._exports = Exports(streams, self._statuses, self._sleepers, monotonic_s)
        failures = Failures(self._exports, retention_s, monotonic_s, store.wall_ms)
        self._reports = Reports(self._exports, failures, self._statuses, store.wall_ms)
        self._planning = Planning(self._exports, store, bandwidth, monotonic_s)
        keys = FlushKeys(self._exports, failures, lambda stream: self.data_keys(stream))
        self._leasing = Leasing(self._exports, self._planning, keys, self._sleepers, slots, monotonic_s)
        self.lease, self.renew = self._leasing.lease, self._leasing.renew
        self.give_back = self._leasing.give_back
        streams.trims = self.trims

    async def report(self, pipeline: str, outcomes: Iterable[Outcome]) -> ReportAnswer:
        """Take note of what happened, durably. Hearing the same twice changes nothing."""
        self.renew(pipeline)
        return await self._reports.take(pipeline, list(outcomes))

    def close(self) -> None:
        """The server stops: answer every lease that waits."""
        self._sleepers.close()

    async def settled(self) -> None:
        """Return when nothing is left to be written of what has happened."""
        while tasks := {*self._leasing.tasks, *self._exports.notes.tasks, *self._statuses.tasks}:
            await asyncio.wait(tasks)

    # -- exports of message streams -----------------------------------------------------------------

    def runs(self) -> list[ExportRun]:
        runs = [run for run in self._exports if not isinstance(run, DeliveryRun)]
        for run in runs:
            self._exports.note_deleted(run)
        return runs

    def retry_now(self, stream: str, identifier: str) -> bool:
        """Forget the back-off of an export."""
        run = self._exports.of(stream, identifier)
        if run is None:
            return False
        run.retry_at_once()
        self._sleepers.wake()
        return True

    async def rewind(self, stream: str, identifier: str, position: int) -> ExportRun | None:
        """Go on from another sequence number, before or behind the present one; None if there is no such export.

        An update with another startSequenceNumber does the same, but not with the number that is set already.
        """
        async with self._planning.lock:  # or a flush could be planned from the old position meanwhile
            run = self._exports.of(stream, identifier)
            if run is None or isinstance(run, DeliveryRun):
                return None
            if position > run.stream.visible_next:
                raise InvalidRequest(
                    f"{position} is behind the end of stream {stream}: give a number up to {run.stream.visible_next}"
                )
            # First, and durably: a flush that a restart finds would carry on from the old position.
            numbers = list(run.flushes)
            self._exports.forget_flushes(run)
            for number in numbers:
                await asyncio.to_thread(self._catalog.remove_flush, number)
            await self._streams.update(stream, partial(_moved, identifier, position))
            run.retry_at_once()
            return self._exports.of(stream, identifier)

    # -- delivery streams ---------------------------------------------------------------------------

    def delivery(self, stream: str) -> DeliveryRun | None:
        """What is going on inside of a delivery stream, by its ARN."""
        run = self._exports.of(stream, EXPORT_IDENTIFIER)
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
        self._sleepers.wake()
        while self._exports.is_present(run) and run.undelivered_from < upto and not run.failures:
            left_s = deadline_s - self.monotonic_s()
            if left_s <= 0 or self._sleepers.closing:
                break
            await self._sleepers.sleep(left_s)
        return run

    def trims(self) -> list[tuple[Stream, int]]:
        """Delivery streams whose oldest segments hold nothing but delivered records, and how far.

        Not before the catalog knows it: what a restart finds undelivered must be there to be delivered again.
        """
        return [
            (run.stream, run.noted_from)
            for run in self._exports
            if isinstance(run, DeliveryRun) and run.has_delivered_segments
        ]


async def _no_data_keys(stream: str) -> list[DataKey]:
    return []


def _moved(identifier: str, position: int, info: StreamInfo) -> tuple[StreamDefinition, dict[str, int]]:
    """The definition as it is, but for where the export starts: before anything is exported, that decides."""
    exports = tuple(
        msgspec.structs.replace(export, settings={**export.settings, "startSequenceNumber": position})
        if export.identifier == identifier and export.kind is not ExportKind.S3_TASK_EXECUTOR
        else export
        for export in info.definition.exports
    )
    return msgspec.structs.replace(info.definition, exports=exports), {identifier: position}
