"""Layer 2: do the parts of a configuration make sense together? Texts are AWS's own where they are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.delivery.destinations import is_on
from penstock.doors.firehose.refusal import refuse
from penstock.doors.firehose.rules_destinations import check_other_destination
from penstock.doors.firehose.rules_s3 import check_extended_s3, check_s3

DIRECT_PUT = "DirectPut"
S3_TYPES = ("S3", "ExtendedS3")
DELIVERED_TYPES = S3_TYPES

# Source type: its block, what AWS's texts call the block, and what they call the type.
SOURCES = {
    "KinesisStreamAsSource": (
        "KinesisStreamSourceConfiguration",
        "KinesisSourceStreamConfig",
        "KinesisStreamAsSource",
    ),
    "MSKAsSource": ("MSKSourceConfiguration", "MSKSourceConfig", "MSK as Source"),
    "DatabaseAsSource": ("DatabaseSourceConfiguration", "DatabaseSourceConfig", "Database as Source"),
}

REQUIRED = {
    "S3": ("RoleARN", "BucketARN"),
    "ExtendedS3": ("RoleARN", "BucketARN"),
    "Redshift": ("RoleARN", "ClusterJDBCURL", "CopyCommand", "S3Configuration"),
    "Elasticsearch": ("RoleARN", "IndexName", "S3Configuration"),
    "Amazonopensearchservice": ("RoleARN", "IndexName", "S3Configuration"),
    "AmazonOpenSearchServerless": ("RoleARN", "IndexName", "S3Configuration"),
    "Splunk": ("HECEndpoint", "HECEndpointType", "S3Configuration"),
    "HttpEndpoint": ("EndpointConfiguration", "S3Configuration"),
    "Snowflake": ("AccountUrl", "Database", "Schema", "Table", "RoleARN", "S3Configuration"),
    "Iceberg": ("RoleARN", "CatalogConfiguration", "S3Configuration"),
}

BACKUP_MODES_FOR_GOOD = ("Enabled", "AllDocuments", "AllEvents", "AllData")


def check_create(
    body: Mapping[str, Any], *, relaxed_urls: bool = True, lenient: bool = False, supported_only: bool = True
) -> None:
    """Check the body of CreateDeliveryStream, which layer 1 has passed. Raises ApiError."""
    source_type = body.get("DeliveryStreamType", DIRECT_PUT)
    destination_type, config = one_destination(body, "DestinationConfiguration")
    _check_source(source_type, body, destination_type)
    encryption = body.get("DeliveryStreamEncryptionConfigurationInput")
    if encryption is not None:
        check_encryption_source(source_type)
        check_encryption_input(encryption)
    check_merged(
        destination_type,
        config,
        creating=True,
        source_type=source_type,
        relaxed_urls=relaxed_urls,
        lenient=lenient,
        supported_only=supported_only,
    )


def check_merged(
    destination_type: str,
    config: Mapping[str, Any],
    *,
    creating: bool,
    source_type: str = DIRECT_PUT,
    relaxed_urls: bool = True,
    lenient: bool = False,
    supported_only: bool = True,
) -> None:
    """Check a whole configuration, by the names of CreateDeliveryStream. Raises ApiError.

    When a stream is created, layer 1 has seen to it that all required members are there.
    """
    if not creating:
        _check_required(destination_type, config)
    if destination_type == "S3":
        check_s3(config)
    elif destination_type == "ExtendedS3":
        check_extended_s3(config, lenient=lenient)
    else:
        check_other_destination(destination_type, config, relaxed_urls=relaxed_urls)
    _check_backup_of_source(source_type, config)
    if supported_only:
        refuse_unsupported(destination_type, source_type)


def check_immutable(destination_type: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Check that an update of a destination, whose type stays, leaves alone what is fixed. Raises ApiError."""
    partitioning = "DynamicPartitioningConfiguration"
    if is_on(new.get(partitioning)) != is_on(old.get(partitioning)):
        refuse(
            "Dynamic Partitioning can be enabled only when a delivery stream is created, and cannot be disabled "
            "afterwards. Create another delivery stream."
        )
    old_mode, new_mode = old.get("S3BackupMode"), new.get("S3BackupMode")
    if old_mode in BACKUP_MODES_FOR_GOOD and new_mode != old_mode:
        refuse(
            f"S3BackupMode cannot be changed from {old_mode} to {new_mode}. Create another delivery stream."
        )
    if destination_type in ("Elasticsearch", "Amazonopensearchservice", "AmazonOpenSearchServerless"):
        _check_unchanged("S3BackupMode", old_mode or "FailedDocumentsOnly", new_mode or "FailedDocumentsOnly")
    for name in ("VpcConfiguration", "SnowflakeVpcConfiguration"):
        _check_unchanged(name, old.get(name), new.get(name))


