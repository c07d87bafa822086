"""The query of a SparkSQL transform: one SELECT over the records of a delivery stream, taken apart without Spark.

Each record must be followed from its flush to its object. So the query may choose and change records, one by one; what
brings several together (aggregates, joins, windows, orders) is refused.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from penstock.errors import PenstockError

VIEW = "records"
COLUMNS = ("data", "payload", "sequence_number", "arrival")

_TOKEN = re.compile(
    r"""(?P<skipped>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<quoted>r?'(?:[^'\\]|\\.|'')*'|r?"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*|[0-9][A-Za-z0-9_.]*)
      | (?P<sign>\|>|.)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_TOGETHER = "it brings several records together, and each must be followed from its flush to its object"
_REFUSED = {
    **dict.fromkeys(("GROUP", "HAVING", "DISTINCT", "OVER", "WINDOW", "QUALIFY"), _TOGETHER),
    **dict.fromkeys(("JOIN", "UNION", "INTERSECT", "EXCEPT", "MINUS", "PIVOT", "UNPIVOT"), _TOGETHER),
    **dict.fromkeys(("ORDER", "SORT", "CLUSTER", "DISTRIBUTE"), "records keep the order in which they came"),
    **dict.fromkeys(
        ("LIMIT", "OFFSET", "TABLESAMPLE"), "every record must have its chance; use WHERE to choose"
    ),
    "LATERAL": "a record gives one row; to make several of it, give data an array",
    "SELECT": "the query must be one SELECT, without others inside",
}
# These are clauses only outside of parentheses; inside they are parts of functions, or names.
_OUTSIDE_ONLY = frozenset(
    {"ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "EXCEPT", "MINUS", "DISTINCT"}
)


class BadQuery(PenstockError):
    """The text is not a query that can transform records."""


class RecordQuery(NamedTuple):
    items: tuple[str, ...]  # expressions, each with its alias if it has one
    alias: str  # what the query calls the view
    condition: str | None


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    depth: int

    @property
    def word(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


def parse_query(sql: str) -> RecordQuery:
    """Raises BadQuery, which says what to change."""
    tokens = _tokens(sql)
    if not tokens or tokens[0].word != "SELECT":
        raise BadQuery("the transform must be one SELECT, such as: SELECT upper(data) AS data FROM records")
    _refuse_clauses(tokens)
    source = next((i for i, token in enumerate(tokens) if token.depth == 0 and _is_from(tokens, i)), None)
    if source is None:
        raise BadQuery(f"the query has no FROM; add FROM {VIEW}")
    items = _items(sql, tokens[1:source])
    alias, behind = _view(tokens, source + 1)
    if behind == len(tokens):
        return RecordQuery(items, alias, None)
    if tokens[behind].text == ",":
        raise BadQuery(f"the query must read FROM {VIEW}, and from nothing else: {_TOGETHER}")
    if tokens[behind].word != "WHERE" or behind + 1 == len(tokens):
        raise BadQuery(
            f"{tokens[behind].text!r} cannot stand behind FROM {VIEW}; only WHERE and a condition can"
        )
    last = tokens[-1]
    return RecordQuery(items, alias, sql[tokens[behind + 1].start : last.start + len(last.text)])


def _tokens(sql: str) -> list[_Token]:
    tokens: list[_Token] = []
    depth = 0
    for found in _TOKEN.finditer(sql):
        kind = str(found.lastgroup)
        if kind == "skipped":
            continue
        if found[0] in ("'", '"', "`"):
            raise BadQuery(f"a quote is not closed: {sql[found.start() :][:40]!r}")
        depth -= found[0] == ")"
        tokens.append(_Token(kind, found[0], found.start(), depth))
        depth += found[0] == "("
        if depth < 0:
            break
    if tokens and tokens[-1].text == ";":
        tokens.pop()
    if depth != 0:
        raise BadQuery("the parentheses of the query do not match")
    return tokens


def _refuse_clauses(tokens: list[_Token]) -> None:
    for before, token in pairwise(tokens):
        if token.text in (";", "|>"):
            raise BadQuery(f"{token.text!r} cannot be used: the transform must be one SELECT")
        reason = _REFUSED.get(token.word)
        if reason is None or (token.depth > 0 and token.word in _OUTSIDE_ONLY):
            continue
        if token.word == "DISTINCT" and before is not tokens[0]:
            continue  # IS DISTINCT FROM
        if token.word == "EXCEPT" and before.text == "*":
            raise BadQuery("EXCEPT cannot be used; name the columns instead")
        raise BadQuery(f"{token.word} cannot be used: {reason}")


def _is_from(tokens: list[_Token], position: int) -> bool:
    return tokens[position].word == "FROM" and tokens[position - 1].word != "DISTINCT"


def _items(sql: str, tokens: list[_Token]) -> tuple[str, ...]:
    """What is selected, split at its commas."""
    items: list[str] = []
    group: list[_Token] = []
    for token in [*tokens, _Token("sign", ",", len(sql), 0)]:
        if token.text != "," or token.depth > 0:
            group.append(token)
            continue
        if not group:
            raise BadQuery("an expression is missing between SELECT and FROM")
        if group[-1].text == "*" and (len(group) == 1 or group[-2].text == "."):
            items += COLUMNS
        elif group[0].text == "*":
            raise BadQuery("nothing can stand behind *; name the columns instead")
        else:
            # Up to the last token: a comment behind it would swallow what is put there.
            items.append(sql[group[0].start : group[-1].start + len(group[-1].text)])
        group = []
    return tuple(items)


def _view(tokens: list[_Token], position: int) -> tuple[str, int]:
    """The alias of the view, and the position behind it."""
    if position == len(tokens) or tokens[position].text.strip("`").lower() != VIEW:
        raise BadQuery(f"the query must read FROM {VIEW}, and from nothing else")
    position += 1
    if position < len(tokens) and tokens[position].word == "AS":
        position += 1
        if position == len(tokens):
            raise BadQuery("a name must follow AS")
    if (
        position < len(tokens)
        and tokens[position].kind in ("word", "quoted")
        and tokens[position].word != "WHERE"
    ):
        return tokens[position].text.strip("`"), position + 1
    return VIEW, position
