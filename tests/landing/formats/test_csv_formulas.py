"""What a spreadsheet might run is made harmless, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_webcollect.landing.formats import make_format
from tests.landing.formats.parts import csv_records, land, page


def cells(*values: Any, sanitize: bool = True) -> list[str]:
    (part,) = land(make_format("csv", sanitize_formulas=sanitize), page(dict(enumerate(values))))
    return csv_records(part)[1]


@pytest.mark.parametrize("start", [*"=+-@\t\r\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_a_text_that_may_be_a_formula_gets_an_apostrophe(start: str) -> None:
    assert cells(f"{start}1+1", start, "x") == [f"'{start}1+1", f"'{start}", "x"]


def test_other_texts_and_json_numbers_stay() -> None:
    assert cells("a=1", " =1", "", None, -5, -1.5e3, True, {"a": "=1"}) == [
        "a=1", " =1", "", "", "-5", "-1500.0", "true", '{"a":"=1"}',
    ]  # fmt: skip


def test_names_of_columns_are_texts_too() -> None:
    first, second = land(make_format("csv", sanitize_formulas=True), page({"=a": "+1"}), page({"@b": "2"}))
    assert csv_records(first) == [["'=a"], ["'+1"]]
    assert csv_records(second) == [["'=a", "'@b"], ["", "2"]]


def test_unless_asked_for_nothing_changes() -> None:
    assert cells("=1", "@x", sanitize=False) == ["=1", "@x"]
