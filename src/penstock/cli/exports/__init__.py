"""penstock exports"""

from __future__ import annotations

import click

from penstock.cli.exports.describe import describe
from penstock.cli.exports.list import list_exports
from penstock.cli.exports.pause import pause
from penstock.cli.exports.resume import resume
from penstock.cli.exports.retry_now import retry_now
from penstock.cli.exports.rewind import rewind


@click.group()
def exports() -> None:
    """Watch and steer the exports of a running server."""


for command in (list_exports, describe, pause, resume, rewind, retry_now):
    exports.add_command(command)
