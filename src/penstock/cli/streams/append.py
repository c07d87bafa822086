"""penstock streams append"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from penstock.cli import output
from penstock.cli.connection import connect, connection_options, json_option
from penstock.cli.escapes import os_bytes, unescape
from penstock.errors import MessageTooLarge, PenstockError

READ_BYTES = 256 * 1024
MESSAGE_BYTES_MAX = 2**30  # what the protocol can carry; the server's own limit is lower


@click.command()
@click.argument("name")
@click.argument("messages", metavar="[MESSAGE]...", nargs=-1)
@click.option("-d", "--delimiter", default=r"\n", show_default=True, help="What ends a message on stdin.")
@click.option("--raw", is_flag=True, help="Take the whole of stdin as one message.")
@click.option("-n", "--numbers", is_flag=True, help="Print the sequence number of each message.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print a summary to stderr.")
@json_option
@connection_options
def append(
    name: str,
    messages: tuple[str, ...],
    delimiter: str,
    raw: bool,
    numbers: bool,
    quiet: bool,
    as_json: bool,
    server: str | None,
    token_file: Path | None,
) -> None:
    """Append messages to a stream.

    The arguments, or stdin line by line if there are none (or just -). Empty lines are skipped, because a message
    cannot be empty. The first message that is refused ends the command; messages that were on their
    way behind it may have been appended.
    """
    if raw and messages not in ((), ("-",)):
        raise click.UsageError("--raw takes stdin, not arguments", click.get_current_context())
    failures: list[PenstockError] = []
    appended = _Appended()
    payloads = _until_refused(_payloads(messages, _delimiter_bytes(delimiter), raw), failures)
    try:
        with connect(server, token_file) as client:
            for result in client.append_many(name, payloads):
                if isinstance(result, PenstockError):
                    failures.append(result)
                    continue
                appended.add(result)
                if as_json:
                    output.write_json({"sequenceNumber": result})
                elif numbers:
                    sys.stdout.write(f"{result}\n")
    finally:
        if appended.count and not (quiet or as_json):
            click.echo(appended.summary(name), err=True)
    if failures:
        raise failures[0]


class _Appended:
    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = -1

    def add(self, sequence_number: int) -> None:
        self.first = sequence_number if self.count == 0 else self.first
        self.last = sequence_number
        self.count += 1

    def summary(self, name: str) -> str:
        if self.count == 1:
            return f"appended 1 message to {name} (sequence number {self.first})"
        return f"appended {self.count:,} messages to {name} (sequence numbers {self.first} to {self.last})"


def _delimiter_bytes(text: str) -> bytes:
    try:
        delimiter = unescape(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--delimiter") from error
    if not delimiter:
        raise click.BadParameter("must not be empty; use --raw for all of stdin", param_hint="--delimiter")
    return delimiter


def _until_refused(payloads: Iterable[bytes | None], failures: list[PenstockError]) -> Iterator[bytes | None]:
    for payload in payloads:
        yield payload
        if failures:
            return
        if payload is None:
            sys.stdout.flush()


def _payloads(messages: tuple[str, ...], delimiter: bytes, raw: bool) -> Iterable[bytes | None]:
    if raw:
        return [sys.stdin.buffer.read()]
    if messages in ((), ("-",)):
        return split_messages(sys.stdin.fileno(), delimiter)
    return [os_bytes(message) for message in messages]


def split_messages(descriptor: int, delimiter: bytes, read_bytes: int = READ_BYTES) -> Iterator[bytes | None]:
    """Messages as they come; None before every wait, so that what was read is sent rather than held."""
    buffer = bytearray()
    while True:
        if not select.select([descriptor], [], [], 0)[0]:
            yield None
        chunk = os.read(descriptor, read_bytes)
        if not chunk:
            break
        # Only what is new can hold the delimiter: a large message is not searched again and again.
        search_from = max(0, len(buffer) - len(delimiter) + 1)
        buffer += chunk
        if buffer.find(delimiter, search_from) >= 0:
            *whole, rest = buffer.split(delimiter)
            yield from (bytes(message) for message in whole if message)
            buffer = bytearray(rest)
        if len(buffer) > MESSAGE_BYTES_MAX:
            raise MessageTooLarge("stdin holds no delimiter within 1 GiB; set the right one with --delimiter")
    if buffer:
        yield bytes(buffer)
