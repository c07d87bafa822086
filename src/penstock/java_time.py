"""Timestamps by the pattern letters of Java's DateTimeFormatter, with English names and ISO weeks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

logger = logging.getLogger(__name__)

YEAR_DIGITS_MAX = 19

_RUN = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|.", re.DOTALL)
_RESERVED = frozenset("'{}#[]")  # Java keeps them for itself; optional sections make sense for parsing only
_ZONE = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_QUARTERS = ("1st quarter", "2nd quarter", "3rd quarter", "4th quarter")


class BadPattern(ValueError):
    """A pattern that DateTimeFormatter would not take, or that has no meaning here."""


class BadZone(ValueError):
    """There is no time zone of that name."""


@lru_cache(maxsize=256)
def zone_named(name: str) -> tzinfo:
    """The time zone that the tz database has under this name; UTC if it is empty."""
    if name in ("", "UTC"):
        return timezone.utc
    try:
        if _ZONE.fullmatch(name) is None:
            raise ValueError(name)
        return ZoneInfo(name)
    except (OSError, KeyError, ValueError) as error:  # a folder of the database, nothing at all, not a zone
        raise BadZone(f"there is no time zone {name!r}; use a name such as Europe/Berlin") from error


class Instant(NamedTuple):
    """A moment as clocks of a time zone show it. Finer than a millisecond there is nothing."""

    at: datetime
    millisecond: int

    @classmethod
    def from_epoch_ms(cls, epoch_ms: int, zone: tzinfo = timezone.utc) -> Instant:
        seconds, millisecond = divmod(epoch_ms, 1000)
        return cls((_EPOCH + timedelta(seconds=seconds)).astimezone(zone), millisecond)

    @property
    def millisecond_of_day(self) -> int:
        at = self.at
        return ((at.hour * 60 + at.minute) * 60 + at.second) * 1000 + self.millisecond


def format_timestamp(pattern: str, instant: Instant) -> str:
    """As DateTimeFormatter does it. Text in single quotes stands for itself, '' for a quote."""
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
    if run in _RESERVED:
        raise BadPattern(
            f"!{{timestamp:{pattern}}}: put the character {run} in single quotes, which come in pairs"
        )
    if run[0] == "'":
        return run[1:-1].replace("''", "'") or "'"
    if not (run[0].isascii() and run[0].isalpha()):
        return run
    formatter = _LETTERS.get(run[0])
    if formatter is None:
        raise BadPattern(f"!{{timestamp:{pattern}}}: the letter {run[0]} has no meaning here")
    text = formatter(instant, len(run))
    if text is None:
        raise BadPattern(f"!{{timestamp:{pattern}}}: {len(run)} times the letter {run[0]} has no meaning")
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


def _era(instant: Instant, count: int) -> str | None:
    return {1: "AD", 2: "AD", 3: "AD", 4: "Anno Domini", 5: "A"}.get(count)


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


def _offset(instant: Instant) -> tuple[str, int, int]:
    """Sign, hours and minutes east of UTC. Offsets of today have no seconds."""
    minutes = (instant.at.utcoffset() or timedelta()) // timedelta(minutes=1)
    return ("-" if minutes < 0 else "+", *divmod(abs(minutes), 60))


def _offset_iso(instant: Instant, count: int) -> str | None:
    sign, hours, minutes = _offset(instant)
    short = f"{sign}{hours:02d}" + (f"{minutes:02d}" if minutes else "")
    compact, colons = f"{sign}{hours:02d}{minutes:02d}", f"{sign}{hours:02d}:{minutes:02d}"
    return {1: short, 2: compact, 3: colons, 4: compact, 5: colons}.get(count)


def _offset_iso_with_z(instant: Instant, count: int) -> str | None:
    return "Z" if 1 <= count <= 5 and _is_at_utc(instant) else _offset_iso(instant, count)


def _offset_rfc(instant: Instant, count: int) -> str | None:
    if count <= 3:
        return _offset_iso(instant, 2)
    return _offset_localized(instant, 4) if count == 4 else _offset_iso_with_z(instant, count)


def _offset_localized(instant: Instant, count: int) -> str | None:
    sign, hours, minutes = _offset(instant)
    if count not in (1, 4):
        return None
    if _is_at_utc(instant):
        return "GMT"
    short = f"GMT{sign}{hours}" + (f":{minutes:02d}" if minutes else "")
    return short if count == 1 else f"GMT{sign}{hours:02d}:{minutes:02d}"


def _is_at_utc(instant: Instant) -> bool:
    return not instant.at.utcoffset()


def _zone_name(instant: Instant, count: int) -> str | None:
    """Java has its own names of zones; here, but for UTC, they are those of the tz database."""
    if count > 4:
        return None
    if instant.at.tzinfo is timezone.utc:
        return "Coordinated Universal Time" if count == 4 else "UTC"
    return str(instant.at.tzinfo) if count == 4 else instant.at.tzname()


def _zone_name_generic(instant: Instant, count: int) -> str | None:
    return _zone_name(instant, count) if count in (1, 4) else None


def _zone_id(instant: Instant, count: int) -> str | None:
    return str(instant.at.tzinfo) if count == 2 else None


_weekday_number = _named(lambda instant: instant.at.isoweekday(), _DAYS, 2)
_month = _named(lambda instant: instant.at.month, _MONTHS, 2)

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
    "G": _era,
    "Z": _offset_rfc,
    "X": _offset_iso_with_z,
    "x": _offset_iso,
    "O": _offset_localized,
    "z": _zone_name,
    "v": _zone_name_generic,
    "V": _zone_id,
}
