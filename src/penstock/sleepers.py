"""Those who wait until something is due: how long they sleep, and who wakes them before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

SLEEP_MIN_S = 0.005


class _Sleep(NamedTuple):
    until_s: float
    probing: bool | None  # what the sleeper waits for; None: for something else than messages


class Sleepers:
    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._sleeps: dict[asyncio.Event, _Sleep] = {}
        self.closing = False  # nobody shall sleep any more

    async def sleep(self, wait_s: float, probing: bool | None = None) -> None:
        woken = asyncio.Event()
        wait_s = max(SLEEP_MIN_S, wait_s)
        self._sleeps[woken] = _Sleep(self._monotonic_s() + wait_s, probing)
        try:
            await asyncio.wait_for(woken.wait(), wait_s)
        except asyncio.TimeoutError:
            pass
        finally:
            del self._sleeps[woken]

    def wake(self) -> None:
        for sleeper in self._sleeps:
            sleeper.set()

    def wake_before(self, due_s: float | None, *, probing: bool) -> None:
        """Wake those who wait for what is due then, and would oversleep: looking at all exports is dear."""
        if due_s is None:
            return
        for sleeper, sleep in self._sleeps.items():
            if sleep.probing is probing and sleep.until_s > due_s:
                sleeper.set()

    def close(self) -> None:
        self.closing = True
        self.wake()
