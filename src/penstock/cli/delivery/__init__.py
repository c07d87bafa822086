"""penstock delivery"""

from __future__ import annotations

import click

from penstock.cli.delivery.describe import describe
from penstock.cli.delivery.flush import flush
from penstock.cli.delivery.list import list_deliveries
from penstock.cli.delivery.sql import sql
from penstock.cli.delivery.tail import tail


@click.group()
def delivery() -> None:
    """Look into the delivery streams of a running server. Firehose clients create and change them."""


for command in (list_deliveries, describe, flush, tail, sql):
    delivery.add_command(command)
