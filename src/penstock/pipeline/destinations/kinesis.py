"""Kinesis Data Streams: one message is one record, in calls of PutRecords."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from penstock.errors import ConfigError
from penstock.flush import Flush
from penstock.pipeline import aws
from penstock.pipeline.destinations.answers import AnsweredBatch
from penstock.pipeline.destinations.base import (
    DeliveryFailed,
    Destination,
    PipelineSettings,
    Progress,
    Record,
    batches,
)
from penstock.pipeline.partition_key import PartitionKey, random_key
from penstock.pipeline.server_client import ServerClient
from penstock.pipeline.shards import Knowledge, Load, knowledge_of

BATCH_SIZE_MAX = 500
# The service takes 10 MiB since late 2025; the half of it was the limit before, and still is elsewhere.
BATCH_BYTES_MAX = 5 * 1024 * 1024
RECORD_BYTES_MAX = 10 * 1024 * 1024
# Every stream takes records up to this size. Above, it depends on the stream, and a refusal is about the record.
RECORD_BYTES_ALWAYS = 1024 * 1024
KEY_BYTES_MAX = 4 * 256

_RECORD_REFUSED = {"ValidationException", "InvalidArgumentException"}
_THROTTLED = {
    "ProvisionedThroughputExceededException",
    "KMSThrottlingException",
    "LimitExceededException",
    "ThrottlingException",
}


class Kinesis(Destination):
    def __init__(self, flush: Flush, settings: PipelineSettings, server: ServerClient) -> None:
        super().__init__(flush, settings, server)
        self._stream = str(self.config["kinesisStreamName"])
        self._delay_s = settings.kinesis_inter_call_delay_ms / 1000
        self._key_of = self._partition_key()

    def deliver(self, records: Iterator[Record], progress: Progress) -> None:
        count_max = min(int(self.config.get("batchSize", BATCH_SIZE_MAX)), BATCH_SIZE_MAX)
        for batch in batches(records, count_max, BATCH_BYTES_MAX, _size_in_batch):
            AnsweredBatch(batch, progress).deliver(self._put)

    def _partition_key(self) -> PartitionKey | None:
        template = self.settings.partition_keys.get(self.flush.identifier)
        if template is None:
            return None
        try:
            return PartitionKey(template, self.flush.stream)
        except ConfigError as error:
            raise DeliveryFailed(str(error), permanent=True) from error

    def _put(self, batch: AnsweredBatch) -> str:
        """One call with everything that is open. Returns why some of it still is."""
        client = aws.client("kinesis", self.settings)
        with aws.failures(f"cannot put records into {self._stream}"):
            try:
                knowledge = knowledge_of(client, self._stream) if self._delay_s else None
                records, entries = self._entries(batch, knowledge)
                if not entries:
                    return ""
                answer = client.put_records(StreamName=self._stream, Records=entries)
            except ClientError as error:
                return self._call_refused(error, batch)
        return _note_answers(batch, records, answer["Records"])

    def _entries(
        self, batch: AnsweredBatch, knowledge: Knowledge | None
    ) -> tuple[list[Record], list[dict[str, Any]]]:
        """What to send now: waits until the stream can take it."""
        shards = knowledge.shards if knowledge else None
        records, entries, loads = [], [], []
        for record in batch.open:
            key = self._key_of(record) if self._key_of else random_key()
            entry: dict[str, Any] = {"Data": record.payload, "PartitionKey": key}
            size_bytes = len(record.payload) + len(key.encode())
            if size_bytes > RECORD_BYTES_MAX:
                batch.skip(record, f"{size_bytes} bytes are more than Kinesis takes in a record")
                continue
            if shards is not None and self._key_of is None:
                shard, hash_key = shards.next_hash_key()
                entry["ExplicitHashKey"] = str(hash_key)
                loads.append(Load(shard, size_bytes))
            elif shards is not None:
                loads.append(Load(shards.shard_of(key), size_bytes))
            records.append(record)
            entries.append(entry)
        if entries and knowledge is not None:
            time.sleep(knowledge.reserve(loads, self._delay_s))
        return records, entries

    def _call_refused(self, error: ClientError, batch: AnsweredBatch) -> str:
        code = aws.error_code(error)
        if code == "ResourceNotFoundException":
            raise DeliveryFailed(f"export stream {self._stream} doesn't exist") from error
        if code in _THROTTLED:
            return f"{self._stream} cannot take more at present: {code}"
        [record, *others] = batch.open
        if code in _RECORD_REFUSED and not others and _is_large(record):
            batch.skip(
                record, f"{self._stream} does not take {len(record.payload)} bytes in a record: {error}"
            )
            return ""
        raise error


def _note_answers(batch: AnsweredBatch, records: list[Record], answers: list[dict[str, Any]]) -> str:
    failed: dict[str, str] = {}
    for record, answer in zip(records, answers, strict=True):
        code = answer.get("ErrorCode")
        if not code:
            batch.accept(record)
        elif code in _RECORD_REFUSED:
            batch.skip(record, f"{code}: {answer.get('ErrorMessage', '')}")
        else:
            failed[code] = answer.get("ErrorMessage", "")
    count = len(batch.open)
    return f"{count} of {len(records)} records failed: " + "; ".join(
        f"{code}: {text}" for code, text in failed.items()
    )


def _is_large(record: Record) -> bool:
    return len(record.payload) + KEY_BYTES_MAX > RECORD_BYTES_ALWAYS


def _size_in_batch(record: Record) -> int:
    """A record that its stream may refuse for its size goes in a call of its own: the others are not to suffer."""
    return BATCH_BYTES_MAX if _is_large(record) else len(record.payload) + KEY_BYTES_MAX
