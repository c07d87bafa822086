"""What Describe shows, against the answers that were recorded on AWS and the tables of defaults."""

from __future__ import annotations

from typing import Any

import pytest

from delivery.rig import ROLE, S3
from penstock.delivery.describe import describe
from penstock.delivery.destinations import DESTINATIONS, buffering_hints, filled
from penstock.delivery.log_stream import settings_of
from penstock.delivery.stored import Encryption, EncryptionStatus, Status, StoredDelivery

S3_DEFAULTS: dict[str, Any] = {
    "BufferingHints": {"SizeInMBs": 5, "IntervalInSeconds": 300},
    "CompressionFormat": "UNCOMPRESSED",
    "EncryptionConfiguration": {"NoEncryptionConfig": "NoEncryption"},
    "CloudWatchLoggingOptions": {"Enabled": False},
}


def record(config: dict[str, Any], kind: str = "ExtendedS3", **more: Any) -> StoredDelivery:
    fields: dict[str, Any] = {
        "account": "000000000000",
        "region": "us-east-1",
        "name": "n",
        "status": Status.ACTIVE,
        "created_ms": 1_700_000_000_123,
        "destination": kind,
        "config": config,
    }
    return StoredDelivery(**{**fields, **more})


def destination(config: dict[str, Any], kind: str = "ExtendedS3") -> dict[str, Any]:
    [shown] = describe(record(config, kind))["Destinations"]
    return dict(shown)


def test_a_new_stream() -> None:
    shown = describe(record(S3))
    assert shown.pop("Destinations")
    assert shown == {
        "DeliveryStreamName": "n",
        "DeliveryStreamARN": "arn:aws:firehose:us-east-1:000000000000:deliverystream/n",
        "DeliveryStreamStatus": "ACTIVE",
        "DeliveryStreamEncryptionConfiguration": {"Status": "DISABLED"},
        "DeliveryStreamType": "DirectPut",
        "VersionId": "1",
        "CreateTimestamp": 1_700_000_000.123,
        "HasMoreDestinations": False,
    }


def test_an_updated_stream() -> None:
    shown = describe(record(S3, version=7, updated_ms=1_700_000_001_500))
    assert (shown["VersionId"], shown["LastUpdateTimestamp"]) == ("7", 1_700_000_001.5)


def test_both_descriptions_of_s3_with_every_default() -> None:
    """The answer that was recorded for an extended S3 stream, and what is always there when nothing is sent."""
    sent = {**S3, "Prefix": "", "ErrorOutputPrefix": "errors/"}
    assert destination(sent) == {
        "DestinationId": "destinationId-000000000001",
        "S3DestinationDescription": {**sent, **S3_DEFAULTS},
        "ExtendedS3DestinationDescription": {
            **sent,
            **S3_DEFAULTS,
            "S3BackupMode": "Disabled",
            "CustomTimeZone": "UTC",
        },
    }


def test_dynamic_partitioning_as_recorded() -> None:
    processing = {
        "Enabled": True,
        "Processors": [
            {
                "Type": "RecordDeAggregation",
                "Parameters": [{"ParameterName": "SubRecordType", "ParameterValue": "JSON"}],
            }
        ],
    }
    sent = {
        **S3,
        "DynamicPartitioningConfiguration": {"Enabled": True},
        "ProcessingConfiguration": processing,
        "DataFormatConversionConfiguration": {"Enabled": False},
    }
    shown = destination(sent)
    extended = shown["ExtendedS3DestinationDescription"]
    assert extended["DynamicPartitioningConfiguration"] == {
        "Enabled": True,
        "RetryOptions": {"DurationInSeconds": 300},
    }
    assert extended["ProcessingConfiguration"] == processing
    assert extended["DataFormatConversionConfiguration"] == {"Enabled": False}
    assert extended["BufferingHints"] == {"SizeInMBs": 128, "IntervalInSeconds": 300}
    assert shown["S3DestinationDescription"]["BufferingHints"] == extended["BufferingHints"]
    assert set(shown["S3DestinationDescription"]) == {*S3, *S3_DEFAULTS}


def test_what_was_never_sent_is_absent() -> None:
    extended = destination(S3)["ExtendedS3DestinationDescription"]
    assert not extended.keys() & {
        *("Prefix", "ErrorOutputPrefix", "ProcessingConfiguration", "DataFormatConversionConfiguration"),
        *("DynamicPartitioningConfiguration", "S3BackupDescription", "FileExtension"),
    }


def test_format_conversion_is_on_unless_said_otherwise_and_buffers_more() -> None:
    assert buffering_hints(
        "ExtendedS3", filled("ExtendedS3", {**S3, "DataFormatConversionConfiguration": {}})
    ) == (128, 300)
    off = {**S3, "DataFormatConversionConfiguration": {"Enabled": False}}
    assert buffering_hints("ExtendedS3", filled("ExtendedS3", off)) == (5, 300)
    given = {
        **S3,
        "DataFormatConversionConfiguration": {"Enabled": True},
        "BufferingHints": {"SizeInMBs": 64, "IntervalInSeconds": 0},
    }
    assert buffering_hints("ExtendedS3", filled("ExtendedS3", given)) == (64, 0)


