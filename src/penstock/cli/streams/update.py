"""penstock streams update"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import click

from penstock.cli.connection import connect, connection_options, json_option
from penstock.cli.streams.definition import apply_flags, definition_options, load_definition
from penstock.cli.streams.describe import write_info


@click.command()
@click.argument("name")
@definition_options
@json_option
@connection_options
def update(
    name: str,
    definition: BinaryIO | None,
    as_json: bool,
    server: str | None,
    token_file: Path | None,
    **flags: Any,
) -> None:
    """Change a stream.

    Only what is given changes; exports and the rest stay. With --definition the whole definition is replaced:
    what it leaves out goes back to its default, and exports that it does not list are deleted.
    """
    if definition is None and all(value is None for value in flags.values()):
        raise click.UsageError("nothing to change was given", click.get_current_context())
    with connect(server, token_file) as client:
        base = client.describe(name)["definition"] if definition is None else load_definition(definition)
        client.update(apply_flags(base | {"name": name}, **flags))
        if as_json:
            write_info(client.describe(name), as_json)
        else:
            click.echo(f"updated stream {name}", err=True)
