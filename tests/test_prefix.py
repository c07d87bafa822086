"""Prefixes: the table of Firehose's answers, what is refused, and random parts that can be made again."""

from __future__ import annotations

import re
import subprocess
from datetime import timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.java_time import BadPattern, BadZone, Instant, format_timestamp, zone_named
from penstock.prefix import BadPrefix, CannotEvaluate, MissingKey, parse_prefix

AT_MS = 1_783_951_500_123  # 2026-07-13T14:05:00.123Z
BERLIN = zone_named("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "evaluated"),
    [
        ("", "2026/07/13/14/"),
        ("events/", "events/2026/07/13/14/"),
        ("legacy", "legacy2026/07/13/14/"),
        ("data/!{timestamp:yyyy/MM/dd}/", "data/2026/07/13/"),
        ("!{timestamp:yyyy}!{timestamp:MM}", "202607"),
        ("year=!{timestamp:yyyy}/hour=!{timestamp:HH}/", "year=2026/hour=14/"),
        ("!{timestamp:'y='yyyy'/m='MM/}", "y=2026/m=07/"),
        ("!{timestamp:yyyy-MM-dd'T'HH:mm:ss.SSS}", "2026-07-13T14:05:00.123"),
        ("!{timestamp:EEEE}/!{timestamp:MMM}", "Monday/Jul"),
        ("!", "!2026/07/13/14/"),
        ("a}b{c", "a}b{c2026/07/13/14/"),
        ("ключ/", "ключ/2026/07/13/14/"),
    ],
)
def test_prefixes(text: str, evaluated: str) -> None:
    assert parse_prefix(text).evaluate(AT_MS) == evaluated


@pytest.mark.parametrize(
    ("text", "evaluated"),
    [
        ("", "processing-failed/2026/07/13/14/"),
        ("errors/", "errors/processing-failed/2026/07/13/14/"),
        ("errors", "errorsprocessing-failed/2026/07/13/14/"),
        ("e/!{firehose:error-output-type}/!{timestamp:yyyy}/", "e/processing-failed/2026/"),
    ],
)
def test_prefixes_of_errors(text: str, evaluated: str) -> None:
    assert parse_prefix(text).evaluate(AT_MS, error_output_type="processing-failed") == evaluated


def test_a_time_zone_counts_for_every_expression_and_for_the_hour() -> None:
    assert parse_prefix("").evaluate(AT_MS, BERLIN) == "2026/07/13/16/"
    assert parse_prefix("!{timestamp:HH}!{timestamp:XXX}").evaluate(AT_MS, BERLIN) == "16+02:00"
    midnight = zone_named("Pacific/Kiritimati")  # 14 hours ahead
    assert parse_prefix("!{timestamp:yyyy/MM/dd}/").evaluate(AT_MS, midnight) == "2026/07/14/"


def test_keys_of_partitions() -> None:
    prefix = parse_prefix("c=!{partitionKeyFromQuery:customer}/d=!{partitionKeyFromLambda:device}/")
    query, function = {"customer": "a/b", "unused": ""}, {"device": "7"}
    assert prefix.namespaces == {"partitionKeyFromQuery", "partitionKeyFromLambda"}
    assert (prefix.names("partitionKeyFromQuery"), prefix.names("timestamp")) == (["customer"], [])
    assert prefix.partition(query, function) == ("a/b", "7")
    assert prefix.evaluate(AT_MS, query_keys=query, lambda_keys=function) == "c=a/b/d=7/"
    literal = {"customer": "!{timestamp:yyyy}"}
    assert prefix.evaluate(AT_MS, query_keys=literal, lambda_keys=function) == "c=!{timestamp:yyyy}/d=7/"


@pytest.mark.parametrize("keys", [{}, {"customer": ""}])
def test_records_without_a_key_have_no_place(keys: dict[str, str]) -> None:
    prefix = parse_prefix("!{partitionKeyFromQuery:customer}/")
    with pytest.raises(MissingKey):
        prefix.partition(keys, {"customer": "of the function"})


@pytest.mark.parametrize("value", ["a\nb", "\x00", "\x7f", "\ud800"])
def test_values_that_no_name_can_have(value: str) -> None:
    with pytest.raises(CannotEvaluate, match="characters that names of objects cannot have"):
        parse_prefix("!{partitionKeyFromQuery:k}").partition({"k": value}, {})


def test_random_strings_follow_from_the_seed() -> None:
    prefix = parse_prefix("!{firehose:random-string}/!{firehose:random-string}/")
    evaluated = prefix.evaluate(AT_MS, seed="nonce/data")
    # Or a retry would store its objects beside those of the first attempt.
    assert evaluated == "z6ep5Ay88Ew/c94pKBGPc1p/"
    first, second, rest = evaluated.split("/")
    assert rest == ""
    assert first != second
    assert re.fullmatch("[A-Za-z0-9]{11}", first)
    assert prefix.evaluate(AT_MS, seed="another") != evaluated


