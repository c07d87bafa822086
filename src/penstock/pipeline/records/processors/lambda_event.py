"""What a function is asked, as Firehose asks Lambda, and what can go wrong with it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

PAYLOAD_BYTES_MAX = 6 * 1024 * 1024
_EXCERPT_CHARACTERS_MAX = 300


class EventRecord(msgspec.Struct, rename="camel", gc=False):
    record_id: str
    approximate_arrival_timestamp: int
    data: bytes  # base64 in JSON


class Event(msgspec.Struct, rename="camel"):
    invocation_id: str
    delivery_stream_arn: str
    region: str
    records: list[EventRecord]


class InvocationFailed(Exception):
    """The function could not be called, or it failed: to be tried again."""


class AnswerTooLarge(InvocationFailed):
    """The function would say more than fits an answer: it may manage with fewer records."""


class Function(ABC):
    """A way to call a function. Threads call it at the same time."""

    @abstractmethod
    def invoke(self, event: Event) -> object:
        """The answer, decoded; None if it is not JSON. Raises InvocationFailed."""


_RECORD_OVERHEAD_BYTES = len(msgspec.json.encode(EventRecord("0" * 30, 2**63 - 1, b""))) + len(",")


def record_payload_bytes(data: bytes) -> int:
    """What a record adds to the payload."""
    return _RECORD_OVERHEAD_BYTES + (len(data) + 2) // 3 * 4


def decoded(answer: bytes) -> object:
    try:
        return msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def error_text(answer: object) -> str:
    """What a function that failed says of it."""
    if not isinstance(answer, dict):
        return ""
    parts = (answer.get("errorType"), answer.get("errorMessage"))
    return excerpt(": ".join(part for part in parts if isinstance(part, str)))


def excerpt(text: str) -> str:
    """Short enough to be told for each record, and without what cannot be written down."""
    return text[:_EXCERPT_CHARACTERS_MAX].encode(errors="replace").decode()
