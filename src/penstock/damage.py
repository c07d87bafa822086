"""Damage that a pipeline met: read by the server too, the log then knows it and hands it out no more."""

from __future__ import annotations

import logging

from penstock.errors import CorruptMessages, PenstockError
from penstock.log.stream import Stream

logger = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024


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
