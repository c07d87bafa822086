"""Layer 2 of the checks of the Firehose door: sources, encryption, updates, what is not supported yet."""

from __future__ import annotations

import re
from typing import Any

import pytest
from firehose_bodies import OFF, ON, accept, conversion, extended, refusal
from firehose_model import ROLE, S3, create

from penstock.delivery.errors import ApiError
from penstock.doors.firehose.rules import (
    check_create,
    check_encryption_input,
    check_encryption_source,
    check_immutable,
    check_merged,
    one_destination,
)

# -- destinations and sources -----------------------------------------------------------------------


def test_exactly_one_destination() -> None:
    text = "Exactly one destination configuration is supported for a Firehose"
    assert refusal({"DeliveryStreamName": "s"}) == text
    assert refusal({**extended(), "S3DestinationConfiguration": S3}) == text
    assert one_destination(extended(), "DestinationConfiguration") == ("ExtendedS3", S3)
    assert one_destination({"S3DestinationUpdate": {}}, "DestinationUpdate") == ("S3", {})
    accept(extended())
    accept(create(S3, "S3DestinationConfiguration"))


KINESIS = {"KinesisStreamARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/s", "RoleARN": ROLE}
MSK = {
    "MSKClusterARN": "arn:aws:kafka:eu-west-1:123456789012:cluster/c",
    "TopicName": "t",
    "AuthenticationConfiguration": {"RoleARN": ROLE, "Connectivity": "PUBLIC"},
}


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (
            {"KinesisStreamSourceConfiguration": KINESIS},
            "KinesisSourceStreamConfig is only applicable for KinesisStreamAsSource stream type",
        ),
        (
            {"DeliveryStreamType": "DirectPut", "MSKSourceConfiguration": MSK},
            "MSKSourceConfig is only applicable for MSKAsSource stream type",
        ),
        (
            {
                "DeliveryStreamType": "KinesisStreamAsSource",
                "KinesisStreamSourceConfiguration": KINESIS,
                "DirectPutSourceConfiguration": {"ThroughputHintInMBs": 1},
            },
            "DirectPutSourceConfig is only applicable for DirectPut stream type",
        ),
        (
            {"DeliveryStreamType": "KinesisStreamAsSource"},
            "KinesisSourceStreamConfig is mandatory for KinesisStreamAsSource stream type.",
        ),
        (
            {"DeliveryStreamType": "MSKAsSource"},
            "MSKSourceConfig is mandatory for MSK as Source stream type.",
        ),
        (
            {"DeliveryStreamType": "DatabaseAsSource"},
            "DatabaseSourceConfig is mandatory for Database as Source stream type.",
        ),
    ],
)
def test_source_must_match_the_type(members: dict[str, Any], text: str) -> None:
    assert refusal({**extended(), **members}) == text


def test_databases_go_to_iceberg() -> None:
    body = {**extended(), "DeliveryStreamType": "DatabaseAsSource", "DatabaseSourceConfiguration": {}}
    with pytest.raises(ApiError, match="IcebergDestinationConfiguration must be specified"):
        check_create(body)


def test_no_backup_of_msk_records() -> None:
    body = extended(S3BackupMode="Enabled", S3BackupConfiguration=S3)
    source = {"DeliveryStreamType": "MSKAsSource", "MSKSourceConfiguration": MSK}
    assert "S3BackupMode Enabled is only applicable" in refusal({**body, **source}, supported_only=False)
    accept({**extended(), **source}, supported_only=False)


def test_what_is_not_delivered_yet_is_refused_last() -> None:
    source = {"DeliveryStreamType": "KinesisStreamAsSource", "KinesisStreamSourceConfiguration": KINESIS}
    text = refusal({**extended(), **source})
    assert "does not support the delivery stream type KinesisStreamAsSource" in text
    assert "supports DirectPut" in text
    accept({**extended(), **source}, supported_only=False)
    http = {"EndpointConfiguration": {"Url": "https://host"}, "S3Configuration": S3}
    text = refusal(create(http, "HttpEndpointDestinationConfiguration"))
    assert "does not support HttpEndpoint destinations" in text
    assert "ExtendedS3DestinationConfiguration" in text
    http["CloudWatchLoggingOptions"] = ON
    assert "CloudWatch Log Group" in refusal(create(http, "HttpEndpointDestinationConfiguration"))


