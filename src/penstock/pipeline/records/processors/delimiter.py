"""AppendDelimiterToRecord: a line for each record."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.pipeline.records.processors.base import Processed, Processor, with_data
from penstock.pipeline.records.record import Record

# Parameters pass through JSON, HCL and YAML: what should be a line break often arrives as its escape.
_ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t"}


class AppendDelimiter(Processor):
    def __init__(self, parameters: Mapping[str, str]) -> None:
        text = parameters.get("Delimiter", "\n")
        text = text.replace("\\\\", "\\")
        for escape, character in _ESCAPES.items():
            text = text.replace(escape, character)
        self._delimiter = text.encode()

    def process(self, records: list[Record]) -> Processed:
        delimiter = self._delimiter
        return [
            record if record.data.endswith(delimiter) else with_data(record, record.data + delimiter)
            for record in records
        ], []
