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
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout
from airflow.settings import Session
from sqlalchemy import inspect, text

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators.start import Clock, _Memory, _Start
from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError
from airflow_provider_webcollect.service.pauses import Stop
from airflow_provider_webcollect.waiting.runs import STATUS_DELAY, Baseline
from tests.airflow.dag_runs import FinishedRun, make_dag, run_tasks
from tests.airflow.executions import Store, execute
from tests.airflow.proxy import proxy
from tests.interruption import PATIENCE, signalled_when

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(
        speed=200, wait_seconds=10, run_seconds=60, stale_seconds=20, enforce_limits=False
    ),
]

START = "/cloudextraction/subtasks:start"
STATUS = "/cloudextraction/statuses/v2"
RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0)}


def make_start(task: dict[str, Any], **arguments: Any) -> WebCollectStartSubTasksOperator:
    """Make the operator, which waits for the run."""
    return WebCollectStartSubTasksOperator(
        task_id="start",
        collection_task_id=task["task_id"],
        **{"wait_for_completion": True, "poll_interval": 0.05, **arguments},
    )


def start(task: dict[str, Any], *, tries: int = 1, store: Any = None, **arguments: Any) -> dict[str, Any]:
    """Execute the operator and return its result.

    :param store: what Airflow stores for the task.
    """
    operator = make_start(task, **arguments)
    result: dict[str, Any] = execute(
        operator, tries=tries, task_state_store=Store() if store is None else store
    )
    return result


def start_in_dag(task: dict[str, Any], **arguments: Any) -> FinishedRun:
    """Run the operator as a DAG run, with retries."""
    return run_tasks(lambda: make_start(task, **{**RETRIES, **arguments}))