def refuse_unsupported(destination_type: str, source_type: str) -> None:
    """Refuse what is correct, but would be accepted and never delivered by this version of Penstock."""
    if source_type != DIRECT_PUT:
        refuse(
            f"This version of Penstock does not support the delivery stream type {source_type}; "
            f"it supports {DIRECT_PUT}."
        )
    if destination_type not in DELIVERED_TYPES:
        refuse(
            f"This version of Penstock does not support {destination_type} destinations; it supports "
            "S3DestinationConfiguration and ExtendedS3DestinationConfiguration."
        )


def one_destination(body: Mapping[str, Any], suffix: str) -> tuple[str, dict[str, Any]]:
    """Type and block of the destination. `suffix` is DestinationConfiguration or DestinationUpdate."""
    names = [name for name in body if name.endswith(suffix)]
    if len(names) != 1:
        refuse("Exactly one destination configuration is supported for a Firehose")
    return names[0].removesuffix(suffix), body[names[0]]


def check_encryption_input(block: Mapping[str, Any]) -> None:
    """Check a DeliveryStreamEncryptionConfigurationInput, when a stream is created and when encryption starts."""
    if block["KeyType"] == "CUSTOMER_MANAGED_CMK":
        if "KeyARN" not in block:
            refuse("KeyARN has to be specified when KeyType is CUSTOMER_MANAGED_CMK")
    elif "KeyARN" in block:
        refuse(f"KeyARN cannot be specified when KeyType is {block['KeyType']}")


def check_encryption_source(source_type: str) -> None:
    """Check that streams of this type can be encrypted, when one is created and when encryption starts or stops."""
    if source_type not in (DIRECT_PUT, "DatabaseAsSource"):
        refuse(
            "Server side encryption from firehose is only allowed for direct put delivery streams and database "
            "as a source delivery streams"
        )


def _check_source(source_type: str, body: Mapping[str, Any], destination_type: str) -> None:
    for of_type, (block, called, _) in SOURCES.items():
        if block in body and source_type != of_type:
            refuse(f"{called} is only applicable for {of_type} stream type")
    if "DirectPutSourceConfiguration" in body and source_type != DIRECT_PUT:
        refuse(f"DirectPutSourceConfig is only applicable for {DIRECT_PUT} stream type")
    if source_type in SOURCES:
        block, called, type_called = SOURCES[source_type]
        if block not in body:
            refuse(f"{called} is mandatory for {type_called} stream type.")
    if source_type == "DatabaseAsSource" and destination_type != "Iceberg":
        refuse("IcebergDestinationConfiguration must be specified for Database as Source.")


def _check_backup_of_source(source_type: str, config: Mapping[str, Any]) -> None:
    mode = config.get("S3BackupMode")
    if mode in BACKUP_MODES_FOR_GOOD and source_type in ("MSKAsSource", "DatabaseAsSource"):
        refuse(f"S3BackupMode {mode} is only applicable for DirectPut and KinesisStreamAsSource stream types")


def _check_required(destination_type: str, config: Mapping[str, Any]) -> None:
    for name in REQUIRED[destination_type]:
        if name not in config:
            refuse(f"{name} must not be null")
    for nested in ("S3Configuration", "S3BackupConfiguration"):
        for name in REQUIRED["S3"]:
            if nested in config and name not in config[nested]:
                refuse(f"{nested}.{name} must not be null")


def _check_unchanged(name: str, old: object, new: object) -> None:
    if old != new:
        refuse(f"{name} cannot be changed once a delivery stream is created. Create another delivery stream.")
