"""What a destination is: code that delivers the messages of a flush somewhere, and tells how far it came."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from penstock.errors import PenstockError
from penstock.flush import Flush
from penstock.log.frame import Frame
from penstock.pipeline.server_client import ServerClient


class DeliveryFailed(PenstockError):
    """The rest of the flush is not delivered; it is tried again after a while."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent  # trying again soon will not help: somebody must change something


class Cancelled(PenstockError):
    """Nobody wants this flush any more: its export or stream was deleted or paused."""


class Record(NamedTuple):
    sequence_number: int
    arrival_ms: int
    payload: bytes


class Columns(NamedTuple):
    """Messages as frames hold them: in order, numbers with gaps where something was deleted."""

    sequence_numbers: Sequence[int]
    arrivals_ms: list[int]
    payloads: list[bytes]

    def records(self) -> Iterator[Record]:
        return map(Record, *self)

    def part(self, start: int, stop: int) -> Columns:
        return Columns(
            self.sequence_numbers[start:stop], self.arrivals_ms[start:stop], self.payloads[start:stop]
        )


class FramePart(NamedTuple):
    """Those messages of a frame, by position, that belong to a flush. Nothing is copied until somebody asks."""

    frame: Frame
    start: int
    stop: int

    @property
    def messages(self) -> int:
        return self.stop - self.start

    @property
    def data(self) -> memoryview:
        """The payloads, one behind the other."""
        offsets = self.frame.offsets
        return self.frame.data[offsets[self.start] : offsets[self.stop]]

    def columns(self) -> Columns:
        first = self.frame.first_sequence
        return Columns(
            range(first + self.start, first + self.stop),
            self.frame.arrivals[self.start : self.stop].tolist(),
            self.frame.payloads(self.start, self.stop),
        )


class PipelineSettings(msgspec.Struct, frozen=True):
    """What destinations need to know besides the export's own configuration. Travels to the executors."""

    kinesis_inter_call_delay_ms: int = 1000
    sitewise_skip_refused: bool = False
    s3_min_part_size_bytes: int = 5 * 1024 * 1024
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    object_store: str = "file://penstock-data/objects"
    schemas: str = "penstock-data/schemas"  # a folder, or glue
    active_partitions: int = 500  # of one flush of a delivery stream
    partition_keys: dict[str, str] = {}  # template or JSON path, by export identifier
    lambdas: dict[str, str] = {}  # URL or Python function, by ARN or name of the Lambda function
    lambda_timeout_s: float = 300.0
    environment: dict[str, str] = {}  # AWS_* variables of the driver


class Progress(ABC):
    """How a destination tells what it has done. Totals are kept here and reach the server within a second."""

    @abstractmethod
    def delivered(self, next_sequence: int, messages: int, payload_bytes: int) -> None:
        """Everything before `next_sequence` is confirmed by the destination; so many of it just now.

        Raises Cancelled when the work is to stop.
        """

    @abstractmethod
    def skipped(self, next_sequence: int, reason: str) -> None:
        """The message before `next_sequence` can never be delivered and is passed over."""

    def working(self) -> None:  # noqa: B027
        """Nothing to tell yet, but it may take long. Raises Cancelled when the work is to stop."""

    def failed(self, records: int) -> None:  # noqa: B027
        """So many of what is delivered next went to the error output. Only delivery streams have one."""

    def stored(self) -> None:  # noqa: B027
        """An object is there, or may be: from now on the flush must make the same names again."""

    def uploading(self, done_bytes: int, total_bytes: int) -> None:  # noqa: B027
        """How far a single long upload has come, for those who watch. Most destinations have none."""

    @abstractmethod
    def status(self, message: str) -> None:
        """A message for the export's status stream (JSON)."""


class Destination(ABC):
    """Made anew for each flush, in a thread of an executor; clients are cached per process by the subclass."""

    def __init__(self, flush: Flush, settings: PipelineSettings, server: ServerClient) -> None:
        self.flush = flush
        self.settings = settings
        self.server = server

    @abstractmethod
    def deliver(self, records: Iterator[Record], progress: Progress) -> None:
        """Deliver in order, confirming as far as it goes. Raises DeliveryFailed when it goes no further."""

    def deliver_columns(self, columns: Iterable[Columns], progress: Progress) -> None:
        """The same, for destinations that are faster with many messages at once."""
        self.deliver((record for part in columns for record in part.records()), progress)

    def deliver_frames(self, parts: Iterable[FramePart], progress: Progress) -> None:
        """The same, for destinations that need not tell messages apart. `parts` can be read more than once."""
        self.deliver_columns((part.columns() for part in parts), progress)

    @property
    def config(self) -> Mapping[str, Any]:
        return self.flush.settings


def batches(
    records: Iterable[Record], count_max: int, size_max_bytes: int, size_of: Callable[[Record], int]
) -> Iterator[list[Record]]:
    """Consecutive records, at most so many and so large together; one that is larger stands alone."""
    batch: list[Record] = []
    size_bytes = 0
    for record in records:
        record_bytes = size_of(record)
        if batch and (len(batch) >= count_max or size_bytes + record_bytes > size_max_bytes):
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += record_bytes
    if batch:
        yield batch


def column_batches(
    columns: Iterable[Columns], count_max: int, payload_bytes_max: int
) -> Iterator[tuple[Columns, int]]:
    """As `batches`, by columns and with the bytes of the payloads. How the messages were framed does not show."""
    parts: list[Columns] = []
    room, room_bytes = count_max, payload_bytes_max
    for part in columns:
        ends = list(accumulate(map(len, part.payloads), initial=0))
        start, count = 0, len(part.payloads)
        while start < count:
            fitting = bisect_right(ends, ends[start] + room_bytes) - 1
            stop = min(count, fitting, start + room)
            if stop <= start and parts:
                yield _joined(parts), payload_bytes_max - room_bytes
                parts, room, room_bytes = [], count_max, payload_bytes_max
                continue
            stop = max(stop, start + 1)
            parts.append(part.part(start, stop))
            room -= stop - start
            room_bytes -= ends[stop] - ends[start]
            start = stop
    if parts:
        yield _joined(parts), payload_bytes_max - room_bytes


def _joined(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return Columns(
        [number for part in parts for number in part.sequence_numbers],
        [arrival_ms for part in parts for arrival_ms in part.arrivals_ms],
        [payload for part in parts for payload in part.payloads],
    )


def apply_environment(environment: Mapping[str, str]) -> None:
    """AWS variables of the driver, on an executor that has none of its own."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
