"""Rows as a service may send them, with what has to come out of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

NASTY = (
    *('"', '""', ",", "\n", "\r\n", "\r", "\\", "\\n", "\u2028", "🎧", "\x00", "\x1f", "\x7f"),
    *("=", "'", " ", "]\n[", "null", "é"),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.lists(
    st.sampled_from(NASTY), max_size=6
).map("".join)
keys = texts | st.sampled_from(["", "id", "a b", "Ünïcode", 'qu"ote', "line\nfeed", "comma,", "{}", "null"])
numbers = st.from_regex(
    r"(-?(0|[1-9][0-9]{0,30})\.[0-9]{1,20}|-?[1-9][0-9]{0,30}|0)([eE][+-]?[0-9]{1,3})?", fullmatch=True
)
nested = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
).filter(lambda value: isinstance(value, dict | list))


@dataclass(frozen=True)
class Value:
    """A value as JSON, and as the text that a table has in its place."""

    json: str
    cell: str | None


def _nested(value: Any) -> Value:
    return Value(json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":")))


Row = dict[str, Value]
Pages = list[list[Row]]

values = st.one_of(
    texts.map(lambda text: Value(json.dumps(text), text)),
    texts.map(lambda text: Value(json.dumps(text, ensure_ascii=False), text)),
    st.just(Value("null", None)),
    st.booleans().map(lambda value: Value(json.dumps(value), json.dumps(value))),
    numbers.map(lambda number: Value(number, number)),
    nested.map(_nested),
)
rows = st.dictionaries(keys, values, max_size=5)
#: The first row has fields enough: rows without any, and files of one column, have tests of their own.
pages = st.builds(
    lambda first, rest, later: [[first, *rest], *later],
    st.dictionaries(keys, values, min_size=2, max_size=5),
    st.lists(rows, max_size=3),
    st.lists(st.lists(rows, min_size=1, max_size=4), max_size=3),
)
#: What stands between the tokens of a row: nothing, or what a pretty printer leaves.
spaces = st.sampled_from(["", " ", "\n  ", "\r\n\t"])


def encoded(row: Row, space: str) -> str:
    """The row as JSON."""
    fields = (f"{space}{json.dumps(key)}{space}:{space}{value.json}" for key, value in row.items())
    return f"{{{','.join(fields)}{space}}}"