def quick_clock(on_sleep: Callable[[], object] = lambda: None) -> Clock:
    """Return a clock of which sleeping takes no time, but calls a function."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        on_sleep()
        # for longer, so that there are few queries: the client limits their rate
        slept.append(4 * seconds)

    return Clock(now=lambda: time.time() + sum(slept), sleep=sleep)


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
            return start_in_dag(task, on_retry_callback=connect_again)

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


def killed_during(result: dict[str, Any], began: float = 1.0, *, sent: bool = False) -> Store:
    """Return what is stored of a start during which its process was killed."""
    context: Any = {"task_state_store": (store := Store()), "ti": SimpleNamespace(max_tries=2)}
    _Memory(context).keep(_Start(began=began, result=result, sent=sent))
    return store


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
    person.join(PATIENCE)


class TestWaiting:
    @pytest.mark.parametrize("deferrable", [pytest.param(False, marks=pytest.mark.at_night), True])
    def test_it_ends_with_the_run_that_it_started(
        self, sandbox: Sandbox, task: dict[str, Any], deferrable: bool
    ) -> None:
        # the status shows the Finished of the run before for a while
        run = start_in_dag(task, deferrable=deferrable)

        assert (run.states, run.tries["start"]) == ({"start": "success"}, 1)
        result = run.xcoms["start"]
        assert (result["status"]["status"], result["status"]["executed_times"]) == ("Finished", 2)
        # `dag.test()` forgets what a deferred task wanted to hand on to itself
        if has_memory() or not deferrable:
            assert (result["after"]["executed_times"], len(result["started"])) == (1, 3)
        assert sandbox.control.task(task["task_id"])["state"] == "Finished"
        assert starts(sandbox) == 1
        assert remembered(run) == 0

    @pytest.mark.parametrize("options", [{}, {"failure_states": iter(["Stopped"])}], ids=["usual", "once"])
    def test_a_run_that_is_stopped_fails_it_without_retries(
        self, sandbox: Sandbox, task: dict[str, Any], options: dict[str, Any]
    ) -> None:
        sandbox.control.configure(stale_seconds=0, run_seconds=10_000)
        store = Store()
        with (
            once(lambda: starts(sandbox) > 0, sandbox.control.stop_task, task["task_id"]),
            pytest.raises(AirflowFailException, match=f"{task['task_id']} is Stopped"),
        ):
            start(task, store=store, **options)

        assert store == {}


@pytest.mark.webcollect_sandbox(wait_seconds=0, run_seconds=4, stale_seconds=2, enforce_limits=False)
class TestARunThatIsGoingOn:
    def test_its_end_counts_if_there_is_nothing_to_start(self, sandbox: Sandbox) -> None:
        sandbox.control.configure(run_seconds=10_000)
        going_on = sandbox.control.add_task(state="Extracting")
        with once(lambda: len(sandbox.control.requests(STATUS)) > 1, sandbox.control.advance, 10_000):
            result = start(going_on)

        assert result["started"] == []
        assert result["status"]["executed_times"] == 1

    @pytest.mark.webcollect_sandbox(speed=20, wait_seconds=0, run_seconds=4, stale_seconds=2)
    def test_it_is_not_the_run_that_was_started_if_it_ends_before_the_start(
        self, sandbox: Sandbox, set_connection: Callable[..., None]
    ) -> None:
        sandbox.control.configure(run_seconds=10_000, enforce_limits=False)
        ending = sandbox.control.add_task(state="Extracting")
        sandbox.control.configure(run_seconds=4)

        def end_after_the_first(path: str, status: int, body: Any) -> tuple[int, Any]:
            # between the query of the status and that of the sub-tasks
            if path.startswith(STATUS) and len(sandbox.control.requests(STATUS)) == 1:
                sandbox.control.advance(10_000)
            return status, body

        with proxy(sandbox.url, end_after_the_first) as url:
            set_connection(host=url)
            result = start(ending)

        assert len(result["started"]) == len(ending["subtasks"])
        assert result["status"]["executed_times"] == 2
        assert sandbox.control.task(ending["task_id"])["state"] == "Finished"


@pytest.mark.parametrize(
    ("fault", "tries"), [({"kind": "slow", "seconds": 0.1}, 1), ({"kind": "drop", "done": True}, 2)]
)
def test_the_time_that_the_start_took_does_not_make_the_run_before_count(
    sandbox: Sandbox, task: dict[str, Any], fault: dict[str, Any], tries: int
) -> None:
    # a status counts in any case after STATUS_DELAY seconds: by this clock, the start took longer
    clock = Clock(now=lambda: time.time() - (0 if starts(sandbox) else STATUS_DELAY + 10))
    operator = make_start(task, retry_unknown_outcome=True, clock=clock)
    sandbox.control.configure(stale_seconds=100)
    sandbox.control.fail(START, **fault)

    assert execute(operator, tries=tries)["status"]["executed_times"] == 2
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

    @pytest.mark.parametrize(("done", "sent"), [(True, 1), (False, 2)])
    def test_a_start_without_an_answer_is_sent_again_by_a_retry_only_if_it_was_lost_on_the_way(
        self, sandbox: Sandbox, task: dict[str, Any], done: bool, sent: int
    ) -> None:
        sandbox.control.fail(START, kind="drop", done=done)
        start(task, tries=2, retry_unknown_outcome=True, clock=quick_clock())

        assert starts(sandbox) == sent
        assert len(sandbox.control.task(task["task_id"])["runs"]) == 2

    @pytest.fixture
    def killed(self, task: dict[str, Any]) -> Callable[..., tuple[Any, Store]]:
        """Gives the operator, and what is stored of a start during which its process was killed."""

        def kill(**arguments: Any) -> tuple[WebCollectStartSubTasksOperator, Store]:
            usual = {"wait_for_completion": False, "clock": quick_clock()}
            operator = make_start(task, **{**usual, **arguments})
            before = Baseline.of(WebCollectHook().get_task_statuses_v2([task["task_id"]])[0])
            idle = [each["subtask_id"] for each in task["subtasks"]][1 if before.running else 0 :]
            result = {
                "collection_task_id": task["task_id"],
                "started": idle,
                "after": msgspec.to_builtins(before),
            }
            return operator, killed_during(result, began=time.time())

        return kill

    def test_a_start_that_took_effect_and_is_not_shown_yet_is_not_sent_again(
        self, sandbox: Sandbox, task: dict[str, Any], killed: Callable[..., tuple[Any, Store]]
    ) -> None:
        # neither the status nor the sub-tasks show it at the first two looks
        all_ids = [subtask["subtask_id"] for subtask in task["subtasks"]]
        sleeps: list[None] = []

        def show() -> None:
            sleeps.append(None)
            if len(sleeps) == 2:
                WebCollectHook().start_subtasks(task["task_id"], all_ids)

        operator, store = killed(clock=quick_clock(on_sleep=show))

        assert execute(operator, task_state_store=store)["started"] == all_ids
        assert len(sleeps) == 2
        assert starts(sandbox) == 1

    def test_an_answer_from_before_is_not_taken_for_a_start_that_took_effect(
        self, sandbox: Sandbox, killed: Callable[..., tuple[Any, Store]]
    ) -> None:
        operator, store = killed()
        # as another server of the service may answer, which has not seen the latest run yet
        sandbox.control.configure(executed_times_offset=-1)
        execute(operator, task_state_store=store)

        assert starts(sandbox) == 1

    @pytest.mark.parametrize("again", [False, True])
    def test_a_start_that_joined_a_run_and_may_have_ended_is_not_repeated_unless_asked_for(
        self,
        sandbox: Sandbox,
        task: dict[str, Any],
        killed: Callable[..., tuple[Any, Store]],
        again: bool,
    ) -> None:
        sandbox.control.configure(run_seconds=10_000, stale_seconds=0)
        going_on, *ours = [subtask["subtask_id"] for subtask in task["subtasks"]]
        WebCollectHook().start_subtasks(task["task_id"], [going_on])
        # the other sub-tasks are idle, as before it or already again
        operator, store = killed(retry_unknown_outcome=again)
        if again:
            assert execute(operator, task_state_store=store)["started"] == ours
        else:
            with pytest.raises(AirflowFailException, match="beside another run"):
                execute(operator, task_state_store=store)

        assert starts(sandbox) == 1 + again

    def test_the_end_of_the_run_that_it_joined_does_not_show_that_it_took_effect(
        self, sandbox: Sandbox, task: dict[str, Any], killed: Callable[..., tuple[Any, Store]]
    ) -> None:
        sandbox.control.configure(run_seconds=10_000, stale_seconds=0, counted_runs="ended")
        all_ids = [subtask["subtask_id"] for subtask in task["subtasks"]]
        WebCollectHook().start_subtasks(task["task_id"], all_ids[:1])
        operator, store = killed(retry_unknown_outcome=True)
        sandbox.control.advance(20_000)

        assert execute(operator, task_state_store=store)["started"] == all_ids
        assert starts(sandbox) == 2

    @pytest.mark.parametrize("interrupted", [False, True])
    def test_somebody_elses_start_is_not_taken_for_one_that_had_no_effect(
        self, sandbox: Sandbox, task: dict[str, Any], interrupted: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sandbox.control.configure(run_seconds=10_000)
        first, *others = [subtask["subtask_id"] for subtask in task["subtasks"]]
        operator, store = make_start(task, wait_for_completion=False, retry_unknown_outcome=True), Store()
        if interrupted:
            sandbox.control.fail(START, status=429, headers={"Retry-After": "1"})
            paused, sleep = threading.Event(), Stop.sleep

            def sleep_until_the_end(stop: Stop, seconds: float) -> None:
                paused.set()
                sleep(stop, PATIENCE)

            monkeypatch.setattr(Stop, "sleep", sleep_until_the_end)
            with signalled_when(paused.is_set, AirflowTaskTimeout), pytest.raises(AirflowTaskTimeout):
                execute(operator, task_state_store=store)
            monkeypatch.setattr(Stop, "sleep", sleep)
        else:
            sandbox.control.fail(START, status=400, code="TaskExecuting")
            with pytest.raises(WebCollectError):
                execute(operator, task_state_store=store)
        WebCollectHook().start_subtasks(task["task_id"], [first])
        result = execute(operator, task_state_store=store)

        assert (result["already_active"], result["started"]) == ([first], others)
        states = {each["status"] for each in sandbox.control.task(task["task_id"])["subtasks"]}
        assert states <= {"Waiting", "Sent", "Extracting"}
        assert store == {}

    def test_after_an_unknown_outcome_nothing_is_remembered(
        self, sandbox: Sandbox, task: dict[str, Any]
    ) -> None:
        sandbox.control.fail(START, kind="drop", done=True)
        store = Store()
        with pytest.raises(
            AirflowFailException,
            match=f"The status of task {task['task_id']} shows whether its sub-tasks run",
        ):
            start(task, store=store)

        assert store == {}


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
        store = Store()

        assert start(task, store=store, **given) == {
            "collection_task_id": task["task_id"],
            "started": given["sub_task_ids"][:2],
            "already_active": [],
            "after": None,
        }
        assert sandbox.control.task(task["task_id"])["runs"][-1]["started_subtasks"] == 2
        assert [request["path"] for request in sandbox.control.requests()] == [START]
        assert "The connection has only an API key, so the status of task" in said()
        assert store == {}

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
    ) -> None:
        with pytest.raises(AirflowFailException, match=f"the connection has only an API key, and {what}"):
            start(task, **{**given, **arguments})

        assert sandbox.control.requests() == []

    @pytest.mark.beyond_the_contract
    @pytest.mark.webcollect_sandbox(speed=1000, api_key_everywhere=True, enforce_limits=False)
    def test_a_key_that_is_taken_everywhere_does_as_a_token_does(
        self, sandbox: Sandbox, task: dict[str, Any], set_connection: Callable[..., None]
    ) -> None:
        set_connection(extra={"api_key": sandbox.api_key, "api_key_everywhere": True})

        assert start(task)["status"]["executed_times"] == 2

    @pytest.mark.parametrize("again", [False, True])
    @pytest.mark.parametrize("lost", ["the answer", "the process"])
    def test_a_start_of_unknown_outcome_is_not_repeated_unless_asked_for(
        self, sandbox: Sandbox, task: dict[str, Any], given: dict[str, Any], lost: str, again: bool
    ) -> None:
        store, tries = Store(), 1
        if lost == "the answer":
            sandbox.control.fail(START, kind="drop", done=True)
            tries += again
        else:
            store = killed_during({"started": given["sub_task_ids"], "after": None})
        sent = starts(sandbox) + again + (lost == "the answer")
        if again:
            result = start(task, tries=tries, store=store, **given, retry_unknown_outcome=True)
            assert result["after"] is None
        else:
            with pytest.raises(AirflowFailException, match="Clear the task to repeat it"):
                start(task, store=store, **given)

        assert (starts(sandbox), store) == (sent, {})

    def test_a_start_without_a_look_is_not_waited_for_either_once_there_is_a_token(
        self, sandbox: Sandbox, task: dict[str, Any], set_connection: Callable[..., None]
    ) -> None:
        set_connection()
        store = killed_during({"started": [], "after": None}, sent=True)

        with pytest.raises(AirflowFailException, match="without the status from before"):
            start(task, store=store)
        assert sandbox.control.requests() == []

    def test_a_start_without_a_look_that_took_effect_is_known_to_a_retry(
        self, sandbox: Sandbox, task: dict[str, Any], given: dict[str, Any]
    ) -> None:
        result = {"started": given["sub_task_ids"], "after": None}

        assert start(task, store=killed_during(result, sent=True), **given) == result
        assert sandbox.control.requests() == []


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"poll_interval": 0}, "poll_interval"), ({"failure_states": "Stopped"}, "failure_states")],
)
def test_wrong_arguments_fail_while_the_dag_is_parsed(arguments: dict[str, Any], name: str) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=name):
        WebCollectStartSubTasksOperator(task_id="wrong", collection_task_id="t", **arguments)


@pytest.mark.at_night
def test_a_start_that_is_refused_for_now_is_retried(sandbox: Sandbox, task: dict[str, Any]) -> None:
    sandbox.control.fail(START, status=400, code="TaskExecuting")
    run = start_in_dag(task, wait_for_completion=False)

    assert (run.states, run.tries) == ({"start": "success"}, {"start": 2})
