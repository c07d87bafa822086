"""How long a server takes from its start to its ready line, over a store of many messages."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from bench import processes, stores
from bench.appends import Progress
from bench.figures import Figure
from bench.idle import RESIDENT_MB_MAX
from bench.stores import PENSTOCK

CLIENTS = 4
PAYLOAD_BYTES = 100
MESSAGES = 10_000_000
OPEN_S_MAX = 2.0


def measure(work_dir: Path, messages: int, progress: Progress) -> tuple[list[Figure], str]:
    directory = work_dir / "open"
    at_most = OPEN_S_MAX if messages >= MESSAGES else None
    started = time.monotonic()
    with stores.open_store(directory) as (_server, address, _http):
        empty_s = time.monotonic() - started
        progress(f"open: preparing {messages:,} messages of {PAYLOAD_BYTES} B")
        started = time.monotonic()
        streams = stores.fill(address, messages, PAYLOAD_BYTES, CLIENTS)
        progress(f"open: prepared in {time.monotonic() - started:.0f} s")
    _forget_cached(directory)
    cold_s, _ = _open_s(directory, streams, messages, kill=False)
    warm_s, _ = _open_s(directory, streams, messages, kill=True)
    killed_s, resident_bytes = _open_s(directory, streams, messages, kill=False)
    shutil.rmtree(directory)
    label = f"open {messages:,} messages"
    figures = [
        Figure(f"{label}, its files not in memory", cold_s, "s", at_most=at_most),
        Figure(f"{label}, its files in memory", warm_s, "s", at_most=at_most),
        Figure(f"{label}, after kill -9", killed_s, "s", at_most=at_most),
        Figure("open an empty directory", empty_s, "s"),
        Figure("resident with that store open", resident_bytes / 1e6, "MB", at_most=RESIDENT_MB_MAX),
    ]
    slower = "the start of the process itself" if empty_s > cold_s / 2 else "reading the store"
    return figures, f"{slower} (an empty directory takes {empty_s:.2f} s of the {cold_s:.2f} s)"


def _open_s(directory: Path, streams: list[str], messages: int, kill: bool) -> tuple[float, int]:
    """From starting the process to its ready line; then all messages must be there."""
    started = time.monotonic()
    with stores.open_store(directory, kill=kill) as (server, address, _http):
        elapsed_s = time.monotonic() - started
        control = PENSTOCK.protocol.connect(address)
        held = sum(PENSTOCK.protocol.message_count(control, stream) for stream in streams)
        control.close()
        resident_bytes = processes.resident_bytes(server.pid)
    if held < messages:
        raise RuntimeError(f"the store was filled with {messages} messages and opened with {held}")
    return elapsed_s, resident_bytes


def _forget_cached(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
