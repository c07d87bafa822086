"""Kill -9 in the middle of deliveries: the server, the pipeline, its Java, its workers. Nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter

import pytest

from pipeline.conftest import wait_until
from pipeline.crash_site import SOAK, CrashSite

SERVER_KILLS = 100 if SOAK else 6
PIPELINE_KILLS = 20 if SOAK else 1
BATCH = 25
ROUND_MESSAGES = 500
ROUND_TASKS = 4
ANSWER_S = 0.02  # a round takes half a second: long enough to be hit
TAKEOVER_S = 40  # a lease runs out after ten seconds


class Delivery:
    """A stream that is appended to and exported over HTTP, and the judge of what arrived."""

    def __init__(self, site: CrashSite, name: str) -> None:
        self.name = name
        self._site = site
        self._appended: list[bytes] = []
        site.sink.pauses_s[name] = ANSWER_S
        export = {"identifier": "e", "uri": site.sink.url(name), "exportFormat": 1, "batchSize": BATCH}
        with site.client() as client:
            client.create({"name": name, "strategyOnFull": 0, "exportDefinition": {"http": [export]}})

    @property
    def complete(self) -> bool:
        return set(self.arrived) >= set(self._appended)

    @property
    def arrived(self) -> list[bytes]:
        return self._site.sink.messages(self.name)

    def append(self, count: int = ROUND_MESSAGES) -> None:
        start = len(self._appended)
        payloads = [b"%s %d" % (self.name.encode(), number) for number in range(start, start + count)]
        with self._site.client() as client:
            for payload in payloads:
                client.append(self.name, payload)
        self._appended += payloads

    def wait_until_in_the_middle(self) -> None:
        """Some more have arrived, a different number each time, and not all."""
        before = len(self.arrived)
        wanted = before + self._site.random.randint(1, ROUND_MESSAGES * 2 // 3)
        wait_until(lambda: len(self.arrived) >= wanted, self._site.log_tails, TAKEOVER_S)
        time.sleep(self._site.random.uniform(0, ANSWER_S))

    def judge(self, kills: int) -> None:
        wait_until(lambda: self.complete, self._site.log_tails, TAKEOVER_S)
        counts = Counter(self.arrived)
        assert set(counts) == set(self._appended)
        repeats = sum(counts.values()) - len(counts)
        assert repeats <= kills * BATCH, f"{repeats} messages came again after {kills} kills"
        firsts = list(dict.fromkeys(self.arrived))
        assert firsts == self._appended, "in order, where they come for the first time"
        self._wait_for_status()

    def _wait_for_status(self) -> None:
        def shown() -> bool:
            with self._site.client() as client:
                [status] = client.describe(self.name)["exportStatuses"]
            return bool(status["lastExportedSequenceNumber"] == len(self._appended) - 1)

        wait_until(shown, self._site.log_tails)


class Tasks:
    """S3 tasks with a status stream, and the judge of the objects."""

    def __init__(self, site: CrashSite, name: str) -> None:
        self.name, self.bucket = name, f"bucket-{name}"
        self._site = site
        self._count = 0
        self._s3 = site.aws.client("s3")
        self._s3.create_bucket(
            Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
        )
        export = {
            "identifier": "s3",
            "statusConfig": {"statusLevel": 2, "statusStreamName": f"{name}-status"},
        }
        with site.client() as client:
            client.create({"name": f"{name}-status", "strategyOnFull": 0})
            client.create(
                {"name": name, "strategyOnFull": 0, "exportDefinition": {"s3TaskExecutor": [export]}}
            )

    def content(self, number: int) -> bytes:
        """Every third is uploaded in parts."""
        return b"%d\n" % number * (2**21 if number % 3 == 0 else 10)

    def append(self) -> None:
        with self._site.client() as client:
            for number in range(self._count, self._count + ROUND_TASKS):
                path = self._site.files / f"{self.name}-{number}"
                path.write_bytes(self.content(number))
                task = {"inputUrl": path.as_uri(), "bucket": self.bucket}
                # The instant is that of the flush: a repeat must not make another name of it.
                key = f"{number}-!{{timestamp:yyyyMMddHHmmssSSS}}"
                client.append(self.name, json.dumps({**task, "key": key}).encode())
        self._count += ROUND_TASKS

    def judge(self) -> None:
        wait_until(lambda: self._successes() >= set(range(self._count)), self._site.log_tails, TAKEOVER_S)
        keys = [found["Key"] for found in self._s3.list_objects_v2(Bucket=self.bucket)["Contents"]]
        assert sorted(int(key.partition("-")[0]) for key in keys) == list(range(self._count)), keys
        for key in keys:
            body = self._s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            assert body == self.content(int(key.partition("-")[0]))

    def _successes(self) -> set[int]:
        with self._site.client() as client:
            described = client.describe(f"{self.name}-status")
            newest = described["storageStatus"]["newestSequenceNumber"]
            messages = client.read(f"{self.name}-status", 0, newest + 1, newest + 1) if newest >= 0 else []
        statuses = [json.loads(message.payload) for message in messages]
        return {s["statusContext"]["sequenceNumber"] for s in statuses if s["status"] == 0}


@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 180)
def test_the_server_is_killed_again_and_again(crash_site: CrashSite) -> None:
    crash_site.pipeline()
    delivery, tasks = Delivery(crash_site, "server-killed"), Tasks(crash_site, "server-killed-tasks")
    for _ in range(SERVER_KILLS):
        tasks.append()
        delivery.append()
        delivery.wait_until_in_the_middle()
        crash_site.kill_server()
    delivery.judge(SERVER_KILLS)
    tasks.judge()


@pytest.mark.timeout(180)
def test_a_worker_is_killed(crash_site: CrashSite) -> None:
    """An executor's Python, in the middle of a batch: Spark loses the task, the flush goes on."""
    pipeline = crash_site.pipeline()
    delivery = Delivery(crash_site, "worker-killed")
    delivery.append()
    delivery.wait_until_in_the_middle()
    for pid in pipeline.descendants("pyspark.daemon"):
        os.kill(pid, signal.SIGKILL)
    # Spark does not always get over the loss of its Python daemon: then the pipeline ends, and is started anew.
    wait_until(lambda: delivery.complete or not pipeline.is_running, crash_site.log_tails, TAKEOVER_S)
    crash_site.pipeline()
    delivery.judge(1)


@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 180)
def test_the_pipeline_is_killed_and_another_takes_over(crash_site: CrashSite) -> None:
    delivery, tasks = Delivery(crash_site, "pipeline-killed"), Tasks(crash_site, "pipeline-killed-tasks")
    for _ in range(PIPELINE_KILLS):
        pipeline = crash_site.pipeline()
        tasks.append()
        delivery.append()
        delivery.wait_until_in_the_middle()
        pipeline.kill()
        crash_site.launch_pipeline()
        wait_until(lambda: not pipeline.descendants(), pipeline.sweep)  # noqa: B023
        crash_site.pipelines[-1].wait_until_ready()
    delivery.judge(PIPELINE_KILLS)
    tasks.judge()


def test_a_pipeline_whose_java_dies_ends_and_says_so(crash_site: CrashSite) -> None:
    """Whoever supervises it starts it again; alive it would be in the way."""
    pipeline = crash_site.pipeline()
    delivery = Delivery(crash_site, "java-killed")
    delivery.append()
    delivery.wait_until_in_the_middle()
    [java] = pipeline.descendants("org.apache.spark.deploy.SparkSubmit")
    os.kill(java, signal.SIGKILL)
    assert pipeline.wait(20) == 1
    assert "Spark does not work any more" in pipeline.log_text
