"""penstock exports rewind"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import json_option
from penstock.cli.exports.connection import connect_http, export_arguments, http_options
from penstock.cli.exports.view import to_json


@click.command()
@export_arguments
@click.option(
    "--to", "position", type=click.IntRange(min=0), required=True, help="Sequence number to go on from."
)
@json_option
@http_options
def rewind(
    stream: str,
    export: str,
    position: int,
    as_json: bool,
    **where: Any,
) -> None:
    """Move an export to another message.

    To deliver again what was delivered, or to leave out what waits. What is under way is given up.
    Messages that are deleted already are passed over.
    """
    with connect_http(**where) as client:
        view = client.rewind(stream, export, position)
    if as_json:
        output.write_json(to_json(view))
    else:
        click.echo(
            f"export {export} of stream {stream} goes on from {view.position}; "
            f"{view.waiting_messages:,} messages wait",
            err=True,
        )
