"""Dynamic partitioning: the records of a flush, sorted by the keys that the prefix names."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.pipeline.objects import ObjectRefused, check_key
from penstock.pipeline.records.error_output import ACTIVE_PARTITION_EXCEEDED, PROCESSING_FAILED
from penstock.pipeline.records.objects import FlushObjects, Partition
from penstock.pipeline.records.record import Failed, Record
from penstock.prefix import CannotEvaluate, MissingKey

EXTRACTION_FAILED = "DynamicPartitioning.MetadataExtractionFailed"
LIMIT_EXCEEDED = "DynamicPartitioning.ActivePartitionsLimitExceeded"
LIMIT_EXCEEDED_TEXT = "The number of active partitions has exceeded the configured limit"
MISSING_KEY_TEXT = "partitionKeys values must not be null or empty"


class Partitions:
    def __init__(self, objects: FlushObjects, active_max: int) -> None:
        self._objects = objects
        self._active_max = active_max
        self._data: dict[tuple[str, ...], list[bytes]] = {}
        self._partitions: list[Partition] = []

    def add(self, records: list[Record]) -> list[Failed]:
        """Returns those that have no place in any partition."""
        failures = [self._add(record) for record in records]
        return [failed for failed in failures if failed is not None]

    def __iter__(self) -> Iterator[tuple[Partition, list[bytes]]]:
        """Each with its records, in their order."""
        for partition in self._partitions:
            yield partition, self._data[partition.values]

    def _add(self, record: Record) -> Failed | None:
        try:
            values = self._objects.target.prefix.partition(record.query_keys, record.lambda_keys)
            if values not in self._data:
                if len(self._data) >= self._active_max:
                    return Failed(record, ACTIVE_PARTITION_EXCEEDED, LIMIT_EXCEEDED, LIMIT_EXCEEDED_TEXT)
                self._open(Partition.of(values, record))
        except MissingKey:
            return Failed(record, PROCESSING_FAILED, EXTRACTION_FAILED, MISSING_KEY_TEXT)
        except (CannotEvaluate, ObjectRefused) as error:
            return Failed(record, PROCESSING_FAILED, EXTRACTION_FAILED, str(error))
        self._data[values].append(record.data)
        return None

    def _open(self, partition: Partition) -> None:
        check_key(self._objects.data_key(partition))  # or its records would hold up all others
        self._data[partition.values] = []
        self._partitions.append(partition)
