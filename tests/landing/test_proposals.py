"""Proposed types for texts: the right one in five languages, or none and the possible readings."""

# ruff: noqa: RUF001  # the characters are meant

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.reader import ProposedType, read_landing
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.checked_runs import Runs
from tests.landing.conftest import Folder
from tests.storages import local

MONEY = {"type": "decimal(18,2)", "currency": True}
#: Columns of ten sites in five languages: their texts, and the only type that fits these; None for no type.
SITES: dict[str, dict[str, tuple[list[str], Any]]] = {
    "a German shop": {
        "price": (["22,90 €", "ab 1.299,00 €", "9,99 €"], {**MONEY, "decimal": ",", "thousands": "."}),
        "added": (["Mo., 3. Aug. 2026", "Di., 14. Sept. 2026"], {"format": "%a, %d. %b %Y", "locale": "de"}),
        "in_stock": (["ja", "nein", "Ja"], {"type": "bool", "true": ["ja"], "false": ["nein"]}),
        "sku": (["00123", "00124", "91000"], None),
    },
    "a German estate agent": {
        "area": (["64,5 m²", "120 m²"], {"type": "decimal(18,1)", "decimal": ",", "unit": "m²"}),
        "rooms": (["3", "2", "4"], "int64"),
        "free_from": (["13.04.2026", "01.05.2026"], {"type": "date32", "format": "%d.%m.%Y"}),
    },
    "a Swiss shop": {"price": (["CHF 1'299.50", "CHF 19.90"], {**MONEY, "thousands": "'"})},
    "a French shop": {
        "price": (["1\u202f299,00 €", "19,90 €"], {**MONEY, "decimal": ",", "thousands": " "}),
        "date": (["3 août 2026", "14 févr. 2026"], {"format": "%d %b %Y", "locale": "fr"}),
        "stock": (["oui", "non"], {"type": "bool", "true": ["oui"], "false": ["non"]}),
        "old_price": (["1\u202f049,00 €", "5 000,00 €"], {**MONEY, "decimal": ",", "thousands": " "}),
    },
    "a French list": {"model": (["A4", "A5", "A6"], None), "year": (["2024", "2025"], "int64")},
    "a Spanish portal": {
        "date": (["3 de agosto de 2026", "14 de mayo de 2026"], {"format": "%d de %b de %Y", "locale": "es"}),
        "stock": (["sí", "no", "no"], {"type": "bool", "true": ["sí"], "false": ["no"]}),
    },
    "an Italian shop": {
        "price": (["€ 22,90", "€ 5,00"], {**MONEY, "decimal": ","}),
        "link": (["https://a.example/1", "https://a.example/2"], "url"),
        "path": (["/p/1", "/p/2"], None),
    },
    "an American shop": {
        "price": (["$1,299.00", "$9.99"], {**MONEY, "thousands": ","}),
        "date": (["Aug 3, 2026", "July 14, 2026"], {"format": "%b %d, %Y", "locale": "en"}),
        "weight": (["12 lbs", "7.5 lbs"], {"type": "decimal(18,1)", "unit": "lbs"}),
        "time": (["08/23/2026 01:05 PM"], {"type": "timestamp", "format": "%m/%d/%Y %I:%M %p"}),
    },
    "a British list": {
        "date": (["23/08/32", "01/09/26"], {"type": "date32", "format": "%d/%m/%y"}),
        "price": (["£5", "£12"], {"type": "int64", "currency": True}),
    },
    "an interface": {
        "at": (["2026-08-03T10:00:00Z", "2026-08-03T10:00:00+02:00"], "timestamptz"),
        "day": (["2026-08-03"], "date32"),
        "share": (["1e-5", "0.25"], "float64"),
        "flag": (["true", "false"], {"type": "bool", "true": ["true"], "false": ["false"]}),
        "empty": (["", " "], None),
        "text": (["12 pieces or more", "none"], None),
    },
}


def proposed(tmp_path: Path, columns: dict[str, list[str]], share: float = 1.0) -> dict[str, ProposedType]:
    folder = Folder.new(local(tmp_path))
    rows = [dict(zip(columns, texts, strict=True)) for texts in zip(*columns.values(), strict=True)]
    Runs(folder, file_format=make_format()).land(rows)
    return {one.column: one for one in read_landing(folder.root).propose_types(share)}


@pytest.mark.parametrize("site", SITES)
def test_each_column_gets_the_one_type_that_fits_or_none(tmp_path: Path, site: str) -> None:
    for number, (column, (texts, expected)) in enumerate(SITES[site].items()):
        (found,) = proposed(tmp_path / str(number), {column: texts}).values()
        if isinstance(expected, dict):
            expected = {"type": "date32", **expected}
        assert (found.type, found.readings) == (expected, ()), column
        assert expected is None or (found.share, found.misfits) == (1.0, ())


