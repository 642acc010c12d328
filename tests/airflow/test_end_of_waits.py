"""A wait ends in the same way in all three modes, as the table in ``docs/reference/waiting.md`` says.

At night, the task sensor runs in ``dag.test()``, in all modes. There is no triggerer in it, so the tests end
deferred waits at their timeout as Airflow's triggerer, scheduler and worker would. The other sensors and the
operator run without it where possible, since Airflow ends them by the same errors. By day, so does the task
sensor, and the tests try the first case of each row, poking and deferred, and one case rescheduled.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import re
import signal
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.taskinstance import TaskInstance
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.utils.session import create_session
from sqlalchemy import select, update

from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sensors.webcollect import WebCollectCapacitySensor
from tests.airflow.dag_runs import make_dag, run_dag, run_tasks
from tests.airflow.executions import Connect, Store, Task, on_sandbox
from tests.airflow.waits import MODES, SENSORS, STATUS_PATHS, outcome
from tests.interruption import PATIENCE
from tests.simulation.samples import ALL_HISTORIES

pytestmark = on_sandbox(wait_seconds=0.2, run_seconds=0.4, stale_seconds=0, subtasks=2)

End = tuple[str, int]
#: State and number of tries of an ended task, by the beginning of the table's cell.
ENDS: dict[str, End] = {
    "succeeds": ("success", 1),
    "keeps waiting": ("success", 1),
    "fails without retries": ("failed", 1),
    "fails, and is retried": ("failed", 2),
    "is skipped": ("skipped", 1),
}
LENIENCE: dict[str, dict[str, bool]] = {
    "plain": {},
    "soft_fail": {"soft_fail": True},
    "never_fail": {"never_fail": True},
}
KINDS = {**SENSORS, "capacity": WebCollectCapacitySensor, "start": WebCollectStartSubTasksOperator}
#: The paths that each kind polls.
PATHS = {**STATUS_PATHS, "capacity": "/cloudextraction/task/stats", "start": STATUS_PATHS["task"]}
#: How rows of the table begin.
PASSING = "a passing error"
MISSING = "missing from the responses"
STALLED = "no new rows"
REFUSED = "the service refuses permanently"
#: The sensors that wait for states, and all sensors.
STATES = ("task", "subtask")
SENSORS_ONLY = (*STATES, "capacity")
#: Consecutive faults that fail one poll: a worker's client tries a call 7 times, a triggerer's twice.
FAULTS = {"poke": 8, "reschedule": 8, "deferrable": 2}


def table() -> dict[str, dict[str, End]]:
    """Return what the guide says: for each row the end of the task, plain and with each lenience."""
    guide = (Path(__file__).parents[2] / "docs/reference/waiting.md").read_text()
    _, _, section = guide.partition("\n## What ends a wait\n")
    _, _, *rows = re.findall(r"^\|(.*)\|$", section.partition("\n## ")[0], re.MULTILINE)
    ends_by_row = {}
    for row in rows:
        what, plain, *lenient = (cell.strip() for cell in row.split("|"))
        cells = (plain, *(plain if cell in ("", "the same") else cell for cell in lenient))
        ends = [next(end for begin, end in ENDS.items() if cell.startswith(begin)) for cell in cells]
        ends_by_row[what] = dict(zip(LENIENCE, ends, strict=True))
    return ends_by_row


@dataclass(frozen=True)
class Case:
    """Something that ends a wait, or does not.

    :param row: how its row of the table begins.
    :param kinds: the sensors, and the operator, to which it can happen.
    :param task: the collection task that is waited for, as arguments of ``Control.add_task``.
    :param settings: settings of the sandbox.
    :param fault: the fault of the polls, as arguments of ``Control.fail``.
    :param extra: the extra of the Airflow connection; empty for the usual one, None for no connection.
    :param arguments: arguments of all sensors and the operator.
    :param of_kind: further arguments, by kind.
    """

    row: str
    name: str
    kinds: tuple[str, ...] = tuple(KINDS)
    task: Task = field(default_factory=lambda: {"lots": [1]})
    settings: dict[str, Any] = field(default_factory=dict)
    fault: dict[str, Any] | None = None
    extra: dict[str, Any] | None = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    of_kind: dict[str, dict[str, Any]] = field(default_factory=dict)


#: Seconds of a poll interval that is not slept: the execution timeout passes at once instead.
LONG = 3600.0
SOON = {"missing_timeout": 0.2}
ENDLESS: dict[str, Any] = {"task": {"state": "Extracting"}, "settings": {"run_seconds": 10_000}}
CASES = [
    Case("a target state", "finished"),
    Case(
        "a failure state",
        "stopped",
        (*STATES, "start"),
        task={"state": "Stopped"},
        settings={"run_seconds": 10_000},
        of_kind={"start": {"failure_states": ["Waiting", "Extracting"]}},
    ),
    Case(
        MISSING,
        "missing",
        STATES,
        arguments=SOON,
        of_kind={"task": {"collection_task_id": "no-such"}, "subtask": {"sub_task_ids": ["no-such"]}},
    ),
    Case(MISSING, "unexecuted", STATES, {}, settings={"hide_unexecuted_subtasks": True}, arguments=SOON),
    Case(
        STALLED,
        "stalled",
        ("task", "start"),
        task={"state": "Extracting", "rows": 10},
        settings={"run_seconds": 10_000},
        arguments={"no_new_rows_for": datetime.timedelta(seconds=0.2)},
    ),
    Case(REFUSED, "plan", fault={"status": 403, "code": "PermissionDenied", "times": None}),
    Case(REFUSED, "credential", SENSORS_ONLY, extra={"access_token": "wrong"}),
    Case(REFUSED, "id", ("subtask",), arguments={"collection_task_id": "no-such-task"}),
    Case("`timeout`", "timeout", SENSORS_ONLY, arguments={"timeout": 0.2}, **ENDLESS),
    Case("`execution_timeout`", "execution timeout", ("task", "start"), **ENDLESS),
    Case(
        "a wrong argument",
        "wrong argument",
        of_kind={
            kind: {"max_active_tasks" if kind == "capacity" else "collection_task_id": "{{ '' }}"}
            for kind in KINDS
        },
    ),
    Case(PASSING, "server error", fault={"status": 500}),
    Case(PASSING, "gateway's page", ("task", "start"), fault={"kind": "html"}),
    Case(PASSING, "lost connection", ("task", "start"), fault={"kind": "drop"}),
    Case(PASSING, "unreadable response", ("task", "start"), fault={"kind": "broken_json"}),
    Case("any other error", "no connection", extra=None),
]


def is_by_day(way: str, kind: str, case: Case) -> bool:
    """Return whether it is tried by day: each row's first case, poking by one kind, deferred by another."""
    is_first = next(other for other in CASES if other.row == case.row) is case
    if way == "reschedule":
        # on Airflow 2 the sensor itself looks for the time of its first poke
        return kind == "task" and case.name == "missing"
    if way == "poke":
        # only Airflow can end a task at its execution timeout
        return is_first and kind == case.kinds[0] and case.name != "execution timeout"
    return is_first and kind == case.kinds[-1]


