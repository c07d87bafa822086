"""A jq program as a list of words, strings and brackets: enough to see which names it uses where."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<field>\.[A-Za-z_]\w*)
    |(?P<word>(?:\$\s*)?[A-Za-z_]\w*(?:::\w+)*)
    |(?P<quote>")
    |(?P<open>[(\[{])
    |(?P<close>[)\]}])
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_TEXT = re.compile(r'(?P<text>(?:[^"\\]|\\[^(])*)(?P<end>"|\\\(|\\?\Z)', re.DOTALL)


class Token(NamedTuple):
    kind: str  # field, word, string (without interpolation), interpolated, open, close or other
    text: str
    depth: int  # how many brackets and strings are open around it
    inside: str  # the innermost of them


def tokens_of(program: str) -> list[Token]:
    """Never fails: whether the program is correct is for jq to say."""
    return _Tokenizer(program).tokens


class _Tokenizer:
    def __init__(self, program: str) -> None:
        self.tokens: list[Token] = []
        self._program = program
        self._position = 0
        self._around: list[str] = []
        while self._position < len(program):
            self._next()

    def _next(self) -> None:
        found = _TOKEN.match(self._program, self._position)
        assert found is not None  # it matches any character
        self._position = found.end()
        kind = str(found.lastgroup)
        if kind == "quote":
            self._string()
        elif kind == "open":
            self._add(kind, found[0])
            self._around.append(found[0])
        elif kind == "close":
            self._close(found[0])
        elif kind != "space":
            self._add(kind, re.sub(r"\s", "", found[0]))

    def _add(self, kind: str, text: str) -> None:
        self.tokens.append(Token(kind, text, len(self._around), self._around[-1] if self._around else ""))

    def _string(self) -> None:
        text, end = self._text()
        self._add("interpolated" if end == "\\(" else "string", text)
        if end == "\\(":
            self._around += ['"', "("]

    def _close(self, bracket: str) -> None:
        if self._around:
            self._around.pop()
        if self._around and self._around[-1] == '"':  # back in the string
            if self._text()[1] == "\\(":
                self._around.append("(")
            else:
                self._around.pop()
        else:
            self._add("close", bracket)

    def _text(self) -> tuple[str, str]:
        found = _TEXT.match(self._program, self._position)
        assert found is not None  # it matches nothing, too
        self._position = found.end()
        return found["text"], found["end"]
