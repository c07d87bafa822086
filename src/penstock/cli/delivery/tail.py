"""penstock delivery tail"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import POLL_MS, json_option
from penstock.cli.delivery.selection import find, where_options
from penstock.cli.exports.connection import connect_http, http_options
from penstock.cli.streams.messages import (
    BATCH_COUNT_MAX,
    format_option,
    lines_option,
    renderer,
    write_messages,
)

if TYPE_CHECKING:
    from penstock.http_client import HttpClient
    from penstock.model import Message


@click.command()
@click.argument("name")
@lines_option
@click.option("-f", "--follow", is_flag=True, help="Go on with records as they are put.")
@format_option
@where_options
@json_option
@http_options
def tail(
    name: str,
    count: int,
    follow: bool,
    template: str | None,
    region: str | None,
    account: str | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Print the last records as they were put.

    With -f also those that come. What is delivered may be gone.
    """
    render = renderer(name, template, as_json)
    with connect_http(**where) as client:
        arn = find(client, name, region, account).arn
        write_messages(_batches(client, arn, count, follow), render)


def _batches(client: HttpClient, arn: str, count: int, follow: bool) -> Iterator[list[Message]]:
    from penstock.model import Message

    looked = client.delivery_records(arn, None, 0, 0)
    start, last = max(looked.oldest, looked.end - count), looked.end - 1
    while follow or start <= last:
        answer = client.delivery_records(arn, start, BATCH_COUNT_MAX, POLL_MS if follow else 0)
        if answer.next == start and not follow:
            return  # delivered and gone since we looked
        start = answer.next
        yield [
            Message(record.sequence, record.arrival_ms, base64.b64decode(record.data))
            for record in answer.records
            if follow or record.sequence <= last
        ]
