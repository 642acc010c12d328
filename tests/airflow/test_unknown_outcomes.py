"""Asking a person about an unknown outcome; ``tests/real_airflow`` does it by Airflow's API."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS
from airflow.settings import Session
from sqlalchemy import text

from airflow_provider_webcollect import questions
from airflow_provider_webcollect.operators.start import _Memory, _Start
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectCopyTaskOperator,
    WebCollectCopyTasksOperator,
    WebCollectStartSubTasksOperator,
)
from airflow_provider_webcollect.questions import Answer, UnusableAnswer, answer_of
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import FinishedRun, make_dag, run_dag, run_tasks
from tests.airflow.executions import Store, execute
from tests.airflow.passing_timeouts import passing_timeout
from tests.airflow.people import Person, asks, waits
from tests.airflow.proxy import proxy
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.at_night,
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(
        speed=200, wait_seconds=0, run_seconds=2, stale_seconds=0, enforce_limits=False
    ),
]
START = "/cloudextraction/subtasks:start"
STATUS = "/cloudextraction/statuses/v2"
COPY, COPIES = "/task/copy", "/task/copies"
ASK: dict[str, Any] = {
    "task_id": "ask",
    "on_unknown_outcome": "ask",
    "retries": 1,
    "retry_delay": timedelta(0),
}


def start(task: dict[str, Any], **arguments: Any) -> Callable[[], WebCollectStartSubTasksOperator]:
    given = {"collection_task_id": task["task_id"], "poll_interval": 0.05, **ASK, **arguments}
    return lambda: WebCollectStartSubTasksOperator(**given)


def copy(task: dict[str, Any], **arguments: Any) -> Callable[[], WebCollectCopyTaskOperator]:
    given = {"collection_task_id": task["task_id"], **ASK, **arguments}
    return lambda: WebCollectCopyTaskOperator(**given)


def run_once(run: FinishedRun) -> str | None:
    """Return the state of the task, which has had one try."""
    assert run.tries == {"ask": 1}
    return run.states["ask"]


class TestArguments:
    @pytest.mark.skipif(AIRFLOW_V_3_1_PLUS, reason="this Airflow can ask")
    @pytest.mark.parametrize("make", [start, copy])
    def test_an_airflow_that_cannot_ask_refuses_it_while_the_dag_is_parsed(self, make: Any) -> None:
        with (
            make_dag(),
            pytest.raises(InvalidArgument, match=r"`on_unknown_outcome` is 'ask'; only Airflow 3.1"),
        ):
            make({"task_id": "t"})()

    @pytest.mark.parametrize(
        ("newest", "rule"),
        [
            ({"AIRFLOW_V_3_1_PLUS": False}, "only Airflow 3.1 and later can wait for a person's answer"),
            ({"AIRFLOW_V_3_1_PLUS": True}, "needs a newer apache-airflow-providers-standard"),
        ],
    )
    def test_an_installation_that_cannot_ask_says_what_it_needs(
        self, monkeypatch: pytest.MonkeyPatch, newest: dict[str, bool], rule: str
    ) -> None:
        for name, value in {**newest, "AIRFLOW_V_3_3_PLUS": False}.items():
            monkeypatch.setattr(questions, name, value)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with make_dag(), pytest.raises(InvalidArgument, match=rule):
            start({"task_id": "t"})()

    @asks
    @pytest.mark.parametrize(
        ("make", "arguments", "message"),
        [
            (start, {"retry_unknown_outcome": True}, "`retry_unknown_outcome` is True; with `on_unknown"),
            (start, {"ask_timeout": 0}, "`ask_timeout` is 0"),
            (start, {"ask_timeout": timedelta(seconds=-1)}, "`ask_timeout` is -1"),
            (start, {"ask_default": "it was made"}, "`ask_default` is 'it was made'"),
            # nobody would have entered the id
            (copy, {"ask_default": "it was made"}, "`ask_default` is 'it was made'"),
        ],
    )
    def test_wrong_ones_are_refused_while_the_dag_is_parsed(
        self, make: Any, arguments: dict[str, Any], message: str
    ) -> None:
        with make_dag(), pytest.raises(InvalidArgument, match=message):
            make({"task_id": "t"}, **arguments)()

    def test_another_word_is_refused(self) -> None:
        with make_dag(), pytest.raises(InvalidArgument, match="`on_unknown_outcome` is 'shout'"):
            start({"task_id": "t"}, on_unknown_outcome="shout")()

    def test_wrong_ones_that_are_mapped_fail_the_task_before_anything_is_sent(self, sandbox: Sandbox) -> None:
        with make_dag() as dag:
            WebCollectCopyTaskOperator.partial(**ASK, retry_unknown_outcome=True).expand(
                collection_task_id=["t"]
            )
        run = run_dag(dag)

        assert (run.states, run.tries) == ({"ask[0]": "failed"}, {"ask[0]": 1})
        assert sandbox.control.requests() == []


@waits
class TestStart:
    def test_a_start_that_a_person_confirms_is_waited_for(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        sandbox.control.fail(START, kind="no_answer")
        person = Person("it runs")
        run = run_tasks(start(task, wait_for_completion=True), when_idle=person)

        assert run_once(run) == "success"
        assert run.xcoms["ask"]["status"]["executed_times"] == 2
        assert len(run.xcoms["ask"]["started"]) == 3
        assert len(sandbox.control.requests(START)) == 1
        (body,) = person.bodies
        assert "- status before the start: executed_times 1, " in body
        assert "executed_times 2, " in body
        assert f"The status of task {task['task_id']} shows whether its sub-tasks run." in body
        assert "- **it runs**: the start took effect" in body

    def test_a_timeout_of_the_start_is_asked_about(
        self, sandbox: Sandbox, task: dict[str, Any], set_connection: Callable[..., None]
    ) -> None:
        person = Person("it runs")
        with passing_timeout(sandbox.url, START) as url:
            set_connection(host=url)
            run = run_tasks(start(task, execution_timeout=timedelta(seconds=PATIENCE)), when_idle=person)

        assert run_once(run) == "success"
        assert "interrupted before it answered (AirflowTaskTimeout)" in person.bodies[0]

    def test_what_is_active_by_then_is_not_sent_again(self, sandbox: Sandbox, task: dict[str, Any]) -> None:
        sandbox.control.configure(run_seconds=10_000)
        sandbox.control.fail(START, kind="no_answer")
        run = run_tasks(start(task), when_idle=Person("send again"))

        assert run_once(run) == "success"
        assert (len(run.xcoms["ask"]["started"]), len(run.xcoms["ask"]["already_active"])) == (0, 3)
        assert len(sandbox.control.requests(START)) == 1

    def test_a_service_that_is_away_is_told_in_the_question(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        sandbox.control.fail(START, kind="no_answer")
        sandbox.control.fail(STATUS, status=403, code="PermissionDenied", times=20, after=1)
        person = Person("fail")
        run = run_tasks(start(task), when_idle=person)

        assert run_once(run) == "failed"
        assert "The service cannot be queried: get_task_statuses_v2: HTTP 403" in person.bodies[0]


def test_a_task_that_is_cleared_while_it_waits_knows_the_start() -> None:
    store, began = Store(), _Start(began=1.0, result={"collection_task_id": "t"})
    contexts: Any = [{"task_state_store": store, "ti": SimpleNamespace(max_tries=most)} for most in (1, 3)]
    tries, cleared = map(_Memory, contexts)
    tries.keep(began)
    asked = tries.asked()

    assert cleared.recall() == asked
    tries.confirm(asked, 2.0)
    assert cleared.recall() is None


@waits
class TestCopies:
    @pytest.mark.parametrize("kind", ["no_answer", "drop"])
    def test_what_a_person_found_is_the_result(
        self, sandbox: Sandbox, task: dict[str, Any], kind: str
    ) -> None:
        sandbox.control.fail(COPY, kind=kind)
        person = Person("it was made", new_task_id=" 4711 ")
        run = run_tasks(copy(task), when_idle=person)

        assert run_once(run) == "success"
        assert run.xcoms["ask"] == {"task_id": "4711", "task_name": None}
        assert f"A copy of task {task['task_id']} may be in its own group by now." in person.bodies[0]
        assert len(sandbox.control.requests(COPY)) == 1

    def test_a_person_who_ends_it_makes_the_next_try_begin_anew(
        self, sandbox: Sandbox, task: dict[str, Any], said: Callable[[], str]
    ) -> None:
        sandbox.control.fail(COPY, kind="drop")
        run = run_tasks(copy(task), when_idle=Person("fail"))

        assert run_once(run) == "failed"
        log = said()
        assert "`fail` was chosen by ada (id ada) at " in log
        assert "Clear the task to repeat it." in log
        with Session() as session:
            query = text("select count(*) from task_state_store where run_id = :run_id")
            assert session.execute(query, {"run_id": run.run_id}).scalar_one() == 0

    def test_what_a_person_says_of_many_copies_is_the_result(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        sandbox.control.fail(COPIES, kind="drop")
        group = sandbox.control.add_task()["group_id"]
        given: dict[str, Any] = {"collection_task_ids": [task["task_id"]], "task_group_ids": [group, group]}
        run = run_tasks(
            lambda: WebCollectCopyTasksOperator(**given, **ASK), when_idle=Person("all were made")
        )

        assert run_once(run) == "success"
        assert run.xcoms["ask"] == {"request_count": 2, "success_count": 2, "failed_tasks": []}


@asks
class TestWithoutASupervisor:
    """Outside of Airflow's task runner nobody can be asked."""

    @pytest.mark.parametrize("make", [start, copy])
    def test_what_cannot_be_asked_fails_without_retries(
        self, sandbox: Sandbox, task: dict[str, Any], make: Any
    ) -> None:
        path = START if make is start else COPY
        sandbox.control.fail(path, kind="drop")
        store = Store()
        with pytest.raises(AirflowFailException, match="Check in the service whether it took effect"):
            execute(make(task)(), task_state_store=store)

        assert len(sandbox.control.requests(path)) == 1
        assert store == {}

    def test_no_try_copies_what_an_earlier_one_may_have_copied(
        self, sandbox: Sandbox, task: dict[str, Any], set_connection: Callable[..., None]
    ) -> None:
        store = Store()

        def note(path: str, status: int, body: Any) -> tuple[int, Any]:
            # as a process leaves it that is killed now
            kept.update(store)
            return status, body

        kept = Store()
        with proxy(sandbox.url, note) as url:
            set_connection(host=url)
            execute(copy(task)(), task_state_store=store)
        with pytest.raises(AirflowFailException, match="an earlier try may have sent it"):
            execute(copy(task)(), task_state_store=kept)

        assert store == {}
        assert len(sandbox.control.requests(COPY)) == 1


