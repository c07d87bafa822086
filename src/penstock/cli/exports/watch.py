"""Looking at exports again and again: bars on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.exports.view import COLUMNS, to_json, to_row, upload_of

if TYPE_CHECKING:
    from rich.progress import TaskID

    from penstock.export_view import ExportView

INTERVAL_S = 0.5

watch_option = click.option("-w", "--watch", is_flag=True, help="Go on until Ctrl-C, showing what changes.")

Key = tuple[str, str]


def watch(look: Callable[[], list[ExportView]], as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        _write_changes(look, as_json)
    else:
        _show_bars(look)


def _write_changes(look: Callable[[], list[ExportView]], as_json: bool) -> None:
    if not as_json:
        sys.stdout.write("\t".join(COLUMNS) + "\n")
    for view in _changes(look):
        if as_json:
            output.write_json(to_json(view))
        else:
            sys.stdout.write("\t".join(map(str, to_row(view))) + "\n")
        sys.stdout.flush()


def _changes(look: Callable[[], list[ExportView]]) -> Iterator[ExportView]:
    seen: dict[Key, tuple[object, ...]] = {}
    while True:
        views = look()
        for view in views:
            row = to_row(view)
            if seen.get((view.stream, view.identifier)) != row:
                yield view
                seen[view.stream, view.identifier] = row
        time.sleep(INTERVAL_S)


def _show_bars(look: Callable[[], list[ExportView]]) -> None:
    """One bar an export: of what waited when the watch began and came since, how much is exported."""
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        TextColumn("{task.fields[state]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[upload]}"),
        TextColumn("{task.fields[rate]}", justify="right"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[error]}"),
    )
    began: dict[Key, int] = {}
    bars: dict[Key, TaskID] = {}
    with Progress(*columns) as progress:
        while True:
            views = look()
            for key in bars.keys() - {(view.stream, view.identifier) for view in views}:
                progress.remove_task(bars.pop(key))
            for view in views:
                key = view.stream, view.identifier
                began[key] = min(began.get(key, view.position), view.position)  # a rewind begins anew
                if key not in bars:
                    label = escape(f"{view.stream} → {view.identifier}")
                    bars[key] = progress.add_task(label, state="", upload="", rate="", error="")
                done = view.position - began[key]
                progress.update(
                    bars[key],
                    completed=done + view.upload_bytes / max(1, view.upload_total_bytes),
                    upload=upload_of(view) if view.upload_total_bytes else "",
                    total=done + view.waiting_messages,
                    state=view.state,
                    error=escape(view.error),
                )
                speed = progress.tasks[progress.task_ids.index(bars[key])].speed
                progress.update(bars[key], rate=f"{speed:,.0f}/s" if speed else "")
            time.sleep(INTERVAL_S)
