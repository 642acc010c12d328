"""Rows that have failed their checks: quarantined by the landing, accepted or discarded by a person."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from typing import TYPE_CHECKING, Any

import pendulum
import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean, restore
from airflow_provider_webcollect.landing.errors import (
    ChecksFailed,
    DestinationBusy,
    FormatChanged,
    LandingDamaged,
    NothingToReview,
    PartsMissing,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.reader import LandedData, read_landing
from airflow_provider_webcollect.landing.review import Review, accept, discard, in_review
from tests.conftest import ALL_HISTORIES, SEED
from tests.interruption import Pauses
from tests.landing.checked_runs import Runs, goods
from tests.landing.conftest import SERVERS, Crash, Folder, crashing_at
from tests.landing.interleaving import Held, Stepping, with_storage
from tests.landing.pages import AT_ONCE
from tests.landing.storages import Storage, local

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
    from tests.landing.conftest import Landing

CHECKS: dict[str, Any] = {"columns": {"price": {"filled": 0.95}}}


def read(folder: Folder) -> LandedData:
    return read_landing(folder.location)


def rows_apart(folder: Folder) -> list[dict[str, Any]]:
    """Return the quarantined rows, read as landings of their own."""
    return [
        row
        for each in read(folder).manifest.quarantined
        for row in read_landing(_inside(folder, each.folder)).iter_rows()
    ]


def _inside(folder: Folder, name: str | None) -> Any:
    return Folder(folder.fs, f"{folder.root}/{name}").location


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


class Careless(Stepping):
    """A storage that turns out to ignore conditions."""

    def tried(self, path: str, content: bytes, version: str) -> None:
        return None


class TestQuarantine:
    def test_the_rows_become_a_landing_of_their_own_and_the_next_run_goes_on_behind_them(
        self, runs: Runs
    ) -> None:
        runs.land(goods(2), CHECKS)
        landed = runs.land(goods(3, price=""), CHECKS, on_failed_checks="quarantine", max_part_bytes=1)
        assert (landed.new, landed.committed) == ((), ())
        assert [outcome.state for outcome in landed.checks] == ["failed"]
        assert runs.folder.rows() == runs.rows[:2]
        assert rows_apart(runs.folder) == runs.rows[2:]
        runs.land(goods(4), CHECKS, on_failed_checks="quarantine")
        assert runs.folder.rows() == [*runs.rows[:2], *runs.rows[5:]]
        read(runs.folder).verify()
        (apart,) = read(runs.folder).manifest.set_apart
        assert (apart.kind, apart.rows, apart.run.run_id) == ("quarantined", 3, "run 2")
        assert (apart.start_offset, apart.next_offset) == (2, 5)
        assert [outcome.check for outcome in apart.checks] == ["columns.price.filled"]

    def test_the_first_run_of_all_can_be_quarantined(self, runs: Runs) -> None:
        runs.land(goods(3, price=""), CHECKS, on_failed_checks="quarantine")
        assert runs.folder.rows() == []
        runs.land(goods(2), CHECKS, on_failed_checks="quarantine")
        assert runs.folder.rows() == runs.rows[3:]

    @pytest.mark.parametrize("landed", [0, 2])
    def test_no_rows_are_nothing_to_quarantine(self, runs: Runs, landed: int) -> None:
        runs.land(goods(landed))
        options: dict[str, Any] = {"on_failed_checks": "quarantine", "mark": lambda: pytest.fail("marked")}
        with pytest.raises(ChecksFailed, match=r"rows\.min: 0 rows; expected: at least 1\. Nothing"):
            runs.land([], {"rows": {"min": 1}}, **options)
        assert runs.folder.rows() == runs.rows
        assert not any(name.startswith("_quarantine") for name in runs.folder.names())
        assert in_review(runs.folder.location) == ()

    def test_no_parts_are_left_where_they_were_read(self, quarantined: Runs) -> None:
        parts = {part.name for part in read(quarantined.folder).manifest.parts}
        assert quarantined.folder.names() == {*parts, "_manifest.json", "_quarantine"}

    def test_a_retry_changes_nothing(self, quarantined: Runs) -> None:
        before = quarantined.folder.manifest()
        landed = quarantined.again(CHECKS, on_failed_checks="quarantine")
        assert (landed.new, quarantined.folder.manifest()) == ((), before)
        assert [outcome.check for outcome in landed.checks] == ["columns.price.filled"]

    def test_the_export_is_not_marked_while_rows_wait(self, runs: Runs) -> None:
        marks: list[str] = []
        options: dict[str, Any] = {
            "on_failed_checks": "quarantine",
            "mark": lambda: marks.append("marked"),
        }
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

    def test_accepted_rows_have_the_time_of_their_acceptance(self, quarantined: Runs) -> None:
        with time_machine.travel(pendulum.now("UTC").add(days=1)):
            accept(quarantined.folder.location)
        manifest = read(quarantined.folder).manifest
        first, accepted = (part.landed_at for part in manifest.parts)
        assert first is not None
        assert first < manifest.finished_at == accepted

    def test_rows_of_a_source_that_was_reset_stay_apart_and_count_no_more(self, quarantined: Runs) -> None:
        before = quarantined.folder.rows()
        quarantined.rows.clear()
        quarantined.land(goods(4), CHECKS, on_reset="append")
        assert quarantined.folder.rows() == [*before, *quarantined.rows]
        assert rows_apart(quarantined.folder) == goods(3, price="", late="new")
        accept(quarantined.folder.location)
        assert len(quarantined.folder.rows()) == 9
        quarantined.land(goods(1), CHECKS, on_reset="append")
        assert quarantined.folder.rows()[-1:] == quarantined.rows[-1:]

    def test_verify_finds_what_is_wrong_in_the_quarantine(self, quarantined: Runs) -> None:
        folder = quarantined.folder
        (apart,) = read(folder).manifest.quarantined
        inside = read_landing(_inside(folder, apart.folder))
        folder.write(f"{apart.folder}/{inside.manifest.parts[0].name}", b"x")
        with pytest.raises(LandingDamaged, match=r"_quarantine/run-2-\w+/part-.* has 1 bytes instead of"):
            read(folder).verify()
        folder.fs.rm_file(f"{folder.root}/{apart.folder}/_manifest.json")
        with pytest.raises(LandingDamaged, match=r"_quarantine/run-2-\w+/_manifest.json is missing"):
            read(folder).verify()

    def test_a_count_that_does_not_add_up_is_a_contradiction(self, quarantined: Runs) -> None:
        content = quarantined.folder.read("_manifest.json").replace(b'"rows":3', b'"rows":4')
        quarantined.folder.write("_manifest.json", content)
        with pytest.raises(Exception, match="it has 6 of the source's rows, with those that were set apart"):
            read(quarantined.folder)

    def test_clean_keeps_what_waits_and_removes_what_no_manifest_has(
        self, runs: Runs, tmp_path: Path
    ) -> None:
        folder = Folder(local(tmp_path).fs, str(tmp_path / "landing"))
        runs.folder = folder
        runs.land(goods(3, price=""), CHECKS, on_failed_checks="quarantine")
        before = _files(folder)
        assert clean(folder.root, older_than=0) == ()
        stray = "_quarantine/run-9-0123abcd"
        folder.fs.makedirs(f"{folder.root}/{stray}")
        for name in ("part-00001-0123abcd.jsonl", "_manifest.json"):
            folder.write(f"{stray}/{name}", b"{}\n")
        removed = clean(folder.root, older_than=0)
        assert {file.name for file in removed} == {
            f"{stray}/_manifest.json",
            f"{stray}/part-00001-0123abcd.jsonl",
        }
        assert _files(folder) == before


def _files(folder: Folder) -> set[str]:
    return set(folder.destination.files())


class TestReplacedLandings:
    """What was quarantined belongs to what a landing replaces, which has its rows again."""

    @pytest.mark.parametrize(
        "options",
        [{"mode": "full", "if_exists": "overwrite"}, {"on_reset": "full"}],
        ids=["overwrite", "on_reset"],
    )
    def test_rows_that_are_landed_again_do_not_wait_any_more(
        self, quarantined: Runs, options: dict[str, Any]
    ) -> None:
        quarantined.rows[0]["price"] = "corrected"
        quarantined.land(goods(1), **options)
        assert in_review(quarantined.folder.location) == ()
        assert quarantined.folder.rows() == quarantined.rows
        read(quarantined.folder).verify()

    def test_quarantined_rows_of_what_was_overwritten_are_deleted(self, quarantined: Runs) -> None:
        quarantined.land(goods(1), mode="full", if_exists="overwrite")
        assert not any(name.startswith("_quarantine/") for name in _files(quarantined.folder))

    def test_what_is_put_back_has_its_quarantined_rows(self, land_job: Landing, tmp_path: Path) -> None:
        folder = Folder(local(tmp_path).fs, str(tmp_path / "restored"))
        runs = Runs(land_job, folder)
        runs.land(goods(2))
        runs.land(goods(3, price=""), CHECKS, on_failed_checks="quarantine")
        runs.rows.clear()
        runs.land(goods(1), on_reset="full")
        clean(folder.root, older_than=3600)
        restore(folder.root)
        read(folder).verify()
        accept(folder.root, "run 2")
        assert folder.rows() == [*goods(2), *goods(3, price="")]

    def test_rows_of_another_format_are_not_accepted(self, quarantined: Runs) -> None:
        folder = quarantined.folder
        (apart,) = read(folder).manifest.quarantined
        name = f"{apart.folder}/_manifest.json"
        folder.write(name, folder.read(name).replace(b'"format": "jsonl"', b'"format": "csv"'))
        with pytest.raises(FormatChanged, match="have another format or other columns than the landing"):
            accept(folder.location)
        assert [each.state for each in in_review(folder.location)] == ["quarantined"]


class TestMarksAndReports:
    """What is left to do after a commit is not checked as if it were a run's rows."""

    CHECKS: dict[str, Any] = {"rows": {"min": 3}, **CHECKS}  # noqa: RUF012

    def test_a_retry_that_has_only_to_mark_marks(self, runs: Runs) -> None:
        marks: list[str] = []
        with pytest.raises(ConnectionError):
            runs.land(goods(5), self.CHECKS, mark=_failing)
        landed = runs.again(self.CHECKS, mark=lambda: marks.append("marked"))
        assert marks == ["marked"]
        assert sum(part.rows for part in landed.new) == 5

    def test_a_cleared_task_marks_what_was_accepted(self, runs: Runs) -> None:
        marks: list[str] = []
        options: dict[str, Any] = {"mark": lambda: marks.append("marked")}
        with pytest.raises(ChecksFailed):
            runs.land(goods(5, price=""), self.CHECKS, **options)
        accept(runs.folder.location)
        landed = runs.again(self.CHECKS, **options)
        assert (marks, sum(part.rows for part in landed.new)) == (["marked"], 5)

    def test_rows_that_come_before_the_retry_count_with_those_that_are_committed(self, runs: Runs) -> None:
        with pytest.raises(ConnectionError):
            runs.land(goods(5), self.CHECKS, mark=_failing)
        runs.rows += goods(1)
        landed = runs.again(self.CHECKS, mark=lambda: None)
        assert {outcome.check: outcome.found for outcome in landed.checks}["rows.min"] == "6 rows"
        assert runs.folder.rows() == runs.rows


