"""The life of a delivery stream in the hands of the unmodified AWS CLI, signatures checked.

This is version 1 of the CLI, the one on PyPI: it takes blobs as they are and has no --cli-binary-format.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.firehose import (
    ACCOUNT,
    BUCKET_ARN,
    KEY_ID,
    ROLE_ARN,
    SECRET,
    access_keys_env,
    stored_records,
)
from harness import ServerProcess

AWS = Path(__file__).parents[2] / ".venvs/awscli/bin/aws"
POLLS_MAX = 10
TIMEOUT_S = 60


class Cli:
    def __init__(self, server: ServerProcess, **env: str) -> None:
        self._endpoint = f"http://127.0.0.1:{server.http_port}"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        self._env = {
            **inherited,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            **env,
        }

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [AWS, "firehose", command, "--endpoint-url", self._endpoint, "--output", "json", *arguments]
        return subprocess.run(
            line, env=self._env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )

    def __call__(self, command: str, *arguments: str) -> Any:
        """What the command prints."""
        result = self.run(command, *arguments)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout) if result.stdout.strip() else None

    def refused(self, command: str, *arguments: str) -> str:
        result = self.run(command, *arguments)
        assert result.returncode != 0, result.stdout
        return result.stderr

    def describe_until(self, name: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for _ in range(POLLS_MAX):
            answer = self("describe-delivery-stream", "--delivery-stream-name", name)
            shown: dict[str, Any] = answer["DeliveryStreamDescription"]
            if reached(shown):
                return shown
            time.sleep(0.2)  # the API has no way to call us
        raise AssertionError(shown)


def encryption_is(status: str) -> Callable[[dict[str, Any]], bool]:
    return lambda shown: bool(shown["DeliveryStreamEncryptionConfiguration"]["Status"] == status)


@pytest.mark.timeout(300)
def test_life_of_a_delivery_stream(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    assert AWS.exists(), "run scripts/setup-tests.sh first"
    server = start_server(env=access_keys_env(tmp_path))
    aws = Cli(server)
    named = ("--delivery-stream-name", "cli")
    definition = {
        "DeliveryStreamName": "cli",
        "ExtendedS3DestinationConfiguration": {"RoleARN": ROLE_ARN, "BucketARN": BUCKET_ARN, "Prefix": "a/"},
        "Tags": [{"Key": "team", "Value": "edge"}],
    }
    (tmp_path / "create.json").write_text(json.dumps(definition))
    (tmp_path / "record.bin").write_bytes(b"\x00\xff\n")
    (tmp_path / "update.json").write_text(json.dumps({"Prefix": "b/", "CompressionFormat": "GZIP"}))

    created = aws("create-delivery-stream", "--cli-input-json", f"file://{tmp_path / 'create.json'}")
    arn = created["DeliveryStreamARN"]
    assert arn == f"arn:aws:firehose:eu-central-1:{ACCOUNT}:deliverystream/cli"
    aws.describe_until("cli", lambda shown: bool(shown["DeliveryStreamStatus"] == "ACTIVE"))

    put = aws("put-record", *named, "--record", f"Data@=fileb://{tmp_path / 'record.bin'}")
    assert put["RecordId"]
    assert put["Encrypted"] is False
    aws("start-delivery-stream-encryption", *named)
    assert aws.describe_until("cli", encryption_is("ENABLED"))["DeliveryStreamEncryptionConfiguration"] == {
        "KeyType": "AWS_OWNED_CMK",
        "Status": "ENABLED",
    }
    answer = aws("put-record-batch", *named, "--records", '[{"Data": "grün"}, {"Data": "plain"}]')
    assert (answer["FailedPutCount"], answer["Encrypted"]) == (0, True)
    assert [list(entry) for entry in answer["RequestResponses"]] == [["RecordId"]] * 2
    assert stored_records(server, arn) == [b"\x00\xff\n", "grün".encode(), b"plain"]
    aws("stop-delivery-stream-encryption", *named)
    aws.describe_until("cli", encryption_is("DISABLED"))

    assert aws("list-delivery-streams") == {"DeliveryStreamNames": ["cli"], "HasMoreDeliveryStreams": False}
    aws("tag-delivery-stream", *named, "--tags", "Key=stage,Value=test")
    aws("untag-delivery-stream", *named, "--tag-keys", "team")
    assert aws("list-tags-for-delivery-stream", *named) == {
        "Tags": [{"Key": "stage", "Value": "test"}],
        "HasMoreTags": False,
    }

    version = ("--current-delivery-stream-version-id", "1", "--destination-id", "destinationId-000000000001")
    update = ("--extended-s3-destination-update", f"file://{tmp_path / 'update.json'}")
    aws("update-destination", *named, *version, *update)
    shown = aws("describe-delivery-stream", *named)["DeliveryStreamDescription"]
    assert shown["VersionId"] == "2"
    extended = shown["Destinations"][0]["ExtendedS3DestinationDescription"]
    assert (extended["Prefix"], extended["CompressionFormat"]) == ("b/", "GZIP")
    stale = aws.refused("update-destination", *named, *version, *update)
    assert "(ConcurrentModificationException) when calling the UpdateDestination operation" in stale

    aws("delete-delivery-stream", *named)
    stranger = Cli(server, AWS_SECRET_ACCESS_KEY="wrong")
    assert "(InvalidSignatureException)" in stranger.refused("list-delivery-streams")
    gone = aws.refused("describe-delivery-stream", *named)
    assert (
        "(ResourceNotFoundException) when calling the DescribeDeliveryStream operation: Firehose cli" in gone
    )
