"""Every operation of Firehose by boto3, which knows nothing of Penstock but its address."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from conformance.firehose_calls import (
    ACCOUNT,
    ROLE,
    S3,
    arn_of,
    create,
    description,
    firehose_client,
    wait_for_encryption,
    wait_for_status,
    wait_until_gone,
)
from harness import ServerProcess

UPDATE: dict[str, Any] = {
    "CurrentDeliveryStreamVersionId": "1",
    "DestinationId": "destinationId-000000000001",
}


@pytest.fixture(scope="module")
def client(shared_server: ServerProcess) -> Any:
    return firehose_client(shared_server)


def refused(call: Callable[..., object], **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        call(**arguments)
    answer = error.value.response
    assert answer["ResponseMetadata"]["RequestId"]
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 400
    return answer["Error"]["Code"], answer["Error"]["Message"]


def test_a_life(client: Any, name: str) -> None:
    answer = client.create_delivery_stream(DeliveryStreamName=name, ExtendedS3DestinationConfiguration=S3)
    assert answer["DeliveryStreamARN"] == arn_of(name)
    assert description(client, name)["DeliveryStreamStatus"] == "CREATING"
    wait_for_status(client, name, "ACTIVE")
    put = client.put_record(DeliveryStreamName=name, Record={"Data": b"one"})
    assert (bool(put["RecordId"]), put["Encrypted"]) == (True, False)
    batch = client.put_record_batch(DeliveryStreamName=name, Records=[{"Data": b"two"}, {"Data": b""}])
    assert batch["FailedPutCount"] == 0
    assert len({entry["RecordId"] for entry in batch["RequestResponses"]} | {put["RecordId"]}) == 3
    client.delete_delivery_stream(DeliveryStreamName=name)
    assert description(client, name)["DeliveryStreamStatus"] == "DELETING"
    client.delete_delivery_stream(DeliveryStreamName=name, AllowForceDelete=True)
    wait_until_gone(client, name)


def test_description(client: Any, name: str) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    create(client, name)
    shown = description(client, name)
    assert before < shown["CreateTimestamp"] < datetime.now(timezone.utc)
    assert "LastUpdateTimestamp" not in shown
    assert shown["DeliveryStreamEncryptionConfiguration"] == {"Status": "DISABLED"}
    assert (shown["VersionId"], shown["HasMoreDestinations"]) == ("1", False)
    [destination] = shown["Destinations"]
    assert destination["DestinationId"] == "destinationId-000000000001"
    assert {**destination["ExtendedS3DestinationDescription"], **S3} == (
        destination["ExtendedS3DestinationDescription"]
    )
    paged = client.describe_delivery_stream(
        DeliveryStreamName=name, Limit=1, ExclusiveStartDestinationId="destinationId-000000000001"
    )
    assert paged["DeliveryStreamDescription"] == shown


def test_the_deprecated_form_shows_both_too(client: Any, name: str) -> None:
    create(client, name, S3DestinationConfiguration=S3)
    [destination] = description(client, name)["Destinations"]
    assert destination["S3DestinationDescription"]["BucketARN"] == S3["BucketARN"]
    assert destination["ExtendedS3DestinationDescription"]["BucketARN"] == S3["BucketARN"]


def test_what_terraform_sends_is_echoed(client: Any, name: str) -> None:
    """Or its plans never converge."""
    sent = {
        **S3,
        "Prefix": "",
        "FileExtension": "",
        "CustomTimeZone": "UTC",
        "ProcessingConfiguration": {"Enabled": False, "Processors": []},
        "DataFormatConversionConfiguration": {"Enabled": False},
        "DynamicPartitioningConfiguration": {"Enabled": False},
        "BufferingHints": {"SizeInMBs": 5, "IntervalInSeconds": 300},
        "CompressionFormat": "UNCOMPRESSED",
        "CloudWatchLoggingOptions": {"Enabled": False},
        "S3BackupMode": "Disabled",
    }
    create(client, name, ExtendedS3DestinationConfiguration=sent)
    [destination] = description(client, name)["Destinations"]
    shown = destination["ExtendedS3DestinationDescription"]
    assert {member: shown.get(member) for member in sent} == sent


def test_updates(client: Any, name: str) -> None:
    create(
        client, name, ExtendedS3DestinationConfiguration={**S3, "Prefix": "a/", "CompressionFormat": "GZIP"}
    )
    client.update_destination(DeliveryStreamName=name, **UPDATE, S3DestinationUpdate={"Prefix": "b/"})
    shown = description(client, name)
    assert shown["VersionId"] == "2"
    assert shown["LastUpdateTimestamp"] >= shown["CreateTimestamp"]
    for block in ("S3DestinationDescription", "ExtendedS3DestinationDescription"):
        [destination] = shown["Destinations"]
        assert destination[block]["Prefix"] == "b/"
        assert destination[block]["CompressionFormat"] == "GZIP"
    stale = refused(client.update_destination, DeliveryStreamName=name, **UPDATE, S3DestinationUpdate={})
    assert stale == (
        "ConcurrentModificationException",
        f"Cannot update firehose: {name} since the current version id: 2 and specified version id: 1 do not match",
    )
    second = {**UPDATE, "CurrentDeliveryStreamVersionId": "2"}
    code, message = refused(
        client.update_destination,
        DeliveryStreamName=name,
        **second,
        ExtendedS3DestinationUpdate={},
        S3DestinationUpdate={},
    )
    assert (code, message) == (
        "InvalidArgumentException",
        "Exactly one destination configuration is supported for a Firehose",
    )
    code, message = refused(
        client.update_destination,
        DeliveryStreamName=name,
        **{**second, "DestinationId": "destinationId-000000000002"},
        S3DestinationUpdate={},
    )
    assert (code, message) == (
        "InvalidArgumentException",
        "Destination Id destinationId-000000000002 not found",
    )
    code, message = refused(
        client.update_destination,
        DeliveryStreamName=name,
        **second,
        HttpEndpointDestinationUpdate={"EndpointConfiguration": {"Url": "https://sink.example"}},
    )
    assert (code, message) == (
        "InvalidArgumentException",
        "Changing the destination type to or from HttpEndpoint is not supported at this time.",
    )
    code, message = refused(
        client.update_destination,
        DeliveryStreamName=name,
        **second,
        ExtendedS3DestinationUpdate={"Prefix": "!{timestamp:yyyy}/"},
    )
    assert code == "InvalidArgumentException"
    assert "ErrorOutputPrefix" in message
    assert description(client, name)["VersionId"] == "2"


def test_listing(shared_server: ServerProcess) -> None:
    client = firehose_client(shared_server, "list-region-1")
    names = [f"list-{number:02}" for number in range(12)]
    for name in reversed(names):
        client.create_delivery_stream(DeliveryStreamName=name, ExtendedS3DestinationConfiguration=S3)
    first = client.list_delivery_streams()
    assert (first["DeliveryStreamNames"], first["HasMoreDeliveryStreams"]) == (names[:10], True)
    rest = client.list_delivery_streams(ExclusiveStartDeliveryStreamName=names[9])
    assert (rest["DeliveryStreamNames"], rest["HasMoreDeliveryStreams"]) == (names[10:], False)
    some = client.list_delivery_streams(Limit=3, ExclusiveStartDeliveryStreamName="list-04x")
    assert (some["DeliveryStreamNames"], some["HasMoreDeliveryStreams"]) == (names[5:8], True)
    other = client.list_delivery_streams(DeliveryStreamType="KinesisStreamAsSource")
    assert (other["DeliveryStreamNames"], other["HasMoreDeliveryStreams"]) == ([], False)
    elsewhere = firehose_client(shared_server, "list-region-2").list_delivery_streams()
    assert elsewhere["DeliveryStreamNames"] == []


def test_regions_are_apart(shared_server: ServerProcess, name: str) -> None:
    for region in ("eu-west-1", "us-west-2"):
        assert create(firehose_client(shared_server, region), name) == arn_of(name, region)


def test_tags(client: Any, name: str) -> None:
    create(client, name, Tags=[{"Key": "b", "Value": "1"}, {"Key": "a"}])
    client.tag_delivery_stream(
        DeliveryStreamName=name, Tags=[{"Key": "c", "Value": "3"}, {"Key": "b", "Value": "one"}]
    )
    shown = client.list_tags_for_delivery_stream(DeliveryStreamName=name)
    assert shown["Tags"] == [{"Key": "b", "Value": "one"}, {"Key": "a"}, {"Key": "c", "Value": "3"}]
    assert not shown["HasMoreTags"]
    page = client.list_tags_for_delivery_stream(DeliveryStreamName=name, Limit=1, ExclusiveStartTagKey="b")
    assert (page["Tags"], page["HasMoreTags"]) == ([{"Key": "a"}], True)
    client.untag_delivery_stream(DeliveryStreamName=name, TagKeys=["a", "unknown"])
    left = client.list_tags_for_delivery_stream(DeliveryStreamName=name)["Tags"]
    assert [tag["Key"] for tag in left] == ["b", "c"]
    many = [{"Key": f"k{number}", "Value": ""} for number in range(49)]
    code, _ = refused(client.tag_delivery_stream, DeliveryStreamName=name, Tags=many)
    assert code == "LimitExceededException"
    client.tag_delivery_stream(DeliveryStreamName=name, Tags=many[:48])
    assert len(client.list_tags_for_delivery_stream(DeliveryStreamName=name)["Tags"]) == 50
    code, message = refused(
        client.tag_delivery_stream, DeliveryStreamName=name, Tags=[{"Key": "foo!", "Value": "x"}]
    )
    assert code == "ValidationException"
    assert "Value 'foo!' at 'tags.1.member.key' failed to satisfy constraint" in message


def test_encryption(client: Any, name: str) -> None:
    create(client, name)
    client.start_delivery_stream_encryption(DeliveryStreamName=name)
    shown = description(client, name)
    assert shown["DeliveryStreamEncryptionConfiguration"] == {
        "KeyType": "AWS_OWNED_CMK",
        "Status": "ENABLING",
    }
    code, _ = refused(client.stop_delivery_stream_encryption, DeliveryStreamName=name)
    assert code == "ResourceInUseException"
    assert wait_for_encryption(client, name, "ENABLED") == {"KeyType": "AWS_OWNED_CMK", "Status": "ENABLED"}
    assert client.put_record(DeliveryStreamName=name, Record={"Data": b"x"})["Encrypted"]
    client.start_delivery_stream_encryption(
        DeliveryStreamName=name, DeliveryStreamEncryptionConfigurationInput={"KeyType": "AWS_OWNED_CMK"}
    )
    wait_for_encryption(client, name, "ENABLED")
    client.stop_delivery_stream_encryption(DeliveryStreamName=name)
    assert description(client, name)["DeliveryStreamEncryptionConfiguration"]["Status"] == "DISABLING"
    assert wait_for_encryption(client, name, "DISABLED") == {"Status": "DISABLED"}
    assert not client.put_record(DeliveryStreamName=name, Record={"Data": b"x"})["Encrypted"]
    assert description(client, name)["VersionId"] == "1"


def test_encryption_from_the_beginning(client: Any, name: str) -> None:
    create(client, name, DeliveryStreamEncryptionConfigurationInput={"KeyType": "AWS_OWNED_CMK"})
    assert description(client, name)["DeliveryStreamEncryptionConfiguration"] == {
        "KeyType": "AWS_OWNED_CMK",
        "Status": "ENABLED",
    }
    assert client.put_record(DeliveryStreamName=name, Record={"Data": b"x"})["Encrypted"]


def test_keys_that_are_not_there(client: Any, name: str) -> None:
    unknown = {
        "KeyType": "CUSTOMER_MANAGED_CMK",
        "KeyARN": "arn:aws:kms:eu-west-1:123456789012:key/unknown",
    }
    create(client, name)
    for call, arguments in (
        (client.start_delivery_stream_encryption, {"DeliveryStreamName": name}),
        (
            client.create_delivery_stream,
            {"DeliveryStreamName": f"{name}-new", "ExtendedS3DestinationConfiguration": S3},
        ),
    ):
        with pytest.raises(ClientError) as error:
            call(**arguments, DeliveryStreamEncryptionConfigurationInput=unknown)
        answer: dict[str, Any] = error.value.response  # type: ignore[assignment]
        assert answer["Error"]["Code"] == "InvalidKMSResourceException"
        assert answer["code"] == "KMS_KEY_NOT_FOUND"
    assert description(client, name)["DeliveryStreamEncryptionConfiguration"] == {"Status": "DISABLED"}
    code, _ = refused(client.describe_delivery_stream, DeliveryStreamName=f"{name}-new")
    assert code == "ResourceNotFoundException"
    for wrong in ({"KeyType": "CUSTOMER_MANAGED_CMK"}, {**unknown, "KeyType": "AWS_OWNED_CMK"}):
        code, message = refused(
            client.start_delivery_stream_encryption,
            DeliveryStreamName=name,
            DeliveryStreamEncryptionConfigurationInput=wrong,
        )
        assert code == "InvalidArgumentException"
        assert "KeyARN" in message


def test_unknown_streams(client: Any) -> None:
    named = {"DeliveryStreamName": "unknown"}
    message = f"Firehose unknown under account {ACCOUNT} not found."
    record = {"Data": b"x"}
    for call, more in (
        (client.describe_delivery_stream, {}),
        (client.delete_delivery_stream, {}),
        (client.list_tags_for_delivery_stream, {}),
        (client.tag_delivery_stream, {"Tags": [{"Key": "k"}]}),
        (client.untag_delivery_stream, {"TagKeys": ["k"]}),
        (client.start_delivery_stream_encryption, {}),
        (client.stop_delivery_stream_encryption, {}),
        (client.put_record, {"Record": record}),
        (client.put_record_batch, {"Records": [record]}),
    ):
        assert refused(call, **named, **more) == ("ResourceNotFoundException", message)
    code, message = refused(client.update_destination, **named, **UPDATE, S3DestinationUpdate={})
    assert code == "ResourceNotFoundException"
    assert message == f"Firehose unknown under accountId {ACCOUNT} not found."


def test_what_create_refuses(client: Any, name: str) -> None:
    named = {"DeliveryStreamName": name}
    only_one = (
        "InvalidArgumentException",
        "Exactly one destination configuration is supported for a Firehose",
    )
    assert refused(client.create_delivery_stream, **named) == only_one
    both = {"S3DestinationConfiguration": S3, "ExtendedS3DestinationConfiguration": S3}
    assert refused(client.create_delivery_stream, **named, **both) == only_one
    kinesis = {"KinesisStreamARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/s", "RoleARN": ROLE}
    assert refused(
        client.create_delivery_stream,
        **named,
        KinesisStreamSourceConfiguration=kinesis,
        ExtendedS3DestinationConfiguration=S3,
    ) == (
        "InvalidArgumentException",
        "KinesisSourceStreamConfig is only applicable for KinesisStreamAsSource stream type",
    )
    code, message = refused(
        client.create_delivery_stream,
        DeliveryStreamName="no spaces",
        ExtendedS3DestinationConfiguration={**S3, "CompressionFormat": "NOPE"},
    )
    assert code == "ValidationException"
    assert message.startswith("2 validation errors detected: ")
    assert "Value at 'extendedS3DestinationConfiguration.compressionFormat'" in message
    create(client, name)
    assert refused(client.create_delivery_stream, **named, ExtendedS3DestinationConfiguration=S3) == (
        "ResourceInUseException",
        f"Firehose {name} under accountId {ACCOUNT} already exists",
    )


def test_format_conversion_needs_a_table_that_is_there(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "events.ddl").write_text("id BIGINT")
    client = firehose_client(start_server(env={"PENSTOCK_SCHEMAS": str(tmp_path)}))

    def conversion(table: str) -> dict[str, Any]:
        return {
            "SchemaConfiguration": {"RoleARN": ROLE, "DatabaseName": "lake", "TableName": table},
            "InputFormatConfiguration": {"Deserializer": {"OpenXJsonSerDe": {}}},
            "OutputFormatConfiguration": {"Serializer": {"ParquetSerDe": {}}},
        }

    config = {**S3, "BufferingHints": {"SizeInMBs": 64, "IntervalInSeconds": 60}}
    code, message = refused(
        client.create_delivery_stream,
        DeliveryStreamName="d",
        ExtendedS3DestinationConfiguration={
            **config,
            "DataFormatConversionConfiguration": conversion("nope"),
        },
    )
    assert code == "InvalidArgumentException"
    assert message.startswith("EntityNotFoundException: Table nope not found")
    converted = {**config, "DataFormatConversionConfiguration": conversion("events")}
    create(client, "d", ExtendedS3DestinationConfiguration=converted)

    def change(conversion: dict[str, Any]) -> dict[str, Any]:
        update = {"DataFormatConversionConfiguration": conversion}
        return {"DeliveryStreamName": "d", **UPDATE, "ExtendedS3DestinationUpdate": update}

    other_table = {"SchemaConfiguration": {"TableName": "gone"}}  # the rest stays as it is
    for conversion_update in (conversion("gone"), other_table):
        code, message = refused(client.update_destination, **change(conversion_update))
        assert (code, message.partition(";")[0]) == (
            "InvalidArgumentException",
            "EntityNotFoundException: Table gone not found",
        )
    (tmp_path / "lake" / "events.ddl").unlink()
    client.update_destination(
        DeliveryStreamName="d", **UPDATE, ExtendedS3DestinationUpdate={"Prefix": "nothing to do with it"}
    )
    second = {"CurrentDeliveryStreamVersionId": "2"}
    client.update_destination(**{**change({**other_table, "Enabled": False}), **second})
    [destination] = description(client, "d")["Destinations"]
    shown = destination["ExtendedS3DestinationDescription"]["DataFormatConversionConfiguration"]
    assert (shown["Enabled"], shown["SchemaConfiguration"]["TableName"]) == (False, "gone")


def test_what_is_not_delivered_yet_is_refused_loudly(client: Any, name: str) -> None:
    code, message = refused(
        client.create_delivery_stream,
        DeliveryStreamName=name,
        HttpEndpointDestinationConfiguration={
            "EndpointConfiguration": {"Url": "https://sink.example/"},
            "S3Configuration": S3,
        },
    )
    assert code == "InvalidArgumentException"
    assert "does not support HttpEndpoint destinations" in message


def test_puts_while_creating_and_deleting(client: Any, name: str) -> None:
    client.create_delivery_stream(DeliveryStreamName=name, ExtendedS3DestinationConfiguration=S3)
    record = {"Data": b"x"}
    assert (
        refused(client.put_record, DeliveryStreamName=name, Record=record)[0] == "ResourceNotFoundException"
    )
    code, _ = refused(client.delete_delivery_stream, DeliveryStreamName=name)
    assert code == "ResourceInUseException"
    wait_for_status(client, name, "ACTIVE")
    client.delete_delivery_stream(DeliveryStreamName=name)
    assert (
        refused(client.put_record, DeliveryStreamName=name, Record=record)[0] == "ResourceNotFoundException"
    )
    code, _ = refused(client.update_destination, DeliveryStreamName=name, **UPDATE, S3DestinationUpdate={})
    assert code == "ResourceInUseException"


def test_lenient_create_is_active_at_once(start_server: Callable[..., ServerProcess]) -> None:
    """What tests that were written for emulators do."""
    env = {"PENSTOCK_FIREHOSE_LENIENT": "on", "PENSTOCK_ACCOUNT_ID": "123456789012"}
    client = firehose_client(start_server(env=env), "us-east-1")
    arn = client.create_delivery_stream(
        DeliveryStreamName="moto",
        ExtendedS3DestinationConfiguration={
            "RoleARN": "arn:aws:iam::0:role/x",
            "BucketARN": "arn:aws:s3:::b",
        },
    )["DeliveryStreamARN"]
    assert arn == "arn:aws:firehose:us-east-1:123456789012:deliverystream/moto"
    assert description(client, "moto")["DeliveryStreamStatus"] == "ACTIVE"
    assert client.put_record(DeliveryStreamName="moto", Record={"Data": b"x"})["RecordId"]


def test_quotas(start_server: Callable[..., ServerProcess]) -> None:
    env = {"PENSTOCK_FIREHOSE_STREAMS_MAX": "2", "PENSTOCK_FIREHOSE_CONTROL_CALLS_PER_S": "5"}
    client = firehose_client(start_server(env=env))
    for name in ("b", "a"):
        client.create_delivery_stream(DeliveryStreamName=name, ExtendedS3DestinationConfiguration=S3)
    assert refused(
        client.create_delivery_stream, DeliveryStreamName="c", ExtendedS3DestinationConfiguration=S3
    ) == (
        "LimitExceededException",
        "You have already consumed your firehose quota of 2 hoses. Firehose names: [a, b]",
    )
    outcomes = []
    for _ in range(10):
        try:
            client.list_delivery_streams()
        except ClientError as error:
            outcomes.append(error.response["Error"])
    assert outcomes
    assert {error["Code"] for error in outcomes} == {"ThrottlingException"}
    assert re.match("Please slow down. Max limit of 5 RPS has breached for", outcomes[0]["Message"])


def test_the_example_of_the_documentation(start_server: Callable[..., ServerProcess]) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "firehose.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    address = f"127.0.0.1:{start_server().http_port}"
    finished = subprocess.run(
        [sys.executable, "-c", program.replace("127.0.0.1:8080", address)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.stdout == "0\n"


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart_keeps_everything(start_server: Callable[..., ServerProcess], kill: bool) -> None:
    server = start_server()
    client = firehose_client(server)
    create(client, "plain")
    create(client, "changed", Tags=[{"Key": "b"}, {"Key": "a", "Value": "1"}])
    client.update_destination(
        DeliveryStreamName="changed", **UPDATE, ExtendedS3DestinationUpdate={"CompressionFormat": "GZIP"}
    )
    client.start_delivery_stream_encryption(DeliveryStreamName="changed")
    wait_for_encryption(client, "changed", "ENABLED")
    before_ids = [
        client.put_record(DeliveryStreamName=name, Record={"Data": b"x"})["RecordId"]
        for name in ("plain", "changed")
    ]
    before = {name: description(client, name) for name in ("plain", "changed")}
    tags = client.list_tags_for_delivery_stream(DeliveryStreamName="changed")["Tags"]
    if kill:
        server.kill()
    else:
        server.stop()
    server.start()
    client = firehose_client(server)
    assert {name: description(client, name) for name in ("plain", "changed")} == before
    assert client.list_tags_for_delivery_stream(DeliveryStreamName="changed")["Tags"] == tags
    after = [
        client.put_record(DeliveryStreamName=name, Record={"Data": b"y"}) for name in ("plain", "changed")
    ]
    assert [answer["Encrypted"] for answer in after] == [False, True]
    for earlier, later in zip(before_ids, after, strict=True):
        assert earlier < later["RecordId"]
