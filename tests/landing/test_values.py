"""Values of texts as sites write them: the same in each format and table, and for each reader."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_webcollect.landing.errors import CastFailed, ChecksFailed, FormatChanged
from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.reader import LandedData, read_landing
from airflow_provider_webcollect.landing.write.review import accept
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.checked_runs import Runs
from tests.landing.conftest import Folder
from tests.landing.tables import tables_in
from tests.landing.values import CASES, EURO, GERMAN_DAY, NAMES, OPTIONS, ROW, TYPES, WRONG, as_expected
from tests.storages import local

PRICES: dict[str, Any] = {"price": EURO}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.new(local(tmp_path))


@pytest.fixture(scope="module")
def landed_as(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LandedData]:
    """Lands a row with a column for each case, in a format or table; texts that do not fit become null."""

    def landed(name: str) -> LandedData:
        is_table = name in ("delta", "iceberg")
        file_format: Any = "parquet" if is_table else name
        path = tmp_path_factory.mktemp(name)
        place: Any = tables_in(path, name)() if is_table else Folder.new(local(path))
        Runs(place, file_format=make_format(file_format, **OPTIONS)).land([ROW])
        return place.landed() if is_table else read_landing(place.root)

    return landed


@pytest.mark.parametrize("place", ["jsonl", "csv", "parquet", "delta", "iceberg"])
def test_each_text_has_its_value_or_null(landed_as: Callable[[str], LandedData], place: str) -> None:
    as_expected(landed_as(place).to_arrow().to_pylist()[0])


@pytest.mark.parametrize("place", ["jsonl", "csv", "parquet"])
def test_other_readers_have_the_same_values(landed_as: Callable[[str], LandedData], place: str) -> None:
    rows = landed_as(place)
    relation = rows.to_duckdb()
    as_expected(dict(zip(relation.columns, relation.fetchall()[0], strict=True)))
    as_expected(rows.to_polars().to_dicts()[0])
    (frame,) = rows.to_pandas().to_dict("records")
    for name, case in zip(NAMES, CASES, strict=True):
        if isinstance(case.value, str | Decimal | datetime.date | bool) and case.value != "NaN":
            assert frame[name] == case.value, case


def test_pandas_has_whole_numbers_beside_nulls_as_they_are(folder: Folder) -> None:
    """The floats of pandas could not hold such large numbers."""
    rows: list[dict[str, Any]] = [{"id": "9007199254740993"}, {"id": None}]
    Runs(folder, file_format=make_format(column_types={"id": "int64"})).land(rows)
    ids = read_landing(folder.root).to_pandas()["id"]
    assert ids.dropna().tolist() == [9007199254740993]
    assert ids.sum() == 9007199254740993


def test_wrong_texts_are_quarantined(folder: Folder) -> None:
    rows = [{name: case.text} for name, case in zip(NAMES, CASES, strict=True)]
    Runs(folder, file_format=make_format(column_types=TYPES)).land(rows, {"rows": {"max_wrong": 1.0}})
    wrong = [index for index, case in enumerate(CASES) if case.value is WRONG]
    quarantined = read_landing(folder.root, quarantined=1)
    assert list(quarantined.iter_rows()) == [rows[index] for index in wrong]
    assert list(quarantined.reasons()) == [[f"columns.c{index}.type"] for index in wrong]
    assert len(read_landing(folder.root).to_arrow()) == len(CASES) - len(wrong)


class TestTextsStay:
    """JSON lines and CSV keep the service's texts; types apply when they are read as a table."""

    ROWS: ClassVar = [{"url": "/1", "price": "22,90 €"}, {"url": "/2", "price": "ab 1.299,– €"}]
    VALUES: ClassVar = [Decimal("22.90"), Decimal("1299.00")]

    @pytest.fixture(params=["jsonl", "csv"])
    def runs(self, request: pytest.FixtureRequest, folder: Folder) -> Runs:
        return Runs(folder, file_format=make_format(request.param, column_types=PRICES))

    def prices(self, folder: Folder) -> list[Any]:
        prices: list[Any] = read_landing(folder.root).to_arrow()["price"].to_pylist()
        return prices

    def test_files_have_the_texts(self, runs: Runs, folder: Folder) -> None:
        runs.land(self.ROWS)
        landed = read_landing(folder.root)
        assert list(landed.iter_rows()) == folder.rows() == self.ROWS
        assert self.prices(folder) == self.VALUES
        assert landed.manifest.encoding["column_types"] == PRICES

    def test_keys_and_what_has_changed_are_typed(self, runs: Runs, folder: Folder) -> None:
        runs.land(self.ROWS)
        runs.land([{"url": "/1", "price": "19,90 €"}])
        landed = read_landing(folder.root)
        assert landed.latest("url").fetchall()[1][:2] == ("/1", Decimal("19.90"))
        assert [row[1] for row in landed.changes("url", since=1).fetchall()] == [Decimal("19.90")]
        assert [row[1] for row in landed.history("price").fetchall()] == [*self.VALUES, Decimal("19.90")]

    def test_types_may_change_and_be_dropped(self, runs: Runs, folder: Folder) -> None:
        name = runs.options["file_format"].name
        runs.land(self.ROWS[:1], file_format=make_format(name))
        assert self.prices(folder) == ["22,90 €"]
        runs.land(self.ROWS[1:])
        assert self.prices(folder) == self.VALUES
        whole = {"type": "decimal(10,3)", "decimal": ",", "thousands": ".", "currency": True}
        wider = make_format(name, column_types={"price": whole})
        runs.next(file_format=wider)
        runs.land([{"url": "/3", "price": "1 €"}], file_format=wider)
        assert str(self.prices(folder)[0]) == "22.900"
        runs.land([{"url": "/4", "price": "2 €"}], file_format=make_format(name))
        assert self.prices(folder)[0] == "22,90 €"

    def test_a_text_that_does_not_fit_is_named_by_whoever_reads_it(self, runs: Runs, folder: Folder) -> None:
        runs.land([*self.ROWS, {"url": "/3", "price": "22.90 €"}])
        said = r"part-00001-\w+\.\w+: `price` is '22\.90 €' in row 3 of the part, which is .*decimal\(12,2\)"
        with pytest.raises(CastFailed, match=said):
            read_landing(folder.root).to_arrow()
        assert read_landing(folder.root, raw=True).to_arrow()["price"].to_pylist()[2] == "22.90 €"


