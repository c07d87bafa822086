"""What tests of delivery streams need: a flush of one, its settings, and its records in frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.delivery.settings import DeliverySettings
from penstock.flush import Flush
from penstock.log import frame as frames
from penstock.model import ExportKind
from penstock.pipeline.destinations.base import FramePart

NONCE = "0123456789abcdef"
ARRIVAL_MS = 1_783_951_500_123  # 2026-07-13T14:05:00.123Z
HOUR = "2026/07/13/14/"
TIME = "2026-07-13-14-05-00"
ARN = "arn:aws:firehose:us-east-1:123456789012:deliverystream/clicks"


def delivery_settings(bucket: str = "landing", **config: Any) -> DeliverySettings:
    defaults = {
        "BucketARN": f"arn:aws:s3:::{bucket}",
        "CompressionFormat": "UNCOMPRESSED",
        "S3BackupMode": "Disabled",
    }
    return DeliverySettings(
        arn=ARN,
        name="clicks",
        account="123456789012",
        region="us-east-1",
        version="3",
        buffer_bytes=5 * 1024 * 1024,
        interval_ms=300_000,
        destination="ExtendedS3",
        config={**defaults, **config},
    )


def flush_of(delivery: DeliverySettings, count: int, first: int = 0) -> Flush:
    return Flush(
        id=1,
        stream=delivery.arn,
        identifier=delivery.identifier,
        kind=ExportKind.DELIVERY,
        settings=msgspec.to_builtins(delivery),
        first=first,
        next=first + count,
        planned_ms=ARRIVAL_MS + first,
        nonce=NONCE,
        attempt=1,
    )


def frame_parts(
    records: Sequence[bytes], first: int = 0, frame_records: int = 1000, margin: int = 0
) -> list[FramePart]:
    """All of them, which can be read again."""
    return list(_frame_parts(records, first, frame_records, margin))


def _frame_parts(
    records: Sequence[bytes], first: int, frame_records: int, margin: int
) -> Iterator[FramePart]:
    """Records a millisecond apart; each frame may have more around them, which are of other flushes."""
    for start in range(0, len(records), frame_records):
        held = records[start : start + frame_records]
        padded = [b"of another flush"] * margin + list(held) + [b"of another flush"] * margin
        sequence = first + start
        arrivals = [ARRIVAL_MS + sequence + number for number in range(-margin, len(held) + margin)]
        _, buffers = frames.encode(1, sequence - margin if margin <= sequence else sequence, arrivals, padded)
        frame = frames.decode(b"".join(buffers))
        yield FramePart(frame, margin, margin + len(held))
