"""Checks of rows before the commit: how they are declared, what they find, and what a landing does then."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.landing import checks as checking
from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.commits import Run
from airflow_provider_webcollect.landing.errors import ChecksFailed
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.options import make_options
from airflow_provider_webcollect.landing.profile import MAX_COLUMNS
from airflow_provider_webcollect.landing.review import in_review
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import DataPage
from tests.landing.checked_runs import Runs, goods
from tests.landing.conftest import Crash, crashing_at, listed
from tests.landing.pages import serving

WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ("rows", {}, "`checks` is 'rows'; it must be a dict; its keys can be rows, columns, new_columns"),
    ({"row": {}}, {}, "`checks` is 'row'; its keys can be rows, columns, new_columns, missing_columns"),
    ({"rows": {"minimum": 1}}, {}, "its keys can be min, min_of_usual, max_of_usual"),
    ({"rows": {"min": 0}}, {}, r"`checks\['rows'\]\['min'\]` is 0; it must be an integer of 1 or more"),
    ({"rows": {"min_of_usual": 2}}, {}, "it must be a number above 0, up to 1"),
    ({"rows": {"max_of_usual": 0.5}}, {}, "it must be a number 1 or more"),
    ({"rows": {"max_of_usual": True}}, {}, "it must be a number 1 or more"),
    (
        {"columns": ["price"]},
        {},
        r"`checks\['columns'\]` is \['price'\]; it must be a dict of checks by column",
    ),
    ({"columns": {1: {}}}, {}, "columns are named by strings"),
    ({"columns": {"price": 0.9}}, {}, r"`checks\['columns'\]\['price'\]` is 0.9; it must be a dict"),
    ({"columns": {"price": {"filled": 1.5}}}, {}, "it must be a number above 0, up to 1"),
    ({"columns": {"price": {"filled": "most"}}}, {}, "it must be a number above 0, up to 1"),
    ({"columns": {"price": {"filled": float("nan")}}}, {}, "it must be a number above 0, up to 1"),
    ({"columns": {"price": {"pattern": "("}}}, {}, "it is not a regular expression of RE2: missing \\)"),
    ({"columns": {"price": {"pattern": "(?<=a)b"}}}, {}, r"regular expression of RE2: .*\(\?<="),
    ({"columns": {"price": {"pattern": r"(a)\1"}}}, {}, r"regular expression of RE2: .*\\1"),
    ({"columns": {"price": {"pattern": 5}}}, {}, "it must be a regular expression"),
    ({"columns": {"price": {"unique": "yes"}}}, {}, r"`checks\['columns'\]\['price'\]\['unique'\]` is 'yes'"),
    ({"columns": {"title": {"unique": True}}}, {"columns": ["price"]}, "it must be one of `columns`"),
    ({"new_columns": "ask"}, {}, "it must be one of allow, warn, fail"),
    ({"new_columns": "warn"}, {"columns": ["price"]}, "no other column lands, so that none can be new"),
    *[
        (
            {"columns": {"price": check}},
            {"file_format": "parquet", "column_types": {"price": "float64"}},
            "column_types makes it float64, and this is a check of texts",
        )
        for check in ({"pattern": "x"}, {"unique": True})
    ],
    ({"columns": {"price": {"filled": 10**400}}}, {}, "it must be a number above 0, up to 1"),
    ({"columns": {"price": {"pattern": "((a{100}){100}){100}"}}}, {}, "it is not a regular expression"),
    ({"columns": {"price": {"pattern": "\ud800"}}}, {}, "it must be text without half a character"),
    ({"columns": {"\ud800": {"filled": 1}}}, {}, "it must be text without half a character"),
    ({"rows": {"max_of_usual": "inf"}}, {}, "it must be a number 1 or more"),
    ({"rows": {"max_of_usual": b"2"}}, {}, "it must be a number 1 or more"),
    ({"rows": {"min": 10**30}}, {}, "it must be an integer from 1 to 9223372036854775807"),
]


@pytest.mark.parametrize(("checks", "options", "message"), WRONG)
def test_what_is_declared_wrongly_is_said(checks: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make_checks(checks, make_format(**options))


def test_a_check_from_a_template_is_that_of_its_value() -> None:
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


def test_a_quarantine_goes_with_incremental_landings() -> None:
    with pytest.raises(InvalidArgument, match="it goes with mode='incremental' alone"):
        make_options(make_format(), mode="full", on_failed_checks="quarantine")


def prices(*values: Any) -> list[dict[str, Any]]:
    """Return rows with these prices; None leaves it out."""
    return [row for value in values for row in goods(1, price=value)]


FILLED: dict[str, Any] = {"columns": {"price": {"filled": 0.95}}}
UNIQUE: dict[str, Any] = {"columns": {"url": {"unique": True}}}
MANY = [f"c{number}" for number in range(MAX_COLUMNS + 5)]
#: Rows, their checks, and what these find wrong; None if they pass.
OUTCOMES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str | None]] = {
    "enough rows": (goods(5), {"rows": {"min": 5}}, None),
    "too few rows": (goods(4), {"rows": {"min": 5}}, "4 rows"),
    "no such column": (prices(*[None] * 10), FILLED, "no row has it"),
    "empty texts": (prices(*[""] * 10), FILLED, "filled in 0 % of 10 rows ('' at offset 0)"),
    "blanks": (prices("1", *[" \t"] * 9), FILLED, r"filled in 10 % of 10 rows (' \t' at offset 0)"),
    "empty lists and objects": (
        prices([], {}, *["1"] * 8),
        FILLED,
        "filled in 80 % of 10 rows ([] at offset 0, {} at offset 0)",
    ),
    "zeros": (prices(0, False, *["1"] * 8), FILLED, None),
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
        "2 of 152 values were there before ('https://shop/0' at offset 100, 'https://shop/1' at offset 100)",
    ),
    "more checked columns than are counted else": (
        goods(250, **dict.fromkeys(MANY, "x")),
        {"columns": {name: {"filled": 1} for name in MANY}},
        None,
    ),
}


class TestOutcomes:
    @pytest.mark.parametrize("name", OUTCOMES)
    def test_what_they_find(self, runs: Runs, name: str) -> None:
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
    def test_what_is_usual_is_the_median_of_the_landings_before_and_a_bound_is_exact(
        self, runs: Runs, least: float, count: int
    ) -> None:
        for earlier in (100, 90, 110, 100):
            runs.land(goods(earlier))
        outcomes = runs.outcomes(goods(count), {"rows": {"min_of_usual": least, "max_of_usual": 3}})
        assert outcomes["rows.min_of_usual"].state == ("passed" if count >= round(least * 100) else "failed")
        assert outcomes["rows.max_of_usual"].state == ("passed" if count <= 300 else "failed")
        expected = f"at least {least} times 100, the median of the last landings (100, 90, 110, 100)"
        assert outcomes["rows.min_of_usual"].expected == expected

    def test_with_fewer_than_four_landings_before_nothing_is_usual(self, runs: Runs) -> None:
        for _ in range(3):
            runs.land(goods(100))
        (outcome,) = runs.outcomes(goods(1), {"rows": {"min_of_usual": 0.5}}).values()
        assert (outcome.state, outcome.found) == ("skipped", "1 row, and 3 landings before this one")

    def test_what_replaces_a_landing_is_compared_with_what_was_replaced(self, runs: Runs) -> None:
        for _ in range(4):
            runs.rows.clear()
            runs.land(goods(100), mode="full", if_exists="overwrite")
        runs.rows.clear()
        checks = {"rows": {"min_of_usual": 0.5}}
        (outcome,) = runs.outcomes(goods(9), checks, mode="full", if_exists="overwrite").values()
        assert outcome.state == "failed"

    def test_a_pattern_has_a_bound_whatever_it_is(self, runs: Runs) -> None:
        # a matcher that backtracks tries each way to divide the words, which never ends
        rows = [row for count in (60, 100_000) for row in goods(1, price=f"{'a' * count}!")]
        outcomes = runs.outcomes(rows, {"columns": {"price": {"pattern": r"(\w+\s?)+"}}})
        assert outcomes["columns.price.pattern"].found == "2 of 2 values do not match"

    def test_rows_that_cannot_be_decoded_are_counted_apart(self, runs: Runs) -> None:
        nested = msgspec.Raw(b'{"url":' + b"[" * 5000 + b"]" * 5000 + b"}")
        (good,) = [msgspec.Raw(msgspec.json.encode(row)) for row in goods(1)]
        checks = {"columns": {"url": {"filled": 1, "unique": True}, "price": {"filled": 1}}}

        def landed(rows: list[msgspec.Raw]) -> dict[str, str]:
            fetch = listed([DataPage(offset=len(rows), total=len(rows), rest_total=0, rows=rows)])
            outcomes = runs.outcomes([], checks, fetch=fetch, mode="full", if_exists="overwrite")
            return {f"{name} {outcome.state}": outcome.found for name, outcome in outcomes.items()}

        assert landed([good, nested])["columns.url.filled passed"] == (
            "filled in 100 % of 1 rows, without 1 that cannot be decoded"
        )
        assert landed([nested])["columns.url.present skipped"] == ("no row, without 1 that cannot be decoded")

    def test_columns_that_were_not_counted_are_not_new(self, runs: Runs) -> None:
        runs.land(goods(5, **dict.fromkeys(MANY, "x")))
        (outcome,) = runs.outcomes(goods(5, **{MANY[-1]: "x"}), {"new_columns": "fail"}).values()
        assert outcome.state == "skipped"

    def test_messages_have_bounds(self, runs: Runs) -> None:
        names = ["n" * 5000 + str(number) for number in range(150)]
        checks = {"columns": {name: {"pattern": "x" * 5000} for name in names}, "new_columns": "fail"}
        runs.land(goods(1))
        with pytest.raises(ChecksFailed) as failure:
            runs.land(goods(1, **dict.fromkeys(names, "y" * 5000)), checks)
        assert len(str(failure.value)) < 15_000
        assert "; and 131 more. Nothing" in str(failure.value)

    def test_beyond_its_limit_unique_says_how_many_it_has_compared(
        self, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checking, "MOST_COMPARED", 10)
        rows = [*goods(12), *goods(1), {"url": "https://shop/11"}]
        (outcome,) = runs.outcomes(rows, UNIQUE).values()
        assert outcome.found == "1 of the first 10 values were there before"

    def test_columns_that_are_new(self, runs: Runs) -> None:
        (outcome,) = runs.outcomes(goods(5), {"new_columns": "fail"}).values()
        assert outcome.state == "skipped"
        (outcome,) = runs.outcomes(goods(5), {"new_columns": "fail"}).values()
        assert outcome.state == "passed"
        (outcome,) = runs.outcomes(goods(5, stars="5"), {"new_columns": "warn"}).values()
        assert (outcome.state, outcome.found) == ("warning", "stars")
        (outcome,) = runs.outcomes(goods(5, stars="5"), {"new_columns": "fail"}).values()
        assert outcome.state == "passed"
        many = {f"column_{number:02d}": "x" for number in range(13)}
        (outcome,) = runs.outcomes(goods(5, **many), {"new_columns": "fail"}).values()
        assert outcome.found.startswith("column_00, column_01, ")
        assert outcome.found.endswith(", column_09 and 3 more")

    def test_columns_that_no_row_has_any_more(self, runs: Runs) -> None:
        runs.land(goods(5, stars="5"))
        runs.land(goods(5))
        (outcome,) = runs.outcomes(goods(5), {"missing_columns": "fail"}).values()
        # not all landings before had `stars`
        assert outcome.state == "passed"
        (outcome,) = runs.outcomes(goods(5, price=None), {"missing_columns": "fail"}).values()
        assert (outcome.state, outcome.found) == ("failed", "price")

    @pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
    def test_all_formats_are_checked_alike(self, runs: Runs, name: str) -> None:
        checks = {"columns": {"price": {"filled": 0.9, "pattern": r"\d\.\d\d", "unique": True}}}
        rows = [*goods(1, price=1.25), *goods(1, price="1.25"), *goods(1, price="2"), *goods(1, price="")]
        outcomes = runs.outcomes(rows, checks, file_format=make_format(name))
        assert {check: outcome.found for check, outcome in outcomes.items()} == {
            "columns.price.filled": "filled in 75 % of 4 rows",
            "columns.price.pattern": "1 of 3 values do not match",
            "columns.price.unique": "1 of 3 values were there before",
        }


class TestFailures:
    def test_nothing_is_committed_or_marked_and_the_message_says_why_and_what_next(self, runs: Runs) -> None:
        marks: list[str] = []
        runs.land(goods(5), FILLED, mark=lambda: marks.append("marked"))
        before = runs.folder.manifest()
        with pytest.raises(ChecksFailed) as failure:
            runs.land(goods(4, price=""), FILLED, mark=lambda: marks.append("marked"))
        assert runs.folder.manifest() == before
        assert marks == ["marked"]
        where = shlex.quote(runs.folder.destination.url)
        assert str(failure.value).splitlines() == [
            f"1 check failed for task t at {where}: columns.price.filled: filled in 0 % of 4 rows "
            "('' at offset 5); expected: filled in at least 95 % of the rows. Nothing was committed or "
            "marked; the 4 rows that were read stay staged there. "
            f"`webcollect landing accept {where}` lands them as they are, "
            f"`webcollect landing discard {where} 'run 2'` leaves them out; "
            "or change `checks` and land again (in a DAG, clear the task)"
        ]
        assert failure.value.permanent

    @pytest.mark.parametrize("wrap", [str, lambda text: [text]], ids=["text", "list"])
    def test_no_value_or_column_of_a_site_passes_for_what_the_message_says(
        self, runs: Runs, wrap: Callable[[str], Any]
    ) -> None:
        runs.land(goods(1))
        # it ends the line, erases the terminal's screen in two ways, turns the line, and ends it once more
        forged = "9`webcollect landing accept x;touch owned;`\n\x1b[2J\x9b2J\u202e\u2028"
        checks = {"columns": {"price": {"pattern": r"\d+"}}, "new_columns": "fail"}
        with pytest.raises(ChecksFailed) as failure:
            runs.land(goods(1, price=wrap(forged), **{forged: "x"}), checks)
        message = str(failure.value)
        assert message.isprintable()
        where = shlex.quote(runs.folder.destination.url)
        assert re.findall("`([^`]*)`", message) == [
            f"webcollect landing accept {where}",
            f"webcollect landing discard {where} 'run 2'",
            "checks",
        ]

    def test_a_run_whose_name_would_act_on_a_terminal_is_in_no_command(self, runs: Runs) -> None:
        run = Run(dag_id="d", task_id="t", run_id="\x1b[201~\ntouch owned\n")
        with pytest.raises(ChecksFailed) as failure:
            runs.land(goods(4, price=""), FILLED, run=run)
        message = str(failure.value)
        assert message.isprintable()
        assert "`webcollect" not in message

    def test_changed_checks_land_what_is_staged_without_reading_it_again(self, runs: Runs) -> None:
        with pytest.raises(ChecksFailed):
            runs.land(goods(250, price=""), FILLED, max_part_bytes=1)
        asked: list[int] = []
        fetch = serving(runs.rows)
        landed = runs.again(fetch=lambda offset: asked.append(offset) or fetch(offset))
        assert landed.manifest.rows == 250
        assert runs.folder.rows() == runs.rows
        # the last page and the first, to see whether the source still goes on from there
        assert asked == [200, 0]

    @pytest.mark.usefixtures("each_part_is_staged")
    @pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
    def test_an_interrupted_landing_is_checked_as_a_whole(self, runs: Runs, name: str) -> None:
        chosen = make_format(name, **({"sanitize_formulas": True} if name == "csv" else {}))
        checks = {"columns": {"price": {"pattern": r"1\.50|\+490|=1|true", "unique": True, "filled": 1}}}
        texts = ["1.50", "+490", "=1", "1.5", "", "x, y", "two\nlines", 'a "word"']
        prices: list[Any] = [*texts, [], {}, None, True, 7, 0.25]
        rows = [*(row for price in prices for row in goods(7, price=price)), {"url": "no price"}]
        rows = [row if row["url"] != "https://shop/3" else {**row, "price": 1.25} for row in rows]
        options: dict[str, Any] = {"file_format": chosen, "max_part_bytes": 1}
        options |= {"mode": "full", "if_exists": "overwrite"}
        fresh = runs.outcomes([*rows, *rows], checks, **options)
        with pytest.raises(Crash):
            runs.land([], checks, read=crashing_at(2), **options)
        resumed = runs.again(checks, on_failed_checks="warn", **options).checks
        assert {outcome.check: (outcome.found, outcome.examples[0].offset) for outcome in resumed} == {
            check: (outcome.found, outcome.examples[0].offset) for check, outcome in fresh.items()
        }

    @pytest.mark.parametrize("on_failed_checks", ["fail", "quarantine"])
    @pytest.mark.parametrize("landed", [0, 5])
    def test_a_source_that_has_nothing_new_has_too_few_rows_and_none_to_decide_on(
        self, runs: Runs, on_failed_checks: str, landed: int
    ) -> None:
        runs.land(goods(landed))
        before = runs.folder.names(), runs.folder.manifest()
        options = {"on_failed_checks": on_failed_checks, "mark": lambda: pytest.fail("marked")}
        said = r"rows\.min: 0 rows; expected: at least 1\. Nothing was"
        with pytest.raises(ChecksFailed, match=said) as failure:
            runs.land([], {"rows": {"min": 1}, **FILLED}, **options)
        assert "staged" not in str(failure.value)
        assert (runs.folder.names(), runs.folder.manifest()) == before
        assert in_review(runs.folder.location) == ()

    def test_a_warning_is_committed_and_a_retry_tells_of_it(self, runs: Runs) -> None:
        landed = runs.land(goods(4, price=""), FILLED, on_failed_checks="warn")
        assert [outcome.state for outcome in landed.checks] == ["failed"]
        assert runs.folder.rows() == runs.rows
        assert runs.again(FILLED).checks == landed.checks
        # another run's checks are its own
        assert runs.land(goods(1)).checks == ()

    def test_the_rows_of_a_failed_run_and_of_the_next_are_checked_together(self, runs: Runs) -> None:
        with pytest.raises(ChecksFailed):
            runs.land(goods(10, price=""), FILLED)
        with pytest.raises(ChecksFailed, match=r"filled in 90\.9 % of 110 rows"):
            runs.land(goods(100), FILLED)
        runs.land(goods(100), FILLED)
        assert runs.folder.rows() == runs.rows
