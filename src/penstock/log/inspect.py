"""A look at a data directory from outside, without changing a byte: for `penstock log`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from penstock.errors import PenstockError, StreamNotFound
from penstock.log.files import OsFiles
from penstock.log.segment import OPEN_SUFFIX, SEALED_SUFFIX, Segment, base_of, scan_frames
from penstock.log.store import directory_name
from penstock.model import Persistence, StreamDefinition


class SegmentReport(msgspec.Struct):
    stream: str
    segment: str
    state: str  # "active", "sealed" or "quarantined"
    first_sequence: int
    next_sequence: int
    frames: int
    messages: int
    size_bytes: int
    problems: list[str]
    gaps: list[tuple[int, int]]  # first missing number, first number that is there again


class FrameReport(msgspec.Struct):
    segment: str
    offset: int
    first_sequence: int
    count: int
    data_bytes: int
    newest_arrival_ms: int


class _Folder(msgspec.Struct):
    stream: str
    key: int
    path: Path

    def segment_names(self) -> list[str]:
        """In order; a sealed file beside its unsealed original stands for both."""
        if not self.path.is_dir():
            return []
        names = [name for name in OsFiles().list_names(self.path) if base_of(name) is not None]
        sealed = {name for name in names if name.endswith(SEALED_SUFFIX)}
        return [n for n in names if n in sealed or n.replace(OPEN_SUFFIX, SEALED_SUFFIX) not in sealed]


def _folders(data_dir: Path) -> list[_Folder]:
    catalog = data_dir / "catalog.sqlite3"
    if not catalog.exists():
        raise PenstockError(f"{data_dir} is not a data directory of Penstock: it has no catalog.sqlite3")
    # A catalog that nobody has open is read as it is; SQLite would leave files of its own beside it.
    in_use = catalog.with_name(catalog.name + "-wal").exists()
    database = sqlite3.connect(f"file:{catalog}?{'mode=ro' if in_use else 'immutable=1'}", uri=True)
    try:
        rows = database.execute("SELECT key, definition FROM streams ORDER BY name").fetchall()
    except sqlite3.Error as error:
        raise PenstockError(f"{catalog} cannot be read: {error}") from error
    finally:
        database.close()
    folders = []
    for key, encoded in rows:
        definition = msgspec.json.decode(encoded, type=StreamDefinition)
        if definition.persistence is Persistence.FILE:
            path = data_dir / "streams" / directory_name(key, definition.name)
            folders.append(_Folder(definition.name, key, path))
    return folders


def verify(data_dir: Path) -> Iterator[SegmentReport]:
    """Read every frame of every segment, and say what is wrong with each."""
    for folder in _folders(data_dir):
        names = folder.segment_names()
        if not names:
            yield SegmentReport(folder.stream, "-", "quarantined", 0, 0, 0, 0, 0, ["no segment is there"], [])
        reports = [_verify_segment(folder, name, is_last=name == names[-1]) for name in names]
        for earlier, later in pairwise(reports):
            if earlier.next_sequence < later.first_sequence:
                earlier.gaps.append((earlier.next_sequence, later.first_sequence))
        yield from reports


def _verify_segment(folder: _Folder, name: str, *, is_last: bool) -> SegmentReport:
    base = base_of(name)
    assert base is not None
    path = folder.path / name
    file = OsFiles().open(path)
    scan = scan_frames(file, folder.key, base)
    size_bytes = file.size_bytes()
    file.close()
    sealed = name.endswith(SEALED_SUFFIX)
    problems = [f"{len(scan.gaps)} damaged places"] if scan.gaps else []
    gaps = [(gap.first, gap.next_readable) for gap in scan.gaps]
    if scan.unreadable:
        problems.append("the disk cannot read all of it")
    next_sequence = scan.headers[-1][1].next_sequence if scan.headers else base
    if sealed:
        trailer = Segment.open_sealed(OsFiles(), path, folder.key, base)
        if trailer is None:
            problems.append("the index is damaged or missing; the server reads the whole segment instead")
        elif trailer.next_sequence > next_sequence:
            problems.append("its end is damaged")
            gaps.append((next_sequence, trailer.next_sequence))
            next_sequence = trailer.next_sequence
    elif scan.tail_bytes and not (is_last and scan.tail_is_torn):
        problems.append(f"{scan.tail_bytes} bytes at the end hold no message")
    state = "quarantined" if problems else "sealed" if sealed else "active"
    return SegmentReport(
        stream=folder.stream,
        segment=name,
        state=state,
        first_sequence=base,
        next_sequence=next_sequence,
        frames=len(scan.headers),
        messages=sum(header.message_count for _, header in scan.headers),
        size_bytes=size_bytes,
        problems=problems,
        gaps=gaps,
    )


def frames(data_dir: Path, stream: str) -> Iterator[FrameReport]:
    """The frames of one stream, as far as they can be read."""
    folder = next((folder for folder in _folders(data_dir) if folder.stream == stream), None)
    if folder is None:
        raise StreamNotFound(f"{data_dir} holds no File stream named {stream}")
    for name in folder.segment_names():
        base = base_of(name)
        assert base is not None
        file = OsFiles().open(folder.path / name)
        for offset, header in scan_frames(file, folder.key, base).headers:
            yield FrameReport(
                segment=name,
                offset=offset,
                first_sequence=header.first_sequence,
                count=header.message_count,
                data_bytes=header.data_bytes,
                newest_arrival_ms=header.newest_arrival_ms,
            )
        file.close()
