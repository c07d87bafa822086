"""From stored messages to records as they were put."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.delivery.sealing import Opener
from penstock.pipeline.destinations.base import Columns, FramePart
from penstock.pipeline.records.record import Record


class Tally:
    """How much a flush has, counted while it is read."""

    def __init__(self) -> None:
        self.messages = 0
        self.payload_bytes = 0

    def frames(self, parts: Iterable[FramePart]) -> Iterator[memoryview]:
        """The records of whole frames, end to end, untouched."""
        for part in parts:
            data = part.data
            self.messages += part.messages
            self.payload_bytes += len(data)
            yield data

    def columns(self, columns: Iterable[Columns], opener: Opener) -> Iterator[Columns]:
        """Messages with their payloads as they were put."""
        for part in columns:
            opened = part._replace(payloads=opener.open(part.sequence_numbers, part.payloads))
            self.messages += len(opened.payloads)
            self.payload_bytes += sum(map(len, opened.payloads))
            yield opened


def record_batches(columns: Iterable[Columns]) -> Iterator[list[Record]]:
    for numbers, arrivals_ms, payloads in columns:
        yield list(map(Record, numbers, arrivals_ms, payloads, payloads))


def joined(batches: Iterable[list[Record]]) -> Iterator[bytes]:
    """Records end to end, as objects hold them."""
    for batch in batches:
        yield b"".join([record.data for record in batch])