class TestMadeOfAnother:
    """A typed column may be added beside the text column that it is made from."""

    TYPES: ClassVar = {"amount": {**EURO, "from": "price"}}

    @pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
    def test_the_text_stays_beside_the_value(self, folder: Folder, name: FormatName) -> None:
        runs = Runs(folder, file_format=make_format(name, column_types=self.TYPES), max_part_bytes=1)
        runs.land([{"price": "22,90 €", "url": "/1"}])
        runs.land([{"url": "/2", "more": "x"}])
        landed = read_landing(folder.root)
        table = landed.to_arrow()
        assert table.column_names == [*landed.table_columns] == ["price", "amount", "url", "more"]
        assert table["amount"].to_pylist() == [Decimal("22.90"), None]
        assert table["price"].to_pylist() == ["22,90 €", None]
        assert [row[1] for row in landed.latest("amount").fetchall()] == [Decimal("22.90")]

    @pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
    def test_the_text_must_be_among_the_chosen_columns(self, folder: Folder, name: FormatName) -> None:
        with pytest.raises(InvalidArgument, match=r"column_types\['amount'\]\['from'\]` is 'price'; it must"):
            make_format(name, columns=["url"], column_types=self.TYPES)
        with pytest.raises(InvalidArgument, match="'amount' is made of it, so `columns` cannot name"):
            make_format(name, columns=["price", "amount"], column_types=self.TYPES)
        chosen = make_format(name, columns=["price"], column_types=self.TYPES)
        Runs(folder, file_format=chosen).land([{"price": "1 €", "url": "/1"}])
        table = read_landing(folder.root).to_arrow()
        assert table.to_pylist() == [{"price": "1 €", "amount": Decimal("1.00")}]

    SAID = "the rows have a column `amount`, which `column_types` makes of `price`"

    def test_typed_rows_with_the_name_do_not_land(self, folder: Folder) -> None:
        runs = Runs(folder, file_format=make_format("parquet", column_types=self.TYPES))
        with pytest.raises(CastFailed, match=self.SAID):
            runs.land([{"price": "1 €", "amount": "2"}])

    def test_texts_with_the_name_are_not_read_as_a_table(self, folder: Folder) -> None:
        runs = Runs(folder, file_format=make_format(column_types=self.TYPES))
        runs.land([{"price": "1 €", "amount": "2"}])
        with pytest.raises(CastFailed, match=self.SAID):
            read_landing(folder.root).to_arrow()

    def test_a_made_column_is_checked(self, folder: Folder) -> None:
        runs = Runs(folder, file_format=make_format(column_types=self.TYPES))
        checks = {"columns": {"amount": {"min": 5, "required": True, "filled": 0.5}}}
        rows = [{"price": "22,90 €"}, {"price": "2,90 €"}, {"price": ""}]
        outcomes = runs.outcomes(rows, checks)
        assert {name: outcome.state for name, outcome in outcomes.items()} == {
            "columns.amount.filled": "passed",
            "columns.amount.required": "failed",
            "columns.amount.min": "failed",
        }
        assert str(outcomes["columns.amount.min"].examples[0].value) == "'2,90 €'"


