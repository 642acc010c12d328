"""``land --checks``, ``landing profile``, ``accept`` and ``discard``: checks, profiles and decisions."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import Ended, Run, shown

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

CHECKS = json.dumps({"columns": {"price": {"filled": 0.95}}})

#: Lands the task of the test.
Land = Callable[..., Ended]


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 100 rows; rows that come later have an empty price."""
    task = str(sandbox.control.add_task(lots=[100])["task_id"])
    sandbox.control.change_rows(task, "price", "empty")
    return task


@pytest.fixture
def land(run: Run, connected: None, task: str, folder: Path) -> Land:
    """Lands all rows of the task, as the run with this id."""

    def land(name: str, *options: object) -> Ended:
        checked = ("--mode", "incremental", "--checks", CHECKS, "--late-rows-delay", 0)
        return run("land", task, folder, *checked, "--run-id", name, *options)

    return land


@pytest.fixture
def grown(sandbox: Sandbox, land: Land, task: str) -> None:
    """Run `good` has landed 100 rows, and there are 40 more that fail."""
    assert land("good").code == 0
    sandbox.control.grow(task, 40)


@pytest.fixture
def failed(grown: None, land: Land) -> Ended:
    """The result of run `bad`, which has read the 40 rows."""
    return land("bad")


class TestProfile:
    def test_missing_inputs_are_named(
        self, run: Run, connected: None, sandbox: Sandbox, folder: Path
    ) -> None:
        task = sandbox.control.add_task(loop_items=["tea", "`coffee`\n", "cocoa"])["task_id"]
        sandbox.control.silence(task, ["tea", "`coffee`\n"])
        sandbox.control.start_task(task)
        sandbox.control.advance(3600)
        checks = json.dumps({"inputs": {"column": "keyword"}})
        landed = run("land", task, folder, "--checks", checks, "--on-failed-checks", "warn")
        assert landed.code == 0
        profile = run("landing", "profile", folder, "-o", "json")
        assert {line["column"]: line["rows"] for line in profile.json}["keyword"] == 40
        assert profile.err.strip() == (
            "In the last run that has landed rows, 2 of 3 inputs have no row: "
            "'tea', '\\u0060coffee\\u0060\\n'."
        )

    def test_columns_have_a_line_each(self, run: Run, land: Land, folder: Path) -> None:
        land("good")
        profile = run("landing", "profile", folder, "-o", "json").json
        columns = {line["column"]: line for line in profile}
        assert columns["price"]["rows"] == 100
        assert columns["price"]["filled"] == 1
        assert columns["price"]["shortest"] <= columns["price"]["longest"] <= 7
        assert 0 < columns["city"]["filled"] < 1
        header, *table = run("landing", "profile", folder).out.splitlines()
        names = "column rows filled numbers booleans lists shortest longest misfits"
        assert " ".join(header.split()) == names
        assert ["price", "100", "100", "%"] in [line.split()[:4] for line in table]

    def test_runs_have_a_line_each(self, run: Run, grown: None, land: Land, folder: Path) -> None:
        land("second", "--on-failed-checks", "warn")
        lines = shown(run("landing", "profile", folder, "--by", "run"), "table")
        assert [(line["run"], line["rows"], line["price"]) for line in lines] == [
            ("good", "100", "100 %"),
            ("second", "40", "0 %"),
        ]
        _, second = run("landing", "profile", folder, "--by", "run", "-o", "json").json
        assert second["profile"]["price"][:2] == [40, 0]
        new = run("landing", "profile", folder, "--new-only", "-o", "json").json
        assert {line["column"]: (line["rows"], line["filled"]) for line in new}["price"] == (40, 0)


