"""What Airflow shows of a mapped task: what it works on, instead of 0, 1, 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.providers.common.compat.standard.operators import PythonOperator

from airflow_provider_webcollect.operators.webcollect import (
    WebCollectCopyTasksOperator,
    WebCollectDeleteTaskGroupsOperator,
    WebCollectGetActionsOperator,
)
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag, run_dag, run_tasks

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(stale_seconds=0, enforce_limits=False),
]


@pytest.mark.parametrize("native", [False, True])
def test_digits_are_a_name_too(native: bool, sandbox: Sandbox) -> None:
    for group_id in (7, 8, 9):
        sandbox.control.add_task(group_id=group_id)
    run = run_tasks(
        lambda: WebCollectDeleteTaskGroupsOperator.partial(task_id="delete").expand(
            task_group_ids=[[7], [8, 9]]
        ),
        render_template_as_native_obj=native,
    )

    assert run.states == {"delete[0]": "success", "delete[1]": "success"}
    assert run.names == {"delete[0]": "7", "delete[1]": "8, 9"}


def test_what_all_tasks_of_an_operator_share_names_none_of_them(sandbox: Sandbox) -> None:
    id_ = sandbox.control.add_task(lots=[1])["task_id"]
    run = run_tasks(
        lambda: WebCollectGetActionsOperator.partial(task_id="read", collection_task_ids=[id_]).expand(
            action_types=[["LoopAction"], ["NavigateAction"]]
        )
    )

    assert run.states == {"read[0]": "success", "read[1]": "success"}
    assert run.names == {"read[0]": None, "read[1]": None}


def test_what_is_not_set_or_not_read_yet_is_no_part_of_a_name(sandbox: Sandbox, tmp_path: Path) -> None:
    ids = [sandbox.control.add_task(lots=[1], group_id=group_id)["task_id"] for group_id in (7, 8)]
    with make_dag() as dag:
        groups = PythonOperator.partial(task_id="groups", python_callable=lambda text: int(text)).expand(
            op_args=[["7"], ["8"]]
        )
        WebCollectToObjectStorageOperator.partial(task_id="land", destination=f"file://{tmp_path}").expand(
            sources=[[{"collection_task_id": id_, "lotno": None}] for id_ in ids]
        )
        WebCollectCopyTasksOperator.partial(task_id="copy", task_group_ids=groups.output).expand(
            collection_task_ids=[[id_] for id_ in ids]
        )
    run = run_dag(dag)

    assert set(run.states.values()) == {"success"}
    assert [run.names[f"land[{index}]"] for index in range(2)] == ids
    assert [run.names[f"copy[{index}]"] for index in range(2)] == ids
