"""What DescribeDeliveryStream shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.delivery.destinations import DESTINATIONS, EXTENDED_S3, S3_MEMBERS, Config, filled
from penstock.delivery.stored import DESTINATION_ID, EncryptionStatus, Failure, StoredDelivery

_SHOWN_NAMES = {
    "S3Configuration": "S3DestinationDescription",
    "S3BackupConfiguration": "S3BackupDescription",
    "VpcConfiguration": "VpcConfigurationDescription",
}
# Members of serializers and deserializers that are not shown when they have these values.
_UNSHOWN: Config = {
    "ConvertDotsInJsonKeysToUnderscores": False,
    "CaseInsensitive": True,
    "BlockSizeBytes": 268435456,
    "PageSizeBytes": 1048576,
    "EnableDictionaryCompression": False,
    "MaxPaddingBytes": 0,
    "WriterVersion": "V1",
    "Compression": "SNAPPY",
    "StripeSizeBytes": 67108864,
    "RowIndexStride": 10000,
    "EnablePadding": False,
    "PaddingTolerance": 0.05,
    "BloomFilterFalsePositiveProbability": 0.05,
    "DictionaryKeyThreshold": 0,
    "FormatVersion": "V0_12",
}
_SOURCES = {
    "DirectPut": "DirectPutSourceDescription",
    "KinesisStreamAsSource": "KinesisStreamSourceDescription",
    "MSKAsSource": "MSKSourceDescription",
    "DatabaseAsSource": "DatabaseSourceDescription",
}


def describe(record: StoredDelivery) -> dict[str, Any]:
    """The DeliveryStreamDescription."""
    description: dict[str, Any] = {
        "DeliveryStreamName": record.name,
        "DeliveryStreamARN": record.arn,
        "DeliveryStreamStatus": record.status.value,
    }
    if record.failure is not None:
        description["FailureDescription"] = _failure(record.failure)
    if record.source_type == "DirectPut":
        description["DeliveryStreamEncryptionConfiguration"] = _encryption(record)
    description |= {
        "DeliveryStreamType": record.source_type,
        "VersionId": str(record.version),
        "CreateTimestamp": record.created_ms / 1000,
    }
    if record.updated_ms is not None:
        description["LastUpdateTimestamp"] = record.updated_ms / 1000
    if record.source is not None:
        description["Source"] = {_SOURCES[record.source_type]: _source(record)}
    description["Destinations"] = [_destination(record)]
    description["HasMoreDestinations"] = False
    return description


def _failure(failure: Failure) -> dict[str, str]:
    return {"Type": failure.type, "Details": failure.details}


def _encryption(record: StoredDelivery) -> dict[str, Any]:
    encryption = record.encryption
    shown: dict[str, Any] = {}
    if encryption.status is not EncryptionStatus.DISABLED:
        if encryption.key_arn is not None:
            shown["KeyARN"] = encryption.key_arn
        if encryption.key_type is not None:
            shown["KeyType"] = encryption.key_type
    shown["Status"] = encryption.status.value
    if encryption.failure is not None:
        shown["FailureDescription"] = _failure(encryption.failure)
    return shown


def _source(record: StoredDelivery) -> dict[str, Any]:
    source = dict(record.source or {})
    if record.source_type != "DirectPut":
        source["DeliveryStartTimestamp"] = record.created_ms / 1000
    return source


def _destination(record: StoredDelivery) -> dict[str, Any]:
    kind = record.destination
    complete = filled(kind, record.config)
    shown: dict[str, Any] = {"DestinationId": DESTINATION_ID}
    if kind == EXTENDED_S3:
        shown["S3DestinationDescription"] = _only(complete, S3_MEMBERS)
    shown[f"{kind}DestinationDescription"] = _shown(kind, complete)
    return shown


def _only(config: Config, names: tuple[str, ...]) -> Config:
    return {name: config[name] for name in names if name in config}


def _shown(kind: str, complete: Config) -> Config:
    secrets = DESTINATIONS[kind].secrets
    shown = {_SHOWN_NAMES.get(name, name): value for name, value in complete.items() if name not in secrets}
    if "EndpointConfiguration" in shown:
        shown["EndpointConfiguration"] = _only(shown["EndpointConfiguration"], ("Url", "Name"))
    if "VpcConfigurationDescription" in shown:
        shown["VpcConfigurationDescription"] = {
            **shown["VpcConfigurationDescription"],
            "VpcId": "vpc-00000000",
        }
    if "DataFormatConversionConfiguration" in shown:
        shown["DataFormatConversionConfiguration"] = _shown_conversion(
            shown["DataFormatConversionConfiguration"]
        )
    return shown


def _shown_conversion(conversion: Config) -> Config:
    shown = dict(conversion)
    for block, part in (
        ("InputFormatConfiguration", "Deserializer"),
        ("OutputFormatConfiguration", "Serializer"),
    ):
        formats = (shown.get(block) or {}).get(part)
        if formats is not None:
            shown[block] = {part: {name: _without_defaults(serde) for name, serde in formats.items()}}
    return shown


def _without_defaults(serde: Mapping[str, Any]) -> Config:
    return {name: value for name, value in serde.items() if _UNSHOWN.get(name, serde) != value}