class TestTypedLandings:
    """Parquet is written with types: types can be added, but not changed."""

    def test_columns_that_come_later_may_have_a_type(self, folder: Folder) -> None:
        runs = Runs(folder, file_format=make_format("parquet", column_types=PRICES))
        runs.land([{"price": "22,90 €"}])
        more = {**PRICES, "amount": {**EURO, "from": "price"}, "day": GERMAN_DAY}
        wider = make_format("parquet", column_types=more)
        runs.land([{"price": "1 €", "day": "Mo., 3. Aug. 2026"}], {"rows": {"min": 1}}, file_format=wider)
        assert read_landing(folder.root).to_arrow()["amount"].to_pylist() == [None, Decimal("1.00")]

    @pytest.mark.parametrize("types", [None, {}, {"price": "string"}, {**PRICES, "url": "url"}])
    def test_types_of_landed_columns_stay(self, folder: Folder, types: Any) -> None:
        runs = Runs(folder, file_format=make_format("parquet", column_types=PRICES))
        runs.land([{"price": "22,90 €", "url": "/1"}])
        with pytest.raises(FormatChanged, match=r"`column_types` is .* and was "):
            runs.land([{"price": "1"}], file_format=make_format("parquet", column_types=types))

    def test_the_profile_has_what_became_null(self, folder: Folder) -> None:
        chosen = make_format("parquet", column_types=PRICES, on_cast_error="null")
        runs = Runs(folder, file_format=chosen)
        for price in ("22,90 €", "22.90 €", "?"):
            runs.land([{"price": price}])
        profile = read_landing(folder.root).profile()
        assert (profile.columns["price"].filled, profile.columns["price"].misfits) == (3, 2)


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_numbers_and_booleans_of_json_have_no_marks_of_a_site(folder: Folder, name: FormatName) -> None:
    types = {
        "price": {"type": "decimal(12,3)", "decimal": ",", "thousands": "."},
        "amount": {"type": "float64", "from": "price", "unit": "€"},
        "stock": {"type": "bool", "true": ["ja"], "false": ["nein"]},
        "plain": "float64",
    }
    row = {"price": 1.234, "stock": True, "plain": 1.5, "text": 1.5, "list": [1]}
    outcomes = Runs(folder, file_format=make_format(name, column_types=types)).outcomes(
        [row], {"columns": {"price": {"max": 10}}}
    )
    assert outcomes["columns.price.max"].state == "passed"
    texts = {"text": "1.5", "list": "[1]"}
    expected = [{**row, "price": Decimal("1.234"), "amount": 1.234, **texts}]
    assert read_landing(folder.root).to_arrow().to_pylist() == expected


def test_types_are_of_texts_before_formulas_are_escaped(folder: Folder) -> None:
    chosen = make_format("csv", column_types={"price": EURO}, sanitize_formulas=True)
    Runs(folder, file_format=chosen).land(
        [{"price": "-5,10 €", "text": "-5"}, {"price": "3,00 €", "text": "="}]
    )
    landed = read_landing(folder.root)
    assert [row["price"] for row in landed.iter_rows()] == ["'-5,10 €", "3,00 €"]
    table = landed.to_arrow()
    assert table["price"].to_pylist() == [Decimal("-5.10"), Decimal("3.00")]
    assert table["text"].to_pylist() == ["'-5", "'="]
    assert {one.column: one.type for one in landed.propose_types()}["price"] == {
        "type": "decimal(18,2)",
        "decimal": ",",
        "currency": True,
    }


