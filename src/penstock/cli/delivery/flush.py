"""penstock delivery flush"""

from __future__ import annotations

import time
from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import POLL_MS, json_option
from penstock.cli.delivery.selection import find, where_options
from penstock.cli.delivery.view import progress_json
from penstock.cli.exports.connection import connect_http, http_options
from penstock.cli.units import format_duration
from penstock.errors import NotDelivered


@click.command()
@click.argument("name")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=60,
    show_default=True,
    help="How long to wait until the records are delivered; 0: not at all.",
)
@where_options
@json_option
@http_options
def flush(
    name: str,
    wait_s: float,
    region: str | None,
    account: str | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Deliver what is buffered now, whatever its size or age."""
    deadline_s = time.monotonic() + wait_s
    with connect_http(**where) as client:
        arn = find(client, name, region, account).arn
        progress = client.flush_delivery(arn, 0)
        upto = progress.flush_upto  # records that are put meanwhile are not waited for
        while progress.delivered_upto < upto and not progress.failures:
            left_ms = round((deadline_s - time.monotonic()) * 1000)
            if left_ms <= 0:
                break
            progress = client.flush_delivery(arn, min(left_ms, POLL_MS), upto)
    if as_json:
        output.write_json({"arn": arn, **progress_json(progress)})
    if progress.delivered_upto >= upto:
        if not as_json:
            click.echo(f"delivery stream {name}: everything is delivered", err=True)
        return
    if wait_s == 0 and not as_json:
        click.echo(f"delivery stream {name}: records on their way: {progress.waiting_records}", err=True)
    elif wait_s > 0:
        why = progress.error or f"not within {format_duration(round(wait_s * 1000))}"
        raise NotDelivered(
            f"records of {name} that are not delivered: {progress.waiting_records} ({why}); "
            f"they stay, and 'penstock delivery describe {name}' shows what becomes of them"
        )
