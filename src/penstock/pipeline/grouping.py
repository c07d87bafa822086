"""Which flushes share a Spark job, and what kind of job that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from penstock.delivery.settings import calls_functions, needs_spark_sql
from penstock.flush import Flush
from penstock.model import ExportKind

FLUSH_OVERHEAD_MESSAGES = 1000  # what a flush costs besides its messages, in messages
GROUP_MESSAGES_MIN = 10_000  # less work than this is not worth another task


class Group(NamedTuple):
    """The flushes of one job."""

    flushes: list[Flush]
    spark_sql: bool  # they need more of Spark than a place to run
    functions: bool  # they may wait for somebody's function, for minutes


def grouped(flushes: Iterable[Flush], groups_max: int) -> Iterator[Group]:
    """All of them, in jobs of their kind; no more than `groups_max` jobs of each."""
    kinds: dict[tuple[bool, bool, bytes], list[Flush]] = {}
    for flush in flushes:
        kinds.setdefault(_kind(flush), []).append(flush)
    for (spark_sql, functions, _), alike in kinds.items():
        for group in pack(alike, groups_max):
            yield Group(group, spark_sql, functions)


def _kind(flush: Flush) -> tuple[bool, bool, bytes]:
    """Spark SQL needs flushes of the same settings; a function that hangs shall not hold up other streams."""
    if flush.kind is not ExportKind.DELIVERY:
        return False, False, b""
    spark_sql, functions = needs_spark_sql(flush.settings), calls_functions(flush.settings)
    if not spark_sql and not functions:
        return False, False, b""
    settings = {name: value for name, value in flush.settings.items() if name != "data_keys"}
    return spark_sql, functions, msgspec.json.encode(settings, order="deterministic")


def pack(flushes: list[Flush], groups_max: int) -> list[list[Flush]]:
    """Spread flushes over a few groups of about equal work, each in the order they came (which is priority)."""
    total = sum(FLUSH_OVERHEAD_MESSAGES + flush.next - flush.first for flush in flushes)
    count = min(groups_max, max(1, len(flushes)), 1 + total // GROUP_MESSAGES_MIN)
    groups: list[list[Flush]] = [[] for _ in range(count)]
    work = [0] * count
    for flush in flushes:
        lightest = work.index(min(work))
        groups[lightest].append(flush)
        work[lightest] += FLUSH_OVERHEAD_MESSAGES + flush.next - flush.first
    return [group for group in groups if group]
