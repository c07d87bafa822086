"""penstock delivery sql"""

from __future__ import annotations

from typing import Any, TextIO

import click

from penstock.cli import output
from penstock.cli.connection import json_option
from penstock.cli.delivery.selection import find, where_options
from penstock.cli.exports.connection import connect_http, http_options


@click.command()
@click.argument("name")
@click.argument("query", required=False)
@click.option("--file", "file", type=click.File(), help="Take the query from a file, or from stdin with '-'.")
@click.option("--remove", is_flag=True, help="Deliver records as they are again.")
@where_options
@json_option
@http_options
def sql(
    name: str,
    query: str | None,
    file: TextIO | None,
    remove: bool,
    region: str | None,
    account: str | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Transform the records of a delivery stream.

    From now on, with a query in Spark SQL; without one, the present query is shown.

    \b
    penstock delivery sql clicks "SELECT upper(data) AS data FROM records WHERE data IS NOT NULL"
    """
    if sum((query is not None, file is not None, remove)) > 1:
        raise click.UsageError("Give one of QUERY, --file and --remove")
    wanted = file.read() if file is not None else "" if remove else query
    with connect_http(**where) as client:
        listing = find(client, name, region, account)
        if wanted is not None:
            listing = client.set_delivery_sql(listing.arn, wanted)
    if as_json:
        output.write_json({"arn": listing.arn, "version": listing.version, "sql": listing.sql})
    elif wanted is None:
        click.echo(listing.sql or f"delivery stream {name} has no query", err=not listing.sql)
    else:
        done = "transforms its records" if listing.sql else "delivers its records as they are"
        click.echo(f"delivery stream {name} {done} from version {listing.version} on", err=True)