def test_members_of_a_serde_that_have_their_default_are_not_shown() -> None:
    conversion = {
        "Enabled": True,
        "InputFormatConfiguration": {
            "Deserializer": {
                "OpenXJsonSerDe": {"CaseInsensitive": True, "ColumnToJsonKeyMappings": {"a": "b"}}
            }
        },
        "OutputFormatConfiguration": {
            "Serializer": {
                "ParquetSerDe": {"Compression": "SNAPPY", "PageSizeBytes": 65536, "BlockSizeBytes": 268435456}
            }
        },
        "SchemaConfiguration": {"RoleARN": ROLE, "DatabaseName": "d", "TableName": "t"},
    }
    shown = destination({**S3, "DataFormatConversionConfiguration": conversion})
    assert shown["ExtendedS3DestinationDescription"]["DataFormatConversionConfiguration"] == {
        "Enabled": True,
        "InputFormatConfiguration": {
            "Deserializer": {"OpenXJsonSerDe": {"ColumnToJsonKeyMappings": {"a": "b"}}}
        },
        "OutputFormatConfiguration": {"Serializer": {"ParquetSerDe": {"PageSizeBytes": 65536}}},
        "SchemaConfiguration": {"RoleARN": ROLE, "DatabaseName": "d", "TableName": "t"},
    }


def test_parameters_of_a_lambda_behind_those_that_were_sent() -> None:
    def parameters(**values: str) -> list[dict[str, str]]:
        return [{"ParameterName": name, "ParameterValue": value} for name, value in values.items()]

    sent = parameters(NumberOfRetries="1", LambdaArn="arn:f")
    config = {
        **S3,
        "ProcessingConfiguration": {"Enabled": True, "Processors": [{"Type": "Lambda", "Parameters": sent}]},
    }
    [processor] = destination(config)["ExtendedS3DestinationDescription"]["ProcessingConfiguration"][
        "Processors"
    ]
    added = parameters(RoleArn=ROLE, BufferSizeInMBs="1", BufferIntervalInSeconds="60")
    assert processor["Parameters"] == [*sent, *added]
    splunk = filled(
        "Splunk", {"S3Configuration": S3, "ProcessingConfiguration": config["ProcessingConfiguration"]}
    )
    [processor] = splunk["ProcessingConfiguration"]["Processors"]
    assert processor["Parameters"] == [
        *sent,
        *parameters(BufferSizeInMBs="0.25", BufferIntervalInSeconds="60"),
    ]


def test_backup_with_defaults_of_its_own() -> None:
    config = {**S3, "S3BackupMode": "Enabled", "S3BackupConfiguration": {**S3, "Prefix": "backup/"}}
    extended = destination(config)["ExtendedS3DestinationDescription"]
    assert extended["S3BackupDescription"] == {**S3, "Prefix": "backup/", **S3_DEFAULTS}
    assert "S3BackupConfiguration" not in extended


@pytest.mark.parametrize("kind", sorted(DESTINATIONS.keys() - {"ExtendedS3"}))
def test_other_destinations_show_their_s3_block(kind: str) -> None:
    shown = destination({"S3Configuration": S3}, kind)
    assert set(shown) == {"DestinationId", f"{kind}DestinationDescription"}
    described = shown[f"{kind}DestinationDescription"]
    assert described["S3DestinationDescription"] == {**S3, **S3_DEFAULTS}
    assert buffering_hints(kind, filled(kind, {"S3Configuration": S3}))[0] in (5, 128)


def test_no_secret_is_shown() -> None:
    secrets = {"PrivateKey": "secret", "KeyPassphrase": "secret"}
    endpoint = {"Url": "https://sink", "Name": "sink", "AccessKey": "secret"}
    for kind, config in {
        "Redshift": {"Password": "secret", "Username": "user"},
        "Snowflake": secrets,
        "HttpEndpoint": {"EndpointConfiguration": endpoint},
    }.items():
        shown = destination({"S3Configuration": S3, **config}, kind)
        assert "secret" not in str(shown)
    assert shown["HttpEndpointDestinationDescription"]["EndpointConfiguration"] == {
        "Url": "https://sink",
        "Name": "sink",
    }


def test_encryption_shows_the_key_while_there_is_one() -> None:
    def shown(status: EncryptionStatus, key_type: str | None, key_arn: str | None) -> dict[str, Any]:
        described = describe(record(S3, encryption=Encryption(status, key_type, key_arn)))
        return dict(described["DeliveryStreamEncryptionConfiguration"])

    assert shown(EncryptionStatus.ENABLED, "AWS_OWNED_CMK", None) == {
        "KeyType": "AWS_OWNED_CMK",
        "Status": "ENABLED",
    }
    assert shown(EncryptionStatus.ENABLING, "CUSTOMER_MANAGED_CMK", "arn:k")["KeyARN"] == "arn:k"
    assert shown(EncryptionStatus.DISABLED, "AWS_OWNED_CMK", None) == {"Status": "DISABLED"}


def test_a_kinesis_source_has_a_start_and_no_encryption() -> None:
    source = {"KinesisStreamARN": "arn:k", "RoleARN": ROLE}
    shown = describe(record(S3, source_type="KinesisStreamAsSource", source=source))
    assert shown["Source"] == {
        "KinesisStreamSourceDescription": {**source, "DeliveryStartTimestamp": 1_700_000_000.123}
    }
    assert "DeliveryStreamEncryptionConfiguration" not in shown


def test_a_throughput_hint_is_a_source() -> None:
    shown = describe(record(S3, source={"ThroughputHintInMBs": 3}))
    assert shown["Source"] == {"DirectPutSourceDescription": {"ThroughputHintInMBs": 3}}


def test_what_the_pipeline_is_told() -> None:
    config = {**S3, "BufferingHints": {"SizeInMBs": 2, "IntervalInSeconds": 0}}
    settings = settings_of(record(config, version=3, sql="SELECT 1"))
    assert (settings.buffer_bytes, settings.interval_ms) == (2 * 2**20, 0)
    assert (settings.version, settings.destination, settings.sql) == ("3", "ExtendedS3", "SELECT 1")
    assert settings.config["CompressionFormat"] == "UNCOMPRESSED"
