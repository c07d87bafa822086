"""penstock streams delete"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from penstock.cli import exits, output
from penstock.cli.connection import connect, connection_options, json_option


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Without a terminal nothing is ever asked.")
@json_option
@connection_options
def delete(
    names: tuple[str, ...], yes: bool, as_json: bool, server: str | None, token_file: Path | None
) -> int:
    """Delete streams with all their messages and exports."""
    with connect(server, token_file) as client:
        for name in names:
            if not yes and sys.stdin.isatty():
                storage = client.describe(name)["storageStatus"]
                count = storage["newestSequenceNumber"] - storage["oldestSequenceNumber"] + 1
                if not click.confirm(f"Delete stream {name} and its {count:,} messages?", err=True):
                    click.echo(f"kept stream {name}", err=True)
                    return exits.REFUSED
            client.delete(name)
            if as_json:
                output.write_json({"deleted": name})
            else:
                click.echo(f"deleted stream {name}", err=True)
    return exits.OK
