from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery import sealing
from penstock.delivery.sealing import ENVELOPE_BYTES, NONCE_BYTES, CannotOpen, Opener, Sealer, open_records
from penstock.delivery.settings import DataKey

ARN = "arn:aws:firehose:eu-west-1:000000000000:deliverystream/orders"
KEY = bytes(range(32))
OTHER_KEY = bytes(range(32, 64))


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_what_is_sealed_can_be_opened(records: list[bytes]) -> None:
    sealed = Sealer(KEY, ARN).seal(records)

    assert open_records([DataKey(0, KEY)], ARN, range(len(records)), sealed) == records
    assert [len(each) for each in sealed] == [len(each) + ENVELOPE_BYTES for each in records]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([b"", KEY, OTHER_KEY])), max_size=4),
    st.sets(st.integers(0, 40), max_size=40),
)
def test_the_key_of_a_record_is_known_by_its_number(
    changes: list[tuple[int, bytes]], numbers: set[int]
) -> None:
    keys = [DataKey(first, key) for first, key in changes]
    sequences = sorted(numbers)
    records = [b"record %d" % number for number in sequences]
    stored = []
    for number, record in zip(sequences, records, strict=True):
        before = sorted((first, index) for index, (first, _) in enumerate(changes) if first <= number)
        key = changes[before[-1][1]][1] if before else b""
        stored.append(Sealer(key, ARN).seal([record])[0] if key else record)

    assert open_records(keys, ARN, sequences, stored) == records


def test_nothing_of_a_record_is_left_in_the_clear() -> None:
    record = b"card 4111 1111 1111 1111" * 4
    (sealed,) = Sealer(KEY, ARN).seal([record])
    assert not any(record[start : start + 4] in sealed for start in range(len(record) - 3))


@pytest.mark.parametrize("position", [0, NONCE_BYTES, -1])
def test_a_changed_byte_is_noticed(position: int) -> None:
    sealed = [bytearray(each) for each in Sealer(KEY, ARN).seal([b"first", b"second"])]
    sealed[1][position] ^= 1

    with pytest.raises(CannotOpen, match=r"record 8 of .*orders cannot be decrypted") as caught:
        open_records([DataKey(0, KEY)], ARN, [7, 8], [bytes(each) for each in sealed])
    assert caught.value.sequence == 8


@pytest.mark.parametrize("stored", [b"", b"short", bytes(ENVELOPE_BYTES - 1)])
def test_what_is_too_short_to_be_sealed_is_noticed(stored: bytes) -> None:
    with pytest.raises(CannotOpen):
        open_records([DataKey(0, KEY)], ARN, [0], [stored])


def test_another_key_opens_nothing() -> None:
    with pytest.raises(CannotOpen):
        open_records([DataKey(0, OTHER_KEY)], ARN, [0], Sealer(KEY, ARN).seal([b"record"]))


def test_a_record_moved_to_another_delivery_stream_is_refused() -> None:
    with pytest.raises(CannotOpen):
        open_records([DataKey(0, KEY)], ARN + "-copy", [0], Sealer(KEY, ARN).seal([b"record"]))


def test_nonces_never_repeat_also_when_the_counter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_COUNTER_MAX", 8)
    sealer = Sealer(KEY, ARN)
    nonces = [sealed[:NONCE_BYTES] for _ in range(5) for sealed in sealer.seal([b"x"] * 3)]
    nonces += [sealed[:NONCE_BYTES] for sealed in Sealer(KEY, ARN).seal([b"x"] * 3)]

    assert len(set(nonces)) == len(nonces)
    assert all(int.from_bytes(nonce[8:], "big") < 8 for nonce in nonces)


def test_without_keys_records_are_passed_on() -> None:
    opener = Opener([DataKey(5, b"")], ARN)
    assert opener.opens_nothing
    assert opener.open([1, 9], [b"a", b"b"]) == [b"a", b"b"]


def test_one_opener_for_many_runs() -> None:
    opener = Opener([DataKey(4, KEY)], ARN)
    sealer = Sealer(KEY, ARN)
    for first in itertools.chain([0], range(4, 12, 4)):
        records = [os.urandom(10) for _ in range(4)]
        stored = sealer.seal(records) if first >= 4 else records
        assert opener.open(range(first, first + 4), stored) == records


def test_keys_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Sealer(b"short", ARN)
    with pytest.raises(ValueError, match="32 bytes"):
        Opener([DataKey(0, b"short")], ARN)


def test_a_key_is_not_shown() -> None:
    assert repr(KEY) not in repr(DataKey(3, KEY))
    assert "first_sequence=3" in repr(DataKey(3, KEY))
