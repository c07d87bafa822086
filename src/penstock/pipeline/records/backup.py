"""S3 backup: every record of a flush as it was put. Stored last, so that it holds up no data, and read again for it."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.delivery.sealing import Opener
from penstock.pipeline.destinations.base import DeliveryFailed, FramePart
from penstock.pipeline.records.compression import Buffer
from penstock.pipeline.records.objects import FlushObjects
from penstock.pipeline.records.reading import Tally


def back_up(objects: FlushObjects, parts: Iterable[FramePart], opener: Opener, messages: int) -> None:
    """If somebody wants that. `messages` is how many there were when the flush was read for its data."""
    target = objects.backup_target
    if target is None or not messages:
        return
    tally = Tally()
    chunks: Iterable[Buffer]
    if opener.opens_nothing:
        chunks = tally.frames(parts)
    else:
        columns = tally.columns((part.columns() for part in parts), opener)
        chunks = (b"".join(part.payloads) for part in columns)
    objects.put_backup(chunks, target)
    if tally.messages != messages:  # some were deleted meanwhile, or others are to be passed over
        raise DeliveryFailed(f"{messages} records were delivered, but {tally.messages} are in the backup")
