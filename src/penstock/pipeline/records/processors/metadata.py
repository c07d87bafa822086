"""MetadataExtraction: partition keys by a jq query."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.pipeline.records.processors.base import PROCESSING_FAILED, Processed, Processor
from penstock.pipeline.records.processors.jq_program import Patience
from penstock.pipeline.records.processors.keys import FAILURE_CODE, BadKeys
from penstock.pipeline.records.processors.query import compiled
from penstock.pipeline.records.record import Failed, Record


class MetadataExtraction(Processor):
    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._query = compiled(parameters.get("MetadataExtractionQuery", ""))
        self._patience = Patience()
        self.may_differ = self._query.may_take_too_long

    def process(self, records: list[Record]) -> Processed:
        done: list[Record] = []
        failed: list[Failed] = []
        answers = self._query.answers(
            [(record.data, record.arrival_ms) for record in records], self._patience
        )
        for record, keys in zip(records, answers, strict=True):
            if isinstance(keys, BadKeys):
                failed.append(Failed(record, PROCESSING_FAILED, FAILURE_CODE, str(keys)))
            else:
                sequence, arrival_ms, data, raw, _, lambda_keys = record
                done.append(Record(sequence, arrival_ms, data, raw, keys, lambda_keys))
        return done, failed
