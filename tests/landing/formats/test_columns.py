"""All parts of a landing have the same columns, whenever a key comes first."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from airflow_provider_webcollect.landing.formats import UnreadableRow, make_format
from airflow_provider_webcollect.landing.formats import csv as csv_format
from tests.landing.formats.parts import csv_records, land, page, plain, read_csv, read_jsonl, read_parquet

TABLES = [("csv", None), ("csv", "gzip"), ("csv", "zstd"), ("parquet", "snappy"), ("parquet", "none")]


def read(file_format, part, compression):
    return read_parquet(part) if file_format == "parquet" else read_csv(plain(part, compression))


@pytest.mark.parametrize(("file_format", "compression"), TABLES)
def test_a_key_of_a_later_page_ends_the_part_and_widens_the_earlier_ones(file_format, compression):
    chosen = make_format(file_format, compression)
    parts = land(chosen, page({"a": "1"}, {"b": "2"}), page({"a": "3"}), page({"c": "4"}), page({"d": "5"}))
    none = dict.fromkeys("abcd")
    assert [read(file_format, part, compression) for part in parts] == [
        [none | {"a": "1"}, none | {"b": "2"}, none | {"a": "3"}],
        [none | {"c": "4"}],
        [none | {"d": "5"}],
    ]


@pytest.mark.parametrize(("file_format", "compression"), TABLES)
def test_a_refused_page_leaves_no_trace_in_the_part(file_format, compression):
    chosen = make_format(file_format, compression)
    sink = io.BytesIO()
    with chosen.writer(sink, chosen.columns_after()) as writer:
        assert writer.write(page({"a": "1"}))
        assert not writer.write(page({"a": "2"}, {"a": "3", "b": "4"}))
        assert writer.write(page({"a": "5"}))
        assert writer.columns == ("a",)
    assert sink.getvalue() == land(chosen, page({"a": "1"}), page({"a": "5"}))[0]


def test_json_lines_take_any_key_at_any_time():
    (part,) = land(make_format("jsonl"), page({"a": "1"}), page({"b": "2"}))
    assert read_jsonl(part) == [{"a": "1"}, {"b": "2"}]


def test_json_lines_are_widened_by_being_copied():
    sink = io.BytesIO()
    make_format("jsonl").widen(io.BytesIO(b'{"a":1}\n'), sink, ["a"], ["a", "b"])
    assert sink.getvalue() == b'{"a":1}\n'


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_retry_goes_on_with_the_columns_known_before_it(file_format):
    (part,) = land(make_format(file_format), page({"c": "1", "a": "2"}), known=["a", "b"])
    assert read(file_format, part, None) == [{"a": "2", "b": None, "c": "1"}]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_given_columns_never_end_a_part(file_format):
    (part,) = land(make_format(file_format, columns=["b", "a"]), page({"a": "1"}), page({"b": "2", "c": "3"}))
    assert read(file_format, part, None) == [{"b": None, "a": "1"}, {"b": "2", "a": None}]


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_an_empty_page_is_taken_and_decides_nothing(file_format):
    parts = land(make_format(file_format), page(), page({"a": "1", "b": None}), page())
    readers = {"jsonl": read_jsonl, "csv": read_csv, "parquet": read_parquet}
    assert [readers[file_format](part) for part in parts] == [[{"a": "1", "b": None}]]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_part_without_rows_has_the_columns_known(file_format):
    chosen = make_format(file_format)
    sink = io.BytesIO()
    with chosen.writer(sink, chosen.columns_after(["a", "b"])) as writer:
        pass
    assert writer.columns == ("a", "b")
    names = pq.read_schema(sink).names if file_format == "parquet" else csv_records(sink.getvalue())[0]
    assert names == ["a", "b"]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_rows_without_any_field_are_refused(file_format):
    with pytest.raises(UnreadableRow, match="no columns to write; name the columns, or write JSON lines"):
        land(make_format(file_format), page({}, {}))
    (part,) = land(make_format(file_format, columns=["a", "b"]), page({}, {}))
    assert read(file_format, part, None) == [{"a": None, "b": None}] * 2


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
@pytest.mark.parametrize("row", ['{"n": ' + "9" * 5000 + "}"], ids=["too long a number"])
def test_a_row_that_no_table_can_take_is_named(file_format, row):
    with pytest.raises(UnreadableRow, match=r"a row cannot be read: .* batch of 2 rows"):
        land(make_format(file_format), page({"a": 1}, row))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1024])
def test_widening_csv_finds_the_ends_of_rows_wherever_its_reads_end(chunk, monkeypatch):
    monkeypatch.setattr(csv_format, "_CHUNK_BYTES", chunk)
    rows = [{"a": 'q"\n",\n""', "b": None}, {"a": "\n", "b": ""}, {"a": None, "b": 1}]
    first, second = land(make_format("csv"), page(*rows), page({"c\n": "late"}))
    assert read_csv(first) == [row | {"b": "1" if row["b"] == 1 else row["b"], "c\n": None} for row in rows]
    assert read_csv(second) == [{"a": None, "b": None, "c\n": "late"}]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_widening_refuses_what_does_not_fit(file_format):
    chosen = make_format(file_format)
    (part,) = land(chosen, page({"a": "1", "b": "2"}))
    with pytest.raises(ValueError, match="cannot be widened"):
        chosen.widen(io.BytesIO(part), io.BytesIO(), ["a", "b"], ["b", "a", "c"])
    with pytest.raises(ValueError, match="not a part with the columns"):
        chosen.widen(io.BytesIO(part), io.BytesIO(), ["a"], ["a", "b"])


def test_widened_parquet_keeps_types_and_row_groups(monkeypatch):
    from airflow_provider_webcollect.landing.formats import parquet

    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 10)
    chosen = make_format("parquet", column_types={"n": "int64", "late": "float64"})
    pages = [page(*({"n": 5 * number + row} for row in range(5))) for number in range(5)]
    first, second = land(chosen, *pages, page({"late": 1.5}))
    assert pq.read_schema(io.BytesIO(first)) == pq.read_schema(io.BytesIO(second))
    file = pq.ParquetFile(io.BytesIO(first))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [10, 10, 5]
    assert file.read().to_pylist() == [{"n": n, "late": None} for n in range(25)]


def test_a_large_page_is_checked_for_new_keys_as_a_whole_before_any_of_it_is_written():
    chosen = make_format("csv")
    sink = io.BytesIO()
    filler = "x" * 3_000_000
    with chosen.writer(sink, chosen.columns_after()) as writer:
        assert writer.write(page({"a": filler}, {"b": filler}, {"c": filler}))
        assert not writer.write(page({"a": filler}, {"a": filler}, {"d": filler}))
        assert writer.columns == ("a", "b", "c")
    assert len(read_csv(sink.getvalue())) == 3


@pytest.mark.parametrize(("file_format", "compression"), TABLES)
@pytest.mark.parametrize("columns", [None, ["", "b", "Ünïcode", "absent"], ["b", 'qu"ote']])
@pytest.mark.parametrize("odd_key", ["class", 'qu"ote', "line\nfeed", "back\\slash"])
def test_later_pages_are_read_as_the_first_one(file_format, compression, columns, odd_key):
    rows = [
        {"": "x", "b": 1.50, "Ünïcode": [1, {"c": 1e5}], odd_key: None},
        '{"b": 7, "b": 1.50, "\\u0062b": "😀", "Ünïcode": "\\ud83d\\ude00"}',
        {},
    ]
    chosen = make_format(file_format, compression, columns)
    (part,) = land(chosen, page(*rows), page(*rows), page(*rows))
    (first,) = land(chosen, page(*rows))
    assert read(file_format, part, compression) == 3 * read(file_format, first, compression)