class TestDecisions:
    def test_the_error_names_the_commands_that_go_on(self, failed: Ended, folder: Path) -> None:
        failed.refused(
            3,
            "columns.price.filled: filled in 0 % of 40 rows",
            f"`webcollect landing cat {folder} --quarantined 2 --reasons`",
            f"`webcollect landing accept {folder} --commit 2`",
            f"`webcollect landing discard {folder} --commit 2`",
        )

    def test_accepted_rows_are_landed_once_the_evidence_was_shown(
        self, sandbox: Sandbox, run: Run, failed: Ended, task: str, folder: Path, monkeypatch: Any
    ) -> None:
        monkeypatch.setenv("LOGNAME", "alice")
        ended = run("landing", "accept", folder)
        (line,) = shown(ended, "table")
        assert line == {"commit": "2", "run": "bad", "rows": "40", "checks": "columns.price.filled"}
        assert ended.err.splitlines()[0] == "Commit 2 has quarantined 40 rows of run bad:"
        assert "  columns.price.filled: filled in 0 % of 40 rows" in ended.err
        assert run("landing", "cat", folder).lines == sandbox.control.true_rows(task)
        (decision,) = read_landing(folder).manifest.decisions
        assert (decision.about, decision.by, decision.is_accepted) == (2, "alice", True)
        for options in ([], ["--commit", 2]):
            again = run("landing", "accept", folder, *options)
            assert (again.code, again.out) == (3, "")
        assert "the rows of commit 2" in again.err
        assert "were accepted already by alice" in again.err

    def test_who_has_no_name_can_decide(
        self, run: Run, failed: Ended, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def nameless() -> str:
            raise KeyError("uid not found")

        monkeypatch.setattr(getpass, "getuser", nameless)
        assert run("landing", "accept", folder).code == 0
        assert read_landing(folder).manifest.decisions[0].by == "unknown user"

    def test_discarded_rows_are_counted_once_asked(self, run: Run, failed: Ended, folder: Path) -> None:
        def counts() -> tuple[object, ...]:
            facts = run("landing", "verify", folder, "-o", "json").json[0]
            names = ("rows", "quarantined_commits", "quarantined_rows", "discarded_rows")
            return tuple(facts[name] for name in names)

        assert counts() == (100, "2", 40, None)
        run("landing", "discard", folder).refused(
            2, "columns.price.filled", f"Delete the 40 rows of commit 2 at {folder}?"
        )
        run("landing", "discard", folder, "--commit", 3, "--yes").refused(3, "commit 3", "40 rows of bad")
        assert counts() == (100, "2", 40, None)
        ended = run("landing", "discard", folder, "--yes")
        assert ended.code == 0, ended.err
        assert counts() == (100, None, None, 40)

    def test_accepted_rows_that_replace_others_are_said(
        self, failed: Ended, run: Run, task: str, folder: Path
    ) -> None:
        full = ("--mode", "full", "--if-exists", "overwrite", "--checks", CHECKS, "--run-id", "full")
        assert run("land", task, folder, *full).code == 3
        said = "If accepted, they replace all rows that have landed."
        ended = run("landing", "discard", folder, "--commit", 3, "--yes")
        assert (ended.code, ended.err.splitlines()[-1]) == (0, said)
        assert said not in run("landing", "accept", folder).err


class TestQuarantined:
    def test_quarantined_rows_are_read_by_the_number_of_their_commit(
        self, sandbox: Sandbox, run: Run, failed: Ended, task: str, folder: Path
    ) -> None:
        rows = sandbox.control.true_rows(task)
        assert run("landing", "cat", folder, "--quarantined", 2).lines == rows[100:]
        reasoned = [{"broke": [], "row": row} for row in rows[100:]]
        assert run("landing", "cat", folder, "--quarantined", 2, "--reasons").lines == reasoned
        assert run("landing", "cat", folder).lines == rows[:100]
        run("landing", "cat", folder, "--quarantined", 1).refused(3, "no rows of commit 1 are quarantined")

    def test_single_rows_have_the_reasons_why_they_are_quarantined(
        self, sandbox: Sandbox, run: Run, connected: None, folder: Path
    ) -> None:
        rows: list[dict[str, Any]] = [
            {"id": "1", "price": "1.00"},
            {"id": "2", "price": "free"},
            {"id": None, "price": "?"},
        ]
        task = sandbox.control.add_task(rows=rows, lots=[3])["task_id"]
        columns = {"id": {"required": True}, "price": {"pattern": r"\d+\.\d\d"}}
        checks = json.dumps({"rows": {"max_wrong": 0.7}, "columns": columns})
        ended = run("land", task, folder, "--mode", "incremental", "--checks", checks, "-o", "json")
        (landed,) = ended.json
        assert (landed["new_rows"], landed["quarantined_rows"], landed["quarantined_commits"]) == (1, 2, "1")
        assert run("landing", "cat", folder).lines == rows[:1]
        broke = [["columns.price.pattern"], ["columns.id.required", "columns.price.pattern"]]
        assert run("landing", "cat", folder, "--quarantined", 1, "--reasons").lines == [
            {"broke": rules, "row": row} for rules, row in zip(broke, rows[1:], strict=True)
        ]
        assert run("landing", "accept", folder).code == 0
        assert run("landing", "cat", folder).lines == rows