def test_the_text_of_a_made_column_stays_escaped(folder: Folder) -> None:
    made = {"n": {**EURO, "from": "price"}, "text": "string"}
    chosen = make_format("csv", column_types=made, sanitize_formulas=True)
    Runs(folder, file_format=chosen).land([{"price": "-1,00 €", "text": "=x"}])
    row = {"price": "'-1,00 €", "n": Decimal("-1.00"), "text": "'=x"}
    assert read_landing(folder.root).to_arrow().to_pylist() == [row]


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_a_text_without_type_keeps_each_character(folder: Folder, name: FormatName) -> None:
    Runs(folder, file_format=make_format(name, column_types={"price": EURO})).land([{"price": 1, "a": "\0x"}])
    assert read_landing(folder.root).to_arrow().to_pylist() == [{"price": Decimal("1.00"), "a": "\0x"}]


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("change", [{"column_types": {**PRICES, "new": "int64"}}, {"on_cast_error": "null"}])
def test_quarantined_rows_land_in_new_types(folder: Folder, name: FormatName, change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"column_types": PRICES}
    runs = Runs(folder, file_format=make_format(name, **options), max_part_bytes=1)
    runs.land([{"price": "1 €"}])
    runs.land([{"price": "2 €"}], {"rows": {"min": 5}}, on_failed_checks="quarantine")
    if name != "parquet" or "on_cast_error" not in change:
        runs.land([{"price": "3 €", "new": "7"}], file_format=make_format(name, **{**options, **change}))
    accept(folder.destination, commit=2, by="me")
    landed = read_landing(folder.root)
    landed.verify()
    prices = [1, 3, 2] if len(landed.to_arrow()) == 3 else [1, 2]
    assert landed.to_arrow()["price"].to_pylist() == prices


def test_a_row_counts_once_for_all_columns_of_its_text(folder: Folder) -> None:
    types = {"a": {**EURO, "from": "price"}, "b": {"type": "int64", "from": "price"}}
    chosen = make_format("parquet", column_types=types, on_cast_error="null")
    Runs(folder, file_format=chosen).land([{"price": "?"}, {"price": "1"}, {"price": "1 €"}])
    assert read_landing(folder.root).profile().columns["price"].misfits == 2


def test_bounds_are_compared_as_the_type_says(folder: Folder) -> None:
    runs = Runs(folder, file_format=make_format(column_types=PRICES))
    rows = [{"price": text} for text in ("22,90 €", "ab 1.299,– €", "9,00", "22.90")]
    outcome = runs.outcomes(rows, {"columns": {"price": {"min": 10}}})["columns.price.min"]
    assert [example.value for example in outcome.examples] == ["'9,00'", "'22.90'"]
    with pytest.raises(ChecksFailed, match="1 of 1 values are below 10 or no number"):
        runs.land([{"price": "1 €"}], {"columns": {"price": {"min": 10}}})


