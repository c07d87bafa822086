"""penstock exports list"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import json_option
from penstock.cli.exports.connection import connect_http, http_options
from penstock.cli.exports.view import COLUMNS, NUMBER_COLUMNS, to_json, to_row
from penstock.cli.exports.watch import watch as watch_exports
from penstock.cli.exports.watch import watch_option


@click.command("list")
@click.option("--stream", metavar="NAME", help="Only the exports of this stream.")
@watch_option
@json_option
@http_options
def list_exports(
    stream: str | None,
    watch: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """List the exports.

    What each is doing, how far it is, how much waits.
    """
    with connect_http(**where) as client:
        if watch:
            watch_exports(lambda: [v for v in client.exports() if stream in (None, v.stream)], as_json)
        views = [view for view in client.exports() if stream in (None, view.stream)]
    if as_json:
        output.write_json({"exports": [to_json(view) for view in views]})
    else:
        output.write_table(COLUMNS, map(to_row, views), right_aligned=NUMBER_COLUMNS)
