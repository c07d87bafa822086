"""Layer 2 of the checks of the Firehose door: S3 blocks, prefixes, format conversion."""

from __future__ import annotations

from typing import Any

import pytest
from firehose_bodies import (
    ERRORS,
    OFF,
    ON,
    PREFIX_RULE,
    SCHEMA,
    accept,
    conversion,
    extended,
    partitioned,
    refusal,
)
from firehose_model import ROLE, S3, create

from penstock.delivery.errors import ApiError

# -- S3 blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hints", [{"SizeInMBs": 5}, {"IntervalInSeconds": 60}])
def test_both_buffering_hints_or_neither(hints: dict[str, int]) -> None:
    text = "Both BufferingHints.SizeInMBs and BufferingHints.IntervalInSeconds are required"
    assert refusal(extended(BufferingHints=hints)).startswith(text)
    assert refusal(create({**S3, "BufferingHints": hints}, "S3DestinationConfiguration")).startswith(text)
    accept(extended(BufferingHints={}))
    accept(extended(BufferingHints={"SizeInMBs": 1, "IntervalInSeconds": 0}))


def test_logging_needs_names() -> None:
    def logging(**names: str) -> dict[str, Any]:
        return extended(CloudWatchLoggingOptions={"Enabled": True, **names})

    group = "CloudWatch Log Group Name is required if CloudWatch Logging is enabled"
    assert refusal(logging()) == group
    assert refusal(logging(LogGroupName="", LogStreamName="s")) == group
    assert refusal(logging(LogGroupName="g")) == group.replace("Group", "Stream")
    accept(logging(LogGroupName="g", LogStreamName="s"))
    accept(extended(CloudWatchLoggingOptions=OFF))


def test_encryption_of_objects_is_one_of_two() -> None:
    none = {"NoEncryptionConfig": "NoEncryption"}
    kms = {"KMSEncryptionConfig": {"AWSKMSKeyARN": "arn:aws:kms:eu-west-1:123456789012:alias/k"}}
    for block in ({}, {**none, **kms}):
        assert refusal(extended(EncryptionConfiguration=block)) == (
            "Exactly one of NoEncryptionConfig or KMSEncryptionConfig must be specified"
        )
    accept(extended(EncryptionConfiguration=none))
    accept(extended(EncryptionConfiguration=kms))


def test_backup() -> None:
    assert refusal(extended(S3BackupMode="Enabled")) == (
        "S3 backup destination configuration is required when enabling S3 backup."
    )
    accept(extended(S3BackupMode="Disabled"))
    accept(extended(S3BackupMode="Enabled", S3BackupConfiguration=S3))

    def buffered(interval_s: int) -> dict[str, Any]:
        hints = {"SizeInMBs": 1, "IntervalInSeconds": interval_s}
        return extended(S3BackupMode="Enabled", S3BackupConfiguration={**S3, "BufferingHints": hints})

    for interval_s in (0, 59):
        assert "at least 60 seconds for an S3 backup" in refusal(buffered(interval_s))
    accept(buffered(60))
    backup = {**S3, "CloudWatchLoggingOptions": ON}
    assert "CloudWatch Log Group" in refusal(extended(S3BackupConfiguration=backup))


@pytest.mark.parametrize("zone", ["UTC", "", "Europe/Berlin", "America/New_York", "Asia/Calcutta"])
def test_time_zones(zone: str) -> None:
    accept(extended(CustomTimeZone=zone))


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "Europe", "EST", "GMT", "europe/", "/etc/passwd", "zone_tab"]
)
def test_unknown_time_zones(zone: str) -> None:
    assert refusal(extended(CustomTimeZone=zone)).startswith("Provided custom time zone is not supported.")


# -- prefixes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "error_prefix", "text"),
    [
        (
            "!{timestamp:yyyy}/",
            None,
            "ErrorOutputPrefix cannot be null or empty when Prefix contains expressions",
        ),
        (
            "!{timestamp:yyyy}/",
            "",
            "ErrorOutputPrefix cannot be null or empty when Prefix contains expressions",
        ),
        (
            "!{firehose:error-output-type}/",
            ERRORS,
            "Prefix must not contain any occurrence of !{firehose:error-output-type}",
        ),
        (
            None,
            "e/!{timestamp:yyyy}/",
            "ErrorOutputPrefix must contain at least one occurrence of !{firehose:error-output-type}",
        ),
        ("a" * 499, None, "Length of evaluated prefix cannot be greater than 512"),
        ("a" * 510 + "!{timestamp:yyyy}", ERRORS, "Length of evaluated prefix cannot be greater than 512"),
        ("a" * 468, None, "Length of evaluated ErrorOutputPrefix cannot be greater than 512"),
        (None, "a" * 500 + ERRORS, "Length of evaluated ErrorOutputPrefix cannot be greater than 512"),
    ],
)
def test_prefixes(prefix: str | None, error_prefix: str | None, text: str) -> None:
    members = {"Prefix": prefix, "ErrorOutputPrefix": error_prefix}
    assert refusal(extended(**members)) == PREFIX_RULE + text
    assert refusal(create({**S3, **members}, "S3DestinationConfiguration")) == PREFIX_RULE + text
    backup = {**S3, **members}
    assert refusal(extended(S3BackupConfiguration=backup)) == PREFIX_RULE + text


@pytest.mark.parametrize("name", ["Prefix", "ErrorOutputPrefix"])
@pytest.mark.parametrize(
    "text", ["a!{b", "!{nobody:x}", "!{timestamp}", "!{firehose:x}", "!{timestamp:yyyy'}"]
)
def test_expressions_that_mean_nothing(name: str, text: str) -> None:
    assert refusal(extended(**{"ErrorOutputPrefix": ERRORS, name: text})).startswith(f"{PREFIX_RULE}{name}: ")


