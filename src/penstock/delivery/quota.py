"""AWS's limit on calls that are not puts: so many a second, for each operation and account. Off unless set."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from penstock.delivery.errors import ApiError

_MEASURED_MAX = 10_000  # pairs of an account and an operation


class ControlQuota:
    def __init__(self, calls_per_s: int | None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._calls_per_s = calls_per_s
        self._monotonic_s = monotonic_s
        self._calls_s: dict[tuple[str, str], deque[float]] = {}

    def check(self, account: str, operation: str) -> None:
        """Raises ApiError for the call that is one too many within a second."""
        if self._calls_per_s is None:
            return
        if len(self._calls_s) >= _MEASURED_MAX:
            self._calls_s.clear()
        calls_s = self._calls_s.setdefault((account, operation), deque())
        now_s = self._monotonic_s()
        while calls_s and now_s - calls_s[0] >= 1:
            calls_s.popleft()
        if len(calls_s) >= self._calls_per_s:
            raise ApiError(
                "ThrottlingException",
                f"Please slow down. Max limit of {self._calls_per_s} RPS has breached for {operation} "
                f"under account {account}",
            )
        calls_s.append(now_s)
