"""Starting sub-tasks and waiting for the run, through crashes, lost answers and failing runs."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.settings import Session
from sqlalchemy import inspect, text

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.start import _Memory, _Start
from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.waiting.baseline import SETTLE, Baseline
from tests.airflow.dag_runs import FinishedRun, make_dag, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(
        speed=40, wait_seconds=10, run_seconds=60, stale_seconds=20, enforce_limits=False
    ),
]

START = "/cloudextraction/subtasks:start"
STATUS = "/cloudextraction/statuses/v2"
SUBTASKS = "/cloudextraction/task/subtasks"
RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0)}


def start(task: dict[str, Any], **arguments: Any) -> FinishedRun:
    """Run the operator as a DAG run, with retries."""
    return run_tasks(
        lambda: WebCollectStartSubTasksOperator(
            task_id="start",
            collection_task_id=task["task_id"],
            **{"wait_for_completion": True, "poll_interval": 0.2, **RETRIES, **arguments},
        )
    )


@pytest.fixture
def short_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry checks for moments only whether an earlier try has started the run."""
    monkeypatch.setattr("airflow_provider_webcollect.operators.start.SETTLE", 2.0)
    monkeypatch.setattr("airflow_provider_webcollect.operators.start.CHECK_INTERVAL", 0.2)


@pytest.fixture
def disconnected(
    sandbox: Sandbox,
    task: dict[str, Any],
    set_connection: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., FinishedRun]:
    """Runs the operator, whose connection is away for the rest of the try that has started the run.

    It is given what to do before the retry.
    """

    def run(before_retry: Callable[[], None]) -> FinishedRun:
        def connect_again(context: Any) -> None:
            set_connection()
            before_retry()

        with once(lambda: starts(sandbox) > 0, monkeypatch.delenv, "AIRFLOW_CONN_WEBCOLLECT_DEFAULT"):
            return start(task, on_retry_callback=connect_again)

    return run


def starts(sandbox: Sandbox) -> int:
    return len(sandbox.control.requests(START))


def has_memory() -> bool:
    """Return whether this Airflow can remember something from try to try."""
    with Session() as session:
        return bool(inspect(session.get_bind()).has_table("task_state_store"))


def remembered(run: FinishedRun) -> int:
    """Return how many things the run's tasks still remember."""
    if not has_memory():
        return 0
    query = text("select count(*) from task_state_store where run_id = :run_id")
    with Session() as session:
        return int(session.execute(query, {"run_id": run.run_id}).scalar_one())


@contextlib.contextmanager
def once(happened: Callable[[], bool], action: Callable[..., Any], *arguments: Any) -> Iterator[None]:
    """Do something as soon as something else has happened, as a person would, or else at the end."""

    def act() -> None:
        while not happened() and not ended.wait(0.05):
            continue
        action(*arguments)

    ended = threading.Event()
    person = threading.Thread(target=act)
    person.start()
    yield
    ended.set()
    person.join(10)


@pytest.mark.parametrize("deferrable", [False, True])
class TestWaiting:
    def test_it_ends_with_the_run_that_it_started(
        self, sandbox: Sandbox, task: dict[str, Any], deferrable: bool
    ) -> None:
        # the status shows the Finished of the run before for a while
        run = start(task, deferrable=deferrable)

        assert (run.states, run.tries["start"]) == ({"start": "success"}, 1)
        result = run.xcoms["start"]
        assert (result["status"]["status"], result["status"]["executed_times"]) == ("Finished", 2)
        # `dag.test()` forgets what a deferred task wanted to hand on to itself
        if has_memory() or not deferrable:
            assert (result["after"]["executed_times"], len(result["started"])) == (1, 3)
        assert sandbox.control.task(task["task_id"])["state"] == "Finished"
        assert starts(sandbox) == 1
        assert remembered(run) == 0

    def test_a_run_that_is_stopped_fails_it_without_retries(
        self, sandbox: Sandbox, task: dict[str, Any], deferrable: bool, said: Callable[[], str]
    ) -> None:
        sandbox.control.configure(stale_seconds=0, run_seconds=10_000)
        with once(lambda: starts(sandbox) > 0, sandbox.control.stop_task, task["task_id"]):
            run = start(task, deferrable=deferrable)

        assert (run.states, run.tries) == ({"start": "failed"}, {"start": 1})
        assert f"{task['task_id']} is Stopped" in said()
        assert remembered(run) == 0