@asks
class TestAnswers:
    AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def event(self, *options: str, by: dict[str, str] | None = None) -> dict[str, Any]:
        return {"chosen_options": [*options], "responded_at": self.AT, "responded_by_user": by}

    def test_an_answer_says_who_gave_it_and_when(self) -> None:
        by = {"id": "7", "name": "Ada"}
        chosen = answer_of(self.event("yes", by=by), ["yes", "no"])

        assert chosen == Answer(option="yes", params={}, by="Ada (id 7)", at=self.AT)
        assert str(chosen) == "`yes` was chosen by Ada (id 7) at 2026-01-02 03:04:05 UTC."
        default = answer_of(self.event("no"), ["yes", "no"])
        assert str(default).startswith("Nobody answered in time, so the default `no` was taken at 2026-01-02")

    def test_nobody_answers_in_time(self) -> None:
        assert answer_of({"error": "late", "error_type": "timeout"}, ["yes"]) is None

    @pytest.mark.parametrize(
        "event",
        [
            {"chosen_options": ["maybe"]},
            {"chosen_options": []},
            {"chosen_options": ["yes", "no"]},
            {"error": "x is no id", "error_type": "validation"},
        ],
    )
    def test_an_answer_that_breaks_the_rules_is_none(self, event: dict[str, Any]) -> None:
        with pytest.raises(UnusableAnswer):
            answer_of(event, ["yes", "no"])


@asks
async def test_the_trigger_outlasts_an_api_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.execution_time import task_runner

    from airflow_provider_webcollect.triggers.questions import AnswerTrigger

    responses = iter([OSError("away"), OSError("away"), None])

    def send(msg: Any) -> Any:
        if response := next(responses):
            raise response
        return SimpleNamespace(
            response_received=True,
            chosen_options=["fail"],
            params_input={},
            responded_at=TestAnswers.AT,
            responded_by_user=None,
        )

    # Airflow's triggerer puts it there
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)
    given: dict[str, Any] = {"ti_id": uuid4(), "options": ["fail"], "params": {}, "timeout_datetime": None}
    path, arguments = AnswerTrigger(**given, poke_interval=0.01).serialize()
    assert path == "airflow_provider_webcollect.triggers.questions.AnswerTrigger"
    trigger = AnswerTrigger(**arguments)
    events = [event.payload async for event in trigger.run()]

    assert [event["chosen_options"] for event in events] == [["fail"]]
    assert next(responses, None) is None
