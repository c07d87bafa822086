"""What the kernel says about a server: processor time, memory, and the machine around it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Snapshot(NamedTuple):
    server_cpu_s: float  # of threads that have ended too
    thread_cpu_s: dict[int, float]
    client_cpu_s: float
    machine_busy_s: float


def busiest_thread_s(before: Snapshot, after: Snapshot) -> float:
    return max(cpu_s - before.thread_cpu_s.get(thread, 0.0) for thread, cpu_s in after.thread_cpu_s.items())


def snapshot(server_pid: int) -> Snapshot:
    client = os.times()
    pids = process_tree(server_pid)
    return Snapshot(
        server_cpu_s=sum(_cpu_s(Path(f"/proc/{pid}")) for pid in pids),
        thread_cpu_s={
            int(task.name): _cpu_s(task) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()
        },
        client_cpu_s=client.user + client.system,
        machine_busy_s=_machine_busy_s(),
    )


def process_tree(root_pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(entry)):
            parents[int(entry.name)] = int(fields[1])
    tree = [root_pid]
    for pid in tree:  # grows while it is walked: children of children
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def resident_bytes(root_pid: int) -> int:
    return sum(_status_kb(pid, "VmRSS:") for pid in process_tree(root_pid)) * 1024


def _stat_fields(process: Path) -> list[str]:
    """Fields of a stat file after the command, which may hold spaces. None if the process has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _cpu_s(task: Path) -> float:
    fields = _stat_fields(task)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND if fields else 0.0


def _status_kb(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    return 0


def _machine_busy_s() -> float:
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND
