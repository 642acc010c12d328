"""Shared by all tests of Airflow: marks, and executing an operator as a worker does, without a DAG run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

#: A collection task, as the sandbox describes it.
Task = dict[str, Any]
#: The fixture `set_connection`.
Connect = Callable[..., None]
#: The fixture `said`.
Said = Callable[[], str]
#: The fixture `counted`.
Counted = Callable[[], dict[str, int]]


class Metric(NamedTuple):
    """A value that was sent as one of Airflow's metrics."""

    kind: str
    name: str
    value: Any
    tags: dict[str, str]


_numbers = itertools.count(1)


def on_sandbox(*fixtures: str, **settings: Any) -> list[pytest.MarkDecorator]:
    """Return the marks of tests that work on a sandbox through the usual connection.

    :param fixtures: names of further fixtures that the tests use.
    :param settings: settings of the sandbox, which by default enforces no limits.
    """
    return [
        pytest.mark.usefixtures("airflow_database", "connected", *fixtures),
        pytest.mark.webcollect_sandbox(**{"enforce_limits": False, **settings}),
    ]


def loop_of(task: Task | str, *items: str) -> dict[str, Any]:
    """Return new items for a task's loop, or for the step with an id, as operators and files take them."""
    action_id = task if isinstance(task, str) else task["actions"][0]["action_id"]
    return {"action_id": action_id, "loop_type": "TextList", "loop_items": [*items]}


class Store(dict[str, Any]):
    """The state store of a task, which lasts from one try to the next."""

    set = dict.__setitem__
    delete = dict.pop


def execute(
    operator: Any, *, tries: int = 1, run_id: str | None = None, max_tries: int = 2, **context: Any
) -> Any:
    """Render an operator's templates, execute it, and return its result.

    :param tries: number of tries; all but the last must fail with an error that Airflow retries.
    :param run_id: id of the DAG run; by default, a new one.
    :param max_tries: ``max_tries`` of the task instance; Airflow raises it when a person clears the task.
    :param context: entries to add to the usual context, or to replace in it.
    """
    names = {"dag_id": "dag", "task_id": operator.task_id, "run_id": run_id or f"run_{next(_numbers)}"}
    ti = {**names, "map_index": -1, "max_tries": max_tries, "xcom_push": lambda **stored: None}
    context = {"task_state_store": Store(), **context}
    for number in range(1, tries):
        # each try is a process of its own, with its own copy of the operator
        task = operator.prepare_for_execution()
        with pytest.raises(Exception) as failed:  # noqa: PT011  # whatever Airflow retries
            _execute_try(task, {"ti": SimpleNamespace(**ti, try_number=number), **context})
        assert not isinstance(failed.value, AirflowFailException), failed.value
    return _execute_try(operator, {"ti": SimpleNamespace(**ti, try_number=tries), **context})


def _execute_try(task: Any, context: dict[str, Any]) -> Any:
    context = {"task": task, **context}
    task.render_template_fields(context)
    return task.execute(context)
