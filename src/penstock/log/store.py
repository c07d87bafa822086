"""The store: a data directory with one writer, its catalog, its journal, and its streams."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from penstock.catalog import Catalog, StoredStream
from penstock.errors import DataDirectoryInUse, StorageFailed
from penstock.log import frame as frames
from penstock.log.files import Files, MemoryFiles, OsFiles
from penstock.log.frame import BadFrame
from penstock.log.journal import Entry, Journal
from penstock.log.segment import OPEN_SUFFIX, Segment, base_of, file_name
from penstock.log.stream import Stream
from penstock.model import INT64_MAX, ExportStatus, Persistence, StreamDefinition

logger = logging.getLogger(__name__)

RESERVE_MESSAGES = 65_536


def read_boot_id() -> str:
    """Differs after a power cut or reboot, when unsynced data may be gone; stays while only we were killed."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return secrets.token_hex(16)


def directory_name(key: int, name: str) -> str:
    """Unique by key; the name is only for people, and no byte of it can leave the folder."""
    readable = "".join(c if c.isascii() and (c.islower() or c.isdigit() or c in "-_") else "_" for c in name)
    return directory_prefix(key) + readable[:64]


def directory_prefix(key: int) -> str:
    return f"{key:016x}-"


class Store:
    def __init__(
        self,
        data_dir: Path,
        *,
        files: Files | None = None,
        journal_size_bytes: int = 32 * 1024 * 1024,
        free_space_floor_bytes: int = 64 * 1024 * 1024,
        boot_id: str | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.data_dir = data_dir
        self.streams: dict[str, Stream] = {}
        self.statuses: dict[str, dict[str, ExportStatus]] = {}
        self.disk_full = False
        self._left_folders: list[Path] = []
        self.free_bytes = 0
        self._found_unsynced: set[Segment] = set()  # left in the page cache by a server that was killed
        self._files: Files = files if files is not None else OsFiles()
        self.free_space_floor_bytes = free_space_floor_bytes
        self._boot_id = boot_id if boot_id is not None else read_boot_id()
        self.wall_ms = wall_ms
        self._clocks = (monotonic_s, wall_ms)
        self._files.make_directory(data_dir / "streams")
        self._files.sync_directory(data_dir)
        self._files.sync_directory(data_dir.parent)
        with ExitStack() as undo:
            self._lock_descriptor = _lock(data_dir)
            undo.callback(os.close, self._lock_descriptor)
            catalog_path = data_dir / "catalog.sqlite3"
            try:
                self.catalog = Catalog(catalog_path)
                undo.callback(self.catalog.close)
                self.journal = Journal(self._files, data_dir, journal_size_bytes)
                self._open()
            except sqlite3.Error as error:
                raise StorageFailed(
                    f"{catalog_path} cannot be used ({error}); is there space left, and may this user write there?"
                ) from error
            undo.pop_all()

    # -- opening and closing ------------------------------------------------------------------------

    def _open(self) -> None:
        previous = self.catalog.previous_run(self._boot_id)
        stored_streams = self.catalog.streams()
        given_out_next = self._replay_journal(stored_streams)
        for flush in self.catalog.flushes():
            given_out_next[flush.stream_key] = max(given_out_next.get(flush.stream_key, 0), flush.next)
        lost_cache = not previous.clean and previous.boot_id != self._boot_id
        for stored in stored_streams:
            self._open_stream(
                stored, given_out_next.get(stored.key, 0), clean=previous.clean, lost_cache=lost_cache
            )
        self._remove_orphans({stream.directory.name for stream in self.streams.values()})
        self.check_free_space()
        # Not before: if we die while opening, the next server must know what we knew.
        self.catalog.begin_run(self._boot_id)

    def _replay_journal(self, stored_streams: list[StoredStream]) -> dict[int, int]:
        """Write every journaled frame to its place again; a file that is gone was deleted later.

        Also where the same bytes can be read: after a failed sync they may be in the page cache only. Returns, by
        stream, the numbers behind messages that the disk did not take.
        """
        directories = {s.key: directory_name(s.key, s.definition.name) for s in stored_streams}
        replays: dict[Path, list[Entry]] = {}
        for entry in self.journal.recover():
            if entry.stream_key in directories:
                folder = self.data_dir / "streams" / directories[entry.stream_key]
                replays.setdefault(folder / file_name(entry.segment_base, OPEN_SUFFIX), []).append(entry)
        lost_next: dict[int, int] = {}
        for path, entries in replays.items():
            try:
                self._replay(path, entries)
            except OSError as error:
                logger.error("%s: %d journaled frames cannot be restored (%s)", path, len(entries), error)
                last = frames.decode_header(entries[-1].frame)
                lost_next[last.stream_key] = max(lost_next.get(last.stream_key, 0), last.next_sequence)
        if lost_next or self.journal.unreadable:
            logger.error("the journal is kept as journal-*.failed-*: check the disk")
            self.journal.set_aside()
        else:
            self.journal.clear()
        return lost_next

    def _replay(self, path: Path, entries: list[Entry]) -> None:
        try:
            file = self._files.open(path, write=True)
        except FileNotFoundError:
            return
        for entry in entries:
            file.write_at([entry.frame], entry.offset)
        file.sync()
        file.close()

    def _open_stream(
        self, stored: StoredStream, given_out_next: int, *, clean: bool, lost_cache: bool
    ) -> None:
        stream = self._new_stream(stored.key, stored.definition)
        statuses = stored.statuses
        if stored.definition.persistence is Persistence.MEMORY:
            # Nothing of it survived, so positions in it mean nothing any more.
            statuses = {name: ExportStatus(name) for name in statuses}
            stream.create()
        else:
            self._files.make_directory(stream.directory)
            if not clean:  # the last server may have died between making or renaming a file and this
                self._files.sync_directory(stream.directory)
            stream.open(clean=clean, lost_cache=lost_cache)
            if stored.definition.flush_on_write:
                self.sync_segments(stream.segments)  # readers must not see what a power cut can take back
            else:
                self._found_unsynced.update(stream.segments)
            # A number that a client or a destination has seen must not come again for another message.
            seen = [max(s.last_exported_sequence_number + 1, s.planned_next) for s in statuses.values()]
            reserved = stored.reserved_next if lost_cache or not stream.segments else 0
            stream.skip_to(max([*seen, reserved, given_out_next]))
        stream.reserved_next = self._reserve_limit(stored.definition, stored.reserved_next)
        self.streams[stored.definition.name] = stream
        self.statuses[stored.definition.name] = statuses

    def _new_stream(self, key: int, definition: StreamDefinition) -> Stream:
        memory = definition.persistence is Persistence.MEMORY
        directory = self.data_dir / "streams" / directory_name(key, definition.name)
        return Stream(MemoryFiles() if memory else self._files, directory, key, definition, *self._clocks)

    def _remove_orphans(self, known: set[str]) -> None:
        """Folders of streams whose creation or deletion was cut short. Messages that nobody deleted stay."""
        removed = {directory_prefix(key): key for key in self.catalog.removed_streams()}
        for name in self._files.list_names(self.data_dir / "streams"):
            if name in known:
                continue
            folder = self.data_dir / "streams" / name
            if name[: len(directory_prefix(0))] in removed or self._holds_nothing(folder):
                logger.info("removing the folder %s of a stream that does not exist", name)
                self._remove_folder(folder)
            else:
                logger.error("%s belongs to no stream in the catalog; it is left as it is", folder)
        if removed:
            self._files.sync_directory(self.data_dir / "streams")
            left = {
                name[: len(directory_prefix(0))] for name in self._files.list_names(self.data_dir / "streams")
            }
            self.catalog.forget_removed(key for prefix, key in removed.items() if prefix not in left)

    def _holds_nothing(self, folder: Path) -> bool:
        """Whether it is the folder of a stream that was never made known."""
        try:
            names = self._files.list_names(folder)
        except NotADirectoryError:
            return False
        return all(
            base_of(name) is not None and not self._files.open(folder / name).size_bytes() for name in names
        )

    def _remove_folder(self, folder: Path) -> None:
        """What cannot be removed now, as while a segment is being sealed, goes with the next upkeep or start."""
        try:
            for name in self._files.list_names(folder):
                with suppress(FileNotFoundError):  # sealed just now
                    self._files.remove(folder / name)
            self._files.remove_directory(folder)
        except OSError as error:
            logger.warning("%s could not be removed yet (%s)", folder, error)
            self._left_folders.append(folder)

    def close(self, *, clean: bool = True) -> None:
        """Sync everything and let go of the directory. `clean` False: as a process that is killed would."""
        if clean and self._sync_all():
            with suppress(OSError):  # what is replayed once more is only written once more
                self.journal.clear()
            self.catalog.end_run()
        for stream in self.streams.values():
            stream.close()
        self.journal.close()
        self.catalog.close()
        os.close(self._lock_descriptor)

    def _sync_all(self) -> bool:
        segments = [segment for stream in self.streams.values() for segment in stream.segments]
        self.sync_segments(segments)
        return not any(segment.sync_failed for segment in segments)

    # -- streams ------------------------------------------------------------------------------------

    def create_stream(self, definition: StreamDefinition) -> Stream:
        key = secrets.randbits(63)
        stream = self._new_stream(key, definition)
        statuses = {export.identifier: ExportStatus(export.identifier) for export in definition.exports}
        reserved_next = 0 if definition.flush_on_write else RESERVE_MESSAGES
        try:
            stream.create()
            if definition.persistence is Persistence.FILE:
                self._files.sync_directory(self.data_dir / "streams")
            self.catalog.put_stream(key, definition, reserved_next, statuses.values())
        except (OSError, sqlite3.Error):
            if definition.persistence is Persistence.FILE:
                self._remove_folder(stream.directory)
            raise
        stream.reserved_next = self._reserve_limit(definition, reserved_next)
        self.statuses[definition.name] = statuses
        self.streams[definition.name] = stream
        return stream

    def update_stream(
        self, stream: Stream, definition: StreamDefinition, statuses: dict[str, ExportStatus]
    ) -> None:
        if stream.definition.flush_on_write and not definition.flush_on_write:
            for segment in stream.segments:  # what was appended before is still owed its sync
                if not segment.sync_failed:
                    segment.sync()
        self.catalog.put_stream(stream.key, definition, 0, statuses.values())
        stream.definition = definition
        stream.reserved_next = self._reserve_limit(definition, 0)
        self.statuses[definition.name] = statuses
        try:
            stream.expire()
            stream.shrink()
        except OSError as error:  # the update is stored; what it makes superfluous goes later
            logger.error("stream %r: old messages could not be removed (%s)", definition.name, error)

    def delete_stream(self, stream: Stream) -> None:
        self.catalog.remove_stream(stream.key)
        name = stream.definition.name
        del self.streams[name], self.statuses[name]
        stream.deleted = True
        stream.to_seal.clear()
        stream.segments = []  # readers that are under way finish in the files they have
        if stream.definition.persistence is Persistence.FILE:
            self._remove_folder(stream.directory)

    # -- numbers ------------------------------------------------------------------------------------

    def _reserve_limit(self, definition: StreamDefinition, reserved_next: int) -> int:
        unlimited = definition.flush_on_write or definition.persistence is Persistence.MEMORY
        return INT64_MAX if unlimited else reserved_next

    def reserve(self, stream: Stream, next_sequence: int) -> None:
        """Remember durably which numbers may be given out without a sync, so that none is given out twice."""
        if next_sequence <= stream.reserved_next:
            return
        reserved_next = next_sequence + RESERVE_MESSAGES
        try:
            self.catalog.reserve(stream.key, reserved_next)
        except sqlite3.Error as error:
            raise StorageFailed(
                f"the catalog failed ({error}): check the disk, then send the message again"
            ) from error
        stream.reserved_next = reserved_next

    # -- upkeep -------------------------------------------------------------------------------------

    def check_free_space(self) -> None:
        try:
            self.free_bytes = self._files.free_bytes(self.data_dir)
        except OSError as error:
            logger.error("%s: free space is unknown (%s)", self.data_dir, error)
            return
        full = self.free_bytes < self.free_space_floor_bytes
        if full != self.disk_full:
            state = (
                "below the floor, appends are refused" if full else "above the floor again, appends resume"
            )
            logger.warning("free space %d bytes: %s", self.free_bytes, state)
        self.disk_full = full

    def sync_segments(self, dirty: Iterable[Segment]) -> None:
        """The background sync of what was acknowledged without one, and of what the journal speaks for."""
        resting = self.journal.resting_segments()
        found, self._found_unsynced = self._found_unsynced, set()
        for segment in {*dirty, *resting, *found}:
            if segment.sync_failed:  # and said so
                continue
            try:
                segment.sync()
            except OSError as error:
                logger.error("%s: background sync failed (%s); check the disk", segment.path, error)
        self.journal.release([segment for segment in resting if not segment.sync_failed])

    def seal_segments(self) -> None:
        # Of deleted streams; what stood in the way was perhaps a segment that was being sealed.
        left_folders, self._left_folders = self._left_folders, []
        for folder in left_folders:
            self._remove_folder(folder)
        if self.disk_full:  # merging takes space before it gives some back
            return
        for stream in list(self.streams.values()):
            while (segment := stream.next_to_seal()) is not None:
                try:
                    segment.seal()
                except FileNotFoundError:
                    continue  # dropped, or the stream deleted, meanwhile
                except (OSError, BadFrame) as error:
                    logger.error("%s: not sealed (%s); it stays as it is", segment.path, error)


def _lock(data_dir: Path) -> int:
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise DataDirectoryInUse(
            f"{data_dir} is in use by another penstock server (process {holder}): "
            "stop that one, or choose another --data-dir"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor
