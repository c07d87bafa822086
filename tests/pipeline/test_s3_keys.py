"""Keys of S3 tasks: what Java's DateTimeFormatter prints, and what is not a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.java_time import BadPattern, Instant, format_timestamp
from penstock.pipeline.s3_keys import InvalidKey, resolve_key

AT_MS = 1_609_459_199_987  # 2020-12-31T23:59:59.987Z, a Thursday of the week-based year 2020


def java_says() -> Iterator[tuple[str, int, str]]:
    lines = (Path(__file__).parent / "java_timestamps.tsv").read_text().splitlines()
    header, *rows = [line.split("\t") for line in lines if not line.startswith("#")]
    for pattern, *results in rows:
        for instant_ms, result in zip(header[1:], results, strict=True):
            yield pattern, int(instant_ms), result


def test_every_letter_prints_what_java_prints() -> None:
    different = []
    for pattern, instant_ms, expected in java_says():
        try:
            printed = format_timestamp(pattern, Instant.from_epoch_ms(instant_ms))
        except BadPattern:
            printed = "!"
        if printed != expected:
            different.append((pattern, instant_ms, expected, printed))
    assert not different


@pytest.mark.parametrize(
    ("key", "resolved"),
    [
        ("plain/key.txt", "plain/key.txt"),
        ("a/!{timestamp:yyyy/MM/dd}/b", "a/2020/12/31/b"),
        ("!{timestamp:yyyy}-!{timestamp:HHmmssSSS}.gz", "2020-235959987.gz"),
        ("!{timestamp:yyyyMMdd}", "20201231"),
        ("bang!", "bang!"),
        ("ключ/!{timestamp:y}", "ключ/2020"),
    ],
)
def test_keys(key: str, resolved: str) -> None:
    assert resolve_key(key, AT_MS) == resolved


def test_the_week_based_year_is_that_of_iso() -> None:
    new_year_ms = AT_MS + 13
    assert resolve_key("!{timestamp:yyyy/YYYY/ww}", new_year_ms) == "2021/2020/53"


def test_the_warning_names_the_letter_to_use(caplog: pytest.LogCaptureFixture) -> None:
    resolve_key("!{timestamp:YYYY/MM/dd}", AT_MS)
    resolve_key("!{timestamp:YYYY/MM/dd}", AT_MS)
    assert [record.message.count("use yyyy") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "x" * 1025,
        "é" * 513,  # characters are few enough, bytes are not
        "a b",
        "a\\b",
        "100%",
        "[a]",
        "a?b",
        "a|b",
        "{a}",
        "!{timestamp:}",
        "!{timestamp:yyyy-MM}",
        "!{timestamp}",
        "!{timestamp:yyyy",
        "!{date:yyyy}",
        "!{timestamp:f}",
        "!{timestamp:ddd}",
        "!{timestamp:yyyyyyyyyyyyyyyyyyyy}",
        "!{timestamp:F}",
        "!{timestamp:pp}",
        "\ud800",
    ],
)
def test_what_is_not_a_key(key: str) -> None:
    with pytest.raises(InvalidKey):
        resolve_key(key, AT_MS)


def test_placeholders_may_not_make_a_key_too_long() -> None:
    with pytest.raises(InvalidKey, match="longer than 1024 bytes"):
        resolve_key("x" * 990 + "!{timestamp:zzzz/zzzz}", AT_MS)
