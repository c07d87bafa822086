from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.tags import Tags, page, tags_from

some_tags = st.dictionaries(st.text(min_size=1, max_size=3), st.none() | st.text(max_size=3), max_size=50)


@given(some_tags, st.integers(1, 50))
def test_pages_give_every_tag_once_in_order(tags: Tags, limit: int) -> None:
    seen: list[dict[str, str]] = []
    start: str | None = None
    more = True
    while more:
        shown, more = page(tags, start, limit)
        assert len(shown) <= limit
        seen += shown
        start = shown[-1]["Key"] if shown else None
    assert tags_from(seen) == tags
    assert [tag["Key"] for tag in seen] == list(tags)


def test_an_unknown_start_begins_at_the_beginning() -> None:
    tags: Tags = {"a": "1", "b": None}
    assert page(tags, "unknown", 1) == ([{"Key": "a", "Value": "1"}], True)
    assert page(tags, "a", 50) == ([{"Key": "b"}], False)
