"""penstock exports resume"""

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
def resume(stream: str, export: str, as_json: bool, **where: Any) -> None:
    """Deliver a paused export again, from where it stopped."""
    set_disabled(stream, export, False, **where)
    if as_json:
        output.write_json({"stream": stream, "export": export, "disabled": False})
    else:
        click.echo(f"resumed export {export} of stream {stream}", err=True)
