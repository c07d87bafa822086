"""A real server: what the files of its data directory give away."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from harness import ServerProcess

PLAIN, SEALED = b"PLAIN-" + os.urandom(12), b"SEALED-" + os.urandom(12)
S3 = {"BucketARN": "arn:aws:s3:::lake", "RoleARN": "arn:aws:iam::000000000000:role/firehose"}
KEY_ARN = "arn:aws:kms:eu-west-1:000000000000:key/orders"
DEADLINE_S = 20


def firehose(server: ServerProcess) -> Any:
    return boto3.session.Session("id", "secret", region_name="eu-west-1").client(
        "firehose", endpoint_url=f"http://{server.host}:{server.http_port}"
    )


def wait_for(client: Any, name: str, **wanted: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        described = client.describe_delivery_stream(DeliveryStreamName=name)["DeliveryStreamDescription"]
        found = {
            "status": described["DeliveryStreamStatus"],
            "encryption": described["DeliveryStreamEncryptionConfiguration"]["Status"],
        }
        if found.items() >= wanted.items():
            return
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)  # the API has no way to call us


def files_with(directory: Path, needle: bytes) -> list[str]:
    return [path.name for path in directory.rglob("*") if path.is_file() and needle in path.read_bytes()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    keys = tmp_path / "master-keys.json"
    keys.touch(0o600)
    keys.write_text(f'{{"{KEY_ARN}": "{base64.b64encode(os.urandom(32)).decode()}"}}')
    server = ServerProcess(tmp_path / "data", env={"PENSTOCK_MASTER_KEYS_FILE": str(keys)}).start()
    yield server
    if server.is_running:
        server.stop()


@pytest.mark.parametrize(
    "key", [{"KeyType": "AWS_OWNED_CMK"}, {"KeyType": "CUSTOMER_MANAGED_CMK", "KeyARN": KEY_ARN}]
)
def test_sealed_records_are_nowhere_in_the_clear(server: ServerProcess, key: dict[str, str]) -> None:
    client = firehose(server)
    client.create_delivery_stream(DeliveryStreamName="orders", ExtendedS3DestinationConfiguration=S3)
    wait_for(client, "orders", status="ACTIVE", encryption="DISABLED")
    assert client.put_record(DeliveryStreamName="orders", Record={"Data": PLAIN})["Encrypted"] is False
    client.start_delivery_stream_encryption(
        DeliveryStreamName="orders", DeliveryStreamEncryptionConfigurationInput=key
    )
    wait_for(client, "orders", encryption="ENABLED")
    records = [{"Data": SEALED}] * 5
    answer = client.put_record_batch(DeliveryStreamName="orders", Records=records)
    assert (answer["Encrypted"], answer["FailedPutCount"]) == (True, 0)
    server.kill()

    assert files_with(server.data_dir, PLAIN)  # or the search would prove nothing
    assert files_with(server.data_dir, SEALED) == []
    assert (server.data_dir / "master.key").exists() == (key["KeyType"] == "AWS_OWNED_CMK")

    server.start()
    again = firehose(server)
    assert again.put_record(DeliveryStreamName="orders", Record={"Data": SEALED})["Encrypted"] is True
    server.stop()
    assert files_with(server.data_dir, SEALED) == []


def test_a_key_that_is_in_no_file(server: ServerProcess) -> None:
    client = firehose(server)
    with pytest.raises(client.exceptions.InvalidKMSResourceException) as caught:
        client.create_delivery_stream(
            DeliveryStreamName="orders",
            ExtendedS3DestinationConfiguration=S3,
            DeliveryStreamEncryptionConfigurationInput={
                "KeyType": "CUSTOMER_MANAGED_CMK",
                "KeyARN": KEY_ARN + "-other",
            },
        )
    assert caught.value.response["code"] == "KMS_KEY_NOT_FOUND"
