"""Servers that are killed, disks that refuse: what is there afterwards is what clients were told."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from delivery.rig import WHO, Rig, killed, no_check, request, running, until, update
from penstock.delivery.delivery import Delivery
from penstock.delivery.errors import ApiError
from penstock.delivery.keyring import KeyRing
from penstock.delivery.sealing import Opener
from penstock.delivery.stored import EncryptionStatus, Status, WrappedKey

FOREVER_S = 60.0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def opened(rig: Rig, delivery: Delivery) -> list[bytes]:
    payloads = rig.stored_payloads(delivery.arn)
    keys = await rig.deliveries.data_keys(delivery.arn)
    return Opener(keys, delivery.arn).open(range(len(payloads)), payloads)


def test_killed_while_creating(tmp_path: Path) -> None:
    async def work() -> None:
        encryption = {"DeliveryStreamEncryptionConfigurationInput": {"KeyType": "AWS_OWNED_CMK"}}
        async with killed(tmp_path, transition_s=FOREVER_S) as rig:
            await rig.deliveries.create(*WHO, request("a"))
            await rig.deliveries.create(*WHO, request("sealed", **encryption))
            assert not rig.store.streams
        async with running(tmp_path) as rig:
            assert {d.name: d.status for d in rig.deliveries.all()} == dict.fromkeys(
                ("a", "sealed"), Status.ACTIVE
            )
            assert rig.find("sealed").record.encryption.status is EncryptionStatus.ENABLED
            for name in ("a", "sealed"):
                await rig.put(rig.find(name), b"x")
            assert await opened(rig, rig.find("sealed")) == [b"x"]
            assert rig.stored_payloads(rig.find("sealed").arn) != [b"x"]

    run(work())


def test_killed_while_deleting(tmp_path: Path) -> None:
    async def work() -> None:
        async with killed(tmp_path, transition_s=0.01) as rig:
            await rig.put(await rig.create("a"), b"x")
            rig.deliveries._lifecycle._transition_s = FOREVER_S
            await rig.deliveries.delete(*WHO, "a")
            assert rig.store.streams
        async with running(tmp_path) as rig:
            assert rig.deliveries.all() == []
            assert not rig.store.streams
            assert not rig.store.catalog.delivery_streams()

    run(work())


def test_killed_while_switching_keys(tmp_path: Path) -> None:
    async def work() -> None:
        async with killed(tmp_path) as rig:
            delivery = await rig.create("a")
            await rig.put(delivery, b"plain")
            rig.deliveries._lifecycle._transition_s = FOREVER_S
            await rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None)
            await rig.put(delivery, b"still plain")
        async with running(tmp_path) as rig:
            delivery = rig.find("a")
            assert await rig.encryption_settled(delivery) is EncryptionStatus.ENABLED
            await rig.put(delivery, b"sealed")
            assert await opened(rig, delivery) == [b"plain", b"still plain", b"sealed"]
            assert rig.stored_payloads(delivery.arn)[:2] == [b"plain", b"still plain"]
            assert rig.stored_payloads(delivery.arn)[2] != b"sealed"

    run(work())


def test_numbers_that_come_again_are_sealed_with_the_newest_key(tmp_path: Path) -> None:
    """A key that was switched behind records which were never acknowledged, and did not survive."""

    async def work() -> None:
        async with killed(tmp_path) as rig:
            delivery = await rig.create("a")
            await rig.put(delivery, b"0")
            delivery.stream.next_sequence += 5  # given out to records that the disk did not take
            await rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None)
            await rig.encryption_settled(delivery)
            assert delivery.record.encryption.keys[-1].first_sequence == 6
        for expected in ([b"0", b"1"], [b"0", b"1", b"2"]):
            async with killed(tmp_path) as rig:
                delivery = rig.find("a")
                await rig.put(delivery, expected[-1])
                assert await opened(rig, delivery) == expected

    run(work())


def test_puts_during_switches_are_sealed_with_the_key_that_is_noted(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            delivery = await rig.create("a")
            stop = asyncio.Event()
            put: list[bytes] = []

            async def keep_putting(who: int) -> None:
                while not stop.is_set():
                    record = b"%d-%d" % (who, len(put))
                    await rig.put(delivery, record)
                    put.append(record)

            putting = [asyncio.create_task(keep_putting(who)) for who in range(4)]
            for _ in range(4):
                await rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None)
                assert await rig.encryption_settled(delivery) is EncryptionStatus.ENABLED
                await asyncio.sleep(0.02)
                await rig.deliveries.stop_encryption(*WHO, "a")
                assert await rig.encryption_settled(delivery) is EncryptionStatus.DISABLED
                await asyncio.sleep(0.02)
            stop.set()
            await asyncio.gather(*putting)
            assert sorted(await opened(rig, delivery)) == sorted(put)
            sealed = [row.key is not None for row in delivery.record.encryption.keys]
            assert sealed == [True, False] * 4
            assert len(set(put)) == len(put) > 8

    run(work())


def test_keys_of_records_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            delivery = await rig.create("a")
            for _ in range(3):  # with no record between them
                await rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None)
                await rig.encryption_settled(delivery)
            assert len(delivery.record.encryption.keys) == 1
            await rig.deliveries.stop_encryption(*WHO, "a")
            await rig.encryption_settled(delivery)
            assert delivery.record.encryption.keys == ()
            assert delivery.opened_keys == {}

    run(work())


def test_a_missing_master_key_stops_puts_not_the_server(tmp_path: Path) -> None:
    async def work() -> None:
        encryption = {"DeliveryStreamEncryptionConfigurationInput": {"KeyType": "AWS_OWNED_CMK"}}
        async with running(tmp_path) as rig:
            await rig.put(await rig.create("sealed", **encryption), b"x")
            await rig.create("plain")
        (tmp_path / "master.key").rename(tmp_path / "saved.key")
        async with running(tmp_path) as rig:
            await rig.put(rig.find("plain"), b"x")
            with pytest.raises(ApiError) as refused:
                await rig.put(rig.find("sealed"), b"plain text must not come here")
            assert refused.value.code == "InvalidKMSResourceException"
        (tmp_path / "saved.key").rename(tmp_path / "master.key")
        async with running(tmp_path) as rig:
            await rig.put(rig.find("sealed"), b"y")
            assert await opened(rig, rig.find("sealed")) == [b"x", b"y"]

    run(work())


def test_keys_that_do_not_come_keep_no_thread_from_the_rest_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with running(tmp_path) as rig:
            encryption = {"DeliveryStreamEncryptionConfigurationInput": {"KeyType": "AWS_OWNED_CMK"}}
            delivery = await rig.create("sealed", **encryption)
            delivery.opened_keys.clear()
            asked, answered = threading.Event(), threading.Event()

            def unwrap(self: KeyRing, wrapped: WrappedKey) -> bytes:
                asked.set()
                answered.wait(10)
                return bytes(32)

            monkeypatch.setattr(KeyRing, "unwrap", unwrap)
            opening = asyncio.ensure_future(rig.deliveries.data_keys(delivery.arn))
            try:
                await until(asked.is_set)
                await asyncio.wait_for(rig.deliveries.tag(*WHO, "sealed", {"key": "value"}), 5)
            finally:
                answered.set()
            await opening

    run(work())


def test_a_stray_stream_of_the_log(tmp_path: Path) -> None:
    """One that never had a record goes; one with records stays, for somebody to look at."""

    async def work() -> None:
        async with killed(tmp_path) as rig:
            await rig.create("empty")
            await rig.put(await rig.create("full"), b"x")
            for delivery in rig.deliveries.all():
                rig.store.catalog.remove_delivery_stream(delivery.arn)
        async with running(tmp_path) as rig:
            assert rig.deliveries.all() == []
            assert [name.rpartition("/")[2] for name in rig.store.streams] == ["full"]
            await rig.create("full")  # and takes it over
            assert rig.stored_payloads(rig.find("full").arn) == [b"x"]

    run(work())


class Breakdown:
    """From the nth change of the catalog on, none is stored: as after a kill, when nothing more is done."""

    METHODS = ("put_delivery_stream", "remove_delivery_stream", "put_stream", "remove_stream")

    def __init__(self, rig: Rig, after: int) -> None:
        self.left = after
        for name in self.METHODS:
            setattr(rig.store.catalog, name, self._breaking(getattr(rig.store.catalog, name)))

    def _breaking(self, method: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if self.left <= 0:
                raise sqlite3.OperationalError("disk I/O error")
            self.left -= 1
            method(*arguments)

        return call


@pytest.mark.parametrize("changes", range(14))
def test_killed_between_any_two_changes(tmp_path: Path, changes: int) -> None:
    """What was answered with success is there after the restart, and all parts agree."""

    async def story(rig: Rig, told: list[str]) -> None:
        deliveries = rig.deliveries
        await deliveries.create(*WHO, request("a"))
        told.append("created")
        await until(lambda: rig.find("a").status is Status.ACTIVE)
        told.append("active")
        await rig.put(rig.find("a"), b"1")
        told.append("put")
        await deliveries.update_destination(*WHO, update("a", Prefix="p/"), no_check)
        told.append("updated")
        await deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None)
        told.append("encryption started")
        assert await rig.encryption_settled(rig.find("a")) is EncryptionStatus.ENABLED
        told.append("encrypted")
        await rig.put(rig.find("a"), b"2")
        await deliveries.tag(*WHO, "a", {"k": "v"})
        told.append("tagged")
        await deliveries.delete(*WHO, "a")
        told.append("deleted")
        await until(lambda: not deliveries.all())
        told.append("gone")

    async def work() -> None:
        told: list[str] = []
        async with killed(tmp_path) as rig:
            breakdown = Breakdown(rig, changes)
            telling = asyncio.create_task(story(rig, told))
            await until(lambda: telling.done() or breakdown.left <= 0)
            await asyncio.sleep(0.05)
            telling.cancel()
            await asyncio.wait({telling})
        async with running(tmp_path) as rig:
            names = [delivery.name for delivery in rig.deliveries.all()]
            assert set(rig.store.streams) == {delivery.arn for delivery in rig.deliveries.all()}
            if "deleted" in told:
                assert names == []
                return
            assert names == ["a"] if "created" in told else names in ([], ["a"])
            for delivery in rig.deliveries.all():
                assert await rig.encryption_settled(delivery) in (
                    EncryptionStatus.ENABLED,
                    EncryptionStatus.DISABLED,
                )
                record = delivery.record
                assert record.status is Status.ACTIVE
                assert record.version == 2 if "updated" in told else record.version in (1, 2)
                [export] = delivery.stream.definition.exports
                assert export.settings["version"] == str(record.version)
                assert delivery.encrypted or "encryption started" not in told
                assert record.tags == {"k": "v"} or "tagged" not in told
                await rig.put(delivery, b"last")
                stored = await opened(rig, delivery)
                expected = [b"1"] * ("put" in told) + [b"2"] * ("tagged" in told) + [b"last"]
                assert [record for record in stored if record in expected] == expected

    run(work())


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    """Every operation says so, keeps what was, and works again when the disk does."""

    async def work() -> None:
        async with running(tmp_path) as rig:
            delivery = await rig.create("a")
            before = delivery.record
            breakdown = Breakdown(rig, 0)
            for call in (
                rig.deliveries.create(*WHO, request("b")),
                rig.deliveries.update_destination(*WHO, update("a", Prefix="p"), no_check),
                rig.deliveries.tag(*WHO, "a", {"k": "v"}),
                rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None),
                rig.deliveries.delete(*WHO, "a"),
            ):
                with pytest.raises(ApiError) as refused:
                    await call
                assert (refused.value.code, refused.value.http_status) == ("InternalFailure", 500)
            assert [d.record for d in rig.deliveries.all()] == [before]
            breakdown.left = 1  # the record, not what flushes go by
            with pytest.raises(ApiError):
                await rig.deliveries.update_destination(*WHO, update("a", Prefix="p"), no_check)
            breakdown.left = 1000
            await rig.deliveries.update_destination(*WHO, update("a", str(delivery.record.version)), no_check)
            await rig.create("b")

    run(work())


def test_creating_fails_and_can_only_be_deleted(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            breakdown = Breakdown(rig, 1)
            key = {"KeyType": "AWS_OWNED_CMK"}
            await rig.deliveries.create(*WHO, request("a", DeliveryStreamEncryptionConfigurationInput=key))
            delivery = rig.find("a")
            await until(lambda: delivery.status is Status.CREATING_FAILED)
            assert delivery.record.encryption.status is EncryptionStatus.ENABLING_FAILED
            failure = delivery.record.failure
            assert failure is not None
            assert failure.type == "UNKNOWN_ERROR"
            assert "disk I/O error" in failure.details
            with pytest.raises(ApiError):
                await rig.deliveries.tag(*WHO, "a", {})
            breakdown.left = 1000
            await rig.deliveries.delete(*WHO, "a")
            await until(lambda: not rig.deliveries.all())

    run(work())


def test_deleting_fails_and_can_be_tried_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            delivery = await rig.create("a")
            breakdown = Breakdown(rig, 1)
            await rig.deliveries.delete(*WHO, "a")
            await until(lambda: delivery.status is Status.DELETING_FAILED)
            breakdown.left = 1000
            await rig.deliveries.delete(*WHO, "a")
            await until(lambda: not rig.deliveries.all())
            assert not rig.store.streams

    run(work())
