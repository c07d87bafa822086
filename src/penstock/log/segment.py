"""A segment: one file of a stream, a run of frames; once sealed it ends in an index of them.

The file's name tells its state: `<first sequence>.open` is being written or waits to be sealed,
`<first sequence>.seg` is sealed. docs/log-format.md draws the bytes.
"""

from __future__ import annotations

import errno
import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from penstock.log import frame as frames
from penstock.log.files import Buffer, File, Files
from penstock.log.frame import HEADER_BYTES, OVERHEAD_BYTES_PER_MESSAGE, BadFrame, Frame, Header

OPEN_SUFFIX = ".open"
SEALED_SUFFIX = ".seg"
TEMPORARY_SUFFIX = ".tmp"

FRAME_DATA_BYTES_MAX = 256 * 1024
MERGE_BELOW_BYTES = 64 * 1024
READ_WINDOW_BYTES = 1024 * 1024
SCAN_WINDOW_BYTES = 4 * 1024 * 1024
PAGE_BYTES = 4096

FOOTER_MAGIC = b"PSIX"
FOOTER_VERSION = 1
# magic, version, stream key, base, next sequence, end of frames, charged bytes, newest arrival,
# number of frames, checksum of the entries; then the checksum of these
_TRAILER = struct.Struct("<4sB3xQQQQQqII")
_CHECKSUM = struct.Struct("<I")
_TRAILER_BYTES = _TRAILER.size + _CHECKSUM.size
_ENTRY_BYTES = 16


class WrittenFrame(NamedTuple):
    """A frame that is in the page cache, with what a journal needs to write it again."""

    segment: Segment
    offset: int
    header: Header
    buffers: list[Buffer]

    @property
    def end(self) -> int:
        return self.offset + self.header.frame_bytes


class Gap(NamedTuple):
    """Messages that should be here and cannot be read: `first` up to but without `next_readable`."""

    first: int
    next_readable: int


class FrameRun(NamedTuple):
    """Whole frames, one after the other, in a file."""

    file: File
    begin: int
    end: int


class _Trailer(NamedTuple):
    magic: bytes
    version: int
    stream_key: int
    base: int
    next_sequence: int
    end: int
    charged_bytes: int
    newest_arrival_ms: int
    frame_count: int
    entries_checksum: int


class Scan(NamedTuple):
    """What walking over all frames of a file found."""

    headers: list[tuple[int, Header]]
    gaps: list[Gap]
    end: int  # behind the last valid frame
    tail_bytes: int  # bytes behind `end` in which no whole frame is
    tail_is_torn: bool  # they are the beginning of a frame, as a write leaves it that was cut short
    unreadable: bool  # the disk could not give back some of the bytes


def file_name(base: int, suffix: str) -> str:
    return f"{base:020d}{suffix}"


def base_of(name: str) -> int | None:
    """The first sequence number in a segment's file name; None for other files."""
    stem, _, suffix = name.partition(".")
    if f".{suffix}" in (OPEN_SUFFIX, SEALED_SUFFIX) and len(stem) == 20 and stem.isdigit():
        return int(stem)
    return None


class _Content:
    """Where the frames are. Sealing replaces it as a whole, so a reader that took it sees one file throughout."""

    __slots__ = ("file", "first_sequences", "offsets", "path", "size_bytes")

    def __init__(self, path: Path, file: File | None) -> None:
        self.path = path
        self.file = file  # None: opened by each reader for itself, so that many segments need few descriptors
        self.size_bytes = 0
        self.first_sequences: array[int] | None = array("Q")
        self.offsets: array[int] = array("Q")


