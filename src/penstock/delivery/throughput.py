"""AWS's quotas on puts, for each delivery stream: requests, records and bytes a second. Off unless set."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

logger = logging.getLogger(__name__)

THROTTLED_LOGGED_EVERY_S = 1.0


class HasArn(Protocol):
    arn: str


class Quota(NamedTuple):
    """None: no limit."""

    requests_per_s: int | None = None
    records_per_s: int | None = None
    bytes_per_s: int | None = None

    @property
    def is_set(self) -> bool:
        return any(limit is not None for limit in self)


class _Bucket:
    """Holds at most what comes in one second."""

    __slots__ = ("_level", "_per_s", "_updated_s")

    def __init__(self, per_s: int | None, now_s: float) -> None:
        self._per_s = float("inf") if per_s is None else float(per_s)
        self._level = self._per_s
        self._updated_s = now_s

    def fill(self, now_s: float) -> None:
        gained = (now_s - self._updated_s) * self._per_s if now_s > self._updated_s else 0.0
        self._level = min(self._per_s, self._level + gained)
        self._updated_s = now_s

    @property
    def is_full(self) -> bool:
        return self._level >= self._per_s

    def holds(self, amount: int) -> bool:
        return self._level >= amount

    def take(self, amount: int) -> None:
        self._level -= amount


class _Meter:
    """The buckets of one delivery stream."""

    __slots__ = ("_bytes", "_logged_s", "_records", "_requests", "_throttled")

    def __init__(self, quota: Quota, now_s: float) -> None:
        self._throttled = 0
        self._logged_s = float("-inf")
        self._requests = _Bucket(quota.requests_per_s, now_s)
        self._records = _Bucket(quota.records_per_s, now_s)
        self._bytes = _Bucket(quota.bytes_per_s, now_s)

    def admit(self, sizes_bytes: Sequence[int], now_s: float) -> int:
        for bucket in (self._requests, self._records, self._bytes):
            bucket.fill(now_s)
        if not self._requests.holds(1):
            return 0
        self._requests.take(1)
        admitted = admitted_bytes = 0
        for count, total_bytes in enumerate(accumulate(sizes_bytes), start=1):
            # A record that is larger than the bucket must pass some time: when the bucket is full.
            bytes_pass = self._bytes.holds(total_bytes) or (count == 1 and self._bytes.is_full)
            if not (bytes_pass and self._records.holds(count)):
                break
            admitted, admitted_bytes = count, total_bytes
        self._records.take(admitted)
        self._bytes.take(admitted_bytes)
        return admitted

    def note_throttled(self, arn: str, records: int, now_s: float) -> None:
        """Many clients do not look at what became of single records, and nobody else would hear of these."""
        self._throttled += records
        if now_s - self._logged_s >= THROTTLED_LOGGED_EVERY_S:
            self._logged_s = now_s
            logger.warning(
                "%s: %d records refused by the quota of puts since the server started", arn, self._throttled
            )


class Throughput:
    """How many records of a request may pass now, stream by stream."""

    def __init__(self, quota: Quota, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._quota = quota
        self._monotonic_s = monotonic_s
        self._meters: WeakKeyDictionary[HasArn, _Meter] = WeakKeyDictionary()
        self.is_limited = quota.is_set

    def admit(self, delivery: HasArn, sizes_bytes: Sequence[int]) -> int:
        """The first so many records may pass. None if the request itself is one too many."""
        now_s = self._monotonic_s()
        meter = self._meters.get(delivery)
        if meter is None:
            meter = self._meters[delivery] = _Meter(self._quota, now_s)
        admitted = meter.admit(sizes_bytes, now_s)
        if admitted < len(sizes_bytes):
            meter.note_throttled(delivery.arn, len(sizes_bytes) - admitted, now_s)
        return admitted
