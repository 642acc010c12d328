"""Links in Airflow's UI, and assets of the service, as Airflow finds them through the provider's metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.providers.common.compat.sdk import Asset
from airflow.providers_manager import ProvidersManager

from airflow_provider_webcollect.assets import create_asset, sanitize_uri
from airflow_provider_webcollect.links import WebCollectExportLink, WebCollectTaskLink
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectGetActionsOperator,
    WebCollectMarkExportedOperator,
    WebCollectStartSubTasksOperator,
)
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import FinishedRun, make_dag, run_dag, serialized
from tests.airflow.executions import Task, execute

TEMPLATE = "https://service.example/tasks/{task_id}?tab=data"
FOLDERS = "https://storage.example/{bucket}/{path}/?x={y}"


def shown(dag: Any, run: FinishedRun, task_id: str, name: str = "Collection task") -> str | None:
    """Return a link as the web interface gets it: from the serialized DAG."""
    from airflow.models.taskinstancekey import TaskInstanceKey

    link = serialized(dag).get_task(task_id).operator_extra_link_dict[name]
    key = TaskInstanceKey(dag.dag_id, task_id, run.run_id, map_index=-1)
    return link.get_link(operator=dag.get_task(task_id), ti_key=key) or None


@pytest.mark.usefixtures("airflow_database", "connected")
@pytest.mark.webcollect_sandbox(speed=1000, enforce_limits=False)
class TestLinks:
    def test_they_lead_to_the_pages_of_task_and_folder(
        self, sandbox: Sandbox, task: Any, set_connection: Any, destination: str, said: Any
    ) -> None:
        templates = {"task_url_template": TEMPLATE, "export_url_template": FOLDERS}
        set_connection(extra={"refresh_token": sandbox.refresh_token, **templates})
        id_ = task["task_id"]
        with make_dag(params={"id": id_}) as dag:
            WebCollectMarkExportedOperator(task_id="confirm", collection_task_id="{{ params.id }}")
            waits: dict[str, Any] = {"wait_for_completion": True, "deferrable": True, "poll_interval": 0.2}
            wait = WebCollectStartSubTasksOperator(task_id="wait", collection_task_id=id_, **waits)
            WebCollectMarkExportedOperator(task_id="fail", collection_task_id="not / there")
            sources: dict[str, dict[str, Any]] = {
                # the link is without the white space of the template
                "one": {"collection_task_id": " {{ params.id }} \n"},
                "many": {"sources": [id_]},
            }
            for name, which in sources.items():
                folder = f"{destination} at {{{{ '1' }}}}/{name}"
                # not after the run of `wait`: a run that has just ended may still add rows
                WebCollectToObjectStorageOperator(task_id=name, destination=folder, **which) >> wait
        run = run_dag(dag)

        assert run.states == dict.fromkeys(("confirm", "wait", "one", "many"), "success") | {"fail": "failed"}
        tasks = {name: shown(dag, run, name) for name in run.states}
        folders = {name: shown(dag, run, name, "Landed rows") for name in ("one", "many")}
        assert "XCom not found" not in said()
        page = TEMPLATE.format(task_id=id_)
        assert tasks == {
            **dict.fromkeys(("confirm", "wait", "one"), page),
            "fail": "https://service.example/tasks/not%20%2F%20there?tab=data",
            # many sources have no single task to link to
            "many": None,
        }
        place = f"https://storage.example/{destination.removeprefix('file://')}%20at%201"
        assert folders == {name: f"{place}/{name}/?x={{y}}" for name in ("one", "many")}

    def test_nothing_is_stored_where_there_is_nothing_to_link(self, task: Task) -> None:
        pushed: list[str] = []
        ti = SimpleNamespace(xcom_push=lambda key, value: pushed.append(key))
        execute(WebCollectGetActionsOperator(task_id="read", collection_task_ids=[task["task_id"]]), ti=ti)
        assert pushed == []


@pytest.mark.parametrize("url", ["javascript:alert(1)", " javascript:alert(1)", "data:text/html,x", "//x"])
def test_what_is_no_web_address_is_never_a_link(url: str) -> None:
    operator: Any = SimpleNamespace()
    context: Any = {"task": operator, "ti": SimpleNamespace(xcom_push=lambda **stored: None)}
    WebCollectTaskLink.store(context, url)
    assert WebCollectTaskLink().get_link(operator, ti_key=None) == ""


def test_airflow_knows_the_links() -> None:
    class_names = ProvidersManager().extra_links_class_names
    for link in (WebCollectTaskLink, WebCollectExportLink):
        assert f"{link.__module__}.{link.__name__}" in class_names


class TestAssets:
    def test_all_spellings_of_a_tasks_asset_are_one(self) -> None:
        asset = create_asset(collection_task_id="a/b c", webcollect_conn_id="main")
        assert asset.uri == "webcollect://main/a%2Fb%20c"
        assert Asset(asset.uri).uri == asset.uri
        assert Asset("webcollect://main/task/").uri == "webcollect://main/task"
        assert create_asset(collection_task_id="t", lotno="7").uri == "webcollect://webcollect_default/t/7"

    @pytest.mark.parametrize(
        "uri",
        ["webcollect://main", "webcollect:///task", "webcollect://main/a/b/c", "webcollect://main/a?x=1"],
    )
    def test_what_names_no_task_is_refused(self, uri: str) -> None:
        with pytest.raises(ValueError, match="a webcollect asset is"):
            sanitize_uri(urlsplit(uri))
