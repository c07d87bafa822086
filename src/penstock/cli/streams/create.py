"""penstock streams create"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import click

from penstock.cli.connection import connect, connection_options, json_option
from penstock.cli.streams.definition import (
    ON_FULL,
    apply_flags,
    definition_options,
    load_definition,
    persistence_option,
)
from penstock.cli.streams.describe import write_info


@click.command()
@click.argument("name")
@definition_options
@persistence_option
@json_option
@connection_options
def create(
    name: str,
    definition: BinaryIO | None,
    as_json: bool,
    server: str | None,
    token_file: Path | None,
    **flags: Any,
) -> None:
    """Create a stream.

    Defaults: 256 MiB in segments of 16 MiB, on disk, no time to live, new messages refused when full. Exports
    are given with --definition; flags and NAME go over what it says.
    """
    base = {"strategyOnFull": ON_FULL.index("reject")}
    if definition is not None:
        base |= load_definition(definition)
    with connect(server, token_file) as client:
        client.create(apply_flags(base | {"name": name}, **flags))
        if as_json:
            write_info(client.describe(name), as_json)
        else:
            click.echo(f"created stream {name}", err=True)
