"""penstock streams list"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import connect, connection_options, json_option
from penstock.cli.units import format_size
from penstock.errors import StreamNotFound

if TYPE_CHECKING:
    from penstock.client import StreamManagerClient

COLUMNS = ("stream", "messages", "oldest", "newest", "size", "of", "exports")


@click.command("list")
@click.option("-q", "--quiet", is_flag=True, help="Print names only, one a line.")
@json_option
@connection_options
def list_streams(quiet: bool, as_json: bool, server: str | None, token_file: Path | None) -> None:
    """List the streams."""
    with connect(server, token_file) as client:
        if quiet:
            for name in client.list_streams():
                click.echo(name)
            return
        infos = list(_infos(client))
    if as_json:
        output.write_json({"streams": infos})
    else:
        output.write_table(COLUMNS, map(_row, infos), right_aligned=COLUMNS[1:])


def _infos(client: StreamManagerClient) -> Iterator[dict[str, Any]]:
    for name in client.list_streams():
        try:
            yield client.describe(name)
        except StreamNotFound:
            continue  # deleted since it was listed


def _row(info: dict[str, Any]) -> tuple[object, ...]:
    definition, storage = info["definition"], info["storageStatus"]
    oldest, newest = storage["oldestSequenceNumber"], storage["newestSequenceNumber"]
    return (
        definition["name"],
        newest - oldest + 1,
        oldest,
        newest,
        format_size(storage["totalBytes"]),
        format_size(definition["maxSize"]),
        len(info["exportStatuses"]),
    )
