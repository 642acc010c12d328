"""Starting sub-tasks and waiting for the run, through crashes, lost responses and failing runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.models.taskinstance import TaskInstance, clear_task_instances
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.providers.common.compat.standard.operators import PythonOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.utils.session import create_session
from sqlalchemy import select, text

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.start import Clock, _Memory, _Start
from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.sandbox import Control, Sandbox
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.threads import Stop
from airflow_provider_webcollect.waiting.runs import STATUS_DELAY, Baseline
from tests.airflow.dag_runs import FinishedRun, make_dag, run_dag, run_tasks
from tests.airflow.executions import Connect, Said, Store, Task, execute, on_sandbox
from tests.airflow.proxy import STATUS, proxy, without_status
from tests.interruption import PATIENCE, Signalled, signalled_when

pytestmark = on_sandbox(speed=200, wait_seconds=10, run_seconds=60, stale_seconds=20)

START = "/cloudextraction/subtasks:start"
SUBTASKS = "/cloudextraction/task/subtasks"
#: The fixture `after_requests`.
AfterRequests = Callable[..., None]
Retry = Callable[..., dict[str, Any]]
RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0)}


@dataclass(frozen=True)
class Starter:
    """Starts a collection task of the sandbox by the operator.

    :ivar task_id: id of the collection task.
    :ivar ids: ids of its sub-tasks.
    """

    control: Control
    task_id: str
    ids: list[str]

    def operator(self, **arguments: Any) -> WebCollectStartSubTasksOperator:
        """Make the operator, which waits for the run."""
        usual = {"collection_task_id": self.task_id, "wait_for_completion": True, "poll_interval": 0.05}
        return WebCollectStartSubTasksOperator(task_id="start", **{**usual, **arguments})

    def start(
        self, *, tries: int = 1, max_tries: int = 2, store: Any = None, **arguments: Any
    ) -> dict[str, Any]:
        """Execute the operator and return its result.

        :param max_tries: see :func:`~tests.airflow.executions.execute`, also for ``tries``.
        :param store: the state store of the task; by default, a new one.
        """
        store = Store() if store is None else store
        operator = self.operator(**arguments)
        return dict(execute(operator, tries=tries, max_tries=max_tries, task_state_store=store))

    def killed_during(
        self, result: dict[str, Any], *, began: float = 1.0, sent: bool = False, **arguments: Any
    ) -> Store:
        """Return the state store of a task whose process was killed during a start.

        :param arguments: arguments of the operator.
        """
        context: Any = {"task_state_store": (store := Store()), "ti": SimpleNamespace(max_tries=2)}
        memory = _Memory(context, self.operator(**arguments), self.task_id)
        memory.keep(_Start(began=began, result=result, sent=sent))
        return store

    def start_in_dag(self, **arguments: Any) -> FinishedRun:
        return run_tasks(lambda: self.operator(**{**RETRIES, **arguments}))

    def sent(self, path: str = START) -> int:
        """Return how many requests the service has got; by default, starts."""
        return len(self.control.requests(path))

    def task(self) -> dict[str, Any]:
        return self.control.task(self.task_id)

    def start_elsewhere(self, *ids: str) -> None:
        """Start sub-tasks as somebody else would."""
        WebCollectHook().start_subtasks(self.task_id, list(ids))


@pytest.fixture
def starter(sandbox: Sandbox, task: Task) -> Starter:
    return starter_of(sandbox, task)


def starter_of(sandbox: Sandbox, task: Task) -> Starter:
    return Starter(sandbox.control, task["task_id"], [subtask["subtask_id"] for subtask in task["subtasks"]])


def quick_clock(on_sleep: Callable[[], object] = lambda: None) -> Clock:
    """Return a clock whose sleep takes no time, but calls a function."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        on_sleep()
        # skip more than was asked for, so that there are few queries: the client limits their rate
        slept.append(4 * seconds)

    return Clock(now=lambda: time.time() + sum(slept), sleep=sleep)


