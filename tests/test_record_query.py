"""Queries of SparkSQL transforms, taken apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.record_query import COLUMNS, BadQuery, RecordQuery, parse_query


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT data FROM records", RecordQuery(("data",), "records", None)),
        (
            "select upper(data) as data\nfrom Records r where r.data like '%FROM x%' -- why not",
            RecordQuery(("upper(data) as data",), "r", "r.data like '%FROM x%'"),
        ),
        (
            "SELECT *, extract(YEAR FROM arrival) y FROM records AS `q` WHERE data IS DISTINCT FROM 'it''s';",
            RecordQuery((*COLUMNS, "extract(YEAR FROM arrival) y"), "q", "data IS DISTINCT FROM 'it''s'"),
        ),
        (
            "SELECT r.*, data IS NOT DISTINCT FROM 'a' AS a FROM records r",
            RecordQuery((*COLUMNS, "data IS NOT DISTINCT FROM 'a' AS a"), "r", None),
        ),
        (
            "SELECT /* first, */ concat(data, ',', \"a;b\") AS data -- last\nFROM records WHERE (1 = 1)",
            RecordQuery(("concat(data, ',', \"a;b\") AS data",), "records", "(1 = 1)"),
        ),
        (
            "SELECT array_sort(split(data, r'\\s')) AS data FROM `records`",
            RecordQuery(("array_sort(split(data, r'\\s')) AS data",), "records", None),
        ),
    ],
)
def test_queries(sql: str, expected: RecordQuery) -> None:
    assert parse_query(sql) == expected


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("", "must be one SELECT"),
        ("DELETE FROM records", "must be one SELECT"),
        ("WITH x AS (SELECT 1) SELECT * FROM x", "must be one SELECT"),
        ("SELECT data", "add FROM records"),
        ("SELECT FROM records", "an expression is missing"),
        ("SELECT data, FROM records", "an expression is missing"),
        ("SELECT * EXCEPT (payload) FROM records", "name the columns instead"),
        ("SELECT data FROM logs", "must read FROM records"),
        ("SELECT a.data FROM records a, records b", "from nothing else"),
        ("SELECT a.data FROM records AS a, records b", "from nothing else"),
        (
            "SELECT data FROM records a JOIN records b",
            "JOIN cannot be used: it brings several records together",
        ),
        ("SELECT count(*) FROM records GROUP BY data", "GROUP cannot be used"),
        ("SELECT DISTINCT data FROM records", "DISTINCT cannot be used"),
        ("SELECT sum(1) OVER (ORDER BY data) FROM records", "OVER cannot be used"),
        ("SELECT data FROM records ORDER BY data", "records keep the order"),
        ("SELECT data FROM records LIMIT 5", "use WHERE"),
        ("SELECT data FROM records UNION ALL SELECT data FROM records", "UNION cannot be used"),
        ("SELECT data FROM records WHERE data IN (SELECT 1)", "without others inside"),
        ("SELECT x FROM records LATERAL VIEW explode(split(data, ',')) AS x", "give data an array"),
        ("SELECT data FROM records; DROP TABLE x", "must be one SELECT"),
        ("SELECT data FROM records |> WHERE true", "must be one SELECT"),
        ("SELECT data FROM records WHERE", "only WHERE and a condition"),
        ("SELECT data FROM records r s", "cannot stand behind"),
        ("SELECT (data FROM records", "parentheses"),
        ("SELECT data) FROM records", "parentheses"),
        ("SELECT 'data FROM records", "a quote is not closed"),
        ("SELECT data FROM records AS", "a name must follow AS"),
    ],
)
def test_what_cannot_transform_records(sql: str, reason: str) -> None:
    with pytest.raises(BadQuery, match=reason):
        parse_query(sql)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_query_or_refused(text: str) -> None:
    try:
        query = parse_query(f"SELECT {text} FROM records")
    except BadQuery:
        return
    assert query.items
