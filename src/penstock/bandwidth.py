"""The cap on what all exports together may send: an average, shared by messages and by the files of S3 tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PIECE_S = 0.25  # a file goes out in pieces that take this long at the full rate


class Bandwidth:
    """Credit grows with time, up to a second's worth. Whoever sends may overdraw it once, and others wait for that."""

    def __init__(self, kilobits_per_s: int, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_s = kilobits_per_s * 125
        self.piece_bytes = max(1, int(self.bytes_per_s * PIECE_S))
        self._monotonic_s = monotonic_s
        self._credit_bytes = float(self.bytes_per_s)
        self._credit_at_s = monotonic_s()
        self._files_in_turn = asyncio.Lock()

    def spend(self, size_bytes: int) -> None:
        self._credit_bytes = self._present_credit_bytes() - size_bytes
        self._credit_at_s = self._monotonic_s()

    def messages_wait_s(self) -> float:
        """Until messages may be sent. A piece of a file that is under way does not hold them up, or they would
        always come a moment too late."""
        return max(0.0, -self._present_credit_bytes() - self.piece_bytes) / self.bytes_per_s

    async def spend_piece(self, size_bytes: int) -> None:
        """For files: wait for what was sent before, then take the turn, whatever messages have taken meanwhile."""
        async with self._files_in_turn:
            await asyncio.sleep(max(0.0, -self._present_credit_bytes()) / self.bytes_per_s)
            self.spend(size_bytes)

    def _present_credit_bytes(self) -> float:
        grown_bytes = (self._monotonic_s() - self._credit_at_s) * self.bytes_per_s
        return min(float(self.bytes_per_s), self._credit_bytes + grown_bytes)