#: How many starts of a collection task Airflow keeps: one, or none before Airflow 3.3.
KEPT = int(AIRFLOW_V_3_3_PLUS)


def remembered(run: FinishedRun) -> int:
    """Return the number of values in the state stores of a run's tasks; 0 before Airflow 3.3."""
    if not AIRFLOW_V_3_3_PLUS:
        return 0
    query = text("select count(*) from task_state_store where run_id = :run_id")
    with create_session() as session:
        return int(session.execute(query, {"run_id": run.run_id}).scalar_one())


class TestWaiting:
    def test_it_ends_with_the_run_that_it_started(self, starter: Starter) -> None:
        # for a while, the status still shows that the run before has finished
        run = starter.start_in_dag(deferrable=True)

        assert (run.states, run.tries["start"]) == ({"start": "success"}, 1)
        result = run.xcoms["start"]
        assert (result["status"]["status"], result["status"]["executed_times"]) == ("Finished", 2)
        # `dag.test()` loses what a deferred task passes on to its resumption; the state store keeps it
        if AIRFLOW_V_3_3_PLUS:
            assert (result["after"]["executed_times"], len(result["started"])) == (1, 3)
        assert starter.task()["state"] == "Finished"
        assert (starter.sent(), remembered(run)) == (1, KEPT)

    def test_a_stopped_run_fails_without_retries(
        self, starter: Starter, after_requests: AfterRequests
    ) -> None:
        starter.control.configure(stale_seconds=0, run_seconds=10_000)
        store = Store()
        after_requests(1, START, starter.control.stop_task, starter.task_id)
        with pytest.raises(AirflowFailException, match=f"{starter.task_id} is Stopped"):
            starter.start(store=store, failure_states=iter(["stopped"]))

        assert store == {}

    def test_a_name_that_has_gone_meanwhile_fails_without_retries(
        self, starter: Starter, configure_tasks: Callable[[str], object]
    ) -> None:
        configure_tasks(f"- {{id: {starter.task_id}, name: Shop}}")
        operator = starter.operator(collection_task_id="Shop", deferrable=True)
        with pytest.raises(TaskDeferred):
            execute(operator)
        configure_tasks(f"- {{id: {starter.task_id}, name: Deli}}")
        context: Any = {"ti": SimpleNamespace(max_tries=2)}
        with pytest.raises(AirflowFailException, match="`collection_task_id` is 'Shop'"):
            operator.execute_complete(context, {"outcome": "done"}, result={})


@pytest.mark.webcollect_sandbox(wait_seconds=0, run_seconds=10_000, stale_seconds=2, speed=20)
def test_a_run_that_ends_before_the_start_does_not_count(sandbox: Sandbox, set_connection: Connect) -> None:
    starter = starter_of(sandbox, sandbox.control.add_task(state="Extracting"))
    sandbox.control.configure(run_seconds=4)

    def end_after_the_first(path: str, status: int, body: Any) -> tuple[int, Any]:
        # between the queries of the status and of the sub-tasks
        if path.startswith(STATUS) and starter.sent(STATUS) == 1:
            sandbox.control.advance(20_000)
        return status, body

    with proxy(sandbox.url, end_after_the_first) as url:
        set_connection(host=url)
        result = starter.start()

    assert len(result["started"]) == len(starter.ids)
    assert result["status"]["executed_times"] == 2
    assert starter.task()["state"] == "Finished"


@pytest.mark.parametrize(
    ("fault", "tries"), [({"kind": "slow", "seconds": 0.1}, 1), ({"kind": "drop", "done": True}, 2)]
)
def test_after_a_slow_start_its_own_run_counts(starter: Starter, fault: dict[str, Any], tries: int) -> None:
    # a status counts in any case after STATUS_DELAY seconds: by this clock, the start took longer
    clock = Clock(now=lambda: time.time() - (0 if starter.sent() else STATUS_DELAY + 10))
    starter.control.configure(stale_seconds=100)
    starter.control.fail(START, **fault)
    result = starter.start(tries=tries, retry_unknown_outcome=True, clock=clock)
    assert (result["status"]["executed_times"], starter.sent()) == (2, 1)


