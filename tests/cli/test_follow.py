"""``follow``: runs until their end."""

from __future__ import annotations

import time

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from demo.ports import free_port
from tests.cli.conftest import Run, shown

STATUSES = "/cloudextraction/statuses/v2"
#: Seconds that a run takes: it ends only if a test advances the time.
LONG = 10_000

pytestmark = [
    pytest.mark.webcollect_sandbox(run_seconds=LONG, wait_seconds=0, stale_seconds=0, enforce_limits=False),
    pytest.mark.usefixtures("connected"),
]


@pytest.fixture
def advancing(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> list[float]:
    """Have pauses between queries take no time, but advance the sandbox by a tenth of a run; return them."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        sandbox.control.advance(LONG / 10)

    monkeypatch.setattr(time, "sleep", sleep)
    return pauses


def queried(sandbox: Sandbox, path: str) -> int:
    return sum(sandbox.control.counters().get(path, {}).values())


def test_runs_are_followed_with_one_query(
    run: Run, sandbox: Sandbox, advancing: list[float], output: str
) -> None:
    ids = [sandbox.control.add_task(rows=120, state="Extracting")["task_id"] for _ in range(3)]
    ended = run("follow", *ids, "--every", 7, "-o", output)
    assert ended.code == 0
    statuses = {row["task"]: row["status"] for row in shown(ended, output)}
    assert statuses == dict.fromkeys(ids, "Finished")
    assert advancing == [7.0] * len(advancing)
    assert queried(sandbox, STATUSES) == len(advancing) + 1
    assert f"{ids[0]} Extracting, 0/4 sub-tasks" in ended.err
    assert f"{ids[0]} Finished, 4/4 sub-tasks" in ended.err


def test_a_stopped_run_is_code_1_once_all_end(run: Run, sandbox: Sandbox, advancing: list[float]) -> None:
    stopped, other = (sandbox.control.add_task(state="Extracting")["task_id"] for _ in range(2))
    sandbox.control.stop_task(stopped)
    ended = run("follow", stopped, other, "-o", "json")
    assert ended.code == 1
    assert [row["status"] for row in ended.json] == ["Stopped", "Finished"]
    assert ended.err.endswith(f"\nTask {stopped}: its run was stopped\n")


def test_the_run_after_the_shown_one_is_followed(
    run: Run, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = sandbox.control.add_task(state="Finished")["task_id"]
    steps = iter((lambda: sandbox.control.start_task(task_id), lambda: sandbox.control.advance(LONG)))
    monkeypatch.setattr(time, "sleep", lambda seconds: next(steps)())
    ended = run("follow", "--next", task_id, "--every", 1, "-o", "json")
    assert ended.code == 0
    assert "Extracting" in ended.err
    assert queried(sandbox, STATUSES) == 3
    assert sandbox.control.task(task_id)["executed_times"] == 2


def test_an_unreachable_service_is_named_and_does_not_end_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, no_pauses: list[float]
) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    queries: list[float] = []

    def sleep(seconds: float) -> None:
        queries.append(sum(no_pauses))
        if len(queries) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)

    ended = run("follow", "any", "--url", address)

    assert ended.code == 130
    assert ended.err.count(f"Trying again: no connection to {address} (--url): ") == 2
    assert queries[0] < 5


@pytest.mark.parametrize(
    ("is_known", "waiting"),
    [
        (False, "The service does not show task {} yet; waiting up to 60 s."),
        (True, "Task {} has never run yet; waiting up to 60 s."),
    ],
)
def test_an_unknown_or_unstarted_task_ends_it_after_a_minute(
    run: Run,
    sandbox: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_known: bool,
    waiting: str,
) -> None:
    task = sandbox.control.add_task()["task_id"] if is_known else "00000000-0000-4000-8000-000000000000"
    now = time.time()
    pauses: list[float] = []
    said_at_once = []

    def sleep(seconds: float) -> None:
        if not pauses:
            said_at_once.append(capsys.readouterr().err)
        pauses.append(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "time", lambda: now + sum(pauses))

    ended = run("follow", task, "--every", 5)

    assert (ended.code, ended.out == "") == (1, not is_known)
    assert 60 <= sum(pauses) <= 70
    assert waiting.format(task) in said_at_once[0].splitlines()
    assert ended.err.splitlines()[-1] == f"Task {task}: no run within 60 s; check its id"
    assert waiting.format(task) not in ended.err


def test_a_run_that_next_waits_for_is_announced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)

    run("follow", "--next", "00000000-0000-4000-8000-000000000000").refused(
        130, "The service does not show task", "--next waits until it does"
    )
