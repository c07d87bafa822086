"""What a server holds in memory when nothing happens."""

from __future__ import annotations

import time
from pathlib import Path

from bench import processes
from bench.appends import PEERS, Progress, running
from bench.figures import Figure
from bench.peers import Peer, Penstock

RESIDENT_MB_MAX = 120.0
SETTLE_S = 2.0


def measure(work_dir: Path, progress: Progress) -> list[Figure]:
    figures = []
    for peer in PEERS:
        progress(f"idle: {peer.name}")
        at_most = RESIDENT_MB_MAX if peer.name == Penstock.name else None
        figures.append(
            Figure(f"{peer.name}, resident at rest", _idle_mb(peer, work_dir), "MB", at_most=at_most)
        )
    return figures


def _idle_mb(peer: Peer, work_dir: Path) -> float:
    with running(peer, work_dir, durable=False) as (server, address):
        control = peer.protocol.connect(address)
        time.sleep(SETTLE_S)  # nothing to await: what a server still does after its start is its own affair
        resident_bytes = processes.resident_bytes(server.pid)
        control.close()
    return resident_bytes / 1e6
