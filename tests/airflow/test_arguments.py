"""When arguments are checked: while the DAG is parsed, or by the task where they are not known before."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskGroup
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.operators.webcollect import WebCollectMarkExportedOperator
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import make_dag, run_dag

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

ENDED: list[str] = []


def note_end(context: Any) -> None:
    ENDED.append(context["ti"].task_id)


@pytest.mark.usefixtures("airflow_database", "connected")
def test_a_wrong_one_that_is_mapped_fails_the_task_once_and_its_callback_is_called(sandbox: Sandbox) -> None:
    mapped: dict[str, Any] = {
        "retries": 2,
        "retry_delay": timedelta(0),
        "on_failure_callback": note_end,
    }
    with make_dag() as dag:
        WebCollectMarkExportedOperator.partial(task_id="alone", **mapped).expand(collection_task_id=[""])
        with TaskGroup("group"):
            WebCollectMarkExportedOperator.partial(task_id="in", **mapped).expand(collection_task_id=[""])
    ENDED.clear()
    run = run_dag(dag)

    assert run.states == {"alone[0]": "failed", "group.in[0]": "failed"}
    assert run.tries == {"alone[0]": 1, "group.in[0]": 1}
    assert sorted(ENDED) == ["alone", "group.in"]
    assert sandbox.control.requests() == []


@pytest.mark.parametrize("places", [[], [make_dag], [make_dag, lambda: TaskGroup("group")]])
def test_a_literal_one_is_checked_while_the_dag_is_parsed(places: list[Callable[[], Any]]) -> None:
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(place())
        with pytest.raises(InvalidArgument, match="`collection_task_id`"):
            WebCollectMarkExportedOperator(task_id="wrong", collection_task_id="")


@pytest.mark.skipif(AIRFLOW_V_3_3_PLUS, reason="Airflow has the argument")
def test_a_retry_policy_is_refused_by_an_airflow_that_has_none() -> None:
    with make_dag(), pytest.raises(AirflowException, match="retry_policy"):
        WebCollectMarkExportedOperator(task_id="a", collection_task_id="t", retry_policy=None)
