"""Random damage in every kind of file of a stopped store: the rest reads back, and no payload is ever wrong."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from faults.rig import Rig
from penstock.errors import CorruptMessages
from penstock.log.stream import Stream

SOAK = os.environ.get("PENSTOCK_SOAK") == "1"
ROUNDS = 3000 if SOAK else 40
NAMES = ("durable", "relaxed", "large")


def populate(rig: Rig, rng: random.Random) -> dict[str, dict[int, bytes]]:
    """Sealed, merged and open segments, a used journal, frames of many sizes."""
    sent: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
    for name in NAMES:
        rig.create(name, flush_on_write=name == "durable", segment_size_bytes=20_000)
    for _ in range(60):
        for name in NAMES:
            size_max = 90_000 if name == "large" else 900
            payloads = [rng.randbytes(rng.randrange(size_max)) for _ in range(rng.randrange(1, 5))]
            sink = rig.append(name, *payloads)
            sent[name] |= dict(zip(sink.numbers, payloads, strict=True))
        if rng.random() < 0.2:
            rig.store.seal_segments()
    return sent


def readable(stream: Stream) -> dict[int, bytes]:
    """All messages that can be read, and a check that the others are reported."""
    found: dict[int, bytes] = {}
    reported: set[int] = set()
    sequence = 0
    while sequence < stream.visible_next:
        try:
            reading = stream.read(sequence, 7, 10**9)
        except CorruptMessages as damage:
            reported.update(range(damage.first, damage.next_readable))
            sequence = damage.next_readable
            continue
        found |= {message.sequence_number: message.payload for message in reading.messages}
        sequence = reading.next_sequence
    for gap in stream.gaps():
        reported.update(range(gap.first, gap.next_readable))
    silent = set(range(stream.oldest_sequence, stream.visible_next)) - found.keys() - reported
    assert not silent, f"messages {sorted(silent)} are neither there nor reported"
    return found


def flip_some(rng: random.Random, content: dict[Path, bytes], path: Path) -> tuple[dict[Path, bytes], int]:
    """The same files with one of them damaged: a bit, a few bytes, a page of zeros or of noise."""
    data = bytearray(content[path])
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            for i in range(at, min(at + 8, len(data))):
                data[i] ^= rng.randrange(1, 256)
        case 2:
            at -= at % 4096
            data[at : at + 4096] = bytes(len(data[at : at + 4096]))
        case 3:
            at -= at % 4096
            data[at : at + 4096] = rng.randbytes(len(data[at : at + 4096]))
    return {**content, path: bytes(data)}, at


def message_bytes(content: dict[Path, bytes]) -> dict[Path, bytes]:
    return {path: data for path, data in content.items() if path.suffix in (".open", ".seg")}


def assert_survives(
    rig: Rig, sent: dict[str, dict[int, bytes]], damaged: dict[Path, bytes], hit: Path
) -> None:
    rig.open()
    for name, expected in sent.items():
        stream = rig.store.streams[name]
        found = readable(stream)
        for number, payload in found.items():
            assert payload == expected.get(number), f"{name}: message {number} has another payload"
        if stream.directory != hit.parent:
            assert found == expected, f"{name} was not damaged"
        assert stream.next_sequence >= len(expected), f"{name}: numbers would come again"
        [number] = rig.append(name, b"new").numbers
        assert number >= len(expected)
        assert stream.read(number, 1, 1).messages[0].payload == b"new"
    rig.close()
    now = message_bytes(rig.disk.snapshot())
    for path, data in message_bytes(damaged).items():
        assert path in now, f"{path.name} was removed"
        assert now[path][: len(data)] == data, f"{path.name} was changed"


@pytest.mark.parametrize("seed", range(2))
def test_flipped_bits(rig: Rig, seed: int) -> None:
    rng = random.Random(seed)
    sent = populate(rig, rng)
    rig.close()
    content = rig.disk.snapshot()
    by_kind = {
        suffix: [path for path, data in content.items() if path.suffix == suffix and data]
        for suffix in (".open", ".seg", "")
    }
    assert all(by_kind.values()), "every kind of file is there"
    for round_number in range(ROUNDS // 2):
        kind = sorted(by_kind)[round_number % 3]
        hit = rng.choice(by_kind[kind])
        damaged, _ = flip_some(rng, content, hit)
        rig.disk.restore(damaged)
        assert_survives(rig, sent, damaged, hit)
    rig.disk.restore(content)
    rig.open()


def test_flipped_bits_in_the_journal_of_a_killed_server(rig: Rig) -> None:
    """Its segments are whole, in the page cache: whatever the journal says, no message may suffer from it."""
    rng = random.Random(7)
    sent = populate(rig, rng)
    rig.disk.kill()
    rig.abandon()
    content = rig.disk.snapshot()
    journal = [path for path in content if path.name.startswith("journal-")]
    for _ in range(ROUNDS // 3):
        damaged, _ = flip_some(rng, content, rng.choice(journal))
        rig.disk.restore(damaged)
        rig.open()
        for name, expected in sent.items():
            assert readable(rig.store.streams[name]) == expected
        rig.disk.kill()
        rig.abandon()
    rig.disk.restore(content)
    rig.open()


def test_files_that_vanish(rig: Rig) -> None:
    rng = random.Random(3)
    sent = populate(rig, rng)
    rig.close()
    content = rig.disk.snapshot()
    segments = sorted(message_bytes(content))
    for hit in rng.sample(segments, min(len(segments), ROUNDS // 4)):
        damaged = {path: data for path, data in content.items() if path != hit}
        rig.disk.restore(damaged)
        rig.open()
        for name, expected in sent.items():
            stream = rig.store.streams[name]
            found = readable(stream)
            assert found.items() <= expected.items()
            if stream.directory != hit.parent:
                assert found == expected
        rig.close()
    rig.disk.restore(content)
    rig.open()
