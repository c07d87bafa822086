"""boto3 as a Firehose client of a test's server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import boto3
from botocore.config import Config

from harness import ServerProcess

ACCOUNT = "000000000000"
ROLE = "arn:aws:iam::123456789012:role/firehose"
S3: dict[str, Any] = {"RoleARN": ROLE, "BucketARN": "arn:aws:s3:::bucket"}
DEADLINE_S = 10

T = TypeVar("T")


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
    _poll(lambda: description(client, name)["DeliveryStreamStatus"], lambda seen: seen == status, name)


def wait_for_encryption(client: Any, name: str, status: str) -> dict[str, Any]:
    return _poll(
        lambda: dict(description(client, name)["DeliveryStreamEncryptionConfiguration"]),
        lambda seen: seen["Status"] == status,
        name,
    )


def wait_until_gone(client: Any, name: str) -> None:
    def is_there() -> bool:
        try:
            return bool(description(client, name))
        except client.exceptions.ResourceNotFoundException:
            return False

    _poll(is_there, lambda seen: not seen, name)


def _poll(look: Callable[[], T], reached: Callable[[T], bool], name: str) -> T:
    deadline_s = time.monotonic() + DEADLINE_S
    while not reached(seen := look()):
        assert time.monotonic() < deadline_s, f"{name} stays {seen}"
        time.sleep(0.02)  # the API has no way to call us
    return seen