def test_key_arn_if_and_only_if_the_key_is_the_customers() -> None:
    arn = "arn:aws:kms:eu-west-1:123456789012:key/k"
    name = "DeliveryStreamEncryptionConfigurationInput"
    customer = {"KeyType": "CUSTOMER_MANAGED_CMK"}
    owned = {"KeyType": "AWS_OWNED_CMK"}
    assert refusal({**extended(), name: customer}) == (
        "KeyARN has to be specified when KeyType is CUSTOMER_MANAGED_CMK"
    )
    assert refusal({**extended(), name: {**owned, "KeyARN": arn}}) == (
        "KeyARN cannot be specified when KeyType is AWS_OWNED_CMK"
    )
    accept({**extended(), name: {**customer, "KeyARN": arn}})
    check_encryption_input(owned)


def test_encryption_is_for_direct_put() -> None:
    body = {
        **extended(),
        "DeliveryStreamType": "KinesisStreamAsSource",
        "KinesisStreamSourceConfiguration": KINESIS,
        "DeliveryStreamEncryptionConfigurationInput": {"KeyType": "AWS_OWNED_CMK"},
    }
    assert refusal(body).startswith("Server side encryption from firehose is only allowed for direct put")
    check_encryption_source("DirectPut")


# -- updates ----------------------------------------------------------------------------------------


def update_refusal(old: dict[str, Any], new: dict[str, Any], kind: str = "ExtendedS3") -> str:
    with pytest.raises(ApiError) as caught:
        check_immutable(kind, old, new)
    assert caught.value.code == "InvalidArgumentException"
    return caught.value.message


@pytest.mark.parametrize(("old", "new"), [({}, ON), (ON, OFF), (OFF, ON)])
def test_partitions_stay_as_they_are(old: dict[str, Any], new: dict[str, Any]) -> None:
    name = "DynamicPartitioningConfiguration"
    assert "only when a delivery stream is created" in update_refusal({**S3, name: old}, {**S3, name: new})
    check_immutable("ExtendedS3", {**S3, name: new}, {**S3, name: new})
    check_immutable("ExtendedS3", S3, {**S3, name: OFF})


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("ExtendedS3", "Enabled", "Disabled"),
        ("Redshift", "Enabled", "Disabled"),
        ("Splunk", "AllEvents", "FailedEventsOnly"),
        ("HttpEndpoint", "AllData", "FailedDataOnly"),
        ("Snowflake", "AllData", "FailedDataOnly"),
    ],
)
def test_backups_cannot_be_switched_off(kind: str, old: str, new: str) -> None:
    text = update_refusal({"S3BackupMode": old}, {"S3BackupMode": new}, kind)
    assert re.match(f"S3BackupMode cannot be changed from {old} to {new}", text)
    check_immutable(kind, {"S3BackupMode": new}, {"S3BackupMode": old})
    check_immutable(kind, {}, {"S3BackupMode": old})


@pytest.mark.parametrize("kind", ["Elasticsearch", "Amazonopensearchservice", "AmazonOpenSearchServerless"])
def test_what_is_fixed_for_search_engines(kind: str) -> None:
    assert "S3BackupMode cannot be changed" in update_refusal({}, {"S3BackupMode": "AllDocuments"}, kind)
    check_immutable(kind, {}, {"S3BackupMode": "FailedDocumentsOnly"})
    assert "VpcConfiguration cannot be changed" in update_refusal(
        {}, {"VpcConfiguration": {"RoleARN": ROLE}}, kind
    )


def test_a_merged_configuration_is_checked_as_a_whole() -> None:
    block = conversion()["ExtendedS3DestinationConfiguration"]
    with pytest.raises(ApiError, match="must be set to UNCOMPRESSED"):
        check_merged("ExtendedS3", {**block, "CompressionFormat": "GZIP"}, creating=False)
    check_merged("ExtendedS3", S3, creating=False)


@pytest.mark.parametrize(
    ("kind", "config", "text"),
    [
        ("ExtendedS3", {"RoleARN": ROLE}, "BucketARN must not be null"),
        ("S3", {"BucketARN": "b"}, "RoleARN must not be null"),
        (
            "ExtendedS3",
            {**S3, "S3BackupConfiguration": {"RoleARN": ROLE}},
            "S3BackupConfiguration.BucketARN must not",
        ),
        ("Redshift", {"RoleARN": ROLE}, "ClusterJDBCURL must not be null"),
    ],
)
def test_required_members_after_an_update(kind: str, config: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError, match=text):
        check_merged(kind, config, creating=False)
