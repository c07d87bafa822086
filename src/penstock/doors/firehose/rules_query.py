"""Rules of the jq query that takes partition keys out of records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from penstock.doors.firehose.jq_tokens import Token, tokens_of
from penstock.doors.firehose.refusal import refuse

KEYS_MAX = 50

# What reaches out of the record: files and environment of the machine, other records.
_OUTSIDE = {
    *("env", "$ENV", "input", "inputs", "input_filename", "import", "include", "modulemeta"),
    *("get_search_list", "halt", "halt_error"),
}


def check_query(query: str) -> None:
    """A query must be jq, and must not look at anything but the record."""
    outside = _words_outside(tokens_of(query))
    if outside:
        refuse(f"MetaDataExtraction JQ Query cannot use {', '.join(outside)}: it sees nothing but the record")
    problem = _compile_problem(query)
    if problem:
        refuse(f"MetaDataExtraction JQ Query is invalid: {problem}")


def check_query_keys(query: str, names: Sequence[str]) -> None:
    """The keys that a query gives are those that the prefix names, if its text shows them."""
    keys = query_keys(query)
    if keys is None:
        return
    if len(keys) > KEYS_MAX:
        refuse(f"MetaDataExtraction JQ Query has {len(keys)} keys; at most {KEYS_MAX} are supported")
    unused = [key for key in keys if key not in names]
    if unused:
        refuse(
            "When dynamic partitioning via inline parsing is enabled, you must use all specified dynamic "
            "partitioning key values for partitioning your data source. MetaDataExtraction JQ Query can't contain "
            f"keys that are not present in the S3 Prefix expression: {', '.join(unused)}"
        )
    unknown = [name for name in names if name not in keys]
    if unknown:
        refuse(f"Prefix names keys that MetaDataExtraction JQ Query does not give: {', '.join(unknown)}")


def query_keys(query: str) -> list[str] | None:
    """The keys of the object that the query makes; None if that cannot be seen from its text."""
    tokens = tokens_of(query)
    if len(tokens) < 2 or (tokens[0].text, tokens[-1].text) != ("{", "}"):
        return None
    if any(token.depth == 0 for token in tokens[1:-1]):  # more than one object
        return None
    keys: dict[str, None] = {}
    for entry in _entries(tokens[1:-1]):
        key = _key(entry[0])
        if key is None:
            return None
        keys[key] = None
    return list(keys)


def _entries(tokens: Sequence[Token]) -> list[list[Token]]:
    """What stands between the commas of the outermost object."""
    entries: list[list[Token]] = [[]]
    conditions = 0  # commas between `if` and `end` separate nothing
    for token in tokens:
        entry = entries[-1]
        if token.depth == 1 and entry and token.kind == "word":
            conditions += (token.text == "if") - (token.text == "end")
        if token.depth == 1 and token.text == "," and token.kind == "other" and not conditions:
            entries.append([])
        else:
            entry.append(token)
    return [entry for entry in entries if entry]


def _key(token: Token) -> str | None:
    if token.kind == "word":
        return token.text.removeprefix("$")
    if token.kind == "string":
        try:
            return str(json.loads(f'"{token.text}"'))
        except ValueError:
            return None
    return None


def _words_outside(tokens: Sequence[Token]) -> list[str]:
    found = set()
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.kind == "word" and token.text in _OUTSIDE and not _is_key(before, token):
            found.add(token.text)
    return sorted(found)


def _is_key(before: Token | None, token: Token) -> bool:
    """Whether a word names a field: `{env: 1}` and `{env}` have nothing to do with the environment."""
    if before is None or token.inside != "{" or token.text.startswith("$"):
        return False
    return before.text == "{" if before.kind == "open" else before.text == "," and before.depth == token.depth


@lru_cache(maxsize=64)
def _compile_problem(query: str) -> str:
    import jq

    try:
        jq.compile(query)
    except ValueError as error:
        return str(error).partition("\n")[0].removeprefix("jq: error: ")
    return ""
