"""Types as Hive, Glue and Spark's DDL write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.hive_types import (
    Array,
    BadType,
    Column,
    HiveType,
    Map,
    Scalar,
    Struct,
    parse_columns,
    parse_type,
)

names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
scalars = st.one_of(
    st.sampled_from(["boolean", "tinyint", "int", "bigint", "double", "string", "timestamp", "date"]).map(
        Scalar
    ),
    st.tuples(st.integers(1, 38), st.integers(0, 38))
    .filter(lambda sizes: sizes[1] <= sizes[0])
    .map(lambda sizes: Scalar("decimal", sizes)),
    st.integers(1, 255).map(lambda length: Scalar("char", (length,))),
)
types: st.SearchStrategy[HiveType] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        inner.map(Array),
        st.tuples(scalars, inner).map(lambda pair: Map(*pair)),
        st.lists(st.tuples(names, inner), min_size=1, max_size=3, unique_by=lambda field: field[0]).map(
            lambda fields: Struct(tuple(Column(*field) for field in fields))
        ),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(types)
def test_what_is_written_is_read_again(type_: HiveType) -> None:
    assert parse_type(str(type_)) == type_


def test_a_glue_type() -> None:
    assert parse_type("array<struct<id:bigint,price:decimal(10,2)>>") == Array(
        Struct((Column("id", Scalar("bigint")), Column("price", Scalar("decimal", (10, 2)))))
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INTEGER", Scalar("int")),
        ("long", Scalar("bigint")),
        ("real", Scalar("float")),
        ("double precision", Scalar("double")),
        ("decimal", Scalar("decimal", (10, 0))),
        ("numeric(5)", Scalar("decimal", (5, 0))),
        (" Map< String , Array<Int> > ", Map(Scalar("string"), Array(Scalar("int")))),
        ("struct<`odd name`: int COMMENT 'it''s; fine', b: string>", None),
    ],
)
def test_other_ways_to_write_it(text: str, expected: HiveType | None) -> None:
    found = parse_type(text)
    assert expected is None or found == expected


def test_columns_in_ddl() -> None:
    text = """
      -- what devices send
      id BIGINT NOT NULL COMMENT 'it''s unique, mostly',  -- since 2024
      `odd name` STRUCT<a: INT, b: STRING>,
      at TIMESTAMP
    """
    assert parse_columns(text) == (
        Column("id", Scalar("bigint")),
        Column("odd name", Struct((Column("a", Scalar("int")), Column("b", Scalar("string"))))),
        Column("at", Scalar("timestamp")),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("set<string>", "use an array"),
        ("uniontype<int,string>", "use a struct"),
        ("array<int", "'>' is expected where 'the end' stands"),
        ("array<int>>", "'>' is too much"),
        ("varchar", "a length of 1 to 65535"),
        ("char(256)", "a length of 1 to 255"),
        ("varchar(foo)", "a number is expected where 'foo' stands"),
        ("decimal(39,1)", "a precision of 1 to 38"),
        ("decimal(5,6)", "a scale of at most that"),
        ("map<array<int>,int>", "must be of a plain type"),
        ("struct<a:int,A:int>", "'A' is there twice"),
        ("struct<:int>", "the name of a column is expected"),
        ("money", "'money' is not a type"),
        ("", "'the end' is not a type"),
        ("int 'x", "is not a type or a list of columns"),
    ],
)
def test_what_is_no_type(text: str, reason: str) -> None:
    with pytest.raises(BadType, match=reason.replace("(", r"\(").replace(")", r"\)")):
        parse_type(text)


@pytest.mark.parametrize(("text", "reason"), [("", "no columns"), ("a int, a string", "'a' is there twice")])
def test_what_is_no_list_of_columns(text: str, reason: str) -> None:
    with pytest.raises(BadType, match=reason):
        parse_columns(text)


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique_by=str.lower))
def test_any_name_of_a_field_is_read_again(names: list[str]) -> None:
    """Types travel as text."""
    made = Struct(tuple(Column(name, Array(Scalar("int"))) for name in names))
    assert parse_type(str(made)) == made
