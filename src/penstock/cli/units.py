"""Sizes, durations and times as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone

import click

_DURATION_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}


def parse_duration_ms(text: str) -> int:
    parts = re.findall(r"([0-9]+)(ms|[smhdw])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("a duration is a number with a unit (ms, s, m, h, d, w), such as 90s, 7d or 1h30m")
    return sum(int(number) * _DURATION_MS[unit] for number, unit in parts)


def format_duration(duration_ms: int) -> str:
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        number, duration_ms = divmod(duration_ms, _DURATION_MS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"


def format_size(size_bytes: int) -> str:
    """Exact where it is a whole number of units, else to three digits."""
    size: float = size_bytes
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if size == int(size) else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.3g} TiB" if size < 1000 else f"{size:,.0f} TiB"


def format_time(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def size_value(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Callback of an option that takes a size."""
    from penstock.config import parse_size_bytes

    return None if text is None else _converted(parse_size_bytes, text, context, parameter)


def duration_value(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Callback of an option that takes a duration."""
    return None if text is None else _converted(parse_duration_ms, text, context, parameter)


def _converted(
    parse: Callable[[str], int], text: str, context: click.Context, parameter: click.Parameter
) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", context, parameter) from error
