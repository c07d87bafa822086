"""What a processor is: records in, records and failures out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from penstock.pipeline.records.record import Failed, Record

MIB = 1024 * 1024
PROCESSING_FAILED = "processing-failed"
DECOMPRESSION_FAILED = "decompression-failed"

Processed = tuple[list[Record], list[Failed]]


class Processor(ABC):
    """Made anew for each flush, and given its records in order."""

    batch_bytes = 4 * MIB  # of data, as much as it is best given at a time
    may_differ = False  # what becomes of a record may be something else when the flush is tried again

    @abstractmethod
    def process(self, records: list[Record]) -> Processed:
        """What becomes of the records, in their order, and those that go to the error output instead."""


def parameters_of(processor: Mapping[str, Any]) -> dict[str, str]:
    return {
        str(parameter["ParameterName"]): str(parameter["ParameterValue"])
        for parameter in processor.get("Parameters") or []
    }


def with_data(record: Record, data: bytes) -> Record:
    """As `record._replace(data=data)`, in less than half the time."""
    sequence, arrival_ms, _, raw, query_keys, lambda_keys = record
    return Record(sequence, arrival_ms, data, raw, query_keys, lambda_keys)