class Segment:
    def __init__(self, files: Files, path: Path, stream_key: int, base: int) -> None:
        self._files = files
        self._content = _Content(path, None)
        self.stream_key = stream_key
        self.base = base
        self.next_sequence = base
        self.charged_bytes = 0
        self.newest_arrival_ms = 0
        self.newest_monotonic_s = 0.0
        self.durable_bytes = 0  # up to here the file or the journal is on stable storage
        self.synced_bytes = 0  # up to here the file itself is
        self.sealed = False
        self.poisoned = False
        self.gaps: list[Gap] = []
        self._sync_error: OSError | None = None
        self._syncing = (
            threading.Lock()
        )  # a kernel tells of a failure only one of those who sync at the same time
        self._dropped = False
        self._renaming = threading.Lock()  # a segment is dropped before or after it takes its sealed name

    @property
    def path(self) -> Path:
        return self._content.path

    @property
    def size_bytes(self) -> int:
        return self._content.size_bytes

    @property
    def frame_count(self) -> int:
        return len(self._indexed().offsets)

    @property
    def quarantined(self) -> bool:
        return bool(self.gaps)

    # -- opening ------------------------------------------------------------------------------------

    @classmethod
    def create(cls, files: Files, directory: Path, stream_key: int, base: int) -> Segment:
        """A new, empty segment whose directory entry is on stable storage."""
        path = directory / file_name(base, OPEN_SUFFIX)
        segment = cls(files, path, stream_key, base)
        segment._content.file = files.create(path)
        try:
            files.sync_directory(directory)
        except OSError:
            files.remove(path)
            raise
        return segment

    @classmethod
    def open_sealed(cls, files: Files, path: Path, stream_key: int, base: int) -> Segment | None:
        """A sealed segment from its footer alone; None if the footer cannot be trusted."""
        segment = cls(files, path, stream_key, base)
        file = files.open(path)
        try:
            trailer = segment._read_trailer(file)
        except OSError:
            trailer = None
        if trailer is None:
            return None
        segment.next_sequence = trailer.next_sequence
        segment.charged_bytes = trailer.charged_bytes
        segment.newest_arrival_ms = trailer.newest_arrival_ms
        segment.durable_bytes = segment.synced_bytes = trailer.end
        segment._content.size_bytes = trailer.end
        segment._content.first_sequences = None
        segment.sealed = True
        return segment

    @classmethod
    def open_scanned(cls, files: Files, path: Path, stream_key: int, base: int) -> tuple[Segment, Scan]:
        """A segment without a (usable) footer, from its frames."""
        segment = cls(files, path, stream_key, base)
        file = files.open(path, write=True)
        scan = scan_frames(file, stream_key, base)
        segment._content.file = file
        segment._content.size_bytes = scan.end
        segment._take_index(segment._content, scan)
        for _, header in scan.headers:
            segment.next_sequence = header.next_sequence
            segment.charged_bytes += header.charged_bytes
            segment.newest_arrival_ms = max(segment.newest_arrival_ms, header.newest_arrival_ms)
        return segment, scan

    def trust(self) -> None:
        """The server before has synced it."""
        self.synced_bytes = self.durable_bytes = self.size_bytes

    def quarantine_tail(self, tail_bytes: int) -> None:
        """What stands behind the last frame were messages: keep it, and use none of the numbers they may have had."""
        content = self._content
        assert content.first_sequences is not None
        first = self.next_sequence
        self.next_sequence += tail_bytes // frames.OVERHEAD_BYTES_PER_MESSAGE + 1
        self.gaps = [*self.gaps, Gap(first, self.next_sequence)]
        content.first_sequences.append(first)
        content.offsets.append(content.size_bytes)

    def close(self) -> None:
        if self._content.file is not None:
            self._content.file.close()
            self._content.file = None

    # -- writing ------------------------------------------------------------------------------------

    def append(self, header: Header, buffers: list[Buffer]) -> WrittenFrame:
        content = self._content
        file, first_sequences = content.file, content.first_sequences
        assert file is not None and first_sequences is not None  # noqa: PT018
        offset = content.size_bytes
        file.write_at(buffers, offset)
        # In this order: a reader in another thread counts the offsets and then looks into the other list.
        first_sequences.append(header.first_sequence)
        content.offsets.append(offset)
        content.size_bytes = offset + header.frame_bytes
        self.charged_bytes += header.data_bytes + header.message_count * frames.OVERHEAD_BYTES_PER_MESSAGE
        if header.newest_arrival_ms > self.newest_arrival_ms:
            self.newest_arrival_ms = header.newest_arrival_ms
        self.next_sequence = header.first_sequence + header.message_count
        return WrittenFrame(self, offset, header, buffers)

    @property
    def sync_failed(self) -> bool:
        return self._sync_error is not None

    def sync(self) -> None:
        """Make all frames durable. After one failure it fails for ever."""
        with self._syncing:
            content = self._content
            size_bytes = content.size_bytes
            if self.synced_bytes < size_bytes or self.sync_failed:
                self._sync_file(content)
                self.synced_bytes = max(self.synced_bytes, size_bytes)
                self.durable_bytes = max(self.durable_bytes, size_bytes)

    def _sync_file(self, content: _Content) -> None:
        if self._sync_error is not None:
            # The kernel may have forgotten what it could not write: another sync would succeed and prove nothing.
            raise OSError(self._sync_error.errno, self._sync_error.strerror, str(content.path))
        try:
            if content.file is not None:
                content.file.sync()
        except OSError as error:
            self._sync_error = error
            self.poisoned = True
            raise

    def truncate_tail(self) -> None:
        """Cut what stands behind the last valid frame, durably."""
        with self._syncing:
            content = self._content
            assert content.file is not None
            content.file.truncate(content.size_bytes)
            self._sync_file(content)
            self.durable_bytes = self.synced_bytes = content.size_bytes

    def seal(self) -> None:
        """Add the index, merging small frames on the way, and take the sealed name.

        The segment serves reads meanwhile; a reader that is under way goes on in the file it has.
        """
        self.sync()
        content = self._indexed()
        target = content.path.with_suffix(SEALED_SUFFIX)
        if len(content.offsets) > 1 and content.size_bytes / len(content.offsets) < MERGE_BELOW_BYTES:
            sealed, source = self._merge(content, target)
        else:
            sealed, source = self._index_in_place(content, target)
        with self._renaming:
            if self._dropped:
                if source != content.path:
                    self._files.remove(source)
                return
            self._files.rename(source, target)
            self._content = sealed
            self.durable_bytes = self.synced_bytes = sealed.size_bytes
            self.sealed = True
            self._files.sync_directory(target.parent)
            if source != content.path:
                self._files.remove(content.path)

    def drop(self) -> None:
        """Delete the file. Readers that have it open finish undisturbed."""
        with self._renaming:
            self._dropped = True
            with suppress(FileNotFoundError):
                self._files.remove(self._content.path)

    def cut(self, sequence: int) -> int:
        """Forget the frames from `sequence` on. Returns the bytes no longer charged.

        A reader that is under way keeps the index it has.
        """
        content = self._content
        assert content.first_sequences is not None
        kept_frames = bisect_left(content.first_sequences, sequence)
        if kept_frames == len(content.offsets):
            return 0
        uncharged_bytes = sum(self._charge_at(content, i) for i in range(kept_frames, len(content.offsets)))
        kept = _Content(content.path, content.file)
        kept.first_sequences = content.first_sequences[:kept_frames]
        kept.offsets = content.offsets[:kept_frames]
        kept.size_bytes = content.offsets[kept_frames]
        self.next_sequence = content.first_sequences[kept_frames]
        self.charged_bytes -= uncharged_bytes
        self._content = kept
        return uncharged_bytes

    def _charge_at(self, content: _Content, position: int) -> int:
        offset = content.offsets[position]
        last = position + 1 == len(content.offsets)
        frame_bytes = (content.size_bytes if last else content.offsets[position + 1]) - offset
        try:
            assert content.file is not None
            return self._check_header(content.file.read_at(frames.HEADER_BYTES, offset), 0).charged_bytes
        except (BadFrame, OSError):
            return frame_bytes - frames.HEADER_BYTES  # the disk fails in every way: nearly right must do

    def _index_in_place(self, content: _Content, target: Path) -> tuple[_Content, Path]:
        assert content.file is not None
        content.file.truncate(content.size_bytes)  # a footer that was not finished may stand there
        content.file.write_at([self._footer(content)], content.size_bytes)
        with self._syncing:
            self._sync_file(content)
        sealed = _Content(target, None)
        sealed.first_sequences, sealed.offsets = content.first_sequences, content.offsets
        sealed.size_bytes = content.size_bytes
        return sealed, content.path

    def _merge(self, content: _Content, target: Path) -> tuple[_Content, Path]:
        temporary = target.with_suffix(TEMPORARY_SUFFIX)
        if self._files.exists(temporary):
            self._files.remove(temporary)
        merged = _Content(target, None)
        assert merged.first_sequences is not None
        file = self._files.create(temporary)
        for header, buffers in self._merged_frames():
            file.write_at(buffers, merged.size_bytes)
            merged.first_sequences.append(header.first_sequence)
            merged.offsets.append(merged.size_bytes)
            merged.size_bytes += header.frame_bytes
        file.write_at([self._footer(merged)], merged.size_bytes)
        file.sync()
        return merged, temporary

    def _merged_frames(self) -> Iterator[tuple[Header, list[Buffer]]]:
        payloads: list[Buffer] = []
        arrivals_ms: list[int] = []
        data_bytes = 0
        first_sequence = self.base
        for frame in self.read_frames(self.base, self.next_sequence):
            if payloads and data_bytes + frame.header.data_bytes > FRAME_DATA_BYTES_MAX:
                yield frames.encode(self.stream_key, first_sequence, arrivals_ms, payloads)
                payloads, arrivals_ms, data_bytes = [], [], 0
            if not payloads:
                first_sequence = frame.first_sequence
            payloads += frame.payloads()
            arrivals_ms += frame.arrivals.tolist()
            data_bytes += frame.header.data_bytes
        if payloads:
            yield frames.encode(self.stream_key, first_sequence, arrivals_ms, payloads)

    def _footer(self, content: _Content) -> bytes:
        assert content.first_sequences is not None
        entries = content.first_sequences.tobytes() + content.offsets.tobytes()
        trailer = _TRAILER.pack(
            FOOTER_MAGIC,
            FOOTER_VERSION,
            self.stream_key,
            self.base,
            self.next_sequence,
            content.size_bytes,
            self.charged_bytes,
            self.newest_arrival_ms,
            len(content.offsets),
            crc32c(entries),
        )
        return entries + trailer + _CHECKSUM.pack(crc32c(trailer))

    # -- reading ------------------------------------------------------------------------------------

    def locate(self, start: int, stop: int, size_max_bytes: int = 2**63) -> tuple[FrameRun, int]:
        """The whole frames that hold messages `start` up to `stop`, and the number behind them.

        A run longer than `size_max_bytes` is cut at a frame (but holds one at the least).
        """
        content = self._indexed()
        assert content.first_sequences is not None
        size_bytes = content.size_bytes  # before the count: frames that come meanwhile are not in it
        known = len(content.offsets)
        first = max(bisect_right(content.first_sequences, start, 0, known) - 1, 0)
        last = bisect_right(content.first_sequences, stop - 1, first, known)
        begin = content.offsets[first] if known else size_bytes
        end = content.offsets[last] if last < known else size_bytes
        if end - begin > size_max_bytes:
            last = max(bisect_right(content.offsets, begin + size_max_bytes, first, last) - 1, first + 1)
            if last < known:
                end = content.offsets[last]
                stop = min(stop, content.first_sequences[last])
        file = content.file if content.file is not None else self._files.open(content.path)
        return FrameRun(file, begin, end), stop

    def measure(self, start: int, stop: int, payload_bytes: int) -> tuple[int, int]:
        """The end of the frame with which messages from `start` on have that much payload, and how much it is.

        At `stop`, a number that the segment holds or that is its end, if they have less.
        """
        content = self._indexed()
        assert content.first_sequences is not None
        size_bytes, known = content.size_bytes, len(content.offsets)
        sequences, offsets = content.first_sequences, content.offsets

        def edge(position: int) -> tuple[int, int]:
            return (sequences[position], offsets[position]) if position < known else (stop, size_bytes)

        first = max(bisect_right(sequences, start, 0, known) - 1, 0)
        last = bisect_right(sequences, stop - 1, first, known)
        (frame_start, frame_begin), (frame_stop, frame_end) = edge(first), edge(first + 1)
        # Frames may have been merged since somebody stopped at the end of one: only a part of this may count.
        skipped = (frame_end - frame_begin) * (start - frame_start) // max(1, frame_stop - frame_start)

        def payload_before(position: int) -> int:
            sequence, offset = edge(position)
            around_bytes = (sequence - start) * OVERHEAD_BYTES_PER_MESSAGE + (position - first) * HEADER_BYTES
            return offset - frame_begin - skipped - around_bytes

        reached = bisect_left(range(first + 1, last), payload_bytes, key=payload_before) + first + 1
        sequence = min(stop, edge(reached)[0])
        return sequence, max(0, payload_before(reached))

    def read_frames(self, start: int, stop: int) -> Iterator[Frame]:
        """The frames that hold `start` up to `stop`, checksums verified. Raises BadFrame on damage."""
        (file, offset, end), _ = self.locate(start, stop)
        while offset < end:
            try:
                window = file.read_at(min(READ_WINDOW_BYTES, end - offset), offset)
            except OSError:  # perhaps only further back: the frame alone may be readable
                window = file.read_at(frames.HEADER_BYTES, offset)
            header = self._check_header(window, 0)
            if header.frame_bytes > len(window):
                window = file.read_at(header.frame_bytes, offset)
            position = 0
            while position + header.frame_bytes <= len(window):
                yield frames.decode(window, position)
                position += header.frame_bytes
                if len(window) - position < frames.HEADER_BYTES:
                    break
                header = self._check_header(window, position)
            if position == 0:
                raise BadFrame("the file ends inside a frame")
            offset += position

    def note_damage(self, sequence: int) -> None:
        """The frame that holds `sequence` cannot be read: from now on its messages count as a gap."""
        try:
            content = self._indexed()
        except OSError:  # not even the index can be read, or the file is gone
            self.gaps = [Gap(self.base, self.next_sequence)]
            return
        assert content.first_sequences is not None
        position = bisect_right(content.first_sequences, sequence)
        known = position < len(content.first_sequences)
        behind = content.first_sequences[position] if known else self.next_sequence
        self.gaps = sorted({*self.gaps, Gap(content.first_sequences[position - 1], behind)})

    def _check_header(self, window: bytes, position: int) -> Header:
        header = frames.decode_header(window, position)
        if header.stream_key != self.stream_key:
            raise BadFrame("the frame belongs to another stream")
        return header

    def _read_trailer(self, file: File) -> _Trailer | None:
        size_bytes = file.size_bytes()
        raw = file.read_at(_TRAILER_BYTES, max(size_bytes - _TRAILER_BYTES, 0))
        if (
            len(raw) < _TRAILER_BYTES
            or crc32c(raw[: _TRAILER.size]) != _CHECKSUM.unpack_from(raw, _TRAILER.size)[0]
        ):
            return None
        trailer = _Trailer(*_TRAILER.unpack_from(raw))
        expected = (FOOTER_MAGIC, FOOTER_VERSION, self.stream_key, self.base)
        whole = trailer.end + trailer.frame_count * _ENTRY_BYTES + _TRAILER_BYTES == size_bytes
        return trailer if trailer[:4] == expected and whole else None

    def _indexed(self) -> _Content:
        """The content with its index in memory: read from the footer, or from the frames if that is damaged."""
        content = self._content
        if content.first_sequences is None:
            file = self._files.open(content.path)
            trailer = self._read_trailer(file)
            count = trailer.frame_count if trailer is not None else 0
            entries = file.read_at(count * _ENTRY_BYTES, content.size_bytes)
            if trailer is not None and crc32c(entries) == trailer.entries_checksum:
                content.offsets = array("Q", entries[count * 8 :])
                content.first_sequences = array("Q", entries[: count * 8])
            else:
                self._take_index(content, scan_frames(file, self.stream_key, self.base))
        return content

    def _take_index(self, content: _Content, scan: Scan) -> None:
        """Damage gets entries of its own, so that its bytes are not taken for those of the frame before it."""
        content.offsets, first_sequences = array("Q"), array("Q")
        self.gaps = scan.gaps
        readable_next = self.base
        end = 0
        for offset, header in scan.headers:
            if header.first_sequence > readable_next:
                content.offsets.append(end)
                first_sequences.append(readable_next)
            content.offsets.append(offset)
            first_sequences.append(header.first_sequence)
            readable_next = header.next_sequence
            end = offset + header.frame_bytes
        if readable_next < self.next_sequence:
            self.gaps.append(Gap(readable_next, self.next_sequence))
            content.offsets.append(end)
            first_sequences.append(readable_next)
        content.first_sequences = first_sequences


