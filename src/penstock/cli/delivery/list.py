"""penstock delivery list"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import json_option
from penstock.cli.delivery.selection import select, where_options
from penstock.cli.delivery.view import COLUMNS, NUMBER_COLUMNS, to_json, to_row
from penstock.cli.exports.connection import connect_http, http_options


@click.command("list")
@where_options
@json_option
@http_options
def list_deliveries(
    region: str | None,
    account: str | None,
    as_json: bool,
    **where: Any,
) -> None:
    """List the delivery streams.

    Status, what waits in them, what was delivered.
    """
    with connect_http(**where) as client:
        listings = select(client, region, account)
    if as_json:
        output.write_json({"deliveryStreams": [to_json(listing) for listing in listings]})
    else:
        output.write_table(COLUMNS, map(to_row, listings), right_aligned=NUMBER_COLUMNS)
