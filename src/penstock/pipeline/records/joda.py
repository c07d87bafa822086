"""Joda-Time patterns, as far as timestamps are parsed with them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from penstock.errors import PenstockError

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:tember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?"
)
_DAY = "(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_PIECE = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")
_NUMBERS = {
    "y": "year",
    "Y": "year",
    "u": "year",
    "M": "month",
    "d": "day",
    "H": "hour",
    "m": "minute",
    "s": "second",
}
_SPARK = re.compile(r"y{4}|M{1,2}|d{1,2}|H{1,2}|m{1,2}|s{1,2}")


class BadPattern(PenstockError):
    """The pattern has a letter that timestamps cannot be parsed with here."""


class JodaPattern:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._pieces = list(_pieces(pattern))
        names: set[str] = set()
        self._regex = re.compile(
            "".join(_regex_of(piece, pattern, names) for piece in self._pieces), re.I | re.A
        )

    @property
    def spark_pattern(self) -> str | None:
        """The same in Spark's letters, for patterns of which both read the same: fixed widths, numbers only."""
        if all(piece.startswith("'") or not piece[0].isalpha() or _is_fixed(piece) for piece in self._pieces):
            return "".join(_spark_piece(piece) for piece in self._pieces)
        return None

    def parse(self, text: str) -> datetime | None:
        """The instant in UTC, or None if the text is not of this pattern."""
        found = self._regex.fullmatch(text)
        if found is None:
            return None
        try:
            return _instant(found.groupdict())
        except (ValueError, OverflowError):
            return None


def _pieces(pattern: str) -> list[str]:
    pieces = [found[0] for found in _PIECE.finditer(pattern)]
    if "".join(pieces) != pattern:
        raise BadPattern(f"the timestamp format {pattern!r} has a quote that is not closed")
    return pieces


def _is_fixed(piece: str) -> bool:
    return piece in ("yyyy", "MM", "dd", "HH", "mm", "ss", "SSS")


def _spark_piece(piece: str) -> str:
    """Brackets and # mean something to Spark where they mean themselves to Joda."""
    return re.sub(r"[\[\]{}#]+", lambda found: f"'{found[0]}'", piece) if not piece.startswith("'") else piece


def _regex_of(piece: str, pattern: str, names: set[str]) -> str:
    if piece.startswith("'"):
        return re.escape(piece[1:-1].replace("''", "'") if piece != "''" else "'")
    if not piece[0].isalpha():
        return re.escape(piece)
    name, regex = _field(piece)
    if not name or name in names:
        raise BadPattern(
            f"the timestamp format {pattern!r} cannot be used: {piece!r} is not known here, or is there twice"
        )
    names.add(name)
    return f"(?P<{name}>{regex})"


def _field(piece: str) -> tuple[str, str]:
    letter, count = piece[0], len(piece)
    if letter == "M" and count >= 3:
        return "month_name", _MONTH
    if letter in _NUMBERS:
        name = _NUMBERS[letter]
        if name == "year":
            return ("short_year", r"\d{2}") if count == 2 else (name, rf"-?\d{{{min(count, 4)},9}}")
        return name, r"\d{1,2}"
    others = {
        "h": ("half_hour", r"\d{1,2}"),
        "K": ("half_hour_zero", r"\d{1,2}"),
        "k": ("hour_one", r"\d{1,2}"),
        "S": ("fraction", r"\d{1,9}"),
        "a": ("half", "am|pm"),
        "E": ("weekday", _DAY),
        "Z": ("offset", r"Z|[+-]\d{2}:?\d{2}"),
    }
    return others.get(letter, ("", ""))


def _instant(parts: dict[str, str]) -> datetime:
    year = int(parts.get("year") or 0) or _full_year(parts.get("short_year")) or 1970
    month = int(parts.get("month") or 0) or _month(parts.get("month_name"))
    fraction = (parts.get("fraction") or "").ljust(6, "0")[:6]
    local = datetime(
        year,
        month,
        int(parts.get("day") or 1),
        _hour(parts),
        int(parts.get("minute") or 0),
        int(parts.get("second") or 0),
        int(fraction),
    )
    return local - _offset(parts.get("offset"))


def _full_year(text: str | None) -> int:
    """The year of two digits that is nearest to 2000."""
    if text is None:
        return 0
    return 2000 + int(text) - (100 if int(text) >= 50 else 0)


def _month(name: str | None) -> int:
    return MONTHS.index(name[:3].lower()) + 1 if name else 1


def _hour(parts: dict[str, str]) -> int:
    if "hour_one" in parts:
        return int(parts["hour_one"]) % 24
    if "half_hour" in parts or "half_hour_zero" in parts:
        hour = int(parts.get("half_hour") or parts.get("half_hour_zero") or 0) % 12
        return hour + (12 if parts.get("half", "").lower() == "pm" else 0)
    return int(parts.get("hour") or 0)


def _offset(text: str | None) -> timedelta:
    if not text or text in ("Z", "z"):
        return timedelta()
    hours, minutes = int(text[1:3]), int(text[-2:])
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if text[0] == "-" else offset
