"""What this process knows of the shards of a Kinesis stream, and when a stream can take the next call."""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from penstock.pipeline import aws

RECORDS_PER_S = 1000
BYTES_PER_S = 1_000_000
BURST_S = 1.0
KNOWN_FOR_S = 300.0


class Load(NamedTuple):
    """What a call brings to a shard."""

    shard: int
    record_bytes: int


class Shards:
    """The open shards of a stream. Each has a part of the hash keys, and takes so much a second."""

    def __init__(self, hash_ranges: Iterable[tuple[int, int]]) -> None:
        self._ranges = sorted(hash_ranges)
        self._starts = [start for start, _ in self._ranges]
        self._turns = itertools.cycle(range(len(self._ranges)))
        self._ready_s = [0.0] * len(self._ranges)
        self._lock = threading.Lock()

    def next_hash_key(self) -> tuple[int, int]:
        """Each shard in turn, and a random hash key of it."""
        with self._lock:
            shard = next(self._turns)
        return shard, random.randint(*self._ranges[shard])  # noqa: S311

    def shard_of(self, partition_key: str) -> int:
        digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()
        return max(0, bisect_right(self._starts, int.from_bytes(digest, "big")) - 1)

    def reserve(self, loads: Iterable[Load], now_s: float) -> float:
        """How long to wait before a call, so that no shard gets more than it takes."""
        costs_s = self._costs_s(loads)
        with self._lock:
            wait_s = max((self._ready_s[shard] - now_s for shard in costs_s), default=0.0)
            for shard, cost_s in costs_s.items():
                self._ready_s[shard] = max(self._ready_s[shard], now_s - BURST_S) + cost_s
        return max(0.0, wait_s)

    def _costs_s(self, loads: Iterable[Load]) -> dict[int, float]:
        records: dict[int, int] = {}
        record_bytes: dict[int, int] = {}
        for shard, size_bytes in loads:
            records[shard] = records.get(shard, 0) + 1
            record_bytes[shard] = record_bytes.get(shard, 0) + size_bytes
        return {
            shard: max(count / RECORDS_PER_S, record_bytes[shard] / BYTES_PER_S)
            for shard, count in records.items()
        }


class Knowledge:
    """Of one stream: its shards if they may be listed, else when it was called last."""

    def __init__(self, shards: Shards | None) -> None:
        self.shards = shards
        self.good_until_s = time.monotonic() + KNOWN_FOR_S
        self._next_call_s = 0.0
        self._lock = threading.Lock()

    def reserve(self, loads: Iterable[Load], delay_s: float) -> float:
        """How long to wait before a call: as the shards need it, or `delay_s` behind the last one."""
        now_s = time.monotonic()
        if self.shards is not None:
            return self.shards.reserve(loads, now_s)
        with self._lock:
            wait_s = max(0.0, self._next_call_s - now_s)
            self._next_call_s = now_s + wait_s + delay_s
        return wait_s


_lock = threading.Lock()
_known: dict[tuple[str, str], Knowledge] = {}


def knowledge_of(client: Any, stream: str) -> Knowledge:
    """Asks the stream for its shards once in a while. Raises ClientError if there is no such stream."""
    key = (str(client.meta.endpoint_url), stream)
    with _lock:
        known = _known.get(key)
    if known is None or known.good_until_s < time.monotonic():
        known = Knowledge(_list_shards(client, stream))
        with _lock:
            _known[key] = known
    return known


def _list_shards(client: Any, stream: str) -> Shards | None:
    try:
        pages = client.get_paginator("list_shards").paginate(StreamName=stream)
        shards = [shard for page in pages for shard in page["Shards"]]
    except ClientError as error:
        if aws.error_code(error) == "ResourceNotFoundException":
            raise
        return None
    ranges = [
        (int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"]))
        for shard in shards
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    ]
    return Shards(ranges) if ranges else None