def scan_frames(file: File, stream_key: int, base: int) -> Scan:
    """Walk over all frames, verify each, and go on behind damage at the next frame that is whole."""
    headers: list[tuple[int, Header]] = []
    gaps: list[Gap] = []
    reader = DamagedFile(file)
    expected = base
    offset = end = 0
    window_start, window = 0, b""
    while offset < reader.size_bytes:
        if offset - window_start + frames.HEADER_BYTES > len(window):
            window_start, window = offset, reader.read(SCAN_WINDOW_BYTES, offset)
        try:
            header = frames.decode_header(window, offset - window_start)
            if offset - window_start + header.frame_bytes > len(window):
                wanted = max(SCAN_WINDOW_BYTES, min(header.frame_bytes, reader.size_bytes - offset))
                window_start, window = offset, reader.read(wanted, offset)
            if header.stream_key != stream_key or header.first_sequence < expected:
                raise BadFrame("the frame does not belong here")
            frames.decode(window, offset - window_start)
        except BadFrame:
            found = _find_frame(reader, offset + 1)
            if found is None:
                break
            offset = found
            continue
        if header.first_sequence > expected:
            gaps.append(Gap(expected, header.first_sequence))
        headers.append((offset, header))
        expected = header.next_sequence
        offset += header.frame_bytes
        end = offset
    tail_bytes = reader.size_bytes - end
    return Scan(headers, gaps, end, tail_bytes, _is_torn(reader, end), reader.unreadable)


