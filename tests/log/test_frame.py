"""Rule 2: a frame is valid or it is not there."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log import frame as frames
from penstock.log.frame import BadFrame

KEY = 0x1234_5678_9ABC_DEF0
payload_lists = st.lists(st.binary(max_size=300), min_size=1, max_size=40)


def encoded(payloads: list[bytes], first: int = 7, arrivals: int | list[int] = 1000) -> bytes:
    return b"".join(frames.encode(KEY, first, arrivals, payloads)[1])


@given(payload_lists, st.integers(0, 2**63 - 100), st.integers(-(2**63), 2**63 - 1))
def test_rule_2_a_frame_gives_back_what_it_was_given(payloads: list[bytes], first: int, arrival: int) -> None:
    raw = encoded(payloads, first, arrival)
    frame = frames.decode(raw)
    assert frame.payloads() == payloads
    assert frame.arrivals.tolist() == [arrival] * len(payloads)
    assert (frame.first_sequence, frame.count) == (first, len(payloads))
    assert frame.header.stream_key == KEY
    assert frame.header.newest_arrival_ms == arrival
    assert frame.header.frame_bytes == len(raw)
    assert frame.header.next_sequence == first + len(payloads)
    assert frame.header.charged_bytes == sum(map(len, payloads)) + 12 * len(payloads)
    assert len(raw) % 8 == 0


@given(payload_lists)
def test_rule_2_each_message_keeps_its_own_arrival(payloads: list[bytes]) -> None:
    arrivals = [5 * i % 7 for i in range(len(payloads))]
    frame = frames.decode(encoded(payloads, 0, arrivals))
    assert frame.arrivals.tolist() == arrivals
    assert frame.header.newest_arrival_ms == max(arrivals)


@given(payload_lists, st.data())
def test_parts_of_a_frame(payloads: list[bytes], data: st.DataObject) -> None:
    frame = frames.decode(encoded(payloads))
    start = data.draw(st.integers(0, len(payloads) - 1))
    stop = data.draw(st.integers(start, len(payloads) + 3))
    assert frame.payloads(start, stop) == payloads[start:stop]


def test_columns_are_an_arrow_binary_array() -> None:
    frame = frames.decode(encoded([b"ab", b"", b"cde"]))
    assert frame.offsets.tolist() == [0, 2, 2, 5]
    assert bytes(frame.data) == b"abcde"


def test_single_message_and_many_have_one_layout() -> None:
    """The shortcut for one message must write what the general way would."""
    assert encoded([b"payload"], 9, 77) == encoded([b"payload"], 9, [77])


@pytest.mark.parametrize("payloads", [[b"x"], [b"one", b"two" * 50, b""]])
def test_rule_2_every_flipped_bit_is_noticed(payloads: list[bytes]) -> None:
    raw = bytearray(encoded(payloads))
    for position in range(len(raw) * 8):
        raw[position // 8] ^= 1 << position % 8
        with pytest.raises(BadFrame):
            frames.decode(bytes(raw))
        raw[position // 8] ^= 1 << position % 8
    assert frames.decode(bytes(raw)).payloads() == payloads


def test_rule_2_every_truncation_is_noticed() -> None:
    raw = encoded([b"one", b"two"])
    for size in range(len(raw)):
        with pytest.raises(BadFrame):
            frames.decode(raw[:size])


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_rule_2_noise_is_not_a_frame(noise: bytes) -> None:
    with pytest.raises(BadFrame):
        frames.decode(noise)
    with pytest.raises(BadFrame):
        frames.decode(frames.MAGIC + noise)


def resealed(raw: bytes, offset: int, value: bytes) -> bytes:
    """The frame with a header field changed and the header's checksum made right again."""
    changed = bytearray(raw)
    changed[offset : offset + len(value)] = value
    changed[60:64] = crc32c(bytes(changed[:60])).to_bytes(4, "little")
    return bytes(changed)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (4, b"\x02"),  # a version to come
        (5, b"\x01"),  # a flag nobody knows
        (6, b"\x50\x00"),  # another header size
        (24, bytes(4)),  # no messages
        (24, b"\xff\xff\xff\xff"),  # far more messages than bytes
        (28, b"\xff\xff\xff\xff"),  # more data than a frame may hold
        (32, b"\xff\xff\xff\x7f"),  # a body longer than its columns
    ],
)
def test_rule_2_lengths_are_checked_before_they_are_trusted(offset: int, value: bytes) -> None:
    with pytest.raises(BadFrame):
        frames.decode_header(resealed(encoded([b"one", b"two"]), offset, value))


def test_frames_of_a_buffer() -> None:
    rng = random.Random(1)
    batches = [[rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 9))] for _ in range(20)]
    raw = b"".join(encoded(batch, i) for i, batch in enumerate(batches))
    assert [frame.payloads() for frame in frames.decode_frames(raw)] == batches
    with pytest.raises(BadFrame):
        list(frames.decode_frames(raw + b"\0"))
