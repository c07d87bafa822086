"""penstock streams tail"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.connection import connect
from penstock.cli.streams.messages import (
    batches_from,
    first_of_last,
    lines_option,
    printing_options,
    renderer,
    write_messages,
)


@click.command()
@click.argument("name")
@lines_option
@printing_options
def tail(
    name: str,
    count: int,
    follow: bool,
    template: str | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Print the last messages, and with -f those that arrive."""
    render = renderer(name, template, as_json)
    with connect(**where) as client:
        first, newest = first_of_last(client, name, count)
        write_messages(batches_from(client, name, first, None, None if follow else newest), render)
