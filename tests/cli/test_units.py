from __future__ import annotations

import pytest

from penstock.cli.escapes import unescape
from penstock.cli.units import format_duration, format_size, format_time, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
    ],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-1d", "1.5h", "1y", "7dd", "x7d"])
def test_not_durations(text: str) -> None:
    with pytest.raises(ValueError, match="1h30m"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**28, "256 MiB"),
        (2**40, "1 TiB"),
        (2**63 - 1, "8,388,608 TiB"),
    ],
)
def test_sizes_are_shown_short(size_bytes: int, shown: str) -> None:
    assert format_size(size_bytes) == shown


def test_times_are_shown_in_utc_with_milliseconds() -> None:
    assert format_time(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        (r"\n", b"\n"),
        (r"a\tb\\n", b"a\tb\\n"),
        (r"\0\xFf", b"\0\xff"),
        ("é", "é".encode()),
        ("\udcff", b"\xff"),
    ],
)
def test_escapes(text: str, raw: bytes) -> None:
    assert unescape(text) == raw


@pytest.mark.parametrize("text", ["\\", r"\q", r"\x1", r"\xzz"])
def test_not_escapes(text: str) -> None:
    with pytest.raises(ValueError, match="is not an escape"):
        unescape(text)
