"""Which flushes need Spark SQL, and which of them can share a job."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.flush import Flush
from penstock.model import ExportKind
from penstock.pipeline.records.serde import conversion_of


def needs_spark_sql(flush: Flush) -> bool:
    if flush.kind is not ExportKind.DELIVERY:
        return False
    return bool(flush.settings.get("sql")) or conversion_of(flush.settings.get("config") or {}) is not None


def by_settings(flushes: Iterable[Flush]) -> list[list[Flush]]:
    """Flushes of the same settings together, each group in the order they came."""
    groups: dict[bytes, list[Flush]] = {}
    for flush in flushes:
        settings = {name: value for name, value in flush.settings.items() if name != "data_keys"}
        groups.setdefault(msgspec.json.encode(settings, order="deterministic"), []).append(flush)
    return list(groups.values())