class TestDecisions:
    def test_who_discards_first_rows_takes_none_from_who_accepts_them(self, runs: Runs) -> None:
        """Of two people who decide at the same time, at whichever operation, none deletes what is landed."""
        options: dict[str, Any] = {"mode": "full", "if_exists": "overwrite"}
        runs.land(goods(2), **options)
        runs.rows.clear()
        for operation in itertools.count(1):
            with pytest.raises(ChecksFailed):
                runs.land(goods(3, price=""), CHECKS, **options)

            def accepting(place: Destination) -> Any:
                return Review(place, None, stop=Pauses(), timing=AT_ONCE).accept()

            held = Held(accepting, runs.folder.destination, operation)
            if not held.met:
                break
            with contextlib.suppress(DestinationBusy, NothingToReview):
                Review(runs.folder.destination, None, stop=Pauses(), timing=AT_ONCE).discard()
            held.end()
            assert runs.folder.rows() in (goods(2), runs.rows)
            runs.rows.clear()
            runs.land(goods(2), **options)
            runs.rows.clear()
        assert operation > 6

    def test_staged_rows_are_quarantined_afterwards(self, staged: Runs) -> None:
        review = Review(staged.folder.destination, None)
        review.quarantine()
        assert rows_apart(staged.folder) == staged.rows[2:]
        assert staged.folder.rows() == staged.rows[:2]
        staged.land(goods(1), CHECKS)
        assert staged.folder.rows() == [*staged.rows[:2], *staged.rows[5:]]
        with pytest.raises(NothingToReview, match=r"3 rows of run 2 \(quarantined\) at .* cannot be"):
            Review(staged.folder.destination, None).quarantine()

    def test_what_waits_is_listed(self, quarantined: Runs) -> None:
        with pytest.raises(ChecksFailed):
            quarantined.land(goods(4, price=""), CHECKS)
        there = in_review(quarantined.folder.location)
        assert [str(each) for each in there] == ["4 rows of run 3 (staged)", "3 rows of run 2 (quarantined)"]
        with pytest.raises(NothingToReview, match=r"name one of the runs .*: 4 rows of run 3 \(sta"):
            accept(quarantined.folder.location)

    def test_staged_rows_are_accepted_and_the_next_run_reports_them(self, staged: Runs) -> None:
        accepted = accept(staged.folder.location, "run 2")
        assert (accepted.rows, accepted.state) == (3, "staged")
        assert staged.folder.rows() == staged.rows
        landed = staged.land(goods(1), CHECKS)
        assert sum(part.rows for part in landed.new) == 4
        assert staged.land([]).new == ()
        assert staged.folder.rows() == staged.rows
        assert in_review(staged.folder.location) == ()

    def test_staged_rows_are_discarded_and_the_next_run_goes_on_behind_them(self, staged: Runs) -> None:
        discard(staged.folder.location, "run 2")
        assert staged.folder.rows() == staged.rows[:2]
        staged.land(goods(4), CHECKS)
        assert staged.folder.rows() == [*staged.rows[:2], *staged.rows[5:]]
        read(staged.folder).verify()
        parts = {part.name for part in read(staged.folder).manifest.parts}
        assert staged.folder.names() == {*parts, "_manifest.json"}

    def test_the_first_rows_of_all_can_be_accepted_or_discarded(self, runs: Runs) -> None:
        with pytest.raises(ChecksFailed):
            runs.land(goods(3, price=""), CHECKS)
        discard(runs.folder.location, "run 1")
        with pytest.raises(ChecksFailed):
            runs.land(goods(2, price=""), CHECKS)
        accept(runs.folder.location)
        assert runs.folder.rows() == runs.rows[3:]

    def test_quarantined_rows_are_accepted_behind_those_that_have_landed_since(
        self, quarantined: Runs
    ) -> None:
        quarantined.land(goods(4), CHECKS)
        accept(quarantined.folder.location, "run 2")
        expected = [*quarantined.rows[:2], *quarantined.rows[5:], *quarantined.rows[2:5]]
        assert quarantined.folder.rows() == expected
        assert not any(name.startswith("_quarantine/") for name in _files(quarantined.folder))
        landed = quarantined.land(goods(1), CHECKS)
        assert sum(part.rows for part in landed.new) == 4
        assert quarantined.folder.rows() == [*expected, *quarantined.rows[-1:]]
        read(quarantined.folder).verify()

    @pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
    def test_accepted_rows_have_their_columns_in_every_format(self, runs: Runs, name: str) -> None:
        options: dict[str, Any] = {"file_format": make_format(name)}
        runs.land(goods(2), CHECKS, **options)
        runs.land(goods(3, price="", late="new"), CHECKS, on_failed_checks="quarantine", **options)
        runs.land(goods(1, later="newer"), CHECKS, **options)
        accept(runs.folder.location)
        rows = read(runs.folder).to_arrow().to_pylist()
        columns = {"url": None, "price": None, "late": None, "later": None}
        expected = [columns | row for row in (*runs.rows[:2], runs.rows[5], *runs.rows[2:5])]
        assert rows == expected
        read(runs.folder).verify()

    def test_quarantined_rows_are_discarded(self, quarantined: Runs) -> None:
        discard(quarantined.folder.location, "run 2")
        assert not any(name.startswith("_quarantine/") for name in _files(quarantined.folder))
        (apart,) = read(quarantined.folder).manifest.set_apart
        assert (apart.kind, apart.rows, apart.folder) == ("discarded", 3, None)
        assert quarantined.land(goods(1), CHECKS).manifest.rows == 3
        read(quarantined.folder).verify()

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

    def test_who_is_at_work_or_unfinished_is_not_disturbed(self, quarantined: Runs) -> None:
        with pytest.raises(ChecksFailed):
            quarantined.land(goods(4, price=""), CHECKS)
        with pytest.raises(DestinationBusy, match=r"run run 3 .* has not ended at .*: let it end"):
            accept(quarantined.folder.location, "run 2")
        accept(quarantined.folder.location, "run 3")
        accept(quarantined.folder.location, "run 2")
        assert len(quarantined.folder.rows()) == len(quarantined.rows)

    def test_parts_that_are_gone_or_damaged_are_not_committed(self, staged: Runs) -> None:
        before = staged.folder.manifest()
        (name,) = staged.folder.names() - {"_manifest.json", "_progress.json", before["parts"][0]["name"]}
        staged.folder.write(name, b"x")
        with pytest.raises(PartsMissing, match=rf"{re.escape(name)} is not at"):
            accept(staged.folder.location)
        assert staged.folder.manifest() == before

    def test_a_quarantined_part_that_was_changed_is_not_committed(self, quarantined: Runs) -> None:
        folder, before = quarantined.folder, quarantined.folder.manifest()
        (apart,) = read(folder).manifest.quarantined
        inside = read_landing(_inside(folder, apart.folder)).manifest
        name = f"{apart.folder}/{inside.parts[0].name}"
        folder.write(name, folder.read(name).replace(b"shop", b"shap"))
        with pytest.raises(PartsMissing, match="is not what was written; nothing was committed"):
            accept(folder.location)
        assert folder.manifest() == before
        assert [each.state for each in in_review(folder.location)] == ["quarantined"]

    @pytest.mark.parametrize("kind", ["accept", "discard", "quarantine"])
    def test_a_storage_that_ignores_conditions_is_decided_on_too(self, staged: Runs, kind: str) -> None:
        destination = staged.folder.destination
        careless = with_storage(destination, Careless(destination._storage, lambda *_: None))
        getattr(Review(careless, None), kind)()
        assert all(each.state != "staged" for each in in_review(staged.folder.location))
        read(staged.folder).verify()

    def test_a_run_that_is_not_there_is_said(self, staged: Runs) -> None:
        with pytest.raises(NothingToReview, match=r"no rows of run 9 wait .*; there are 3 rows of run 2"):
            discard(staged.folder.location, "run 9")