@pytest.mark.parametrize(
    ("declared", "argument", "rule"),
    [
        (7, "", "it must be one of string, bool"),
        ({}, "", "it must have the key `type`"),
        ({"type": "money"}, "['type']", "it must be one of string, bool"),
        ({"type": "int64", "mark": ","}, "", "its keys can be type, from, decimal"),
        ({"type": "float64", "decimal": ",", "thousands": ","}, "['thousands']", "it must differ"),
        ({"type": "float64", "thousands": "."}, "['thousands']", "it must differ from the decimal separator"),
        ({"type": "float64", "thousands": ".", "locale": "en"}, "['thousands']", "it must differ"),
        ({"type": "float64", "decimal": " ", "thousands": "\u00a0"}, "['thousands']", "it must differ"),
        ({"type": None}, "", "it must have the key `type`"),
        ({"type": "date32", "format": "20%y-%m-%d"}, "['format']", "not have a digit next to a directive"),
        ({"type": "timestamptz", "timezone": "Factory"}, "['timezone']", "it must be a time zone"),
        (
            {"type": "timestamptz", "timezone": "right/Europe/Berlin"},
            "['timezone']",
            "it must be a time zone",
        ),
        ({"type": "url", "base": "https://user:secret@a.example"}, "['base']", "without a user and password"),
        ({"type": "int64", "from": ""}, "['from']", "it must be the name of a column"),
        ({"type": "float64", "decimal": ",,"}, "['decimal']", "it must be a single character"),
        ({"type": "float64", "decimal": "5"}, "['decimal']", "it must be a single character"),
        ({"type": "float64", "thousands": "-"}, "['thousands']", "no digit, letter or sign"),
        ({"type": "float64", "currency": "€"}, "['currency']", "it must be True or False"),
        ({"type": "float64", "unit": ""}, "['unit']", "it must be a non-empty string"),
        ({"type": "float64", "locale": "xx_YY"}, "['locale']", "it must be a locale, such as de_CH"),
        ({"type": "float64", "locale": "deutsch!"}, "['locale']", "it must be a locale, such as de_CH"),
        ({"type": "bool", "currency": True}, "['currency']", "it is for numbers, and not for bool"),
        ({"type": "int64", "format": "%d"}, "['format']", "it is for dates and times, and not for int64"),
        ({"type": "date32", "locale": "de"}, "['locale']", "it needs a `format`"),
        ({"type": "date32", "format": "%d.%m."}, "['format']", "it must have one year"),
        ({"type": "date32", "format": "%d %Y"}, "['format']", "it must have one month"),
        ({"type": "date32", "format": "%m %Y"}, "['format']", "it must have one day"),
        ({"type": "date32", "format": "%d.%m.%Y %y"}, "['format']", "it must have one year"),
        ({"type": "date32", "format": "%d.%m.%Y %H"}, "['format']", "a date32 has no time"),
        ({"type": "date32", "format": "%d. %b %Y"}, "['format']", "%b needs a `locale`"),
        ({"type": "date32", "format": "%d.%m.%Y %Q"}, "['format']", "%Q is none of %m, %d"),
        ({"type": "date32", "format": "%d.%m.%Y %"}, "['format']", "% is none of %m, %d"),
        ({"type": "timestamp", "format": "%d.%m.%Y %I"}, "['format']", "%I with %p"),
        ({"type": "timestamp", "format": "%d.%m.%Y %H %H"}, "['format']", "each part once"),
        ({"type": "timestamp", "format": "%d.%m.%Y %z"}, "['format']", "needs %z or a `timezone`"),
        ({"type": "timestamptz", "format": "%d.%m.%Y %H"}, "['format']", "needs %z or a `timezone`"),
        ({"type": "timestamp", "timezone": "UTC"}, "['timezone']", "it is for timestamptz"),
        ({"type": "timestamptz", "timezone": "Mars/One"}, "['timezone']", "it must be a time zone"),
        ({"type": "timestamptz", "timezone": "../etc"}, "['timezone']", "it must be a time zone"),
        ({"type": "bool", "false": ["nein"]}, "['false']", "it needs `true`"),
        ({"type": "bool", "true": ["Ja"], "false": ["ja"]}, "['false']", "other words"),
        ({"type": "bool", "true": "ja"}, "['true']", "it must be a list"),
        ({"type": "url", "base": "/p"}, "['base']", "it must be a URL with http or https and a host"),
        ({"type": "url", "base": "ftp://a.example"}, "['base']", "it must be a URL with http or https"),
        ({"type": "url", "base": "https://"}, "['base']", "it must be a URL with http or https"),
        ({"type": "string", "base": "https://a.example"}, "['base']", "it is for url, and not for string"),
        ({"type": "int64", "from": "x"}, "['from']", "no column that is made of another one"),
        ({"type": "int64", "from": "y"}, "['from']", "no column that is made of another one"),
        ({"type": "int64", "from": 7}, "['from']", "it must be a string"),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_place(declared: Any, argument: str, rule: str) -> None:
    types = {"x": declared, "y": {"type": "int64", "from": "x"} if argument == "['from']" else "int64"}
    with pytest.raises(InvalidArgument) as refused:
        make_format(column_types=types)
    assert refused.value.argument == f"column_types['x']{argument}"
    assert rule in refused.value.rule
    assert "secret" not in str(refused.value)


def test_a_declaration_is_stored_as_it_is_written(folder: Folder) -> None:
    types = {"a": "int64", "b": {"type": "int64"}, "c": {**GERMAN_DAY, "from": "a"}}
    Runs(folder, file_format=make_format(column_types=types)).land([{"a": "1"}])
    stored = json.loads(folder.read("_manifest.json"))["encoding"]["column_types"]
    assert stored == {**types, "b": "int64"}
    assert re.match(r"\{.*\"from\":\"a\"", json.dumps(stored["c"], separators=(",", ":")))
