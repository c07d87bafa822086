"""What runs on the executors: flushes in, outcomes out, each flush reported as soon as something is known of it."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.flush import Flush, Outcome, ReportAnswer, batch_size
from penstock.log.frame import BadFrame
from penstock.pipeline.destinations import destination_for
from penstock.pipeline.destinations.base import (
    Cancelled,
    DeliveryFailed,
    FramePart,
    PipelineSettings,
    Progress,
    apply_environment,
)
from penstock.pipeline.server_client import ServerClient, ServerLost

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 0.5
FREEZE_TASKS = 3

_tasks_seen = 0


class Task(msgspec.Struct):
    """All that an executor must know besides the flushes."""

    server_url: str
    token: str
    pipeline: str
    threads: int
    settings: PipelineSettings


class Reporter(Progress):
    """Progress of one flush. Reports on its own after each batch, twice a second, and at the end."""

    def __init__(self, flush: Flush, server: ServerClient, pipeline: str) -> None:
        self._flush = flush
        self._server = server
        self._pipeline = pipeline
        self._reported_s = time.monotonic()
        # Whoever kills us may cost one batch that is delivered twice, and no more.
        self._unreported_max = batch_size(flush.kind, flush.settings)
        self.outcome = Outcome(flush=flush.id, attempt=flush.attempt, next=flush.first)

    def delivered(self, next_sequence: int, messages: int, payload_bytes: int) -> None:
        self.outcome.next = max(self.outcome.next, next_sequence)
        self.outcome.messages += messages
        self.outcome.payload_bytes += payload_bytes
        self._maybe_report()

    def working(self) -> None:
        self._maybe_report()

    def failed(self, records: int) -> None:
        self.outcome.failed_records += records

    def stored(self) -> None:
        self.outcome.objects += 1

    def uploading(self, done_bytes: int, total_bytes: int) -> None:
        self.outcome.upload_bytes, self.outcome.upload_total_bytes = done_bytes, total_bytes
        self._maybe_report()

    def skipped(self, next_sequence: int, reason: str) -> None:
        self.outcome.next = max(self.outcome.next, next_sequence)
        self.outcome.skipped += 1
        self.outcome.error = f"message {next_sequence - 1} was skipped: {reason}"
        self._maybe_report()

    def status(self, message: str) -> None:
        self.outcome.status_messages.append(message)
        self._report()

    def begin(self) -> int:
        """Where to start: another attempt may have come further, or the flush may be gone."""
        self._report()
        return self.outcome.next

    def finish(self) -> None:
        self.outcome.done = True
        self._send()

    def _maybe_report(self) -> None:
        unreported = self.outcome.messages + self.outcome.skipped
        if unreported >= self._unreported_max or time.monotonic() - self._reported_s >= REPORT_INTERVAL_S:
            self._report()

    def _report(self) -> None:
        answer = self._send()
        if self._flush.id in answer.cancelled:
            raise Cancelled("the export was deleted, paused or moved")
        self.outcome.next = max(self.outcome.next, answer.positions.get(self._flush.id, 0))

    def _send(self) -> ReportAnswer:
        outcome = self.outcome
        self._reported_s = time.monotonic()
        answer = self._server.report(self._pipeline, [outcome])
        outcome.messages = outcome.payload_bytes = outcome.skipped = outcome.failed_records = 0
        outcome.statuses_before += len(outcome.status_messages)
        outcome.status_messages = []
        return answer


def deliver_flush(flush: Flush, task: Task, server: ServerClient) -> Outcome | None:
    """One attempt at one flush, from the first message to the last report: if that is not heard, it is returned."""
    reporter = Reporter(flush, server, task.pipeline)
    outcome = reporter.outcome
    with failure_noted(flush, outcome):
        first = reporter.begin()
        destination = destination_for(flush, task.settings, server)
        destination.deliver_frames(frame_parts(server, flush, first, reporter.begin), reporter)
        # Numbers behind the last message that could be read hold nothing: they are done too.
        outcome.next = flush.next
    try:
        reporter.finish()
    except ServerLost as error:
        logger.warning("flush %d: %s", flush.id, error)
        return outcome
    return None


class Failure(Protocol):
    """Whatever tells how an attempt has failed."""

    error: str
    permanent: bool
    damaged: bool


@contextmanager
def failure_noted(flush: Flush, failure: Failure) -> Iterator[None]:
    """Whatever goes wrong inside is noted, and goes no further: the flush must go back, with the reason."""
    try:
        yield
    except Cancelled:
        logger.info("flush %d of %s was cancelled", flush.id, flush.stream)
        failure.error = ""
    except DeliveryFailed as error:
        failure.error, failure.permanent = str(error), error.permanent
    except BadFrame as error:
        failure.error, failure.damaged = f"stored messages are damaged: {error}", True
    except ServerLost as error:
        failure.error = str(error)
    except Exception as error:  # a fault of ours: the flush must be tried again
        logger.exception("flush %d of %s failed", flush.id, flush.stream)
        failure.error = f"{type(error).__name__}: {error}"


def frame_parts(
    server: ServerClient, flush: Flush, first: int, still_wanted: Callable[[], object]
) -> Iterable[FramePart]:
    """The messages of a flush, read anew by each who iterates over them, so that nobody need hold them.

    Raises Cancelled where some are missing because others had them all before us.
    """
    return _FrameParts(server, flush, first, still_wanted)


@dataclass(frozen=True)
class _FrameParts:
    server: ServerClient
    flush: Flush
    first: int
    still_wanted: Callable[[], object]

    def __iter__(self) -> Iterator[FramePart]:
        following = first = self.first
        for frame in self.server.frames(self.flush.stream, first, self.flush.next):
            start = max(first - frame.first_sequence, 0)
            stop = min(self.flush.next - frame.first_sequence, frame.count)
            if start < stop:
                if frame.first_sequence + start > following:
                    self.still_wanted()
                following = frame.first_sequence + stop
                yield FramePart(frame, start, stop)
        if following < self.flush.next:
            self.still_wanted()


def deliver_partition(encoded_task: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of the Spark job: rows of encoded flushes in, outcomes that the server has not heard out."""
    import pyarrow

    settle_worker()
    task = msgspec.json.decode(encoded_task, type=Task)
    apply_environment(task.settings.environment)
    rows = [row for batch in batches for row in batch.column("flush").to_pylist()]
    flushes = [msgspec.json.decode(row, type=Flush) for row in rows if row]
    schema = pyarrow.schema([("outcome", pyarrow.binary())])
    if not flushes:  # a job to warm up the worker
        for name in ("http", "s3objects"):
            import_module(f"penstock.pipeline.destinations.{name}")
        return
    with (
        closing(ServerClient(task.server_url, task.token)) as server,
        ThreadPoolExecutor(min(task.threads, len(flushes)), "penstock-deliver") as threads,
    ):
        for outcome in threads.map(lambda flush: deliver_flush(flush, task, server), flushes):
            if outcome is None:
                continue
            yield pyarrow.RecordBatch.from_pylist([{"outcome": msgspec.json.encode(outcome)}], schema=schema)


def settle_worker() -> None:
    """PySpark's worker collects garbage after each task, over every imported library: move those out of its sight."""
    global _tasks_seen
    _tasks_seen += 1
    if _tasks_seen <= FREEZE_TASKS:
        gc.collect()
        gc.freeze()


class Heartbeat:
    """Keeps the leases of a pipeline alive while its jobs run."""

    def __init__(
        self, server: ServerClient, pipeline: str, interval_s: float, held: Callable[[], list[int]]
    ) -> None:
        self._server = server
        self._pipeline = pipeline
        self._interval_s = interval_s
        self._held = held
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="penstock-heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._server.renew(self._pipeline, self._held())
            except ServerLost as error:
                logger.warning("%s", error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
