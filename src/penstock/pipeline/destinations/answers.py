"""A batch whose records are answered one by one: some may fail while others, before and after, succeed."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.pipeline.destinations.base import DeliveryFailed, Progress, Record

# Waits before another try at what is left of a batch. After the last one the planner has a longer breath.
RETRY_WAITS_S = (0.1, 0.2, 0.4, 0.8)


class AnsweredBatch:
    """Keeps who was answered what, and confirms only the beginning that has no hole."""

    def __init__(self, records: Sequence[Record], progress: Progress) -> None:
        self._unconfirmed = deque(records)
        self._accepted: set[int] = set()
        self._refused: dict[int, str] = {}
        self._progress = progress

    @property
    def open(self) -> list[Record]:
        """What has no final answer yet."""
        return [
            record
            for record in self._unconfirmed
            if record.sequence_number not in self._accepted and record.sequence_number not in self._refused
        ]

    def accept(self, record: Record) -> None:
        self._accepted.add(record.sequence_number)

    def skip(self, record: Record, reason: str) -> None:
        self._refused[record.sequence_number] = reason

    def deliver(self, send: Callable[[AnsweredBatch], str]) -> None:
        """Send what is open, and again what stays open. `send` returns why something does."""
        for wait_s in (*RETRY_WAITS_S, None):
            try:
                reason = send(self)
            finally:
                self._confirm()
            if not self._unconfirmed:
                return
            if wait_s is None:
                raise DeliveryFailed(reason)
            time.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311

    def _confirm(self) -> None:
        messages = payload_bytes = 0
        number = -1
        while self._unconfirmed:
            record = self._unconfirmed[0]
            if record.sequence_number in self._refused:
                if messages:
                    self._progress.delivered(number + 1, messages, payload_bytes)
                    messages = payload_bytes = 0
                number = record.sequence_number
                self._progress.skipped(number + 1, self._refused[number])
            elif record.sequence_number in self._accepted:
                number = record.sequence_number
                messages += 1
                payload_bytes += len(record.payload)
            else:
                break
            self._unconfirmed.popleft()
        if messages:
            self._progress.delivered(number + 1, messages, payload_bytes)
