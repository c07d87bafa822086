"""Every failure the domain can report. Each message says what to do next where something can be done."""

from __future__ import annotations


class PenstockError(Exception):
    """Base of all errors that are meant to be read by a user."""


class ConfigError(PenstockError):
    """A setting is wrong; the server does not start."""


class DataDirectoryInUse(PenstockError):
    """Another server holds the lock of the data directory."""


class InvalidRequest(PenstockError):
    """The request breaks a rule that the caller can see."""


class StreamNotFound(PenstockError):
    """No stream has this name (or it was deleted while the request waited)."""


class ExportNotFound(PenstockError):
    """The stream has no export of this name, or there is no such stream."""


class DeliveryNotFound(PenstockError):
    """There is no delivery stream of this name."""


class NotDelivered(PenstockError):
    """What should be delivered now is not, in the time that there was."""


class StreamExists(InvalidRequest):
    """Create met a stream of the same name. User code compares this text: it must not change."""

    def __init__(self) -> None:
        super().__init__("the message stream already exists")


class StreamFull(InvalidRequest):
    """A RejectNewData stream has no room for the message."""


class DiskFull(InvalidRequest):
    """The disk is at its free-space floor: appends are refused until space is freed, reads go on."""


class UpdateNotAllowed(InvalidRequest):
    """An update breaks a rule about the stream's present state."""


class MessageTooLarge(PenstockError):
    """The message can never fit: larger than the stream or than the server's limit."""


class NotEnoughMessages(PenstockError):
    """A read's minimum was not reached in its time."""


class CorruptMessages(PenstockError):
    """Stored messages fail their checksum. `next_readable` is where reading can go on."""

    def __init__(self, first: int, next_readable: int) -> None:
        super().__init__(
            f"messages {first} to {next_readable - 1} are damaged on disk; "
            f"continue reading from sequence number {next_readable}, and run 'penstock log verify'"
        )
        self.first = first
        self.next_readable = next_readable


class ResponseTooLarge(PenstockError):
    """The smallest allowed answer does not fit in a response."""


class MemoryExhausted(PenstockError):
    """Memory streams have used up what the server may give them."""


class StorageFailed(PenstockError):
    """The disk failed a write or a sync. The messages concerned were not acknowledged."""


class UpdateFailed(PenstockError):
    """The catalog could not store an update; the old definition stays in force."""
