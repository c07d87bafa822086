"""penstock streams"""

from __future__ import annotations

import click

from penstock.cli.streams.append import append
from penstock.cli.streams.create import create
from penstock.cli.streams.delete import delete
from penstock.cli.streams.describe import describe
from penstock.cli.streams.list import list_streams
from penstock.cli.streams.read import read
from penstock.cli.streams.tail import tail
from penstock.cli.streams.update import update


@click.group()
def streams() -> None:
    """Work with the streams of a running server."""


for command in (list_streams, describe, create, update, delete, append, read, tail):
    streams.add_command(command)
