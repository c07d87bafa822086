"""Format conversion and SQL transforms by a real pipeline: from boto3 to S3."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import boto3
import pyarrow.parquet
import pytest

from harness import ServerProcess
from penstock.http_client import HttpClient
from pipeline.conftest import Aws, wait_until
from pipeline.pipeline_process import PipelineProcess

ROLE = "arn:aws:iam::123456789012:role/firehose"
WARM_S = 1.5


class Deliveries:
    def __init__(self, server: ServerProcess, aws: Aws) -> None:
        self._url = f"http://127.0.0.1:{server.http_port}"
        self._aws = aws
        self.firehose = boto3.client(
            "firehose",
            endpoint_url=self._url,
            region_name="eu-west-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        self.http = HttpClient(self._url, (server.data_dir / "http-token").read_text().strip())
        self.s3 = aws.client("s3")
        table = server.data_dir / "schemas" / "db" / "readings.ddl"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("id BIGINT, name STRING")
        self.created: list[str] = []

    def create(self, name: str, **config: Any) -> str:
        self.s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        answer = self.firehose.create_delivery_stream(
            DeliveryStreamName=name,
            ExtendedS3DestinationConfiguration={
                "RoleARN": ROLE,
                "BucketARN": f"arn:aws:s3:::{name}",
                "BufferingHints": {"SizeInMBs": 64, "IntervalInSeconds": 0},
                **config,
            },
        )
        self.created.append(name)
        wait_until(lambda: self.status(name) == "ACTIVE")
        return str(answer["DeliveryStreamARN"])

    def status(self, name: str) -> str:
        described = self.firehose.describe_delivery_stream(DeliveryStreamName=name)
        return str(described["DeliveryStreamDescription"]["DeliveryStreamStatus"])

    def put(self, name: str, *records: dict[str, Any]) -> None:
        data = [{"Data": json.dumps(record).encode()} for record in records]
        assert self.firehose.put_record_batch(DeliveryStreamName=name, Records=data)["FailedPutCount"] == 0

    def keys(self, name: str) -> list[str]:
        return [entry["Key"] for entry in self.s3.list_objects_v2(Bucket=name).get("Contents", [])]

    def bodies(self, name: str) -> list[bytes]:
        return [self.s3.get_object(Bucket=name, Key=key)["Body"].read() for key in self.keys(name)]

    def close(self) -> None:
        for name in self.created:
            self.firehose.delete_delivery_stream(DeliveryStreamName=name)
        self.firehose.close()
        self.s3.close()
        self.http.close()


@pytest.fixture
def deliveries(delivering: tuple[ServerProcess, PipelineProcess], aws: Aws) -> Iterator[Deliveries]:
    made = Deliveries(delivering[0], aws)
    yield made
    made.close()


def conversion(table: str = "readings") -> dict[str, Any]:
    return {
        "Enabled": True,
        "SchemaConfiguration": {"RoleARN": ROLE, "DatabaseName": "db", "TableName": table},
        "InputFormatConfiguration": {"Deserializer": {"OpenXJsonSerDe": {}}},
        "OutputFormatConfiguration": {"Serializer": {"ParquetSerDe": {}}},
    }


def test_parquet_in_s3(deliveries: Deliveries) -> None:
    deliveries.create("converted", DataFormatConversionConfiguration=conversion())
    deliveries.put("converted", {"id": 1, "name": "a"}, {"ID": 2, "Name": "b"})
    wait_until(lambda: deliveries.keys("converted"), deadline_s=60)
    [body] = deliveries.bodies("converted")
    rows = pyarrow.parquet.read_table(BytesIO(body)).to_pylist()
    assert sorted((row["id"], row["name"]) for row in rows) == [(1, "a"), (2, "b")]


def test_a_query_beside_exports_that_need_none(deliveries: Deliveries) -> None:
    arn = deliveries.create("queried")
    deliveries.create("untouched")
    deliveries.http.set_delivery_sql(arn, "SELECT get_json_object(data, '$.id') + 1 AS next FROM records")
    deliveries.put("queried", {"id": 1})
    deliveries.put("untouched", {"id": 1})
    wait_until(lambda: deliveries.keys("queried") and deliveries.keys("untouched"), deadline_s=60)
    assert deliveries.bodies("queried") == [b'{"next":2.0}\n']
    assert deliveries.bodies("untouched") == [b'{"id": 1}']


def test_a_query_that_spark_refuses_is_told_and_can_be_corrected(deliveries: Deliveries) -> None:
    arn = deliveries.create("mistaken")
    deliveries.http.set_delivery_sql(arn, "SELECT nosuch(data) AS data FROM records")
    deliveries.put("mistaken", {"id": 1})

    def told() -> str:
        progress = deliveries.http.delivery(arn).listing.progress
        return "" if progress is None else progress.error

    wait_until(lambda: "UNRESOLVED_ROUTINE" in told(), told, 60)
    assert "correct the query, or remove it" in told()
    assert deliveries.keys("mistaken") == []


def test_soon_after_the_buffer_is_due(deliveries: Deliveries) -> None:
    """Warm: the best of a few, because a busy machine tells nothing about us."""
    deliveries.create("quick", DataFormatConversionConfiguration=conversion())
    taken_s: list[float] = []

    def all_there() -> bool:
        return len(deliveries.keys("quick")) == len(taken_s) + 1

    for number in range(5):
        begun_s = time.monotonic()
        deliveries.put("quick", {"id": number})
        wait_until(all_there, deadline_s=60)
        taken_s.append(time.monotonic() - begun_s)
    interval_s = 1.0  # an interval of 0 means: each second
    assert min(taken_s) < interval_s + WARM_S, taken_s
