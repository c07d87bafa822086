"""The cap on what exports send holds on average, whoever sends, and nobody is left out. In virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bandwidth import PIECE_S, Bandwidth

KBPS = 80
BYTES_PER_S = 10_000


class Clock(selectors.SelectSelector):
    """Waits for nothing: what the loop would wait for has happened at once, but later."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now_s += timeout or 0.0
        return super().select(0)


class Sending:
    """Everybody who sends under one cap, and what went out when."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._loop = asyncio.SelectorEventLoop(self._clock)
        self._loop.time = lambda: self._clock.now_s  # type: ignore[method-assign]
        self.bandwidth = Bandwidth(KBPS, lambda: self._clock.now_s)
        self.sent: dict[str, list[tuple[float, int]]] = {}

    def run(self, *senders: Coroutine[Any, Any, None]) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*senders)

        self._loop.run_until_complete(all_of_them())
        self._loop.close()

    async def file(self, name: str, size_bytes: int) -> None:
        while size_bytes > 0:
            piece_bytes = min(size_bytes, self.bandwidth.piece_bytes)
            await self.bandwidth.spend_piece(piece_bytes)
            self._note(name, piece_bytes)
            size_bytes -= piece_bytes

    async def messages(self, flushes_bytes: list[int]) -> None:
        for size_bytes in flushes_bytes:
            while (wait_s := self.bandwidth.messages_wait_s()) > 0:
                await asyncio.sleep(max(wait_s, 0.001))  # less would be lost in rounding
            self.bandwidth.spend(size_bytes)
            self._note("messages", size_bytes)

    def _note(self, name: str, size_bytes: int) -> None:
        self.sent.setdefault(name, []).append((self._clock.now_s, size_bytes))

    def total_bytes(self, name: str) -> int:
        return sum(size_bytes for _, size_bytes in self.sent[name])

    def over_bytes(self) -> float:
        """The most that was ever sent beyond what the rate had given until then."""
        events = sorted(event for events in self.sent.values() for event in events)
        total, most = 0, 0.0
        for at_s, size_bytes in events:
            total += size_bytes
            most = max(most, total - at_s * BYTES_PER_S)
        return most


@settings(deadline=None)
@given(
    files=st.lists(st.integers(1, 100_000), max_size=6),
    flushes=st.lists(st.integers(1, BYTES_PER_S), max_size=20),
)
def test_the_average_holds_whoever_sends(files: list[int], flushes: list[int]) -> None:
    sending = Sending()
    readers = [sending.file(f"file {number}", size) for number, size in enumerate(files)]
    sending.run(*readers, sending.messages(flushes))
    # A second's worth to begin with, and one who overdraws while another is at it.
    assert sending.over_bytes() <= (1 + 1 + 2 * PIECE_S) * BYTES_PER_S
    assert [sending.total_bytes(f"file {number}") for number in range(len(files))] == files


def test_files_are_read_at_the_full_rate_and_in_turn() -> None:
    sending = Sending()
    sending.run(sending.file("a", 50_000), sending.file("b", 50_000))
    ends_s = [sending.sent[name][-1][0] for name in "ab"]
    assert all(8.0 <= end_s <= 9.5 for end_s in ends_s), ends_s


def test_neither_files_nor_messages_keep_the_other_from_sending() -> None:
    sending = Sending()
    sending.run(sending.file("file", 40_000), sending.messages([BYTES_PER_S] * 20))
    meanwhile_s = min(sending.sent[name][-1][0] for name in ("file", "messages"))
    for name in ("file", "messages"):
        times_s = [0.0, *(at_s for at_s, _ in sending.sent[name] if at_s <= meanwhile_s)]
        longest_s = max(b - a for a, b in pairwise(times_s))
        assert longest_s <= 2.0, f"{name} waited for {longest_s} s"
