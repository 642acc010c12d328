"""Whatever a row holds comes out of the file again as it went in, unless a spreadsheet might run it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.landing.formats import CompressionName, FormatName, make_format
from tests.landing.formats.parts import (
    TABLES,
    csv_records,
    filled,
    land,
    page,
    plain,
    read_csv,
    read_jsonl,
    read_parquet,
    read_part,
    reader_of,
    rows_of,
    table_of,
)
from tests.simulation.samples import ALL_HISTORIES

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
#: The first row has at least two fields: rows without fields, and files of one column, have their own tests.
pages = st.builds(
    lambda first, rest, later: [[first, *rest], *later],
    st.dictionaries(keys, values, min_size=2, max_size=5),
    st.lists(rows, max_size=3),
    st.lists(st.lists(rows, min_size=1, max_size=4), max_size=3),
)
#: What stands between the tokens of a row: nothing, or what a pretty printer leaves.
spaces = st.sampled_from(["", " ", "\n  ", "\r\n\t"])


def encoded(row: Row, space: str) -> str:
    """Return the row as JSON."""
    fields = (f"{space}{json.dumps(key)}{space}:{space}{value.json}" for key, value in row.items())
    return f"{{{','.join(fields)}{space}}}"


TEXT_COMPRESSIONS: list[CompressionName] = [None, "gzip", "zstd"]
given_pages = given(pages=pages, space=spaces)
quickly = settings(
    max_examples=80 if ALL_HISTORIES else 8, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def raw(pages: Pages, space: str) -> list[list[msgspec.Raw]]:
    return [page(*(encoded(row, space) for row in rows)) for rows in pages]


def table(pages: Pages, columns: list[str] | None = None) -> tuple[list[str], list[list[str | None]]]:
    """Return the columns and rows that a table must hold: every row with all columns."""
    rows = [row for rows in pages for row in rows]
    names = columns if columns is not None else list(dict.fromkeys(key for row in rows for key in row))
    return names, [[row[name].cell if name in row else None for name in names] for row in rows]


def assert_first_columns(headers: Sequence[list[str]], names: list[str]) -> None:
    """Check that every part has the first columns of the landing, and the last part all of them."""
    assert all(header == names[: len(header)] for header in headers)
    assert headers[-1] == names


@quickly
@given_pages
def test_json_lines_hold_every_row_as_it_came(pages: Pages, space: str) -> None:
    expected = [
        {key: json.loads(value.json, parse_float=str, parse_int=str) for key, value in row.items()}
        for rows in pages
        for row in rows
    ]
    for compression in TEXT_COMPRESSIONS:
        (part,) = land(make_format("jsonl", compression), *raw(pages, space))
        assert read_jsonl(plain(part, compression)) == expected, compression


@quickly
@given_pages
def test_tables_hold_every_value_as_text_and_null_apart(pages: Pages, space: str) -> None:
    names, expected = table(pages)
    for kind in (*TABLES, ("parquet", "zstd"), ("parquet", "gzip")):
        chosen = make_format(*kind)
        parts = land(chosen, *raw(pages, space))
        by_others = [read_part(chosen.suffix, part) for part in parts]
        assert [list(filled(row, names).values()) for rows in by_others for row in rows] == expected, kind
        assert_first_columns([list(rows[0]) for rows in by_others], names)
        reader = reader_of(chosen, names)
        assert [list(row.values()) for row in rows_of(reader, parts)] == expected, kind
        landed = table_of(reader, parts)
        assert landed.column_names == names
        assert [list(row.values()) for row in landed.to_pylist()] == expected, kind
        if chosen.name == "csv":
            # the standard library reads null as the empty text
            records = [csv_records(plain(part, chosen.compression)) for part in parts]
            assert_first_columns([header for header, *_ in records], names)
            texts = [row + [""] * (len(names) - len(row)) for _, *rows in records for row in rows]
            assert texts == [[cell or "" for cell in row] for row in expected], kind


@quickly
@given(pages=pages, space=spaces, columns=st.lists(keys, min_size=2, max_size=5, unique=True))
def test_given_columns_are_all_and_in_order(pages: Pages, space: str, columns: list[str]) -> None:
    def landed(file_format: FormatName) -> bytes:
        (part,) = land(make_format(file_format, columns=columns), *raw(pages, space))
        return part

    _, expected = table(pages, columns)
    assert csv_records(landed("csv"))[0] == columns
    assert [list(row.values()) for row in read_csv(landed("csv"))] == expected
    rows = read_parquet(landed("parquet"))
    assert [list(row) for row in rows] == [columns] * len(rows)
    assert [list(row.values()) for row in rows] == expected
    given_rows = [row for rows in pages for row in rows]
    wanted = [[name for name in columns if name in row] for row in given_rows]
    rows = read_jsonl(landed("jsonl"))
    assert [list(row) for row in rows] == wanted
    assert rows == [
        {name: json.loads(row[name].json, parse_float=str, parse_int=str) for name in names}
        for row, names in zip(given_rows, wanted, strict=True)
    ]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("filling", ["x", '"\n,\\', "🎧"])
def test_cells_of_ten_megabytes_pass(file_format: FormatName, filling: str) -> None:
    large = filling * (10_000_000 // len(filling.encode()))
    rows = [{"id": "1", "html": large}, {"id": "2", "html": ""}, {"id": "3", "html": large}]
    (part,) = land(make_format(file_format), page(*rows))
    assert read_part(f".{file_format}", part) == rows


def test_csv_quotes_texts_and_nothing_else() -> None:
    (part,) = land(
        make_format("csv"), page('{"a": "1.50", "b": 1.50, "c": null, "d": "", "e": true, "f": [1, "x"]}')
    )
    assert part == b'"a","b","c","d","e","f"\n"1.50",1.50,,"",true,"[1,""x""]"\n'


def test_csv_of_a_single_column_has_no_empty_lines() -> None:
    first, second = page({"a": None}, {"a": "x"}, {"a": ""}), page({"a": "\n"})
    (part,) = land(make_format("csv"), first, second)
    assert part == b'"a"\n""\n"x"\n""\n"\n"\n'
    assert read_csv(part) == [{"a": ""}, {"a": "x"}, {"a": ""}, {"a": "\n"}]
    earlier, _ = land(make_format("csv"), first, page({"b": "1"}))
    assert rows_of(reader_of(make_format("csv"), "ab"), [earlier]) == [
        {"a": "", "b": None}, {"a": "x", "b": None}, {"a": "", "b": None},
    ]  # fmt: skip


def test_the_last_value_of_a_repeated_key_counts() -> None:
    rows = page('{"a": 1, "b": 2, "a": 3}')
    (csv_part,) = land(make_format("csv"), rows)
    (parquet_part,) = land(make_format("parquet"), rows)
    assert read_csv(csv_part) == read_parquet(parquet_part) == [{"a": "3", "b": "2"}]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_bytes_that_are_not_utf_8_are_replaced(file_format: FormatName) -> None:
    (part,) = land(make_format(file_format), [msgspec.Raw(b'{"a": "x\xffy", "b": "z"}')])
    assert read_part(f".{file_format}", part) == [{"a": "x\ufffdy", "b": "z"}]


@pytest.mark.parametrize("columns", [None, ["a"]])
def test_json_lines_keep_bytes_that_are_not_utf_8(columns: list[str] | None) -> None:
    (part,) = land(make_format("jsonl", columns=columns), [msgspec.Raw(b'{"a":"x\xffy"}')])
    assert part == b'{"a":"x\xffy"}\n'


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_the_same_rows_give_the_same_bytes(file_format: FormatName) -> None:
    rows = page(*({"id": n, "name": f"n{n}"} for n in range(500)))
    for compression in ("none", "gzip", "zstd"):
        first, second = (land(make_format(file_format, compression), rows) for _ in range(2))
        assert first == second


def cells(*values: Any, sanitize: bool = True) -> list[str]:
    (part,) = land(make_format("csv", sanitize_formulas=sanitize), page(dict(enumerate(values))))
    return csv_records(part)[1]


@pytest.mark.parametrize("start", [*"=+-@\t\r\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_a_text_that_may_be_a_formula_gets_an_apostrophe(start: str) -> None:
    assert cells(f"{start}1+1", start, "x") == [f"'{start}1+1", f"'{start}", "x"]


def test_texts_and_numbers_that_are_no_formulas_stay() -> None:
    assert cells("a=1", " =1", "", None, -5, -1.5e3, True, {"a": "=1"}) == [
        "a=1", " =1", "", "", "-5", "-1500.0", "true", '{"a":"=1"}',
    ]  # fmt: skip


def test_names_of_columns_may_be_formulas_too() -> None:
    first, second = land(make_format("csv", sanitize_formulas=True), page({"=a": "+1"}), page({"@b": "2"}))
    assert csv_records(first) == [["'=a"], ["'+1"]]
    assert csv_records(second) == [["'=a", "'@b"], ["", "2"]]


def test_formulas_stay_by_default() -> None:
    assert cells("=1", "@x", sanitize=False) == ["=1", "@x"]
