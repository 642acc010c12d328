"""Values nested too deeply for a decoder: JSON lines copy them, other formats refuse them."""

from __future__ import annotations

import gzip
import io

import msgspec
import pytest

from airflow_provider_webcollect.landing.errors import UnreadableRow
from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.formats.reading import part_reader
from airflow_provider_webcollect.landing.write.copy import digest_rows
from tests.landing.formats.parts import land, page, read_csv

LEVELS = 3000
DEEP = "[" * LEVELS + '{"a": 1.50}' + "]" * LEVELS
# the client refuses rows this deep; with slightly fewer levels, the stack decides which code refuses first
ROWS = [msgspec.Raw(row.encode()) for row in ('{"n":1}', f'{{"n":2,"v":{DEEP},"z":"x"}}', '{"z":null}')]


def test_json_lines_hold_deep_rows_as_they_came() -> None:
    (part,) = land(make_format("jsonl", "gzip"), ROWS)
    assert gzip.decompress(part) == b"".join(bytes(row) + b"\n" for row in ROWS)


@pytest.mark.parametrize("columns", [None, ["n", "v"], ["n"]])
@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_tables_refuse_deep_rows(file_format: FormatName, columns: list[str] | None) -> None:
    chosen = make_format(file_format, columns=columns)
    for pages in ([ROWS], [page('{"n": 1, "v": 2, "z": 3}'), ROWS]):
        with pytest.raises(UnreadableRow, match=r"nested too deeply.*file_format='jsonl'") as refused:
            land(chosen, *pages)
        assert refused.value.permanent


def test_json_lines_of_some_columns_refuse_deep_rows() -> None:
    with pytest.raises(UnreadableRow, match=r"nested too deeply.*file_format='jsonl' without `columns`"):
        land(make_format("jsonl", columns=["z", "v"]), ROWS)


def test_tables_hold_what_is_nested_less() -> None:
    (part,) = land(make_format("csv"), page(f'{{"v": {"[" * 300}{"]" * 300}}}'))
    assert read_csv(part) == [{"v": "[" * 300 + "]" * 300}]


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" * 5000])
def test_numbers_that_python_does_not_have_read_back_as_texts(number: str) -> None:
    (part,) = land(make_format("jsonl"), page(f'{{"a": {number}, "b": 1.5}}', '{"a": 1, "b": 2}'))
    reader = part_reader("jsonl", None, (), {})
    assert reader
    assert list(reader.rows(io.BytesIO(part))) == [{"a": number, "b": 1.5}, {"a": 1, "b": 2}]
    table = reader.joined(reader.tables(io.BytesIO(part)))
    assert table.to_pylist() == [{"a": number, "b": "1.5"}, {"a": "1", "b": "2"}]


def test_pages_with_deep_rows_are_told_apart() -> None:
    other = [*ROWS[:1], msgspec.Raw(bytes(ROWS[1]).replace(b"50", b"51")), *ROWS[2:]]
    assert digest_rows(ROWS) == digest_rows(list(ROWS)) != digest_rows(other)
    first, second = (page(f'{{"a": {"1" * 5000}{last}}}') for last in (1, 2))
    assert digest_rows(first) == digest_rows(list(first)) != digest_rows(second)


def test_a_digest_is_the_same_at_any_depth_of_the_stack() -> None:
    rows = page(*(f'{{"b": {"[" * levels}{"]" * levels}, "a": 1}}' for levels in (100, 300)))

    def further_down(frames: int) -> bytes | str:
        return further_down(frames - 1) if frames else digest_rows(rows)

    assert further_down(400) == digest_rows(rows)
