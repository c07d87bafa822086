"""The life of a delivery stream in the hands of the unmodified @aws-sdk/client-firehose, signatures checked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conformance.firehose import ACCOUNT, KEY_ID, SECRET, access_keys_env
from harness import ServerProcess

NODE_DIR = Path(__file__).parent / "node"
TIMEOUT_S = 100


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script in node/ saw."""
    assert (NODE_DIR / "node_modules/@aws-sdk/client-firehose").exists(), "run scripts/setup-tests.sh first"
    directory = tmp_path_factory.mktemp("node")
    server = ServerProcess(directory / "data", env=access_keys_env(directory)).start()
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    run = subprocess.run(
        ["node", "firehose.js", str(server.http_port)],
        cwd=NODE_DIR,
        env={**inherited, "AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    server.stop()
    assert run.returncode == 0, run.stdout + run.stderr
    return dict(json.loads(run.stdout))


def test_life(result: dict[str, Any]) -> None:
    assert result["arn"] == f"arn:aws:firehose:eu-north-1:{ACCOUNT}:deliverystream/node"
    assert result["createTimestampIsDate"]
    assert 0 <= result["age_ms"] < TIMEOUT_S * 1000
    assert result["names"] == ["node"]
    assert result["tags"] == [{"Key": "b"}, {"Key": "c", "Value": "ü"}]
    assert result["updated"]["VersionId"] == "2"
    (destination,) = result["updated"]["Destinations"]
    for form in ("ExtendedS3DestinationDescription", "S3DestinationDescription"):
        assert destination[form]["Prefix"] == "p/"


def test_puts(result: dict[str, Any]) -> None:
    assert result["single"].pop("RecordId")
    assert result["single"] == {"Encrypted": False}
    for name, count, encrypted in (("five_hundred", 500, False), ("four_mib", 5, False), ("sealed", 1, True)):
        assert result[name] == {"failed": 0, "entries": count, "ids": count, "encrypted": encrypted}


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("taken", "ResourceInUseException", f"Firehose node under accountId {ACCOUNT} already exists"),
        ("too_large_together", "InvalidArgumentException", "Records size exceeds 4 MB limit"),
        (
            "two_destinations",
            "InvalidArgumentException",
            "Exactly one destination configuration is supported for a Firehose",
        ),
        (
            "stale",
            "ConcurrentModificationException",
            "Cannot update firehose: node since the current version id: 2 and specified version id: 1 do not match",
        ),
        ("gone", "ResourceNotFoundException", f"Firehose node under account {ACCOUNT} not found."),
    ],
)
def test_errors_have_classes(result: dict[str, Any], name: str, error: str, message: str) -> None:
    assert result[name] == {
        "name": error,
        "isOfItsClass": True,
        "isOfTheService": True,
        "message": message,
        "status": 400,
        "hasRequestId": True,
    }


def test_key_that_is_not_there(result: dict[str, Any]) -> None:
    assert result["no_such_key"]["name"] == "InvalidKMSResourceException"
    assert result["no_such_key"]["isOfItsClass"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "too_many",
            "ValidationException",
            "Value at 'records' failed to satisfy constraint: Member must have length",
        ),
        ("too_large", "ValidationException", "Value at 'records.1.member.data' failed to satisfy constraint"),
        ("bad_name", "ValidationException", "Value at 'deliveryStreamName' failed to satisfy constraint"),
        ("stranger", "InvalidSignatureException", "The request signature we calculated does not match"),
    ],
)
def test_errors_that_no_operation_lists(result: dict[str, Any], name: str, error: str, message: str) -> None:
    failure = result[name]
    assert (failure["name"], failure["isOfTheService"], failure["status"]) == (error, True, 400)
    assert message in failure["message"]
