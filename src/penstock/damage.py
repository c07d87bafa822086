"""Damaged messages: looked for when a pipeline met some, so that the log hands them out no more, and counted."""

from __future__ import annotations

import logging

from penstock.errors import CorruptMessages, PenstockError
from penstock.log.stream import Stream

logger = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024


def damaged_count(stream: Stream, first: int, behind: int) -> int:
    """Of numbers that were given out, how many are known to be damaged, or gone with the file they were in.

    Not those between segments: a number is also missing there if its append failed, and then nothing is lost.
    """
    gaps = [gap for segment in stream.segments for gap in segment.gaps]
    damaged = sum(max(0, min(gap.next_readable, behind) - max(gap.first, first)) for gap in gaps)
    return damaged + max(0, min(stream.oldest_sequence, behind) - first)


def find_damage(stream: Stream, first: int, behind: int) -> None:
    """Reads the whole range: not for the event loop."""
    sequence = first
    while sequence < behind:
        try:
            reading = stream.read(sequence, behind - sequence, READ_BYTES)
        except CorruptMessages as error:
            logger.error("stream %s: %s", stream.definition.name, error)
            sequence = error.next_readable
        except PenstockError as error:
            logger.error("stream %s: %s", stream.definition.name, error)
            return
        else:
            if reading.next_sequence <= sequence:
                return
            sequence = reading.next_sequence
