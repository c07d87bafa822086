"""penstock exports pause"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import connection_options, json_option
from penstock.cli.exports.connection import export_arguments
from penstock.cli.exports.disabling import set_disabled


@click.command()
@export_arguments
@json_option
@connection_options
def pause(stream: str, export: str, as_json: bool, **where: Any) -> None:
    """Stop delivering an export; its position and its messages stay."""
    set_disabled(stream, export, True, **where)
    if as_json:
        output.write_json({"stream": stream, "export": export, "disabled": True})
    else:
        click.echo(f"paused export {export} of stream {stream}", err=True)
