"""The words of the domain, as types that every part shares."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

import msgspec

INT64_MAX = 2**63 - 1


class Persistence(IntEnum):
    FILE = 0
    MEMORY = 1


class StrategyOnFull(IntEnum):
    REJECT_NEW_DATA = 0
    OVERWRITE_OLDEST_DATA = 1


class ExportKind(str, Enum):
    """The five export lists of a Stream Manager definition, by wire key, in the order their statuses are reported;
    and the one export that a delivery stream has."""

    HTTP = "http"
    IOT_ANALYTICS = "iotAnalytics"
    KINESIS = "kinesis"
    IOT_SITEWISE = "IotSitewise"
    S3_TASK_EXECUTOR = "s3TaskExecutor"
    DELIVERY = "delivery"


class Export(msgspec.Struct, frozen=True):
    """One destination of a stream. `settings` holds exactly the fields the client set, by wire key."""

    kind: ExportKind
    settings: dict[str, Any]

    @property
    def identifier(self) -> str:
        return str(self.settings["identifier"])

    @property
    def disabled(self) -> bool:
        return bool(self.settings.get("disabled", False))

    @property
    def start_sequence_number(self) -> int:
        return int(self.settings.get("startSequenceNumber", 0))

    @property
    def status_stream_name(self) -> str | None:
        status_config = self.settings.get("statusConfig") or {}
        return status_config.get("statusStreamName")


class StreamDefinition(msgspec.Struct, frozen=True):
    name: str
    max_size_bytes: int = 256 * 1024 * 1024
    segment_size_bytes: int = 16 * 1024 * 1024
    ttl_ms: int | None = None
    strategy_on_full: StrategyOnFull = StrategyOnFull.REJECT_NEW_DATA
    persistence: Persistence = Persistence.FILE
    flush_on_write: bool = False
    exports: tuple[Export, ...] = ()  # ordered by kind as in ExportKind, then as the client listed them

    @property
    def is_delivery_stream(self) -> bool:
        return any(export.kind is ExportKind.DELIVERY for export in self.exports)


class ExportStatus(msgspec.Struct):
    """What has become of one export: the numbers that describe shows."""

    identifier: str
    last_exported_sequence_number: int = -1
    last_export_time_ms: int = 0
    error_message: str = ""
    exported_bytes: int = 0
    exported_messages: int = 0
    skipped_messages: int = 0  # refused by the destination for good
    lost_messages: int = 0  # deleted from the stream before they were exported
    planned_next: int = 0  # of a delivery stream: what is before is in a flush, or done


class StreamInfo(msgspec.Struct, frozen=True):
    definition: StreamDefinition
    oldest_sequence_number: int
    newest_sequence_number: int
    total_bytes: int
    export_statuses: tuple[ExportStatus, ...]


class Message(msgspec.Struct, frozen=True):
    sequence_number: int
    arrival_ms: int
    payload: bytes
