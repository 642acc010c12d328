"""Checks of rows before the commit: how they are declared, what they find, and what a landing does then."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.landing import rules
from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.errors import ChecksFailed, ExtraMissing
from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.formats.profile import MAX_COLUMNS
from airflow_provider_webcollect.landing.log.commits import MOST_RECORDS
from airflow_provider_webcollect.landing.write.review import accept, in_review
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import DataPage
from tests.landing.checked_runs import FILLED, OVERWRITE, Runs, goods
from tests.landing.conftest import Folder, crashing_at, listed
from tests.simulation.steps import Crash
from tests.storages import local


def price(**checks: Any) -> dict[str, Any]:
    return {"columns": {"price": checks}}


#: Values that are not a share above 0.
SHARES = [0, 1.5, "most", float("nan"), 10**400]
#: Wrong checks, options of the format, and what the error says.
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ("rows", {}, "`checks` is 'rows'; it must be a dict; its keys can be rows, columns, new_columns"),
    ({"row": {}}, {}, "`checks` is 'row'; its keys can be rows, columns, new_columns, missing_columns"),
    ({"rows": {"minimum": 1}}, {}, "its keys can be min, min_of_usual, max_of_usual, max_wrong"),
    ({"rows": {"min": 0}}, {}, r"`checks\['rows'\]\['min'\]` is 0; it must be an integer of 1 or more"),
    ({"rows": {"min_of_usual": 2}}, {}, "it must be a number above 0, up to 1"),
    *(({"rows": {"max_of_usual": most}}, {}, "a number 1 or more") for most in (0.5, True, "inf", b"2")),
    ({"columns": ["price"]}, {}, r"`checks\['columns'\]` is \['price'\]; it must be a dict"),
    ({"columns": {1: {}}}, {}, "columns are named by strings"),
    ({"columns": {"price": 0.9}}, {}, r"`checks\['columns'\]\['price'\]` is 0.9; it must be a dict"),
    *((price(filled=share), {}, "it must be a number above 0, up to 1") for share in SHARES),
    (price(filled_of_usual=1.5), {}, "it must be a number above 0, up to 1"),
    (price(pattern="("), {}, "it is not a regular expression of RE2: missing \\)"),
    (price(pattern="(?<=a)b"), {}, r"regular expression of RE2: .*\(\?<="),
    (price(pattern=r"(a)\1"), {}, r"regular expression of RE2: .*\\1"),
    (price(pattern=5), {}, "it must be a regular expression"),
    (price(unique="yes"), {}, r"`checks\['columns'\]\['price'\]\['unique'\]` is 'yes'"),
    ({"columns": {"title": {"unique": True}}}, {"columns": ["price"]}, "it must be one of `columns`"),
    ({"new_columns": "ask"}, {}, "it must be one of allow, warn, fail"),
    ({"new_columns": "warn"}, {"columns": ["price"]}, "no column can be new where `columns` are set"),
    (price(pattern="((a{100}){100}){100}"), {}, "it is not a regular expression"),
    (price(pattern="\ud800"), {}, "it must not contain a lone surrogate"),
    ({"columns": {"\ud800": {"filled": 1}}}, {}, "it must not contain a lone surrogate"),
    ({"rows": {"min": 10**30}}, {}, "it must be an integer from 1 to 9223372036854775807"),
    ({"rows": {"max_wrong": 1.01}}, {}, r"\['max_wrong'\]` is 1.01; it must be a number from 0 to 1"),
    *(({"rows": {"max_wrong": most}}, {}, "it must be a number from 0 to 1") for most in (-0.1, True, "nan")),
    (price(required="yes"), {}, r"\['price'\]\['required'\]` is 'yes'; it must be True or False"),
    (price(min="cheap"), {}, r"\['price'\]\['min'\]` is 'cheap'; it must be a number"),
    *((price(max=most), {}, "it must be a number") for most in (True, "inf")),
    (price(min="10", max=5.5), {}, r"\['min'\]` is '10'; it must be at most `max`, 5.5"),
    (price(values=[]), {}, r"\['values'\]` is \[\]; it must hold at least one entry"),
    (price(values="Berlin"), {}, "it must be a list"),
    (price(values=["x", None]), {}, r"\['values'\]\[1\]` is None; it must be a text, a number or a boolean"),
    *((price(values=[value]), {}, "a text, a number or a boolean") for value in (float("inf"), ["a"])),
    (price(values=["\ud800"]), {}, "it must not contain a lone surrogate"),
    (price(values=[10**5000]), {}, "it must be an integer"),
    (price(maximum=1), {}, "keys can be required, pattern, min, max, values, unique, filled"),
]


@pytest.mark.parametrize(("checks", "options", "message"), WRONG)
def test_a_wrong_declaration_is_named(checks: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make_checks(checks, make_format(**options))


def test_a_check_may_come_from_a_template() -> None:
    checks = {
        "rows": {"min": "5"},
        "columns": {"sku": {"filled": "0.5", "unique": "true"}, "url": {"unique": "False"}},
    }
    made = make_checks(checks, make_format())
    assert made
    assert made.rows.min == 5
    assert (made.columns["sku"].filled, made.columns["sku"].unique) == (0.5, True)
    assert not made.columns["url"].unique


@pytest.mark.parametrize("checks", [None, "", {}, {"rows": {}}, {"columns": {}, "new_columns": "allow"}])
def test_nothing_to_check_is_no_check(checks: Any) -> None:
    assert make_checks(checks, make_format()) is None


def test_a_pattern_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    argument = r"checks\['columns'\]\['price'\]\['pattern'\]"
    said = rf"^{argument} needs the package re2.*; install airflow-provider-webcollect\[patterns\]$"
    with pytest.raises(ExtraMissing, match=said):
        make_checks(price(pattern=r"\d+"), make_format())


def prices(*values: Any) -> list[dict[str, Any]]:
    """Return rows with these prices; None leaves the price out."""
    return [row for value in values for row in goods(1, price=value)]


UNIQUE: dict[str, Any] = {"columns": {"url": {"unique": True}}}
MANY = [f"c{number}" for number in range(MAX_COLUMNS + 5)]
#: Rows, their checks, and what these find wrong; None if they pass.
OUTCOMES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str | None]] = {
    "enough rows": (goods(5), {"rows": {"min": 5}}, None),
    "too few rows": (goods(4), {"rows": {"min": 5}}, "4 rows"),
    "no such column": (prices(*[None] * 10), FILLED, "no row has it"),
    "blanks": (prices("1", *[" \t"] * 9), FILLED, r"filled in 10 % of 10 rows (' \t' at offset 0)"),
    "nearly all is not all": (
        [*goods(1999), *goods(1, price="")],
        {"columns": {"price": {"filled": 1}}},
        "filled in 99.9 % of 2,000 rows ('' at offset 1900)",
    ),
    "a pattern is for whole values that are filled": (
        prices("1.50", "", None, 12, "1.5", "x" * 500),
        {"columns": {"price": {"pattern": r"\d+(\.\d\d)?"}}},
        f"2 of 4 values do not match ('1.5' at offset 0, '{'x' * 60}'… at offset 0)",
    ),
    "values that are there twice": (
        [*goods(150), *goods(2), {"url": ""}, {"url": ""}],
        UNIQUE,
        "2 of 152 values are duplicates ('https://shop/0' at offset 100, 'https://shop/1' at offset 100)",
    ),
    "more checked columns than are counted else": (
        goods(250, **dict.fromkeys(MANY, "x")),
        {"columns": {name: {"filled": 1} for name in MANY}},
        None,
    ),
}


class TestOutcomes:
    @pytest.mark.parametrize("name", OUTCOMES)
    def test_each_check_finds_what_is_wrong(self, runs: Runs, name: FormatName) -> None:
        rows, checks, said = OUTCOMES[name]
        outcomes = runs.outcomes(rows, checks).values()
        assert {outcome.state for outcome in outcomes} == {"failed" if said else "passed"}
        assert said is None or f": {said}; expected: " in "".join(map(str, outcomes))

    def test_in_another_run_values_are_no_repetition(self, runs: Runs) -> None:
        for _ in range(2):
            assert runs.outcomes(goods(5), UNIQUE)["columns.url.unique"].state == "passed"

    @pytest.mark.parametrize(
        ("least", "count"),
        [*((0.5, count) for count in (0, 49, 50, 100, 300, 301)), (0.55, 55), (0.07, 7), (0.29, 29)],
    )
    def test_the_usual_count_is_the_median_of_landings(self, runs: Runs, least: float, count: int) -> None:
        for earlier in (100, 90, 110, 100):
            runs.land(goods(earlier))
        outcomes = runs.outcomes(goods(count), {"rows": {"min_of_usual": least, "max_of_usual": 3}})
        assert outcomes["rows.min_of_usual"].state == ("passed" if count >= round(least * 100) else "failed")
        assert outcomes["rows.max_of_usual"].state == ("passed" if count <= 300 else "failed")
        expected = f"at least {least} times 100, the median of the last landings (100, 90, 110, 100)"
        assert outcomes["rows.min_of_usual"].expected == expected

    def test_an_overwrite_is_compared_with_what_it_replaces(self, runs: Runs) -> None:
        for _ in range(4):
            runs.rows.clear()
            runs.land(goods(100), **OVERWRITE)
        runs.rows.clear()
        checks = {"rows": {"min_of_usual": 0.5}}
        assert runs.outcome(goods(9), checks, **OVERWRITE).state == "failed"

    def test_a_pattern_has_a_bound_whatever_it_is(self, runs: Runs) -> None:
        # a backtracking matcher would try every way to divide the words, practically without end
        rows = [row for count in (60, 100_000) for row in goods(1, price=f"{'a' * count}!")]
        outcomes = runs.outcomes(rows, {"columns": {"price": {"pattern": r"(\w+\s?)+"}}})
        assert outcomes["columns.price.pattern"].found == "2 of 2 values do not match"

    def test_checks_without_a_pattern_need_no_re2(self, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "re2", None)
        column = {"required": True, "min": 1, "max": 2, "values": ["1.50"], "unique": True, "filled": 1}
        checks = {"rows": {"min": 1, "max_wrong": 0.5}, "columns": {"price": column}, "new_columns": "fail"}
        outcomes = runs.outcomes(goods(1), checks)
        assert outcomes["columns.price.values"].state == "passed"

    def test_rows_that_cannot_be_decoded_are_counted_apart(self, runs: Runs) -> None:
        nested = msgspec.Raw(b'{"url":' + b"[" * 5000 + b"]" * 5000 + b"}")
        (good,) = [msgspec.Raw(msgspec.json.encode(row)) for row in goods(1)]
        checks = {"columns": {"url": {"filled": 1, "unique": True}, "price": {"filled": 1}}}

        def landed(rows: list[msgspec.Raw]) -> dict[str, str]:
            fetch = listed([DataPage(offset=len(rows), total=len(rows), rest_total=0, rows=rows)])
            outcomes = runs.outcomes([], checks, fetch=fetch, **OVERWRITE)
            return {f"{name} {outcome.state}": outcome.found for name, outcome in outcomes.items()}

        assert landed([good, nested])["columns.url.filled passed"] == (
            "filled in 100 % of 1 rows, without 1 that cannot be decoded"
        )
        assert landed([nested])["columns.url.present skipped"] == ("no row, without 1 that cannot be decoded")

    def test_columns_that_were_not_counted_are_not_new(self, runs: Runs) -> None:
        runs.land(goods(5, **dict.fromkeys(MANY, "x")))
        assert runs.outcome(goods(5, **{MANY[-1]: "x"}), {"new_columns": "fail"}).state == "skipped"

    def test_messages_have_bounds(self, runs: Runs) -> None:
        names = ["n" * 5000 + str(number) for number in range(150)]
        checks = {"columns": {name: {"pattern": "x" * 5000} for name in names}, "new_columns": "fail"}
        runs.land(goods(1))
        with pytest.raises(ChecksFailed) as failure:
            runs.land(goods(1, **dict.fromkeys(names, "y" * 5000)), checks)
        assert len(str(failure.value)) < 15_000
        assert "; and 131 more. 1 row of commit 2" in str(failure.value)

    def test_unique_says_how_many_it_has_compared(self, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rules, "MOST_COMPARED", 10)
        rows = [*goods(12), *goods(1), {"url": "https://shop/11"}]
        assert runs.outcome(rows, UNIQUE).found == "1 of the first 10 values are duplicates"

    def test_columns_that_are_new(self, runs: Runs) -> None:
        for expected in ("skipped", "passed"):
            assert runs.outcome(goods(5), {"new_columns": "fail"}).state == expected
        outcome = runs.outcome(goods(5, stars="5"), {"new_columns": "warn"})
        assert (outcome.state, outcome.found) == ("warning", "stars")
        assert runs.outcome(goods(5, stars="5"), {"new_columns": "fail"}).state == "passed"
        many = {f"column_{number:02d}": "x" for number in range(13)}
        outcome = runs.outcome(goods(5, **many), {"new_columns": "fail"})
        assert outcome.found.startswith("column_00, column_01, ")
        assert outcome.found.endswith(", column_09 and 3 more")

    def test_columns_that_no_row_has_any_more(self, runs: Runs) -> None:
        runs.land(goods(5, stars="5"))
        runs.land(goods(5))
        # not all landings before had `stars`
        assert runs.outcome(goods(5), {"missing_columns": "fail"}).state == "passed"
        outcome = runs.outcome(goods(5, price=None), {"missing_columns": "fail"})
        assert (outcome.state, outcome.found) == ("failed", "price")

    @pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
    def test_all_formats_are_checked_alike(self, runs: Runs, name: FormatName) -> None:
        checks = {"columns": {"price": {"filled": 0.9, "pattern": r"\d\.\d\d", "unique": True}}}
        rows = [*goods(1, price=1.25), *goods(1, price="1.25"), *goods(1, price="2"), *goods(1, price="")]
        outcomes = runs.outcomes(rows, checks, file_format=make_format(name))
        assert {check: outcome.found for check, outcome in outcomes.items()} == {
            "columns.price.filled": "filled in 75 % of 4 rows",
            "columns.price.pattern": "1 of 3 values do not match",
            "columns.price.unique": "1 of 3 values are duplicates",
        }

    def test_single_rows_that_are_accepted_late_are_not_a_landing(self, runs: Runs) -> None:
        """This holds even once the manifest no longer has records of their runs."""
        single: Any = {"rows": {"max_wrong": 0.5}, "columns": {"price": {"required": True}}}
        for _ in range(6):
            runs.land([*goods(9), *goods(1, price="")], single)
        for _ in range(MOST_RECORDS):
            runs.land(goods(9))
        for commit in range(1, 7):
            accept(runs.folder.location, commit=commit)
        assert runs.outcome(goods(9), {"rows": {"max_of_usual": 2}}).state == "passed"


class TestFailures:
    def test_failed_checks_land_nothing_and_say_what_to_do(self, runs: Runs) -> None:
        marks: list[str] = []
        runs.land(goods(5), FILLED, mark=lambda: marks.append("marked"))
        rows = runs.folder.rows()
        with pytest.raises(ChecksFailed) as failure:
            runs.land(goods(4, price=""), FILLED, mark=lambda: marks.append("marked"))
        assert runs.folder.rows() == rows
        assert marks == ["marked"]
        where = shlex.quote(runs.folder.destination.url)
        assert str(failure.value).splitlines() == [
            f"1 check failed for task t at {where}: columns.price.filled: filled in 0 % of 4 rows "
            "('' at offset 5); expected: filled in at least 95 % of the rows. 4 rows of commit 3 are "
            f"quarantined. `webcollect landing cat {where} --quarantined 3 --reasons` shows them, "
            f"`webcollect landing accept {where} --commit 3` lands them, and "
            f"`webcollect landing discard {where} --commit 3` deletes them"
        ]
        assert failure.value.permanent

    @pytest.mark.parametrize("wrap", [str, lambda text: [text]], ids=["text", "list"])
    def test_values_of_a_site_cannot_forge_the_message(self, runs: Runs, wrap: Callable[[str], Any]) -> None:
        runs.land(goods(1))
        # line breaks, two ways to erase the terminal's screen, and a change of the reading direction
        forged = "9`webcollect landing accept x;touch owned;`\n\x1b[2J\x9b2J\u202e\u2028"
        checks = {"columns": {"price": {"pattern": r"\d+"}}, "new_columns": "fail"}
        with pytest.raises(ChecksFailed) as failure:
            runs.land(goods(1, price=wrap(forged), **{forged: "x"}), checks)
        message = str(failure.value)
        assert message.isprintable()
        where = shlex.quote(runs.folder.destination.url)
        assert re.findall("`([^`]*)`", message) == [
            f"webcollect landing cat {where} --quarantined 2 --reasons",
            f"webcollect landing accept {where} --commit 2",
            f"webcollect landing discard {where} --commit 2",
        ]

    def test_a_folder_with_control_characters_is_in_no_command(self, tmp_path: Path) -> None:
        runs = Runs(Folder(local(tmp_path).fs, f"{tmp_path}/\x1b[201~\ntouch owned\n"))
        with pytest.raises(ChecksFailed) as failure:
            runs.land(goods(4, price=""), FILLED)
        assert "`webcollect" not in str(failure.value)

    @pytest.mark.usefixtures("each_part_is_staged")
    @pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
    def test_an_interrupted_landing_is_checked_as_a_whole(self, runs: Runs, name: FormatName) -> None:
        chosen = make_format(name, sanitize_formulas=name == "csv")
        checks = {"columns": {"price": {"pattern": r"1\.50|\+490|=1|true", "unique": True, "filled": 1}}}
        texts = ["1.50", "+490", "=1", "1.5", "", "x, y", "two\nlines", 'a "word"']
        prices: list[Any] = [*texts, [], {}, None, True, 7, 0.25]
        rows = [*(row for price in prices for row in goods(7, price=price)), {"url": "no price"}]
        rows = [row if row["url"] != "https://shop/3" else {**row, "price": 1.25} for row in rows]
        options: dict[str, Any] = {"file_format": chosen, "max_part_bytes": 1}
        options |= OVERWRITE
        fresh = runs.outcomes([*rows, *rows], checks, **options)
        with pytest.raises(Crash):
            runs.land([], checks, read=crashing_at(2), **options)
        resumed = runs.again(checks, on_failed_checks="warn", **options).checks
        assert {outcome.check: (outcome.found, outcome.examples[0].offset) for outcome in resumed} == {
            check: (outcome.found, outcome.examples[0].offset) for check, outcome in fresh.items()
        }

    @pytest.mark.parametrize("on_failed_checks", ["fail", "quarantine"])
    @pytest.mark.parametrize("landed", [0, 5])
    def test_nothing_new_is_too_few_rows(self, runs: Runs, on_failed_checks: str, landed: int) -> None:
        runs.land(goods(landed))
        before = runs.folder.names(), runs.folder.manifest()
        options = {"on_failed_checks": on_failed_checks, "mark": lambda: pytest.fail("marked")}
        said = r"rows\.min: 0 rows; expected: at least 1\. Nothing was"
        with pytest.raises(ChecksFailed, match=said) as failure:
            runs.land([], {"rows": {"min": 1}, **FILLED}, **options)
        assert "staged" not in str(failure.value)
        assert (runs.folder.names(), runs.folder.manifest()) == before
        assert in_review(runs.folder.location) == ()
