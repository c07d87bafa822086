"""The file layers: disk, memory and the failing one of the tests keep one contract."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from faults.disk import FaultyDisk
from penstock.log.files import Files, MemoryFiles, OsFiles


@pytest.fixture(params=["disk", "memory", "faulty"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    kinds: dict[str, Files] = {"disk": OsFiles(), "memory": MemoryFiles(), "faulty": FaultyDisk(tmp_path)}
    return kinds[request.param]


def test_contract(files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    files.make_directory(folder)
    files.make_directory(folder)
    path = folder / "one"
    file = files.create(path)
    with pytest.raises(FileExistsError):
        files.create(path)
    file.write_at([b"hello", bytearray(b" "), memoryview(b"world"), b""], 0)
    file.write_at([b"W"], 6, sync=True)
    assert file.read_at(100, 0) == b"hello World"
    assert file.read_at(5, 6) == b"World"
    assert file.read_at(5, 100) == b""
    assert file.size_bytes() == 11
    file.sync()
    file.truncate(5)
    assert files.open(path).read_at(100, 0) == b"hello"
    files.rename(path, folder / "two")
    assert (files.exists(path), files.exists(folder / "two")) == (False, True)
    assert files.list_names(folder) == ["two"]
    assert file.read_at(5, 0) == b"hello", "an open file survives its name"
    files.remove(folder / "two")
    assert file.read_at(5, 0) == b"hello"
    with pytest.raises(FileNotFoundError):
        files.open(folder / "two")
    files.sync_directory(folder)
    files.remove_directory(folder)
    assert files.free_bytes(tmp_path) > 0
    file.close()


def test_many_buffers_in_one_write(tmp_path: Path) -> None:
    file = OsFiles().create(tmp_path / "f")
    buffers = [b"%d " % number for number in range(5000)]
    file.write_at(buffers, 3)
    assert file.read_at(10**6, 3) == b"".join(buffers)
    file.close()


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A kernel may write less than it was asked to; that is no error."""
    write = os.pwritev

    def short(descriptor: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
        return write(descriptor, [b"".join(buffers)[:step]], offset, flags)

    file = OsFiles().create(tmp_path / "f")
    monkeypatch.setattr(os, "pwritev", short)
    data = random.Random(1).randbytes(3000)
    file.write_at([data[:1000], data[1000:1001], data[1001:]], 5)
    assert file.read_at(10**6, 5) == data
    file.close()


def test_a_write_without_progress_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles().create(tmp_path / "f")
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="no progress"):
        file.write_at([b"x"], 0)
    file.close()


def test_files_are_private(tmp_path: Path) -> None:
    files = OsFiles()
    files.make_directory(tmp_path / "d")
    files.create(tmp_path / "d" / "f").close()
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "d" / "f").stat().st_mode & 0o777 == 0o600


# -- the failing disk itself --------------------------------------------------------------------------


def test_a_power_cut_takes_only_what_was_not_synced(tmp_path: Path) -> None:
    survivals = set()
    for seed in range(60):
        disk = FaultyDisk(tmp_path)
        kept = disk.create(tmp_path / "kept")
        kept.write_at([b"synced"], 0)
        kept.sync()
        disk.sync_directory(tmp_path)
        kept.write_at([bytes(4096 - 6) + b"unsynced"], 6)
        disk.create(tmp_path / "unsynced name").write_at([b"x"], 0, sync=True)
        disk.power_cut(random.Random(seed))
        with pytest.raises(OSError, match="Stale"):
            kept.read_at(1, 0)
        content = disk.open(tmp_path / "kept").read_at(10**6, 0)
        assert content[:6] == b"synced"
        survivals.add((content.endswith(b"unsynced"), disk.exists(tmp_path / "unsynced name")))
    assert survivals == {(False, False), (False, True), (True, False), (True, True)}


def test_after_a_failed_sync_the_next_one_succeeds_and_the_data_is_lost(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = disk.create(tmp_path / "f")
    disk.sync_directory(tmp_path)
    file.write_at([b"data"], 0)
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.read_at(4, 0) == b"data"
    disk.power_cut(random.Random(1))
    assert disk.open(tmp_path / "f").read_at(4, 0) == bytes(4)


def test_a_kill_keeps_the_page_cache(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.create(tmp_path / "f").write_at([b"data"], 0)
    disk.kill()
    assert disk.open(tmp_path / "f").read_at(4, 0) == b"data"


def test_a_full_disk_takes_what_fits(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, size_bytes=10)
    file = disk.create(tmp_path / "f")
    with pytest.raises(OSError, match="No space") as caught:
        file.write_at([b"0123456789abc"], 0)
    assert caught.value.errno == errno.ENOSPC
    assert file.read_at(100, 0) == b"0123456789"
    disk.remove(tmp_path / "f")
    disk.create(tmp_path / "g").write_at([b"again"], 0)
