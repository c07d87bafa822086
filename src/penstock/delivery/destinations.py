"""The kinds of destinations: what their blocks are called, and what a client need not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Config = dict[str, Any]

EXTENDED_S3 = "ExtendedS3"
SPLUNK = "Splunk"
S3_MEMBERS = (
    "RoleARN",
    "BucketARN",
    "Prefix",
    "ErrorOutputPrefix",
    "BufferingHints",
    "CompressionFormat",
    "EncryptionConfiguration",
    "CloudWatchLoggingOptions",
)
# Blocks of the S3 kind inside of others, as CreateDeliveryStream calls them.
NESTED_S3 = ("S3Configuration", "S3BackupConfiguration")

_HINTS = {"SizeInMBs": 5, "IntervalInSeconds": 300}
_LOGGING = {"Enabled": False}
_SECRETS = {"Enabled": False}
_S3: Config = {
    "BufferingHints": _HINTS,
    "CompressionFormat": "UNCOMPRESSED",
    "EncryptionConfiguration": {"NoEncryptionConfig": "NoEncryption"},
    "CloudWatchLoggingOptions": _LOGGING,
}
_OPENSEARCH: Config = {
    "IndexRotationPeriod": "OneDay",
    "BufferingHints": _HINTS,
    "RetryOptions": {"DurationInSeconds": 300},
    "S3BackupMode": "FailedDocumentsOnly",
    "CloudWatchLoggingOptions": _LOGGING,
    "DocumentIdOptions": {"DefaultDocumentIdFormat": "FIREHOSE_DEFAULT"},
}


class Destination(NamedTuple):
    defaults: Config
    secrets: tuple[str, ...] = ()  # never shown


DESTINATIONS: dict[str, Destination] = {
    EXTENDED_S3: Destination({**_S3, "S3BackupMode": "Disabled", "CustomTimeZone": "UTC"}),
    "Redshift": Destination(
        {
            "RetryOptions": {"DurationInSeconds": 3600},
            "S3BackupMode": "Disabled",
            "CloudWatchLoggingOptions": _LOGGING,
            "SecretsManagerConfiguration": _SECRETS,
        },
        ("Password",),
    ),
    "Elasticsearch": Destination(_OPENSEARCH),
    "Amazonopensearchservice": Destination(_OPENSEARCH),
    "AmazonOpenSearchServerless": Destination(
        {
            name: value
            for name, value in _OPENSEARCH.items()
            if name not in ("IndexRotationPeriod", "DocumentIdOptions")
        }
    ),
    SPLUNK: Destination(
        {
            "HECAcknowledgmentTimeoutInSeconds": 180,
            "RetryOptions": {"DurationInSeconds": 300},
            "S3BackupMode": "FailedEventsOnly",
            "CloudWatchLoggingOptions": _LOGGING,
            "BufferingHints": {"SizeInMBs": 5, "IntervalInSeconds": 60},
            "SecretsManagerConfiguration": _SECRETS,
        }
    ),
    "HttpEndpoint": Destination(
        {
            "BufferingHints": _HINTS,
            "CloudWatchLoggingOptions": _LOGGING,
            "RequestConfiguration": {"ContentEncoding": "NONE", "CommonAttributes": []},
            "RetryOptions": {"DurationInSeconds": 300},
            "S3BackupMode": "FailedDataOnly",
            "SecretsManagerConfiguration": _SECRETS,
        }
    ),
    "Snowflake": Destination(
        {
            "SnowflakeRoleConfiguration": {"Enabled": False},
            "DataLoadingOption": "JSON_MAPPING",
            "CloudWatchLoggingOptions": _LOGGING,
            "RetryOptions": {"DurationInSeconds": 60},
            "S3BackupMode": "FailedDataOnly",
            "SecretsManagerConfiguration": _SECRETS,
            "BufferingHints": {"SizeInMBs": 128, "IntervalInSeconds": 0},
        },
        ("PrivateKey", "KeyPassphrase"),
    ),
    "Iceberg": Destination(
        {
            "BufferingHints": _HINTS,
            "CloudWatchLoggingOptions": _LOGGING,
            "S3BackupMode": "FailedDataOnly",
            "RetryOptions": {"DurationInSeconds": 300},
            "AppendOnly": False,
        }
    ),
}


def find_destination(body: Mapping[str, Any], suffix: str) -> tuple[str, Config]:
    """The one block of `body` whose name ends in `Destination<suffix>`. The deprecated S3 form is extended S3."""
    for kind in DESTINATIONS:
        if f"{kind}Destination{suffix}" in body:
            return kind, body[f"{kind}Destination{suffix}"]
    return EXTENDED_S3, body[f"S3Destination{suffix}"]


def filled(kind: str, config: Config) -> Config:
    """The configuration with everything that the client left out."""
    complete = _with_defaults(config, DESTINATIONS[kind].defaults)
    for nested in NESTED_S3:
        if nested in complete:
            complete[nested] = _with_defaults(complete[nested], _S3)
    partitioning = complete.get("DynamicPartitioningConfiguration")
    if partitioning is not None and is_on(partitioning):
        retry = {"DurationInSeconds": 300, **partitioning.get("RetryOptions", {})}
        complete["DynamicPartitioningConfiguration"] = {**partitioning, "RetryOptions": retry}
    conversion = complete.get("DataFormatConversionConfiguration")
    if conversion is not None:
        complete["DataFormatConversionConfiguration"] = {"Enabled": True} | conversion
    if is_on(partitioning) or converts(config):
        complete["BufferingHints"] = _HINTS | {"SizeInMBs": 128} | config.get("BufferingHints", {})
    if "ProcessingConfiguration" in complete:
        complete["ProcessingConfiguration"] = _filled_processing(kind, complete)
    return complete


def is_on(block: Mapping[str, Any] | None) -> bool:
    return bool(block and block.get("Enabled"))


def converts(config: Mapping[str, Any]) -> bool:
    """Whether records become Parquet or ORC."""
    conversion = config.get("DataFormatConversionConfiguration")
    return conversion is not None and bool(conversion.get("Enabled", True))


def buffering_hints(kind: str, complete: Config) -> tuple[int, int]:
    """Size in MiB and interval in seconds, of a configuration with its defaults."""
    hints = (complete["S3Configuration"] if kind == "Redshift" else complete)["BufferingHints"]
    return hints["SizeInMBs"], hints["IntervalInSeconds"]


def _with_defaults(config: Config, defaults: Config) -> Config:
    complete = {**defaults, **config}
    for name in ("BufferingHints", "CloudWatchLoggingOptions", "RequestConfiguration"):
        if name in config and name in defaults:
            complete[name] = {**defaults[name], **config[name]}
    return complete


def _filled_processing(kind: str, config: Config) -> Config:
    processing: Config = config["ProcessingConfiguration"]
    if "Processors" not in processing:
        return processing
    processors = [
        _filled_lambda(kind, config, processor) if processor.get("Type") == "Lambda" else processor
        for processor in processing["Processors"]
    ]
    return {**processing, "Processors": processors}


def _filled_lambda(kind: str, config: Config, processor: Config) -> Config:
    given = processor.get("Parameters", [])
    names = {parameter["ParameterName"] for parameter in given}
    defaults = {
        "NumberOfRetries": "3",
        "RoleArn": config.get("RoleARN"),
        "BufferSizeInMBs": "0.25" if kind == SPLUNK else "1",
        "BufferIntervalInSeconds": "60",
    }
    added = [
        {"ParameterName": name, "ParameterValue": value}
        for name, value in defaults.items()
        if name not in names and value is not None
    ]
    return {**processor, "Parameters": [*given, *added]}
