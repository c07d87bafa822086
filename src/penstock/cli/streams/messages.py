"""Messages on their way to stdout."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import POLL_MS, connection_options, json_option
from penstock.cli.escapes import unescape
from penstock.cli.units import format_time
from penstock.errors import NotEnoughMessages

if TYPE_CHECKING:
    from penstock.client import StreamManagerClient
    from penstock.model import Message

BATCH_COUNT_MAX = 1000
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Render = Callable[["Message"], bytes]
Command = Callable[..., Any]

_FIELDS: dict[str, Callable[[str, Message], bytes]] = {
    "n": lambda _, message: b"%d" % message.sequence_number,
    "t": lambda _, message: b"%d" % message.arrival_ms,
    "T": lambda _, message: format_time(message.arrival_ms).encode(),
    "s": lambda stream, _: stream.encode(),
    "S": lambda _, message: b"%d" % len(message.payload),
    "p": lambda _, message: message.payload,
    "%": lambda *_: b"%",
}

FORMAT_HELP = (
    r"Layout of a message: %n sequence number, %t arrival in ms, %T arrival as a date, %s stream, %S payload "
    r"size, %p payload, %% percent; also \n \t \r \0 \\ \xHH.  "
    r"[default: '%p\n'; on a terminal with number and date]"
)

lines_option = click.option(
    "-n", "--lines", "count", type=click.IntRange(min=0), default=10, show_default=True, help="How many."
)
format_option = click.option("-F", "--format", "template", metavar="FORMAT", help=FORMAT_HELP)


def printing_options(command: Command) -> Command:
    """Of all commands that print messages."""
    for option in (
        connection_options,
        json_option,
        format_option,
        click.option("-f", "--follow", is_flag=True, help="Go on with messages as they arrive."),
    ):
        command = option(command)
    return command


def renderer(stream: str, template: str | None, as_json: bool) -> Render:
    if as_json:
        return lambda message: _json_line(stream, message)
    if template is not None:
        return compile_format(stream, template)
    if sys.stdout.isatty():
        return _terminal_line
    return lambda message: message.payload + b"\n"


def compile_format(stream: str, template: str) -> Render:
    parts: list[bytes | Callable[[str, Message], bytes]] = []
    for literal, directive in re.findall(r"([^%]*)(%.|%$)?", template, re.DOTALL):
        try:
            parts.append(unescape(literal))
            if directive:
                parts.append(_FIELDS[directive[1:]])
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--format") from error
        except KeyError as error:
            known = ", ".join(f"%{name}" for name in _FIELDS)
            raise click.BadParameter(f"{directive!r} is not one of {known}", param_hint="--format") from error
    return lambda message: b"".join(
        part if isinstance(part, bytes) else part(stream, message) for part in parts
    )


def write_messages(batches: Iterator[list[Message]], render: Render) -> None:
    for batch in batches:
        sys.stdout.buffer.write(b"".join(map(render, batch)))
        sys.stdout.buffer.flush()


def batches_from(
    client: StreamManagerClient, stream: str, start: int, count: int | None, last: int | None
) -> Iterator[list[Message]]:
    """Messages from `start` on, `count` at most, up to `last`; without `last`, also those yet to come."""
    while (count is None or count > 0) and (last is None or start <= last):
        count_max = BATCH_COUNT_MAX if count is None else min(count, BATCH_COUNT_MAX)
        try:
            batch = client.read(stream, start, 1, count_max, 0 if last is not None else POLL_MS)
        except NotEnoughMessages:
            if last is not None:
                return  # they expired after the end was looked up
            continue
        start = batch[-1].sequence_number + 1
        if last is not None:
            batch = [message for message in batch if message.sequence_number <= last]
        count = None if count is None else count - len(batch)
        yield batch


def first_of_last(client: StreamManagerClient, stream: str, count: int) -> tuple[int, int]:
    """The sequence numbers of the first of the last `count` messages, and of the newest."""
    storage = client.describe(stream)["storageStatus"]
    newest: int = storage["newestSequenceNumber"]
    return max(storage["oldestSequenceNumber"], newest - count + 1), newest


def _json_line(stream: str, message: Message) -> bytes:
    fields = {
        "stream": stream,
        "sequenceNumber": message.sequence_number,
        "ingestTime": message.arrival_ms,
        **output.payload_fields(message.payload),
    }
    return output.json_line(fields)


def _terminal_line(message: Message) -> bytes:
    """Control characters are escaped: a payload must not drive the terminal."""
    text = message.payload.decode("utf-8", "backslashreplace")
    safe = UNPRINTABLE.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    head = f"{message.sequence_number}  {format_time(message.arrival_ms)}"
    if not os.environ.get("NO_COLOR"):
        head = click.style(head, dim=True)
    return f"{head}  {safe}\n".encode()
