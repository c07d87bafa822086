"""penstock streams read"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.connection import connect
from penstock.cli.streams.messages import (
    batches_from,
    first_of_last,
    printing_options,
    renderer,
    write_messages,
)


@click.command()
@click.argument("name")
@click.option(
    "--from",
    "start",
    type=int,
    metavar="N",
    default=0,
    show_default=True,
    help="First sequence number; -10 = the last ten messages.",
)
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@printing_options
def read(
    name: str,
    start: int,
    count: int | None,
    follow: bool,
    template: str | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Print messages, up to the newest at the time of the call."""
    render = renderer(name, template, as_json)
    with connect(**where) as client:
        first, newest = first_of_last(client, name, max(0, -start))
        batches = batches_from(client, name, first if start < 0 else start, count, None if follow else newest)
        write_messages(batches, render)
