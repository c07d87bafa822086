"""A disk in memory that behaves as badly as real ones: it forgets what was not synced, and it fails on demand.

It implements `penstock.log.files.Files`. Reads see the page cache; `power_cut` leaves only what reached the platter.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.log.files import Buffer

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class Inode:
    """A file's bytes: in the page cache (`cached`) and on the platter (`stable`)."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.stable = bytearray()
        self.dirty_pages: set[int] = set()
        self.bad_pages: set[int] = set()

    def write(self, data: bytes, offset: int) -> None:
        if offset > len(self.cached):
            self._grow(offset)
        self.cached[offset : offset + len(data)] = data
        if data:
            self.dirty_pages.update(pages_of(offset, len(data)))

    def _grow(self, size_bytes: int) -> None:
        self.cached.extend(bytes(size_bytes - len(self.cached)))

    def truncate(self, size_bytes: int) -> None:
        del self.cached[size_bytes:]
        if len(self.cached) < size_bytes:
            self._grow(size_bytes)
        if size_bytes % PAGE_BYTES:
            self.dirty_pages.add(size_bytes // PAGE_BYTES)

    def persist(self, pages: set[int]) -> None:
        """These pages reach the platter, and the size with them."""
        _resize(self.stable, len(self.cached))
        for page in pages:
            start = page * PAGE_BYTES
            self.stable[start : start + PAGE_BYTES] = self.cached[start : start + PAGE_BYTES]
        self.dirty_pages -= pages

    def lose_power(self, rng: random.Random) -> None:
        """Any part of what was not synced may have been written back, in any order."""
        before = bytes(self.stable)
        sizes = [len(self.stable), len(self.cached)]
        _resize(self.stable, rng.choice([*sizes, rng.randint(min(sizes), max(sizes))]))
        for page in sorted(self.dirty_pages):
            survival = rng.random()
            if survival < 0.5:
                continue
            start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(self.stable), len(self.cached))
            if survival > 0.9:  # torn inside the page
                end = min(end, start + SECTOR_BYTES * rng.randrange(1, PAGE_BYTES // SECTOR_BYTES))
            if end > start:
                self.stable[start:end] = self.cached[start:end]
        assert len(self.stable) >= min(len(before), len(self.cached))
        self.cached = bytearray(self.stable)
        self.dirty_pages.clear()


def _resize(content: bytearray, size_bytes: int) -> None:
    del content[size_bytes:]
    content.extend(bytes(size_bytes - len(content)))


def pages_of(offset: int, size_bytes: int) -> range:
    return range(offset // PAGE_BYTES, (offset + size_bytes - 1) // PAGE_BYTES + 1)


class Folder:
    """Names as the kernel shows them, and as they are on the platter, with the changes between the two."""

    def __init__(self) -> None:
        self.cached: dict[str, Inode | Folder] = {}
        self.stable: dict[str, Inode | Folder] = {}
        self._changes: list[Callable[[dict[str, Inode | Folder]], None]] = []

    def change(self, apply: Callable[[dict[str, Inode | Folder]], None]) -> None:
        apply(self.cached)
        self._changes.append(apply)

    def sync(self) -> None:
        self.stable = dict(self.cached)
        self._changes.clear()

    def lose_power(self, rng: random.Random) -> None:
        journaled = rng.random() < 0.5  # a file system that keeps the order of changes, or one that does not
        for apply in self._changes:
            if rng.random() < 0.5:
                apply(self.stable)
            elif journaled:
                break
        self._changes.clear()
        self.cached = dict(self.stable)
        for entry in self.cached.values():
            entry.lose_power(rng)


class Fault:
    """Something that goes wrong `times` times with files whose path matches."""

    def __init__(self, operation: str, pattern: str, error: int, times: int, after_bytes: int) -> None:
        self.operation = operation
        self.pattern = pattern
        self.error = error
        self.times = times
        self.after_bytes = after_bytes

    def strikes(self, operation: str, path: Path) -> bool:
        if self.operation != operation or self.times <= 0 or not fnmatch.fnmatch(str(path), self.pattern):
            return False
        self.times -= 1
        return True

    def stop(self) -> None:
        self.times = 0


class Hold:
    """Syncs that do not return: `reached` is set when one is stuck, `let_go` frees them all."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.reached = threading.Event()
        self._released = threading.Event()

    def let_go(self) -> None:
        self._released.set()

    def wait(self, path: Path) -> None:
        if fnmatch.fnmatch(str(path), self.pattern) and not self._released.is_set():
            self.reached.set()
            assert self._released.wait(30), "nobody let the sync go"


class DiskFile:
    def __init__(self, disk: FaultyDisk, path: Path, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._power_cycle = disk.power_cycle

    def write_at(self, buffers: list[Buffer], offset: int, *, sync: bool = False) -> None:
        data = b"".join(buffers)
        if sync:
            self._disk.hold(self._path)
        with self._disk.operation("write", self._path, self._power_cycle) as fault:
            if fault is not None:
                self._inode.write(data[: fault.after_bytes], offset)
                raise fault_error(fault.error, self._path)
            self._write_within_budget(data, offset)
        if sync:
            self._sync(set(pages_of(offset, len(data))))

    def _write_within_budget(self, data: bytes, offset: int) -> None:
        grown_bytes = max(0, offset + len(data) - len(self._inode.cached))
        free_bytes = self._disk.free_bytes(self._path)
        if grown_bytes > free_bytes:
            self._inode.write(data[: max(0, len(data) - grown_bytes + free_bytes)], offset)
            raise fault_error(errno.ENOSPC, self._path)
        self._inode.write(data, offset)

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        with self._disk.operation("read", self._path, self._power_cycle) as fault:
            content = self._inode.cached
            wanted_bytes = min(size_bytes, max(0, len(content) - offset))
            bad = wanted_bytes > 0 and not self._inode.bad_pages.isdisjoint(pages_of(offset, wanted_bytes))
            if fault is not None or bad:
                raise fault_error(errno.EIO, self._path)
            return bytes(content[offset : offset + size_bytes])

    def sync(self) -> None:
        self._disk.hold(self._path)
        self._sync(None)

    def _sync(self, pages: set[int] | None) -> None:
        with self._disk.operation("sync", self._path, self._power_cycle) as fault:
            self._disk.syncs[self._path.name] += 1
            due = self._inode.dirty_pages if pages is None else pages & self._inode.dirty_pages
            if fault is not None:
                # The kernel forgets that these pages were never written: the next sync will not try them again.
                self._inode.dirty_pages -= due
                raise fault_error(fault.error, self._path)
            self._inode.persist(set(due))

    def truncate(self, size_bytes: int) -> None:
        with self._disk.operation("truncate", self._path, self._power_cycle) as fault:
            if fault is not None:
                raise fault_error(fault.error, self._path)
            self._inode.truncate(size_bytes)

    def size_bytes(self) -> int:
        with self._disk.operation("size", self._path, self._power_cycle):
            return len(self._inode.cached)

    def descriptor(self) -> int | None:
        return None

    def close(self) -> None:
        pass


def fault_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


class _Operation:
    """One operation at a time, on a disk that has power."""

    def __init__(self, disk: FaultyDisk, name: str, path: Path, power_cycle: int) -> None:
        self._disk = disk
        self._arguments = (name, path, power_cycle)

    def __enter__(self) -> Fault | None:
        self._disk.lock.acquire()
        try:
            return self._disk.begin(*self._arguments)
        except OSError:
            self._disk.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._disk.lock.release()


READING = frozenset({"read", "size", "open", "list"})


class FaultyDisk:
    def __init__(self, root: Path, *, size_bytes: int = 2**40) -> None:
        self.root = root
        self.size_bytes = size_bytes
        self.lock = threading.RLock()
        self.power_cycle = 0
        self.syncs: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._folder = Folder()
        self._faults: list[Fault] = []
        self._holds: list[Hold] = []
        self._changes_until_crash: int | None = None

    # -- what tests ask for -------------------------------------------------------------------------

    def fail(
        self,
        operation: str,
        pattern: str = "*",
        *,
        error: int = errno.EIO,
        times: int = 1,
        after_bytes: int = 0,
    ) -> Fault:
        """The next `times` operations of this kind fail; a failing write still writes `after_bytes`."""
        fault = Fault(operation, pattern, error, times, after_bytes)
        self._faults.append(fault)
        return fault

    @contextmanager
    def failing(
        self, operation: str, pattern: str = "*", *, times: int = 1, after_bytes: int = 0
    ) -> Iterator[Fault]:
        fault = self.fail(operation, pattern, times=times, after_bytes=after_bytes)
        try:
            yield fault
        finally:
            fault.stop()

    def hold_syncs(self, pattern: str = "*") -> Hold:
        hold = Hold(pattern)
        self._holds.append(hold)
        return hold

    def crash_after(self, changes: int) -> None:
        """After so many changes the power is gone: everything fails until `power_cut` or `kill`."""
        self._changes_until_crash = changes

    @property
    def crashed(self) -> bool:
        return self._changes_until_crash is not None and self._changes_until_crash < 0

    def kill(self) -> None:
        """The process is gone, the kernel is not: everything written stays."""
        with self.lock:
            self._heal()

    def power_cut(self, rng: random.Random) -> None:
        with self.lock:
            self._heal()
            self._folder.lose_power(rng)

    def _heal(self) -> None:
        self.power_cycle += 1
        self._changes_until_crash = None
        self._faults.clear()
        for hold in self._holds:
            hold.let_go()
        self._holds.clear()

    def paths(self) -> list[Path]:
        return sorted(path for path, _ in self._walk())

    def inode(self, path: Path) -> Inode:
        entry = self._entry(path)
        assert isinstance(entry, Inode)
        return entry

    def flip(self, path: Path, offset: int, mask: int = 1) -> None:
        """A bit changes on the platter, and nobody notices until it is read."""
        inode = self.inode(path)
        inode.cached[offset] ^= mask
        if offset < len(inode.stable):
            inode.stable[offset] ^= mask

    def snapshot(self) -> dict[Path, bytes]:
        return {path: bytes(inode.cached) for path, inode in self._walk()}

    def restore(self, content: dict[Path, bytes]) -> None:
        """Exactly these files, all of them synced."""
        self._folder = Folder()
        self.power_cycle += 1
        for path, data in content.items():
            self.make_directory(path.parent)
            self.create(path)
            inode = self.inode(path)
            inode.cached, inode.stable = bytearray(data), bytearray(data)
            self.sync_directory(path.parent)

    def _walk(self) -> Iterator[tuple[Path, Inode]]:
        folders = [(self.root, self._folder)]
        while folders:
            path, folder = folders.pop()
            for name, entry in folder.cached.items():
                if isinstance(entry, Folder):
                    folders.append((path / name, entry))
                else:
                    yield path / name, entry

    # -- what files ask for -------------------------------------------------------------------------

    def operation(self, name: str, path: Path, power_cycle: int) -> _Operation:
        return _Operation(self, name, path, power_cycle)

    def begin(self, name: str, path: Path, power_cycle: int) -> Fault | None:
        if power_cycle != self.power_cycle:
            raise fault_error(errno.ESTALE, path)
        if self._changes_until_crash is not None:
            if name not in READING:
                self._changes_until_crash -= 1
            if self._changes_until_crash < 0:
                raise fault_error(errno.EIO, path)
        fault = next((fault for fault in self._faults if fault.strikes(name, path)), None)
        if fault is not None:
            self.failures[name] += 1
        return fault

    def hold(self, path: Path) -> None:
        for hold in list(self._holds):
            hold.wait(path)

    # -- Files --------------------------------------------------------------------------------------

    def create(self, path: Path) -> DiskFile:
        with self._change("create", path) as folder:
            if path.name in folder.cached:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            inode = Inode()
            folder.change(lambda names: names.__setitem__(path.name, inode))
        return DiskFile(self, path, inode)

    def open(self, path: Path, *, write: bool = False) -> DiskFile:
        with self._change("open", path):
            return DiskFile(self, path, self.inode(path))

    def exists(self, path: Path) -> bool:
        with self.lock:
            try:
                self._entry(path)
            except FileNotFoundError:
                return False
            return True

    def list_names(self, directory: Path) -> list[str]:
        with self._change("list", directory / "*"):
            return sorted(self._folder_at(directory).cached)

    def make_directory(self, path: Path) -> None:
        if path == self.root or self.exists(path):
            return
        self.make_directory(path.parent)
        with self._change("mkdir", path) as folder:
            made = Folder()
            folder.change(lambda names: names.__setitem__(path.name, made))

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent
        with self._change("rename", source) as folder:
            inode = self.inode(source)

            def apply(names: dict[str, Inode | Folder]) -> None:
                names.pop(source.name, None)
                names[target.name] = inode

            folder.change(apply)

    def remove(self, path: Path) -> None:
        with self._change("remove", path) as folder:
            self.inode(path)
            folder.change(lambda names: names.pop(path.name, None))

    def remove_directory(self, path: Path) -> None:
        with self._change("rmdir", path) as folder:
            if self._folder_at(path).cached:
                raise fault_error(errno.ENOTEMPTY, path)
            folder.change(lambda names: names.pop(path.name, None))

    def sync_directory(self, path: Path) -> None:
        if path in self.root.parents:
            return
        with self._change("sync_directory", path / "*"):
            self._folder_at(path).sync()

    def free_bytes(self, path: Path) -> int:
        with self.lock:
            return max(0, self.size_bytes - sum(len(inode.cached) for _, inode in self._walk()))

    def _change(self, name: str, path: Path) -> _FolderChange:
        return _FolderChange(self, name, path)

    def _folder_at(self, path: Path) -> Folder:
        if path == self.root:
            return self._folder
        entry = self._entry(path)
        assert isinstance(entry, Folder)
        return entry

    def _entry(self, path: Path) -> Inode | Folder:
        entry: Inode | Folder = self._folder
        for name in path.relative_to(self.root).parts:
            found = entry.cached.get(name) if isinstance(entry, Folder) else None
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            entry = found
        return entry


class _FolderChange(_Operation):
    """An operation on a name: yields the folder that the name is in."""

    def __init__(self, disk: FaultyDisk, name: str, path: Path) -> None:
        super().__init__(disk, name, path, disk.power_cycle)
        self._path = path

    def __enter__(self) -> Folder:  # type: ignore[override]
        fault = super().__enter__()
        try:
            if fault is not None:
                raise fault_error(fault.error, self._path)
            return self._disk._folder_at(self._path.parent)
        except OSError:
            self._disk.lock.release()
            raise
