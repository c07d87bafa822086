"""penstock delivery describe"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import json_option
from penstock.cli.delivery.selection import find, where_options
from penstock.cli.delivery.view import to_json, to_properties
from penstock.cli.exports.connection import connect_http, http_options


@click.command()
@click.argument("name")
@where_options
@json_option
@http_options
def describe(
    name: str,
    region: str | None,
    account: str | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Show a delivery stream.

    Its status, what waits in it, its destination.
    """
    with connect_http(**where) as client:
        described = client.delivery(find(client, name, region, account).arn)
    if as_json:
        output.write_json({**to_json(described.listing), "description": described.description})
        return
    [destination] = described.description["Destinations"]
    block = destination[f"{described.listing.destination}DestinationDescription"]
    output.write_properties([*to_properties(described.listing), *output.flattened(block)])
