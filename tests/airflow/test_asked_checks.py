"""Asking a person about rows that have failed; ``tests/real_airflow`` does it by Airflow's API."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS

from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.review import in_review
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import FinishedRun, make_dag, run_tasks
from tests.airflow.landings import landed, make_transfer, rows_at, transfer
from tests.airflow.people import Person, asks, waits

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]
CHECKS: dict[str, Any] = {"columns": {"price": {"filled": 0.95}}}
ASK: dict[str, Any] = {
    "mode": "incremental",
    "checks": CHECKS,
    "on_failed_checks": "ask",
    "retries": 1,
    "retry_delay": timedelta(0),
}


@pytest.fixture
def changed(sandbox: Sandbox) -> dict[str, Any]:
    """A task with 30 rows whose prices are empty."""
    task = sandbox.control.add_task(lots=[30])
    sandbox.control.change_rows(task["task_id"], "price", "empty", from_row=0)
    return task


def land(destination: str, source: dict[str, Any] | None, person: Person, **options: Any) -> FinishedRun:
    """Run the transfer, and let a person answer what it asks."""
    return run_tasks(
        lambda: make_transfer(destination, source, **{**ASK, **options}),
        when_idle=person,
    )


class TestArguments:
    @pytest.mark.skipif(AIRFLOW_V_3_1_PLUS, reason="this Airflow can ask")
    def test_an_airflow_that_cannot_ask_refuses_it_while_the_dag_is_parsed(self) -> None:
        with (
            make_dag(),
            pytest.raises(InvalidArgument, match=r"`on_failed_checks` is 'ask'; only Airflow 3\.1 and later"),
        ):
            make_transfer("s3://bucket/folder", {"task_id": "t"}, **ASK)

    @asks
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"ask_timeout": -1}, "`ask_timeout` is -1"),
            ({"ask_default": "wait"}, "must be one of accept, quarantine, discard, fail"),
            ({"mode": "full", "ask_default": "discard"}, "must be one of accept, fail"),
        ],
    )
    def test_wrong_arguments_are_import_errors(self, wrong: dict[str, Any], message: str) -> None:
        with make_dag(), pytest.raises(InvalidArgument, match=message):
            make_transfer("s3://bucket/folder", {"task_id": "t"}, **{**ASK, **wrong})


@waits
@pytest.mark.at_night
class TestAnswers:
    def test_accepted_rows_are_landed_and_reported_by_this_task(
        self, sandbox: Sandbox, changed: dict[str, Any], destination: str
    ) -> None:
        person = Person("accept")
        run = land(destination, changed, person)

        assert (run.states, run.tries) == ({"land": "success"}, {"land": 1})
        summary = run.xcoms["land"]
        assert (summary["rows"], len(rows_at(summary["uris"]))) == (30, 30)
        assert [each["state"] for each in summary["checks"]] == ["failed"]
        assert landed(destination) == sandbox.control.true_rows(changed["task_id"])
        # the rows were read once; then only whether the source still has them
        (body,) = person.bodies
        assert "    columns.price.filled: filled in 0 % of 30 rows ('' at offset 0)" in body
        assert "- **quarantine**: the rows are set apart" in body

    def test_quarantined_rows_are_set_apart(self, changed: dict[str, Any], destination: str) -> None:
        run = land(destination, changed, Person("quarantine"), skip_if_nothing_new=True)

        assert run.states == {"land": "success"}
        assert (run.xcoms["land"]["rows"], run.xcoms["land"]["quarantined_rows"]) == (0, 30)
        assert [each.state for each in in_review(destination)] == ["quarantined"]
        read_landing(destination).verify()

    def test_discarded_rows_are_counted_out(self, changed: dict[str, Any], destination: str) -> None:
        run = land(destination, changed, Person("discard"))

        assert run.states == {"land": "success"}
        (apart,) = read_landing(destination).manifest.set_apart
        assert (apart.kind, apart.rows) == ("discarded", 30)

    def test_a_task_that_is_to_fail_leaves_the_rows_staged(
        self, changed: dict[str, Any], destination: str, said: Any
    ) -> None:
        run = land(destination, changed, Person("fail"))

        assert (run.states, run.tries) == ({"land": "failed"}, {"land": 1})
        assert "`fail` was chosen by ada (id ada) at " in said()
        assert [each.state for each in in_review(destination)] == ["staged"]

    def test_a_full_landing_is_accepted_or_fails(self, changed: dict[str, Any], destination: str) -> None:
        person = Person("accept")
        run = land(destination, changed, person, mode="full")

        assert run.xcoms["land"]["rows"] == 30
        assert "quarantine" not in person.bodies[0]

    def test_rows_with_which_a_landing_begins_again_are_accepted_or_the_task_fails(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        transfer(destination, source, mode="incremental")
        sandbox.control.reset_data(source["task_id"])
        sandbox.control.change_rows(source["task_id"], "price", "empty", from_row=0)
        sandbox.control.grow(source["task_id"], 20)
        person = Person("accept")
        run = land(destination, source, person, on_reset="full", ask_default="discard")

        assert run.states == {"land": "success"}
        assert landed(destination) == sandbox.control.true_rows(source["task_id"])
        assert "discard" not in person.bodies[0]

    def test_of_many_sources_one_question_is_asked(
        self, sandbox: Sandbox, source: dict[str, Any], changed: dict[str, Any], destination: str
    ) -> None:
        other = sandbox.control.add_task(lots=[7])
        sandbox.control.change_rows(other["task_id"], "price", "null", from_row=0)
        tasks = [each["task_id"] for each in (source, changed, other)]
        person = Person("accept")
        run = land(destination, None, person, sources=tasks)

        assert run.states == {"land": "success"}
        (body,) = person.bodies
        assert all(task in body for task in tasks[1:])
        assert [each["rows"] for each in run.xcoms["land"]["sources"]] == [400, 30, 7]
        assert len(run.xcoms["land"]["uris"]) == 3

    def test_without_rows_there_is_nothing_to_ask(self, sandbox: Sandbox, destination: str) -> None:
        empty = sandbox.control.add_task()
        run = land(destination, empty, Person("accept"), checks={"rows": {"min": 1}})

        assert run.states == {"land": "failed"}

    def test_another_error_of_another_source_is_no_question(
        self, changed: dict[str, Any], destination: str
    ) -> None:
        person = Person("accept")
        run = land(destination, None, person, sources=[changed["task_id"], "no-such-task"])

        assert run.states == {"land": "failed"}
        assert person.bodies == []
