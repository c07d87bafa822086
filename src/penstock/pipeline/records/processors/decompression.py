"""Decompression: gzip, as CloudWatch Logs sends it. Any producer may."""

from __future__ import annotations

from collections.abc import Mapping

from isal import isal_zlib

from penstock.pipeline.destinations.base import DeliveryFailed
from penstock.pipeline.records.processors.base import (
    DECOMPRESSION_FAILED,
    MIB,
    Processed,
    Processor,
    with_data,
)
from penstock.pipeline.records.record import Failed, Record

# A record of a megabyte can hold a gigabyte of zeros.
DECOMPRESSED_BYTES_MAX = 64 * MIB
FAILURE_CODE = "Decompression failed."

_GZIP_WBITS = 31
_GZIP_MAGIC = b"\x1f\x8b"


class Decompression(Processor):
    batch_bytes = MIB // 16  # at worst a thousandth of what comes out

    def __init__(self, parameters: Mapping[str, str]) -> None:
        compression = parameters.get("CompressionFormat", "GZIP")
        if compression != "GZIP":
            text = f"records cannot be decompressed from {compression!r}; set CompressionFormat to GZIP"
            raise DeliveryFailed(text, permanent=True)

    def process(self, records: list[Record]) -> Processed:
        done: list[Record] = []
        failed: list[Failed] = []
        for record in records:
            try:
                data = gunzip(record.data)
            except (isal_zlib.IsalError, ValueError) as error:  # type: ignore[misc]  # its stubs call the class a value
                failed.append(Failed(record, DECOMPRESSION_FAILED, FAILURE_CODE, str(error)))
            else:
                done.append(with_data(record, data))
        return done, failed


def gunzip(compressed: bytes) -> bytes:
    """All members of a gzip file. Raises ValueError or isal_zlib.IsalError."""
    parts: list[bytes] = []
    room_bytes = DECOMPRESSED_BYTES_MAX
    while True:
        if not compressed.startswith(_GZIP_MAGIC):
            raise ValueError("the data is not gzip")
        member = isal_zlib.decompressobj(_GZIP_WBITS)
        # One byte more than may be, to tell apart what just fits and what does not.
        part = member.decompress(compressed, room_bytes + 1)
        room_bytes -= len(part)
        if room_bytes < 0:
            raise ValueError(f"the record is larger than {DECOMPRESSED_BYTES_MAX} bytes when decompressed")
        if not member.eof:
            raise ValueError("the gzip data is incomplete")
        parts.append(part)
        compressed = member.unused_data
        if not compressed:
            return part if len(parts) == 1 else b"".join(parts)
