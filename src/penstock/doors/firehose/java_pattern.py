"""Regular expressions of the service model, with the meaning that Java gives them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_DOT = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|(\.)", re.DOTALL)
_NOT_END_OF_LINE = r"[^\n\r\u0085\u2028\u2029]"
_ADDRESS = re.compile(r"arn:|https:|jdbc:|s3:|.*snowflakecomputing")
_ANY_JDBC_HOST = r"jdbc:(redshift|postgresql)://[^/\s]+/[a-zA-Z0-9_$-]+"

# Where AWS prints another pattern than the model's; they mean the same.
_PRINTED = {"FileExtension": r"^(|\.[0-9a-z!\-_.*'()]+)$"}


class JavaPattern:
    def __init__(self, pattern: str, printed: str | None = None) -> None:
        self.rule = f"Member must satisfy regular expression pattern: {printed or pattern}"
        self._fullmatch = _compile(pattern)

    def matches(self, text: str) -> bool:
        return self._fullmatch(text) is not None


def pattern_for(shape: Any, *, lenient: bool, relaxed_urls: bool) -> JavaPattern | None:
    """What values of this shape must look like, if anything."""
    pattern = shape.metadata.get("pattern")
    if pattern is None or (lenient and _ADDRESS.match(pattern)):
        return None
    if relaxed_urls and pattern.startswith("https:"):
        pattern = "https?:" + pattern.removeprefix("https:")
    elif relaxed_urls and pattern.startswith("jdbc:"):
        pattern = _ANY_JDBC_HOST
    return JavaPattern(pattern, _PRINTED.get(shape.name))


def _compile(pattern: str) -> Callable[[str], Any]:
    if r"\p{" in pattern:
        import regex  # large, and needed by tags alone

        in_unicode: Callable[[str], Any] = regex.compile(pattern).fullmatch
        return in_unicode
    # Java's dot stops at every end of line, not only at \n; its \w, \d and \s are ASCII.
    dotted = _DOT.sub(lambda found: _NOT_END_OF_LINE if found[1] else found[0], pattern)
    return re.compile(dotted, re.ASCII).fullmatch
