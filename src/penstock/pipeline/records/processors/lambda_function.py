"""Lambda: records transformed by a function, which is called with many of them at a time."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from weakref import WeakValueDictionary

from penstock.delivery.settings import DeliverySettings
from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.records.processors.base import MIB, Processed, Processor
from penstock.pipeline.records.processors.lambda_answer import (
    FUNCTION_ERROR,
    FUNCTION_ERROR_TEXT,
    Answers,
    Identified,
)
from penstock.pipeline.records.processors.lambda_calls import Calls
from penstock.pipeline.records.processors.lambda_event import (
    PAYLOAD_BYTES_MAX,
    AnswerTooLarge,
    Event,
    EventRecord,
    InvocationFailed,
    record_payload_bytes,
)
from penstock.pipeline.records.processors.lambda_table import function_for
from penstock.pipeline.records.record import Failed, Record

CONCURRENT_INVOCATIONS_MAX = 5
BUFFER_MIB_DEFAULT = 1.0
BUFFER_MIB_MAX = 3.0
BUFFER_MIB_MIN = 0.2
RETRIES_DEFAULT = 3
RETRIES_MAX = 300
PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
ENVELOPE_BYTES_MAX = 4096  # of the payload, besides the records

logger = logging.getLogger(__name__)


class _Slots(threading.BoundedSemaphore):
    """Flushes of the same delivery stream with the same function share them, in the same process."""


_slots_lock = threading.Lock()
_slots: WeakValueDictionary[tuple[str, str], _Slots] = WeakValueDictionary()


class LambdaFunction(Processor):
    may_differ = True

    def __init__(
        self,
        parameters: Mapping[str, str],
        delivery: DeliverySettings,
        settings: PipelineSettings,
        partitioned: bool = False,
        pause: Callable[[float], None] | None = None,
        still_wanted: Callable[[], None] = lambda: None,
    ) -> None:
        """With `partitioned`, the function's partition keys count. `still_wanted` raises when nobody waits any more."""
        self._arn = parameters.get("LambdaArn", "")
        self._delivery = delivery
        self._function = function_for(self._arn, settings)
        self._answers = Answers(self._arn, partitioned)
        self._retries = _clamped(parameters.get("NumberOfRetries"), RETRIES_DEFAULT, 0, RETRIES_MAX)
        buffer_mib = parameters.get("BufferSizeInMBs")
        self._buffer_bytes = int(
            _clamped(buffer_mib, BUFFER_MIB_DEFAULT, BUFFER_MIB_MIN, BUFFER_MIB_MAX) * MIB
        )
        self.batch_bytes = CONCURRENT_INVOCATIONS_MAX * self._buffer_bytes
        self._slots = _slots_of(delivery.arn, self._arn)
        self._pause = pause
        self._still_wanted = still_wanted
        self._sequence = -1
        self._sub_index = 0

    def process(self, records: list[Record]) -> Processed:
        done: list[Record] = []
        failed: list[Failed] = []
        batches = list(self._batches(records, failed))
        calls = Calls(CONCURRENT_INVOCATIONS_MAX, self._still_wanted)
        for transformed, failures in calls.results(partial(self._transform, calls), batches):
            done += transformed
            failed += failures
        return done, failed

    def _batches(self, records: list[Record], failed: list[Failed]) -> Iterator[list[Identified]]:
        batch: list[Identified] = []
        data_bytes = payload_bytes = 0
        for record in records:
            record_id = self._record_id(record)
            size_bytes, added_bytes = len(record.data), record_payload_bytes(record.data)
            if added_bytes > PAYLOAD_BYTES_MAX - ENVELOPE_BYTES_MAX:
                text = (
                    f"The record is too large for a payload of {PAYLOAD_BYTES_MAX} bytes: {size_bytes} bytes."
                )
                failed.append(self._answers.failure(record, FUNCTION_ERROR, text, 1))
                continue
            if batch and (
                data_bytes + size_bytes > self._buffer_bytes
                or payload_bytes + added_bytes > PAYLOAD_BYTES_MAX - ENVELOPE_BYTES_MAX
            ):
                yield batch
                batch, data_bytes, payload_bytes = [], 0, 0
            batch.append((record_id, record))
            data_bytes += size_bytes
            payload_bytes += added_bytes
        if batch:
            yield batch

    def _record_id(self, record: Record) -> str:
        """The same whenever the record is tried again. Sub-records of a record come one after another."""
        self._sub_index = self._sub_index + 1 if record.sequence == self._sequence else 0
        self._sequence = record.sequence
        return f"{record.sequence:020}{self._sub_index:010}"

    def _transform(self, calls: Calls, batch: Sequence[Identified]) -> Processed:
        pause = calls.pause if self._pause is None else self._pause
        attempts = 0
        while True:
            attempts += 1
            try:
                with self._slots:
                    calls.check()
                    answer = self._function.invoke(self._event(batch))
                return self._answers.outcome(batch, answer, attempts)
            except AnswerTooLarge as error:
                if len(batch) > 1:
                    return self._halves(calls, batch)
                reason = str(error)
            except InvocationFailed as error:
                reason = str(error)
            calls.check()
            if attempts > self._retries:
                return [], self._given_up(batch, reason, attempts)
            pause(min(PAUSE_FIRST_S * 2 ** (attempts - 1), PAUSE_MAX_S))

    def _halves(self, calls: Calls, batch: Sequence[Identified]) -> Processed:
        middle = len(batch) // 2
        first, first_failed = self._transform(calls, batch[:middle])
        second, second_failed = self._transform(calls, batch[middle:])
        return first + second, first_failed + second_failed

    def _given_up(self, batch: Sequence[Identified], reason: str, attempts: int) -> list[Failed]:
        text = f"{self._arn}: {len(batch)} records of {self._delivery.name} failed after {attempts} attempts"
        logger.warning("%s: %s", text, reason)
        message = f"{FUNCTION_ERROR_TEXT} {reason}".rstrip()
        return [self._answers.failure(record, FUNCTION_ERROR, message, attempts) for _, record in batch]

    def _event(self, batch: Sequence[Identified]) -> Event:
        return Event(
            invocation_id=str(uuid.uuid4()),  # AWS makes one for each attempt
            delivery_stream_arn=self._delivery.arn,
            region=self._delivery.region,
            records=[EventRecord(record_id, record.arrival_ms, record.data) for record_id, record in batch],
        )


def _slots_of(delivery_arn: str, lambda_arn: str) -> _Slots:
    """Calls that were left behind keep theirs until they end; those of another function need not wait for that."""
    key = (delivery_arn, lambda_arn)
    with _slots_lock:
        slots = _slots.get(key)
        if slots is None:
            slots = _slots[key] = _Slots(CONCURRENT_INVOCATIONS_MAX)
        return slots


def _clamped(text: str | None, default: float, lowest: float, highest: float) -> float:
    """AWS takes whatever number it is given."""
    try:
        number = float(text) if text is not None else default
    except ValueError:
        number = default
    return max(lowest, min(number, highest))
