"""kill -9 in the middle of creates, updates, key switches and deletes: what was answered is what is there."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from conformance.firehose_calls import (
    S3,
    description,
    firehose_client,
    wait_for_encryption,
    wait_until_gone,
)
from harness import ServerProcess

WORKERS = 4
ROUNDS = 4


class Worker(threading.Thread):
    """Changes streams of its own, one call after the other, and notes which were answered."""

    def __init__(self, server: ServerProcess, number: int, round_number: int) -> None:
        super().__init__()
        self._client = firehose_client(server)
        self._prefix = f"w{number}-r{round_number}"
        self._random = random.Random(f"{number}-{round_number}")
        self.created: dict[str, int] = {}  # the version that was answered, by name
        self.encrypted: set[str] = set()
        self.tagged: set[str] = set()
        self.deleted: set[str] = set()
        self.unsure: set[str] = set()  # what the call that got no answer was about
        self.put: dict[str, int] = {}

    def run(self) -> None:
        try:
            for number in range(10_000):
                self._live(f"{self._prefix}-{number}")
        except (BotoCoreError, OSError):
            return  # killed

    def _live(self, name: str) -> None:
        client = self._client
        self.unsure = {name}
        client.create_delivery_stream(DeliveryStreamName=name, ExtendedS3DestinationConfiguration=S3)
        self.created[name] = 1
        self._when_active(lambda: client.tag_delivery_stream(DeliveryStreamName=name, Tags=[{"Key": "k"}]))
        self.tagged.add(name)
        if self._random.random() < 0.5:
            client.update_destination(
                DeliveryStreamName=name,
                CurrentDeliveryStreamVersionId="1",
                DestinationId="destinationId-000000000001",
                ExtendedS3DestinationUpdate={"Prefix": "p/"},
            )
            self.created[name] = 2
        if self._random.random() < 0.5:
            client.start_delivery_stream_encryption(DeliveryStreamName=name)
            self.encrypted.add(name)
        for _ in range(self._random.randrange(3)):
            client.put_record(DeliveryStreamName=name, Record={"Data": name.encode()})
            self.put[name] = self.put.get(name, 0) + 1
        if self._random.random() < 0.5:
            client.delete_delivery_stream(DeliveryStreamName=name)
            self.deleted.add(name)
        self.unsure = set()

    def _when_active(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
                return
            except ClientError as error:
                assert error.response["Error"]["Code"] == "ResourceInUseException"  # noqa: PT017
                time.sleep(0.01)  # the API has no way to call us


def all_names(client: Any) -> set[str]:
    answer = client.list_delivery_streams(Limit=10_000)
    assert not answer["HasMoreDeliveryStreams"]
    return set(answer["DeliveryStreamNames"])


def check(client: Any, worker: Worker) -> None:
    for name in worker.deleted - worker.unsure:
        wait_until_gone(client, name)
    names = {name for name in all_names(client) if name.startswith(worker._prefix + "-")}
    assert names - worker.unsure == worker.created.keys() - worker.deleted - worker.unsure
    for name in names:
        shown = description(client, name)
        assert shown["DeliveryStreamStatus"] == "ACTIVE"
        if name in worker.encrypted:
            wait_for_encryption(client, name, "ENABLED")
        if name in worker.tagged:
            assert client.list_tags_for_delivery_stream(DeliveryStreamName=name)["Tags"] == [{"Key": "k"}]
        version = int(shown["VersionId"])
        assert version >= worker.created.get(name, 1)
        [destination] = shown["Destinations"]
        prefix = destination["ExtendedS3DestinationDescription"].get("Prefix")
        assert prefix == ("p/" if version == 2 else None)
        put = client.put_record(DeliveryStreamName=name, Record={"Data": b"after"})
        assert int(put["RecordId"].rpartition("-")[2]) % 10**19 >= worker.put.get(name, 0)


@pytest.mark.timeout(240)
def test_kill(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    done: list[Worker] = []
    pace = random.Random(4)
    for round_number in range(ROUNDS):
        workers = [Worker(server, number, round_number) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        time.sleep(pace.uniform(0.5, 1.5))  # where it hits is the point of the test
        server.kill()
        for worker in workers:
            worker.join(30)
            assert not worker.is_alive()
        server.start()
        client = firehose_client(server)
        for worker in workers:
            check(client, worker)
        done += workers
    assert sum(len(worker.created) for worker in done) > 10
    assert any(worker.deleted for worker in done)
    assert any(worker.encrypted for worker in done)
