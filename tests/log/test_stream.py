"""A stream's segments: when they come and go, and what is read from them."""

from __future__ import annotations

import errno

import pytest

from faults.rig import Rig, Sink
from penstock.errors import DiskFull, PenstockError, StorageFailed
from penstock.log.stream import Stream


def payloads_of(rig: Rig, name: str = "s") -> list[bytes]:
    return [message.payload for message in rig.read(name)]


def numbers_of(rig: Rig, name: str = "s") -> list[int]:
    return [message.sequence_number for message in rig.read(name)]


def charged(stream: Stream) -> int:
    """The true charge, counted from what the segments hold."""
    return sum(segment.charged_bytes for segment in stream.segments)


def assert_failed(sink: Sink, kind: type[PenstockError], count: int) -> None:
    assert [type(error) for error in sink.results] == [kind] * count


# -- rule 5 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("after_bytes", [0, 1, 63, 64, 100])
def test_rule_5_a_failed_write_poisons_the_segment(rig: Rig, durable: bool, after_bytes: int) -> None:
    stream = rig.create("s", flush_on_write=durable)
    assert rig.append("s", b"one", b"two").numbers == [0, 1]
    rig.disk.fail("write", "*.open", after_bytes=after_bytes)
    assert_failed(rig.append("s", b"lost" * 10, b"lost"), StorageFailed, 2)
    assert rig.append("s", b"three").numbers == [4]
    assert [segment.base for segment in stream.segments] == [0, 4]
    assert payloads_of(rig) == [b"one", b"two", b"three"]
    assert stream.charged_bytes == charged(stream) == 3 * 12 + 11
    rig.restart()
    assert payloads_of(rig) == [b"one", b"two", b"three"]
    assert rig.append("s", b"four").numbers == [5]


def test_rule_5_a_new_segment_that_cannot_be_made_harms_no_other(rig: Rig) -> None:
    stream = rig.create("s", segment_size_bytes=1024)
    rig.append("s", bytes(900))
    rig.disk.fail("create", "*.open", error=errno.ENOSPC)
    assert_failed(rig.append("s", bytes(900)), DiskFull, 1)
    rig.store.seal_segments()
    assert not stream.segments[0].poisoned
    assert rig.append("s", b"x").numbers == [2]
    assert numbers_of(rig) == [0, 2]


def test_rule_5_a_stream_whose_last_segment_is_sealed_survives_a_failed_roll(rig: Rig) -> None:
    stream = rig.create("s", flush_on_write=True)
    rig.append("s", b"x")
    stream.segments[0].seal()
    rig.disk.fail("create", "*.open", error=errno.ENOSPC, times=2)
    for _ in range(2):
        assert_failed(rig.append("s", b"lost"), DiskFull, 1)
    assert rig.append("s", b"y").numbers == [3]
    assert payloads_of(rig) == [b"x", b"y"]


def test_rule_5_sizes_stay_right_when_not_even_the_cut_works(rig: Rig) -> None:
    stream = rig.create("s", flush_on_write=True)
    rig.disk.fail("write", "*journal*")
    rig.append("s", b"one")
    rig.disk.fail("sync", "*.open")
    rig.disk.fail("truncate", "*.open")
    assert_failed(rig.append("s", b"lost"), StorageFailed, 1)
    assert stream.charged_bytes == charged(stream) == 15
    assert rig.append("s", b"two").numbers == [2]
    assert payloads_of(rig) == [b"one", b"two"]
