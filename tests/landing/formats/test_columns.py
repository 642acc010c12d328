"""A part has the columns that were known when it began, and is read with all columns of the landing."""

from __future__ import annotations

import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_webcollect.landing.errors import UnreadableRow
from airflow_provider_webcollect.landing.formats import FormatName, make_format, reading
from tests.landing.formats.parts import (
    TABLES,
    Kind,
    Row,
    csv_records,
    filled,
    land,
    page,
    read_csv,
    read_part,
    reader_of,
    rows_of,
    table_of,
)


@pytest.mark.parametrize("kind", TABLES)
def test_new_keys_are_columns_of_the_next_part(kind: Kind) -> None:
    chosen = make_format(*kind)
    parts = land(chosen, page({"a": "1"}, {"b": "2"}), page({"a": "3"}), page({"c": "4"}), page({"d": "5"}))
    assert [read_part(chosen.suffix, part) for part in parts] == [
        [filled({"a": "1"}, "ab"), filled({"b": "2"}, "ab"), filled({"a": "3"}, "ab")],
        [filled({"c": "4"}, "abc")],
        [filled({"d": "5"}, "abcd")],
    ]


def test_later_columns_of_an_earlier_part_have_their_types() -> None:
    kinds = {"n": "int64", "price": "decimal(9,2)", "at": "timestamptz"}
    chosen = make_format("parquet", column_types=kinds)
    row = {"price": "1.50", "at": "2026-01-02T03:04:05Z", "text": "x"}
    earlier, later = land(chosen, page({"n": 1}), page(row))
    assert pq.read_schema(io.BytesIO(earlier)) == pa.schema([("n", pa.int64())])
    names = ["n", *row]
    table = table_of(reader_of(chosen, names), [earlier])
    assert table.schema == pq.read_schema(io.BytesIO(later))
    assert table.to_pylist() == rows_of(reader_of(chosen, names), [earlier]) == [filled({"n": 1}, names)]


@pytest.mark.parametrize("kind", TABLES)
def test_a_refused_page_leaves_no_trace(kind: Kind) -> None:
    chosen = make_format(*kind)
    sink = io.BytesIO()
    with chosen.writer(sink, chosen.columns_after()) as writer:
        assert writer.write(page({"a": "1"}))
        assert not writer.write(page({"a": "2"}, {"a": "3", "b": "4"}))
        assert writer.write(page({"a": "5"}))
        assert writer.columns == ("a",)
    assert sink.getvalue() == land(chosen, page({"a": "1"}), page({"a": "5"}))[0]


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_an_empty_page_is_taken_and_decides_nothing(file_format: FormatName) -> None:
    chosen = make_format(file_format)
    parts = land(chosen, page(), page({"a": "1", "b": None}), page())
    assert [read_part(chosen.suffix, part) for part in parts] == [[{"a": "1", "b": None}]]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_part_without_rows_has_the_columns_known(file_format: FormatName) -> None:
    chosen = make_format(file_format)
    sink = io.BytesIO()
    with chosen.writer(sink, chosen.columns_after(["a", "b"])) as writer:
        pass
    assert writer.columns == ("a", "b")
    names = pq.read_schema(sink).names if file_format == "parquet" else csv_records(sink.getvalue())[0]
    assert names == ["a", "b"]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_rows_without_any_field_are_refused(file_format: FormatName) -> None:
    with pytest.raises(UnreadableRow, match="no columns to write; name the columns, or write JSON lines"):
        land(make_format(file_format), page({}, {}))
    named = make_format(file_format, columns=["a", "b"])
    (part,) = land(named, page({}, {}))
    assert read_part(named.suffix, part) == [{"a": None, "b": None}] * 2


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_row_that_no_table_can_take_is_named(file_format: FormatName) -> None:
    row = '{"n": ' + "9" * 5000 + "}"
    with pytest.raises(UnreadableRow, match=r"a row cannot be read: .* batch of 2 rows"):
        land(make_format(file_format), page({"a": 1}, row))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1024])
def test_earlier_csv_is_read_the_same_wherever_reads_end(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_CHUNK_BYTES", chunk)
    rows: list[Row] = [{"a": 'q"\n",\n""', "b": None}, {"a": "\n", "b": ""}, {"a": None, "b": "1"}]
    chosen = make_format("csv")
    earlier, _ = land(chosen, page(*rows), page({"c\n": "late"}))
    names = ["a", "b", "c\n"]
    assert rows_of(reader_of(chosen, names), [earlier]) == [filled(row, names) for row in rows]
    assert table_of(reader_of(chosen, names), [earlier]).to_pylist() == [filled(row, names) for row in rows]
    digest = hashlib.sha256(earlier).hexdigest()
    assert reader_of(chosen, names).count(io.BytesIO(earlier), digest) == len(rows)


def test_a_large_page_with_a_new_key_is_refused_whole() -> None:
    chosen = make_format("csv")
    sink = io.BytesIO()
    filler = "x" * 3_000_000
    with chosen.writer(sink, chosen.columns_after()) as writer:
        assert writer.write(page({"a": filler}, {"b": filler}, {"c": filler}))
        assert not writer.write(page({"a": filler}, {"a": filler}, {"d": filler}))
        assert writer.columns == ("a", "b", "c")
    assert len(read_csv(sink.getvalue())) == 3


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("columns", [None, ["", "b", "Ünïcode", "absent"], ["b", 'qu"ote']])
@pytest.mark.parametrize("odd_key", ["class", 'qu"ote', "line\nfeed", "back\\slash"])
def test_later_pages_are_read_as_the_first_one(kind: Kind, columns: list[str] | None, odd_key: str) -> None:
    rows = [
        {"": "x", "b": 1.50, "Ünïcode": [1, {"c": 1e5}], odd_key: None},
        '{"b": 7, "b": 1.50, "\\u0062b": "😀", "Ünïcode": "\\ud83d\\ude00"}',
        {},
    ]
    chosen = make_format(*kind, columns)
    (part,) = land(chosen, page(*rows), page(*rows), page(*rows))
    (first,) = land(chosen, page(*rows))
    assert read_part(chosen.suffix, part) == 3 * read_part(chosen.suffix, first)
