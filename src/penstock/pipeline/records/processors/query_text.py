"""What can be told of a jq query by reading it: which fields it needs, and whether it certainly ends."""

from __future__ import annotations

import re
from collections.abc import Sequence

_STRING = r'"(?:[^"\\]|\\[^(])*"'
_NAME = r"[A-Za-z_]\w*"
_TOKEN = re.compile(rf"\s+|{_STRING}|{_NAME}|[0-9.]+|[^\s\"#$\\]", re.ASCII)
_PATH = re.compile(rf"\. ({_NAME})(?: \?)?(?: \. {_NAME}(?: \?)?)*", re.ASCII)
_OPENING = frozenset("{[(")
_CLOSING = frozenset("}])")
# What takes no longer than the record is long, whatever it is given. Not here: what calls itself or counts (range,
# repeat, until, recurse), patterns, and what makes much of little ("x" * 1e9).
# fmt: off
_ENDING = frozenset({
    "and", "or", "not", "if", "then", "elif", "else", "end", "true", "false", "null", "try", "catch", "empty", "error",
    "select", "type", "tostring", "tonumber", "tojson", "fromjson", "length", "utf8bytelength", "ascii_downcase",
    "ascii_upcase", "ltrimstr", "rtrimstr", "startswith", "endswith", "split", "join", "floor", "ceil", "round", "fabs",
    "has", "keys", "first", "last", "min", "max", "add", "any", "all", "contains", "inside", "index", "rindex", "now",
    "gmtime", "mktime", "strftime", "strptime", "date", "todate", "fromdate", "todateiso8601", "fromdateiso8601",
})
# fmt: on
_ENTRY_TOKENS_MAX = 60
_ENTRY_PIPES_MAX = 4  # each may see all that is before it several times


def certainly_ends(query: str) -> bool:
    """No record can make it run for ever, or for very long. False where this is not sure."""
    tokens = _tokens(query)
    if not tokens:
        return False
    is_object = tokens[0] == "{" and tokens[-1] == "}"
    entries = _entries(tokens[1:-1]) if is_object else [tokens]
    return entries is not None and all(map(_entry_ends, entries))


def _entry_ends(tokens: Sequence[str]) -> bool:
    if len(tokens) > _ENTRY_TOKENS_MAX or tokens.count("|") > _ENTRY_PIPES_MAX:
        return False
    before = ["", *tokens[:-1]]
    after = [*tokens[1:], ""]
    return all(map(_token_ends, before, tokens, after))


def _token_ends(before: str, text: str, after: str) -> bool:
    if text[0].isalpha() or text[0] == "_":
        is_key = after == ":" and before in ("", "{", ",")
        return text in _ENDING or before in (".", "@") or is_key
    if text == "[":
        return after != "]"  # all elements, perhaps of several arrays, each with each
    if text == "=":
        # It compares. What assigns may make arrays of any length.
        return after == "=" or before in ("=", "!", "<", ">")
    return text not in ("*", ";", "{") and ".." not in text


def fields_used(query: str) -> list[str] | None:
    """The fields of the record that an object of plain paths reads, such as {year: .ts | strftime("%Y")}.

    None where this is not sure: then jq gets the whole record. What stands behind the first | of a value sees
    only what the path leads to, whatever it does.
    """
    tokens = _tokens(query)
    if tokens is None or len(tokens) < 2 or tokens[0] != "{" or tokens[-1] != "}":
        return None
    entries = _entries(tokens[1:-1])
    fields = [None] if entries is None else [_field(entry) for entry in entries]
    found = [field for field in fields if field is not None]
    return list(dict.fromkeys(found)) if len(found) == len(fields) else None


def _tokens(query: str) -> list[str] | None:
    tokens = []
    at = 0
    while at < len(query):
        token = _TOKEN.match(query, at)
        if token is None:  # a comment, a variable, text with a query inside
            return None
        if not token[0].isspace():
            tokens.append(token[0])
        at = token.end()
    return tokens


def _entries(tokens: Sequence[str]) -> list[list[str]] | None:
    """The tokens between commas that stand in no brackets."""
    entries: list[list[str]] = [[]]
    opened = 0
    for text in tokens:
        opened += (text in _OPENING) - (text in _CLOSING)
        if opened < 0:
            return None
        if text == "," and not opened:
            entries.append([])
        else:
            entries[-1].append(text)
    return entries


def _field(entry: Sequence[str]) -> str | None:
    if entry[1:2] != [":"]:
        return None
    value = entry[2:]
    while value and _in_brackets(value):
        value = value[1:-1]
    path = value[: value.index("|")] if "|" in value else value
    match = _PATH.fullmatch(" ".join(path))
    return match and match[1]


def _in_brackets(value: Sequence[str]) -> bool:
    return value[0] == "(" and value[-1] == ")" and _entries(value[1:-1]) is not None
