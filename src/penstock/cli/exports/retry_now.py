"""penstock exports retry-now"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import json_option
from penstock.cli.exports.connection import connect_http, export_arguments, http_options


@click.command("retry-now")
@export_arguments
@json_option
@http_options
def retry_now(
    stream: str,
    export: str,
    as_json: bool,
    **where: Any,
) -> None:
    """Try an export that failed again at once."""
    with connect_http(**where) as client:
        client.retry_now(stream, export)
    if as_json:
        output.write_json({"stream": stream, "export": export, "retried": True})
    else:
        click.echo(f"export {export} of stream {stream} is tried again now", err=True)