def _failing() -> None:
    raise ConnectionError


class TestKilled:
    """Whoever is killed at any operation leaves each row landed, quarantined, discarded or staged, once."""

    @pytest.fixture(params=["disk", *(pytest.param(kind, marks=pytest.mark.at_night) for kind in SERVERS)])
    def storage(self, request: pytest.FixtureRequest, storage_of: Callable[[str], Storage]) -> Storage:
        return storage_of(request.param)

    @pytest.fixture
    def folder(self, storage: Storage) -> Folder:
        """Each test has many folders of its own."""
        return Folder(storage.fs, storage.new_folder())

    @pytest.fixture
    def made(self, land_job: Landing, storage: Storage) -> Callable[[str], Runs]:
        """Makes runs: 250 rows have landed, and 210 have failed, or are to be read."""

        def made(state: str) -> Runs:
            runs = Runs(land_job, Folder(storage.fs, storage.new_folder()), max_part_bytes=1)
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

        return made

    @pytest.mark.by_day(2)
    @pytest.mark.parametrize(
        ("state", "kind"),
        [
            ("to be read", "quarantine"),
            ("staged", "quarantine"),
            ("staged", "accept"),
            ("staged", "discard"),
            ("quarantined", "accept"),
            ("quarantined", "discard"),
        ],
    )
    def test_at_every_operation(self, made: Callable[[str], Runs], state: str, kind: str) -> None:
        def act(place: Destination) -> Any:
            if kind == "quarantine":
                return runs.land([], CHECKS, folder=place, on_failed_checks="quarantine")
            return getattr(Review(place, None, stop=Pauses(), timing=AT_ONCE), kind)()

        stride = 1 if ALL_HISTORIES else 3
        for operation in itertools.count(random.Random(f"{SEED} {state} {kind}").randint(1, stride), stride):
            runs = made(state)
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
        manifest = read(folder).manifest
        discarded = sum(each.rows for each in manifest.set_apart if each.kind == "discarded")
        assert len(folder.rows()) + len(rows_apart(folder)) + discarded == len(runs.rows)
        read(folder).verify()
        for each in in_review(folder.location):
            assert each.state == "quarantined"
            accept(folder.location, each.run.run_id)
        expected = [*runs.rows[:250], *runs.rows[460:]] if discarded else runs.rows
        assert sorted(map(str, folder.rows())) == sorted(map(str, expected))
        clean(folder.location, older_than=0)
        parts = {part.name for part in read(folder).manifest.parts}
        assert _files(folder) - {"_progress.json"} == {*parts, "_manifest.json"}
