"""Delivery streams from boto3 to S3: everything on the way is real."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from harness import ServerProcess
from penstock.http_client import HttpClient
from pipeline.conftest import AWS_ENV, Aws, Site, wait_until

ROLE = "arn:aws:iam::000000000000:role/firehose"
ACCOUNT, REGION = "000000000000", AWS_ENV["AWS_REGION"]


class Firehose:
    """A bucket of the test's own and the delivery streams that fill it."""

    def __init__(self, server: ServerProcess, aws: Aws, bucket: str) -> None:
        self.bucket = bucket
        self._server = server
        self.s3 = aws.client("s3")
        self.client = boto3.client(
            "firehose",
            endpoint_url=f"http://127.0.0.1:{server.http_port}",
            region_name=REGION,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        self._names: list[str] = []

    def create_bucket(self) -> None:
        self.s3.create_bucket(Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": REGION})

    def create(self, name: str, **config: Any) -> None:
        config.setdefault("BufferingHints", {"SizeInMBs": 1, "IntervalInSeconds": 1})
        self.client.create_delivery_stream(
            DeliveryStreamName=name,
            ExtendedS3DestinationConfiguration={
                "RoleARN": ROLE,
                "BucketARN": f"arn:aws:s3:::{self.bucket}",
                **config,
            },
        )
        self._names.append(name)
        wait_until(lambda: self.describe(name)["DeliveryStreamStatus"] == "ACTIVE")

    def describe(self, name: str) -> dict[str, Any]:
        answer = self.client.describe_delivery_stream(DeliveryStreamName=name)
        description: dict[str, Any] = answer["DeliveryStreamDescription"]
        return description

    def put(self, name: str, *records: bytes) -> None:
        entries = [{"Data": record} for record in records]
        answer = self.client.put_record_batch(DeliveryStreamName=name, Records=entries)
        assert answer["FailedPutCount"] == 0

    def objects(self) -> dict[str, bytes]:
        listed = self.s3.list_objects_v2(Bucket=self.bucket).get("Contents", ())
        return {
            entry["Key"]: self.s3.get_object(Bucket=self.bucket, Key=entry["Key"])["Body"].read()
            for entry in listed
        }

    def wait_for(self, count: int) -> dict[str, bytes]:
        wait_until(
            lambda: len(self.objects()) >= count, lambda: (self.objects(), self._server.log_text[-2000:])
        )
        return self.objects()

    def flush(self, name: str) -> None:
        with self._operator() as operator:
            operator.flush_delivery(self._arn(name), 20_000)

    def error(self, name: str) -> str:
        with self._operator() as operator:
            progress = operator.delivery(self._arn(name)).listing.progress
        return "" if progress is None else progress.error

    def set_sql(self, name: str, sql: str) -> None:
        with self._operator() as operator:
            operator.set_delivery_sql(self._arn(name), sql)

    def _operator(self) -> HttpClient:
        token = (self._server.data_dir / "http-token").read_text().strip()
        return HttpClient(f"http://127.0.0.1:{self._server.http_port}", token)

    def _arn(self, name: str) -> str:
        return f"arn:aws:firehose:{REGION}:{ACCOUNT}:deliverystream/{name}"

    def delete_all(self) -> None:
        for name in self._names:
            self.client.delete_delivery_stream(DeliveryStreamName=name)


@pytest.fixture
def firehose(site: Site, aws: Aws, request: pytest.FixtureRequest) -> Iterator[Firehose]:
    bucket = re.sub("[^a-z0-9]+", "-", request.node.name)[:60].strip("-")
    made = Firehose(site.server, aws, bucket)
    made.create_bucket()
    yield made
    made.delete_all()


def test_records_become_one_object_byte_for_byte(firehose: Firehose) -> None:
    firehose.create("plain", Prefix="readings/")
    firehose.put("plain", b"abc", b"", b"\x00\xff", b"abc")
    [(key, body)] = firehose.wait_for(1).items()
    assert body == b"abc\x00\xffabc"
    uuid = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    assert re.fullmatch(rf"readings/\d{{4}}/\d\d/\d\d/\d\d/plain-1-(\d+-){{6}}{uuid}", key)


def test_a_full_buffer_goes_at_once_and_the_rest_waits(firehose: Firehose) -> None:
    firehose.create("full", BufferingHints={"SizeInMBs": 1, "IntervalInSeconds": 900})
    firehose.put("full", *[bytes([65 + n]) * 200_000 for n in range(6)])
    firehose.put("full", b"the rest")
    [body] = firehose.wait_for(1).values()
    assert len(body) == 1_200_000


def test_an_update_shows_in_the_names_of_later_objects(firehose: Firehose) -> None:
    firehose.create("updated")
    firehose.put("updated", b"before")
    firehose.wait_for(1)
    firehose.client.update_destination(
        DeliveryStreamName="updated",
        CurrentDeliveryStreamVersionId="1",
        DestinationId="destinationId-000000000001",
        ExtendedS3DestinationUpdate={"CompressionFormat": "GZIP", "Prefix": "zipped/"},
    )
    firehose.put("updated", b"after")
    objects = firehose.wait_for(2)
    [key] = [key for key in objects if key.startswith("zipped/")]
    assert "updated-2-" in key
    assert key.endswith(".gz")
    assert gzip.decompress(objects[key]) == b"after"


def test_sealed_records_arrive_as_they_were_put(firehose: Firehose) -> None:
    firehose.create("sealed")
    firehose.put("sealed", b"plain ")
    firehose.client.start_delivery_stream_encryption(DeliveryStreamName="sealed")

    def encrypted() -> bool:
        status = firehose.describe("sealed")["DeliveryStreamEncryptionConfiguration"]["Status"]
        return bool(status == "ENABLED")

    wait_until(encrypted)
    assert firehose.client.put_record(DeliveryStreamName="sealed", Record={"Data": b"secret "})["Encrypted"]
    firehose.client.start_delivery_stream_encryption(DeliveryStreamName="sealed")
    wait_until(encrypted)
    firehose.put("sealed", b"another key ")
    wait_until(lambda: b"".join(firehose.objects().values()) == b"plain secret another key ")


def calling(function: str) -> dict[str, Any]:
    arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{function}"
    parameters = [{"ParameterName": "LambdaArn", "ParameterValue": arn}]
    return {"Enabled": True, "Processors": [{"Type": "Lambda", "Parameters": parameters}]}


def test_functions_that_hang_hold_up_nobody_else(firehose: Firehose, tmp_path: Path) -> None:
    """There are two places for tasks, and three functions that would take them."""
    end = tmp_path / "end"
    for number in range(3):
        firehose.create(f"hanging-{number}", Prefix="late/", ProcessingConfiguration=calling("wait"))
        firehose.put(f"hanging-{number}", bytes(end))
    firehose.create("plain", Prefix="soon/")
    for number in range(3):
        firehose.put("plain", b"through")
        firehose.flush("plain")
        assert [key.partition("/")[0] for key in firehose.objects()] == ["soon"] * (number + 1)
    end.touch()
    assert sorted(firehose.wait_for(6).values()) == [bytes(end)] * 3 + [b"through"] * 3


def test_a_function_transforms_drops_and_fails_records(firehose: Firehose) -> None:
    firehose.create(
        "shouting",
        Prefix="data/",
        ErrorOutputPrefix="errors/",
        ProcessingConfiguration=calling("shout"),
        S3BackupMode="Enabled",
        S3BackupConfiguration={
            "RoleARN": ROLE,
            "BucketARN": f"arn:aws:s3:::{firehose.bucket}",
            "Prefix": "backup/",
        },
    )
    firehose.put("shouting", b"one\n", b"drop", b"bad", b"two\n")
    objects = firehose.wait_for(3)
    by_folder = {key.partition("/")[0]: body for key, body in objects.items()}
    assert by_folder["data"] == b"ONE\nTWO\n"
    assert by_folder["backup"] == b"one\ndropbadtwo\n"
    failed = json.loads(by_folder["errors"])
    assert base64.b64decode(failed["rawData"]) == b"bad"
    assert failed["errorCode"] == "Lambda.ProcessingFailedStatus"


def test_partitions_by_keys_of_the_records(firehose: Firehose) -> None:
    query = [
        {"ParameterName": "MetadataExtractionQuery", "ParameterValue": "{site: .site}"},
        {"ParameterName": "JsonParsingEngine", "ParameterValue": "JQ-1.6"},
    ]
    firehose.create(
        "partitioned",
        BufferingHints={"SizeInMBs": 64, "IntervalInSeconds": 60},
        Prefix="site=!{partitionKeyFromQuery:site}/",
        ErrorOutputPrefix="errors/!{firehose:error-output-type}/",
        DynamicPartitioningConfiguration={"Enabled": True},
        ProcessingConfiguration={
            "Enabled": True,
            "Processors": [
                {"Type": "MetadataExtraction", "Parameters": query},
                {"Type": "AppendDelimiterToRecord"},
            ],
        },
    )
    firehose.put("partitioned", b'{"site":"a"}', b'{"site":"b"}', b"no json", b'{"site":"a","n":2}')
    firehose.flush("partitioned")
    objects = {key.rpartition("/")[0]: body for key, body in firehose.wait_for(3).items()}
    assert objects["site=a"] == b'{"site":"a"}\n{"site":"a","n":2}\n'
    assert objects["site=b"] == b'{"site":"b"}\n'
    assert base64.b64decode(json.loads(objects["errors/processing-failed"])["rawData"]) == b"no json"


def test_a_missing_bucket_is_told_and_made_good_by_an_update(firehose: Firehose) -> None:
    firehose.create("lost", BucketARN="arn:aws:s3:::nowhere-to-be-found")
    firehose.put("lost", b"kept")
    wait_until(lambda: "NoSuchBucket" in firehose.error("lost"))
    firehose.client.update_destination(
        DeliveryStreamName="lost",
        CurrentDeliveryStreamVersionId="1",
        DestinationId="destinationId-000000000001",
        ExtendedS3DestinationUpdate={"BucketARN": f"arn:aws:s3:::{firehose.bucket}"},
    )
    [body] = firehose.wait_for(1).values()
    assert body == b"kept"
    wait_until(lambda: firehose.error("lost") == "")


def test_two_streams_of_one_name_in_two_regions_are_two(firehose: Firehose, aws: Aws) -> None:
    firehose.create("twin", Prefix="here/")
    other = boto3.client(
        "firehose",
        endpoint_url=firehose.client.meta.endpoint_url,
        region_name="us-west-2",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    other.create_delivery_stream(
        DeliveryStreamName="twin",
        ExtendedS3DestinationConfiguration={
            "RoleARN": ROLE,
            "BucketARN": f"arn:aws:s3:::{firehose.bucket}",
            "Prefix": "there/",
            "BufferingHints": {"SizeInMBs": 1, "IntervalInSeconds": 0},
        },
    )

    def active() -> bool:
        description = other.describe_delivery_stream(DeliveryStreamName="twin")["DeliveryStreamDescription"]
        return bool(description["DeliveryStreamStatus"] == "ACTIVE")

    wait_until(active)
    firehose.put("twin", b"here")
    other.put_record(DeliveryStreamName="twin", Record={"Data": b"there"})
    objects = {key.partition("/")[0]: body for key, body in firehose.wait_for(2).items()}
    assert objects == {"here": b"here", "there": b"there"}
    other.delete_delivery_stream(DeliveryStreamName="twin")
