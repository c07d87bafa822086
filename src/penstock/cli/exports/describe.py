"""penstock exports describe"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import json_option
from penstock.cli.exports.connection import connect_http, export_arguments, http_options
from penstock.cli.exports.view import to_json, to_properties
from penstock.cli.exports.watch import watch as watch_exports
from penstock.cli.exports.watch import watch_option


@click.command()
@export_arguments
@watch_option
@json_option
@http_options
def describe(
    stream: str,
    export: str,
    watch: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Show an export.

    What it is doing, how far it is, its last error.
    """
    with connect_http(**where) as client:
        if watch:
            watch_exports(lambda: [client.export(stream, export)], as_json)
        view = client.export(stream, export)
    if as_json:
        output.write_json(to_json(view))
    else:
        output.write_properties(to_properties(view))
