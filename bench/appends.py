"""Appends side by side: what is measured, how, and the bars that Penstock is held to."""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import processes
from bench.clients import Load
from bench.peers import Nats, Peer, Penstock, Server, Valkey
from bench.protocols import Address

PAYLOAD_BYTES = 1024
WARM_UP_S = 0.5
PEERS: tuple[Peer, ...] = (Penstock(), Nats(), Valkey())

Progress = Callable[[str], None]


class WrongCount(Exception):
    """A server holds another number of messages than it acknowledged."""


class Bar(NamedTuple):
    """Penstock should do at least `ratio` times what `peer` does; an aim is wished for, not asked for."""

    peer: str
    ratio: float
    is_aim: bool = False


class Appends(NamedTuple):
    name: str
    clients: int
    in_flight: int
    durable: bool
    bars: tuple[Bar, ...]

    @property
    def title(self) -> str:
        acknowledged = "acknowledged after a sync" if self.durable else "acknowledged before a sync"
        return f"{self.clients} clients × {self.in_flight} in flight, a stream each, {acknowledged}"


SCENARIOS = (
    Appends("durable-4x500", 4, 500, True, (Bar("nats", 30), Bar("valkey", 1.2))),
    Appends("durable-8x1", 8, 1, True, (Bar("nats", 1.5), Bar("valkey", 1.0, is_aim=True))),
    Appends("durable-64x1", 64, 1, True, (Bar("nats", 1.5), Bar("valkey", 1.0, is_aim=True))),
    Appends("relaxed-4x500", 4, 500, False, (Bar("nats", 1.0),)),
    Appends("relaxed-8x1", 8, 1, False, (Bar("nats", 0.8),)),
)


class Round(NamedTuple):
    """One peer, one scenario, once. Shares are of one core; `other_share` went to the rest of the machine."""

    appends_per_s: float
    server_cpu_us_per_append: float
    server_share: float
    busiest_thread_share: float
    client_share: float
    other_share: float


class AppendResult(NamedTuple):
    peer: str
    settings: str
    median: Round
    slowest_per_s: float
    fastest_per_s: float


def measure(
    scenario: Appends, work_dir: Path, rounds: int, seconds: float, progress: Progress
) -> list[AppendResult]:
    """Rounds go from peer to peer, each starting with another one, so that a slow minute hits all alike."""
    measured: dict[str, list[Round]] = {peer.name: [] for peer in PEERS}
    for number in range(rounds):
        order = itertools.islice(
            itertools.cycle(PEERS), number % len(PEERS), number % len(PEERS) + len(PEERS)
        )
        for peer in order:
            result = measure_round(peer, scenario, work_dir, seconds)
            progress(
                f"{scenario.name} round {number + 1}/{rounds} {peer.name}: {result.appends_per_s:,.0f}/s"
            )
            measured[peer.name].append(result)
    return [_summary(peer, scenario, measured[peer.name]) for peer in PEERS]


def measure_round(peer: Peer, scenario: Appends, work_dir: Path, seconds: float) -> Round:
    """A new server on an empty directory, so that no round pays for the messages of another."""
    with running(peer, work_dir, scenario.durable) as (server, address):
        streams = [f"bench-{index:02d}" for index in range(scenario.clients)]
        control = peer.protocol.connect(address)
        for stream in streams:
            peer.protocol.create_stream(control, stream, scenario.durable)
        load = Load(peer.protocol, address, streams, scenario.in_flight, PAYLOAD_BYTES)
        load.run_for(WARM_UP_S)
        result = _timed(load, server, seconds)
        load.drain()
        for stream, acks in load.acks_by_stream().items():
            check_count(peer, stream, acks, peer.protocol.message_count(control, stream))
        load.close()
        control.close()
    return result


@contextmanager
def running(peer: Peer, work_dir: Path, durable: bool) -> Iterator[tuple[Server, Address]]:
    directory = work_dir / peer.name
    server, address = peer.start(directory, durable)
    try:
        yield server, address
    finally:
        server.stop()
        shutil.rmtree(directory)


def check_count(peer: Peer, stream: str, acks: int, held: int) -> None:
    if held != acks:
        raise WrongCount(f"{peer.name} acknowledged {acks} messages of {stream} and holds {held}")


def _timed(load: Load, server: Server, seconds: float) -> Round:
    acks_before, before, started = load.acks, processes.snapshot(server.pid), time.monotonic()
    load.run_for(seconds)
    acks_after, after, elapsed_s = load.acks, processes.snapshot(server.pid), time.monotonic() - started
    appends = max(1, acks_after - acks_before)
    server_cpu_s = after.server_cpu_s - before.server_cpu_s
    client_cpu_s = after.client_cpu_s - before.client_cpu_s
    busy_s = after.machine_busy_s - before.machine_busy_s
    return Round(
        appends_per_s=appends / elapsed_s,
        server_cpu_us_per_append=server_cpu_s / appends * 1e6,
        server_share=server_cpu_s / elapsed_s,
        busiest_thread_share=processes.busiest_thread_s(before, after) / elapsed_s,
        client_share=client_cpu_s / elapsed_s,
        other_share=max(0.0, busy_s - server_cpu_s - client_cpu_s) / elapsed_s,
    )


def _summary(peer: Peer, scenario: Appends, rounds: list[Round]) -> AppendResult:
    rates = [each.appends_per_s for each in rounds]
    median = Round(*(statistics.median(column) for column in zip(*rounds, strict=True)))
    return AppendResult(peer.name, peer.settings(scenario.durable), median, min(rates), max(rates))
