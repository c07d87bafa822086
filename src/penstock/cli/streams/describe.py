"""penstock streams describe"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import connect, connection_options, json_option
from penstock.cli.streams.definition import ON_FULL, PERSISTENCE
from penstock.cli.units import format_duration, format_size, format_time

EXPORT_COLUMNS = ("export", "kind", "exported up to", "behind", "messages", "last attempt", "error")


@click.command()
@click.argument("name")
@json_option
@connection_options
def describe(name: str, as_json: bool, server: str | None, token_file: Path | None) -> None:
    """Show a stream: its definition, what it holds, and its exports."""
    with connect(server, token_file) as client:
        info = client.describe(name)
    write_info(info, as_json)


def write_info(info: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.write_json(info)
        return
    output.write_properties(_properties(info))
    if info["exportStatuses"]:
        click.echo()
        output.write_table(EXPORT_COLUMNS, _export_rows(info), right_aligned=EXPORT_COLUMNS[2:5])


def _properties(info: dict[str, Any]) -> Iterator[tuple[str, object]]:
    definition, storage = info["definition"], info["storageStatus"]
    oldest, newest = storage["oldestSequenceNumber"], storage["newestSequenceNumber"]
    ttl_ms = definition.get("timeToLiveMillis")
    yield "stream", definition["name"]
    yield "messages", newest - oldest + 1
    yield "oldest sequence number", oldest
    yield "newest sequence number", newest
    yield "size", format_size(storage["totalBytes"])
    yield "max size", format_size(definition["maxSize"])
    yield "segment size", format_size(definition["streamSegmentSize"])
    yield "time to live", "none" if ttl_ms is None else format_duration(ttl_ms)
    yield "on full", ON_FULL[definition["strategyOnFull"]]
    yield "persistence", PERSISTENCE[definition["persistence"]]
    yield "flush on write", "yes" if definition["flushOnWrite"] else "no"


def _export_rows(info: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    kinds = {
        export["identifier"]: f"{kind} (disabled)" if export.get("disabled") else kind
        for kind, exports in info["definition"]["exportDefinition"].items()
        for export in exports
    }
    newest = info["storageStatus"]["newestSequenceNumber"]
    for status in info["exportStatuses"]:
        last_exported, attempt_ms = status["lastExportedSequenceNumber"], status["lastExportTime"]
        yield (
            status["exportConfigIdentifier"],
            kinds[status["exportConfigIdentifier"]],
            last_exported,
            max(0, newest - last_exported),
            status["exportedMessagesCount"],
            format_time(attempt_ms) if attempt_ms > 0 else "never",
            status["errorMessage"] or "-",
        )
