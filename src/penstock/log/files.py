"""The log's only way to the file system, small enough to be replaced by memory or by a disk that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

IOV_MAX = 1024


class File(Protocol):
    def write_at(self, buffers: list[Buffer], offset: int, *, sync: bool = False) -> None:
        """Write all of it or raise OSError; with `sync`, return only when it is on stable storage."""

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        """Up to `size_bytes`: fewer only at the end of the file."""

    def sync(self) -> None: ...

    def truncate(self, size_bytes: int) -> None: ...

    def size_bytes(self) -> int: ...

    def descriptor(self) -> int | None:
        """For sendfile; None when there is no descriptor behind the file."""

    def close(self) -> None: ...


class Files(Protocol):
    def create(self, path: Path) -> File: ...

    def open(self, path: Path, *, write: bool = False) -> File: ...

    def exists(self, path: Path) -> bool: ...

    def list_names(self, directory: Path) -> list[str]: ...

    def make_directory(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...

    def free_bytes(self, path: Path) -> int: ...


def write_rest(descriptor: int, buffers: list[Buffer], offset: int, written_bytes: int, flags: int) -> None:
    """Go on where `pwritev` stopped: a short write is not an error, only an invitation to go on."""
    rest = memoryview(b"".join(buffers))[written_bytes:]
    offset += written_bytes
    while rest:
        written_bytes = os.pwritev(descriptor, [rest], offset, flags)
        if written_bytes == 0:
            raise OSError(errno.EIO, "write made no progress")
        rest = rest[written_bytes:]
        offset += written_bytes


class OsFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_at(self, buffers: list[Buffer], offset: int, *, sync: bool = False) -> None:
        flags = os.RWF_DSYNC if sync else 0
        written_bytes = os.pwritev(self._descriptor, buffers[:IOV_MAX], offset, flags)
        if written_bytes != sum(map(len, buffers)):
            write_rest(self._descriptor, buffers, offset, written_bytes, flags)

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size_bytes, offset)
        if len(data) == size_bytes or not data:
            return data
        chunks = [data]
        while data and sum(map(len, chunks)) < size_bytes:
            done_bytes = sum(map(len, chunks))
            data = os.pread(self._descriptor, size_bytes - done_bytes, offset + done_bytes)
            chunks.append(data)
        return b"".join(chunks)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def size_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def descriptor(self) -> int | None:
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # A reader in another thread may still use a file that its segment has let go of: the last one closes it.
    __del__ = close


class OsFiles:
    def create(self, path: Path) -> File:
        return OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def open(self, path: Path, *, write: bool = False) -> File:
        return OsFile(os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list_names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


class MemoryFile:
    def __init__(self, content: bytearray) -> None:
        self._content = content

    def write_at(self, buffers: list[Buffer], offset: int, *, sync: bool = False) -> None:
        data = b"".join(buffers)
        self._content[offset : offset + len(data)] = data

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        # A slice copies in one step; a memoryview would forbid a writer in another thread to grow the array.
        return bytes(self._content[offset : offset + size_bytes])

    def sync(self) -> None:
        pass

    def truncate(self, size_bytes: int) -> None:
        del self._content[size_bytes:]

    def size_bytes(self) -> int:
        return len(self._content)

    def descriptor(self) -> int | None:
        return None

    def close(self) -> None:
        pass


class MemoryFiles:
    """The file layer of Memory streams: the same log, with nothing on disk."""

    def __init__(self) -> None:
        self._contents: dict[Path, bytearray] = {}

    def create(self, path: Path) -> File:
        if path in self._contents:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._contents[path] = bytearray()
        return MemoryFile(self._contents[path])

    def open(self, path: Path, *, write: bool = False) -> File:
        if path not in self._contents:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return MemoryFile(self._contents[path])

    def exists(self, path: Path) -> bool:
        return path in self._contents

    def list_names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self._contents if path.parent == directory)

    def make_directory(self, path: Path) -> None:
        pass

    def rename(self, source: Path, target: Path) -> None:
        self._contents[target] = self._contents.pop(source)

    def remove(self, path: Path) -> None:
        del self._contents[path]

    def remove_directory(self, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def free_bytes(self, path: Path) -> int:
        return 2**63 - 1
