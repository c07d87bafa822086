"""penstock exports pause"""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli import output
from penstock.cli.connection import connection_options, json_option
from penstock.cli.exports.connection import export_arguments
from penstock.cli.exports.disabling import set_disabled


@click.command()
@export_arguments
@json_option
@connection_options
def pause(stream: str, export: str, as_json: bool, server: str | None, token_file: Path | None) -> None:
    """Stop delivering an export; its position and its messages stay."""
    set_disabled(stream, export, True, server, token_file)
    if as_json:
        output.write_json({"stream": stream, "export": export, "disabled": True})
    else:
        click.echo(f"paused export {export} of stream {stream}", err=True)
