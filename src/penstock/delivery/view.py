"""A delivery stream's progress as operators see it: what waits, what is under way, what came of it."""

from __future__ import annotations

import msgspec


class DeliveryView(msgspec.Struct, kw_only=True):
    arn: str
    state: str  # idle, waiting, delivering, retrying or failing
    waiting_records: int  # put and not delivered, also if they are under way
    buffered_bytes: int  # of those that are in no flush yet
    flushes: int  # planned or under way
    delivered_records: int
    delivered_bytes: int
    failed_records: int  # in the error output
    lost_records: int  # given up after a day of failures, or damaged
    last_delivery_time_ms: int
    failures: int
    retry_in_ms: int = 0
    delivered_upto: int = 0  # all records before this number are delivered
    flush_upto: int = 0  # and those before this will not wait: somebody has asked for them
    error: str
