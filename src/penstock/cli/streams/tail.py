"""penstock streams tail"""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.connection import connect, connection_options, json_option
from penstock.cli.streams.messages import (
    batches_from,
    first_of_last,
    format_option,
    renderer,
    write_messages,
)


@click.command()
@click.argument("name")
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many messages.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with messages as they arrive.")
@format_option
@json_option
@connection_options
def tail(
    name: str,
    count: int,
    follow: bool,
    template: str | None,
    as_json: bool,
    server: str | None,
    token_file: Path | None,
) -> None:
    """Print the last messages, and with -f those that arrive."""
    render = renderer(name, template, as_json)
    with connect(server, token_file) as client:
        first, newest = first_of_last(client, name, count)
        write_messages(batches_from(client, name, first, None, None if follow else newest), render)
