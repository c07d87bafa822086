"""What goes to stdout: tables for people, tab-separated lines for pipes, JSON for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def json_line(value: Any) -> bytes:
    """UTF-8, whatever the locale says."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write_json(value: Any) -> None:
    sys.stdout.buffer.write(json_line(value))


def payload_fields(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}


def write_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], right_aligned: Sequence[str] = ()
) -> None:
    if not sys.stdout.isatty():
        sys.stdout.write("\t".join(columns) + "\n")
        sys.stdout.writelines("\t".join(map(str, row)) + "\n" for row in rows)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right_aligned else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console().print(table)


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, object]]:
    """The leaves of something nested, by their paths."""
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from flattened(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            yield from flattened(item, f"{path}[{number}]")
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


def write_properties(properties: Iterable[tuple[str, object]]) -> None:
    if not sys.stdout.isatty():
        sys.stdout.writelines(f"{name}\t{value}\n" for name, value in properties)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in properties:
        table.add_row(Text(name, style="bold"), Text(str(value)))
    Console().print(table)
