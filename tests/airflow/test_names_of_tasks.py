"""Names from the file of collection tasks, used in DAGs instead of ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_webcollect import (
    WebCollectAcceptLandingOperator,
    WebCollectCopyTasksOperator,
    WebCollectHook,
    WebCollectMarkExportedOperator,
    WebCollectMetricsCheckOperator,
    WebCollectStartSubTasksOperator,
    WebCollectSubTaskStatusSensor,
    WebCollectTaskFinishedTrigger,
    WebCollectTaskStatusSensor,
    WebCollectVerifyLandingOperator,
    create_asset,
    read_landing,
)
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import InvalidArgument, NotFound
from tests.airflow.executions import Connect, Said, Task, execute, on_sandbox
from tests.airflow.landings import make_transfer, transfer
from tests.airflow.waits import outcome

pytestmark = on_sandbox(stale_seconds=0, speed=1000)

NAME, OTHER = "Shop search", "Deli / 商店"
TODAY = pendulum.now("UTC").date()
WEEK: dict[str, Any] = {"start": TODAY.subtract(days=6).isoformat(), "end": TODAY.isoformat()}

#: Operators and sensors that take tasks, in addition to the table in `tests/airflow/test_operators.py`.
TAKES: dict[str, Callable[[str], Any]] = {
    "mark": lambda name: WebCollectMarkExportedOperator(task_id="t", collection_task_id=name),
    "check": lambda name: WebCollectMetricsCheckOperator(
        task_id="t", collection_task_ids=[name], max_cost=0, per_task=True, on_violation="warn", **WEEK
    ),
    "wait": lambda name: WebCollectTaskStatusSensor(task_id="t", collection_task_id=name),
    "waits": lambda name: WebCollectTaskStatusSensor(task_id="t", collection_task_ids=[name]),
    "wait_for_subtasks": lambda name: WebCollectSubTaskStatusSensor(task_id="t", collection_task_id=name),
}


@pytest.fixture(autouse=True)
def other(sandbox: Sandbox, task: Task, configure_tasks: Callable[..., Path]) -> Task:
    """A second task; the file of collection tasks has the names of both."""
    other = sandbox.control.add_task(lots=[20], subtasks=2, group_id=7)
    ids = {NAME: task["task_id"], OTHER: other["task_id"]}
    configure_tasks(json.dumps([{"id": id_, "name": name} for name, id_ in ids.items()]), ".json")
    return other


class TestOperatorsAndSensors:
    @pytest.mark.parametrize("make", TAKES.values(), ids=TAKES)
    def test_a_name_stands_for_the_id_and_an_unknown_one_is_refused(
        self, make: Callable[[str], Any], sandbox: Sandbox, task: Task
    ) -> None:
        with pytest.raises(InvalidArgument, match="has this name or id; the nearest: 'Shop search'"):
            make("Shop-search")
        assert sandbox.control.requests() == []
        execute(operator := make(NAME.upper()))
        # the argument stays as the DAG has it, for the name of a mapped task
        given = getattr(operator, "collection_task_id", None) or operator.collection_task_ids
        assert given in (NAME.upper(), [NAME.upper()])
        sent = json.dumps(sandbox.control.requests())
        assert task["task_id"] in sent
        assert NAME.upper() not in sent

    def test_an_unknown_rendered_name_fails_before_any_request(self, sandbox: Sandbox) -> None:
        with pytest.raises(AirflowFailException, match="the nearest: 'Shop search'"):
            execute(TAKES["mark"]("{{ 'Shop-search' }}"))
        assert sandbox.control.requests() == []

    def test_a_copy_that_failed_is_named(self, task: Task, configure_tasks: Callable[..., Path]) -> None:
        gone = "0" * 8 + "-0000-4000-8000-" + "0" * 12
        configure_tasks(f"- id: {gone}\n  name: Gone\n")
        ids = [gone, task["task_id"]]
        copy = WebCollectCopyTasksOperator(task_id="t", collection_task_ids=ids, task_group_ids=[7])
        with pytest.raises(AirflowFailException, match=rf"these were not: Gone \({gone}\): "):
            execute(copy)

    def test_the_link_leads_to_the_task(self, sandbox: Sandbox, task: Task, set_connection: Connect) -> None:
        extra = {"refresh_token": sandbox.refresh_token, "task_url_template": "https://s.example/{task_id}"}
        set_connection(extra=extra)
        links: list[str] = []
        for operator in (TAKES["mark"](NAME), TAKES["wait"](NAME)):
            execute(operator)
            links.append(operator.webcollect_task_url)
        assert links == [f"https://s.example/{task['task_id']}"] * 2


class TestGivenNames:
    """The argument ``collection_task_names``."""

    def test_they_go_before_those_of_the_file(self, task: Task, other: Task, said: Said) -> None:
        ids = [task["task_id"], other["task_id"]]
        results = execute(
            WebCollectStartSubTasksOperator(
                task_id="t", collection_task_ids=ids, collection_task_names={ids[0]: "<b>$(shop)</b>"}
            )
        )
        assert [result["collection_task_name"] for result in results] == ["<b>$(shop)</b>", OTHER]
        assert f"of task <b>$(shop)</b> ({ids[0]})" in said()


class TestWaits:
    async def test_the_triggerer_gets_ids_and_what_to_call_them(self, task: Task) -> None:
        start = {"collection_task_id": task["task_id"], "after": {"executed_times": 0}}
        wait = WebCollectTaskStatusSensor(task_id="w", collection_task_id=NAME, after=start, deferrable=True)
        with pytest.raises(TaskDeferred) as deferred:
            execute(wait)

        trigger: Any = deferred.value.trigger
        assert [*trigger.condition["after"]] == trigger.condition["task_ids"] == [task["task_id"]]
        assert (await outcome(trigger))["reason"] == f"{NAME} ({task['task_id']}) is Finished"

    def test_a_start_that_waits_names_the_task(self, task: Task, said: Said) -> None:
        start = WebCollectStartSubTasksOperator(
            task_id="t", collection_task_id=NAME, wait_for_completion=True, poll_interval=0.2
        )
        assert execute(start)["status"]["task_id"] == task["task_id"]
        log = said()
        assert f"Started 3 sub-tasks of task {NAME} ({task['task_id']})" in log
        assert f"{NAME} ({task['task_id']}) is Finished" in log

    def test_a_watcher_watches_the_ids(self, task: Task, other: Task) -> None:
        trigger = WebCollectTaskFinishedTrigger(collection_task_ids=[NAME, OTHER, task["task_id"]])
        assert trigger.collection_task_ids == sorted([task["task_id"], other["task_id"]])
        with pytest.raises(InvalidArgument, match="the nearest"):
            WebCollectTaskFinishedTrigger(collection_task_id="Shop-search")


class TestLandings:
    def test_one_task_is_landed_by_its_name(self, sandbox: Sandbox, task: Task, destination: str) -> None:
        assert transfer(destination, collection_task_id=NAME)["rows"] == 30
        landed = read_landing(destination)
        assert landed.manifest.source.collection_task_id == task["task_id"]
        assert list(landed.iter_rows()) == sandbox.control.true_rows(task["task_id"])

    def test_a_source_names_its_folder(self, task: Task, other: Task, destination: str, said: Said) -> None:
        result = transfer(destination, sources=["shop SEARCH", other["task_id"]])

        assert {source["collection_task_id"]: source["destination"] for source in result["sources"]} == {
            task["task_id"]: f"{destination}/Shop~_search",
            other["task_id"]: f"{destination}/{other['task_id']}",
        }
        assert (
            f"task {NAME} ({task['task_id']}): 30 new rows in 1 part at {destination}/Shop~_search" in said()
        )

    def test_what_has_landed_is_called_by_the_name(self, task: Task, destination: str, said: Said) -> None:
        called = f"{NAME} ({task['task_id']})"
        checks = {"rows": {"min": 100}}
        transfer(destination, task, checks=checks, on_failed_checks="quarantine")
        accept = WebCollectAcceptLandingOperator(task_id="accept", destination=destination)
        execute(accept)
        execute(WebCollectVerifyLandingOperator(task_id="verify", destination=destination))

        log = said()
        assert re.search(rf"accept: 30 rows of .* of task {re.escape(called)}", log)
        assert f"{destination} of task {called} is complete" in log
        with pytest.raises(AirflowFailException, match=rf"^{re.escape(called)}: no quarantined rows"):
            execute(accept, run_id="another")

    @pytest.mark.parametrize("entries", [(NAME, "id"), ("id", NAME), (NAME, {"collection_task_id": "id"})])
    def test_one_task_by_name_and_by_id_is_refused(self, task: Task, entries: tuple[Any, Any]) -> None:
        sources = json.loads(json.dumps(entries).replace('"id"', f'"{task["task_id"]}"'))
        with pytest.raises(InvalidArgument, match=r"sources\[1\].*it is the same task as sources\[0\]"):
            make_transfer("s3://b", sources=sources)
        own = {"collection_task_id": task["task_id"], "destination": "s3://c"}
        make_transfer("s3://b", sources=[NAME, own])

    def test_an_unknown_name_is_refused_while_the_dag_is_parsed(self) -> None:
        sources: list[Any] = [OTHER, {"collection_task_id": "Shop-search"}]
        with pytest.raises(InvalidArgument, match=r"`sources\[1\].collection_task_id` is 'Shop-search'"):
            make_transfer("s3://b", sources=sources)
        with pytest.raises(InvalidArgument, match="`collection_task_id` is 'Shop-search'"):
            make_transfer("s3://b", collection_task_id="Shop-search")

    def test_the_asset_of_a_name_is_that_of_the_id(self, task: Task) -> None:
        asset = create_asset(collection_task_id=NAME)
        assert asset.uri == f"webcollect://webcollect_default/{task['task_id']}"
        with pytest.raises(ValueError, match="the nearest"):
            create_asset(collection_task_id="Shop-search")


#: Calls that send a name to the service if there is no file.
SENDS: dict[str, Callable[[str], Any]] = {
    "an operator": lambda destination: execute(TAKES["mark"](NAME)),
    "an operator on several": lambda destination: execute(
        WebCollectCopyTasksOperator(task_id="t", collection_task_ids=[NAME], task_group_ids=[7])
    ),
    "a landing": lambda destination: transfer(destination, collection_task_id=NAME),
    "the hook": lambda destination: WebCollectHook().mark_exported(NAME),
    "a sensor": lambda destination: execute(
        WebCollectTaskStatusSensor(task_id="t", collection_task_id=NAME, missing_timeout=0, poke_interval=0.1)
    ),
    "a sensor of sub-tasks": lambda destination: execute(
        WebCollectSubTaskStatusSensor(task_id="t", collection_task_id=NAME, poke_interval=0.1)
    ),
}


class TestWithoutAFile:
    @pytest.fixture(autouse=True)
    def no_file(self, other: Task, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AIRFLOW__WEBCOLLECT__COLLECTION_TASKS")

    @pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
    def test_an_unknown_id_may_be_a_name(self, send: Callable[[str], Any], destination: str) -> None:
        hint = (
            "If 'Shop search' is a name, a file of collection tasks must list it: "
            "set `[webcollect] collection_tasks`, or use the id."
        )
        with pytest.raises((AirflowFailException, NotFound), match=re.escape(hint)):
            send(destination)

    def test_a_uuid_is_no_name(self) -> None:
        with pytest.raises(AirflowFailException, match=r"belongs to this account\.$"):
            execute(TAKES["mark"]("00000000-0000-4000-8000-000000000000"))
