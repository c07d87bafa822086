"""What travels between the two Python ends of a Spark SQL job: rows of records, and notes between them."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from penstock.flush import Flush
from penstock.pipeline.delivery import Task
from penstock.pipeline.records.record import Failed, Record

# `note` is null in rows that are records; in all others it is all there is besides `flush`.
SOURCE_SCHEMA = pa.schema(
    [
        ("flush", pa.int32()),  # its position in the job
        ("sequence", pa.int64()),
        ("arrival_ms", pa.int64()),
        ("place", pa.int32()),  # of the partition
        ("odd", pa.bool_()),  # JSON that is not for Spark
        ("note", pa.binary()),
        ("raw", pa.binary()),  # as it was put; null if that is the payload, or if a note has told it
        ("payload", pa.binary()),  # wrapped, if it is JSON for Spark
    ]
)
# One row for each flush: its id, what the server has not heard of it, and how its records spell their keys.
OUTCOME_SCHEMA = pa.schema([("flush", pa.int64()), ("outcome", pa.binary()), ("spellings", pa.binary())])

# Names that no record is likely to hold.
OBJECTS, END = "~o", "~e"
# Inside an array nothing can stand behind the object without being noticed; nor can it end the array itself, for then
# the second element would lack the mark. Whoever writes both by design gets a row for it.
WRAPPED_HEAD, WRAPPED_TAIL = f'{{"{OBJECTS}":[', f',{{"{END}":true}}]}}'


def value_name(position: int) -> str:
    """Columns of the user's must not meet ours."""
    return f"value{position}"


class Placed(msgspec.Struct, tag="placed"):
    """A partition has been opened: rows refer to it by its number."""

    place: int
    values: tuple[str, ...]
    arrival_ms: int
    query_keys: dict[str, str]
    lambda_keys: dict[str, str]


class Whole(msgspec.Struct, tag="whole"):
    """A record as it was put, of which several rows are parts: too much to stand in each of them."""

    sequence: int
    raw: bytes


class Rejected(msgspec.Struct, tag="rejected"):
    """A record has failed before it came to Spark."""

    sequence: int
    arrival_ms: int
    raw: bytes
    output_type: str
    code: str
    message: str
    attempts: int
    lambda_arn: str | None

    @classmethod
    def of(cls, failed: Failed) -> Rejected:
        record = failed.record
        return cls(record.sequence, record.arrival_ms, record.raw, *failed[1:])

    def failed(self) -> Failed:
        record = Record(self.sequence, self.arrival_ms, self.raw, self.raw)
        return Failed(record, self.output_type, self.code, self.message, self.attempts, self.lambda_arn)


class Ended(msgspec.Struct, tag="ended"):
    """Nothing more comes of this flush. Without this note nothing of it may be stored."""

    messages: int = 0
    payload_bytes: int = 0
    error: str = ""
    permanent: bool = False
    damaged: bool = False
    cancelled: bool = False


Note = Placed | Whole | Rejected | Ended

encode_note = msgspec.msgpack.Encoder().encode
decode_note = msgspec.msgpack.Decoder(Note).decode


class SourceTask(msgspec.Struct):
    """What the reading end must know besides the flushes."""

    task: Task
    columns: list[tuple[str, str]] = []  # of JSON that Spark will parse: names and types; none if it will not
    deserializer: dict[str, Any] = {}
    spellings: dict[str, str] = {}


class SinkTask(msgspec.Struct):
    """What the writing end must know."""

    task: Task
    flushes: list[Flush]
    columns: list[
        tuple[str, str]
    ] = []  # of converted records: names and types; none if they are not converted
    deserializer: dict[str, Any] = {}
    serializer: dict[str, Any] = {}
    failure: str = ""  # why no record could be transformed, if the query failed
