"""What all tests of Airflow share: executing an operator as a worker does, without a DAG run, and marks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

#: What the sandbox says of a collection task.
Task = dict[str, Any]
#: Defines the usual connection.
Connect = Callable[..., None]
#: Gives what was logged so far.
Said = Callable[[], str]
#: Gives the sums of the counters so far, by name.
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

    :param fixtures: that they use beside.
    :param settings: of the sandbox, by default without limits.
    """
    return [
        pytest.mark.usefixtures("airflow_database", "connected", *fixtures),
        pytest.mark.webcollect_sandbox(**{"enforce_limits": False, **settings}),
    ]


def loop_of(task: Task | str, *items: str) -> dict[str, Any]:
    """Return new items of a task's loop, or of the step with an id, as operators and files have them."""
    action_id = task if isinstance(task, str) else task["actions"][0]["action_id"]
    return {"action_id": action_id, "loop_type": "TextList", "loop_items": [*items]}


class Store(dict[str, Any]):
    """What Airflow stores for a task, over its tries and when it is cleared."""

    set = dict.__setitem__
    delete = dict.pop


def execute(
    operator: Any, *, tries: int = 1, run_id: str | None = None, max_tries: int = 2, **context: Any
) -> Any:
    """Render an operator's templates, execute it, and return its result.

    :param tries: each but the last must fail in such a way that Airflow retries the task.
    :param run_id: by default that of a new run.
    :param max_tries: grows when a person clears the task.
    :param context: what the context holds beside the usual, or instead of it.
    """
    names = {"dag_id": "dag", "task_id": operator.task_id, "run_id": run_id or f"run_{next(_numbers)}"}
    ti = {**names, "map_index": -1, "max_tries": max_tries, "xcom_push": lambda **stored: None}
    context = {"task_state_store": Store(), **context}
    for number in range(1, tries):
        # in a process of its own, the operator is another one
        task = operator.prepare_for_execution()
        with pytest.raises(Exception) as failed:  # noqa: PT011  # whatever Airflow retries
            _execute_try(task, {"ti": SimpleNamespace(**ti, try_number=number), **context})
        assert not isinstance(failed.value, AirflowFailException), failed.value
    return _execute_try(operator, {"ti": SimpleNamespace(**ti, try_number=tries), **context})


def _execute_try(task: Any, context: dict[str, Any]) -> Any:
    context = {"task": task, **context}
    task.render_template_fields(context)
    return task.execute(context)
