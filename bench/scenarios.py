"""Everything that can be run, by name, in its long and its quick form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import appends, bulk_read, exports, firehose_delivery, firehose_puts, idle, lake, opening
from bench.appends import AppendResult, Appends, Progress
from bench.figures import Figure
from bench.firehose_puts import Puts


class Effort(NamedTuple):
    rounds: int
    seconds: float
    read_messages: int
    read_passes: int
    open_messages: int
    drain_messages: int
    age_messages: int
    many_seconds: int
    objects: int
    many_puts: int


FULL = Effort(
    rounds=3,
    seconds=2.0,
    read_messages=500_000,
    read_passes=5,
    open_messages=opening.MESSAGES,
    drain_messages=1_000_000,
    age_messages=100,
    many_seconds=20,
    objects=30,
    many_puts=3000,
)
QUICK = Effort(
    rounds=1,
    seconds=1.5,
    read_messages=200_000,
    read_passes=3,
    open_messages=500_000,
    drain_messages=200_000,
    age_messages=30,
    many_seconds=6,
    objects=10,
    many_puts=500,
)


class Section(NamedTuple):
    """One scenario with what was measured: rates beside peers, or figures of Penstock alone."""

    name: str
    title: str
    scenario: Appends | None
    results: list[AppendResult]
    figures: list[Figure]
    limit: str = ""


Scenario = Callable[[Path, Effort, Progress], Section]
Measure = Callable[[Path, Effort, Progress], tuple[list[Figure], str]]  # and what limits it


def _appends(scenario: Appends, work_dir: Path, effort: Effort, progress: Progress) -> Section:
    results = appends.measure(scenario, work_dir, effort.rounds, effort.seconds, progress)
    return Section(scenario.name, scenario.title, scenario, results, [])


def _puts(puts: Puts, work_dir: Path, effort: Effort, progress: Progress) -> Section:
    results = firehose_puts.measure(puts, work_dir, effort.rounds, effort.seconds, progress)
    return Section(
        puts.scenario.name, puts.title, puts.scenario, results, firehose_puts.figures(puts, results)
    )


def _bulk_read(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    figures, limit = bulk_read.measure(work_dir, effort.read_messages, effort.read_passes, progress)
    title = f"{effort.read_messages:,} messages of {bulk_read.PAYLOAD_BYTES} B, one reader"
    return Section("bulk-read", title, None, [], figures, limit)


def _alone(
    name: str, title: str, measure: Measure, work_dir: Path, effort: Effort, progress: Progress
) -> Section:
    figures, limit = measure(work_dir, effort, progress)
    return Section(name, title, None, [], figures, limit)


ALONE: tuple[tuple[str, str, Measure], ...] = (
    (
        "open",
        "start of the process to its ready line",
        lambda work_dir, effort, progress: opening.measure(work_dir, effort.open_messages, progress),
    ),
    (
        "idle",
        "memory of a server without work",
        lambda work_dir, _, progress: (idle.measure(work_dir, progress), ""),
    ),
    (
        "drain",
        "a backlog through Spark local[2]",
        lambda work_dir, effort, progress: exports.drain(work_dir, effort.drain_messages, progress),
    ),
    (
        "drain-gzip",
        "a backlog through Spark local[2] into gzip objects",
        lambda work_dir, effort, progress: lake.measure(work_dir, effort.drain_messages, progress),
    ),
    (
        "export-age",
        "single messages through a warm pipeline",
        lambda work_dir, effort, progress: exports.ages(work_dir, effort.age_messages, progress),
    ),
    (
        "exports-many",
        "many exports at once",
        lambda work_dir, effort, progress: exports.many(work_dir, effort.many_seconds, progress),
    ),
    (
        "firehose-drain",
        "a backlog of a delivery stream, local[2]",
        lambda work_dir, effort, progress: firehose_delivery.drain(work_dir, effort.drain_messages, progress),
    ),
    (
        "firehose-visible",
        "from a full buffer to its object",
        lambda work_dir, effort, progress: firehose_delivery.visible(work_dir, effort.objects, progress),
    ),
    (
        "firehose-many",
        "many delivery streams, most of them idle",
        lambda work_dir, effort, progress: firehose_delivery.many(work_dir, effort.many_puts, progress),
    ),
)
SCENARIOS: dict[str, Scenario] = {
    **{scenario.name: partial(_appends, scenario) for scenario in appends.SCENARIOS},
    **{puts.scenario.name: partial(_puts, puts) for puts in firehose_puts.SCENARIOS},
    "bulk-read": _bulk_read,
    **{name: partial(_alone, name, title, measure) for name, title, measure in ALONE},
}
