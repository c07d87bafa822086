"""What single clients of Firehose insist on, each in the way of its own code."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.firehose import (
    ACCOUNT,
    S3,
    Answer,
    FirehoseClient,
    access_keys_env,
    batch,
    check_answer,
    stored_records,
)
from harness import ServerProcess

RECORDS_PER_S = 40
DEADLINE_S = 30
POLL_S = 0.05
TERRAFORM = {
    **S3,
    "Prefix": "",
    "FileExtension": "",
    "CustomTimeZone": "UTC",
    "BufferingHints": {"SizeInMBs": 5, "IntervalInSeconds": 300},
    "CompressionFormat": "UNCOMPRESSED",
    "EncryptionConfiguration": {"NoEncryptionConfig": "NoEncryption"},
    "CloudWatchLoggingOptions": {"Enabled": False},
    "ProcessingConfiguration": {"Enabled": False, "Processors": []},
    "DataFormatConversionConfiguration": {"Enabled": False},
    "DynamicPartitioningConfiguration": {"Enabled": False},
    "S3BackupMode": "Disabled",
}


@pytest.fixture
def client(shared_server: ServerProcess) -> Iterator[FirehoseClient]:
    with FirehoseClient(shared_server.http_port) as client:
        yield client


@pytest.fixture
def slow_server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server that takes so many records a second and stream."""
    return start_server(env={"PENSTOCK_PUT_RECORDS_PER_S": str(RECORDS_PER_S)})


# -- Fluent Bit -------------------------------------------------------------------------------------


def fluent_bit_hears(body: bytes) -> str:
    """What its plugin makes of an answer: ok, throttled or failed."""
    if b'"FailedPutCount":0' in body:
        return "ok"
    answer = json.loads(body)
    failed, entries = answer["FailedPutCount"], answer["RequestResponses"]
    assert type(failed) is int
    assert failed >= 0
    assert entries, "it takes this for a broken answer"
    codes = [entry["ErrorCode"] for entry in entries if "ErrorCode" in entry]
    assert len(codes) == failed
    return "throttled" if any(code[:27] == "ServiceUnavailableException" for code in codes) else "failed"


def test_fluent_bit(client: FirehoseClient, name: str) -> None:
    client.create(name)
    for count in (1, 10, 100, 500):
        assert fluent_bit_hears(client.put_batch(name, [b"{}\n"] * count).body) == "ok"


def test_fluent_bit_is_throttled(slow_server: ServerProcess) -> None:
    with FirehoseClient(slow_server.http_port) as client:
        client.create("slow")
        partly = client.put_batch("slow", [b"x"] * (RECORDS_PER_S + 10))
        assert (partly.status, fluent_bit_hears(partly.body)) == (200, "throttled")
        wholly = client.put_batch("slow", [b"x"] * 100)
        assert (wholly.status, fluent_bit_hears(wholly.body)) == (200, "throttled")


# -- Kinesis Agent ----------------------------------------------------------------------------------


def test_kinesis_agent_sends_what_failed_again(slow_server: ServerProcess) -> None:
    """Success is an entry without ErrorCode; whatever is left goes into the next request."""
    records = [b"record %d" % number for number in range(3 * RECORDS_PER_S)]
    left = list(records)
    requests = 0
    deadline_s = time.monotonic() + DEADLINE_S
    with FirehoseClient(slow_server.http_port) as client:
        arn = client.create("agent")
        while left:
            assert time.monotonic() < deadline_s, f"{len(left)} records are left"
            entries = client.put_batch("agent", left).json["RequestResponses"]
            assert len(entries) == len(left)
            left = [data for data, entry in zip(left, entries, strict=True) if "ErrorCode" in entry]
            requests += 1
            time.sleep(POLL_S)  # the API has no way to call us
    assert requests > 1
    assert Counter(stored_records(slow_server, arn)) == Counter(records)


# -- aws-erlang -------------------------------------------------------------------------------------


