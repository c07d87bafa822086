"""Rules of S3 destinations, by themselves and inside of others: buffering, prefixes, format conversion, partitions."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from datetime import timezone, tzinfo
from typing import Any

from penstock.delivery.destinations import converts, is_on
from penstock.delivery.errors import ApiError
from penstock.doors.firehose.refusal import refuse
from penstock.doors.firehose.rules_processing import check_processing, processors_of
from penstock.doors.firehose.rules_query import check_query_keys
from penstock.prefix import (
    ERROR_OUTPUT_TYPE,
    PARTITION_NAMESPACES,
    BadPrefix,
    CannotEvaluate,
    Namespace,
    Prefix,
    parse_prefix,
)

Config = Mapping[str, Any]

LARGE_BUFFER_MIB_MIN = 64
INTERVAL_S_MIN = 60
LONGEST_ERROR_TYPE = "AmazonOpenSearchService-failed"
LONG_NAMES_MS = 1_790_809_138_999  # a Wednesday in September: the longest names of days and months

PREFIX_RULE = "Ths supplied prefix(es) do not satisfy the following constraint: "  # the typing error is AWS's
_ROLE_ARN = re.compile(r"arn:.*:iam::\d{12}:role/\S+")
# Letters that mean nothing in a pattern of Joda-Time.
_NO_TIME_LETTERS = re.compile("[CIJPRTUVbfijloprt]")


def check_s3(config: Config, *, zone: tzinfo = timezone.utc, partitioned: bool = False) -> None:
    """The rules of every S3 block."""
    check_buffering_hints(config)
    check_logging(config)
    encryption = config.get("EncryptionConfiguration")
    if encryption is not None and len(encryption) != 1:
        refuse("Exactly one of NoEncryptionConfig or KMSEncryptionConfig must be specified")
    _check_prefixes(config, zone=zone, partitioned=partitioned)


def check_s3_backup(config: Config) -> None:
    check_s3(config)
    if config.get("BufferingHints", {}).get("IntervalInSeconds", INTERVAL_S_MIN) < INTERVAL_S_MIN:
        refuse(
            f"BufferingHints.IntervalInSeconds must be at least {INTERVAL_S_MIN} seconds for an S3 backup."
        )


def check_extended_s3(config: Config, *, lenient: bool) -> None:
    zone = _zone(config)
    partitioned = is_on(config.get("DynamicPartitioningConfiguration"))
    check_s3(config, zone=zone, partitioned=partitioned)
    check_backup_block(config)
    check_processing(config, partitioned=partitioned)
    if partitioned:
        _check_partitioning(config)
    if converts(config):
        _check_conversion(config, lenient=lenient)


def check_backup_block(config: Config) -> None:
    """S3BackupMode and its block, where the modes are Disabled and Enabled."""
    backup = config.get("S3BackupConfiguration")
    if config.get("S3BackupMode") == "Enabled" and backup is None:
        refuse("S3 backup destination configuration is required when enabling S3 backup.")
    if backup is not None:
        check_s3_backup(backup)


def check_buffering_hints(config: Config) -> None:
    if len(config.get("BufferingHints", {})) == 1:
        refuse(
            "Both BufferingHints.SizeInMBs and BufferingHints.IntervalInSeconds are required to configure "
            "buffering; leave out BufferingHints for the defaults."
        )


def check_logging(config: Config) -> None:
    options = config.get("CloudWatchLoggingOptions")
    if is_on(options):
        for name, called in (("LogGroupName", "Group"), ("LogStreamName", "Stream")):
            if not options or not options.get(name):
                refuse(f"CloudWatch Log {called} Name is required if CloudWatch Logging is enabled")


# -- prefixes ---------------------------------------------------------------------------------------


def parse(config: Config, name: str) -> Prefix:
    try:
        return parse_prefix(config.get(name, ""))
    except BadPrefix as error:
        refuse(f"{PREFIX_RULE}{name}: {error}")


def _check_prefixes(config: Config, *, zone: tzinfo, partitioned: bool) -> None:
    prefix, error_prefix = parse(config, "Prefix"), parse(config, "ErrorOutputPrefix")
    if prefix.namespaces & PARTITION_NAMESPACES and not partitioned:
        refuse(
            "Dynamic Partitioning Namespaces can only be part of a prefix expression when Dynamic Partitioning "
            "is enabled."
        )
    if error_prefix.namespaces & PARTITION_NAMESPACES:
        refuse("Dynamic Partitioning Namespaces can't be part of an error prefix expression")
    if prefix.has_expressions and not config.get("ErrorOutputPrefix"):
        refuse(f"{PREFIX_RULE}ErrorOutputPrefix cannot be null or empty when Prefix contains expressions")
    if ERROR_OUTPUT_TYPE in prefix.names(Namespace.FIREHOSE.value):
        refuse(f"{PREFIX_RULE}Prefix must not contain any occurrence of !{{firehose:{ERROR_OUTPUT_TYPE}}}")
    if error_prefix.has_expressions and ERROR_OUTPUT_TYPE not in error_prefix.names(Namespace.FIREHOSE.value):
        refuse(
            f"{PREFIX_RULE}ErrorOutputPrefix must contain at least one occurrence of "
            f"!{{firehose:{ERROR_OUTPUT_TYPE}}}"
        )
    _check_evaluated_length(prefix, "prefix", zone)
    errors_go_by = error_prefix if config.get("ErrorOutputPrefix") else prefix
    if not prefix.has_expressions or errors_go_by is error_prefix:
        _check_evaluated_length(errors_go_by, "ErrorOutputPrefix", zone, LONGEST_ERROR_TYPE)


def _check_evaluated_length(prefix: Prefix, called: str, zone: tzinfo, error_type: str | None = None) -> None:
    """How long it gets can only be estimated: values of partitions are not known yet."""
    keys = {name: "?" for namespace in PARTITION_NAMESPACES for name in prefix.names(namespace)}
    try:
        prefix.evaluate(LONG_NAMES_MS, zone, error_output_type=error_type, query_keys=keys, lambda_keys=keys)
    except CannotEvaluate:
        refuse(f"{PREFIX_RULE}Length of evaluated {called} cannot be greater than 512")


def _zone(config: Config) -> tzinfo:
    name = config.get("CustomTimeZone") or "UTC"
    try:
        zone = zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        zone = None
    if zone is None or (len(name) == 3 and name != "UTC"):
        refuse(
            "Provided custom time zone is not supported. Custom time zones are limited to UTC and non-3-letter "
            "IANA time zones."
        )
    return zone


# -- dynamic partitioning ---------------------------------------------------------------------------


def _check_partitioning(config: Config) -> None:
    hints = config.get("BufferingHints", {})
    if hints.get("SizeInMBs", LARGE_BUFFER_MIB_MIN) < LARGE_BUFFER_MIB_MIN:
        refuse("BufferingHints.SizeInMBs must be at least 64 when Dynamic Partitioning is enabled.")
    if hints.get("IntervalInSeconds", INTERVAL_S_MIN) < INTERVAL_S_MIN:
        refuse(
            "BufferingHints.IntervalInSeconds must be at least 60 seconds when Dynamic Partitioning is enabled."
        )
    prefix = parse(config, "Prefix")
    if not prefix.namespaces & PARTITION_NAMESPACES:
        refuse(
            "S3 Prefix should contain Dynamic Partitioning namespaces when Dynamic Partitioning is enabled"
        )
    processors = processors_of(config)
    if Namespace.LAMBDA.value in prefix.namespaces and "Lambda" not in processors:
        refuse(
            "Prefix uses partitionKeyFromLambda, but there is no Lambda processor that could give these keys"
        )
    query = processors.get("MetadataExtraction", {}).get("MetadataExtractionQuery")
    if query is not None:
        check_query_keys(query, prefix.names(Namespace.QUERY.value))
    elif Namespace.QUERY.value in prefix.namespaces:
        refuse(
            "Prefix uses partitionKeyFromQuery, but there is no MetadataExtraction processor that could give "
            "these keys"
        )


# -- format conversion ------------------------------------------------------------------------------


def _check_conversion(config: Config, *, lenient: bool) -> None:
    """In the order in which AWS looks at it."""
    conversion: Config = config["DataFormatConversionConfiguration"]
    if config.get("CompressionFormat", "UNCOMPRESSED") != "UNCOMPRESSED":
        refuse(
            "The S3 destination's compression format must be set to UNCOMPRESSED when data format conversion is "
            "enabled. To enable compression within the converted output format, set the appropriate "
            "serialization option in the output format configuration."
        )
    if config.get("BufferingHints", {}).get("SizeInMBs", LARGE_BUFFER_MIB_MIN) < LARGE_BUFFER_MIB_MIN:
        refuse("BufferingHints.SizeInMBs must be at least 64 when data format conversion is enabled.")
    for name in ("InputFormatConfiguration", "OutputFormatConfiguration", "SchemaConfiguration"):
        if name not in conversion:
            refuse(f"{name} must not be null")
    deserializer = _only_one(conversion["InputFormatConfiguration"], "Deserializer")
    _only_one(conversion["OutputFormatConfiguration"], "Serializer")
    _check_schema(conversion["SchemaConfiguration"], lenient=lenient)
    _check_timestamp_formats(deserializer)


def _only_one(config: Config, name: str) -> Config:
    choices: Config = config.get(name, {})
    if not choices:
        refuse(f"{name} must not be null")
    if len(choices) > 1:
        refuse(f"More than one {name.lower()} specified. Only one may be chosen.")
    return choices


def _check_schema(schema: Config, *, lenient: bool) -> None:
    for name, called in (
        ("RoleARN", "RoleArn"),
        ("DatabaseName", "DatabaseName"),
        ("TableName", "TableName"),
    ):
        if not schema.get(name):
            refuse(f"SchemaConfiguration.{called} must not be null or empty")
    if not lenient and _ROLE_ARN.fullmatch(schema["RoleARN"]) is None:
        raise ApiError("InvalidParameterValueException", "Invalid role ARN.")


def _check_timestamp_formats(deserializer: Config) -> None:
    for pattern in deserializer.get("HiveJsonSerDe", {}).get("TimestampFormats", []):
        unquoted = re.sub("'[^']*'", "", pattern)
        if pattern != "millis" and _NO_TIME_LETTERS.search(unquoted):
            refuse(
                "One or more SerDe options are invalid for org.apache.hcatalog.data.JsonSerDe: "
                f"[Key: timestamp.formats Value: {pattern}]"
            )
