"""RecordDeAggregation: many records that were put as one."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping

import msgspec

from penstock.pipeline.destinations.base import DeliveryFailed
from penstock.pipeline.records.half_characters import whole_characters
from penstock.pipeline.records.processors.base import MIB, PROCESSING_FAILED, Processed, Processor, with_data
from penstock.pipeline.records.record import Failed, Record

FAILURE_CODE = "RecordDeAggregation.InvalidJson"
AWS_SUB_RECORDS_MAX = 500  # AWS leaves a record whole that holds more

logger = logging.getLogger(__name__)

_values = msgspec.json.Decoder(msgspec.Raw)


class DeAggregation(Processor):
    batch_bytes = MIB  # small sub-records take far more memory than the record

    def __init__(self, parameters: Mapping[str, str]) -> None:
        kind = parameters.get("SubRecordType", "JSON").upper()
        if kind not in ("JSON", "DELIMITED"):
            text = f"records cannot be taken apart as {kind!r}; set SubRecordType to JSON or DELIMITED"
            raise DeliveryFailed(text, permanent=True)
        self._delimiter = _delimiter(parameters) if kind == "DELIMITED" else None
        self._warned = False

    def process(self, records: list[Record]) -> Processed:
        done: list[Record] = []
        failed: list[Failed] = []
        for record in records:
            try:
                parts = self._split(record.data)
            except (msgspec.DecodeError, RecursionError) as error:
                # Whole or not at all: the error output has the record as it was put.
                text = f"the record is not a sequence of JSON texts: {error}"
                failed.append(Failed(record, PROCESSING_FAILED, FAILURE_CODE, text))
                continue
            if len(parts) > AWS_SUB_RECORDS_MAX:
                self._warn(len(parts))
            done += [with_data(record, part) for part in parts]
        return done, failed

    def _split(self, data: bytes) -> list[bytes]:
        if self._delimiter is None:
            return split_json(data)
        return [part for part in data.split(self._delimiter) if part]

    def _warn(self, count: int) -> None:
        if not self._warned:
            logger.warning(
                "a record holds %d sub-records: AWS takes apart %d at most", count, AWS_SUB_RECORDS_MAX
            )
        self._warned = True


def split_json(data: bytes) -> list[bytes]:
    """The JSON texts that stand one after another, with or without white space between. Arrays stay whole."""
    # Despite its name it asks for no line breaks between the texts, and takes those inside of them.
    try:
        return [bytes(value) for value in _values.decode_lines(data)]
    except msgspec.DecodeError:
        whole = whole_characters(data)
        if whole == data:
            raise
    parts = []
    stop = 0
    for value in _values.decode_lines(whole):
        start = whole.index(bytes(value), stop)
        stop = start + len(bytes(value))
        parts.append(data[start:stop])
    return parts


def _delimiter(parameters: Mapping[str, str]) -> bytes:
    try:
        delimiter = base64.b64decode(parameters.get("Delimiter", ""), validate=True)
    except binascii.Error:
        delimiter = b""
    if not delimiter:
        text = "the Delimiter of RecordDeAggregation is not base64; #### is written IyMjIw=="
        raise DeliveryFailed(text, permanent=True)
    return delimiter
