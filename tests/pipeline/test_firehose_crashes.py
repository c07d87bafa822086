"""Kill -9 while delivery streams are delivered: afterwards each acknowledged record is in exactly one object."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import time
from collections import Counter
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from pipeline.conftest import AWS_ENV, wait_until
from pipeline.crash_site import SOAK, CrashSite

SERVER_KILLS = 100 if SOAK else 5
PIPELINE_KILLS = 20 if SOAK else 1
ROUND_PUTS = 20
RECORDS_PER_PUT = 50
TAKEOVER_S = 60  # a lease runs out after ten seconds
ROLE = "arn:aws:iam::000000000000:role/firehose"
NO_RETRIES = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=10)


class CrashedDelivery:
    """A delivery stream that is put to while things die, and the judge of what arrived."""

    def __init__(self, site: CrashSite, name: str, **config: Any) -> None:
        self.name = name
        self._site = site
        self._sent = 0
        self._acknowledged: set[str] = set()
        self._s3 = site.aws.client("s3")
        self._s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        self.firehose.create_delivery_stream(
            DeliveryStreamName=name,
            ExtendedS3DestinationConfiguration={
                "RoleARN": ROLE,
                "BucketARN": f"arn:aws:s3:::{name}",
                "BufferingHints": {"SizeInMBs": 1, "IntervalInSeconds": 0},
                "CompressionFormat": "GZIP",
                **config,
            },
        )
        wait_until(lambda: self._status() == "ACTIVE")

    @property
    def firehose(self) -> Any:
        return boto3.client(
            "firehose",
            endpoint_url=f"http://127.0.0.1:{self._site.server.http_port}",
            region_name=AWS_ENV["AWS_REGION"],
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=NO_RETRIES,
        )

    def _status(self) -> str:
        description = self.firehose.describe_delivery_stream(DeliveryStreamName=self.name)
        return str(description["DeliveryStreamDescription"]["DeliveryStreamStatus"])

    def put(self, count: int = ROUND_PUTS) -> None:
        """What is not acknowledged is never sent again: it may be there or not, but not twice."""
        client = self.firehose
        for _ in range(count):
            records = [f"{self.name}-{number}" for number in range(self._sent, self._sent + RECORDS_PER_PUT)]
            self._sent += RECORDS_PER_PUT
            entries = [{"Data": f"{record}\n".encode().ljust(600, b" ") + b"\n"} for record in records]
            try:
                answer = client.put_record_batch(DeliveryStreamName=self.name, Records=entries)
            except (BotoCoreError, ClientError):
                continue
            assert answer["FailedPutCount"] == 0
            self._acknowledged.update(records)

    @property
    def arrived(self) -> Counter[str]:
        found: Counter[str] = Counter()
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        for entry in [entry for page in pages for entry in page.get("Contents", ())]:
            body = self._s3.get_object(Bucket=self.name, Key=entry["Key"])["Body"].read()
            found.update(gzip.decompress(body).decode().split())
        return found

    def wait(self, deadline_s: float = TAKEOVER_S) -> None:
        wait_until(
            lambda: set(self.arrived) >= self._acknowledged,
            lambda: self._site.log_tails(),
            deadline_s,
        )
        twice = {record: count for record, count in self.arrived.items() if count > 1}
        assert twice == {}
        assert self._acknowledged, "nothing was put"


@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 240)
def test_the_server_is_killed_again_and_again(crash_site: CrashSite) -> None:
    crash_site.pipeline()
    delivery = CrashedDelivery(crash_site, "firehose-server-killed")
    for _ in range(SERVER_KILLS):
        delivery.put()
        time.sleep(crash_site.random.uniform(0, 0.4))  # where it hits is the point of the test
        crash_site.kill_server()
    delivery.put()
    delivery.wait()


@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 240)
def test_the_pipeline_is_killed_and_another_takes_over(crash_site: CrashSite) -> None:
    delivery = CrashedDelivery(crash_site, "firehose-pipeline-killed")
    for _ in range(PIPELINE_KILLS):
        pipeline = crash_site.pipeline()
        delivery.put()
        time.sleep(crash_site.random.uniform(0, 0.4))  # where it hits is the point of the test
        pipeline.kill()
        delivery.put()
    crash_site.pipeline()
    delivery.wait()


@pytest.mark.timeout(240)
def test_partitions_and_failed_records_survive_kills_too(crash_site: CrashSite) -> None:
    query = {"ParameterName": "MetadataExtractionQuery", "ParameterValue": "{shard: .shard}"}
    engine = {"ParameterName": "JsonParsingEngine", "ParameterValue": "JQ-1.6"}
    delivery = PartitionedDelivery(
        crash_site,
        "firehose-partitions-killed",
        Prefix="data/!{partitionKeyFromQuery:shard}/",
        ErrorOutputPrefix="failed/!{firehose:error-output-type}/",
        BufferingHints={"SizeInMBs": 64, "IntervalInSeconds": 60},
        DynamicPartitioningConfiguration={"Enabled": True},
        ProcessingConfiguration={
            "Enabled": True,
            "Processors": [{"Type": "MetadataExtraction", "Parameters": [query, engine]}],
        },
    )
    crash_site.pipeline()
    for _ in range(3):
        delivery.put_documents()
        delivery.flush()
        time.sleep(crash_site.random.uniform(0, 0.3))  # where it hits is the point of the test
        crash_site.kill_server()
    delivery.flush()
    delivery.wait_for_documents()


class PartitionedDelivery(CrashedDelivery):
    SHARDS = 5

    def put_documents(self) -> None:
        first, self._sent = self._sent, self._sent + 200
        documents = [
            {"shard": f"s{n % self.SHARDS}", "id": f"{self.name}-{n}"} for n in range(first, self._sent)
        ]
        documents[7] = {"id": f"{self.name}-{first + 7}"}  # has no key
        entries = [{"Data": json.dumps(document).encode() + b"\n"} for document in documents]
        try:
            self.firehose.put_record_batch(DeliveryStreamName=self.name, Records=entries)
        except (BotoCoreError, ClientError):
            return
        self._acknowledged.update(document["id"] for document in documents)

    def flush(self) -> None:
        arn = f"arn:aws:firehose:eu-west-1:000000000000:deliverystream/{self.name}"
        self._site.post(f"/v1/delivery/flush?arn={arn}")

    @property
    def arrived(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for key in self.keys:
            body = self._s3.get_object(Bucket=self.name, Key=key)["Body"].read()
            lines = gzip.decompress(body) if key.startswith("data/") else body
            for line in lines.decode().splitlines():
                document = json.loads(line)
                if key.startswith("failed/"):
                    document = json.loads(base64.b64decode(document["rawData"]))
                found[document["id"]] += 1
        return found

    @property
    def keys(self) -> list[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def wait_for_documents(self) -> None:
        self.wait()
        prefixes = {key.rpartition("/")[0] for key in self.keys}
        assert {f"data/s{n}" for n in range(self.SHARDS)} < prefixes
        assert "failed/processing-failed" in prefixes


@pytest.mark.timeout(240)
def test_a_worker_is_killed(crash_site: CrashSite) -> None:
    """An executor's Python in the middle of a flush: Spark loses the task, the flush is tried again."""
    delivery = CrashedDelivery(crash_site, "firehose-worker-killed")
    pipeline = crash_site.pipeline()
    delivery.put()
    workers = pipeline.descendants("pyspark")
    os.kill(workers[-1], signal.SIGKILL)
    delivery.put()
    wait_until(lambda: crash_site.pipeline().is_running)
    delivery.wait()
