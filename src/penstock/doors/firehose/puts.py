"""PutRecord and PutRecordBatch, the busy operations: bodies decoded straight into records, answers built by hand.

What the typed decoder does not take, and whatever breaks a rule, goes through the generic check, which knows AWS's
words for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from pybase64 import b64decode

from penstock.delivery.delivery import Delivery
from penstock.delivery.errors import ApiError
from penstock.delivery.gate import Gate
from penstock.delivery.service import DeliveryStreams
from penstock.delivery.stored import Status
from penstock.delivery.throughput import Throughput
from penstock.doors.firehose.protocol import decode
from penstock.doors.firehose.validation import Validator
from penstock.errors import MessageTooLarge, PenstockError, StreamNotFound
from penstock.streams import Streams

logger = logging.getLogger(__name__)

RECORD_BYTES_MAX = 1_024_000
BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 4 * 1024 * 1024
SLOW_DOWN = "Slow down."
FAILURES_LOGGED_EVERY_S = 1.0

# Added to a sequence number, so that all have 20 digits and sort as text.
_WIDE = 10**19
_BOOLEANS = {True: "true", False: "false"}


class _Record(msgspec.Struct, gc=False):
    data: str = msgspec.field(name="Data")  # msgspec decodes base64 at a third of the speed of pybase64


class _PutRecord(msgspec.Struct, gc=False):
    name: str = msgspec.field(name="DeliveryStreamName")
    record: _Record = msgspec.field(name="Record")


class _PutRecordBatch(msgspec.Struct, gc=False):
    name: str = msgspec.field(name="DeliveryStreamName")
    records: list[_Record] = msgspec.field(name="Records")


_NOT_USUAL = (msgspec.MsgspecError, ValueError, RecursionError)  # of JSON, of base64, of deep JSON
_decode_record = msgspec.json.Decoder(_PutRecord).decode
_decode_batch = msgspec.json.Decoder(_PutRecordBatch).decode


class _Run(NamedTuple):
    """What became of so many records in a row: numbers from `first_sequence` on, or an error."""

    records: int
    first_sequence: int
    error: PenstockError | None


class _Sink:
    """Hears what became of the records of one request. Stays inside of the gate until it has heard of all."""

    __slots__ = ("_gate", "_untold", "done", "runs")

    def __init__(self, count: int, gate: Gate) -> None:
        self._untold = count
        self._gate = gate
        self.runs: list[_Run] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def appended(self, first_sequence: int, count: int) -> None:
        self._told(_Run(count, first_sequence, None))

    def append_failed(self, count: int, error: PenstockError) -> None:
        self._told(_Run(count, 0, error))

    def _told(self, run: _Run) -> None:
        self.runs.append(run)
        self._untold -= run.records
        if self._untold == 0:
            self._gate.leave()
            if not self.done.done():  # cancelled, if nobody waits any more
                self.done.set_result(None)


class _Stored(NamedTuple):
    stream_key: int
    encrypted: bool
    runs: list[_Run]


class Puts:
    def __init__(
        self, deliveries: DeliveryStreams, streams: Streams, validator: Validator, throughput: Throughput
    ) -> None:
        self._deliveries = deliveries
        self._streams = streams
        self._validator = validator
        self._throughput = throughput
        self._failures_logged_s = float("-inf")

    async def put_record(self, account: str, region: str, body: bytes) -> bytes:
        try:
            request = _decode_record(body)
            name, data = request.name, b64decode(request.record.data, None, True)
        except _NOT_USUAL:
            name, data = self._check_record(body)
        if len(data) > RECORD_BYTES_MAX:
            self._check_record(body)
        delivery = self._find(account, region, name, partial(self._check_record, body))
        if self._throughput.is_limited and not self._throughput.admit(delivery, (len(data),)):
            raise _unavailable(SLOW_DOWN)
        stored = await self._store(delivery, [data])
        run = stored.runs[0]
        if run.error is not None:
            self._log_failures(delivery, 1, 1, run.error)
            raise _as_api_error(delivery, run.error)
        return (
            f'{{"Encrypted":{_BOOLEANS[stored.encrypted]},'
            f'"RecordId":"{stored.stream_key:016x}-{_WIDE + run.first_sequence}"}}'
        ).encode()

    async def put_record_batch(self, account: str, region: str, body: bytes) -> bytes:
        try:
            request = _decode_batch(body)
            name, records = request.name, [b64decode(record.data, None, True) for record in request.records]
        except _NOT_USUAL:
            name, records = self._check_batch(body)
        sizes_bytes = [*map(len, records)]
        if not 0 < len(records) <= BATCH_RECORDS_MAX or max(sizes_bytes) > RECORD_BYTES_MAX:
            self._check_batch(body)
        if sum(sizes_bytes) > BATCH_BYTES_MAX:
            raise ApiError("InvalidArgumentException", "Records size exceeds 4 MB limit")
        delivery = self._find(account, region, name, partial(self._check_batch, body))
        admitted = len(records)
        if self._throughput.is_limited:
            admitted = self._throughput.admit(delivery, sizes_bytes)
        if not admitted:
            return _answer(_Stored(0, delivery.encrypted, []), len(records))
        throttled = len(records) - admitted
        stored = await self._store(delivery, records[:admitted] if throttled else records)
        if len(stored.runs) > 1 or stored.runs[0].error is not None:
            self._look_at_failures(delivery, stored)
        return _answer(stored, throttled)

    # -- from the body to the log -------------------------------------------------------------------

    def _check_record(self, body: bytes) -> tuple[str, bytes]:
        """Raises what AWS answers if something is wrong with the body."""
        request = self._validator.check("PutRecord", decode(body))
        return request["DeliveryStreamName"], request["Record"]["Data"]

    def _check_batch(self, body: bytes) -> tuple[str, list[bytes]]:
        request = self._validator.check("PutRecordBatch", decode(body))
        return request["DeliveryStreamName"], [record["Data"] for record in request["Records"]]

    def _find(self, account: str, region: str, name: str, check: Callable[[], object]) -> Delivery:
        try:
            delivery = self._deliveries.find(account, region, name)
        except ApiError:
            check()  # a name that cannot be is refused in other words
            raise
        if delivery.source_type != "DirectPut":
            raise ApiError(
                "InvalidArgumentException",
                f"This operation is not permitted on {delivery.source_type} delivery stream type.",
            )
        return delivery

    async def _store(self, delivery: Delivery, records: Sequence[bytes]) -> _Stored:
        """Returns when all records are on disk, or are known not to be."""
        gate = delivery.gate
        await gate.enter()
        sink = _Sink(len(records), gate)
        try:
            if delivery.status is not Status.ACTIVE:
                raise _not_found(delivery)
            stream_key, cipher = delivery.stream.key, delivery.cipher
            if cipher is not None:
                records = cipher.seal(records)
        except BaseException:
            gate.leave()
            raise
        # Some clients send all of a batch again if a part of it was refused.
        self._streams.append(delivery.arn, records, sink, all_or_nothing=True)
        await sink.done
        return _Stored(stream_key, cipher is not None, sink.runs)

    # -- failures -----------------------------------------------------------------------------------

    def _look_at_failures(self, delivery: Delivery, stored: _Stored) -> None:
        failed = [run for run in stored.runs if run.error is not None]
        if not failed:
            return
        error = failed[0].error
        if isinstance(error, StreamNotFound):
            raise _not_found(delivery)
        count = sum(run.records for run in stored.runs)
        self._log_failures(delivery, sum(run.records for run in failed), count, error)

    def _log_failures(self, delivery: Delivery, failed: int, count: int, error: PenstockError | None) -> None:
        """Some clients do not look at what became of single records; a disk that stays full fails every put."""
        now_s = time.monotonic()
        if now_s - self._failures_logged_s >= FAILURES_LOGGED_EVERY_S:
            self._failures_logged_s = now_s
            logger.warning(
                "delivery stream %s: %d of %d records refused: %s", delivery.name, failed, count, error
            )


def _not_found(delivery: Delivery) -> ApiError:
    return ApiError(
        "ResourceNotFoundException", f"Firehose {delivery.name} under account {delivery.account} not found."
    )


def _unavailable(message: str) -> ApiError:
    return ApiError("ServiceUnavailableException", message, http_status=503)


def _as_api_error(delivery: Delivery, error: PenstockError) -> ApiError:
    if isinstance(error, StreamNotFound):
        return _not_found(delivery)
    if isinstance(
        error, MessageTooLarge
    ):  # the server was told to take less than AWS: trying again is in vain
        return ApiError("InvalidArgumentException", str(error))
    return _unavailable(str(error))


def _answer(stored: _Stored, throttled: int) -> bytes:
    """Compact, and FailedPutCount in front: clients search the text for it."""
    entries = [_entries(stored.stream_key, run) for run in stored.runs]
    failed = throttled + sum(run.records for run in stored.runs if run.error is not None)
    if throttled:
        entries.append(_failures(throttled, "ServiceUnavailableException", SLOW_DOWN))
    return (
        f'{{"Encrypted":{_BOOLEANS[stored.encrypted]},"FailedPutCount":{failed},'
        f'"RequestResponses":[{",".join(entries)}]}}'
    ).encode()


def _entries(stream_key: int, run: _Run) -> str:
    if run.error is not None:
        too_large = isinstance(run.error, MessageTooLarge)
        code = "InvalidArgumentException" if too_large else "ServiceUnavailableException"
        return _failures(run.records, code, str(run.error))
    opening = f'{{"RecordId":"{stream_key:016x}-'
    first = _WIDE + run.first_sequence
    numbers = f'"}},{opening}'.join(map(str, range(first, first + run.records)))
    return f'{opening}{numbers}"}}'


def _failures(count: int, code: str, message: str) -> str:
    entry = msgspec.json.encode({"ErrorCode": code, "ErrorMessage": message}).decode()
    return ",".join([entry] * count)
