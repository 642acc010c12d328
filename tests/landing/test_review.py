"""Rows that have failed their checks: quarantined by the landing, accepted or discarded by a person."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import (
    ChecksFailed,
    FormatChanged,
    NothingToReview,
    PartsMissing,
    UnreadableRow,
)
from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.log.commits import MOST_RECORDS
from airflow_provider_webcollect.landing.write.review import accept, discard, in_review
from airflow_provider_webcollect.service.models import DataPage
from tests.landing.checked_runs import FILLED, OVERWRITE, Runs, goods
from tests.landing.conftest import Folder, crashing_at
from tests.landing.pages import serving, unreachable
from tests.landing.tables import tables_in
from tests.simulation.samples import SEED
from tests.simulation.steps import Crash, Held, kill
from tests.storages import local

pytestmark = pytest.mark.usefixtures("each_part_is_staged")

#: Checks that quarantine single rows: those without a price.
SINGLE: dict[str, Any] = {"rows": {"max_wrong": 1}, "columns": {"price": {"required": True}}}


@pytest.fixture
def local_runs(tmp_path: Path) -> Runs:
    return Runs(Folder.new(local(tmp_path)))


@pytest.fixture
def quarantined(runs: Runs) -> Runs:
    """Two landed rows, and three rows of run 2 that have failed and are quarantined."""
    runs.land(goods(2), FILLED)
    runs.land(goods(3, price="", late="new"), FILLED, on_failed_checks="quarantine")
    return runs


#: Options with which a run begins the landing again.
ANEW = pytest.mark.parametrize("anew", [OVERWRITE, {"on_reset": "full"}], ids=["overwrite", "on_reset"])


class TestQuarantine:
    @pytest.mark.parametrize("on_failed_checks", ["fail", "quarantine"])
    def test_failed_rows_wait_and_the_next_run_goes_on(self, runs: Runs, on_failed_checks: str) -> None:
        """The task fails or succeeds; a retry does the same, with the same checks, and changes nothing."""
        runs.land(goods(2), FILLED)
        options: dict[str, Any] = {"on_failed_checks": on_failed_checks, "max_part_bytes": 1}
        runs.rows += goods(3, price="")
        for attempt in (runs.next, runs.again):
            if on_failed_checks == "fail":
                with pytest.raises(ChecksFailed, match=r"price\.filled.* 3 rows of commit 2 are quarantined"):
                    attempt(FILLED, **options)
            else:
                landed = attempt(FILLED, **options)
                assert (landed.new, landed.committed) == ((), ())
                assert [outcome.state for outcome in landed.checks] == ["failed"]
            assert len(runs.folder.commits()) == 2
        assert runs.folder.rows() == runs.rows[:2]
        assert runs.folder.rows_apart() == runs.rows[2:]
        runs.land(goods(4), FILLED, on_failed_checks=on_failed_checks)
        assert runs.folder.rows() == [*runs.rows[:2], *runs.rows[5:]]
        (apart,) = runs.folder.landed().manifest.set_apart
        assert (apart.kind, apart.commit, apart.rows, apart.run.run_id) == ("quarantined", 2, 3, "run 2")
        assert [outcome.check for outcome in apart.checks] == ["columns.price.filled"]
        assert runs.folder.names() == runs.folder.needed()

    def test_the_export_is_not_marked_while_rows_wait(self, runs: Runs) -> None:
        marks: list[str] = []
        options: dict[str, Any] = {"on_failed_checks": "quarantine", "mark": lambda: marks.append("marked")}
        runs.land(goods(3, price=""), FILLED, **options)
        runs.land(goods(2), FILLED, **options)
        runs.land([], **options)
        assert marks == []
        accept(runs.folder.location)
        runs.land([], **options)
        assert marks == ["marked"]


class TestLandingsThatBeginAnew:
    @ANEW
    @pytest.mark.parametrize("choice", [accept, discard])
    def test_rows_that_would_replace_wait_until_accepted(
        self, runs: Runs, anew: dict[str, Any], choice: Callable[..., Any]
    ) -> None:
        """Until then the landed rows stay, and each run begins again."""
        runs.land(goods(2), FILLED)
        before = runs.folder.manifest()
        for _ in range(2):
            runs.rows.clear()
            with pytest.raises(ChecksFailed):
                runs.land(goods(3, price=""), FILLED, **anew)
        manifest = runs.folder.manifest()
        same = ("parts", "total", "next_offset", "last_page", "first_commit", "rows_commit", "run")
        assert [manifest[name] for name in same] == [before[name] for name in same]
        waiting = in_review(runs.folder.location)
        assert [(apart.commit, apart.replaces) for apart in waiting] == [(2, True), (3, True)]
        choice(runs.folder.location, commit=3)
        expected = goods(3, price="") if choice is accept else goods(2)
        assert runs.folder.rows() == runs.folder.committed_rows() == expected
        assert runs.folder.landed().manifest.first_commit == (4 if choice is accept else 1)
        runs.rows[:] = [*runs.rows, *goods(1)] if choice is accept else goods(4, price="2.00")
        assert sum(part.rows for part in runs.land([], on_reset="full").new) == (1 if choice is accept else 4)
        assert [apart.commit for apart in in_review(runs.folder.location)] == [2]

    @ANEW
    def test_rows_that_waited_before_wait_on(self, local_runs: Runs, anew: dict[str, Any]) -> None:
        folder = local_runs.folder
        local_runs.land(goods(2), FILLED)
        local_runs.land(goods(3, price=""), FILLED, on_failed_checks="quarantine")
        local_runs.rows[0]["price"] = "corrected"
        local_runs.land(goods(1), **anew)
        assert [(apart.commit, apart.is_earlier) for apart in in_review(folder.location)] == [(2, True)]
        assert folder.rows() == local_runs.rows
        assert len(clean(folder.root, older_than=0)) == 1
        assert folder.names() == folder.needed()
        accept(folder.location)
        assert folder.rows() == [*local_runs.rows, *goods(3, price="")]

    def test_waiting_rows_are_accepted_under_more_columns(self, local_runs: Runs) -> None:
        csv, wider = make_format("csv"), make_format("csv", columns=["url", "price", "late", "new"])
        local_runs.land(goods(2), file_format=csv)
        late = goods(1, price="", late="late")
        local_runs.land(late, FILLED, on_failed_checks="quarantine", file_format=csv)
        local_runs.land(goods(1, new="new"), file_format=wider)
        accept(local_runs.folder.location)
        landed = local_runs.folder.landed()
        assert landed.manifest.columns == ("url", "price", "late", "new")
        empty = dict.fromkeys(landed.manifest.columns)
        expected = [*goods(2), *goods(1, new="new"), *late]
        assert [*landed.iter_rows()] == [empty | row for row in expected]

    @pytest.mark.parametrize(
        ("file_format", "columns"), [("csv", ["url", "price"]), ("jsonl", None), ("csv", ["price", "url"])]
    )
    def test_earlier_rows_are_added_in_the_same_format_alone(
        self, local_runs: Runs, file_format: FormatName, columns: list[str] | None
    ) -> None:
        before = make_format("csv", columns=["url", "price"])
        since = make_format(file_format, columns=columns)
        local_runs.land(goods(2, price=""), FILLED, on_failed_checks="quarantine", file_format=before)
        local_runs.rows.clear()
        local_runs.land(goods(1), **OVERWRITE, file_format=since)
        folder = local_runs.folder
        if before == since:
            accept(folder.location)
            assert [*folder.landed().iter_rows()] == [*goods(1), *goods(2, price="")]
            return
        with pytest.raises(FormatChanged, match="has begun again since commit 1, in another format or"):
            accept(folder.location)
        assert [*folder.landed(quarantined=1).iter_rows()] == goods(2, price="")
        discard(folder.location)


class TestMarks:
    """A retry after the commit checks all rows of the run, not only the new ones."""

    CHECKS: dict[str, Any] = {"rows": {"min": 3}, **FILLED}  # noqa: RUF012

    @pytest.mark.parametrize("more", [0, 1])
    def test_a_retry_that_marks_counts_all_rows_of_its_run(self, runs: Runs, more: int) -> None:
        with pytest.raises(ConnectionError):
            runs.land(goods(5), self.CHECKS, mark=unreachable)
        runs.rows += goods(more)
        marks: list[str] = []
        landed = runs.again(self.CHECKS, mark=lambda: marks.append("marked"))
        assert (marks, sum(part.rows for part in landed.new)) == (["marked"], 5 + more)
        values = {outcome.check: outcome.found for outcome in landed.checks}
        assert values["rows.min"] == f"{5 + more} rows"
        assert runs.folder.rows() == runs.rows

    def test_a_cleared_task_marks_what_was_accepted(self, runs: Runs) -> None:
        marks: list[str] = []
        options: dict[str, Any] = {"mark": lambda: marks.append("marked")}
        with pytest.raises(ChecksFailed):
            runs.land(goods(5, price=""), self.CHECKS, **options)
        accept(runs.folder.location)
        landed = runs.again(self.CHECKS, **options)
        assert (marks, sum(part.rows for part in landed.new)) == (["marked"], 5)


class TestDecisions:
    @pytest.mark.parametrize("decide", [accept, discard])
    def test_the_rows_are_what_was_decided(self, quarantined: Runs, decide: Callable[..., Any]) -> None:
        folder, bad = quarantined.folder, quarantined.rows[2:]
        decided = decide(folder.location, "run 2")
        assert (decided.rows, decided.commit) == (3, 2)
        landed = [*quarantined.rows[:2], *(bad if decide is accept else [])]
        assert folder.rows() == landed
        assert folder.rows_apart() == []
        assert sum(part.rows for part in quarantined.again(FILLED).new) == len(landed) - 2
        assert sum(part.rows for part in quarantined.land(goods(1), FILLED).new) == 1
        assert quarantined.land([]).new == ()
        assert folder.rows() == [*landed, *quarantined.rows[5:]]
        left = {accept: [], discard: [("discarded", 3)]}
        assert [(entry.kind, entry.rows) for entry in folder.landed().manifest.set_apart] == left[decide]
        assert in_review(folder.location) == ()
        waited = {part["name"] for commit in folder.commits() for part in commit.get("quarantined", ())}
        assert folder.names() == folder.needed() | (waited if decide is accept else set())
        # a name is never used again
        assert waited.isdisjoint(part["name"] for part in folder.committed())

    def test_one_of_several_must_be_named(self, local_runs: Runs) -> None:
        folder = local_runs.folder
        for rows in (3, 4):
            local_runs.land(goods(rows, price=""), FILLED, on_failed_checks="quarantine")
        listed = ["3 rows of run 1 (commit 1)", "4 rows of run 2 (commit 2)"]
        assert [*map(str, in_review(folder.location))] == listed
        for choice in (accept, discard):
            with pytest.raises(NothingToReview) as refusal:
                choice(folder.location)
            assert str(refusal.value).endswith(f": {', '.join(listed)}")
        discard(folder.location, commit=1)
        clean(folder.location, older_than=0)
        assert folder.rows_apart() == goods(4, price="")
        accept(folder.location, "run 2")
        assert folder.rows() == goods(4, price="")

    @pytest.mark.parametrize("choice", [accept, discard])
    @pytest.mark.parametrize("named", [{}, {"run_id": "run 2"}, {"commit": 2}])
    def test_a_repeated_decision_decides_on_nothing_else(
        self, quarantined: Runs, choice: Callable[..., Any], named: dict[str, Any]
    ) -> None:
        """The response was lost, and since then other rows have been quarantined."""
        folder = quarantined.folder
        kill(lambda place: choice(place, **named, by="a"), folder.destination, ("write", "_manifest.json"))
        quarantined.land(goods(4, price=""), FILLED, on_failed_checks="quarantine")
        decided = choice(folder.location, **named, by="a")
        assert (decided.commit, decided.rows) == (2, 3)
        assert [apart.commit for apart in in_review(folder.location)] == [4]
        assert len(folder.rows()) == (5 if choice is accept else 2)
        assert choice(folder.location, commit=4, by="a").rows == 4

    @pytest.mark.parametrize("choice", ["accept", "discard"])
    def test_a_decision_cannot_be_changed(self, quarantined: Runs, choice: str) -> None:
        first, other = (accept, discard) if choice == "accept" else (discard, accept)
        folder, verb = quarantined.folder, f"{choice}ed"
        with pytest.raises(NothingToReview, match=r"no quarantined rows of run run 9 at .*: 3 rows of run 2"):
            first(folder.location, "run 9")
        first(folder.location, by="a")
        before = folder.contents()
        with pytest.raises(NothingToReview, match=f"a has {verb} the rows of commit 2 already"):
            other(folder.location, by="a")
        for decide in (first, other):
            with pytest.raises(NothingToReview, match=f"commit 2 at .* were {verb} already by a"):
                decide(folder.location, commit=2, by="b")
            with pytest.raises(NothingToReview, match=r"no quarantined rows of run run 2 at .*landing$"):
                decide(folder.location, "run 2", by="b")
        assert folder.contents() == before

    def test_accepting_what_another_discards_is_refused(self, quarantined: Runs) -> None:
        folder = quarantined.folder
        ((part,),) = [commit["quarantined"] for commit in folder.commits() if commit.get("quarantined")]
        name = part["name"].rpartition("/")[2]
        late = Held(lambda place: accept(place, commit=2, by="a"), folder.destination, ("open", name))
        assert late.met
        discard(folder.location, by="b")
        ended = late.end()
        assert isinstance(ended, NothingToReview)
        assert str(ended).endswith("were discarded already by b")
        assert len(folder.rows()) == 2

    def test_a_decision_older_than_the_manifest_is_known(self, quarantined: Runs) -> None:
        folder = quarantined.folder
        accept(folder.location, by="first")
        for number in range(MOST_RECORDS):
            quarantined.land(goods(1, price=""), FILLED, on_failed_checks="quarantine")
            discard(folder.location, by=f"{number}")
        quarantined.land(goods(1, price=""), FILLED, on_failed_checks="quarantine")
        assert accept(folder.location, by="first").commit == 2
        assert len(folder.rows()) == 5

    @pytest.mark.parametrize("kind", ["run", "single rows"])
    @pytest.mark.parametrize(
        ("old", "new"),
        [(b".*", None), (b".*", b""), (b"..$", b""), (b"(?<=shop/)0", b"9"), (b"{.", b"{'")],
        ids=["gone", "empty", "cut", "changed", "no JSON"],
    )
    def test_damaged_files_can_only_be_discarded(
        self, runs: Runs, kind: str, old: bytes, new: bytes | None
    ) -> None:
        folder = runs.folder
        runs.land(goods(2), FILLED)
        checks = FILLED if kind == "run" else SINGLE
        runs.land(goods(3, price=""), checks, on_failed_checks="quarantine")
        before, parts = folder.manifest(), folder.parts()
        (part,) = folder.apart()
        damaged = None if new is None else re.sub(old, new, folder.read(part["name"]), count=1, flags=re.S)
        folder.damage(part["name"], damaged)
        with pytest.raises(PartsMissing, match=f"{re.escape(part['name'])} is not"):
            accept(folder.location)
        assert (folder.manifest(), len(folder.commits())) == (before, before["commit"])
        assert folder.parts() <= parts
        assert discard(folder.location).rows == 3
        assert folder.names() == folder.needed()


# Single rows that break rules about values: they are quarantined with their reasons, and the others land.

#: Number of rows in a page: few enough that a landing has several parts.
PAGE = 1000
CHECKS: dict[str, Any] = {
    "rows": {"max_wrong": 0.01},
    "columns": {"price": {"pattern": r"\d+\.\d\d"}, "city": {"values": ["Paris", "Rome"]}},
}
#: The same checks, but more rows may be wrong.
SOME = {**CHECKS, "rows": {"max_wrong": 0.1}}
TYPED = {"price": "decimal(10,2)"}


def test_a_second_decision_writes_what_the_table_lacks(tmp_path: Path) -> None:
    table = tables_in(tmp_path, "delta")()
    runs = Runs(table, file_format=make_format("parquet"))
    runs.land(goods(2), FILLED)
    runs.land(goods(3, price=None), FILLED, on_failed_checks="quarantine")
    before = {file.name for file in tmp_path.rglob("_delta_log/*.json")}
    accept(table.destination, by="Ann")
    # as if the process had been killed after its commit
    for file in tmp_path.rglob("_delta_log/*.json"):
        if file.name not in before:
            file.unlink()
    assert len(table.rows()) == 2
    with pytest.raises(NothingToReview):
        accept(table.destination, commit=2, by="Bob")
    assert len(table.rows()) == 5


KINDS = ["jsonl", "csv", "parquet", "delta", "iceberg"]


def shop(count: int, wrong: int) -> list[dict[str, str]]:
    """Return rows of which some are wrong: half of these by their price, half by their city."""
    rows = [{"n": f"{number}", "price": "1.50", "city": "Paris"} for number in range(count)]
    for index, number in enumerate(random.Random(SEED).sample(range(count), wrong)):
        rows[number] |= {"city": "Oslo"} if index % 2 else {"price": "soon"}
    return rows


@pytest.fixture(params=KINDS)
def shops(request: pytest.FixtureRequest, tmp_path: Path) -> Runs:
    """Runs that land in a new folder, in each file format, or in a new table, in each table format."""
    kind = request.param
    if kind in ("delta", "iceberg"):
        return Runs(tables_in(tmp_path, kind)(), file_format=make_format("parquet"))
    return Runs(Folder.new(local(tmp_path)), file_format=make_format(kind))


def numbers(landed: Any) -> list[int]:
    """Return the numbers of the rows that a reader gets, sorted."""
    return sorted(int(row["n"]) for row in landed.iter_rows())


def test_up_to_the_share_only_wrong_rows_wait(shops: Runs) -> None:
    rows, runs = shop(10_000, 99), shops
    landed = runs.land(rows, CHECKS, fetch=serving(rows, PAGE), max_part_bytes=100_000)
    (waiting,) = in_review(runs.folder.location)
    assert (landed.manifest.rows, waiting.rows, waiting.has_failed) == (9_901, 99, False)
    quarantined = runs.folder.landed(quarantined=waiting.commit)
    reasons = Counter(itertools.chain(*quarantined.reasons()))
    assert reasons == {"columns.price.pattern": 50, "columns.city.values": 49}
    # wrong rows are kept as the service has sent them
    wrong = [row for row in rows if (row["price"], row["city"]) != ("1.50", "Paris")]
    assert [*quarantined.iter_rows()] == wrong
    assert sorted(numbers(runs.folder.landed()) + numbers(quarantined)) == [*range(10_000)]
    runs.folder.landed().verify()
    assert accept(runs.folder.location).rows == 99
    assert numbers(runs.folder.landed()) == [*range(10_000)]
    runs.folder.landed().verify()


def test_above_the_share_all_rows_wait(shops: Runs) -> None:
    rows, runs = shop(10_000, 101), shops
    fetch = serving(rows, PAGE)
    with pytest.raises(ChecksFailed, match=r"101 of 10,000 rows .* 10,000 rows of commit 1 are quarantined"):
        runs.land(rows, CHECKS, fetch=fetch, max_part_bytes=100_000)
    (waiting,) = in_review(runs.folder.location)
    assert (waiting.rows, waiting.has_failed) == (10_000, True)
    quarantined = runs.folder.landed(quarantined=1)
    assert Counter(map(len, quarantined.reasons())) == {0: 9_899, 1: 101}
    assert numbers(quarantined) == [*range(10_000)]
    # the next run is judged by its own rows
    runs.land(shop(10, 0), CHECKS)
    assert accept(runs.folder.location, commit=1).rows == 10_000
    assert Counter(numbers(runs.folder.landed())) == Counter([*range(10_000), *range(10)])


@pytest.mark.parametrize("decided", [False, True], ids=["quarantined", "discarded"])
def test_quarantined_rows_alone_are_a_landing_without_rows(shops: Runs, decided: bool) -> None:
    """Even where the first rows that land create the table."""
    shops.land(shop(3, 3), CHECKS, on_failed_checks="quarantine")
    if decided:
        discard(shops.folder.location)
    landed = shops.folder.landed()
    landed.verify()
    assert (landed.manifest.commit, numbers(landed), landed.uris()) == (1 + decided, [], [])
    assert landed.to_arrow().num_rows == 0
    shops.land(shop(2, 0), CHECKS)
    assert numbers(shops.folder.landed()) == [0, 1]


@pytest.mark.parametrize("first", [SOME, None], ids=["goes on", "reads again"])
def test_a_retry_counts_all_rows_by_its_rules(local_runs: Runs, first: Any) -> None:
    """It counts rows that were sorted by the same rules; after other rules, it reads all rows again."""
    rows = shop(40, 4)
    options: dict[str, Any] = {"fetch": serving(rows, 5), "max_part_bytes": 1}
    with pytest.raises(Crash):
        local_runs.land(rows, first, read=crashing_at(5), **options)
    landed = local_runs.again(SOME, **options)
    outcomes = {outcome.check: outcome for outcome in landed.checks}
    assert outcomes["rows.max_wrong"].found.startswith("4 of 40 rows")
    assert outcomes["columns.price.pattern"].found.startswith("2 of the values in 40 rows")
    assert len(outcomes["columns.price.pattern"].examples) == 2
    assert sum(part.rows for part in landed.new) == landed.manifest.rows == 36


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"n": "1", "price": "dear"}', "columns.price.type"),
        (b'["no", "object"]', "rows.readable"),
        (b'{"n": %s1%s}' % (b"[" * 2000, b"]" * 2000), "rows.readable"),
    ],
    ids=["cast", "no object", "too deep"],
)
def test_one_poisoned_row_holds_up_no_other(tmp_path: Path, raw: bytes, reason: str) -> None:
    runs = Runs(Folder.new(local(tmp_path)), file_format=make_format("parquet", column_types=TYPED))
    good = [msgspec.Raw(b'{"n": "%d", "price": "1.50"}' % number) for number in range(99)]
    page = DataPage(offset=100, total=100, rest_total=0, rows=[*good, msgspec.Raw(raw)])
    landed = runs.again({"rows": {"max_wrong": 0.01}}, fetch=lambda offset: page)
    assert landed.manifest.rows == 99
    quarantined = runs.folder.landed(quarantined=1)
    assert [*quarantined.reasons()] == [[reason]]
    assert len([*quarantined.iter_rows()]) == 1
    (part,) = quarantined.parts()
    assert raw in runs.folder.read(part.name)
    before = runs.folder.contents()
    with pytest.raises(UnreadableRow, match=f"cannot land: the first has broken {reason}"):
        accept(runs.folder.location)
    assert runs.folder.contents() == before
    assert discard(runs.folder.location).rows == 1
    assert runs.folder.landed().manifest.rows == 99


def test_accepted_rows_that_cannot_land_wait_on(tmp_path: Path) -> None:
    """One such row, in a run that has failed its checks, does not hold up the others."""
    runs = Runs(Folder.new(local(tmp_path)), file_format=make_format("parquet", column_types=TYPED))
    rows = shop(10, 0)
    rows[3]["price"], rows[5]["city"] = "dear", "Oslo"
    runs.land(rows, {**CHECKS, "rows": {"max_wrong": 0.01}}, on_failed_checks="quarantine")
    assert accept(runs.folder.location, by="anna").rows == 9
    (left,) = in_review(runs.folder.location)
    assert (left.commit, left.rows, left.has_failed) == (2, 1, False)
    (reasons,) = runs.folder.landed(quarantined=2).reasons()
    assert set(reasons) == {"columns.price.pattern", "columns.price.type"}
    runs.folder.landed().verify()
    before = runs.folder.contents()
    with pytest.raises(UnreadableRow, match=r"1 row of commit 2 .* cannot land: .* columns.price.type"):
        accept(runs.folder.location, commit=2)
    assert runs.folder.contents() == before
    assert accept(runs.folder.location, by="anna", commit=1).rows == 9
    discard(runs.folder.location, commit=2)
    assert numbers(runs.folder.landed()) == [0, 1, 2, *range(4, 10)]


def test_what_is_accepted_meanwhile_keeps_its_columns(tmp_path: Path) -> None:
    """A retry reads the rows again that the first attempt has written with other columns."""
    runs = Runs(Folder.new(local(tmp_path)), file_format=make_format("csv"))
    checks, options = {**CHECKS, "rows": {"max_wrong": 0.5}}, {"max_part_bytes": 1}
    first = shop(4, 0)
    first[1] |= {"price": "?", "extra": "more"}
    runs.land(first, checks, **options)
    later = [row | {"late": "late"} for row in shop(8, 0)]
    with pytest.raises(Crash):
        runs.land(later, checks, fetch=serving(runs.rows + later, 2), read=crashing_at(4), **options)
    accept(runs.folder.location, commit=1)
    runs.again(checks, fetch=serving(runs.rows, 2), **options)
    landed = runs.folder.landed()
    assert landed.manifest.columns == ("n", "price", "city", "extra", "late")
    (accepted,) = [row for row in landed.iter_rows() if row["price"] == "?"]
    assert (accepted["extra"], accepted["late"]) == ("more", None)
    assert landed.manifest.rows == 12


def test_a_column_that_only_wrong_rows_have_is_there(local_runs: Runs) -> None:
    rows: list[dict[str, Any]] = [*shop(99, 0), {"n": "99", "discount": "x"}]
    rules = {"rows": {"max_wrong": 0.05}, "columns": {"discount": {"pattern": r"\d+"}}}
    local_runs.land([{**row, "discount": "5"} for row in shop(1, 0)], rules)
    landed = local_runs.land(rows, {**rules, "missing_columns": "fail"})
    assert landed.manifest.rows == 100


def test_wrong_rows_count_in_the_usual_number(local_runs: Runs) -> None:
    bounds = {"max_wrong": 0.5, "min_of_usual": 0.9, "max_of_usual": 1.1}
    for _ in range(6):
        local_runs.land(shop(100, 40), {**CHECKS, "rows": bounds})
    assert local_runs.folder.landed().manifest.rows == 360
