"""``land``: exactly once, as with the operator; interrupted and resumed; and its progress."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import Run, Show, Start, contents, json_lines
from tests.interruption import until

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 400 rows in two batches."""
    return str(sandbox.control.add_task(lots=[250, 150])["task_id"])


def manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "_manifest.json").read_text())
    return content


def parts(folder: Path) -> list[str]:
    return [part["name"] for part in manifest(folder)["parts"]]


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the JSON lines that the manifest lists, read without the provider."""
    landed = [row for name in parts(folder) for row in json_lines((folder / name).read_text())]
    assert len(landed) == manifest(folder)["rows"]
    return landed


def test_all_rows_land_as_the_summary_says(show: Show, sandbox: Sandbox, task: str, folder: Path) -> None:
    summary = show("land", task, folder, "--page-size", 100, "--max-part-bytes", 1)
    assert rows(folder) == sandbox.control.true_rows(task)
    assert summary == [
        {
            "destination": str(folder),
            "new_rows": "400",
            "new_parts": "4",
            "rows": "400",
            "parts": "4",
            "bytes": str(sum((folder / name).stat().st_size for name in parts(folder))),
            "commit": "1",
            "finished_at": manifest(folder)["finished_at"],
        }
    ]


#: The default mode, incremental, without waiting for late rows.
INCREMENTAL = ("--late-rows-delay", 0)


def test_where_rows_have_landed_options_decide(run: Run, sandbox: Sandbox, task: str, folder: Path) -> None:
    again = ("land", task, folder, "--mode", "full", "-o", "json")
    assert run(*again).code == 0
    kept = contents(folder)
    sandbox.control.grow(task, 5)
    run(*again).refused(
        3,
        str(folder),
        "land with --mode incremental, which adds",
        "or land with --if-exists skip or --if-exists o",
    )
    assert run(*again, "--if-exists", "skip").code == 0
    assert contents(folder) == kept
    [landed] = run(*again, "--if-exists", "overwrite").json
    assert (landed["new_rows"], landed["rows"]) == (405, 405)
    assert rows(folder) == sandbox.control.true_rows(task)


def test_format_options_that_differ_are_named_as_typed(run: Run, task: str, folder: Path) -> None:
    landing = ("land", task, folder, *INCREMENTAL)
    assert run(*landing, "--column", "url").code == 0
    run(*landing, "--column", "url", "--column", "price").refused(3, "--column is url, price and was url")
    run(*landing, "--column", "url", "--format", "csv").refused(3, "--format is csv and was jsonl")


def test_late_rows_are_waited_for_as_set(run: Run, task: str, folder: Path, no_pauses: list[float]) -> None:
    again = ("land", task, folder)
    run(*again)
    assert run(*again, "--late-rows-delay", 77).err == "Waiting 77 s for late rows (--late-rows-delay)\n"
    assert sum(no_pauses) == 77
    no_pauses.clear()
    run(*again)
    assert sum(no_pauses) == 15


@pytest.mark.parametrize(
    "typed", ["FOLDER/landed", "FOLDER/one with blanks #1", "file://FOLDER/landed", "./landed", "../here/x"]
)
def test_other_commands_accept_the_printed_folder(
    run: Run, sandbox: Sandbox, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    [landed] = run("land", task, typed.replace("FOLDER", str(tmp_path)), "-o", "json").json
    monkeypatch.chdir("/")
    [verified] = run("landing", "verify", landed["destination"], "-o", "json").json
    assert (verified["landing"], verified["rows"]) == (landed["destination"], 400)
    assert list(read_landing(landed["destination"]).iter_rows()) == sandbox.control.true_rows(task)


def test_batch_template_and_mark_are_options(run: Run, sandbox: Sandbox, task: str, folder: Path) -> None:
    batch = ("land", task, folder, "--lotno", "000002", "--partition", "dt=2026-01-01")
    assert run(*batch).code == 0
    run(*batch).refused(3, "land with --mode incremental")
    assert rows(folder) == sandbox.control.true_rows(task, "000002")
    assert {Path(name).parent for name in parts(folder)} == {Path("dt=2026-01-01")}
    assert not sandbox.control.task(task)["exported"]
    other = folder.with_name("marked")
    [landed] = run("land", task, other, "--mark-exported", "--late-rows-delay", 0, "-o", "json").json
    assert landed["exported_at"] == manifest(other)["exported_at"] is not None
    assert sandbox.control.task(task)["exported"]


class TestInterrupted:
    """Landings of fifty pages, each a part of its own, that a person interrupts in the middle."""

    SMALL = ("--page-size", 100, "--max-part-bytes", 1)

    @pytest.fixture
    def task(self, sandbox: Sandbox) -> str:
        """A task with 5,000 rows, whose service is slow from the seventh page on: all would take minutes."""
        sandbox.control.fail("/data/all", kind="slow", seconds=3, times=None, after=6)
        return str(sandbox.control.add_task(lots=[5000])["task_id"])

    def finished(self, folder: Path) -> list[str]:
        """Return the names of the parts that a landing has finished so far."""
        staged = [json.loads(file.read_text()) for file in folder.glob("_staged/*.json")]
        return [part["name"] for record in staged for part in record["parts"]]

    @pytest.mark.parametrize("terminal", [False, True])
    def test_the_same_command_goes_on_after_the_last_part(
        self,
        start: Start,
        run: Run,
        caplog: pytest.LogCaptureFixture,
        sandbox: Sandbox,
        task: str,
        folder: Path,
        terminal: bool,
    ) -> None:
        command = ("--verbose", "land", task, folder, *self.SMALL)
        landing = start(*command, terminal=terminal)
        until(lambda: len(self.finished(folder)) >= 3)
        if terminal:  # which shows the progress
            until(lambda: re.search(r"[3-9]00/5000", landing.err))

        landing.interrupt()

        assert landing.end() == 130
        assert "run the same command again to resume" in landing.err
        assert "Traceback" not in landing.err
        assert not (folder / "_manifest.json").exists()
        finished = self.finished(folder)
        assert 3 <= len(finished) < 50

        sandbox.control.clear_faults()
        sandbox.control.clear_requests()
        again = run(*command)
        assert again.code == 0
        assert f"Resuming after {len(finished)}00 rows" in caplog.text
        assert rows(folder) == sandbox.control.true_rows(task)
        assert parts(folder)[: len(finished)] == finished
        # the rest, and the last and the first finished part, to see whether the source is still the same
        assert len(sandbox.control.requests("/data/all")) <= 50 - len(finished) + 2


def test_a_kill_after_the_commit_leaves_nothing(run: Run, sandbox: Sandbox, task: str, folder: Path) -> None:
    incremental = ("land", task, folder, *INCREMENTAL, "--page-size", 100, "--max-part-bytes", 1)
    sandbox.control.fail("/data/all", after=2, times=None, kind="status", status=403, code="PermissionDenied")
    assert run(*incremental).code == 3
    [staged] = folder.glob("_staged/*.json")
    left = staged.read_bytes()
    sandbox.control.clear_faults()
    assert run(*incremental).code == 0
    staged.write_bytes(left)
    sandbox.control.grow(task, 5)
    [landed] = run(*incremental, "-o", "json").json
    assert (landed["new_rows"], landed["rows"], landed["commit"]) == (5, 405, 2)
    assert rows(folder) == sandbox.control.true_rows(task)


def test_what_a_named_run_has_left_holds_up_no_other(
    run: Run, sandbox: Sandbox, task: str, folder: Path
) -> None:
    small = ("land", task, folder, *INCREMENTAL, "--page-size", 100, "--max-part-bytes", 1)
    refused: dict[str, Any] = {"kind": "status", "status": 403, "code": "PermissionDenied", "times": None}
    sandbox.control.fail("/data/markexported", **refused)
    assert run(*small, "--run-id", "x", "--mark-exported").code == 3
    sandbox.control.grow(task, 500)
    sandbox.control.fail("/data/all", after=3, **refused)
    assert run(*small, "--run-id", "x", "--mark-exported").code == 3
    sandbox.control.clear_faults()
    assert run(*small).code == 0
    assert rows(folder) == sandbox.control.true_rows(task)


def test_a_terminal_shows_a_bar_and_keeps_the_result(start: Start, sandbox: Sandbox, folder: Path) -> None:
    task = sandbox.control.add_task(lots=[600])["task_id"]
    sandbox.control.fail("/data/all", kind="slow", seconds=0.3, times=None)
    landing = start("land", task, folder, "--page-size", 200, "-o", "json", terminal=True)
    assert landing.end() == 0
    shown_at = {int(done) for done in re.findall(r"(\d+)/600", landing.err)}
    assert len(shown_at) > 1
    assert shown_at <= {0, 200, 400, 600}
    assert "━" in landing.err
    assert json.loads(landing.out)[0]["rows"] == 600
