"""What follows when a flush could not be delivered: a wait that grows, or the end of trying."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from penstock.exports import Exports
from penstock.model import ExportKind
from penstock.runs import FlushRun

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 300.0
RETENTION_S = 86_400.0


class Failures:
    def __init__(
        self,
        exports: Exports,
        retention_s: float,
        monotonic_s: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._exports = exports
        self._retention_ms = int(retention_s * 1000)
        self._monotonic_s = monotonic_s
        self._wall_ms = wall_ms

    def failed(self, flush_run: FlushRun, error: str, *, permanent: bool = False) -> None:
        """An attempt has ended with this, or could not even begin; somebody will write it down."""
        flush_run.error = flush_run.run.status.error_message = error
        self._exports.notes.changed(flush_run.run)
        if self._is_too_old(flush_run):
            self._give_up(flush_run)
        else:
            self._back_off(flush_run, permanent)

    def _back_off(self, flush_run: FlushRun, permanent: bool) -> None:
        flush_run.failures = 1 if flush_run.progressed else flush_run.failures + 1
        wait_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(flush_run.failures - 1, 12))
        wait_s = BACKOFF_MAX_S if permanent else wait_s * random.uniform(0.8, 1.0)  # noqa: S311
        flush_run.not_before_s = self._monotonic_s() + wait_s

    def _is_too_old(self, flush_run: FlushRun) -> bool:
        """Delivery streams keep trying for a day from when a record arrived; message streams for ever."""
        flush = flush_run.flush
        age_ms = self._wall_ms() - flush.planned_ms
        return flush.kind is ExportKind.DELIVERY and flush_run.failures > 0 and age_ms > self._retention_ms

    def _give_up(self, flush_run: FlushRun) -> None:
        flush, status = flush_run.flush, flush_run.run.status
        status.lost_messages += flush.next - flush.first
        logger.error(
            "stream %s: records %d to %d are given up after %.0f hours without success: %s",
            flush.stream, flush.first, flush.next - 1, self._retention_ms / 3_600_000, flush_run.error,
        )  # fmt: skip
        self._exports.drop(flush_run)
