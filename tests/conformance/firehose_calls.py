"""boto3 as a Firehose client of a test's server."""

from __future__ import annotations

import time
from typing import Any

import boto3
from botocore.config import Config

from harness import ServerProcess

ACCOUNT = "000000000000"
ROLE = "arn:aws:iam::123456789012:role/firehose"
S3: dict[str, Any] = {"RoleARN": ROLE, "BucketARN": "arn:aws:s3:::bucket"}
DEADLINE_S = 10


def firehose_client(server: ServerProcess, region: str = "eu-west-1", **config: Any) -> Any:
    return boto3.session.Session().client(
        "firehose",
        endpoint_url=f"http://127.0.0.1:{server.http_port}",
        region_name=region,
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


def arn_of(name: str, region: str = "eu-west-1") -> str:
    return f"arn:aws:firehose:{region}:{ACCOUNT}:deliverystream/{name}"


def description(client: Any, name: str) -> dict[str, Any]:
    answer = client.describe_delivery_stream(DeliveryStreamName=name)
    return dict(answer["DeliveryStreamDescription"])


def create(client: Any, name: str, **more: Any) -> str:
    """A stream that is ACTIVE."""
    if not any(member.endswith("DestinationConfiguration") for member in more):
        more["ExtendedS3DestinationConfiguration"] = S3
    arn = client.create_delivery_stream(DeliveryStreamName=name, **more)["DeliveryStreamARN"]
    wait_for_status(client, name, "ACTIVE")
    return str(arn)


def wait_for_status(client: Any, name: str, status: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while (seen := description(client, name)["DeliveryStreamStatus"]) != status:
        assert time.monotonic() < deadline_s, f"{name} stays {seen}"
        time.sleep(0.02)  # the API has no way to call us


def wait_for_encryption(client: Any, name: str, status: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        seen = description(client, name)["DeliveryStreamEncryptionConfiguration"]
        if seen["Status"] == status:
            return dict(seen)
        assert time.monotonic() < deadline_s, f"{name} stays {seen}"
        time.sleep(0.02)  # the API has no way to call us


def wait_until_gone(client: Any, name: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            description(client, name)
        except client.exceptions.ResourceNotFoundException:
            return
        assert time.monotonic() < deadline_s, f"{name} stays"
        time.sleep(0.02)  # the API has no way to call us