class TestCrashes:
    @pytest.mark.parametrize("waits", [True, False])
    def test_a_retry_after_an_unstored_success_starts_nothing(self, starter: Starter, waits: bool) -> None:
        store = Store()
        first = starter.start(store=store, wait_for_completion=waits)
        starter.control.advance(20_000)
        again = starter.start(store=store, wait_for_completion=waits)
        assert (again["started"], again["after"]) == (first["started"], first["after"])
        assert starter.sent() == 1

    @pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="this Airflow cannot remember it")
    def test_a_retry_joins_a_run_that_has_ended_meanwhile(
        self,
        starter: Starter,
        set_connection: Connect,
        after_requests: AfterRequests,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def connect_again(context: Any) -> None:
            set_connection()
            starter.control.advance(20_000)

        # the connection is missing for the rest of the try that has started the run
        after_requests(1, START, monkeypatch.delenv, "AIRFLOW_CONN_WEBCOLLECT_DEFAULT")
        run = starter.start_in_dag(on_retry_callback=connect_again)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        assert (starter.sent(), remembered(run)) == (1, KEPT)
        assert len(run.xcoms["start"]["started"]) == 3

    @pytest.mark.parametrize(("done", "sent"), [(True, 1), (False, 2)])
    def test_only_a_start_without_effect_is_repeated(self, starter: Starter, done: bool, sent: int) -> None:
        starter.control.fail(START, kind="drop", done=done)
        starter.start(tries=2, retry_unknown_outcome=True, clock=quick_clock())
        assert (starter.sent(), len(starter.task()["runs"])) == (sent, 2)

    @pytest.fixture
    def retry(self, starter: Starter) -> Retry:
        """Executes the operator after its process was killed during a start that began just now.

        It takes a function to call before that, ``then``, and the operator's arguments.
        """

        def retry(then: Callable[[], object] = lambda: None, **arguments: Any) -> dict[str, Any]:
            before = Baseline.of(WebCollectHook().get_task_statuses_v2([starter.task_id])[0])
            started = starter.ids[1 if before.running else 0 :]
            result = {"collection_task_id": starter.task_id, "started": started}
            result["after"] = msgspec.to_builtins(before)
            store = starter.killed_during(result, began=time.time())
            then()
            usual = {"wait_for_completion": False, "clock": quick_clock()}
            return starter.start(store=store, **{**usual, **arguments})

        return retry

    def test_a_start_not_shown_yet_is_not_sent_again(self, starter: Starter, retry: Retry) -> None:
        # the first two queries of the status and the sub-tasks do not show it
        sleeps: list[None] = []

        def show() -> None:
            sleeps.append(None)
            if len(sleeps) == 2:
                starter.start_elsewhere(*starter.ids)

        assert retry(clock=quick_clock(on_sleep=show))["started"] == starter.ids
        assert (len(sleeps), starter.sent()) == (2, 1)

    def test_an_outdated_response_is_no_sign_of_a_start(self, starter: Starter, retry: Retry) -> None:
        # as from another server of the service, which has not seen the latest run yet
        retry(then=lambda: starter.control.configure(executed_times_offset=-1))
        assert starter.sent() == 1

    @pytest.mark.parametrize("again", [False, True])
    def test_a_start_that_joined_a_run_is_repeated_only_if_asked_for(
        self, starter: Starter, retry: Retry, again: bool
    ) -> None:
        starter.control.configure(run_seconds=10_000, stale_seconds=0)
        going_on, *ours = starter.ids
        starter.start_elsewhere(going_on)
        # the other sub-tasks are idle: they have not started, or have already ended
        if again:
            assert retry(retry_unknown_outcome=True)["started"] == ours
        else:
            with pytest.raises(AirflowFailException, match="another run was active"):
                retry()

        assert starter.sent() == 1 + again

    def test_the_end_of_a_joined_run_is_no_sign_of_the_start(self, starter: Starter, retry: Retry) -> None:
        starter.control.configure(run_seconds=10_000, stale_seconds=0, counted_runs="ended")
        starter.start_elsewhere(starter.ids[0])
        result = retry(then=lambda: starter.control.advance(20_000), retry_unknown_outcome=True)
        assert (result["started"], starter.sent()) == (starter.ids, 2)

    @pytest.mark.parametrize("interrupted", [False, True])
    def test_somebody_elses_start_is_not_taken_for_its_own(
        self, starter: Starter, interrupted: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        starter.control.configure(run_seconds=10_000)
        options: dict[str, Any] = {"wait_for_completion": False, "retry_unknown_outcome": True}
        options["store"] = Store()
        if interrupted:
            starter.control.fail(START, status=429, headers={"Retry-After": "1"})
            paused, sleep = threading.Event(), Stop.sleep

            def sleep_until_the_end(stop: Stop, seconds: float) -> None:
                paused.set()
                sleep(stop, PATIENCE)

            monkeypatch.setattr(Stop, "sleep", sleep_until_the_end)
            with signalled_when(paused.is_set, AirflowTaskTimeout), pytest.raises(AirflowTaskTimeout):
                starter.start(**options)
            monkeypatch.setattr(Stop, "sleep", sleep)
        else:
            starter.control.fail(START, status=400, code="TaskExecuting")
            with pytest.raises(WebCollectError):
                starter.start(**options)
        starter.start_elsewhere(starter.ids[0])
        result = starter.start(**options)

        assert (result["already_active"], result["started"]) == (starter.ids[:1], starter.ids[1:])
        states = {subtask["status"] for subtask in starter.task()["subtasks"]}
        assert states <= {"Waiting", "Sent", "Extracting"}
        assert options["store"]["webcollect_start"]["result"] == result

    def test_after_an_unknown_outcome_nothing_is_repeated(self, starter: Starter) -> None:
        starter.control.fail(START, kind="drop", done=True)
        store = Store()
        with pytest.raises(AirflowFailException, match=f"The status of task {starter.task_id} shows whether"):
            starter.start(store=store)
        assert (starter.sent(), store) == (1, {})


class TestClearing:
    """A cleared task starts again, whether Airflow keeps the task's state store or drops it."""

    def test_the_second_start_waits_for_its_own_run(self, starter: Starter) -> None:
        def clear(ti: Any) -> None:
            start = TaskInstance.run_id == ti.run_id, TaskInstance.task_id == "start"
            with create_session() as session:
                clear_task_instances([session.scalars(select(TaskInstance).where(*start)).one()], session)

        run = run_tasks(starter.operator, lambda: PythonOperator(task_id="clear", python_callable=clear))

        assert run.states == {"start": "success", "clear": "success"}
        assert run.xcoms["start"]["status"]["executed_times"] == 3
        assert len(run.xcoms["start"]["started"]) == 3
        assert (starter.sent(), len(starter.task()["runs"])) == (2, 3)
        assert remembered(run) == KEPT

    @pytest.mark.parametrize("is_kept", [True, False])
    @pytest.mark.parametrize("goes_on", [True, False])
    def test_after_a_failed_wait_it_joins_what_still_goes_on(
        self,
        starter: Starter,
        set_connection: Connect,
        after_requests: AfterRequests,
        monkeypatch: pytest.MonkeyPatch,
        goes_on: bool,
        is_kept: bool,
    ) -> None:
        starter.control.configure(run_seconds=10_000, stale_seconds=0)
        store = Store()
        after_requests(1, START, monkeypatch.delenv, "AIRFLOW_CONN_WEBCOLLECT_DEFAULT")
        with pytest.raises(AirflowException, match="isn't defined"):
            starter.start(store=store)
        set_connection()
        if goes_on:
            after_requests(starter.sent(STATUS) + 2, STATUS, starter.control.advance, 20_000)
        else:
            starter.control.advance(20_000)
            starter.control.configure(run_seconds=60)
        result = starter.start(store=store if is_kept else Store(), max_tries=5)

        assert len(result["already_active" if goes_on else "started"]) == 3
        assert (result["status"]["executed_times"], starter.sent()) == ((2, 1) if goes_on else (3, 2))

    def test_a_mapped_task_does_not_take_the_start_of_another(self, starter: Starter) -> None:
        # a task that is cleared while it runs keeps its `max_tries`
        first, second, _ = starter.ids
        result = {"collection_task_id": starter.task_id, "started": [first], "after": None}
        store = starter.killed_during(result, sent=True, sub_task_ids=[first])
        again = starter.start(store=store, sub_task_ids=[second], wait_for_completion=False)
        assert (again["started"], starter.sent()) == ([second], 1)


class TestAnApiKeyAlone:
    """The key suffices for the start; the status, which shows starts by others, needs a token."""

    @pytest.fixture(autouse=True)
    def _key(self, connected: None, sandbox: Sandbox, set_connection: Connect) -> None:
        set_connection(extra={"api_key": sandbox.api_key})

    @pytest.fixture
    def given(self, starter: Starter) -> dict[str, Any]:
        """The operator's arguments: two of the three sub-tasks, one of them twice."""
        first, second, _ = starter.ids
        return {"sub_task_ids": [first, second, first], "wait_for_completion": False}

    def test_it_starts_what_is_given_without_a_look_and_says_so(
        self, starter: Starter, given: dict[str, Any], said: Said
    ) -> None:
        store = Store()

        assert starter.start(store=store, **given) == {
            "collection_task_id": starter.task_id,
            "collection_task_name": None,
            "started": starter.ids[:2],
            "already_active": [],
            "after": None,
        }
        assert starter.task()["runs"][-1]["started_subtasks"] == 2
        requests = starter.control.requests()
        assert [(request["path"], request["credential"]) for request in requests] == [(START, "api_key")]
        assert "The connection has only an API key, so the status of task" in said()
        assert store["webcollect_start"]["sent"]

    @pytest.mark.parametrize(("name", "value"), [("sub_task_ids", "all"), ("wait_for_completion", True)])
    def test_what_takes_a_token_is_refused_before_anything_is_sent(
        self, starter: Starter, given: Any, name: str, value: Any
    ) -> None:
        said = f"only an API key, and `{name}=.*` needs an access token"
        with pytest.raises(AirflowFailException, match=said):
            starter.start(**{**given, name: value})
        assert starter.control.requests() == []

    @pytest.mark.parametrize("again", [False, True])
    @pytest.mark.parametrize("lost", ["the response", "the process"])
    def test_an_unknown_outcome_is_repeated_only_if_asked_for(
        self, starter: Starter, given: dict[str, Any], lost: str, again: bool
    ) -> None:
        store, tries = Store(), 1
        if lost == "the response":
            starter.control.fail(START, kind="drop", done=True)
            tries += again
        else:
            store = starter.killed_during({"started": given["sub_task_ids"], "after": None}, **given)
        sent = again + (lost == "the response")
        if again:
            result = starter.start(tries=tries, store=store, **given, retry_unknown_outcome=True)
            assert result["after"] is None
        else:
            with pytest.raises(AirflowFailException, match="Clear the task to repeat it"):
                starter.start(store=store, **given)

        assert (starter.sent(), len(store)) == (sent, int(again))

    def test_a_start_of_the_key_is_not_waited_for(self, starter: Starter, set_connection: Connect) -> None:
        set_connection()
        store = starter.killed_during({"started": [], "after": None}, sent=True)
        with pytest.raises(AirflowFailException, match="the status before is unknown"):
            starter.start(store=store)
        assert starter.control.requests() == []

    def test_a_retry_knows_a_start_of_the_key(self, starter: Starter, given: dict[str, Any]) -> None:
        result = {"started": given["sub_task_ids"], "after": None}
        store = starter.killed_during(result, sent=True, **given)
        assert starter.start(store=store, **given) == result
        assert starter.control.requests() == []


class KilledAt(Store):
    """The store of a process that is killed before or after it stores one of its values.

    :param number: number of that value, from 0.
    """

    def __init__(self, number: int, *, is_stored: bool) -> None:
        self._left, self._is_stored = number, is_stored

    def set(self, key: str, value: Any) -> None:
        self._left -= 1
        if self._left != -1 or self._is_stored:
            self[key] = value
        if self._left == -1:
            raise Signalled


@dataclass(frozen=True)
class Starters:
    """Starts several collection tasks of the sandbox in one Airflow task.

    :ivar ids: ids of the collection tasks, each of which has run once.
    """

    control: Control
    ids: list[str]

    def start(self, ids: list[str] | None = None, *, tries: int = 1, store: Any = None, **how: Any) -> Any:
        """Execute the operator and return its result.

        :param ids: the collection tasks to start; by default, all.
        """
        operator = self.operator(ids or self.ids, **how)
        return execute(operator, tries=tries, task_state_store=Store() if store is None else store)

    def operator(self, ids: Any, **how: Any) -> WebCollectStartSubTasksOperator:
        return WebCollectStartSubTasksOperator(task_id="start", collection_task_ids=ids, **how)

    def runs(self) -> list[int]:
        """Return how often each collection task has run."""
        return [len(self.control.task(task_id)["runs"]) for task_id in self.ids]

    def sent(self, path: str = START) -> int:
        """Return how many requests the service has got; by default, starts."""
        return len(self.control.requests(path))


class TestSeveral:
    """Many collection tasks that are started in one Airflow task."""

    @pytest.fixture
    def starters(self, sandbox: Sandbox) -> Starters:
        tasks = [sandbox.control.add_task(lots=[10], subtasks=2) for _ in range(3)]
        return Starters(sandbox.control, [task["task_id"] for task in tasks])

    def test_each_is_started_and_waited_for(self, starters: Starters, configure_tasks: Any) -> None:
        first, second, third = starters.ids
        configure_tasks("".join(f"- {{id: {id_}, name: shop {id_}}}\n" for id_ in starters.ids))
        named = [f"Shop {first}", second, third, first]
        with make_dag() as dag:
            start: Any = starters.operator(named)
            WebCollectTaskStatusSensor(
                task_id="wait", collection_task_ids=starters.ids, after=start.output, poke_interval=0.1
            )
        run = run_dag(dag)

        assert run.states == {"start": "success", "wait": "success"}
        results = run.xcoms["start"]
        assert [result["collection_task_id"] for result in results] == starters.ids
        facts = [(len(result["started"]), result["after"]["executed_times"]) for result in results]
        assert facts == [(2, 1)] * 3
        assert {status["executed_times"] for status in run.xcoms["wait"]} == {2}
        assert (starters.runs(), starters.sent(), remembered(run)) == ([2, 2, 2], 3, 3 * KEPT)

    def test_a_list_out_of_a_template_is_taken(self, starters: Starters) -> None:
        operator = starters.operator("{{ params.ids | tojson }}")
        execute(operator, params={"ids": starters.ids})
        assert starters.runs() == [2, 2, 2]

    def test_the_status_of_many_is_queried_by_few_requests(self, starters: Starters) -> None:
        more = [starters.control.add_task(lots=[1], subtasks=1)["task_id"] for _ in range(22)]
        starters.start([*starters.ids, *more])
        assert (starters.sent(STATUS), starters.sent()) == (2, 25)

    def test_if_one_fails_the_others_start_and_it_is_named(self, starters: Starters) -> None:
        first, _, last = starters.ids
        said = r"^1 of 3 collection tasks failed\. gone: get_subtasks: "
        with pytest.raises(AirflowFailException, match=said):
            starters.start([first, "gone", last])
        assert starters.runs() == [2, 1, 2]

    @pytest.mark.parametrize("with_gone", [False, True])
    def test_a_retry_starts_only_what_has_failed(self, starters: Starters, with_gone: bool) -> None:
        starters.control.fail(START, status=400, code="TaskExecuting", after=1)
        store = Store()
        if with_gone:
            # a permanent error of one collection task does not prevent the retry of another
            with pytest.raises(AirflowFailException, match=r"^1 of 4 collection tasks failed\. gone: "):
                starters.start(["gone", *starters.ids], tries=2, store=store)
        else:
            assert len(starters.start(tries=2, store=store)) == 3
            assert len(store) == 3
        assert (starters.runs(), starters.sent()) == ([2, 2, 2], 4)

    def test_a_status_that_cannot_be_read_fails_its_own_task(
        self, sandbox: Sandbox, starters: Starters, set_connection: Connect
    ) -> None:
        unreadable = starters.ids[1]

        with proxy(sandbox.url, without_status(unreadable)) as url:
            set_connection(host=url)
            with pytest.raises(WebCollectError, match=rf"^1 of 3 collection tasks failed\. {unreadable}: "):
                starters.start()
        assert starters.runs() == [2, 1, 2]

    @pytest.mark.parametrize("again", [False, True])
    def test_lost_responses_start_none_twice(self, starters: Starters, again: bool) -> None:
        starters.control.fail(START, kind="drop", done=True, after=1)
        if again:
            results = starters.start(tries=2, retry_unknown_outcome=True, clock=quick_clock())
            assert [len(result["started"]) for result in results] == [2, 2, 2]
        else:
            said = rf"1 of 3 collection tasks failed\. {starters.ids[1]}: "
            with pytest.raises(AirflowFailException, match=f"{said}.* The status of each task shows whether"):
                starters.start()
        assert (starters.runs(), starters.sent()) == ([2, 2, 2], 3)

    @pytest.mark.usefixtures("no_pauses")
    def test_it_does_not_try_hundreds_while_the_service_is_down(self, starters: Starters) -> None:
        more = [starters.control.add_task()["task_id"] for _ in range(2)]
        store = Store()
        starters.control.fail(SUBTASKS, status=503, times=None)
        said = "^3 of 5 collection tasks failed, and 2 were not tried"
        with pytest.raises(WebCollectError, match=said):
            starters.start([*starters.ids, *more], store=store)
        starters.control.clear_faults()
        assert len(starters.start([*starters.ids, *more], store=store)) == 5

    @pytest.mark.parametrize("is_stored", [False, True])
    @pytest.mark.parametrize("number", range(6))
    def test_killed_at_any_moment_it_starts_each_once(
        self, starters: Starters, number: int, is_stored: bool
    ) -> None:
        store = KilledAt(number, is_stored=is_stored)
        with pytest.raises(Signalled):
            starters.start(store=store)
        results = starters.start(store=store, clock=quick_clock())

        assert [len(result["started"]) for result in results] == [2, 2, 2]
        assert (starters.runs(), starters.sent(), len(store)) == ([2, 2, 2], 3, 3)

    def test_all_unknown_starts_are_looked_for_together(self, starters: Starters) -> None:
        store, sleeps = Store(), list[None]()
        operator = starters.operator([*starters.ids, "gone"])
        context: Any = {"task_state_store": store, "ti": SimpleNamespace(max_tries=2)}
        for task_id in (*starters.ids, "gone"):
            result = {"collection_task_id": task_id, "started": ["x"], "after": {"executed_times": 1}}
            _Memory(context, operator, task_id).keep(_Start(began=time.time(), result=result))

        def show() -> None:
            sleeps.append(None)
            if len(sleeps) == 1:
                starters.control.start_task(starters.ids[1])

        with pytest.raises(AirflowFailException, match=r"^1 of 4 collection tasks failed\. gone: "):
            starters.start([*starters.ids, "gone"], store=store, clock=quick_clock(on_sleep=show))
        assert (len(sleeps), starters.runs(), starters.sent()) == (3, [2, 2, 2], 2)
