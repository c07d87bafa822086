"""Calls of functions at the same time, and a wait for them that ends when nobody wants their answers any more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import TypeVar

WATCH_INTERVAL_S = 0.5

B = TypeVar("B")
R = TypeVar("R")


class Abandoned(Exception):
    """The attempt has ended; what is still under way is for nobody."""


class Calls:
    """The calls for one group of records. A call that hangs cannot be stopped: its thread is left behind."""

    def __init__(self, threads_max: int, still_wanted: Callable[[], None]) -> None:
        """`still_wanted` is asked now and then while calls are under way, and raises when they are not."""
        self._threads_max = threads_max
        self._still_wanted = still_wanted
        self._abandoned = threading.Event()

    def results(self, call: Callable[[B], R], batches: Sequence[B]) -> Iterator[R]:
        """In the order of the batches. Raises what a call raises, and what `still_wanted` does."""
        waiting: deque[tuple[Future[R], B]] = deque((Future(), batch) for batch in batches)
        answers = [future for future, _ in waiting]
        for _ in range(min(self._threads_max, len(batches))):
            arguments = (call, waiting)
            threading.Thread(target=self._work, args=arguments, name="penstock-lambda", daemon=True).start()
        try:
            for future in answers:
                yield self._result(future)
        finally:
            self._abandoned.set()

    def pause(self, seconds: float) -> None:
        if self._abandoned.wait(seconds):
            raise Abandoned

    def check(self) -> None:
        if self._abandoned.is_set():
            raise Abandoned

    def _work(self, call: Callable[[B], R], waiting: deque[tuple[Future[R], B]]) -> None:
        while not self._abandoned.is_set():
            try:
                future, batch = waiting.popleft()
            except IndexError:
                return
            try:
                future.set_result(call(batch))
            except BaseException as error:  # for whoever waits for the answer
                future.set_exception(error)

    def _result(self, future: Future[R]) -> R:
        while True:
            try:
                return future.result(WATCH_INTERVAL_S)
            except futures.TimeoutError:
                if future.done():  # the call's own
                    raise
                self._still_wanted()