def test_aws_erlang(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """It sends and signs its host without the port, for a region called local, and decodes whatever is not 200."""
    server = start_server(env=access_keys_env(tmp_path))
    with FirehoseClient(server.http_port, region="local", host="localhost") as client:
        arn = client.create("erlang")
        assert arn == f"arn:aws:firehose:local:{ACCOUNT}:deliverystream/erlang"
        assert client.put_batch("erlang", [b"x"]).status == 200
        assert client.call("DescribeDeliveryStream", {"DeliveryStreamName": "none"}).code
        body = json.dumps(batch("erlang", [b"x"])).encode()
        moved = client.send("PutRecordBatch", body, {"Host": "elsewhere"})
        check_answer("PutRecordBatch", moved)
        assert moved.code == "InvalidSignatureException"
    assert stored_records(server, arn) == [b"x"]


def test_names_belong_to_their_region(shared_server: ServerProcess, name: str) -> None:
    with FirehoseClient(shared_server.http_port, region="local") as here:
        here.create(name)
        with FirehoseClient(shared_server.http_port, region="elsewhere") as there:
            answer = there.call("DescribeDeliveryStream", {"DeliveryStreamName": name})
            assert answer.code == "ResourceNotFoundException"
            assert there.create(name) != here.describe(name)["DeliveryStreamARN"]


# -- Terraform --------------------------------------------------------------------------------------


def extended(shown: dict[str, Any]) -> dict[str, Any]:
    """All that Terraform reads of an S3 destination."""
    (destination,) = shown["Destinations"]
    return dict(destination["ExtendedS3DestinationDescription"])


def test_terraform_plans_converge(client: FirehoseClient, name: str) -> None:
    client.create(name, TERRAFORM, Tags=[{"Key": "Name", "Value": name}])
    client.succeed(
        "StartDeliveryStreamEncryption",
        {
            "DeliveryStreamName": name,
            "DeliveryStreamEncryptionConfigurationInput": {"KeyType": "AWS_OWNED_CMK"},
        },
    )
    created = client.wait_for(
        name, lambda shown: shown["DeliveryStreamEncryptionConfiguration"]["Status"] == "ENABLED"
    )
    assert extended(created) == TERRAFORM
    assert client.describe(name) == created
    tags = client.succeed("ListTagsForDeliveryStream", {"DeliveryStreamName": name})
    assert tags == {"Tags": [{"Key": "Name", "Value": name}], "HasMoreTags": False}

    update = {
        "DeliveryStreamName": name,
        "CurrentDeliveryStreamVersionId": created["VersionId"],
        "DestinationId": created["Destinations"][0]["DestinationId"],
        "ExtendedS3DestinationUpdate": TERRAFORM,
    }
    client.succeed("UpdateDestination", update)
    updated = client.describe(name)
    assert updated.pop("LastUpdateTimestamp") >= created["CreateTimestamp"]
    assert updated == {**created, "VersionId": "2"}

    client.succeed("DeleteDeliveryStream", {"DeliveryStreamName": name})
    assert described_until_gone(client, name).code == "ResourceNotFoundException"


def described_until_gone(client: FirehoseClient, name: str) -> Answer:
    deadline_s = time.monotonic() + DEADLINE_S
    while (answer := client.call("DescribeDeliveryStream", {"DeliveryStreamName": name})).status == 200:
        assert answer.json["DeliveryStreamDescription"]["DeliveryStreamStatus"] == "DELETING"
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)  # the API has no way to call us
    return answer


def test_terraform_changes_one_thing(client: FirehoseClient, name: str) -> None:
    """It sends the whole block for that, and expects to read back the whole block."""
    changes: list[dict[str, Any]] = [
        {"Prefix": "a/"},
        {"Prefix": "", "FileExtension": ".gz", "CompressionFormat": "GZIP"},
        {"FileExtension": "", "CustomTimeZone": "Europe/Berlin"},
        {"BufferingHints": {"SizeInMBs": 64, "IntervalInSeconds": 0}},
    ]
    client.create(name, TERRAFORM)
    wanted: dict[str, Any] = TERRAFORM
    for version, change in enumerate(changes, 1):
        wanted = {**wanted, **change}
        update = {
            "DeliveryStreamName": name,
            "CurrentDeliveryStreamVersionId": str(version),
            "DestinationId": "destinationId-000000000001",
            "ExtendedS3DestinationUpdate": wanted,
        }
        client.succeed("UpdateDestination", update)
        assert extended(client.describe(name)) == wanted