@pytest.mark.webcollect_sandbox(wait_seconds=0, run_seconds=4, stale_seconds=2, enforce_limits=False)
class TestARunThatIsGoingOn:
    def test_its_end_counts_if_there_is_nothing_to_start(self, sandbox: Sandbox) -> None:
        sandbox.control.configure(run_seconds=10_000)
        going_on = sandbox.control.add_task(state="Extracting")
        with once(lambda: len(sandbox.control.requests(STATUS)) > 1, sandbox.control.advance, 10_000):
            run = start(going_on)

        assert run.states == {"start": "success"}
        assert run.xcoms["start"]["started"] == []
        assert run.xcoms["start"]["status"]["executed_times"] == 1

    def test_it_is_not_the_run_that_was_started_if_it_ends_before_the_start(self, sandbox: Sandbox) -> None:
        sandbox.control.configure(run_seconds=10_000)
        ending = sandbox.control.add_task(state="Extracting")
        sandbox.control.configure(run_seconds=4)
        # between the query of the status and that of the sub-tasks
        sandbox.control.fail(SUBTASKS, kind="slow", seconds=3)
        with once(lambda: len(sandbox.control.requests(STATUS)) > 0, sandbox.control.advance, 10_000):
            run = start(ending)

        assert run.states == {"start": "success"}
        assert len(run.xcoms["start"]["started"]) == len(ending["subtasks"])
        assert run.xcoms["start"]["status"]["executed_times"] == 2
        assert sandbox.control.task(ending["task_id"])["state"] == "Finished"


