"""Delivery streams in the test's own event loop, on a real data directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.delivery.delivery import Delivery
from penstock.delivery.keyring import KeyRing
from penstock.delivery.service import DeliveryStreams
from penstock.delivery.stored import EncryptionStatus, Status
from penstock.errors import PenstockError
from penstock.log.store import Store
from penstock.streams import Streams

ACCOUNT, REGION = "000000000000", "eu-west-1"
WHO = (ACCOUNT, REGION)
ROLE = "arn:aws:iam::123456789012:role/firehose"
S3: dict[str, Any] = {"RoleARN": ROLE, "BucketARN": "arn:aws:s3:::bucket"}
DEADLINE_S = 10


def request(name: str, config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"DeliveryStreamName": name, "ExtendedS3DestinationConfiguration": config or S3, **more}


def update(name: str, version: str = "1", **changes: Any) -> dict[str, Any]:
    return {
        "DeliveryStreamName": name,
        "CurrentDeliveryStreamVersionId": version,
        "DestinationId": "destinationId-000000000001",
        "ExtendedS3DestinationUpdate": changes,
    }


async def no_check(*_: object) -> None:
    """Whether a configuration makes sense is the door's business."""


class Rig:
    def __init__(self, data_dir: Path, master_keys_file: Path | None = None, **options: Any) -> None:
        self.store = Store(data_dir, free_space_floor_bytes=0)
        self.streams = Streams(
            self.store,
            message_size_max_bytes=2**26,
            memory_streams_size_max_bytes=0,
            read_soft_limit_bytes=2**22,
        )
        keyring = KeyRing(data_dir, master_keys_file)
        self.deliveries = DeliveryStreams(self.streams, keyring, **{"transition_s": 0.0, **options})

    async def create(self, name: str, **more: Any) -> Delivery:
        await self.deliveries.create(*WHO, request(name, **more))
        delivery = self.find(name)
        await until(lambda: delivery.status is not Status.CREATING)
        assert delivery.status is Status.ACTIVE, delivery.record.failure
        return delivery

    def find(self, name: str) -> Delivery:
        return self.deliveries.find(*WHO, name)

    async def put(self, delivery: Delivery, *records: bytes) -> None:
        """As the door does it."""
        sink = _Sink(len(records))
        await delivery.gate.enter()
        try:
            cipher = delivery.cipher
            self.streams.append(delivery.arn, cipher.seal(records) if cipher else records, sink)
            await asyncio.wait_for(sink.done.wait(), DEADLINE_S)
        finally:
            delivery.gate.leave()
        assert sink.errors == []

    async def encryption_settled(self, delivery: Delivery) -> EncryptionStatus:
        changing = (EncryptionStatus.ENABLING, EncryptionStatus.DISABLING)
        await until(lambda: delivery.record.encryption.status not in changing)
        return delivery.record.encryption.status

    def stored_payloads(self, arn: str) -> list[bytes]:
        return [message.payload for message in self.streams.find(arn).read(0, 10_000, 2**30).messages]


class _Sink:
    def __init__(self, count: int) -> None:
        self._left = count
        self.errors: list[PenstockError] = []
        self.done = asyncio.Event()

    def appended(self, first_sequence: int, count: int) -> None:
        self._told(count)

    def append_failed(self, count: int, error: PenstockError) -> None:
        self.errors.append(error)
        self._told(count)

    def _told(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self.done.set()


async def until(condition: Any) -> None:
    for _ in range(DEADLINE_S * 200):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it does not come to pass")


@asynccontextmanager
async def running(data_dir: Path, **options: Any) -> AsyncIterator[Rig]:
    rig = Rig(data_dir, **options)
    await rig.deliveries.open()
    yield rig
    await rig.deliveries.close()
    await rig.streams.committer.drain()
    rig.streams.close()
    rig.store.close()


@asynccontextmanager
async def killed(data_dir: Path, **options: Any) -> AsyncIterator[Rig]:
    """Ends as a process that is killed: what is under way is not finished, nothing is synced or noted."""
    rig = Rig(data_dir, **options)
    before = asyncio.all_tasks()
    await rig.deliveries.open()
    yield rig
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await asyncio.sleep(0.05)
    rig.streams.close()
    rig.store.close(clean=False)
