"""What the pipeline must know of a delivery stream. Travels with every flush, as it was when the flush was planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

EXPORT_IDENTIFIER = "delivery"
BACKUP_MEMBERS = ("S3BackupMode", "S3BackupConfiguration", "S3BackupDescription")


class DataKey(msgspec.Struct, frozen=True):
    """Records from `first_sequence` on are sealed with this key; with none if it is empty."""

    first_sequence: int
    key: bytes

    def __repr__(self) -> str:
        """Keys are not for logs."""
        return f"DataKey(first_sequence={self.first_sequence}, key={'hidden' if self.key else 'none'})"


class DeliverySettings(msgspec.Struct, frozen=True):
    arn: str
    name: str
    account: str
    region: str
    version: str  # VersionId, a part of object names
    buffer_bytes: int
    interval_ms: int
    destination: str  # ExtendedS3, Redshift, ...: as its description is called
    config: dict[str, Any]  # the destination's configuration by Firehose's names, with the defaults filled in
    sql: str = ""  # the SparkSQL transform, if there is one
    identifier: str = EXPORT_IDENTIFIER
    data_keys: list[DataKey] = []  # added when a flush is handed out, never stored


def conversion_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The configuration of format conversion, if it is on. Where nothing is said it is."""
    conversion: Mapping[str, Any] | None = config.get("DataFormatConversionConfiguration")
    return conversion if conversion and conversion.get("Enabled", True) else None


def needs_spark_sql(settings: Mapping[str, Any]) -> bool:
    """Of an export or flush, DeliverySettings as they travel."""
    return bool(settings.get("sql")) or conversion_of(settings.get("config") or {}) is not None


def calls_functions(settings: Mapping[str, Any]) -> bool:
    """Of an export or flush as above. Functions may take minutes, and yet nothing be wrong."""
    processing = (settings.get("config") or {}).get("ProcessingConfiguration") or {}
    types = {processor["Type"] for processor in processing.get("Processors") or []}
    return bool(processing.get("Enabled")) and "Lambda" in types


def with_backup_of(settings: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a flush that keeps them, but for the backup: where that goes can be corrected until it is there."""
    if settings.get("destination") != present.get("destination"):
        return dict(settings)
    config = {name: value for name, value in settings["config"].items() if name not in BACKUP_MEMBERS}
    backup = {name: value for name, value in present["config"].items() if name in BACKUP_MEMBERS}
    return {**settings, "config": {**config, **backup}}
