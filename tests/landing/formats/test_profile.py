"""Profiles of rows, compared with what DuckDB counts in the same rows."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.landing.formats import FileFormat, make_format
from airflow_provider_webcollect.landing.formats.profile import (
    MAX_COLUMNS,
    ColumnProfile,
    Profile,
    Profiler,
    sum_of,
)
from tests.landing.formats.parts import page
from tests.simulation.samples import ALL_HISTORIES

quickly = settings(
    max_examples=300 if ALL_HISTORIES else 8, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
FORMATS = {name: make_format(name) for name in ("jsonl", "csv", "parquet")}
#: Any Unicode white space, as a regular expression of DuckDB.
BLANK = r"[\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]*"
QUERY = f"""
    with cells as (
        select cell.key as name, cell.type as type, cell.value as value, cell.value->>'$' as text
        from lines, json_each(lines.line::json) as cell
    ), judged as (
        select *, type = 'VARCHAR' and regexp_full_match(text, '{BLANK}') as blank from cells
    )
    select
        name,
        count(*),
        count(*) filter (type <> 'NULL' and not blank and value::varchar not in ('[]', '{{}}')),
        count(*) filter (type in ('BIGINT', 'UBIGINT', 'HUGEINT', 'UHUGEINT', 'DOUBLE')),
        count(*) filter (type = 'BOOLEAN'),
        count(*) filter (type = 'ARRAY'),
        min(length(text)) filter (type = 'VARCHAR' and not blank),
        max(length(text)) filter (type = 'VARCHAR' and not blank)
    from judged group by name
"""

names = st.sampled_from(["price", "url", "ünïcode", "a b", 'quo"te', "dot.ted", "$", ""])
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
blanks = st.text(st.sampled_from(" \t\n\r\u00a0\u2003\u3000\x1c\x85"), max_size=3)
numbers = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False, width=32)
empty: st.SearchStrategy[Any] = st.just([]) | st.just({})
nested = empty | st.lists(texts, max_size=2) | st.dictionaries(texts, st.integers(0, 9), max_size=2)
values = st.none() | texts | blanks | numbers | st.booleans() | nested
rows = st.lists(st.dictionaries(names, values, max_size=5), min_size=1, max_size=12)


def profile_of(file_format: FileFormat, *pages: list[msgspec.Raw], earlier: Sequence[str] = ()) -> Profile:
    """Write pages as one part, and return its profile.

    :param earlier: columns of earlier parts.
    """
    profiler = Profiler()
    columns = file_format.columns_after(earlier)
    with file_format.writer(io.BytesIO(), columns, profiler) as writer:
        for page_rows in pages:
            assert writer.write(page_rows)
    return profiler.profile(sum(map(len, pages)))


def with_duckdb(written: list[dict[str, Any]]) -> dict[str, ColumnProfile]:
    with duckdb.connect() as connection:
        lines = [json.dumps(row, ensure_ascii=False) for row in written]
        connection.execute("create table lines as select unnest($1::varchar[]) as line", [lines])
        return {name: ColumnProfile(*counts) for name, *counts in connection.execute(QUERY).fetchall()}


@quickly
@given(pages=st.lists(rows, min_size=1, max_size=4))
def test_counts_equal_duckdbs_and_parts_add_up(pages: list[list[dict[str, Any]]]) -> None:
    # a part has only the columns of its first page
    pages[0] = [*pages[0], dict.fromkeys(key for page_rows in pages for row in page_rows for key in row)]
    expected = Profile(with_duckdb([row for page_rows in pages for row in page_rows]))
    for name, file_format in FORMATS.items():
        whole = profile_of(file_format, *(page(*page_rows) for page_rows in pages), earlier=["price"])
        parts = sum_of(profile_of(file_format, page(*page_rows), earlier=["price"]) for page_rows in pages)
        assert whole == parts == expected, name


def test_only_the_chosen_columns_are_counted() -> None:
    chosen = make_format(columns=["url", "price"])
    profile = profile_of(chosen, page({"price": "1", "title": "x"}, {"price": None, "title": "y"}))
    assert profile.columns == {"price": ColumnProfile(2, 1, shortest=1, longest=1)}


def test_rows_that_python_cannot_decode_are_counted_apart() -> None:
    nested = msgspec.Raw(b'{"price":' + b"[" * 5000 + b"]" * 5000 + b"}")
    (before, after) = page({"price": "1"}, {"price": "2"})
    profile = profile_of(FORMATS["jsonl"], [before, nested, after])
    assert profile == Profile({"price": ColumnProfile(2, 2, shortest=1, longest=1)}, unread=1)


@pytest.mark.parametrize("name", FORMATS)
def test_columns_beyond_the_limit_are_not_counted(name: str) -> None:
    wide = {f"k{number}": "x" for number in range(MAX_COLUMNS + 5)}
    profile = profile_of(FORMATS[name], page(wide), page(wide, {"k0": "y"}))
    first = [*profile.columns]
    assert len(first) == MAX_COLUMNS
    assert first[0] == "k0"
    assert profile.columns["k0"].present == 3
    assert profile.is_cut


def test_columns_that_come_late_are_counted_up_to_the_limit() -> None:
    pages = [page({f"k{number}": number}) for number in range(MAX_COLUMNS + 5)]
    profile = profile_of(FORMATS["jsonl"], *pages)
    assert [*profile.columns] == [f"k{number}" for number in range(MAX_COLUMNS)]
    assert all(counts == ColumnProfile(1, 1, numbers=1) for counts in profile.columns.values())
    assert profile.is_cut