def test_what_is_too_long_is_refused() -> None:
    prefix = parse_prefix("!{partitionKeyFromQuery:k}")
    assert len(prefix.evaluate(AT_MS, query_keys={"k": "é" * 512})) == 512
    with pytest.raises(CannotEvaluate, match="has 513 characters; at most 512"):
        prefix.evaluate(AT_MS, query_keys={"k": "é" * 513})
    with pytest.raises(CannotEvaluate, match="at most 512"):
        parse_prefix("x" * 500).evaluate(AT_MS)


def test_the_type_of_an_error_has_a_meaning_for_errors_only() -> None:
    with pytest.raises(CannotEvaluate, match="in the prefix of errors only"):
        parse_prefix("!{firehose:error-output-type}/").evaluate(AT_MS)


@pytest.mark.parametrize(
    "text",
    [
        "!{",
        "!{timestamp}",
        "!{timestamp:}",
        "!{timestamp:yyyy",
        "!{timestamp:yyyy}/!{",
        "!{timestamp:f}",
        "!{timestamp:ddd}",
        "!{timestamp:yyyy'}",
        "!{timestamp:yyyy#}",
        "!{timestamp:[yyyy]}",
        "!{Timestamp:yyyy}",
        "!{date:yyyy}",
        "!{:x}",
        "!{firehose:random}",
        "!{firehose:RANDOM-STRING}",
        "!{partitionKeyFromQuery:}",
        "!{!{timestamp:yyyy}}",
        "!{partitionKeyFromQuery:{a}}",
    ],
)
def test_what_is_not_a_prefix(text: str) -> None:
    with pytest.raises(BadPrefix):
        parse_prefix(text)


@given(st.text())
def test_text_without_expressions_stands_for_itself(text: str) -> None:
    try:
        prefix = parse_prefix(text.replace("!{", ""))
    except BadPrefix:
        pytest.fail("there is no expression in it")
    assert not prefix.has_expressions
    if len(text) < 490:
        assert prefix.evaluate(AT_MS) == text.replace("!{", "") + "2026/07/13/14/"


# -- time -------------------------------------------------------------------------------------------

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/St_Johns", "Pacific/Kiritimati"]
INSTANTS_MS = [0, AT_MS, 1_704_067_199_999, 1_711_846_800_000]
PATTERNS = [
    *("yyyy/MM/dd/HH/", "yyyy-MM-dd-HH-mm-ss", "D", "k", "K a", "h:mm a", "SSS", "n", "A"),
    *(
        "Z",
        "ZZZZ",
        "ZZZZZ",
        "X",
        "XX",
        "XXX",
        "XXXX",
        "XXXXX",
        "x",
        "xx",
        "xxx",
        "xxxx",
        "xxxxx",
        "O",
        "OOOO",
    ),
    *("VV", "E", "EEEE", "EEEEE", "MMM", "MMMM", "LLLL", "QQQ", "q", "G"),
    *("''", "'o''clock'", "yyyy''MM", "''''", "'text'yyyy", "y_M,d;H=m&s", "yyyy'{}'", "u年M"),
]
PROGRAM = """
import java.time.*; import java.time.format.*; import java.util.*;
class Format {
    public static void main(String[] args) throws Exception {
        Scanner in = new Scanner(System.in, "UTF-8").useDelimiter("\\u0000");
        var out = new java.io.PrintStream(System.out, true, "UTF-8");
        while (in.hasNext()) {
            String pattern = in.next();
            var at = Instant.ofEpochMilli(Long.parseLong(in.next())).atZone(ZoneId.of(in.next()));
            out.print(DateTimeFormatter.ofPattern(pattern, Locale.US).format(at) + "\\u0000");
        }
    }
}
"""


def test_time_in_zones_is_what_java_prints(tmp_path: Path) -> None:
    cases = [(p, ms, zone) for p in PATTERNS for ms in INSTANTS_MS for zone in ZONES]
    (tmp_path / "Format.java").write_text(PROGRAM)
    asked = "".join(f"{pattern}\0{ms}\0{zone}\0" for pattern, ms, zone in cases)
    java = subprocess.run(
        ["java", str(tmp_path / "Format.java")],
        input=asked.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    said = java.stdout.decode().split("\0")[:-1]
    ours = [format_timestamp(p, Instant.from_epoch_ms(ms, zone_named(zone))) for p, ms, zone in cases]
    assert len(said) == len(ours)
    assert [(c, a, b) for c, a, b in zip(cases, said, ours, strict=True) if a != b] == []


def test_names_of_zones() -> None:
    assert format_timestamp("z zzzz VV", Instant.from_epoch_ms(0)) == "UTC Coordinated Universal Time UTC"
    assert format_timestamp("z zzzz", Instant.from_epoch_ms(AT_MS, BERLIN)) == "CEST Europe/Berlin"
    assert zone_named("") is zone_named("UTC") is timezone.utc


@pytest.mark.parametrize(
    "name", ["Europe", "Mars/Olympus", "../etc/passwd", "/etc/localtime", "Europe/Berlin/", "é"]
)
def test_what_is_not_a_zone(name: str) -> None:
    with pytest.raises(BadZone, match="use a name such as Europe/Berlin"):
        zone_named(name)


def test_quotes_come_in_pairs() -> None:
    with pytest.raises(BadPattern, match="which come in pairs"):
        format_timestamp("yyyy'T", Instant.from_epoch_ms(0))
