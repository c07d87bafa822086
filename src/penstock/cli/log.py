"""penstock log: offline commands on a data directory"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli import exits, output
from penstock.cli.connection import json_option
from penstock.cli.units import format_size, format_time

if TYPE_CHECKING:
    from penstock.log.inspect import FrameReport, SegmentReport

SEGMENT_COLUMNS = ("stream", "segment", "state", "first", "next", "frames", "messages", "size", "problems")
FRAME_ROW = "{:<28} {:>12} {:>14} {:>9} {:>12}  {}"

data_dir_argument = click.argument(
    "data_dir", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DATA_DIR"
)


@click.group()
def log() -> None:
    """Check and show the files of a data directory. No server is needed."""


@log.command()
@data_dir_argument
@json_option
def verify(data_dir: Path, as_json: bool) -> int:
    """Check every frame of every segment against its checksum.

    Nothing is changed. Exit code 5 if something is damaged or missing.
    """
    from penstock.log.inspect import verify as verify_segments

    reports = []
    for report in _with_progress(verify_segments(data_dir), data_dir):
        reports.append(report)
        if as_json:
            output.write_json(_segment_json(report))
    if not as_json:
        _write_segments(reports)
        _write_verdict(reports)
    return exits.CORRUPT if any(_is_damaged(report) for report in reports) else exits.OK


@log.command()
@data_dir_argument
@click.argument("stream", required=False)
@json_option
def inspect(data_dir: Path, stream: str | None, as_json: bool) -> None:
    """Show the segments of all streams, or the frames of one."""
    from penstock.log.inspect import frames
    from penstock.log.inspect import verify as verify_segments

    if stream is not None:
        _write_frames(frames(data_dir, stream), as_json)
        return
    reports = list(verify_segments(data_dir))
    if not as_json:
        _write_segments(reports)
        return
    for report in reports:
        output.write_json(_segment_json(report))


def _is_damaged(report: SegmentReport) -> bool:
    return bool(report.problems or report.gaps)


def _with_progress(reports: Iterator[SegmentReport], data_dir: Path) -> Iterator[SegmentReport]:
    if not sys.stderr.isatty():
        yield from reports
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        total_bytes = sum(path.stat().st_size for path in data_dir.rglob("*") if path.is_file())
        task = progress.add_task("", total=total_bytes)
        for report in reports:
            progress.advance(task, report.size_bytes)
            yield report


def _write_segments(reports: Iterable[SegmentReport]) -> None:
    rows = (
        (
            report.stream,
            report.segment,
            report.state,
            report.first_sequence,
            report.next_sequence,
            report.frames,
            report.messages,
            format_size(report.size_bytes),
            len(report.problems) + len(report.gaps) or "-",
        )
        for report in reports
    )
    output.write_table(SEGMENT_COLUMNS, rows, right_aligned=SEGMENT_COLUMNS[3:])


def _write_verdict(reports: list[SegmentReport]) -> None:
    damaged = [report for report in reports if _is_damaged(report)]
    for report in damaged:
        for problem in report.problems:
            click.echo(f"stream {report.stream}, segment {report.segment}: {problem}", err=True)
        for first, end in report.gaps:
            lost = f"messages {first} to {end - 1} cannot be read"
            click.echo(f"stream {report.stream}, segment {report.segment}: {lost}", err=True)
    messages = sum(report.messages for report in reports)
    if damaged:
        click.echo(
            f"penstock: {len(damaged)} of {len(reports)} segments are damaged; the rest can be read. "
            "Copy the directory before anything else, and check the disk.",
            err=True,
        )
    else:
        click.echo(f"{len(reports)} segments, {messages:,} messages: no damage found", err=True)


def _segment_json(report: SegmentReport) -> dict[str, object]:
    return {
        "stream": report.stream,
        "segment": report.segment,
        "state": report.state,
        "firstSequenceNumber": report.first_sequence,
        "nextSequenceNumber": report.next_sequence,
        "frames": report.frames,
        "messages": report.messages,
        "sizeBytes": report.size_bytes,
        "problems": list(report.problems),
        "gaps": [{"first": first, "next": end} for first, end in report.gaps],
    }


def _write_frames(frames: Iterator[FrameReport], as_json: bool) -> None:
    if not as_json:
        click.echo(FRAME_ROW.format("segment", "offset", "first", "messages", "data bytes", "newest arrival"))
    for frame in frames:
        if as_json:
            output.write_json(_frame_json(frame))
        else:
            arrival = format_time(frame.newest_arrival_ms)
            row = (frame.segment, frame.offset, frame.first_sequence, frame.count, frame.data_bytes, arrival)
            click.echo(FRAME_ROW.format(*row))


def _frame_json(frame: FrameReport) -> dict[str, object]:
    return {
        "segment": frame.segment,
        "offset": frame.offset,
        "firstSequenceNumber": frame.first_sequence,
        "count": frame.count,
        "dataBytes": frame.data_bytes,
        "newestArrivalTime": frame.newest_arrival_ms,
    }