@pytest.mark.parametrize(
    ("texts", "readings"),
    [
        (["03/04/2026", "05/06/2026"], ["%d/%m/%Y", "%m/%d/%Y"]),
        (["23/08/26", "01/09/26"], ["%d/%m/%y", "%y/%m/%d"]),
        (["26.08.03", "26.08.04"], ["%d.%m.%y", "%y.%m.%d"]),
        (["601 234 567", "602 345 678"], [{"type": "int64", "decimal": ",", "thousands": " "}, "string"]),
        (["1.234", "2.345"], [{"type": "int64", "decimal": ",", "thousands": "."}, "decimal(18,3)"]),
        (
            ["1,234", "2,345"],
            [{"type": "int64", "thousands": ","}, {"type": "decimal(18,3)", "decimal": ","}],
        ),
    ],
)
def test_ambiguous_texts_get_both_readings(tmp_path: Path, texts: list[str], readings: list[Any]) -> None:
    (found,) = proposed(tmp_path, {"x": texts}).values()
    assert found.type is None
    given = [one.get("format", one) if isinstance(one, dict) else one for one in found.readings]
    assert given == readings


@pytest.mark.parametrize(
    "texts",
    [
        ["8.1.29", "8.2.20", "10.11.12"],
        ["$1.2M", "$900K", "$5"],
        ["$.99", "$1.49"],
        ["030 1234", "040 1235"],
        ["1,5 Mio. €", "900 Tsd. €"],
        ["T-Shirt 22,90 €", "Hose 19,90 €"],
        ["+34 612 345 678", "+34 612 345 679"],
        ["+491711234567", "+491711234568"],
        [" 01067", "99084"],
        ["０１０６７", "９９０８４"],
        ["€ 0123", "€ 0124"],
        ["NO", "NO"],
        ["12a", "14a"],
        ["3 pm", "4 pm"],
        ["1.2k", "3.4k"],
        ["12e5", "34e7"],
        ["A4", "A5"],
        ["10x20", "20x30"],
        ["12:30", "13:30"],
        ["1/2", "3/4"],
    ],
)
def test_codes_versions_and_other_words_stay_texts(tmp_path: Path, texts: list[str]) -> None:
    (found,) = proposed(tmp_path, {"x": texts}).values()
    assert (found.type, found.readings) == (None, ())


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["12345678901234567890", "1"], "decimal(20,0)"),
        (["1234567890123.123456", "1"], "decimal(19,6)"),
        (["１２.５０", "1.5"], {"type": "decimal(18,2)", "thousands": ","}),
        (["-5 °C", "3 °C"], {"type": "int64", "unit": "°C"}),
    ],
)
def test_a_type_that_is_proposed_fits_its_texts(tmp_path: Path, texts: list[str], expected: Any) -> None:
    (found,) = proposed(tmp_path / "1", {"x": texts}).values()
    assert found.type == expected
    folder = Folder.new(local(tmp_path / "2"))
    runs = Runs(folder, file_format=make_format(column_types={"x": found.type}))
    runs.land([{"x": text} for text in texts])
    assert read_landing(folder.root).to_arrow()["x"].null_count == 0


def test_texts_that_do_not_fit_may_come_first(tmp_path: Path) -> None:
    texts = [*["n/a"] * 10, *map(str, range(2000))]
    (found,) = proposed(tmp_path, {"x": texts}, 0.99).values()
    assert (found.type, found.misfits[0]) == ("int64", "n/a")


def test_one_text_decides_between_two_readings(tmp_path: Path) -> None:
    (found,) = proposed(tmp_path, {"x": ["03/04/2026", "13/04/2026"]}).values()
    assert found.type == {"type": "date32", "format": "%d/%m/%Y"}


def test_a_share_of_the_texts_may_be_something_else(tmp_path: Path) -> None:
    texts = [*(f"{number},50 €" for number in range(96)), "auf Anfrage", "?", "-", "22.90 €"]
    assert proposed(tmp_path / "1", {"x": texts})["x"].type is None
    found = proposed(tmp_path / "2", {"x": texts}, 0.95)["x"]
    assert found.type == {**MONEY, "decimal": ","}
    assert (found.values, found.share, found.misfits) == (100, 0.96, ("auf Anfrage", "?", "-"))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([*["22,90 €"] * 95, "1.299,00 €", "1.399,00 €"], {**MONEY, "decimal": ",", "thousands": "."}),
        ([*map(str, range(95)), "1.5", "2.5"], "decimal(18,1)"),
    ],
)
def test_of_types_the_one_that_most_texts_fit_is_proposed(
    tmp_path: Path, texts: list[str], expected: Any
) -> None:
    found = proposed(tmp_path, {"x": [*texts, "?"]}, 0.95)["x"]
    assert (found.type, found.misfits) == (expected, ("?",))


def test_columns_of_all_parts_count(tmp_path: Path) -> None:
    folder = Folder.new(local(tmp_path))
    runs = Runs(folder, file_format=make_format(column_types={"n": "int64"}), max_part_bytes=1)
    for row in ({"n": "1"}, {"n": "2", "x": "3"}, {"n": "2.5"}):
        runs.land([row])
    found = {one.column: one.type for one in read_landing(folder.root).propose_types()}
    assert found == {"n": "decimal(18,1)", "x": "int64"}


def test_columns_that_are_typed_already_are_left_out(tmp_path: Path) -> None:
    folder = Folder.new(local(tmp_path))
    Runs(folder, file_format=make_format("parquet", column_types={"n": "int64"})).land([{"n": "1", "x": "2"}])
    assert [one.column for one in read_landing(folder.root).propose_types()] == ["x"]


@pytest.mark.parametrize("share", [0, 0.4, 1.1, "all", None])
def test_a_wrong_share_is_refused(tmp_path: Path, share: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"`share` is .*; it must be a number from 0.5 to 1"):
        proposed(tmp_path, {"x": ["1"]}, share)
