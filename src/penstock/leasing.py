"""Who gets which flush: pipelines ask for what is due and wait for it, keep it, or lose it when they fall silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from penstock.delivery.settings import DataKey, needs_spark_sql
from penstock.delivery_run import DeliveryRun
from penstock.exports import Exports
from penstock.flush import Flush, LeaseRequest, Leases
from penstock.flush_keys import FlushKeys
from penstock.planning import Planning
from penstock.runs import FlushRun
from penstock.sleepers import Sleepers

logger = logging.getLogger(__name__)

LEASE_S = 10.0
LEASE_RENEWAL_MS = 3000


class Leasing:
    def __init__(
        self,
        exports: Exports,
        planning: Planning,
        keys: FlushKeys,
        sleepers: Sleepers,
        slots: int,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._exports = exports
        self._planning = planning
        self._keys = keys
        self._sleepers = sleepers
        self._slots = slots
        self._monotonic_s = monotonic_s
        self._pipelines: dict[str, float] = {}  # when each was heard of last
        self.tasks: set[asyncio.Task[list[Flush]]] = set()  # a task that nobody holds may vanish

    # -- asking -------------------------------------------------------------------------------------

    async def lease(self, request: LeaseRequest) -> Leases:
        """Flushes for a pipeline, as soon as there are any; an empty list when the wait is over."""
        deadline_s = self._monotonic_s() + request.wait_ms / 1000
        self.renew(request.pipeline)  # now, and not while it waits: it may be gone
        while True:
            self._take_back_expired()
            if request.pipeline not in self._pipelines:
                return Leases([], self._slots, LEASE_RENEWAL_MS)
            flushes = await self._hand_out_to_the_end(request)
            now_s = self._monotonic_s()
            if flushes:
                self.renew(request.pipeline)
            if flushes or now_s >= deadline_s or self._sleepers.closing:
                return Leases(flushes, self._slots, LEASE_RENEWAL_MS, not flushes and self._wants_spark_sql())
            until_s = min(deadline_s, self._next_due_s(now_s, request.probing))
            await self._sleepers.sleep(until_s - now_s, request.probing)

    def _wants_spark_sql(self) -> bool:
        return any(
            needs_spark_sql(run.export.settings) for run in self._exports if isinstance(run, DeliveryRun)
        )

    def _next_due_s(self, now_s: float, probing: bool) -> float:
        times = (run.due_at_s(now_s, probing) for run in self._exports)
        next_s = min((at_s for at_s in times if at_s is not None), default=now_s + LEASE_S)
        if any(run.holder is not None for run in self._exports.flushes.values()):
            next_s = min(next_s, min(self._pipelines.values(), default=now_s) + LEASE_S)
        return next_s

    # -- handing out --------------------------------------------------------------------------------

    async def _hand_out_to_the_end(self, request: LeaseRequest) -> list[Flush]:
        """Also if the pipeline hangs up: what is in the catalog and nowhere else would be planned once more."""
        handing_out = asyncio.ensure_future(self._hand_out_alone(request))
        self.tasks.add(handing_out)
        handing_out.add_done_callback(self.tasks.discard)
        try:
            return await asyncio.shield(handing_out)
        except asyncio.CancelledError:
            handing_out.add_done_callback(self._take_back_unwanted)
            raise

    async def _hand_out_alone(self, request: LeaseRequest) -> list[Flush]:
        async with self._planning.lock:
            return await self._hand_out_due(request)

    def _take_back_unwanted(self, handing_out: asyncio.Task[list[Flush]]) -> None:
        if not handing_out.cancelled() and handing_out.exception() is None:
            self.give_back(handing_out.result())

    async def _hand_out_due(self, request: LeaseRequest) -> list[Flush]:
        now_s = self._monotonic_s()
        due = []
        for run in self._exports:
            self._exports.note_deleted(run)
            if _is_past(run.due_at_s(now_s, request.probing), now_s):
                due.append(run)
        due.sort(key=lambda run: (run.priority, run.pending_since_s or 0.0))
        chosen = self._planning.within_bandwidth(due[: request.flushes_max], now_s)
        await self._planning.plan(
            [run for run in chosen if _is_past(run.new_flush_at_s(now_s, request.probing), now_s)]
        )
        flush_runs = [
            flush_run
            for run in chosen
            if self._exports.is_present(run) and not run.export.disabled
            for flush_run in run.due_flushes(now_s, request.probing)
        ]
        flush_runs = flush_runs[: request.flushes_max]
        keys = await self._keys.of(flush_runs)
        flush_runs = [flush_run for flush_run in flush_runs if flush_run.not_before_s <= now_s]
        return [
            _hand_out(flush_run, request.pipeline, now_s, keys.get(flush_run.flush.stream))
            for flush_run in await self._planning.with_settings(flush_runs)
        ]

    # -- keeping ------------------------------------------------------------------------------------

    def renew(self, pipeline: str, flushes: Iterable[int] | None = None) -> None:
        """The pipeline is there. What it does not know that it has never reached it, and goes back."""
        now_s = self._pipelines[pipeline] = self._monotonic_s()
        if flushes is None:
            return
        known = set(flushes)
        for number, run in self._exports.flushes.items():
            # Not what was handed out just now, and may be on its way.
            if run.holder == pipeline and number not in known and run.handed_out_s <= now_s - LEASE_S:
                logger.warning(
                    "the pipeline %s does not know of its flush %s; it goes back", pipeline, run.run.key
                )
                run.give_back()
                run.touched = True
                self._sleepers.wake()

    def give_back(self, flushes: Iterable[Flush]) -> None:
        """Nobody is there to take them."""
        for flush in flushes:
            run = self._exports.flushes.get(flush.id)
            if run is not None:
                run.give_back()
        self._sleepers.wake()

    def _take_back_expired(self) -> None:
        deadline_s = self._monotonic_s() - LEASE_S
        expired = {name for name, heard_s in self._pipelines.items() if heard_s <= deadline_s}
        for name in expired:
            del self._pipelines[name]
        for run in self._exports.flushes.values():
            if run.holder is not None and run.holder not in self._pipelines:
                logger.warning("the pipeline %s is gone; its flush %s goes back", run.holder, run.run.key)
                run.holder = None
                run.touched = True


def _hand_out(flush_run: FlushRun, pipeline: str, now_s: float, data_keys: list[DataKey] | None) -> Flush:
    flush_run.begin_attempt(pipeline, now_s)
    flush = flush_run.flush
    if not data_keys:
        return flush
    settings = {**flush.settings, "data_keys": msgspec.to_builtins(data_keys)}
    return msgspec.structs.replace(flush, settings=settings)


def _is_past(at_s: float | None, now_s: float) -> bool:
    return at_s is not None and at_s <= now_s