@pytest.mark.parametrize("fault", [{"kind": "slow", "seconds": 0.1}, {"kind": "no_answer"}])
def test_the_time_that_the_start_took_does_not_make_the_run_before_count(
    sandbox: Sandbox, task: dict[str, Any], fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # what the status shows counts in any case SETTLE seconds after the start: by this clock, it took longer
    clock = SimpleNamespace(time=lambda: time.time() - (0 if starts(sandbox) else SETTLE + 10))
    monkeypatch.setattr("airflow_provider_webcollect.operators.start.time", clock)
    sandbox.control.configure(stale_seconds=100)
    sandbox.control.fail(START, **fault)
    run = start(task, retry_unknown_outcome=True)

    assert run.states == {"start": "success"}
    assert run.xcoms["start"]["status"]["executed_times"] == 2
    assert starts(sandbox) == 1


class TestCrashes:
    def test_a_retry_joins_the_run_that_an_earlier_try_started(
        self, sandbox: Sandbox, task: dict[str, Any], disconnected: Callable[..., FinishedRun]
    ) -> None:
        sandbox.control.configure(run_seconds=10_000)
        retried = threading.Event()
        queries = 0

        def note_retry() -> None:
            nonlocal queries
            queries = len(sandbox.control.requests(STATUS))
            retried.set()

        def is_waiting_again() -> bool:
            return retried.is_set() and len(sandbox.control.requests(STATUS)) > queries + 1

        with once(is_waiting_again, sandbox.control.advance, 20_000):
            run = disconnected(note_retry)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        assert starts(sandbox) == 1

    def test_a_retry_knows_of_a_run_that_has_ended_meanwhile(
        self, sandbox: Sandbox, disconnected: Callable[..., FinishedRun]
    ) -> None:
        if not has_memory():
            pytest.skip("this Airflow cannot remember it")
        sandbox.control.configure(run_seconds=10_000)
        run = disconnected(lambda: sandbox.control.advance(20_000))

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        assert starts(sandbox) == 1
        assert len(run.xcoms["start"]["started"]) == 3
        assert remembered(run) == 0

    def test_a_lost_answer_to_the_start_is_looked_up_by_a_retry(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        sandbox.control.fail(START, kind="no_answer")
        run = start(task, retry_unknown_outcome=True)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        assert starts(sandbox) == 1

    @pytest.mark.usefixtures("short_checks")
    def test_a_start_that_was_lost_on_the_way_is_sent_again_by_a_retry(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        sandbox.control.fail(START, kind="drop")
        run = start(task, retry_unknown_outcome=True)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        assert starts(sandbox) == 2
        assert len(sandbox.control.task(task["task_id"])["runs"]) == 2

    def test_a_start_that_took_effect_and_is_not_shown_yet_is_not_sent_again(
        self, sandbox: Sandbox, task: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not has_memory():
            pytest.skip("this Airflow cannot remember that a start may have been sent")
        monkeypatch.setattr("airflow_provider_webcollect.operators.start.CHECK_INTERVAL", 0.2)
        first = [subtask["subtask_id"] for subtask in task["subtasks"]]
        store = Store()
        with make_dag():
            operator = WebCollectStartSubTasksOperator(task_id="start", collection_task_id=task["task_id"])
        context: Any = {"task_state_store": store, "ti": SimpleNamespace(max_tries=2), "task": operator}
        # the process was gone after the service had acted: neither the status nor the sub-tasks show it yet
        before = Baseline.of(WebCollectHook().get_task_statuses_v2([task["task_id"]])[0])
        result = {
            "collection_task_id": task["task_id"],
            "started": first,
            "after": msgspec.to_builtins(before),
        }
        _Memory(context).keep(_Start(began=time.time(), result=result))
        with once(
            lambda: len(sandbox.control.requests(SUBTASKS)) > 1,
            WebCollectHook().start_subtasks,
            task["task_id"],
            first,
        ):
            assert operator.execute(context)["started"] == first

        assert starts(sandbox) == 1

    @pytest.mark.usefixtures("short_checks")
    def test_an_answer_from_before_is_not_taken_for_a_start_that_took_effect(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        if not has_memory():
            pytest.skip("this Airflow cannot remember that a start may have been sent")
        with make_dag():
            operator = WebCollectStartSubTasksOperator(task_id="start", collection_task_id=task["task_id"])
        context: Any = {"task_state_store": Store(), "ti": SimpleNamespace(max_tries=2), "task": operator}
        before = Baseline.of(WebCollectHook().get_task_statuses_v2([task["task_id"]])[0])
        result = {
            "collection_task_id": task["task_id"],
            "started": [subtask["subtask_id"] for subtask in task["subtasks"]],
            "after": msgspec.to_builtins(before),
        }
        _Memory(context).keep(_Start(began=time.time(), result=result))
        # as another server of the service may answer, which has not seen the latest run yet
        sandbox.control.configure(executed_times_offset=-1)
        operator.execute(context)

        assert starts(sandbox) == 1

    @pytest.mark.usefixtures("short_checks")
    @pytest.mark.parametrize("again", [False, True])
    def test_a_start_that_joined_a_run_and_may_have_ended_is_not_repeated_unless_asked_for(
        self, sandbox: Sandbox, task: dict[str, Any], again: bool
    ) -> None:
        if not has_memory():
            pytest.skip("this Airflow cannot remember that a start may have been sent")
        sandbox.control.configure(run_seconds=10_000, stale_seconds=0)
        going_on, *ours = [subtask["subtask_id"] for subtask in task["subtasks"]]
        WebCollectHook().start_subtasks(task["task_id"], [going_on])
        before = Baseline.of(WebCollectHook().get_task_statuses_v2([task["task_id"]])[0])
        assert before.running
        with make_dag():
            operator = WebCollectStartSubTasksOperator(
                task_id="start", collection_task_id=task["task_id"], retry_unknown_outcome=again
            )
        context: Any = {"task_state_store": Store(), "ti": SimpleNamespace(max_tries=2), "task": operator}
        # the process was gone during the start; the other sub-tasks are idle, as before it or already again
        result = {
            "collection_task_id": task["task_id"],
            "started": ours,
            "after": msgspec.to_builtins(before),
        }
        _Memory(context).keep(_Start(began=time.time(), result=result))
        if again:
            assert operator.execute(context)["started"] == ours
        else:
            with pytest.raises(AirflowFailException, match="beside another run"):
                operator.execute(context)

        assert starts(sandbox) == 1 + again

    @pytest.mark.parametrize(
        ("refusal", "arguments"),
        [
            ({"code": "TaskExecuting"}, {}),
            # the timeout strikes while the client waits to send the start again
            (
                {"status": 429, "headers": {"Retry-After": "8"}},
                {"execution_timeout": timedelta(seconds=2), "retry_unknown_outcome": True},
            ),
        ],
        ids=["refused", "interrupted"],
    )
    def test_somebody_elses_start_is_not_taken_for_one_that_had_no_effect(
        self, sandbox: Sandbox, task: dict[str, Any], refusal: dict[str, Any], arguments: dict[str, Any]
    ) -> None:
        if not has_memory():
            pytest.skip("this Airflow can take nothing for its own start")
        sandbox.control.configure(run_seconds=10_000)
        sandbox.control.fail(START, **{"status": 400, **refusal})
        first, *others = [subtask["subtask_id"] for subtask in task["subtasks"]]

        def start_first(context: Any) -> None:
            WebCollectHook().start_subtasks(task["task_id"], [first])

        run = start(task, wait_for_completion=False, on_retry_callback=start_first, **arguments)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
        result = run.xcoms["start"]
        assert (result["already_active"], result["started"]) == ([first], others)
        states = {each["status"] for each in sandbox.control.task(task["task_id"])["subtasks"]}
        assert states <= {"Waiting", "Sent", "Extracting"}
        assert remembered(run) == 0

    def test_a_timeout_during_the_start_leaves_its_outcome_unknown(
        self, sandbox: Sandbox, task: dict[str, Any], said: Callable[[], str]
    ) -> None:
        sandbox.control.fail(START, kind="slow", seconds=4)
        run = start(task, execution_timeout=timedelta(seconds=2))

        assert (run.states, run.tries) == ({"start": "failed"}, {"start": 1})
        assert remembered(run) == 0
        assert f"The status of task {task['task_id']} shows whether its sub-tasks run." in said()

    def test_after_an_unknown_outcome_nothing_is_remembered(
        self, sandbox: Sandbox, task: dict[str, Any], said: Callable[[], str]
    ) -> None:
        sandbox.control.fail(START, kind="no_answer")
        run = start(task)

        assert (run.states, run.tries) == ({"start": "failed"}, {"start": 1})
        assert remembered(run) == 0
        assert f"The status of task {task['task_id']} shows whether its sub-tasks run." in said()


class Store(dict[str, Any]):
    """What Airflow remembers of a task, over its tries and when it is cleared."""

    set = dict.__setitem__
    delete = dict.pop


def test_a_task_that_was_cleared_begins_anew() -> None:
    store = Store()
    tries, cleared = ({"task_state_store": store, "ti": SimpleNamespace(max_tries=most)} for most in (2, 5))
    began = _Start(began=1.0, result={"collection_task_id": "t"})
    _Memory(tries).keep(began)

    assert _Memory(tries).recall() == msgspec.structs.replace(began, max_tries=2)
    assert _Memory(cleared).recall() is None


class TestAnApiKeyAlone:
    """The start takes the key; the status, which shows starts by others, takes a token."""

    @pytest.fixture(autouse=True)
    def _key(self, connected: None, sandbox: Sandbox, set_connection: Callable[..., None]) -> None:
        set_connection(extra={"api_key": sandbox.api_key})

    @pytest.fixture
    def given(self, task: dict[str, Any]) -> dict[str, Any]:
        """The operator's arguments: two of the three sub-tasks, one of them twice."""
        first, second, _ = [subtask["subtask_id"] for subtask in task["subtasks"]]
        return {"sub_task_ids": [first, second, first], "wait_for_completion": False}

    def test_it_starts_what_is_given_without_a_look_and_says_so(
        self, sandbox: Sandbox, task: dict[str, Any], given: dict[str, Any], said: Callable[[], str]
    ) -> None:
        run = start(task, **given)

        assert (run.states, run.tries) == ({"start": "success"}, {"start": 1})
        assert run.xcoms["start"] == {
            "collection_task_id": task["task_id"],
            "started": given["sub_task_ids"][:2],
            "already_active": [],
            "after": None,
        }
        assert sandbox.control.task(task["task_id"])["runs"][-1]["started_subtasks"] == 2
        assert [request["path"] for request in sandbox.control.requests()] == [START]
        assert "The connection has only an API key, so the status of task" in said()
        assert remembered(run) == 0

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            ({"sub_task_ids": "all"}, '`sub_task_ids="all"`'),
            ({"wait_for_completion": True}, "`wait_for_comp"),
        ],
    )
    def test_what_takes_a_token_is_refused_before_anything_is_sent(
        self,
        sandbox: Sandbox,
        task: dict[str, Any],
        given: dict[str, Any],
        arguments: dict[str, Any],
        what: str,
        said: Callable[[], str],
    ) -> None:
        run = start(task, **{**given, **arguments})

        assert (run.states, run.tries) == ({"start": "failed"}, {"start": 1})
        assert f"the connection has only an API key, and {what}" in said()
        assert sandbox.control.requests() == []

    @pytest.mark.beyond_the_contract
    @pytest.mark.webcollect_sandbox(speed=1000, api_key_everywhere=True, enforce_limits=False)
    def test_a_key_that_is_taken_everywhere_does_as_a_token_does(
        self, sandbox: Sandbox, task: dict[str, Any], set_connection: Callable[..., None]
    ) -> None:
        set_connection(extra={"api_key": sandbox.api_key, "api_key_everywhere": True})
        run = start(task)

        assert run.states == {"start": "success"}
        assert run.xcoms["start"]["status"]["executed_times"] == 2

    @pytest.mark.parametrize(("again", "sent"), [(False, 1), (True, 2)])
    def test_a_lost_answer_is_not_repeated_unless_asked_for(
        self, sandbox: Sandbox, task: dict[str, Any], given: dict[str, Any], again: bool, sent: int
    ) -> None:
        sandbox.control.fail(START, kind="no_answer")
        run = start(task, **given, retry_unknown_outcome=again)

        assert run.states == {"start": "success" if again else "failed"}
        assert run.tries == {"start": sent}
        assert starts(sandbox) == sent
        assert remembered(run) == 0

    @pytest.mark.parametrize("again", [False, True])
    def test_a_start_that_was_killed_is_not_repeated_unless_asked_for(
        self, sandbox: Sandbox, task: dict[str, Any], given: dict[str, Any], again: bool
    ) -> None:
        store = Store()
        context: Any = {"task_state_store": store, "ti": SimpleNamespace(max_tries=2)}
        with make_dag():
            operator = WebCollectStartSubTasksOperator(
                task_id="start", collection_task_id=task["task_id"], retry_unknown_outcome=again, **given
            )
        context["task"] = operator
        _Memory(context).keep(_Start(began=1.0, result={"started": given["sub_task_ids"], "after": None}))

        if again:
            assert operator.execute(context)["after"] is None
        else:
            with pytest.raises(AirflowFailException, match=r"cannot be known .* Clear the task to repeat it"):
                operator.execute(context)
        assert (starts(sandbox), len(store)) == (int(again), 0)

    def test_a_start_without_a_look_is_not_waited_for_either_once_there_is_a_token(
        self, sandbox: Sandbox, task: dict[str, Any], set_connection: Callable[..., None]
    ) -> None:
        set_connection()
        context: Any = {"task_state_store": Store(), "ti": SimpleNamespace(max_tries=2)}
        with make_dag():
            operator = WebCollectStartSubTasksOperator(
                task_id="start", collection_task_id=task["task_id"], wait_for_completion=True
            )
        context["task"] = operator
        _Memory(context).keep(_Start(began=1.0, result={"started": [], "after": None}, sent=True))

        with pytest.raises(AirflowFailException, match="without the status from before"):
            operator.execute(context)
        assert sandbox.control.requests() == []

    def test_a_start_without_a_look_that_took_effect_is_known_to_a_retry(
        self, sandbox: Sandbox, task: dict[str, Any], given: dict[str, Any]
    ) -> None:
        context: Any = {"task_state_store": Store(), "ti": SimpleNamespace(max_tries=2)}
        with make_dag():
            operator = WebCollectStartSubTasksOperator(
                task_id="start", collection_task_id=task["task_id"], **given
            )
        context["task"] = operator
        result = {"started": given["sub_task_ids"], "after": None}
        _Memory(context).keep(_Start(began=1.0, result=result, sent=True))

        assert operator.execute(context) == result
        assert sandbox.control.requests() == []


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"poll_interval": 0}, "poll_interval"), ({"failure_states": "Stopped"}, "failure_states")],
)
def test_wrong_arguments_fail_while_the_dag_is_parsed(arguments: dict[str, Any], name: str) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=name):
        WebCollectStartSubTasksOperator(task_id="wrong", collection_task_id="t", **arguments)


def test_what_the_service_asks_for_is_how_long_a_retry_waits(
    sandbox: Sandbox, task: dict[str, Any], said: Callable[[], str]
) -> None:
    sandbox.control.fail(START, status=400, code="TaskExecuting", headers={"Retry-After": "7"})
    run = start(task, wait_for_completion=False)

    assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
    if has_memory():
        assert "The service asked to wait 7 s before the next request." in said()
