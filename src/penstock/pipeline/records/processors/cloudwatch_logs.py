"""CloudWatchLogProcessing: the messages of the log events, without what surrounds them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.pipeline.records.half_characters import decoded_whole
from penstock.pipeline.records.processors.base import DECOMPRESSION_FAILED, Processed, Processor, with_data
from penstock.pipeline.records.processors.decompression import FAILURE_CODE
from penstock.pipeline.records.record import Failed, Record

CONTROL_MESSAGE = "CONTROL_MESSAGE"


class _LogEvent(msgspec.Struct):
    message: str


class _Envelope(msgspec.Struct, rename="camel"):
    message_type: str
    log_events: list[_LogEvent]


class CloudWatchLogs(Processor):
    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._extracts = parameters.get("DataMessageExtraction", "true").lower() == "true"
        self._decoder = msgspec.json.Decoder(_Envelope)

    def process(self, records: list[Record]) -> Processed:
        if not self._extracts:
            return records, []
        done: list[Record] = []
        failed: list[Failed] = []
        for record in records:
            try:
                envelope = decoded_whole(self._decoder.decode, record.data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                # AWS has no output type of its own for this.
                text = f"the record is not what CloudWatch Logs sends: {error}"
                failed.append(Failed(record, DECOMPRESSION_FAILED, FAILURE_CODE, text))
                continue
            # CloudWatch Logs sends these to find out whether somebody is there.
            if envelope.message_type != CONTROL_MESSAGE and envelope.log_events:
                lines = "".join([f"{event.message}\n" for event in envelope.log_events])
                done.append(with_data(record, lines.encode()))
        return done, failed