def cells() -> list[Any]:
    return [
        pytest.param(
            way,
            kind,
            case,
            id=f"{case.name}-{kind}-{way}",
            marks=() if is_by_day(way, kind, case) else pytest.mark.at_night,
        )
        for case in CASES
        for kind in case.kinds
        for way in MODES
        if (kind, way) != ("start", "reschedule")
        # an exception in the guide: if rescheduled, the timeout counts for a single poke
        if (case.name, way) != ("execution timeout", "reschedule")
        # sensors refuse `no_new_rows_for` in this mode
        if (case.name, way) != ("stalled", "reschedule")
    ]


@pytest.fixture
def arrange(
    sandbox: Sandbox, set_connection: Connect, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Cause what ends a wait, and return the arguments of the sensor or operator that waits."""

    def arrange(case: Case, kind: str, way: str) -> dict[str, Any]:
        sandbox.control.configure(**case.settings)
        task = sandbox.control.add_task(**case.task)
        if case.extra is None:
            monkeypatch.delenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT")
        elif case.extra:
            set_connection(extra=case.extra)
        if case.fault:
            # the start operator's first query comes before the wait
            fault = {"times": FAULTS[way], "after": int(kind == "start"), **case.fault}
            sandbox.control.fail(PATHS[kind], **fault)
        waits_for = {"max_active_tasks": 1} if kind == "capacity" else {"collection_task_id": task["task_id"]}
        limit: dict[str, Any] = {}
        if case.name == "execution timeout":
            limit = {"execution_timeout": datetime.timedelta(seconds=PATIENCE if way == "poke" else 0.2)}
            limit |= {"poll_interval" if kind == "start" else "poke_interval": LONG}
        return {**waits_for, **limit, **case.arguments, **case.of_kind.get(kind, {})}

    return arrange


def sleep_unless_long(sleep: Callable[[float], None], seconds: float) -> None:
    """Sleep, or raise the signal of a worker's execution timeout."""
    if seconds == LONG:
        signal.raise_signal(signal.SIGALRM)
    sleep(seconds)


def make(kind: str, way: str, arguments: dict[str, Any], task_id: str = "wait") -> Any:
    usual: dict[str, Any] = {"retries": 1, "retry_delay": datetime.timedelta(0)}
    if kind == "start":
        usual |= {"poll_interval": 0.1, "wait_for_completion": True, "deferrable": way == "deferrable"}
    else:
        usual |= {"poke_interval": 0.1, "timeout": PATIENCE, **MODES[way]}
    return KINDS[kind](task_id=task_id, **{**usual, **arguments})


def in_dag_test(kind: str, way: str, arguments_by_name: dict[str, dict[str, Any]]) -> dict[str, End]:
    """Run a wait for each name in one DAG run, and return how each ended, by name."""
    with make_dag() as dag:
        for name, arguments in arguments_by_name.items():
            make(kind, way, arguments, task_id=name)
    run = run_dag(dag)
    return {name: (run.states[name], run.tries[name]) for name in arguments_by_name}


def by_itself(kind: str, way: str, arguments: dict[str, Any]) -> End:
    """Run a wait and its retries without a DAG run, and return how it ended."""
    with make_dag():
        operator = make(kind, way, arguments)
    store = Store()
    for tried in range(1, operator.retries + 2):
        try:
            one_try(operator, {"task_state_store": store}, tried)
        except AirflowSkipException:
            return "skipped", tried
        except (AirflowFailException, AirflowSensorTimeout):
            return "failed", tried
        except (AirflowException, AirflowTaskTimeout):
            continue
        return "success", tried
    return "failed", operator.retries + 1


def one_try(operator: Any, context: dict[str, Any], number: int) -> None:
    """Run one try of a wait as a worker and the triggerer do; raise an exception unless it succeeds."""
    began = datetime.datetime.now(datetime.UTC)
    instance = SimpleNamespace(
        **{"dag_id": operator.dag_id, "task_id": operator.task_id, "run_id": "run", "map_index": -1},
        **{"try_number": number, "max_tries": operator.retries, "xcom_push": lambda **_: None},
        get_first_reschedule_date=lambda context: began,
    )
    operator = operator.prepare_for_execution()
    context = {"task": operator, "ti": instance, **context}
    operator.render_template_fields(context)
    deferred = executed(operator, context)
    if deferred is None:
        return
    method, kwargs = "execute_complete", deferred.kwargs or {}
    limit = deferred.timeout and deferred.timeout.total_seconds()
    try:
        event = asyncio.run(asyncio.wait_for(outcome(deferred.trigger), limit))
    except TimeoutError:
        error = "Trigger timeout" if AIRFLOW_V_3_0_PLUS else "Trigger/execution timeout"
        method, kwargs = "__fail__", {"error": error}
    except AirflowException as failure:
        lines = traceback.format_exception(failure)
        method, kwargs = "__fail__", {"error": "Trigger failure", "traceback": lines}
    else:
        kwargs = {**kwargs, "event": event}
    operator.resume_execution(method, kwargs, context)


def executed(operator: Any, context: Any) -> TaskDeferred | None:
    """Execute an operator until it ends or is deferred; return the deferral, if any."""
    while True:
        try:
            operator.execute(context)
        except TaskDeferred as deferred:
            return deferred
        except AirflowRescheduleException:
            operator = operator.prepare_for_execution()  # every poke is in a process of its own
        else:
            return None


def test_every_row_of_the_table_has_a_case() -> None:
    assert {what for what in table() for case in CASES if what.startswith(case.row)} == set(table())


@pytest.mark.parametrize(("way", "kind", "case"), cells())
def test_what_ends_a_wait_does_so_in_each_way_as_the_guide_says(
    way: str, kind: str, case: Case, arrange: Any, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.name == "execution timeout" and way == "poke" and not AIRFLOW_V_3_0_PLUS:
        pytest.skip("it ends `dag.test()` itself on Airflow 2")
    monkeypatch.setattr("time.sleep", functools.partial(sleep_unless_long, time.sleep))
    (expected,) = (ends for what, ends in table().items() if what.startswith(case.row))
    passes = case.row == PASSING
    if kind == "start" or (passes and (case.name, kind) != ("server error", "task")):
        # the operator has no lenience, and none applies to a fault that passes
        expected = {"plain": expected["plain"]}
    # `dag.test()` does not end a trigger at its timeout, and fails the task if its trigger breaks
    needs_triggerer = case.name in ("timeout", "execution timeout", "no connection")
    in_dag_runs = kind == "task" and ALL_HISTORIES
    if way == "poke":
        needs_airflow = in_dag_runs or case.name == "execution timeout"
    elif way == "reschedule":
        # Airflow 2 looks for earlier pokes in the database
        needs_airflow = in_dag_runs or not AIRFLOW_V_3_0_PLUS
    else:
        needs_airflow = in_dag_runs and not needs_triggerer
    ends: dict[str, End] = {}
    for some in [[name] for name in expected] if passes else [list(expected)]:
        sandbox.control.clear_requests()
        arguments = arrange(case, kind, way)
        arguments_by_name = {name: {**arguments, **LENIENCE[name]} for name in some}
        if needs_airflow:
            ends |= in_dag_test(kind, way, arguments_by_name)
        else:
            with ThreadPoolExecutor() as pool:
                # Airflow 2 executes operators only in the main thread
                apply = pool.map if AIRFLOW_V_3_0_PLUS else map
                ended = apply(functools.partial(by_itself, kind, way), arguments_by_name.values())
                ends |= dict(zip(arguments_by_name, ended, strict=True))
        if passes and ends == expected:
            # all faults have occurred
            assert len(sandbox.control.requests(PATHS[kind])) > FAULTS[way]

    assert ends == expected
    if case.name == "wrong argument":
        assert sandbox.control.requests() == []


def test_a_deferred_wait_whose_time_is_over_ends_as_when_poking() -> None:
    run = run_tasks(lambda: WebCollectCapacitySensor(task_id="wait", max_active_tasks=10))
    of_run = TaskInstance.run_id == run.run_id
    past = datetime.datetime.now(datetime.UTC)
    with create_session() as session:
        session.execute(update(TaskInstance).where(of_run).values(state="deferred", trigger_timeout=past))
    SchedulerJobRunner(job=Job()).check_trigger_timeouts()
    with create_session() as session:
        resumed = session.scalars(select(TaskInstance).where(of_run)).one()
    assert resumed.next_method
    method, minute = resumed.next_method, datetime.timedelta(minutes=1)

    def ending(**arguments: Any) -> type[BaseException]:
        sensor = WebCollectCapacitySensor(task_id="wait", max_active_tasks=1, timeout=90, **arguments)
        # one of Airflow's timeouts is not an Exception
        match = r"not over after (90 s|the execution timeout, 0:01:00)"
        with pytest.raises(BaseException, match=match) as ended:
            sensor.resume_execution(method, resumed.next_kwargs, context={})
        return ended.type

    assert ending() is AirflowSensorTimeout
    assert ending(never_fail=True) is AirflowSensorTimeout
    assert ending(soft_fail=True) is AirflowSkipException
    assert ending(execution_timeout=minute) is AirflowTaskTimeout
    assert ending(execution_timeout=minute, soft_fail=True) is AirflowTaskTimeout
