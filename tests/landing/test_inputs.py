"""The check of inputs: which words and URLs of a task's loop have no row."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.checks import CheckOutcome
from airflow_provider_webcollect.landing.errors import ChecksFailed
from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.log.commits import Run
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.write.job import Landed
from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    NoResponse,
    PermissionDenied,
    ResponseTooLarge,
)
from airflow_provider_webcollect.service.models import Action, DataPage
from tests.landing.checked_runs import OVERWRITE, Runs
from tests.landing.conftest import listed
from tests.landing.pages import nothing, serving, unreachable


def asking(**check: Any) -> dict[str, Any]:
    """Return the check of inputs with these arguments."""
    return {"inputs": {"column": "keyword", **check}}


CHECK = asking()


def loop(*items: str, action_id: str = "loop") -> Action:
    return Action(action_id=action_id, action_type="LoopAction", loop_items=items)


def rows(*inputs: Any) -> list[dict[str, Any]]:
    return [{"keyword": text, "price": "1.50"} for text in inputs]


def judged(landed: Landed) -> CheckOutcome:
    (outcome,) = (outcome for outcome in landed.checks if outcome.check == "inputs")
    return outcome


def verdict(landed: Landed) -> str:
    return f"{judged(landed).state}: {judged(landed).found}"


def missing(landed: Landed) -> list[str] | None:
    return [*landed.missing_inputs.inputs] if landed.missing_inputs else None


class Shop(Runs):
    """Landings of a task whose loop has some inputs; failed checks only warn."""

    def __init__(self, folder: Any, *items: str, **options: Any) -> None:
        super().__init__(folder, **{"on_failed_checks": "warn", **options})
        self.loops = [loop(*items)]
        self.reads = 0

    def again(self, checks: Any = CHECK, **options: Any) -> Landed:
        return super().again(checks or CHECK, **{"loops": self.read_loops, **options})

    def read_loops(self) -> list[Action]:
        self.reads += 1
        return self.loops

    def second(self, *inputs: str, task_id: str = "again", checks: Any = CHECK, **options: Any) -> Landed:
        """Land rows by another task of the latest DAG run."""
        self.rows += rows(*inputs)
        run = Run(dag_id="d", task_id=task_id, run_id=f"run {self._number}")
        return self.again(checks, run=run, **options)


SAME = [
    ("https://shop.example/a", "http://shop.example/a"),
    ("https://shop.example/a", "shop.example/a"),
    ("https://shop.example/a", "//shop.example/a"),
    ("HTTPS://shop.example/a", "https://shop.example/a"),
    ("https://shop.example/a/", "https://shop.example/a"),
    ("https://shop.example", "https://shop.example/"),
    ("https://shop.example/a/?q=1", "https://shop.example/a?q=1"),
    ("https://shop.example/a#top", "https://shop.example/a"),
    ("https://shop.example/a?q=1#top", "https://shop.example/a?q=1#end"),
    ("https://shop.example/a?q=1&p=2", "https://shop.example/a?p=2&q=1"),
    ("https://shop.example/a?q=2&q=1", "https://shop.example/a?q=1&q=2"),
    ("https://shop.example/a?", "https://shop.example/a"),
    ("https://shop.example/a?q=", "https://shop.example/a?q"),
    ("https://SHOP.example/a", "https://shop.EXAMPLE/a"),
    ("https://shop.example:443/a", "https://shop.example/a"),
    ("http://shop.example:80/a", "https://shop.example/a"),
    ("https://shop.example/%C3%A9t%C3%A9", "https://shop.example/été"),
    ("https://shop.example/%c3%a9t%c3%a9", "https://shop.example/%C3%A9t%C3%A9"),
    ("https://shop.example/%7Ejo", "https://shop.example/~jo"),
    ("https://shop.example/a%20b", "https://shop.example/a b"),
    ("https://shop.example/a?q=a+b", "https://shop.example/a?q=a%20b"),
    ("https://shop.example/a?q=%E5%8C%97", "https://shop.example/a?q=北"),
    ("https://bücher.example/a", "https://xn--bcher-kva.example/a"),
    ("  https://shop.example/a", "https://shop.example/a\n"),
    ("https://shop.example/a%2Cb%28c%29", "https://shop.example/a,b(c)"),
    ("https://shop.example/100%zz/%7Ea", "https://shop.example/100%zz/~a"),
    ("https://shop.example/s?q=%b1%b1", "https://shop.example/s?q=%B1%B1"),
    ("https://straße.example/a", "https://xn--strae-oqa.example/a"),
    ("https://shop.example./a", "https://shop.example/a"),
    ("https://[", "HTTPS://["),
]
OTHERS = [
    ("https://shop.example/a", "https://shop.example/b"),
    ("https://shop.example/a", "https://shop.example/A"),
    ("https://shop.example/a", "https://shop.example/a/b"),
    ("https://shop.example/a//b", "https://shop.example/a/b"),
    ("https://shop.example/a", "https://www.shop.example/a"),
    ("https://shop.example/a", "https://shop.example:8443/a"),
    ("https://shop.example/a?q=1", "https://shop.example/a"),
    ("https://shop.example/a?q=1", "https://shop.example/a?q=2"),
    ("https://shop.example/a?q=1", "https://shop.example/a?Q=1"),
    ("https://shop.example/a?q=1&q=1", "https://shop.example/a?q=1"),
    ("https://shop.example/a?q=1%262", "https://shop.example/a?q=1&2"),
    ("https://shop.example/a?q=a%2Bb", "https://shop.example/a?q=a+b"),
    ("https://shop.example/a%2Fb", "https://shop.example/a/b"),
    ("https://shop.example/a%3Fq=1", "https://shop.example/a?q=1"),
    ("https://jo@shop.example/a", "https://shop.example/a"),
    ("https://shop.example/s?q=%B1%B1", "https://shop.example/s?q=%B6%AB"),
    ("https://[::1]:8080/", "https://[::1:8080]/"),
    ("https://straße.example/a", "https://strasse.example/a"),
    ("http://shop.example:443/a", "http://shop.example/a"),
]


class TestMatch:
    @pytest.mark.parametrize(("item", "value"), [*SAME, *OTHERS])
    def test_urls_are_the_same_or_others(self, shop: Shop, item: str, value: str) -> None:
        shop.loops = [loop(item)]
        landed = shop.land(rows(value), asking(match="url"))
        assert missing(landed) == ([] if (item, value) in SAME else [item])

    def test_blanks_and_letter_case_do_not_count(self, shop: Shop) -> None:
        shop.loops = [loop("Kaffee ", "STRASSE", "two  words", "tea", "7", "a/", "Café")]
        landed = shop.land(rows("kaffee", "\tStraße", "two words", "TEA", 7, "a", "cafe\u0301"))
        assert missing(landed) == ["two  words", "a/"]


@pytest.fixture
def shop(folder: Any) -> Shop:
    """A task with three inputs."""
    return Shop(folder, "tea", "coffee", "cocoa")


class TestOutcome:
    def test_inputs_without_a_row_are_named(self, shop: Shop) -> None:
        landed = shop.land(rows("coffee", "coffee", "honey", None, " "))
        assert judged(landed) == CheckOutcome(
            "inputs",
            "failed",
            "a row of each input",
            "2 of 3 inputs have no row: 'tea', 'cocoa'; 3 rows matching no input",
        )
        assert missing(landed) == ["tea", "cocoa"]

    def test_a_row_of_each_input_passes_with_one_request(self, shop: Shop) -> None:
        landed = shop.land(rows("coffee", "tea", "cocoa"))
        assert verdict(landed) == "passed: 0 of 3 inputs have no row"
        assert (missing(landed), shop.reads) == ([], 1)

    def test_a_share_may_be_missing(self, shop: Shop) -> None:
        landed = shop.land(rows("tea", "coffee"), asking(missing=0.34))
        assert (judged(landed).state, missing(landed)) == ("passed", ["cocoa"])
        assert judged(landed).expected == "at most 34 % of the inputs without a row"
        assert judged(shop.land(rows("tea", "coffee"), asking(missing=0.33))).state == "failed"

    def test_ten_are_named_and_a_thousand_kept(self, shop: Shop) -> None:
        shop.loops = [loop(*(f"word {number}" for number in range(1200)))]
        landed = shop.land(rows("word 0", "word 3"))
        said = judged(landed).found
        assert said.startswith("1,198 of 1,200 inputs have no row: 'word 1', 'word 2', 'word 4'")
        assert said.endswith("'word 11' and 1,188 more")
        assert landed.missing_inputs
        assert (landed.missing_inputs.count, len(landed.missing_inputs.inputs)) == (1198, 1000)

    @pytest.mark.parametrize("match", ["text", "url"])
    def test_an_input_that_is_twice_in_the_list_counts_once(self, shop: Shop, match: str) -> None:
        shop.loops = [loop("tea", "tea ", "", " ")]
        landed = shop.land(rows("x", None), asking(match=match))
        assert judged(landed).found.startswith("1 of 1 input have no row: 'tea'")

    def test_fewer_long_inputs_are_kept(self, shop: Shop) -> None:
        shop.loops = [loop(*(f"{number} {'x' * 30_000}" for number in range(5)))]
        landed = shop.land(rows("x"))
        assert landed.missing_inputs
        assert (landed.missing_inputs.count, len(landed.missing_inputs.inputs)) == (5, 3)
        assert judged(landed).found.endswith("; 1 row matching no input")

    def test_texts_are_shown_as_texts(self, shop: Shop) -> None:
        shop.loops = [loop("{{ var.value.x }}", "a`rm -rf`\n", "x" * 500)]
        landed = shop.land(rows("y"))
        assert "'{{ var.value.x }}', 'a\\u0060rm -rf\\u0060\\n', 'xxx" in judged(landed).found
        assert len(judged(landed).found) < 300
        assert missing(landed) == ["{{ var.value.x }}", "a`rm -rf`\n", "x" * 500]

    @pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
    def test_inputs_are_judged_alike_in_each_format(self, shop: Shop, file_format: FormatName) -> None:
        landed = shop.land(rows("tea"), file_format=make_format(file_format))
        assert missing(landed) == ["coffee", "cocoa"]

    def test_wrong_rows_that_are_quarantined_have_inputs_too(self, shop: Shop) -> None:
        checks = {"rows": {"max_wrong": 0.9}, "columns": {"price": {"min": 2}}, **CHECK}
        good = [{"keyword": word, "price": "3"} for word in ("coffee", "x")]
        landed = shop.land([*rows("tea"), *good], checks)
        assert (landed.manifest.rows, missing(landed)) == (2, ["cocoa"])
        assert judged(landed).found == "1 of 3 inputs have no row: 'cocoa'; 1 row matching no input"

    def test_a_page_of_rows_that_cannot_be_read_has_no_inputs(self, shop: Shop) -> None:
        not_an_object: Any = ["tea"]
        landed = shop.land([not_an_object], {"rows": {"max_wrong": 0.9}, **CHECK})
        assert verdict(landed) == "skipped: 1 row cannot be decoded"

    def test_without_new_rows_all_are_missing(self, shop: Shop) -> None:
        shop.land(rows("tea", "coffee", "cocoa"))
        landed = shop.next()
        assert (missing(landed), judged(landed).state) == (["tea", "coffee", "cocoa"], "failed")

    def test_each_run_is_judged_by_its_own_rows(self, shop: Shop) -> None:
        assert missing(shop.land(rows("tea"))) == ["coffee", "cocoa"]
        assert missing(shop.land(rows("coffee"))) == ["tea", "cocoa"]
        assert missing(shop.next(**OVERWRITE)) == ["cocoa"]


class TestVerdict:
    def test_missing_inputs_may_only_warn(self, shop: Shop) -> None:
        checks = {**asking(on_missing="warn"), "rows": {"min": 1}}
        landed = shop.land(rows("tea"), checks, on_failed_checks="fail")
        assert (judged(landed).state, missing(landed)) == ("warning", ["coffee", "cocoa"])
        assert landed.manifest.rows == 1

    def test_a_run_that_fails_is_quarantined(self, shop: Shop) -> None:
        with pytest.raises(ChecksFailed, match="inputs: 2 of 3 inputs have no row: 'coffee', 'cocoa'"):
            shop.land(rows("tea"), on_failed_checks="fail")
        with pytest.raises(ChecksFailed, match="1 row of commit 1 is quarantined"):
            shop.again(on_failed_checks="fail")
        assert missing(shop.again()) == ["coffee", "cocoa"]

    def test_a_retry_after_the_commit_says_the_same(self, shop: Shop) -> None:
        first = shop.land(rows("tea"))
        again = shop.again()
        assert (again.checks, again.missing_inputs) == (first.checks, first.missing_inputs)

    def test_a_retry_reads_all_rows_again(self, shop: Shop) -> None:
        def breaking(pages: Any) -> Any:
            yield from itertools.islice(pages, 2)
            raise ConnectionError

        shop.rows = rows("tea", "coffee", "cocoa")
        with pytest.raises(ConnectionError):
            shop.next(read=breaking, fetch=serving(shop.rows, 1), max_part_bytes=1)
        assert missing(shop.again()) == []


class TestSeveralLandingsOfADagRun:
    """A second task collects only the missing inputs again; the verdict is about both landings."""

    @pytest.fixture
    def half(self, shop: Shop) -> Shop:
        """Tea has landed; the second task of the DAG run has the other two inputs."""
        shop.land(rows("tea"))
        shop.loops = [loop("coffee", "cocoa")]
        return shop

    def test_what_the_second_brings_is_no_longer_missing(self, half: Shop) -> None:
        half.loops = [loop("Coffee", "cocoa")]
        landed = half.second("coffee", checks=asking(missing=0.4))
        assert verdict(landed) == "passed: 1 of 3 inputs have no row: 'cocoa'"
        assert missing(landed) == ["cocoa"]
        half.loops = [loop("cocoa")]
        assert judged(half.second("cocoa", task_id="2")).found == "0 of 3 inputs have no row"

    def test_inputs_that_were_not_kept_are_counted_as_more(self, shop: Shop) -> None:
        long = [f"{number} {'x' * 30_000}" for number in range(5)]
        shop.loops = [loop(*long)]
        shop.land(rows("x"))
        shop.loops = [loop(long[0])]
        found = judged(shop.second(long[0])).found
        assert found.startswith("4 of 5 inputs have no row: '1 xxx")
        assert "xxx' and 2 more" in found

    def test_rules_about_the_run_count_the_rows_of_both(self, shop: Shop) -> None:
        first = [*rows("tea", "tea", "tea"), {"keyword": "tea", "price": None, "seller": "x"}]
        checks = {
            "rows": {"min": 4, "min_of_usual": 0.5},
            "columns": {"price": {"filled": 0.6}},
            "missing_columns": "fail",
            **CHECK,
        }
        for _ in range(4):
            shop.land(first, CHECK)
        shop.loops = [loop("coffee")]
        shop.rows += [{"keyword": "coffee", "price": None}]
        landed = shop.second(checks=checks)
        found = {outcome.check: outcome.found for outcome in landed.checks}
        assert found["rows.min"] == "5 rows"
        assert found["rows.min_of_usual"] == "5 rows; too few earlier landings: 3"
        assert found["columns.price.filled"] == "filled in 60 % of 5 rows"
        failed = [outcome.check for outcome in landed.checks if outcome.state == "failed"]
        assert failed == ["inputs"]
        assert [record.rows for record in landed.manifest.history] == [4, 4, 4, 5]

    def test_a_retry_after_the_second_commit_says_the_same(self, half: Shop) -> None:
        first = half.again()
        second = half.second("coffee")
        again, first_again = half.second(), half.again()
        assert (again.checks, again.missing_inputs) == (second.checks, second.missing_inputs)
        assert [part.rows for part in again.new] == [1]
        assert (first_again.checks, first_again.new) == (first.checks, first.new)

    @pytest.mark.parametrize("on_missing", ["fail", "warn"])
    def test_the_run_is_whole_once_no_input_is_missing(self, shop: Shop, on_missing: str) -> None:
        def gone() -> list[str]:
            changes = read_landing(shop.folder.destination).changes("keyword", 1, whole_runs=True)
            return [row[0] for row in changes.fetchall() if row[-2] == "gone"]

        shop.land(rows("tea", "coffee", "cocoa", "honey"))
        shop.land(rows("tea"), asking(on_missing=on_missing))
        assert gone() == []
        shop.loops = [loop("coffee", "cocoa")]
        shop.second("coffee", "cocoa")
        assert gone() == ["honey"]

    @pytest.mark.parametrize("error", [PermissionDenied("not in this plan"), None])
    def test_missing_inputs_stay_if_the_second_is_skipped(self, half: Shop, error: Exception | None) -> None:
        def read() -> list[Action]:
            if error:
                raise error
            return [loop()]

        landed = half.second("coffee", loops=read)
        assert verdict(landed) == "failed: 1 of 3 inputs have no row: 'cocoa'"
        assert missing(landed) == ["cocoa"]
        landed = half.second("cocoa", task_id="third", loops=read)
        assert (judged(landed).state, missing(landed)) == ("skipped", [])

    def test_a_column_that_the_second_lacks_changes_nothing(self, half: Shop) -> None:
        half.rows += [{"price": "1.50"}]
        landed = half.second()
        assert (judged(landed).state, missing(landed)) == ("failed", ["coffee", "cocoa"])
        assert [record.rows for record in landed.manifest.history] == [2]

    def test_late_rows_of_a_retry_count_with_its_others(self, half: Shop) -> None:
        with pytest.raises(ConnectionError):
            half.second("coffee", mark=unreachable)
        assert judged(half.second("cocoa", mark=nothing)).found == "0 of 3 inputs have no row"

    def test_late_rows_of_a_long_list_are_not_judged(self, shop: Shop) -> None:
        words = [f"word {number}" for number in range(1200)]
        shop.loops = [loop(*words)]
        shop.rows += rows(words[0])
        with pytest.raises(ConnectionError):
            shop.next(mark=unreachable)
        shop.rows += rows(*words[1:])
        landed = shop.again(mark=nothing)
        assert (judged(landed).state, missing(landed)) == ("skipped", None)

    @pytest.mark.parametrize("options", [OVERWRITE, {"on_reset": "full"}])
    def test_what_replaces_the_first_is_judged_alone(self, half: Shop, options: dict[str, Any]) -> None:
        half.rows.clear()
        landed = half.second("coffee", "cocoa", **options)
        assert judged(landed).found == "0 of 2 inputs have no row"

    def test_a_cleared_run_knows_what_has_come_since(self, half: Shop) -> None:
        half.second("coffee")
        assert missing(half.again()) == ["cocoa"]

    def test_another_list_is_judged_alone(self, half: Shop) -> None:
        half.loops = [loop("cocoa", "honey")]
        assert judged(half.second("cocoa")).found == "1 of 2 inputs have no row: 'honey'"

    def test_another_dag_run_is_judged_alone(self, half: Shop) -> None:
        half.loops = [loop("cocoa")]
        assert judged(half.land(rows("cocoa"))).found == "0 of 1 input have no row"

    def test_beyond_a_thousand_the_others_stay_missing(self, shop: Shop) -> None:
        words = [f"word {number}" for number in range(1200)]
        shop.loops = [loop(*words)]
        shop.land(rows(words[0]))
        shop.loops = [loop(*words[1:1001])]
        landed = shop.second(*words[1:1000])
        assert judged(landed).found.startswith("200 of 1,200 inputs have no row: 'word 1000' and 1")


class TestSkipped:
    @pytest.mark.parametrize("error", [PermissionDenied("not in this plan"), ResponseTooLarge("64 MB")])
    def test_a_list_that_cannot_be_read(self, shop: Shop, error: Exception) -> None:
        def refuse() -> list[Action]:
            raise error

        landed = shop.land(rows("tea"), loops=refuse, on_failed_checks="fail")
        assert (verdict(landed), missing(landed)) == (f"skipped: the list cannot be read: {error}", None)

    def test_nothing_lands_if_reading_may_work_later(self, shop: Shop) -> None:
        def fail() -> list[Action]:
            raise NoResponse("the network is down")

        with pytest.raises(NoResponse):
            shop.land(rows("tea"), loops=fail)
        assert missing(shop.again()) == ["coffee", "cocoa"]

    def test_a_list_that_the_service_does_not_show(self, shop: Shop) -> None:
        shop.loops = [loop()]
        assert verdict(shop.land(rows("tea"))) == "skipped: the service shows no list of the loop"

    def test_a_list_that_is_changed_meanwhile(self, shop: Shop) -> None:
        def changing(pages: Any) -> Any:
            for page in pages:
                shop.loops = [loop("tea", "coffee")]
                yield page

        landed = shop.land(rows("tea"), read=changing, on_failed_checks="fail")
        assert verdict(landed) == "skipped: the list was changed during the landing"
        assert missing(landed) is None

    def test_rows_that_cannot_be_decoded(self, shop: Shop) -> None:
        deep = msgspec.Raw(b'{"keyword": "coffee", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}")
        page = DataPage(offset=2, total=2, rest_total=0, rows=[msgspec.Raw(b'{"keyword": "tea"}'), deep])
        assert verdict(shop.next(fetch=listed([page]))) == "skipped: 1 row cannot be decoded"
        page = DataPage(offset=1, total=1, rest_total=0, rows=[deep])
        assert verdict(shop.next(fetch=listed([page]), **OVERWRITE)) == "skipped: 1 row cannot be decoded"


KEYS = "its keys can be column, missing, action_id, match, on_missing"


class TestBadInput:
    @pytest.mark.parametrize(
        ("loops", "action_id", "rule"),
        [
            ([], None, "the task has no such loop; its loops: none"),
            ([loop("a")], "other", "the task has no such loop; its loops: 'loop'"),
            (
                [loop("a"), loop("b", action_id="second")],
                None,
                "it must be set, since several loops of the task have a list; its loops: 'loop', 'second'",
            ),
        ],
    )
    def test_the_loop_must_be_clear(
        self, shop: Shop, loops: list[Action], action_id: str | None, rule: str
    ) -> None:
        shop.loops = loops
        with pytest.raises(InvalidArgument) as error:
            shop.land(rows("tea"), asking(action_id=action_id))
        assert error.value.argument == "checks['inputs']['action_id']"
        assert error.value.rule == rule

    def test_one_of_several_loops_is_named(self, shop: Shop) -> None:
        shop.loops = [loop("a"), loop("b", action_id="second")]
        assert missing(shop.land(rows("a"), asking(action_id="second"))) == ["b"]

    def test_one_of_several_loops_may_have_a_list(self, shop: Shop) -> None:
        shop.loops = [loop(), loop("b", action_id="second")]
        assert missing(shop.land(rows("a"))) == ["b"]

    @pytest.mark.parametrize("max_wrong", [0, 0.5])
    def test_a_column_that_no_row_has_fails(self, shop: Shop, max_wrong: float) -> None:
        checks = {"rows": {"max_wrong": max_wrong}, "inputs": {"column": "word"}}
        landed = shop.land(rows("tea", "coffee"), checks)
        assert (verdict(landed), missing(landed)) == ("failed: no row has the column 'word'", None)
        landed = shop.land(rows("tea"), asking(column="word", on_missing="warn"))
        assert judged(landed).state == "warning"

    @pytest.mark.parametrize(
        ("inputs", "argument", "rule"),
        [
            ({}, "['column']", "it must be the column of the rows that has the inputs"),
            ("keyword", "", f"it must be a dict; {KEYS}"),
            ({"column": "a", "missing": 2}, "['missing']", "it must be a number from 0 to 1"),
            ({"column": "a", "match": "regex"}, "['match']", "it must be one of text, url"),
            ({"column": "a", "share": 1}, "", KEYS),
        ],
    )
    def test_a_declaration_that_is_wrong(self, shop: Shop, inputs: Any, argument: str, rule: str) -> None:
        with pytest.raises(InvalidArgument) as error:
            shop.land(rows("tea"), {"inputs": inputs})
        assert (error.value.argument, error.value.rule) == (f"checks['inputs']{argument}", rule)

    def test_with_fixed_columns_it_must_be_one_of_them(self, shop: Shop) -> None:
        with pytest.raises(InvalidArgument, match="it must be one of `columns`"):
            shop.land(rows("tea"), file_format=make_format(columns=["price"]))
