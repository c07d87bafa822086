"""Streams as a Spark data source: spark.read, spark.readStream, df.write and df.writeStream with format("penstock").

Only addresses, numbers and the token travel to the executors; each of them talks to the server itself.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from penstock.errors import PenstockError
from penstock.log.frame import BadFrame, Frame
from penstock.pipeline.server_client import ServerClient

SERVER_URL = "http://127.0.0.1:8080"
DATA_DIR = "penstock-data"
TOKEN_FILE_NAME = "http-token"  # noqa: S105
PARTITION_BYTES_MIN = 4 * 1024 * 1024
PARTITIONS_MAX = 4_096
BATCH_BYTES = 4 * 1024 * 1024
BATCH_ROWS_MAX = 16_384
WRITE_BYTES_MAX = 4 * 1024 * 1024
WRITE_MESSAGES_MAX = 16_384
LENGTH_BYTES = 4

OPTIONS = (
    "server",
    "token",
    "tokenFile",
    "stream",
    "startingSequenceNumber",
    "endingSequenceNumber",
    "maxMessagesPerTrigger",
    "partitions",
    "failOnDataLoss",
)
SCHEMA = StructType(
    [
        StructField("sequence_number", LongType()),
        StructField("arrival", TimestampType()),
        StructField("payload", BinaryType()),
    ]
)
ARROW_SCHEMA = pa.schema(
    [
        ("sequence_number", pa.int64()),
        ("arrival", pa.timestamp("us", tz="UTC")),
        ("payload", pa.binary()),
    ]
)


class BadOption(PenstockError):
    """An option of the data source is missing or wrong."""


class BadRows(PenstockError):
    """A DataFrame cannot be written to a stream as it is."""


class DataLost(PenstockError):
    """Messages that a query was to read are gone."""


class DamagedMessages(PenstockError):
    """Stored messages fail their checksum."""


class StreamState(msgspec.Struct):
    """What the server tells about a stream, as far as readers need it."""

    key: str  # another one means: deleted and created again
    oldest_sequence_number: int
    end_sequence_number: int


class _Ranges(msgspec.Struct):
    ranges: list[tuple[int, int]]


class ServerAddress(NamedTuple):
    """What travels to the executors instead of a connection."""

    url: str
    token: str


@lru_cache(maxsize=16)
def client_of(server: ServerAddress) -> ServerClient:
    """Connections stay open from one task of a Python worker to the next."""
    return ServerClient(server.url, server.token)


@dataclass
class MessageRange(InputPartition):
    """What one task reads."""

    key: str
    first: int
    behind: int


# -- options ----------------------------------------------------------------------------------------


class Options:
    """The options of a query, checked when it is planned, on the driver."""

    def __init__(self, given: Mapping[str, str], env: Mapping[str, str]) -> None:
        self._given = given
        self._refuse_misspelt()
        self.stream = self._required("stream")
        url = given.get("server") or env.get("PENSTOCK_SERVER_URL") or SERVER_URL
        self.server = ServerAddress(url, self._token(env))

    @property
    def partitions(self) -> int | None:
        return self._number("partitions", 1, PARTITIONS_MAX)

    @property
    def messages_per_trigger_max(self) -> int | None:
        return self._number("maxMessagesPerTrigger", 1)

    @property
    def ending(self) -> int | None:
        return self._number("endingSequenceNumber", 0)

    def starting(self, state: StreamState) -> int:
        text = self._given.get("startingSequenceNumber", "earliest").strip().lower()
        if text == "earliest":
            return state.oldest_sequence_number
        if text == "latest":
            return state.end_sequence_number
        return self._parsed("startingSequenceNumber", text, 0, "'earliest', 'latest' or ")

    def fail_on_data_loss(self, *, default: bool) -> bool:
        text = self._given.get("failOnDataLoss", str(default)).strip().lower()
        if text not in ("true", "false"):
            raise BadOption(f"failOnDataLoss must be true or false, not {text!r}")
        return text == "true"

    def refuse(self, name: str, why: str) -> None:
        if name in self._given:
            raise BadOption(f"the option {name} is not for this: {why}")

    def _refuse_misspelt(self) -> None:
        """Spark hands over options of its own too, so an unknown one is refused only if it looks like one of ours."""
        known = {name.lower(): name for name in OPTIONS}
        for name in self._given:
            close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.8)
            if name.lower() not in known and close:
                raise BadOption(f"unknown option {name}: did you mean {known[close[0]]}?")

    def _required(self, name: str) -> str:
        value = self._given.get(name)
        if not value:
            raise BadOption(f"the option {name} is missing: add .option({name!r}, ...)")
        return value

    def _number(self, name: str, lowest: int, highest: int = 2**63 - 1) -> int | None:
        text = self._given.get(name)
        return None if text is None else self._parsed(name, text.strip(), lowest, "", highest)

    def _parsed(self, name: str, text: str, lowest: int, words: str, highest: int = 2**63 - 1) -> int:
        if not text.isascii() or not text.isdigit() or not lowest <= int(text) <= highest:
            raise BadOption(f"{name} must be {words}a number from {lowest} to {highest}, not {text!r}")
        return int(text)

    def _token(self, env: Mapping[str, str]) -> str:
        token = self._given.get("token")
        path = self._given.get("tokenFile")
        if token and path:
            raise BadOption("give either the option token or the option tokenFile, not both")
        if token or (not path and env.get("PENSTOCK_HTTP_TOKEN")):
            return token or env["PENSTOCK_HTTP_TOKEN"]
        file = Path(path) if path else Path(env.get("PENSTOCK_DATA_DIR") or DATA_DIR) / TOKEN_FILE_NAME
        try:
            return file.read_text().strip()
        except OSError as error:
            raise BadOption(
                f"no token: {file.absolute()} cannot be read on the driver ({error.strerror}); set the option "
                "tokenFile or token, or PENSTOCK_HTTP_TOKEN in the environment in which Spark starts"
            ) from error


# -- reading ----------------------------------------------------------------------------------------


class StreamRanges:
    """Finds out what there is to read, and reads it. Travels to the executors."""

    def __init__(self, options: Options, *, fail_on_data_loss: bool) -> None:
        self.stream = options.stream
        self._server = options.server
        self._partitions = options.partitions
        self._fail_on_data_loss = fail_on_data_loss

    def state(self) -> StreamState:
        return client_of(self._server).get(
            f"/v1/streams/info?{urlencode({'stream': self.stream})}", StreamState
        )

    def split(self, key: str, first: int, behind: int) -> list[MessageRange]:
        """Ranges of about equal bytes: as many as asked for, else as cores, but none too small to be worth a task."""
        query = {
            "stream": self.stream,
            "from": first,
            "to": behind,
            "count": self._partitions or min(os.cpu_count() or 1, PARTITIONS_MAX),
            "min_bytes": 0 if self._partitions else PARTITION_BYTES_MIN,
        }
        ranges = client_of(self._server).get(f"/v1/streams/ranges?{urlencode(query)}", _Ranges).ranges
        if not ranges:
            self.note_gap(key, first, behind)
            return []
        # What is gone at the front must be noticed by somebody: the first task looks from the very start.
        edges = [(first, ranges[0][1]), *ranges[1:]]
        return [MessageRange(key, start, stop) for start, stop in edges]

    def read(self, wanted: MessageRange) -> Iterator[pa.RecordBatch]:
        """The messages of a range, from the frames' own columns; gaps are passed over."""
        pending: list[pa.RecordBatch] = []
        pending_bytes = pending_rows = 0
        for batch in self._batches(wanted):
            if pending and (pending_bytes >= BATCH_BYTES or pending_rows + len(batch) > BATCH_ROWS_MAX):
                yield _joined(pending)
                pending, pending_bytes, pending_rows = [], 0, 0
            pending.append(batch)
            pending_bytes += batch.nbytes
            pending_rows += len(batch)
        if pending:
            yield _joined(pending)

    def _batches(self, wanted: MessageRange) -> Iterator[pa.RecordBatch]:
        position = wanted.first
        try:
            for frame in client_of(self._server).frames(self.stream, wanted.first, wanted.behind):
                if f"{frame.header.stream_key:016x}" != wanted.key:
                    self.note_gap(wanted.key, position, wanted.behind)
                    return
                start = max(position, frame.first_sequence)
                stop = min(wanted.behind, frame.first_sequence + frame.count)
                if start >= stop:
                    continue
                if start > position:
                    self.note_gap(wanted.key, position, start)
                yield batch_of(frame, start - frame.first_sequence, stop - frame.first_sequence)
                position = stop
        except BadFrame as error:
            raise DamagedMessages(
                f"stream {self.stream}: messages from {position} on are damaged on disk ({error}); "
                "run 'penstock log verify' on the server's machine"
            ) from error
        if position < wanted.behind:
            self.note_gap(wanted.key, position, wanted.behind)

    def note_gap(self, key: str, first: int, behind: int) -> None:
        """Numbers that no message has are normal after failures; messages that were deleted are a loss."""
        if not self._fail_on_data_loss:
            return
        state = self.state()
        if state.key != key:
            raise DataLost(f"the stream {self.stream} was deleted and created again {_ADVICE}")
        if state.oldest_sequence_number > first:
            last = min(behind, state.oldest_sequence_number) - 1
            raise DataLost(
                f"stream {self.stream}: messages {first} to {last} were deleted before they were read {_ADVICE}"
            )


