"""The master key of our own: no room for it, or gone."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from delivery.rig import WHO, request, running, until
from penstock.delivery.errors import ApiError
from penstock.delivery.keyring import KeyRing, KeyUnavailable
from penstock.delivery.stored import EncryptionStatus, WrappedKey


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_a_disk_that_has_no_room_for_the_master_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def work() -> None:
        async with running(tmp_path) as rig:
            await rig.create("a")
            key = {"KeyType": "AWS_OWNED_CMK"}
            monkeypatch.setattr("penstock.delivery.keyring.os.fsync", refuse)
            for call in (
                rig.deliveries.create(*WHO, request("b", DeliveryStreamEncryptionConfigurationInput=key)),
                rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None),
            ):
                with pytest.raises(ApiError) as refused:
                    await call
                assert "No space left on device" in refused.value.message
                assert "check the server's disk" in refused.value.message
            monkeypatch.undo()
            await rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None)
            assert await rig.encryption_settled(rig.find("a")) is EncryptionStatus.ENABLED

    run(work())


def test_a_lost_master_key_is_not_replaced_while_records_are_sealed_under_it(tmp_path: Path) -> None:
    """Not even if the encryption has ended since: whoever found the old one again would lose one of the two."""
    master_key = tmp_path / "master.key"

    async def work() -> None:
        async with running(tmp_path) as rig:
            delivery = await rig.create("a")
            await rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None)
            await rig.encryption_settled(delivery)
            await rig.put(delivery, b"sealed")
            await rig.deliveries.stop_encryption(*WHO, "a")
            await rig.encryption_settled(delivery)
        master_key.rename(tmp_path / "elsewhere")
        key = {"KeyType": "AWS_OWNED_CMK"}
        sealed = request("b", DeliveryStreamEncryptionConfigurationInput=key)
        async with running(tmp_path) as rig:
            for call in (
                rig.deliveries.create(*WHO, sealed),
                rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None),
            ):
                with pytest.raises(ApiError) as refused:
                    await call
                assert refused.value.code == "InvalidKMSResourceException"
                assert "restore it from a backup" in refused.value.message
            assert not master_key.exists()
            await rig.deliveries.delete(*WHO, "a")
            await until(lambda: not rig.deliveries.all())
        async with running(tmp_path) as rig:
            await rig.deliveries.create(*WHO, sealed)
            assert master_key.exists()

    run(work())


def test_a_key_that_does_not_come_does_not_lock_a_stream_that_has_another_one_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwrap, answered = KeyRing.unwrap, threading.Event()
    old: list[WrappedKey] = []

    def unwrap_all_but_the_old(self: KeyRing, wrapped: WrappedKey) -> bytes:
        if wrapped in old:
            answered.wait(10)
            raise KeyUnavailable("KMS has taken its time, and then refused")
        return unwrap(self, wrapped)

    async def work() -> None:
        async with running(tmp_path) as rig:
            key = {"KeyType": "AWS_OWNED_CMK"}
            delivery = await rig.create("a", DeliveryStreamEncryptionConfigurationInput=key)
            old.extend(row.key for row in delivery.record.encryption.keys if row.key is not None)
        monkeypatch.setattr(KeyRing, "unwrap", unwrap_all_but_the_old)
        monkeypatch.setattr("penstock.delivery.lifecycle.UNLOCK_PATIENCE_S", 0.01)
        before = asyncio.all_tasks()
        async with running(tmp_path) as rig:
            delivery = rig.find("a")
            await rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None)
            assert await rig.encryption_settled(delivery) is EncryptionStatus.ENABLED
            answered.set()
            await asyncio.wait(asyncio.all_tasks() - before, timeout=5)
            await rig.put(delivery, b"x")

    run(work())
