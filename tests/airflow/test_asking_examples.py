"""The example DAGs that ask a person; ``tests/real_airflow`` has them answered by Airflow's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.landing.reader import read_landing
from tests.airflow.dag_runs import FinishedRun, run_dag
from tests.airflow.examples import load
from tests.airflow.landings import landed
from tests.airflow.people import Person, waits

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    waits,
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(
        speed=200, wait_seconds=0, run_seconds=2, stale_seconds=0, enforce_limits=False
    ),
]
START = "/cloudextraction/subtasks:start"
NIGHT = pytest.mark.at_night


@pytest.fixture
def conf(task: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return {"collection_task_id": task["task_id"], "destination": f"file://{tmp_path}/prices"}


class TestRows:
    def run(self, conf: dict[str, Any], person: Person) -> FinishedRun:
        return run_dag(load("webcollect_ask_about_rows"), conf, when_idle=person)

    @pytest.mark.parametrize(
        ("decision", "rows", "kinds"),
        [
            ("accept", 30, []),
            pytest.param("quarantine", 0, ["quarantined"], marks=NIGHT),
            pytest.param("discard", 0, ["discarded"], marks=NIGHT),
        ],
    )
    def test_rows_become_what_the_person_has_chosen(
        self, sandbox: Sandbox, conf: dict[str, Any], decision: str, rows: int, kinds: list[str]
    ) -> None:
        task = conf["collection_task_id"]
        sandbox.control.change_rows(task, "price", "empty", from_row=0)
        person = Person(decision)
        run = self.run(conf, person)

        assert run.state == "success"
        assert run.states == dict.fromkeys(("list_failed_checks", "ask", "decide"), "success") | {
            "land": "failed"
        }
        (body,) = person.bodies
        assert body.startswith("    columns.price.filled: filled in 0 % of 30 rows ('' at offset 0)"), body
        assert landed(conf["destination"]) == sandbox.control.true_rows(task)[:rows]
        assert [each.kind for each in read_landing(conf["destination"]).manifest.set_apart] == kinds
        read_landing(conf["destination"]).verify()

    def test_nobody_is_asked_about_good_rows_or_another_failure(self, conf: dict[str, Any]) -> None:
        person = Person("discard")
        assert self.run(conf, person).states == {
            "land": "success",
            "list_failed_checks": "skipped",
            "ask": "skipped",
            "decide": "skipped",
        }
        conf["collection_task_id"] = "no-such-task"
        assert self.run(conf, person).states == {
            "land": "failed",
            "list_failed_checks": "failed",
            "ask": "upstream_failed",
            "decide": "upstream_failed",
        }
        assert person.bodies == []


class TestStart:
    @pytest.fixture
    def dag(self) -> Any:
        dag = load("webcollect_ask_about_start")
        for name, interval in {
            "start": "poll_interval",
            "start_again": "poll_interval",
            "wait": "poke_interval",
        }.items():
            setattr(dag.get_task(name), interval, 0.05)
        return dag

    @pytest.mark.parametrize(
        ("done", "option", "after", "sent"),
        [
            (True, "It runs", "wait", 1),
            pytest.param(False, "Start again", "start_again", 2, marks=NIGHT),
        ],
    )
    def test_the_run_is_waited_for_or_started_again_and_landed(
        self, sandbox: Sandbox, dag: Any, conf: dict[str, Any], done: bool, option: str, after: str, sent: int
    ) -> None:
        sandbox.control.fail(START, kind="drop", done=done)
        person = Person(option)
        run = run_dag(dag, conf, when_idle=person)

        assert run.state == "success"
        assert run.states == {
            "start": "failed",
            "query_status": "success",
            "ask": "success",
            **dict.fromkeys(("start_again", "wait", "give_up"), "skipped"),
            after: "success",
            "land": "success",
        }
        assert run.tries["start"] == 1
        assert "    executed_times: " in person.bodies[0]
        assert len(sandbox.control.requests(START)) == sent
        task = sandbox.control.task(conf["collection_task_id"])
        assert len(task["runs"]) == 2
        assert landed(conf["destination"]) == sandbox.control.true_rows(task["task_id"])

    @NIGHT
    def test_who_gives_up_ends_the_run_with_nothing_sent_again(
        self, sandbox: Sandbox, dag: Any, conf: dict[str, Any]
    ) -> None:
        sandbox.control.fail(START, kind="drop")
        run = run_dag(dag, conf, when_idle=Person("Give up"))

        assert (run.state, run.states["give_up"], run.states["land"]) == (
            "failed",
            "failed",
            "upstream_failed",
        )
        assert len(sandbox.control.requests(START)) == 1

    @NIGHT
    def test_nobody_is_asked_about_a_start_that_succeeds(self, dag: Any, conf: dict[str, Any]) -> None:
        run = run_dag(dag, conf, when_idle=(person := Person("Give up")))

        assert (run.state, run.states["ask"], run.states["land"]) == ("success", "skipped", "success")
        assert person.bodies == []
