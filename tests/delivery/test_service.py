"""Delivery streams: states, versions, tags, quotas, and that every change survives a restart."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from delivery.rig import ACCOUNT, REGION, WHO, Rig, no_check, request, running, until, update
from penstock.delivery.describe import describe
from penstock.delivery.errors import ApiError
from penstock.delivery.stored import EncryptionStatus, Status
from penstock.model import ExportKind


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


async def refused(code: str, work: Awaitable[object]) -> str:
    with pytest.raises(ApiError) as error:
        await work
    assert error.value.code == code
    return error.value.message


def test_creating_is_seen_and_then_active(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, transition_s=0.2) as rig:
            arn = await rig.deliveries.create(*WHO, request("a"))
            assert arn == f"arn:aws:firehose:{REGION}:{ACCOUNT}:deliverystream/a"
            delivery = rig.find("a")
            assert delivery.status is Status.CREATING
            await refused("ResourceInUseException", rig.deliveries.delete(*WHO, "a"))
            await refused("ResourceInUseException", rig.deliveries.tag(*WHO, "a", {"k": "v"}))
            await until(lambda: delivery.status is Status.ACTIVE)
            assert delivery.stream is rig.streams.find(arn)

    run(work())


def test_synchronous_create(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, transition_s=60, sync_create=True) as rig:
            await rig.deliveries.create(*WHO, request("a"))
            assert rig.find("a").status is Status.ACTIVE

    run(work())


def test_the_stream_of_the_log(tmp_path: Path) -> None:
    """It has a name that no Stream Manager client can give, syncs, and says how to deliver."""

    async def work() -> None:
        async with running(tmp_path, size_max_bytes=2**30) as rig:
            delivery = await rig.create("a")
            definition = delivery.stream.definition
            assert definition.name == delivery.arn
            assert (definition.flush_on_write, definition.max_size_bytes) == (True, 2**30)
            [export] = definition.exports
            assert export.kind is ExportKind.DELIVERY
            assert export.settings["buffer_bytes"] == 5 * 2**20
            assert rig.streams.names() == []

    run(work())


def test_a_name_is_taken_in_its_account_and_region_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            create = rig.deliveries.create
            both = await asyncio.gather(
                create(*WHO, request("a")), create(*WHO, request("a")), return_exceptions=True
            )
            [error] = [outcome for outcome in both if isinstance(outcome, ApiError)]
            assert error.code == "ResourceInUseException"
            assert error.message == f"Firehose a under accountId {ACCOUNT} already exists"
            await create("111111111111", REGION, request("a"))
            await create(ACCOUNT, "cn-north-1", request("a"))
            assert [d.arn for d in rig.deliveries.all()] == [
                "arn:aws-cn:firehose:cn-north-1:000000000000:deliverystream/a",
                "arn:aws:firehose:eu-west-1:000000000000:deliverystream/a",
                "arn:aws:firehose:eu-west-1:111111111111:deliverystream/a",
            ]

    run(work())


def test_quota_of_streams(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, streams_max=2) as rig:
            await rig.create("b")
            await rig.create("a")
            message = await refused("LimitExceededException", rig.deliveries.create(*WHO, request("c")))
            assert message == (
                "You have already consumed your firehose quota of 2 hoses. Firehose names: [a, b]"
            )
            await rig.deliveries.create(ACCOUNT, "us-east-1", request("c"))

    run(work())


def test_listing(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            for name in ("b", "B", "a.1", "a-1", "c"):
                await rig.create(name)

            def names(start: str | None, limit: int, kind: str | None = None) -> tuple[list[str], bool]:
                return rig.deliveries.names(*WHO, kind, start, limit)

            assert names(None, 10) == (["B", "a-1", "a.1", "b", "c"], False)
            assert names(None, 5) == (["B", "a-1", "a.1", "b", "c"], False)
            assert names(None, 4) == (["B", "a-1", "a.1", "b"], True)
            assert names("a-1", 2) == (["a.1", "b"], True)
            assert names("a-5", 10) == (["a.1", "b", "c"], False)
            assert names("z", 10) == ([], False)
            assert names(None, 10, "DirectPut")[0] == names(None, 10)[0]
            assert names(None, 10, "MSKAsSource") == ([], False)

    run(work())


def test_deleting_is_seen_and_then_the_name_is_free(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, transition_s=0.2) as rig:
            delivery = await rig.create("a", Tags=[{"Key": "k"}])
            await rig.put(delivery, b"gone with the stream")
            await rig.deliveries.delete(*WHO, "a")
            assert delivery.status is Status.DELETING
            await rig.deliveries.delete(*WHO, "a")
            assert rig.deliveries.names(*WHO, None, None, 10)[0] == ["a"]
            await refused("ResourceInUseException", rig.deliveries.create(*WHO, request("a")))
            await until(lambda: not rig.deliveries.all())
            assert not rig.store.streams
            assert not rig.store.catalog.delivery_streams()
            again = await rig.create("a")
            assert (again.stream.next_sequence, again.record.tags) == (0, {})

    run(work())


def test_unknown_streams(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            deliveries = rig.deliveries
            for call in (
                deliveries.delete(*WHO, "a"),
                deliveries.tag(*WHO, "a", {}),
                deliveries.untag(*WHO, "a", []),
                deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None),
                deliveries.stop_encryption(*WHO, "a"),
            ):
                message = await refused("ResourceNotFoundException", call)
                assert message == f"Firehose a under account {ACCOUNT} not found."
            call = deliveries.update_destination(*WHO, update("a"), no_check)
            message = await refused("ResourceNotFoundException", call)
            assert message == f"Firehose a under accountId {ACCOUNT} not found."

    run(work())


def test_an_update_is_a_new_version(tmp_path: Path) -> None:
    async def work() -> None:
        now_ms = [1000]
        async with running(tmp_path, wall_ms=lambda: now_ms[0]) as rig:
            delivery = await rig.create("a")
            now_ms[0] = 2500
            await rig.deliveries.update_destination(*WHO, update("a", Prefix="p/"), no_check)
            record = delivery.record
            assert (record.version, record.created_ms, record.updated_ms) == (2, 1000, 2500)
            [export] = delivery.stream.definition.exports
            assert (export.settings["version"], export.settings["config"]["Prefix"]) == ("2", "p/")

    run(work())


def test_one_of_two_updates_at_a_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            await rig.create("a")
            both = await asyncio.gather(
                rig.deliveries.update_destination(*WHO, update("a", Prefix="1"), no_check),
                rig.deliveries.update_destination(*WHO, update("a", Prefix="2"), no_check),
                return_exceptions=True,
            )
            assert both[0] is None
            assert isinstance(both[1], ApiError)
            assert both[1].code == "ConcurrentModificationException"
            assert both[1].message == (
                "Cannot update firehose: a since the current version id: 2 and specified version id: 1 do not match"
            )
            assert rig.find("a").record.config["Prefix"] == "1"

    run(work())


def test_refused_updates_change_nothing(tmp_path: Path) -> None:
    async def never(*_: object) -> None:
        raise ApiError("InvalidArgumentException", "never")

    async def work() -> None:
        async with running(tmp_path) as rig:
            delivery = await rig.create("a")
            before = delivery.record
            wrong_id = {**update("a"), "DestinationId": "destinationId-2"}
            message = await refused(
                "InvalidArgumentException",
                rig.deliveries.update_destination(*WHO, wrong_id, no_check),
            )
            assert message == "Destination Id destinationId-2 not found"
            await refused(
                "InvalidArgumentException",
                rig.deliveries.update_destination(*WHO, update("a", Prefix="p"), never),
            )
            assert delivery.record == before

    run(work())


def test_tags(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            delivery = await rig.create("a", Tags=[{"Key": "one", "Value": "1"}, {"Key": "two"}])
            await rig.deliveries.tag(*WHO, "a", {"three": "3", "one": "uno"})
            assert list(delivery.record.tags.items()) == [("one", "uno"), ("two", None), ("three", "3")]
            await rig.deliveries.untag(*WHO, "a", ["two", "unknown"])
            many = {f"key-{number}": "" for number in range(49)}
            await refused("LimitExceededException", rig.deliveries.tag(*WHO, "a", many))
            assert list(delivery.record.tags) == ["one", "three"]
            del many["key-0"]
            await rig.deliveries.tag(*WHO, "a", many)
            assert len(delivery.record.tags) == 50

    run(work())


def test_twenty_five_calls_a_day(tmp_path: Path) -> None:
    """Counted over a sliding day, also across a restart."""

    async def work() -> None:
        now_ms = [10**12]
        options: dict[str, Any] = {"wall_ms": lambda: now_ms[0]}
        async with running(tmp_path, **options) as rig:
            delivery = await rig.create("a")
            for number in range(25):
                now_ms[0] += 1000
                if number % 2:
                    await rig.deliveries.stop_encryption(*WHO, "a")
                else:
                    await rig.deliveries.start_encryption(*WHO, "a", "AWS_OWNED_CMK", None)
                await rig.encryption_settled(delivery)
            await refused("LimitExceededException", rig.deliveries.stop_encryption(*WHO, "a"))
        async with running(tmp_path, **options) as rig:
            await refused("LimitExceededException", rig.deliveries.stop_encryption(*WHO, "a"))
            now_ms[0] += 24 * 3600 * 1000 - 24_000
            await rig.deliveries.stop_encryption(*WHO, "a")
            assert await rig.encryption_settled(rig.find("a")) is EncryptionStatus.DISABLED
            await refused("LimitExceededException", rig.deliveries.stop_encryption(*WHO, "a"))

    run(work())


def test_a_key_encrypts_so_many_delivery_streams(tmp_path: Path) -> None:
    arns = [f"arn:aws:kms:eu-west-1:123456789012:key/{number}" for number in (1, 2)]
    master_keys = tmp_path / "master-keys.json"
    master_keys.write_text(json.dumps({arn: base64.b64encode(bytes(32)).decode() for arn in arns}))
    master_keys.chmod(0o600)

    def sealed_by(arn: str) -> dict[str, Any]:
        key = {"KeyType": "CUSTOMER_MANAGED_CMK", "KeyARN": arn}
        return {"DeliveryStreamEncryptionConfigurationInput": key}

    async def work() -> None:
        data_dir = tmp_path / "data"
        async with running(data_dir, streams_per_key=2, master_keys_file=master_keys) as rig:
            await rig.create("a", **sealed_by(arns[0]))
            plain = await rig.create("plain")
            started = ("plain", "CUSTOMER_MANAGED_CMK", arns[0])
            await rig.deliveries.start_encryption(*WHO, *started)
            await rig.encryption_settled(plain)
            message = await refused(
                "LimitExceededException", rig.deliveries.create(*WHO, request("b", **sealed_by(arns[0])))
            )
            assert arns[0] in message
            await rig.create("b", **sealed_by(arns[1]))
            other = ("b", "CUSTOMER_MANAGED_CMK", arns[0])
            await refused("LimitExceededException", rig.deliveries.start_encryption(*WHO, *other))
            await rig.deliveries.start_encryption(*WHO, *started)  # a new data key, not one more stream
            await rig.encryption_settled(plain)
            await rig.deliveries.stop_encryption(*WHO, "plain")
            await rig.encryption_settled(plain)
            await rig.deliveries.start_encryption(*WHO, *other)

    run(work())


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            await rig.create("plain")
            await rig.create("changed", Tags=[{"Key": "b"}, {"Key": "a", "Value": "1"}])
            await rig.deliveries.update_destination(*WHO, update("changed", Prefix="p/"), no_check)
            await rig.deliveries.start_encryption(*WHO, "changed", "AWS_OWNED_CMK", None)
            await rig.encryption_settled(rig.find("changed"))
            await rig.put(rig.find("changed"), b"sealed")
            before = {d.arn: (describe(d.record), d.record) for d in rig.deliveries.all()}
        async with running(tmp_path) as rig:
            assert {d.arn: (describe(d.record), d.record) for d in rig.deliveries.all()} == before
            changed = rig.find("changed")
            assert changed.encrypted
            assert not rig.find("plain").encrypted
            assert changed.stream.next_sequence == 1
            await rig.put(changed, b"more")

    run(work())


def test_a_new_bound_reaches_streams_that_are_there_and_drops_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, size_max_bytes=2**30) as rig:
            delivery = await rig.create("a")
            for _ in range(20):
                await rig.put(delivery, b"x" * 2**20)
            held_bytes = delivery.stream.charged_bytes
        async with running(tmp_path, size_max_bytes=2**24) as rig:
            stream = rig.find("a").stream
            assert (stream.charged_bytes, stream.oldest_sequence) == (held_bytes, 0)
            assert stream.definition.max_size_bytes == held_bytes

    run(work())


def test_records_are_delivered_before_the_stream_goes(tmp_path: Path) -> None:
    """With flush on delete: it stays DELETING until nothing waits, also over a restart."""

    async def work() -> None:
        asked = []

        async def never(arn: str) -> bool:
            asked.append(arn)
            await asyncio.sleep(0.01)
            return False

        async def at_once(arn: str) -> bool:
            return True

        def drained(rig: Rig, drain: Callable[[str], Awaitable[bool]]) -> None:
            rig.deliveries.drain_before_delete(drain)

        async with running(tmp_path) as rig:
            drained(rig, never)
            delivery = await rig.create("a")
            await rig.put(delivery, b"wanted")
            await rig.deliveries.delete(*WHO, "a")
            await until(lambda: len(asked) > 2)
            assert set(asked) == {delivery.arn}
            assert delivery.status is Status.DELETING
        rig = Rig(tmp_path)
        drained(rig, never)
        await rig.deliveries.open()
        assert rig.find("a").status is Status.DELETING
        assert rig.stored_payloads(rig.find("a").arn) == [b"wanted"]
        drained(rig, at_once)
        await until(lambda: not rig.deliveries.all())
        await rig.deliveries.close()
        rig.streams.close()
        rig.store.close()

    run(work())


def test_a_stream_of_the_smallest_size_has_room_again_when_its_records_are_delivered(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, size_max_bytes=16 * 2**20) as rig:
            delivery = await rig.create("small")
            for _ in range(15):
                await rig.put(delivery, bytes(2**20))  # fits, with what is around it
            with pytest.raises(AssertionError):  # it is full
                await rig.put(delivery, bytes(2**20))
            rig.streams.trims = lambda: [(delivery.stream, delivery.stream.visible_next)]
            await rig.streams.expire()
            await rig.put(delivery, bytes(2**20))

    run(work())
