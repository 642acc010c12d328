"""Rows that have failed their checks: quarantined by the landing, accepted or discarded by a person."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.cleaning import clean, restore
from airflow_provider_webcollect.landing.commits import Manifest, decode
from airflow_provider_webcollect.landing.errors import ChecksFailed, NothingToReview, PartsMissing
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.names import MANIFEST
from airflow_provider_webcollect.landing.review import accept, discard, in_review, quarantine
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.checked_runs import Runs, goods
from tests.landing.conftest import Crash, Folder, crashing_at
from tests.landing.interleaving import Held
from tests.landing.pages import unreachable
from tests.storages import Storage, local

CHECKS: dict[str, Any] = {"columns": {"price": {"filled": 0.95}}}


def state_of(folder: Folder) -> Manifest:
    """Return what has landed, as the manifest says it."""
    return decode(folder.read(MANIFEST), MANIFEST, Manifest)


@pytest.fixture
def local_runs(tmp_path: Path) -> Runs:
    """Runs that land in a folder of the disk."""
    return Runs(Folder(local(tmp_path).fs, str(tmp_path / "landing")))


@pytest.fixture
def staged(runs: Runs) -> Runs:
    """Two good rows that are landed, and three of run 2 that have failed and are staged."""
    runs.land(goods(2), CHECKS)
    with pytest.raises(ChecksFailed):
        runs.land(goods(3, price=""), CHECKS)
    return runs


@pytest.fixture
def quarantined(runs: Runs) -> Runs:
    """Two good rows that are landed, and three of run 2 that have failed and are quarantined."""
    runs.land(goods(2), CHECKS)
    runs.land(goods(3, price="", late="new"), CHECKS, on_failed_checks="quarantine")
    return runs


class TestQuarantine:
    def test_the_rows_are_set_apart_and_the_next_run_goes_on_behind_them(self, runs: Runs) -> None:
        runs.land(goods(2), CHECKS)
        landed = runs.land(goods(3, price=""), CHECKS, on_failed_checks="quarantine", max_part_bytes=1)
        assert (landed.new, landed.committed) == ((), ())
        assert [outcome.state for outcome in landed.checks] == ["failed"]
        assert runs.folder.rows() == runs.rows[:2]
        assert runs.folder.rows_apart() == runs.rows[2:]
        runs.land(goods(4), CHECKS, on_failed_checks="quarantine")
        assert runs.folder.rows() == [*runs.rows[:2], *runs.rows[5:]]
        (apart,) = state_of(runs.folder).set_apart
        assert (apart.kind, apart.rows, apart.run.run_id) == ("quarantined", 3, "run 2")
        assert (apart.start_offset, apart.next_offset) == (2, 5)
        assert [outcome.check for outcome in apart.checks] == ["columns.price.filled"]

    def test_a_retry_changes_nothing_and_their_parts_stay_where_they_were_read(
        self, quarantined: Runs
    ) -> None:
        folder = quarantined.folder
        before = folder.manifest()
        landed = quarantined.again(CHECKS, on_failed_checks="quarantine")
        assert (landed.new, folder.manifest()) == ((), before)
        assert [outcome.check for outcome in landed.checks] == ["columns.price.filled"]
        assert len(folder.apart()) == 1
        assert folder.names() == folder.needed()

    def test_the_export_is_not_marked_while_rows_wait(self, runs: Runs) -> None:
        marks: list[str] = []
        options: dict[str, Any] = {"on_failed_checks": "quarantine", "mark": lambda: marks.append("marked")}
        runs.land(goods(3, price=""), CHECKS, **options)
        runs.land(goods(2), CHECKS, **options)
        runs.land([], **options)
        assert marks == []
        accept(runs.folder.location)
        runs.land([], **options)
        assert marks == ["marked"]

    def test_what_a_reset_brings_again_stays_staged(self, runs: Runs) -> None:
        options: dict[str, Any] = {"on_failed_checks": "quarantine", "on_reset": "full"}
        runs.land(goods(3), CHECKS, **options)
        before = runs.rows[:]
        runs.rows.clear()
        with pytest.raises(ChecksFailed):
            runs.land(goods(2, price=""), CHECKS, **options)
        assert runs.folder.rows() == before

    def test_rows_of_a_source_that_was_reset_stay_apart_and_count_no_more(self, quarantined: Runs) -> None:
        before = quarantined.folder.rows()
        quarantined.rows.clear()
        quarantined.land(goods(4), CHECKS, on_reset="append")
        assert quarantined.folder.rows() == [*before, *quarantined.rows]
        assert quarantined.folder.rows_apart() == goods(3, price="", late="new")
        accept(quarantined.folder.location)
        assert len(quarantined.folder.rows()) == 9
        quarantined.land(goods(1), CHECKS, on_reset="append")
        assert quarantined.folder.rows()[-1:] == quarantined.rows[-1:]


class TestReplacedLandings:
    """Quarantined rows belong to the landing that was replaced; if it is restored, they are too."""

    @pytest.mark.parametrize(
        "options",
        [{"mode": "full", "if_exists": "overwrite"}, {"on_reset": "full"}],
        ids=["overwrite", "on_reset"],
    )
    def test_rows_that_are_landed_again_do_not_wait_any_more_and_their_parts_are_removed_as_leftovers(
        self, local_runs: Runs, options: dict[str, Any]
    ) -> None:
        folder = local_runs.folder
        local_runs.land(goods(2), CHECKS)
        local_runs.land(goods(3, price=""), CHECKS, on_failed_checks="quarantine")
        local_runs.rows[0]["price"] = "corrected"
        local_runs.land(goods(1), **options)
        assert in_review(folder.location) == ()
        assert folder.rows() == local_runs.rows
        assert len(clean(folder.root, older_than=0)) == 2
        assert folder.names() == folder.needed()

    def test_what_is_put_back_has_its_quarantined_rows(self, local_runs: Runs) -> None:
        folder = local_runs.folder
        local_runs.land(goods(2))
        local_runs.land(goods(3, price=""), CHECKS, on_failed_checks="quarantine")
        local_runs.rows.clear()
        local_runs.land(goods(1), on_reset="full")
        clean(folder.root, older_than=3600)
        restore(folder.root)
        accept(folder.root, "run 2")
        assert folder.rows() == [*goods(2), *goods(3, price="")]


class TestMarks:
    """A retry after the commit is checked by all rows of the run, not by the new ones alone."""

    CHECKS: dict[str, Any] = {"rows": {"min": 3}, **CHECKS}  # noqa: RUF012

    @pytest.mark.parametrize("more", [0, 1])
    def test_a_retry_that_marks_counts_what_is_committed_with_what_came(self, runs: Runs, more: int) -> None:
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
    @pytest.mark.parametrize(
        ("state", "decide"),
        [
            *[("staged", quarantine), ("staged", accept), ("staged", discard)],
            *[("quarantined", accept), ("quarantined", discard)],
        ],
    )
    def test_rows_are_what_was_decided_and_the_next_run_goes_on_behind_them(
        self, staged: Runs, state: str, decide: Callable[..., Any]
    ) -> None:
        folder, bad = staged.folder, staged.rows[2:]
        if state == "quarantined":
            quarantine(folder.location, "run 2")
        decided = decide(folder.location, "run 2")
        assert (decided.rows, decided.state) == (3, state)
        landed = [*staged.rows[:2], *(bad if decide is accept else [])]
        assert folder.rows() == landed
        assert folder.rows_apart() == (bad if decide is quarantine else [])
        assert sum(part.rows for part in staged.again(CHECKS).new) == len(landed) - 2
        assert sum(part.rows for part in staged.land(goods(1), CHECKS).new) == 1
        assert staged.land([]).new == ()
        assert folder.rows() == [*landed, *staged.rows[5:]]
        left = {accept: [], quarantine: [("quarantined", 3)], discard: [("discarded", 3)]}
        assert [(entry.kind, entry.rows) for entry in state_of(folder).set_apart] == left[decide]
        assert len(in_review(folder.location)) == (decide is quarantine)
        assert folder.names() == folder.needed()

    def test_what_waits_is_listed(self, quarantined: Runs) -> None:
        with pytest.raises(ChecksFailed):
            quarantined.land(goods(4, price=""), CHECKS)
        there = in_review(quarantined.folder.location)
        assert [*map(str, there)] == ["4 rows of run 3 (staged)", "3 rows of run 2 (quarantined)"]
        with pytest.raises(NothingToReview, match=r"name one of the runs .*: 4 rows of run 3 \(sta"):
            accept(quarantined.folder.location)
        with pytest.raises(NothingToReview, match=r"3 rows of run 2 \(quarantined\) at .* cannot be"):
            quarantine(quarantined.folder.location, "run 2")

    def test_quarantined_rows_are_accepted_behind_those_landed_since(self, quarantined: Runs) -> None:
        quarantined.land(goods(4), CHECKS)
        accept(quarantined.folder.location, "run 2")
        expected = [*quarantined.rows[:2], *quarantined.rows[5:], *quarantined.rows[2:5]]
        assert quarantined.folder.rows() == expected

    @pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
    def test_accepted_rows_have_their_columns_in_every_format(self, runs: Runs, name: str) -> None:
        options: dict[str, Any] = {"file_format": make_format(name)}
        runs.land(goods(2), CHECKS, **options)
        runs.land(goods(3, price="", late="new"), CHECKS, on_failed_checks="quarantine", **options)
        runs.land(goods(1, later="newer"), CHECKS, **options)
        accept(runs.folder.location)
        rows = runs.folder.landed().to_arrow().to_pylist()
        columns = {"url": None, "price": None, "late": None, "later": None}
        expected = [columns | row for row in (*runs.rows[:2], runs.rows[5], *runs.rows[2:5])]
        assert rows == expected
        runs.folder.landed().verify()

    def test_rows_of_a_full_landing_are_accepted_or_deleted(self, runs: Runs) -> None:
        options: dict[str, Any] = {"mode": "full", "if_exists": "overwrite"}
        runs.land(goods(2), **options)
        runs.rows.clear()
        with pytest.raises(ChecksFailed):
            runs.land(goods(3, price=""), CHECKS, **options)
        discard(runs.folder.location, "run 2")
        assert runs.folder.rows() == goods(2)
        assert in_review(runs.folder.location) == ()
        with pytest.raises(ChecksFailed):
            runs.again(CHECKS, **options)
        accept(runs.folder.location)
        assert runs.folder.rows() == runs.rows

    def test_rows_of_an_interrupted_landing_are_nothing_to_decide_on(self, runs: Runs) -> None:
        with pytest.raises(Crash):
            runs.land(goods(250, price=""), CHECKS, read=crashing_at(2), max_part_bytes=1)
        with pytest.raises(NothingToReview, match=r"no rows wait for a decision at .*; there are none"):
            accept(runs.folder.location)

    @pytest.mark.parametrize("state", ["staged", "quarantined"])
    @pytest.mark.parametrize("content", [None, b"x"], ids=["gone", "cut"])
    def test_parts_that_are_not_whole_are_not_committed(self, staged: Runs, state: str, content: Any) -> None:
        folder = staged.folder
        if state == "quarantined":
            quarantine(folder.location)
        before = folder.manifest()
        (name,) = folder.parts() - {part["name"] for part in before["parts"]}
        folder.damage(name, content)
        with pytest.raises(PartsMissing, match=rf"{re.escape(name)} is not at"):
            accept(folder.location)
        assert (folder.manifest(), len(folder.commits())) == (before, before["commit"])
        assert [entry.state for entry in in_review(folder.location)] == [state]

    def test_a_run_that_is_not_there_is_said(self, staged: Runs) -> None:
        with pytest.raises(NothingToReview, match=r"no rows of run 9 wait .*; there are 3 rows of run 2"):
            discard(staged.folder.location, "run 9")


class TestKilled:
    """Whoever is killed at any operation leaves each row landed, quarantined, discarded or staged, once."""

    def made(self, storage: Storage, state: str) -> Runs:
        """Return runs: 250 rows have landed, and 210 have failed, or are to be read."""
        runs = Runs(Folder.new(storage), max_part_bytes=1)
        runs.land(goods(250), CHECKS)
        match state:
            case "staged":
                with pytest.raises(ChecksFailed):
                    runs.land(goods(210, price=""), CHECKS)
            case "quarantined":
                runs.land(goods(210, price=""), CHECKS, on_failed_checks="quarantine")
            case "to be read":
                runs.rows += goods(210, price="")
        return runs

    @pytest.mark.by_day(2)
    @pytest.mark.parametrize(
        ("state", "decide"),
        [
            *[("to be read", None), ("staged", None), ("staged", accept), ("staged", discard)],
            *[("quarantined", accept), ("quarantined", discard)],
        ],
    )
    def test_at_every_operation(self, storage: Storage, state: str, decide: Any) -> None:
        def act(place: Destination) -> Any:
            if decide is None:
                return runs.land([], CHECKS, folder=place, on_failed_checks="quarantine")
            return decide(place, "run 2")

        stride = 1 if ALL_HISTORIES else 3
        chance = random.Random(f"{SEED} {state} {decide and decide.__name__}")
        for operation in itertools.count(chance.randint(1, stride), stride):
            runs = self.made(storage, state)
            held = Held(act, runs.folder.destination, operation)
            if not held.met:
                break
            assert isinstance(held.end(kill=True), Crash)
            self.check(runs)
        assert operation > 6

    def check(self, runs: Runs) -> None:
        folder = runs.folder
        assert folder.rows()[:250] == runs.rows[:250]
        # the next run lands what nobody has decided on
        runs.land(goods(5))
        discarded = sum(
            entry["rows"] for entry in folder.manifest()["set_apart"] if entry["kind"] == "discarded"
        )
        assert len(folder.rows()) + len(folder.rows_apart()) + discarded == len(runs.rows)
        for entry in in_review(folder.location):
            assert entry.state == "quarantined"
            accept(folder.location, entry.run.run_id)
        expected = [*runs.rows[:250], *runs.rows[460:]] if discarded else runs.rows
        assert sorted(map(str, folder.rows())) == sorted(map(str, expected))
        clean(folder.location, older_than=0)
        assert folder.names() == folder.needed()