@pytest.mark.parametrize(
    ("prefix", "error_prefix"),
    [
        (None, None),
        ("", ""),
        ("events/", None),
        ("events/", "errors/"),
        ("events/", ERRORS),
        ("!{timestamp:yyyy/MM/dd}/!{firehose:random-string}/", ERRORS),
        ("!{timestamp:yyyy}/", "errors/"),
        ("100%!/{x}", "e!"),
        ("a" * 467, None),
    ],
)
def test_prefixes_that_are_accepted(prefix: str | None, error_prefix: str | None) -> None:
    accept(extended(Prefix=prefix, ErrorOutputPrefix=error_prefix))


@pytest.mark.parametrize("namespace", ["partitionKeyFromQuery", "partitionKeyFromLambda"])
def test_keys_of_partitions_need_partitions(namespace: str) -> None:
    text = f"!{{{namespace}:k}}/"
    only = (
        "Dynamic Partitioning Namespaces can only be part of a prefix expression when Dynamic Partitioning is "
        "enabled."
    )
    assert refusal(extended(Prefix=text, ErrorOutputPrefix=ERRORS)) == only
    backup = {**S3, "Prefix": text, "ErrorOutputPrefix": ERRORS}
    assert refusal(partitioned(S3BackupConfiguration=backup)) == only
    assert refusal(partitioned(ErrorOutputPrefix=ERRORS + text)) == (
        "Dynamic Partitioning Namespaces can't be part of an error prefix expression"
    )


# -- format conversion ------------------------------------------------------------------------------

SMALL = {"SizeInMBs": 63, "IntervalInSeconds": 60}
HIVE = {"Deserializer": {"HiveJsonSerDe": {"TimestampFormats": ["millis", "yyyy-MM-dd'T'HH:mm:ss"]}}}


@pytest.mark.parametrize(
    ("blocks", "text"),
    [  # in the order in which AWS looks: each has all that comes after it, too
        (
            {"CompressionFormat": "GZIP", "BufferingHints": SMALL, "InputFormatConfiguration": None},
            "The S3 destination's compression format must be set to UNCOMPRESSED when data format conversion is "
            "enabled. To enable compression within the converted output format, set the appropriate serialization "
            "option in the output format configuration.",
        ),
        (
            {"BufferingHints": SMALL, "InputFormatConfiguration": None},
            "BufferingHints.SizeInMBs must be at least 64 when data format conversion is enabled.",
        ),
        (
            {
                "InputFormatConfiguration": None,
                "OutputFormatConfiguration": None,
                "SchemaConfiguration": None,
            },
            "InputFormatConfiguration must not be null",
        ),
        (
            {"InputFormatConfiguration": {}, "OutputFormatConfiguration": None, "SchemaConfiguration": None},
            "OutputFormatConfiguration must not be null",
        ),
        (
            {"InputFormatConfiguration": {}, "SchemaConfiguration": None},
            "SchemaConfiguration must not be null",
        ),
        ({"InputFormatConfiguration": {}, "SchemaConfiguration": {}}, "Deserializer must not be null"),
        ({"InputFormatConfiguration": {"Deserializer": {}}}, "Deserializer must not be null"),
        (
            {"InputFormatConfiguration": {"Deserializer": {"OpenXJsonSerDe": {}, "HiveJsonSerDe": {}}}},
            "More than one deserializer specified. Only one may be chosen.",
        ),
        ({"OutputFormatConfiguration": {}, "SchemaConfiguration": {}}, "Serializer must not be null"),
        (
            {"OutputFormatConfiguration": {"Serializer": {"OrcSerDe": {}, "ParquetSerDe": {}}}},
            "More than one serializer specified. Only one may be chosen.",
        ),
        ({"SchemaConfiguration": {}}, "SchemaConfiguration.RoleArn must not be null or empty"),
        (
            {"SchemaConfiguration": {"RoleARN": ROLE}},
            "SchemaConfiguration.DatabaseName must not be null or empty",
        ),
        (
            {"SchemaConfiguration": {"RoleARN": ROLE, "DatabaseName": "d"}},
            "SchemaConfiguration.TableName must not be null or empty",
        ),
        (
            {
                "InputFormatConfiguration": {
                    "Deserializer": {"HiveJsonSerDe": {"TimestampFormats": ["yyyyTHH"]}}
                }
            },
            "One or more SerDe options are invalid for org.apache.hcatalog.data.JsonSerDe: "
            "[Key: timestamp.formats Value: yyyyTHH]",
        ),
    ],
)
def test_rules_of_format_conversion(blocks: dict[str, Any], text: str) -> None:
    assert refusal(conversion(**blocks)) == text
    assert refusal(conversion(enabled=None, **blocks)) == text  # who says nothing wants it
    accept(conversion(enabled=False, **blocks))


def test_role_of_the_schema() -> None:
    body = conversion(SchemaConfiguration={**SCHEMA, "RoleARN": "nobody"})
    with pytest.raises(ApiError, match="Invalid role ARN") as caught:
        accept(body)
    assert (caught.value.code, caught.value.message) == (
        "InvalidParameterValueException",
        "Invalid role ARN.",
    )
    accept(body, lenient=True)


def test_conversions_that_are_accepted() -> None:
    accept(conversion())
    accept(
        conversion(BufferingHints={"SizeInMBs": 64, "IntervalInSeconds": 0}, CompressionFormat="UNCOMPRESSED")
    )
    accept(
        conversion(InputFormatConfiguration=HIVE, OutputFormatConfiguration={"Serializer": {"OrcSerDe": {}}})
    )
