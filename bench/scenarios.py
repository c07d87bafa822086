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


def _open(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    figures, limit = opening.measure(work_dir, effort.open_messages, progress)
    return Section("open", "start of the process to its ready line", None, [], figures, limit)


def _idle(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    return Section("idle", "memory of a server without work", None, [], idle.measure(work_dir, progress))


def _drain(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    figures, limit = exports.drain(work_dir, effort.drain_messages, progress)
    return Section("drain", "a backlog through Spark local[2]", None, [], figures, limit)


def _drain_gzip(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    figures, limit = lake.measure(work_dir, effort.drain_messages, progress)
    return Section(
        "drain-gzip", "a backlog through Spark local[2] into gzip objects", None, [], figures, limit
    )


def _export_age(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    figures, limit = exports.ages(work_dir, effort.age_messages, progress)
    return Section("export-age", "single messages through a warm pipeline", None, [], figures, limit)


def _exports_many(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    figures, limit = exports.many(work_dir, effort.many_seconds, progress)
    return Section("exports-many", "many exports at once", None, [], figures, limit)


def _firehose_drain(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    figures, limit = firehose_delivery.drain(work_dir, effort.drain_messages, progress)
    return Section("firehose-drain", "a backlog of a delivery stream, local[2]", None, [], figures, limit)


def _firehose_visible(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    figures, limit = firehose_delivery.visible(work_dir, effort.objects, progress)
    return Section("firehose-visible", "from a full buffer to its object", None, [], figures, limit)


def _firehose_many(work_dir: Path, effort: Effort, progress: Progress) -> Section:
    figures, limit = firehose_delivery.many(work_dir, effort.many_puts, progress)
    return Section("firehose-many", "many delivery streams, most of them idle", None, [], figures, limit)


SCENARIOS: dict[str, Scenario] = {
    **{scenario.name: partial(_appends, scenario) for scenario in appends.SCENARIOS},
    **{puts.scenario.name: partial(_puts, puts) for puts in firehose_puts.SCENARIOS},
    "bulk-read": _bulk_read,
    "open": _open,
    "idle": _idle,
    "drain": _drain,
    "drain-gzip": _drain_gzip,
    "export-age": _export_age,
    "exports-many": _exports_many,
    "firehose-drain": _firehose_drain,
    "firehose-visible": _firehose_visible,
    "firehose-many": _firehose_many,
}
