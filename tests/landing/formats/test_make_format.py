"""Which formats there are, and how a wrong choice is refused."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.errors import ExtraMissing
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.formats.reading import part_reader
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.formats.parts import land, page, reader_of, rows_of


@pytest.mark.parametrize(
    ("arguments", "suffix", "compression"),
    [
        ({}, ".jsonl", None),
        ({"compression": "none"}, ".jsonl", None),
        ({"compression": "gzip"}, ".jsonl.gz", "gzip"),
        ({"compression": "zstd"}, ".jsonl.zst", "zstd"),
        ({"file_format": "csv"}, ".csv", None),
        ({"file_format": "csv", "compression": "gzip"}, ".csv.gz", "gzip"),
        ({"file_format": "csv", "compression": "zstd"}, ".csv.zst", "zstd"),
        ({"file_format": "parquet"}, ".parquet", "snappy"),
        ({"file_format": "parquet", "compression": "zstd"}, ".parquet", "zstd"),
        ({"file_format": "parquet", "compression": "none"}, ".parquet", None),
    ],
)
def test_each_format_has_its_suffix_and_compressions(
    arguments: Any, suffix: str, compression: str | None
) -> None:
    chosen = make_format(**arguments)
    chosen.require_extras()
    assert chosen.name == arguments.get("file_format", "jsonl")
    assert (chosen.suffix, chosen.compression) == (suffix, compression)


@pytest.mark.parametrize(
    ("arguments", "argument", "rule"),
    [
        ({"file_format": "xml"}, "file_format", "one of jsonl, csv, parquet"),
        ({"file_format": None}, "file_format", "one of"),
        ({"file_format": []}, "file_format", "one of"),
        ({"compression": "snappy"}, "compression", "one of none, gzip, zstd for file_format='jsonl'"),
        ({"compression": "GZIP"}, "compression", "one of"),
        ({"file_format": "parquet", "compression": "lz4"}, "compression", "one of snappy, zstd, gzip, none"),
        ({"columns": "id"}, "columns", "a list of names"),
        ({"columns": []}, "columns", "at least one column"),
        ({"columns": ["a", "b", "a"]}, "columns[2]", "once"),
        ({"columns": ["a", 1]}, "columns[1]", "a string"),
        ({"columns": ["a", "\ud800"]}, "columns[1]", "a lone surrogate"),
        ({"columns": {"a"}}, "columns", "a list of names"),
        ({"file_format": "parquet", "column_types": ["a"]}, "column_types", "a dict"),
        ({"file_format": "parquet", "column_types": {1: "int64"}}, "column_types", "strings"),
        ({"file_format": "parquet", "column_types": {"a": "int"}}, "column_types['a']", "string, bool"),
        ({"file_format": "parquet", "column_types": {"a": int}}, "column_types['a']", "one of"),
        ({"file_format": "parquet", "column_types": {"a": "decimal(39,0)"}}, "column_types['a']", "decimal"),
        ({"file_format": "parquet", "column_types": {"a": "decimal(2,3)"}}, "column_types['a']", "decimal"),
        ({"columns": ["b"], "column_types": {"a": "bool"}}, "column_types", "one of `columns`"),
        ({"on_cast_error": "skip"}, "on_cast_error", "one of fail, null"),
        ({"sanitize_formulas": True}, "sanitize_formulas", "csv"),
        ({"file_format": "csv", "sanitize_formulas": "yes"}, "sanitize_formulas", "True or False"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_its_value_and_rule(arguments: Any, argument: str, rule: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make_format(**arguments)
    assert caught.value.argument == argument
    assert rule in caught.value.rule


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("pyarrow", "parquet", {"file_format": "parquet"}),
        ("zstandard", "zstd", {"file_format": "csv", "compression": "zstd"}),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, extra: str, arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (package, f"{package}.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    chosen = make_format(**arguments)
    reader = part_reader(chosen.name, chosen.compression, ["a"], {})
    assert reader
    for step in (
        chosen.require_extras,
        lambda: chosen.writer(io.BytesIO(), chosen.columns_after()).write([msgspec.Raw(b'{"a":1}')]),
        lambda: next(reader.rows(io.BytesIO())),
    ):
        said = rf"needs the package {package}.*install airflow-provider-webcollect\[{extra}\]"
        with pytest.raises(ExtraMissing, match=said):
            step()


def test_gzip_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    chosen = make_format("csv", "gzip")
    chosen.require_extras()
    (part,) = land(chosen, page({"a": 1}))
    assert rows_of(reader_of(chosen, ["a"]), [part]) == [{"a": "1"}]


def test_asking_for_a_format_imports_nothing_heavy() -> None:
    script = """
import sys
from airflow_provider_webcollect.landing.formats import make_format
for arguments in (("jsonl", "zstd"), ("csv", "gzip"), ("parquet", None, ["a"], {"a": "int64"})):
    make_format(*arguments)
print(sorted({"pyarrow", "numpy", "pandas", "zstandard", "isal", "airflow", "requests"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
