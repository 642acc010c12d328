"""``land --checks``, ``landing profile``, ``accept`` and ``discard``: what rows hold, and who decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import Ended, Run, shown

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

CHECKS = json.dumps({"columns": {"price": {"filled": 0.95}}})


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 100 rows, and more of which the price is empty."""
    task = str(sandbox.control.add_task(lots=[100])["task_id"])
    sandbox.control.change_rows(task, "price", "empty")
    return task


@pytest.fixture
def land(run: Run, connected: None, task: str, folder: Path) -> Callable[..., Ended]:
    """Lands what is there, by the name of a run."""

    def land(name: str, *options: object) -> Ended:
        checked = ("--mode", "incremental", "--checks", CHECKS, "--late-rows-delay", 0)
        return run("land", task, folder, *checked, "--run-id", name, *options)

    return land


@pytest.fixture
def grown(sandbox: Sandbox, land: Callable[..., Ended], task: str) -> None:
    """Run `good` has landed 100 rows, and there are 40 more that fail."""
    assert land("good").code == 0
    sandbox.control.grow(task, 40)


@pytest.fixture
def failed(grown: None, land: Callable[..., Ended]) -> Ended:
    """How run `bad` has ended, which has read the 40 rows."""
    return land("bad")


class TestProfile:
    def test_columns_have_a_line_each(self, run: Run, land: Callable[..., Ended], folder: Path) -> None:
        land("good")
        profile = run("landing", "profile", folder, "-o", "json").json
        columns = {line["column"]: line for line in profile}
        assert columns["price"]["rows"] == 100
        assert columns["price"]["filled"] == 1
        assert columns["price"]["shortest"] <= columns["price"]["longest"] <= 7
        assert 0 < columns["city"]["filled"] < 1
        header, *table = run("landing", "profile", folder).out.splitlines()
        assert " ".join(header.split()) == "column rows filled numbers booleans lists shortest longest"
        assert ["price", "100", "100", "%"] in [line.split()[:4] for line in table]

    def test_runs_have_a_line_each(
        self, run: Run, grown: None, land: Callable[..., Ended], folder: Path
    ) -> None:
        land("second", "--on-failed-checks", "warn")
        lines = shown(run("landing", "profile", folder, "--by", "run"), "table")
        assert [(line["run"], line["rows"], line["price"]) for line in lines] == [
            ("good", "100", "100 %"),
            ("second", "40", "0 %"),
        ]
        first, second = run("landing", "profile", folder, "--by", "run", "-o", "json").json
        assert first["profile"]["price"][:2] == [100, 100]
        assert second["profile"]["price"][:2] == [40, 0]
        for some in (["--new-only"], ["--since", 1]):
            new = run("landing", "profile", folder, *some, "-o", "json").json
            assert {line["column"]: (line["rows"], line["filled"]) for line in new}["price"] == (40, 0)


class TestDecisions:
    def test_the_error_names_the_commands_that_go_on(self, failed: Ended, folder: Path) -> None:
        failed.refused(
            3,
            "columns.price.filled: filled in 0 % of 40 rows",
            f"`webcollect landing accept {folder}`",
            f"`webcollect landing discard {folder} bad`",
            "or change `checks` and land again",
        )

    def test_the_same_command_with_other_checks_lands_what_was_read(
        self, failed: Ended, land: Callable[..., Ended], sandbox: Sandbox, run: Run, task: str, folder: Path
    ) -> None:
        assert land("bad", "--checks", "{}").code == 0
        assert run("landing", "cat", folder).lines == sandbox.control.true_rows(task)

    def test_accepted_rows_are_landed(
        self, sandbox: Sandbox, run: Run, failed: Ended, task: str, folder: Path
    ) -> None:
        (line,) = shown(run("landing", "accept", folder), "table")
        assert (line["run"], line["rows"], line["was"]) == ("bad", "40", "staged")
        assert run("landing", "cat", folder).lines == sandbox.control.true_rows(task)

    def test_discarded_rows_are_counted_out_once_it_was_asked(
        self, run: Run, failed: Ended, folder: Path
    ) -> None:
        facts = run("landing", "verify", folder, "-o", "json").json[0]
        assert (facts["rows"], facts["staged_rows"], facts["discarded_rows"]) == (100, 40, None)
        run("landing", "discard", folder, "bad").refused(
            2, f"Delete the rows of bad that wait for a decision at {folder}?"
        )
        run("landing", "discard", folder, "other", "--yes").refused(
            3, "no rows of other wait for a decision", "40 rows of bad (staged)"
        )
        ended = run("landing", "discard", folder, "bad", "--yes")
        assert ended.code == 0, ended.err
        facts = run("landing", "verify", folder, "-o", "json").json[0]
        assert (facts["rows"], facts["staged_rows"], facts["discarded_rows"]) == (100, None, 40)

    def test_quarantined_rows_are_verified_and_read_by_the_number_of_their_commit(
        self, sandbox: Sandbox, run: Run, grown: None, land: Callable[..., Ended], task: str, folder: Path
    ) -> None:
        assert land("bad", "--on-failed-checks", "quarantine").code == 0
        facts = run("landing", "verify", folder, "-o", "json").json[0]
        assert (facts["rows"], facts["quarantined_rows"], facts["quarantined_commits"]) == (100, 40, "2")
        rows = sandbox.control.true_rows(task)
        assert run("landing", "cat", folder, "--quarantined", 2).lines == rows[100:]
        assert run("landing", "cat", folder).lines == rows[:100]
        run("landing", "cat", folder, "--quarantined", 1).refused(
            3, "no rows of commit 1 wait for a decision"
        )
        (line,) = run("landing", "accept", folder, "bad", "-o", "json").json
        checks = "columns.price.filled"
        assert line == {"run": "bad", "rows": 40, "was": "quarantined", "commit": 2, "checks": checks}


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        ("{price", "--checks is '{price'; it must be JSON"),
        ("[" * 60_000, "it must be JSON: maximum recursion depth exceeded"),
        ('{"rows": {"min": 0}}', "Error: --checks['rows']['min'] is 0; it must be an integer of 1 or more"),
        ('{"row": {}}', "'row'; its keys can be rows, columns, new_columns, missing_columns"),
    ],
)
def test_wrong_checks_are_wrong_usage(
    run: Run, connected: None, folder: Path, checks: str, message: str
) -> None:
    run("land", "t", folder, "--checks", checks).refused(2, message)
    assert not folder.exists()