_ADVICE = "(set the option failOnDataLoss to false to go on with what is there)"


def batch_of(frame: Frame, start: int, stop: int) -> pa.RecordBatch:
    """Messages `start` to `stop` of a frame, by position, without touching any of them."""
    buffers = [None, pa.py_buffer(frame.offsets), pa.py_buffer(frame.data)]
    payloads = pa.Array.from_buffers(pa.binary(), frame.count, buffers)
    arrivals_ms = pa.Array.from_buffers(
        pa.timestamp("ms", tz="UTC"), frame.count, [None, pa.py_buffer(frame.arrivals)]
    )
    numbers = np.arange(frame.first_sequence + start, frame.first_sequence + stop, dtype=np.int64)
    columns = [
        pa.array(numbers),
        arrivals_ms[start:stop].cast(ARROW_SCHEMA.field("arrival").type),
        payloads[start:stop],
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class StreamBatchReader(DataSourceReader):
    """spark.read: the range as it is when the query is planned."""

    def __init__(self, options: Options) -> None:
        options.refuse("maxMessagesPerTrigger", "it limits the micro-batches of spark.readStream")
        self._ranges = StreamRanges(options, fail_on_data_loss=options.fail_on_data_loss(default=False))
        state = self._ranges.state()
        self._key = state.key
        self._first = options.starting(state)
        ending = options.ending
        self._behind = state.end_sequence_number if ending is None else ending

    def partitions(self) -> list[InputPartition]:
        if self._first >= self._behind:
            return [MessageRange(self._key, self._first, self._first)]
        ranges = self._ranges.split(self._key, self._first, self._behind)
        return [*ranges] or [MessageRange(self._key, self._behind, self._behind)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MessageRange)
        return self._ranges.read(partition)


class StreamQueryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """spark.readStream. An offset is the next sequence number to read, and the key of the stream it belongs to."""

    def __init__(self, options: Options) -> None:
        options.refuse("endingSequenceNumber", "a stream query has no end; use spark.read")
        self._options = options
        self._ranges = StreamRanges(options, fail_on_data_loss=options.fail_on_data_loss(default=True))
        self._messages_max = options.messages_per_trigger_max
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        state = self._ranges.state()
        return _offset(state.key, self._options.starting(state))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._messages_max is None else ReadMaxRows(self._messages_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ranges.state().end_sequence_number

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        state = self._ranges.state()
        first = self._position(start, state)
        end = (
            state.end_sequence_number
            if self._target is None
            else min(self._target, state.end_sequence_number)
        )
        if isinstance(limit, ReadMaxRows):
            end = min(end, max(first, state.oldest_sequence_number) + limit.max_rows)
        return _offset(state.key, end) if end > first else start

    def reportLatestOffset(self) -> dict[str, Any]:
        state = self._ranges.state()
        return _offset(state.key, state.end_sequence_number)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first = start["sequence"] if start["key"] == end["key"] else 0
        if first >= end["sequence"]:
            return []
        return self._ranges.split(end["key"], first, end["sequence"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MessageRange)
        return self._ranges.read(partition)

    def _position(self, start: dict[str, Any], state: StreamState) -> int:
        """Where the query stands in the stream that has the name now."""
        if start["key"] == state.key:
            return int(start["sequence"])
        self._ranges.note_gap(start["key"], start["sequence"], start["sequence"])
        return 0


def _offset(key: str, sequence: int) -> dict[str, Any]:
    return {"key": key, "sequence": sequence}


# -- writing ----------------------------------------------------------------------------------------


@dataclass
class Appended(WriterCommitMessage):
    """What one task has appended."""

    messages: int


class Appender:
    """Appends the payloads of a task's batches in order, some of them at a time. Travels to the executors."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise BadRows("a stream cannot be overwritten: use mode('append') and output mode append")
        self._check_columns(schema)
        self._stream = options.stream
        self._server = options.server

    def _check_columns(self, schema: StructType) -> None:
        names = schema.fieldNames()
        if "payload" not in names:
            raise BadRows(f"there is no column payload among {', '.join(names)}: it holds the messages")
        if not isinstance(schema["payload"].dataType, (BinaryType, StringType)):
            kind = schema["payload"].dataType.simpleString()
            raise BadRows(f"the column payload must be binary or string, not {kind}: cast it, or use to_json")
        others = [name for name in names if name not in SCHEMA.fieldNames()]
        if others:
            raise BadRows(
                f"a message has no place for {', '.join(others)}: put them into payload "
                "(for example with to_json(struct(...))), or drop them"
            )

    def append(self, batches: Iterator[pa.RecordBatch]) -> Appended:
        server = client_of(self._server)
        pending: list[bytes] = []
        pending_bytes = messages = 0
        for payload in _payloads(batches):
            size_bytes = len(payload) + LENGTH_BYTES
            if pending and (
                pending_bytes + size_bytes > WRITE_BYTES_MAX or len(pending) >= WRITE_MESSAGES_MAX
            ):
                server.append(self._stream, pending)
                pending, pending_bytes = [], 0
            pending.append(payload)
            pending_bytes += size_bytes
            messages += 1
        if pending:
            server.append(self._stream, pending)
        return Appended(messages)


def _payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        column = batch.column("payload")
        if column.null_count:
            raise BadRows("a row has no payload (null): filter such rows out")
        yield from column.cast(pa.large_binary()).to_pylist()


class StreamBatchWriter(DataSourceArrowWriter):
    def __init__(self, appender: Appender) -> None:
        self._appender = appender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._appender.append(iterator)


class StreamQueryWriter(DataSourceStreamArrowWriter):
    def __init__(self, appender: Appender) -> None:
        self._appender = appender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._appender.append(iterator)


# -- the data source --------------------------------------------------------------------------------


class PenstockDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_schema(schema)
        return StreamBatchReader(self._checked_options())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _check_schema(schema)
        return StreamQueryReader(self._checked_options())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return StreamBatchWriter(Appender(self._checked_options(), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamQueryWriter(Appender(self._checked_options(), schema, overwrite))

    def _checked_options(self) -> Options:
        return Options(self.options, os.environ)


def _check_schema(schema: StructType) -> None:
    if [(field.name, field.dataType) for field in schema] != [
        (field.name, field.dataType) for field in SCHEMA
    ]:
        raise BadOption(f"a stream has the schema {SCHEMA.simpleString()}: leave .schema(...) out")


def register(spark: SparkSession) -> None:
    """Make format("penstock") known to a session, classic or Spark Connect."""
    spark.dataSource.register(PenstockDataSource)