def _find_frame(reader: DamagedFile, start: int) -> int | None:
    """Where the next header with a good checksum stands."""
    position = start
    while position < reader.size_bytes:
        window = reader.read(SCAN_WINDOW_BYTES, position)
        at = window.find(frames.MAGIC)
        while at >= 0:
            if (position + at) % frames.ALIGNMENT_BYTES == 0:
                with suppress(BadFrame):
                    frames.decode_header(window, at)
                    return position + at
            at = window.find(frames.MAGIC, at + 1)
        if len(window) < SCAN_WINDOW_BYTES:
            return None
        position += len(window) - frames.HEADER_BYTES
    return None


def _is_torn(reader: DamagedFile, end: int) -> bool:
    tail_bytes = reader.size_bytes - end
    if tail_bytes < frames.HEADER_BYTES:
        return tail_bytes > 0
    try:
        return frames.decode_header(reader.read(frames.HEADER_BYTES, end)).frame_bytes > tail_bytes
    except BadFrame:
        return False


class DamagedFile:
    """Reads a file around bad places of the disk: zeros stand for what it cannot give back."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.size_bytes = file.size_bytes()
        self.unreadable = False

    def read(self, size_bytes: int, offset: int) -> bytes:
        try:
            return self._file.read_at(size_bytes, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        pieces = []
        end = min(offset + size_bytes, self.size_bytes)
        while offset < end:
            piece_bytes = min(PAGE_BYTES - offset % PAGE_BYTES, end - offset)
            pieces.append(self._read_page(piece_bytes, offset))
            offset += piece_bytes
        return b"".join(pieces)

    def _read_page(self, size_bytes: int, offset: int) -> bytes:
        try:
            return self._file.read_at(size_bytes, offset)
        except OSError:
            self.unreadable = True
            return bytes(size_bytes)
