"""Puts on the real log, on a disk that can fail."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.rig import Rig
from penstock.delivery.delivery import Delivery
from penstock.delivery.errors import ApiError
from penstock.delivery.keyring import AWS_OWNED, KeyRing
from penstock.delivery.sealing import open_records
from penstock.delivery.service import DeliveryStreams
from penstock.delivery.stored import EncryptionStatus, Status
from penstock.delivery.throughput import Quota, Throughput
from penstock.doors.firehose import puts as puts_module
from penstock.doors.firehose.puts import BATCH_BYTES_MAX, RECORD_BYTES_MAX, Puts
from penstock.doors.firehose.validation import Validator

ACCOUNT, REGION = "000000000000", "eu-west-1"
NAME = "orders"
S3 = {"BucketARN": "arn:aws:s3:::lake", "RoleARN": "arn:aws:iam::000000000000:role/r"}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def record_body(data: bytes, name: str = NAME) -> bytes:
    return json.dumps({"DeliveryStreamName": name, "Record": {"Data": encoded(data)}}).encode()


def batch_body(records: Sequence[bytes], name: str = NAME) -> bytes:
    return json.dumps(
        {"DeliveryStreamName": name, "Records": [{"Data": encoded(r)} for r in records]}
    ).encode()


class Firehose:
    """The service and its puts, as the door has them."""

    def __init__(self, rig: Rig, quota: Quota) -> None:
        self.rig = rig
        self.clock_s = 1000.0
        self._quota = quota
        self.open()

    def open(self) -> None:
        self.deliveries = self.rig.run(self._open())
        throughput = Throughput(self._quota, lambda: self.clock_s)
        self.puts = Puts(self.deliveries, self.rig.streams, Validator(), throughput)

    async def _open(self) -> DeliveryStreams:
        deliveries = DeliveryStreams(
            self.rig.streams, KeyRing(self.rig.disk.root), sync_create=True, transition_s=0
        )
        await deliveries.open()
        return deliveries

    def create(self, name: str = NAME, **members: Any) -> Delivery:
        request = {"DeliveryStreamName": name, "ExtendedS3DestinationConfiguration": S3, **members}
        self.rig.run(self.deliveries.create(ACCOUNT, REGION, request))
        return self.deliveries.find(ACCOUNT, REGION, name)

    def put(self, data: bytes, name: str = NAME) -> dict[str, Any]:
        return self.answer(self.puts.put_record(ACCOUNT, REGION, record_body(data, name)))

    def put_batch(self, records: Sequence[bytes], name: str = NAME) -> dict[str, Any]:
        return self.answer(self.puts.put_record_batch(ACCOUNT, REGION, batch_body(records, name)))

    def answer(self, work: Any) -> dict[str, Any]:
        text = self.rig.run(work)
        answer: dict[str, Any] = json.loads(text)
        compact = json.dumps(answer, separators=(",", ":"), ensure_ascii=False)
        assert text.decode() == compact, "clients search the text"
        return answer

    def refusal(self, work: Any) -> tuple[str, str]:
        with pytest.raises(ApiError) as caught:
            self.rig.run(work)
        expected_status = 503 if caught.value.code == "ServiceUnavailableException" else 400
        assert caught.value.http_status == expected_status
        return caught.value.code, caught.value.message

    def stored(self, name: str = NAME) -> list[bytes]:
        """As put: opened if they are sealed."""
        delivery = self.deliveries.find(ACCOUNT, REGION, name)
        messages = self.rig.read(delivery.arn)
        keys = self.rig.run(self.deliveries.data_keys(delivery.arn))
        numbers = [message.sequence_number for message in messages]
        return open_records(keys, delivery.arn, numbers, [bytes(message.payload) for message in messages])

    def encrypt(self, *, on: bool = True) -> None:
        if on:
            change = self.deliveries.start_encryption(ACCOUNT, REGION, NAME, AWS_OWNED, None)
            wanted = EncryptionStatus.ENABLED
        else:
            change = self.deliveries.stop_encryption(ACCOUNT, REGION, NAME)
            wanted = EncryptionStatus.DISABLED
        self.rig.run(change)
        self.rig.run(self.deliveries.close())  # waits for what goes on behind the answer
        assert self.deliveries.find(ACCOUNT, REGION, NAME).record.encryption.status is wanted

    def without_journal(self) -> None:
        self.rig.disk.fail("write", "*/journal-?")
        self.rig.create("sacrificed", flush_on_write=True)
        self.rig.append("sacrificed", b"x")
        assert self.rig.store.journal.broken


@pytest.fixture
def quota() -> Quota:
    return Quota()


@pytest.fixture
def firehose(tmp_path: Path, quota: Quota) -> Iterator[Firehose]:
    rig = Rig(tmp_path / "data")
    firehose = Firehose(rig, quota)
    yield firehose
    rig.run(firehose.deliveries.close())
    rig.dispose()


# -- what is stored, and what is answered ---------------------------------------------------------------


def test_a_record(firehose: Firehose) -> None:
    firehose.create()
    answer = firehose.put(b"\x00first\xff")
    assert answer.keys() == {"RecordId", "Encrypted"}
    assert answer["Encrypted"] is False
    assert firehose.stored() == [b"\x00first\xff"]


def test_a_batch(firehose: Firehose) -> None:
    firehose.create()
    records = [b"", b"a" * RECORD_BYTES_MAX, b"\n", "ü".encode()]
    answer = firehose.put_batch(records)
    assert answer["FailedPutCount"] == 0
    assert answer["Encrypted"] is False
    assert [entry.keys() for entry in answer["RequestResponses"]] == [{"RecordId"}] * 4
    assert firehose.stored() == records


def test_success_can_be_seen_by_a_search_of_the_text(firehose: Firehose) -> None:
    firehose.create()
    text = firehose.rig.run(firehose.puts.put_record_batch(ACCOUNT, REGION, batch_body([b"x"] * 2)))
    assert b'"FailedPutCount":0,' in text


def test_record_ids_are_unique_and_sort_by_arrival(firehose: Firehose) -> None:
    firehose.create()
    firehose.create("other")
    ids = [entry["RecordId"] for entry in firehose.put_batch([b"x"] * 120)["RequestResponses"]]
    ids.append(firehose.put(b"x")["RecordId"])
    assert ids == sorted(ids)
    others = [entry["RecordId"] for entry in firehose.put_batch([b"x"] * 120, "other")["RequestResponses"]]
    assert len({*ids, *others}) == 241
    assert len({len(each) for each in ids + others}) == 1


def test_many_at_a_time_each_hear_of_their_own(firehose: Firehose) -> None:
    firehose.create()

    async def together() -> list[bytes]:
        works = [firehose.puts.put_record(ACCOUNT, REGION, record_body(b"%d" % n)) for n in range(50)]
        return await asyncio.gather(*works)

    ids = [json.loads(text)["RecordId"] for text in firehose.rig.run(together())]
    assert ids == sorted(ids)
    assert firehose.stored() == [b"%d" % n for n in range(50)]


def test_what_was_acknowledged_survives_a_power_cut(firehose: Firehose) -> None:
    firehose.create()
    records = [b"%d" % n * 50 for n in range(300)]
    for start in range(0, 300, 30):
        firehose.put_batch(records[start : start + 30])
    firehose.put(b"last")
    firehose.rig.run(firehose.deliveries.close())
    firehose.rig.power_cut(random.Random(7))
    firehose.open()
    assert firehose.stored() == [*records, b"last"]


def test_acknowledged_after_the_sync_only(firehose: Firehose) -> None:
    firehose.create()
    hold = firehose.rig.disk.hold_syncs("*/journal-?")

    async def watch() -> None:
        put = asyncio.create_task(firehose.puts.put_record(ACCOUNT, REGION, record_body(b"x")))
        assert await asyncio.to_thread(hold.reached.wait, 10)
        assert not put.done()
        hold.let_go()
        await put

    firehose.rig.run(watch())


# -- refused ------------------------------------------------------------------------------------------


def test_an_unknown_stream(firehose: Firehose) -> None:
    expected = ("ResourceNotFoundException", "Firehose orders under account 000000000000 not found.")
    assert firehose.refusal(firehose.puts.put_record(ACCOUNT, REGION, record_body(b"x"))) == expected
    assert firehose.refusal(firehose.puts.put_record_batch(ACCOUNT, REGION, batch_body([b"x"]))) == expected
    firehose.create()
    for account, region in ((ACCOUNT, "us-east-1"), ("111111111111", REGION)):
        code, _ = firehose.refusal(firehose.puts.put_record(account, region, record_body(b"x")))
        assert code == "ResourceNotFoundException"


@pytest.mark.parametrize("status", [Status.CREATING, Status.DELETING, Status.CREATING_FAILED])
def test_a_stream_that_is_not_active(firehose: Firehose, status: Status) -> None:
    delivery = firehose.create()
    delivery.record = msgspec.structs.replace(delivery.record, status=status)
    code, _ = firehose.refusal(firehose.puts.put_record(ACCOUNT, REGION, record_body(b"x")))
    assert code == "ResourceNotFoundException"
    assert firehose.rig.read(delivery.arn) == []
    firehose.rig.run(_passes(delivery))


async def _passes(delivery: Delivery) -> None:
    async with delivery.gate.shut():
        """Nobody was left inside."""


def test_a_stream_with_another_source(firehose: Firehose) -> None:
    delivery = firehose.create()
    delivery.source_type = "KinesisStreamAsSource"
    assert firehose.refusal(firehose.puts.put_record_batch(ACCOUNT, REGION, batch_body([b"x"]))) == (
        "InvalidArgumentException",
        "This operation is not permitted on KinesisStreamAsSource delivery stream type.",
    )


def test_too_many_records(firehose: Firehose) -> None:
    firehose.create()
    assert firehose.put_batch([b"x"] * 500)["FailedPutCount"] == 0
    code, message = firehose.refusal(
        firehose.puts.put_record_batch(ACCOUNT, REGION, batch_body([b"x"] * 501))
    )
    assert (code, message) == (
        "ValidationException",
        "1 validation error detected: Value at 'records' failed to satisfy constraint: "
        "Member must have length less than or equal to 500",
    )
    assert len(firehose.stored()) == 500


def test_no_records(firehose: Firehose) -> None:
    firehose.create()
    code, message = firehose.refusal(firehose.puts.put_record_batch(ACCOUNT, REGION, batch_body([])))
    assert code == "ValidationException"
    assert "greater than or equal to 1" in message


def test_a_record_that_is_too_large(firehose: Firehose) -> None:
    firehose.create()
    large = bytes(RECORD_BYTES_MAX + 1)
    code, message = firehose.refusal(firehose.puts.put_record(ACCOUNT, REGION, record_body(large)))
    assert code == "ValidationException"
    assert "'record.data'" in message
    code, message = firehose.refusal(
        firehose.puts.put_record_batch(ACCOUNT, REGION, batch_body([b"x", large]))
    )
    assert code == "ValidationException"
    assert "'records.2.member.data'" in message
    assert firehose.stored() == []


def test_a_batch_that_is_too_large_in_raw_bytes(firehose: Firehose) -> None:
    firehose.create()
    quarter = BATCH_BYTES_MAX // 5
    records = [bytes(quarter)] * 4 + [bytes(BATCH_BYTES_MAX - 4 * quarter)]
    assert firehose.put_batch(records)["FailedPutCount"] == 0
    too_large = firehose.puts.put_record_batch(ACCOUNT, REGION, batch_body([*records, b"1"]))
    assert firehose.refusal(too_large) == ("InvalidArgumentException", "Records size exceeds 4 MB limit")
    assert len(firehose.stored()) == 5


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", "ValidationException", "2 validation errors detected"),
        (b"{}", "ValidationException", "'record' failed to satisfy constraint: Member must not be null"),
        (b"not json", "SerializationException", "not JSON"),
        (b"[]", "SerializationException", ""),
        (b'{"DeliveryStreamName":"orders","Record":{"Data":null}}', "ValidationException", "'record.data'"),
        (b'{"DeliveryStreamName":"orders","Record":{"Data":1}}', "SerializationException", "record.data"),
        (b'{"DeliveryStreamName":"orders","Record":{"Data":"YQ"}}', "SerializationException", "base64"),
        (b'{"DeliveryStreamName":"orders","Record":{"Data":"Y Q="}}', "SerializationException", "base64"),
        (
            b'{"DeliveryStreamName":"a b","Record":{"Data":"YQ=="}}',
            "ValidationException",
            "regular expression",
        ),
        (b'{"DeliveryStreamName":7,"Record":{"Data":"YQ=="}}', "SerializationException", ""),
    ],
)
def test_bodies_that_are_wrong(firehose: Firehose, body: bytes, code: str, words: str) -> None:
    firehose.create()
    refused, message = firehose.refusal(firehose.puts.put_record(ACCOUNT, REGION, body))
    assert refused == code
    assert words in message
    assert firehose.stored() == []


def test_members_that_nobody_knows_and_null_ones(firehose: Firehose) -> None:
    firehose.create()
    body = (
        b'{"Record":{"Data":"YQ==","New":1},"New":{"a":[]},"Tags":null,"DeliveryStreamName":"\\u006frders"}'
    )
    firehose.answer(firehose.puts.put_record(ACCOUNT, REGION, body))
    assert firehose.stored() == [b"a"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_DATA = (
    st.binary(max_size=8).map(encoded)
    | st.sampled_from(["YQ", "YR==", "====", "YQ==\n", "_-==", "é"])
    | _JSON
)
_RECORDS = st.lists(st.fixed_dictionaries({"Data": _DATA}, optional={"X": _JSON}) | _JSON, max_size=4) | _JSON
_BODIES = st.fixed_dictionaries({"DeliveryStreamName": st.just(NAME) | _JSON, "Records": _RECORDS})


@given(_BODIES)
def test_the_typed_decoder_takes_nothing_that_the_model_refuses(body: dict[str, Any]) -> None:
    text = json.dumps(body).encode()
    try:
        fast = puts_module._decode_batch(text)
        records = [puts_module.b64decode(record.data, None, True) for record in fast.records]
    except puts_module._NOT_USUAL:
        return
    if not records or re.fullmatch("[a-zA-Z0-9_.-]{1,64}", fast.name) is None:
        return  # refused behind the decoder
    request = Validator().check("PutRecordBatch", msgspec.json.decode(text))
    assert [record["Data"] for record in request["Records"]] == records


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.booleans())
def test_the_typed_decoder_takes_what_clients_send(records: list[bytes], spaces: bool) -> None:
    text = batch_body(records)
    if not spaces:
        text = json.dumps(json.loads(text), separators=(",", ":")).encode()
    decoded = puts_module._decode_batch(text).records
    assert [puts_module.b64decode(record.data, None, True) for record in decoded] == records


# -- the disk ---------------------------------------------------------------------------------------


def test_a_full_disk(firehose: Firehose, caplog: pytest.LogCaptureFixture) -> None:
    firehose.create()
    firehose.rig.store.disk_full = True
    code, message = firehose.refusal(firehose.puts.put_record(ACCOUNT, REGION, record_body(b"x")))
    assert code == "ServiceUnavailableException"
    assert "disk is full" in message
    answer = firehose.put_batch([b"x", b"y"])
    assert answer["FailedPutCount"] == 2
    assert [entry["ErrorCode"] for entry in answer["RequestResponses"]] == ["ServiceUnavailableException"] * 2
    assert "records refused" in caplog.text
    firehose.rig.store.disk_full = False
    assert firehose.put_batch([b"z"])["FailedPutCount"] == 0
    assert firehose.stored() == [b"z"]


def test_a_disk_that_fails_to_sync(firehose: Firehose) -> None:
    firehose.create()
    firehose.without_journal()
    firehose.rig.disk.fail("sync", "*.open")
    answer = firehose.put_batch([b"lost", b"too"])
    assert answer["FailedPutCount"] == 2
    assert all("RecordId" not in entry for entry in answer["RequestResponses"])
    assert firehose.put_batch([b"after"])["FailedPutCount"] == 0
    assert firehose.stored() == [b"after"]


def test_a_batch_that_does_not_fit_is_refused_as_a_whole(firehose: Firehose) -> None:
    """Or clients that send all of it again would store the rest twice."""
    delivery = firehose.create()
    stream = delivery.stream
    firehose.put(b"before")
    stream.definition = msgspec.structs.replace(stream.definition, max_size_bytes=4096)
    stream.room_bytes = 0
    answer = firehose.put_batch([b"%d" % n * 1000 for n in range(6)])
    assert answer["FailedPutCount"] == 6
    [message] = {entry["ErrorMessage"] for entry in answer["RequestResponses"]}
    assert "PENSTOCK_FIREHOSE_STREAM_SIZE_MAX_BYTES" in message
    assert firehose.put_batch([b"a" * 1000, b"b" * 1000])["FailedPutCount"] == 0
    assert firehose.stored() == [b"before", b"a" * 1000, b"b" * 1000]
    code, _ = firehose.refusal(firehose.puts.put_record(ACCOUNT, REGION, record_body(b"x" * 3000)))
    assert code == "ServiceUnavailableException"


def test_a_batch_is_not_too_large_because_its_records_together_are(firehose: Firehose) -> None:
    firehose.create()
    firehose.rig.streams._message_size_max_bytes = 2000
    assert firehose.put_batch([b"a" * 1500, b"b" * 1500])["FailedPutCount"] == 0
    answer = firehose.put_batch([b"a" * 1500, b"b" * 2500])
    assert {entry["ErrorCode"] for entry in answer["RequestResponses"]} == {"InvalidArgumentException"}


def test_a_stream_that_is_deleted_meanwhile(firehose: Firehose) -> None:
    delivery = firehose.create()
    firehose.rig.run(firehose.rig.streams.delete(delivery.arn))
    for work in (
        firehose.puts.put_record(ACCOUNT, REGION, record_body(b"x")),
        firehose.puts.put_record_batch(ACCOUNT, REGION, batch_body([b"x"])),
    ):
        assert firehose.refusal(work)[0] == "ResourceNotFoundException"


# -- quotas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("quota", [Quota(records_per_s=3)])
def test_throttled_records(firehose: Firehose) -> None:
    firehose.create()
    answer = firehose.put_batch([b"1", b"2", b"3", b"4", b"5"])
    assert answer["FailedPutCount"] == 2
    assert ["RecordId" in entry for entry in answer["RequestResponses"]] == [True] * 3 + [False] * 2
    assert answer["RequestResponses"][4] == {
        "ErrorCode": "ServiceUnavailableException",
        "ErrorMessage": "Slow down.",
    }
    assert firehose.put_batch([b"6"])["FailedPutCount"] == 1
    assert firehose.refusal(firehose.puts.put_record(ACCOUNT, REGION, record_body(b"x"))) == (
        "ServiceUnavailableException",
        "Slow down.",
    )
    firehose.clock_s += 1
    firehose.put(b"7")
    assert firehose.stored() == [b"1", b"2", b"3", b"7"]


# -- encryption -------------------------------------------------------------------------------------


def test_records_are_sealed_on_disk(firehose: Firehose) -> None:
    key = {"KeyType": AWS_OWNED}
    delivery = firehose.create(DeliveryStreamEncryptionConfigurationInput=key)
    assert firehose.put(b"a secret")["Encrypted"] is True
    assert firehose.put_batch([b"a secret"] * 3)["Encrypted"] is True
    assert all(b"a secret" not in bytes(message.payload) for message in firehose.rig.read(delivery.arn))
    assert firehose.stored() == [b"a secret"] * 4


def test_keys_come_and_go(firehose: Firehose) -> None:
    firehose.create()
    expected = []
    for step, on in enumerate([True, True, False, True]):
        records = [b"%d-%d" % (step, n) for n in range(3)]
        firehose.put_batch(records)
        expected += records
        firehose.encrypt(on=on)
        assert firehose.put(b"after %d" % step)["Encrypted"] is on
        expected.append(b"after %d" % step)
        assert firehose.stored() == expected


def test_keys_survive_a_power_cut(firehose: Firehose) -> None:
    firehose.create()
    firehose.put(b"plain")
    firehose.encrypt()
    firehose.put(b"sealed")
    firehose.rig.power_cut(random.Random(3))
    firehose.open()
    assert firehose.put(b"sealed too")["Encrypted"] is True
    assert firehose.stored() == [b"plain", b"sealed", b"sealed too"]


def test_puts_beside_a_switch_of_keys(firehose: Firehose) -> None:
    firehose.create()
    count = 40

    async def scenario() -> None:
        async def put_many(who: int) -> None:
            for n in range(count):
                await firehose.puts.put_record(ACCOUNT, REGION, record_body(b"%d-%d" % (who, n)))

        clients = [asyncio.create_task(put_many(who)) for who in range(5)]
        for _ in range(4):
            await firehose.deliveries.start_encryption(ACCOUNT, REGION, NAME, AWS_OWNED, None)
            delivery = firehose.deliveries.find(ACCOUNT, REGION, NAME)
            while delivery.record.encryption.status is not EncryptionStatus.ENABLED:
                await asyncio.sleep(0.001)
        await asyncio.gather(*clients)

    firehose.rig.run(scenario())
    assert sorted(firehose.stored()) == sorted(b"%d-%d" % (who, n) for who in range(5) for n in range(count))


def test_a_client_that_goes_away_keeps_the_gate_until_its_records_are_stored(firehose: Firehose) -> None:
    delivery = firehose.create()
    hold = firehose.rig.disk.hold_syncs("*/journal-?")

    async def scenario() -> None:
        put = asyncio.create_task(firehose.puts.put_record(ACCOUNT, REGION, record_body(b"x")))
        assert await asyncio.to_thread(hold.reached.wait, 10)
        put.cancel()
        switch = asyncio.create_task(_passes(delivery))
        await asyncio.wait({put, switch}, timeout=0.05)
        assert put.cancelled()
        assert not switch.done()
        hold.let_go()
        await switch

    firehose.rig.run(scenario())
    assert firehose.stored() == [b"x"]


def test_a_key_that_cannot_be_had(firehose: Firehose) -> None:
    delivery = firehose.create()
    delivery.lock("the key is away")
    code, message = firehose.refusal(firehose.puts.put_record(ACCOUNT, REGION, record_body(b"x")))
    assert (code, message) == ("InvalidKMSResourceException", "the key is away")
    assert firehose.rig.read(delivery.arn) == []
    firehose.rig.run(_passes(delivery))
