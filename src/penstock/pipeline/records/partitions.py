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


class Places:
    """Which partition each record of a flush belongs to. Partitions are numbered as they are opened."""

    def __init__(self, objects: FlushObjects, active_max: int) -> None:
        self._objects = objects
        self._active_max = active_max
        self._numbers: dict[tuple[str, ...], int] = {}
        self.partitions: list[Partition] = []

    def place(self, record: Record) -> int | Failed:
        """The number of its partition, or why it has none."""
        try:
            values = self._objects.target.prefix.partition(record.query_keys, record.lambda_keys)
            if values not in self._numbers:
                if len(self._numbers) >= self._active_max:
                    return Failed(record, ACTIVE_PARTITION_EXCEEDED, LIMIT_EXCEEDED, LIMIT_EXCEEDED_TEXT)
                self._open(Partition.of(values, record))
        except MissingKey:
            return Failed(record, PROCESSING_FAILED, EXTRACTION_FAILED, MISSING_KEY_TEXT)
        except (CannotEvaluate, ObjectRefused) as error:
            return Failed(record, PROCESSING_FAILED, EXTRACTION_FAILED, str(error))
        return self._numbers[values]

    def _open(self, partition: Partition) -> None:
        check_key(self._objects.longest_data_key(partition))  # or its records would hold up all others
        self._numbers[partition.values] = len(self.partitions)
        self.partitions.append(partition)


class Partitions:
    """The data of each partition, all of a flush: joined early, or small records would take twice the room."""

    def __init__(self, objects: FlushObjects, active_max: int) -> None:
        self._places = Places(objects, active_max)
        self._data: list[list[bytes]] = []

    def add(self, records: list[Record]) -> list[Failed]:
        """Returns those that have no place in any partition."""
        failures = []
        added: dict[int, list[bytes]] = {}
        for record in records:
            place = self._places.place(record)
            if isinstance(place, Failed):
                failures.append(place)
            else:
                added.setdefault(place, []).append(record.data)
        self._data += [[] for _ in range(len(self._data), len(self._places.partitions))]
        for place, parts in added.items():
            self._data[place].append(b"".join(parts))
        return failures

    def __iter__(self) -> Iterator[tuple[Partition, list[bytes]]]:
        """Each with its records, in their order."""
        return zip(self._places.partitions, self._data, strict=True)
