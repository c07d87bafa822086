"""A record under way, and one that has failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

NO_KEYS: Mapping[str, str] = {}


class Record(NamedTuple):
    sequence: int
    arrival_ms: int
    data: bytes  # as it is now
    raw: bytes  # as it was put
    query_keys: Mapping[str, str] = NO_KEYS  # for !{partitionKeyFromQuery:...}
    lambda_keys: Mapping[str, str] = NO_KEYS  # for !{partitionKeyFromLambda:...}


class Failed(NamedTuple):
    """A record that goes to the error output, with its original bytes."""

    record: Record
    output_type: str  # processing-failed, format-conversion-failed, ...
    code: str
    message: str
    attempts: int = 1
    lambda_arn: str | None = None
