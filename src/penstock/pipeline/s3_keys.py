"""Keys of S3 objects: `!{timestamp:PATTERN}`, with the letters of Java's DateTimeFormatter, in UTC."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple

from penstock.errors import PenstockError

logger = logging.getLogger(__name__)

KEY_LENGTH_MAX = 1024
YEAR_DIGITS_MAX = 19

_KEY = re.compile(r"(?:[^\\{ }%`\[\]\"'><~#^?|]|!\{[a-zA-Z]+:[a-zA-Z/]+\})*")
_PLACEHOLDER = re.compile(r"!\{([a-zA-Z]+):([a-zA-Z/]+)\}")
_RUN = re.compile(r"([A-Za-z])\1*|/")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_QUARTERS = ("1st quarter", "2nd quarter", "3rd quarter", "4th quarter")


class InvalidKey(PenstockError):
    """A key breaks the rules of S3 task keys, or has a placeholder that means nothing."""


class Instant(NamedTuple):
    """A moment in UTC. Finer than a millisecond there is nothing."""

    at: datetime
    millisecond: int

    @classmethod
    def from_epoch_ms(cls, epoch_ms: int) -> Instant:
        seconds, millisecond = divmod(epoch_ms, 1000)
        return cls(_EPOCH + timedelta(seconds=seconds), millisecond)

    @property
    def millisecond_of_day(self) -> int:
        at = self.at
        return ((at.hour * 60 + at.minute) * 60 + at.second) * 1000 + self.millisecond


def resolve_key(key: str, epoch_ms: int) -> str:
    """The key with its placeholders filled in. The same key and instant always give the same."""
    if not 1 <= len(key) <= KEY_LENGTH_MAX:
        raise InvalidKey(f"the key has {len(key)} characters; it must have 1 to {KEY_LENGTH_MAX}")
    if _KEY.fullmatch(key) is None:
        raise InvalidKey(
            f"the key {key!r} has a character that keys may not have (one of \\ {{ }} % ` [ ] \" ' > < ~ # ^ ? | "
            "or a space), or a placeholder that is not of the form !{timestamp:PATTERN} with letters and /"
        )
    instant = Instant.from_epoch_ms(epoch_ms)
    resolved = _PLACEHOLDER.sub(lambda found: _fill(found[1], found[2], instant), key)
    try:
        size_bytes = len(resolved.encode())
    except UnicodeEncodeError as error:
        raise InvalidKey(f"the key {key!r} is not valid Unicode") from error
    if size_bytes > KEY_LENGTH_MAX:
        raise InvalidKey(f"the key {resolved[:80]!r}… is longer than {KEY_LENGTH_MAX} bytes")
    return resolved


def _fill(namespace: str, pattern: str, instant: Instant) -> str:
    if namespace != "timestamp":
        raise InvalidKey(f"the placeholder !{{{namespace}:…}} is not known; only !{{timestamp:PATTERN}} is")
    return format_timestamp(pattern, instant)


def format_timestamp(pattern: str, instant: Instant) -> str:
    """Format as DateTimeFormatter does with English names and ISO weeks."""
    if "Y" in pattern:
        _warn_of_week_based_year(pattern)
    return "".join(_format_run(found[0], pattern, instant) for found in _RUN.finditer(pattern))


@lru_cache(maxsize=256)
def _warn_of_week_based_year(pattern: str) -> None:
    """Once for each pattern and process."""
    logger.warning(
        "!{timestamp:%s}: Y is the week-based year, which differs from the calendar year around New Year; "
        "use yyyy for the calendar year",
        pattern,
    )


def _format_run(run: str, pattern: str, instant: Instant) -> str:
    if run == "/":
        return run
    formatter = _LETTERS.get(run[0])
    if formatter is None:
        raise InvalidKey(f"!{{timestamp:{pattern}}}: the letter {run[0]} has no meaning here")
    text = formatter(instant, len(run))
    if text is None:
        raise InvalidKey(f"!{{timestamp:{pattern}}}: {len(run)} times the letter {run[0]} has no meaning")
    return text


# Each takes the instant and how often the letter stands there; None when that count has no meaning.
Formatter = Callable[[Instant, int], "str | None"]


def _number(value_of: Callable[[Instant], int], count_max: int) -> Formatter:
    """At least as many digits as letters."""

    def formatted(instant: Instant, count: int) -> str | None:
        return f"{value_of(instant):0{count}d}" if count <= count_max else None

    return formatted


def _year(value_of: Callable[[Instant], int]) -> Formatter:
    def formatted(instant: Instant, count: int) -> str | None:
        if count == 2:
            return f"{value_of(instant) % 100:02d}"
        return f"{value_of(instant):0{count}d}" if count <= YEAR_DIGITS_MAX else None

    return formatted


def _named(value_of: Callable[[Instant], int], names: list[str], digits_max: int) -> Formatter:
    """A number while there are few letters, then a short name, the full name, and one letter."""

    def formatted(instant: Instant, count: int) -> str | None:
        value = value_of(instant)
        if count <= digits_max:
            return f"{value:0{count}d}"
        name = names[value - 1]
        return {1: name[:3], 2: name[:3], 3: name[:3], 4: name, 5: name[0]}.get(count)

    return formatted


def _choice(texts: dict[int, str]) -> Formatter:
    """Texts that depend on nothing but the count: we are always in UTC and after Christ."""
    return lambda instant, count: texts.get(count)


def _quarter(instant: Instant, count: int) -> str | None:
    quarter = (instant.at.month + 2) // 3
    texts = {1: str(quarter), 2: f"0{quarter}", 3: f"Q{quarter}", 4: _QUARTERS[quarter - 1], 5: str(quarter)}
    return texts.get(count)


def _fraction(instant: Instant, count: int) -> str | None:
    return f"{instant.millisecond:03d}000000"[:count] if count <= 9 else None


def _half_day(instant: Instant, count: int) -> str | None:
    return ("AM" if instant.at.hour < 12 else "PM") if count == 1 else None


def _week_of_month(instant: Instant) -> int:
    """Weeks begin on Monday; the first one that has four days of the month is number 1."""
    first_weekday = (instant.at.weekday() - (instant.at.day - 1)) % 7
    weeks = (instant.at.day - 1 + first_weekday) // 7
    return weeks + 1 if first_weekday <= 3 else weeks


def _weekday_standalone(instant: Instant, count: int) -> str | None:
    return None if count == 2 else _weekday_number(instant, count)


_weekday_number = _named(lambda instant: instant.at.isoweekday(), _DAYS, 2)
_month = _named(lambda instant: instant.at.month, _MONTHS, 2)
_OFFSET_Z = dict.fromkeys(range(1, 6), "Z")
_ZONE_NAMES = {**dict.fromkeys(range(1, 4), "UTC"), 4: "Coordinated Universal Time"}

_LETTERS: dict[str, Formatter] = {
    "y": _year(lambda instant: instant.at.year),
    "u": _year(lambda instant: instant.at.year),
    "Y": _year(lambda instant: instant.at.isocalendar()[0]),
    "M": _month,
    "L": _month,
    "d": _number(lambda instant: instant.at.day, 2),
    "D": _number(lambda instant: instant.at.timetuple().tm_yday, 3),
    "H": _number(lambda instant: instant.at.hour, 2),
    "k": _number(lambda instant: instant.at.hour or 24, 2),
    "K": _number(lambda instant: instant.at.hour % 12, 2),
    "h": _number(lambda instant: instant.at.hour % 12 or 12, 2),
    "m": _number(lambda instant: instant.at.minute, 2),
    "s": _number(lambda instant: instant.at.second, 2),
    "S": _fraction,
    "n": _number(lambda instant: instant.millisecond * 1_000_000, YEAR_DIGITS_MAX),
    "A": _number(lambda instant: instant.millisecond_of_day, YEAR_DIGITS_MAX),
    "N": _number(lambda instant: instant.millisecond_of_day * 1_000_000, YEAR_DIGITS_MAX),
    "a": _half_day,
    "E": _named(lambda instant: instant.at.isoweekday(), _DAYS, 0),
    "e": _weekday_number,
    "c": _weekday_standalone,
    "w": _number(lambda instant: instant.at.isocalendar()[1], 2),
    "W": _number(_week_of_month, 1),
    "Q": _quarter,
    "q": _quarter,
    "G": _choice({1: "AD", 2: "AD", 3: "AD", 4: "Anno Domini", 5: "A"}),
    "Z": _choice({1: "+0000", 2: "+0000", 3: "+0000", 4: "GMT", 5: "Z"}),
    "X": _choice(_OFFSET_Z),
    "x": _choice({1: "+00", 2: "+0000", 3: "+00:00", 4: "+0000", 5: "+00:00"}),
    "O": _choice({1: "GMT", 4: "GMT"}),
    "z": _choice(_ZONE_NAMES),
    "v": _choice({1: "UTC", 4: "Coordinated Universal Time"}),
    "V": _choice({2: "UTC"}),
}
