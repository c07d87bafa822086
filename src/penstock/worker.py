"""A thread that does one piece of work after the other for the event loop.

An executor would do, but makes a lock, a condition and two futures for each piece: every sync that clients wait for
would pay for them, and twice the processor time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Piece(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]


class Worker:
    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: SimpleQueue[_Piece | None] = SimpleQueue()
        # Not waited for at the end of a process that never came to `close`.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """What becomes of the work, which is done after all that was asked for before."""
        future = self._loop.create_future()
        self._pieces.put(_Piece(work, future))
        return future

    def close(self) -> None:
        """Return when everything is done."""
        self._pieces.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._do(self._pieces.get()):  # no name here, so that nothing is held while it waits for more
            pass

    def _do(self, piece: _Piece | None) -> bool:
        if piece is None:
            return False
        try:
            outcome = piece.work()
        except BaseException as error:  # carried to whoever asked for the work
            self._tell(piece.future, piece.future.set_exception, error)
        else:
            self._tell(piece.future, piece.future.set_result, outcome)
        return True

    def _tell(self, future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, future, settle, outcome)


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: object) -> None:
    if not future.cancelled():
        settle(outcome)
