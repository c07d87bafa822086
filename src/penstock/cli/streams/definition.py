"""Stream definitions in wire form, from a file and from flags."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, BinaryIO

import click

from penstock.cli.units import duration_value, size_value

ON_FULL = ("reject", "overwrite")  # by wire number
PERSISTENCE = ("file", "memory")  # by wire number

Command = Callable[..., Any]


def _time_to_live(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    return 0 if text == "none" else duration_value(context, parameter, text)


persistence_option = click.option(
    "--persistence", type=click.Choice(PERSISTENCE), help="Keep messages on disk or only in memory."
)


def definition_options(command: Command) -> Command:
    for option in (
        click.option("--definition", type=click.File("rb"), metavar="FILE|-", help="JSON in wire form."),
        click.option("--flush-on-write/--no-flush-on-write", default=None, help="Sync before each answer."),
        click.option("--on-full", type=click.Choice(ON_FULL), help="Refuse new messages or drop the oldest."),
        click.option(
            "--ttl",
            metavar="DURATION",
            callback=_time_to_live,
            help="Least time to keep messages, such as 7d; none = no limit.",
        ),
        click.option(
            "--segment-size", metavar="SIZE", callback=size_value, help="Unit in which messages are deleted."
        ),
        click.option("--max-size", metavar="SIZE", callback=size_value, help="Size limit, such as 256MiB."),
    ):
        command = option(command)
    return command


def load_definition(file: BinaryIO) -> dict[str, Any]:
    try:
        definition = json.load(file)
    except ValueError as error:
        raise click.BadParameter(f"not valid JSON: {error}", param_hint="--definition") from error
    if not isinstance(definition, dict):
        raise click.BadParameter("a definition is a JSON object", param_hint="--definition")
    # What 'describe --json' prints can be given back as it is.
    inner = definition.get("definition")
    return inner if isinstance(inner, dict) else definition


def apply_flags(
    definition: dict[str, Any],
    *,
    max_size: int | None,
    segment_size: int | None,
    ttl: int | None,
    on_full: str | None,
    flush_on_write: bool | None,
    persistence: str | None = None,
) -> dict[str, Any]:
    """The definition with what was given on the command line, and nothing else, changed."""
    given: dict[str, Any] = {
        "maxSize": max_size,
        "streamSegmentSize": segment_size,
        "timeToLiveMillis": ttl,
        "strategyOnFull": None if on_full is None else ON_FULL.index(on_full),
        "persistence": None if persistence is None else PERSISTENCE.index(persistence),
        "flushOnWrite": flush_on_write,
    }
    changed = definition | {key: value for key, value in given.items() if value is not None}
    if ttl == 0:
        del changed["timeToLiveMillis"]
    return changed
