"""Keys of S3 objects: `!{timestamp:PATTERN}`, with the letters of Java's DateTimeFormatter, in UTC."""

from __future__ import annotations

import re

from penstock.errors import PenstockError
from penstock.java_time import BadPattern, Instant, format_timestamp

KEY_LENGTH_MAX = 1024

_KEY = re.compile(r"(?:[^\\{ }%`\[\]\"'><~#^?|]|!\{[a-zA-Z]+:[a-zA-Z/]+\})*")
_PLACEHOLDER = re.compile(r"!\{([a-zA-Z]+):([a-zA-Z/]+)\}")


class InvalidKey(PenstockError):
    """A key breaks the rules of S3 task keys, or has a placeholder that means nothing."""


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
    try:
        return format_timestamp(pattern, instant)
    except BadPattern as error:
        raise InvalidKey(str(error)) from error
