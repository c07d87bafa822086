"""The journal: one synced write makes the fresh frames of all waiting streams durable at once.

Two pre-written files take turns. A frame is written to its segment as ever, unsynced, and once more here, synced.
Before a file is used again, the segments it speaks for are synced. After a crash every frame found here is
written to its place again, which changes nothing where it had arrived.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from penstock.log.files import Buffer, File, Files
from penstock.log.segment import DamagedFile, Segment, WrittenFrame

MAGIC = b"PSJ1"
VERSION = 1
BLOCK_ALIGNMENT_BYTES = (
    4096  # a block never shares a page with an older one, so a torn write harms only itself
)
BLOCK_BYTES_MAX = 256 * 1024

# magic, version, block number, entry count, body bytes, body checksum; then the checksum of these
_BLOCK = struct.Struct("<4sB3xQIII")
_CHECKSUM = struct.Struct("<I")
_BLOCK_BYTES = _BLOCK.size + _CHECKSUM.size
# stream key, segment base, offset in the segment, frame bytes
_ENTRY = struct.Struct("<QQQI")


class Entry(NamedTuple):
    stream_key: int
    segment_base: int
    offset: int
    frame: bytes


class _Half:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: File | None = None
        self.position = 0
        self.segments: dict[int, Segment] = {}  # by identity: those that rely on this file

    @property
    def clean(self) -> bool:
        return not self.segments


class Journal:
    def __init__(self, files: Files, directory: Path, size_bytes: int) -> None:
        self._files = files
        self._half_bytes = size_bytes // 2
        self._halves = [_Half(directory / f"journal-{i}") for i in range(2)]
        self._active = 0
        # Random, so that a block left over from an earlier run never looks like the successor of a new one.
        self._next_block = secrets.randbits(62)
        self.unreadable = False  # the disk could not give back all of it
        self.broken: str | None = None  # after a failed write nothing is entrusted to it any more

    # -- writing ------------------------------------------------------------------------------------

    def write(self, written: Sequence[WrittenFrame]) -> bool:
        """Make the frames durable, or say False: then each segment must be synced by itself.

        Raises OSError; then the journal is out of use.
        """
        if self.broken is not None:
            return False
        body = self._encode(written)
        size_bytes = _BLOCK_BYTES + len(body)
        half = self._half_for(size_bytes) if body else None
        if half is None:
            return False
        fields = _BLOCK.pack(MAGIC, VERSION, self._next_block, len(written), len(body), crc32c(body))
        try:
            if half.file is None:
                half.file = self._prepare(half.path)
            half.file.write_at([fields + _CHECKSUM.pack(crc32c(fields)), body], half.position, sync=True)
        except OSError as error:
            self.broken = str(error)
            raise
        half.position += size_bytes + (-size_bytes % BLOCK_ALIGNMENT_BYTES)
        self._next_block += 1
        for segment, offset, header, _ in written:
            half.segments[id(segment)] = segment
            segment.durable_bytes = max(segment.durable_bytes, offset + header.frame_bytes)
        return True

    def _encode(self, written: Sequence[WrittenFrame]) -> bytes:
        """The entries of a block; nothing if these frames cannot go through the journal."""
        pieces: list[Buffer] = []
        reached: dict[Segment, int] = {}
        total_bytes = 0
        for segment, offset, header, buffers in written:
            # What lies before must be durable too, or a power cut leaves a hole in front of this frame.
            if offset > reached.get(segment, segment.durable_bytes):
                return b""
            frame_bytes = header.frame_bytes
            reached[segment] = offset + frame_bytes
            total_bytes += frame_bytes
            if total_bytes > BLOCK_BYTES_MAX:
                return b""
            pieces.append(_ENTRY.pack(segment.stream_key, segment.base, offset, frame_bytes))
            pieces += buffers
        return b"".join(pieces)

    def _half_for(self, size_bytes: int) -> _Half | None:
        """The file with room for a block: the one in use, or the other if nothing relies on it any more."""
        half, other = self._halves[self._active], self._halves[1 - self._active]
        if half.position + size_bytes <= self._half_bytes:
            return half
        if not other.clean or size_bytes > self._half_bytes:
            return None
        self._active = 1 - self._active
        other.position = 0
        return other

    def _prepare(self, path: Path) -> File:
        """Every block written and allocated beforehand, so that a sync later has no metadata to write."""
        if self._files.exists(path):
            file = self._files.open(path, write=True)
            if file.size_bytes() == self._half_bytes:
                return file
            file.close()
            self._files.remove(path)
        file = self._files.create(path)
        file.write_at([bytes(self._half_bytes)], 0)
        file.sync()
        self._files.sync_directory(path.parent)
        return file

    # -- recycling ----------------------------------------------------------------------------------

    @property
    def needs_release(self) -> bool:
        """Whether segments can be synced so that the file that is not in use can be used again."""
        return any(not segment.sync_failed for segment in self.resting_segments())

    def resting_segments(self) -> list[Segment]:
        """Segments to sync so that the file that is not in use can be used again."""
        return list(self._halves[1 - self._active].segments.values())

    def release(self, segments: Sequence[Segment]) -> None:
        """These segments were synced (or dropped) after `resting_segments` named them."""
        resting = self._halves[1 - self._active]
        for segment in segments:
            resting.segments.pop(id(segment), None)

    def close(self) -> None:
        for half in self._halves:
            if half.file is not None:
                half.file.close()
                half.file = None

    # -- recovery -----------------------------------------------------------------------------------

    def recover(self) -> Iterator[Entry]:
        """All frames that were made durable here, in the order they were."""
        runs = [run for run in (self._read_half(half.path) for half in self._halves) if run]
        runs.sort(key=lambda run: run[0][0])
        for run in runs:
            for _, entries in run:
                yield from entries

    def clear(self) -> None:
        """Forget everything. Only after all that `recover` gave is synced in its place."""
        for half in self._halves:
            if self._files.exists(half.path):
                file = half.file or self._files.open(half.path, write=True)
                file.write_at([bytes(BLOCK_ALIGNMENT_BYTES)], 0, sync=True)

    def set_aside(self) -> None:
        """Keep the files under other names, because what they hold could not be written to its place."""
        for half in self._halves:
            if self._files.exists(half.path):
                numbered = (half.path.with_suffix(f".failed-{i}") for i in count())
                self._files.rename(half.path, next(path for path in numbered if not self._files.exists(path)))
                self._files.sync_directory(half.path.parent)

    def _read_half(self, path: Path) -> list[tuple[int, list[Entry]]]:
        if not self._files.exists(path):
            return []
        file = self._files.open(path)
        reader = DamagedFile(file)
        data = reader.read(reader.size_bytes, 0)
        file.close()
        self.unreadable |= reader.unreadable
        return list(_decode_blocks(data))


def _decode_blocks(data: bytes) -> Iterator[tuple[int, list[Entry]]]:
    """Blocks with consecutive numbers from the start; what follows is from an earlier use of the file."""
    position = 0
    previous: int | None = None
    while position + _BLOCK_BYTES <= len(data):
        fields = data[position : position + _BLOCK.size]
        (checksum,) = _CHECKSUM.unpack_from(data, position + _BLOCK.size)
        magic, version, number, count, body_bytes, body_checksum = _BLOCK.unpack(fields)
        if magic != MAGIC or version != VERSION or crc32c(fields) != checksum:
            return
        if previous is not None and number != previous + 1:
            return
        start = position + _BLOCK_BYTES
        body = data[start : start + body_bytes]
        if len(body) != body_bytes or crc32c(body) != body_checksum:
            return
        yield number, list(_decode_entries(body, count))
        previous = number
        size_bytes = _BLOCK_BYTES + body_bytes
        position += size_bytes + (-size_bytes % BLOCK_ALIGNMENT_BYTES)


def _decode_entries(body: bytes, count: int) -> Iterator[Entry]:
    position = 0
    for _ in range(count):
        stream_key, segment_base, offset, frame_bytes = _ENTRY.unpack_from(body, position)
        position += _ENTRY.size
        yield Entry(stream_key, segment_base, offset, body[position : position + frame_bytes])
        position += frame_bytes
