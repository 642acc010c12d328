"""Wrong arguments: refused while the DAG is parsed, or by the task before anything is sent.

`tests/service/test_arguments.py` tests what annotations take, and `tests/service/test_limits.py` the rules of
endpoints' arguments; here, each operator breaks one of them.
"""

from __future__ import annotations

import datetime
import math
import traceback
from datetime import timedelta
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath, TaskGroup

import airflow_provider_webcollect as webcollect
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import execute, loop_of, on_sandbox
from tests.airflow.landings import make_transfer, transfer
from tests.operations import WITH_OPERATOR, operator_of

TODAY = pendulum.now("UTC").date().isoformat()
FOLDER = {"destination": "s3://bucket/prices"}
ONE_TASK = {"task_id": "t", "collection_task_id": "a"}
LOADED = {"landing": "s3://b/a", "table": "a.b"}
DAY = {"task_id": "t", "start": TODAY, "end": TODAY}
LISTS = [loop_of("step", "tea")]
UPDATE = {"collection_task_id": "a", "loop_items": LISTS}
#: What DAGs make (operators, sensors, a trigger), with right arguments.
RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    **{
        operation.name: (operator_of(operation.name), {"task_id": "t", **(operation.operator or {})})
        for operation in WITH_OPERATOR
    },
    "refresh_token": (webcollect.WebCollectRefreshTokenOperator, {"task_id": "t"}),
    "start of several": (
        webcollect.WebCollectStartSubTasksOperator,
        {"task_id": "t", "collection_task_ids": ["a", "b"]},
    ),
    "several updates": (
        webcollect.WebCollectUpdateTaskParametersOperator,
        {"task_id": "t", "updates": [UPDATE]},
    ),
    "query_analytics": (webcollect.WebCollectQueryAnalyticsOperator, DAY),
    "metrics_check": (webcollect.WebCollectMetricsCheckOperator, DAY),
    "discover": (webcollect.WebCollectDiscoverOperator, {"task_id": "t", "collection_tasks": "/tasks.yaml"}),
    "transfer": (make_transfer, {**FOLDER, "source": {"task_id": "a"}}),
    "transfer of many": (make_transfer, FOLDER),
    "transfer into iceberg": (
        make_transfer,
        {"destination": "lake.shop.prices", "source": {"task_id": "a"}, "table_format": "iceberg"},
    ),
    "load": (
        webcollect.WebCollectLoadOperator,
        {"task_id": "t", "landing": "s3://bucket/prices", "warehouse_conn_id": "w", "table": "shop.prices"},
    ),
    "load of many": (
        webcollect.WebCollectLoadOperator,
        {"task_id": "t", "warehouse_conn_id": "w", "sources": [LOADED]},
    ),
    "verify": (webcollect.WebCollectVerifyLandingOperator, {"task_id": "t", **FOLDER}),
    "accept": (webcollect.WebCollectAcceptLandingOperator, {"task_id": "t", **FOLDER}),
    "clean": (webcollect.WebCollectCleanLandingOperator, {"task_id": "t", **FOLDER}),
    "status sensor": (webcollect.WebCollectTaskStatusSensor, ONE_TASK),
    "sub-task sensor": (webcollect.WebCollectSubTaskStatusSensor, ONE_TASK),
    "capacity sensor": (webcollect.WebCollectCapacitySensor, {"task_id": "t"}),
    "trigger": (webcollect.WebCollectTaskFinishedTrigger, {"collection_task_id": "a"}),
}

NO_SCHEME = r"needs a scheme \(s3://bucket/folder\) or an absolute path \(/data/folder\)"
SIGNS = "no control character, and not end with `[?]` or `#`"
DESTINATIONS = [
    ("s4://bucket/prices", "Airflow has no filesystem for the scheme `s4`"),
    ("S3://bucket/prices", "Airflow has no filesystem for the scheme `S3`"),
    ("s3://bucket/a::b", "must not hold `::`"),
    ("/data/a::b", "must not hold `::`"),
    ("s3://", "must name a bucket"),
    ("gs://conn@/prices", "must name a bucket"),
    ("s3n://bucket/prices", "Airflow takes s3://bucket/folder"),
    *(
        (f"{form}/prices", "Airflow takes abfs://connection@container/folder")
        for form in ("az://box", "adl://box", "abfss://box@account.dfs.core.windows.net")
    ),
    ("s3:/bucket/prices", NO_SCHEME),
    *((path, NO_SCHEME) for path in ("my-bucket/prices", "prices", "./prices", "~/prices")),
    ("file://my-bucket/prices", NO_SCHEME),
    *((f"/data/a{sign}", SIGNS) for sign in ("\tb", "\x7fb", "\x9bb", "\u202eb", "?", "#")),
    ("s3://bucket/a?", SIGNS),
    *((f"s3://bucket/{path}", "segment that is empty") for path in ("/a", "a//b", "a/./b", "a/..", "../a")),
]
BASELINES: list[Any] = [
    *("start", "", "null", "[" * 60_000, [], [1], [None], {"executed_times": 1}),
    {"collection_task_id": "a", "after": {}},
    {"collection_task_id": "b", "after": {"executed_times": 1}},
    {"collection_task_id": "a", "after": {"start_execute_time": "yesterday"}},
    {"collection_task_id": "a", "after": {"end_execute_time": "yesterday"}},
]
ICEBERG_IN_PARTITIONS = {"collection_task_id": "a", "destination": "c.n.a", "partition": "dt=1"}
WITH_WRONG_CHECKS = {"collection_task_id": "a", "checks": {"row": {}}}
ONE_TABLE = [
    {"collection_task_id": task, "destination": table}
    for task, table in (("a", "lake.shop.p"), ("b", "other.shop.p"))
]
BATCH_AMONG_TASKS = ["a", {"collection_task_id": "b", "lotno": "1"}]

#: A key of `RIGHT`, wrong arguments, the first of which the error names, and what the error says.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("copy_task", {"task_group_id": "one"}, ""),
    ("copy_tasks", {"collection_task_ids": []}, ""),
    ("copy_tasks", {"on_partial_failure": "hope"}, ""),
    ("move_task", {"task_group_id": None}, ""),
    ("delete_tasks", {"collection_task_ids": []}, ""),
    ("delete_tasks", {"collection_task_ids": "t", "ignore_empty": True}, ""),
    ("delete_task_groups", {"task_group_ids": ["a"]}, ""),
    ("update_task_parameters", {"actions": None, "loop_items": None}, ""),
    ("update_loop_items", {"loop_items": []}, ""),
    ("get_actions", {"collection_task_ids": "t"}, ""),
    ("replace_urls", {"urls": None}, "either `urls` or `urls_path`"),
    ("replace_urls", {"urls": ["https://a"], "urls_path": "/f"}, "either `urls` or `urls_path`"),
    ("replace_urls", {"urls_path": "", "urls": None}, ""),
    ("start_subtasks", {"sub_task_ids": []}, ""),
    ("start_subtasks", {"poll_interval": 0}, ""),
    *(
        (kind, {"collection_task_names": names}, "")
        for kind in ("start_subtasks", "status sensor")
        for names in (["Shop"], {"a": "{# x #}"}, {"a": "Shop\n"}, {"a": ""}, {"a": 7})
    ),
    ("start_subtasks", {"failure_states": "Stopped"}, ""),
    ("start_subtasks", {"no_new_rows_for": 60}, ""),
    ("start_subtasks", {"no_new_rows_for": 0, "wait_for_completion": True}, ""),
    ("start_subtasks", {"collection_task_id": None}, "either `collection_task_id` or `collection_task_ids`"),
    ("start of several", {"sub_task_ids": ["x"]}, "it can only be 'all'"),
    ("start of several", {"wait_for_completion": True}, r"use WebCollectTaskStatusSensor\(collection_task"),
    ("start of several", {"collection_task_id": "a"}, "either `collection_task_id` or `collection_task_ids`"),
    ("start of several", {"collection_task_ids": []}, "at least one entry"),
    ("start of several", {"collection_task_ids": ["a", ""]}, r"\[1\]"),
    ("start of several", {"collection_task_ids": "a"}, "it must be a list"),
    ("several updates", {"updates": []}, "at least one entry"),
    ("several updates", {"updates": ["a"]}, r"\[0\]` is 'a'; it must be a dict with collection_task_id"),
    ("several updates", {"updates": [{"collection_task_id": "a"}]}, r"\[0\]: actions"),
    ("several updates", {"updates": [{**UPDATE, "collection_task_id": ""}]}, r"\[0\].collection_"),
    ("several updates", {"updates": [{**UPDATE, "loop_items": [{}]}]}, r"\[0\]: loop_items\[0"),
    ("several updates", {"updates": [UPDATE] * 2}, r"\[1\]` is 'a'"),
    ("several updates", {"loop_items": LISTS}, "cannot be given with `updates`"),
    ("several updates", {"collection_task_id": "a"}, "cannot be given with `updates`"),
    ("update_task_parameters", {"collection_task_id": None}, ""),
    ("mark_exported", {"collection_task_id": ""}, ""),
    ("mark_exported", {"collection_task_id": None}, ""),
    ("deprecate_data_app", {"app_id": ".."}, ""),
    ("query_analytics", {"start": "yesterday"}, ""),
    ("query_analytics", {"max_xcom_rows": -1}, ""),
    ("query_analytics", {"destination": "s3://bucket/folder/"}, ""),
    ("query_analytics", {"file_format": "xls", "destination": "/f"}, ""),
    ("metrics_check", {"min_success_rate": None}, ""),
    ("metrics_check", {"min_success_rate": 95}, ""),
    ("metrics_check", {"max_volume_drop": -0.1}, ""),
    ("metrics_check", {"max_volume": -1}, ""),
    ("metrics_check", {"max_cost": "10"}, ""),
    ("metrics_check", {"on_violation": "cry", "max_cost": 1}, ""),
    ("discover", {"collection_tasks": "in/this/folder.yaml"}, "must be an absolute path"),
    ("discover", {"merge": "yes"}, ""),
    ("refresh_token", {"renew_after": 1.5}, ""),
    ("refresh_token", {"renew_after": True}, "is True; it must be a share from 0 to 1"),
    ("transfer", {"page_size": 0}, ""),
    ("transfer", {"lotno": " "}, ""),
    *(("transfer", {"destination": path}, rule) for path, rule in DESTINATIONS),
    ("transfer", {"destination": ObjectStoragePath("file:///data/\ud800")}, "a lone surrogate"),
    ("transfer", {"max_part_bytes": 0}, ""),
    ("transfer", {"late_rows_delay": -1}, ""),
    ("transfer", {"if_exists": "append"}, ""),
    ("transfer", {"max_concurrency": 0}, ""),
    ("transfer", {"mode": "append"}, ""),
    ("transfer", {"on_reset": "full", "mode": "full"}, ""),
    ("transfer", {"skip_if_nothing_new": True, "mode": "full"}, ""),
    ("transfer", {"if_exists": "skip", "mode": "incremental"}, ""),
    ("transfer", {"if_exists": "skip", "mode": None}, ""),
    ("transfer", {"compression": "snappy"}, ""),
    ("transfer", {"partition": "dt=2026-01-01T00:00:00"}, ""),
    ("transfer", {"table_format": "hudi"}, "is 'hudi'"),
    ("transfer", {"file_format": "csv", "table_format": "delta"}, "requires 'parquet'"),
    ("transfer", {"column_types": {"a": "int"}, "table_format": "delta"}, ""),
    ("transfer", {"checks": {"row": {}}}, "is 'row'"),
    ("transfer", {"on_failed_checks": "ignore"}, "is 'ignore'"),
    ("transfer", {"whole_runs_key": "sku", "mode": "incremental", "columns": ["url"]}, "be one of url"),
    ("transfer", {"whole_runs_key": ["url", "url"], "mode": "incremental"}, "be named only once"),
    ("transfer", {"whole_runs_key": {"url": 1}, "mode": "incremental"}, "it must be a list"),
    ("transfer", {"whole_runs_key": "url", "mode": "full"}, "mode='incremental'"),
    ("transfer", {"whole_runs_key": "url", "mode": None, "lotno": "1"}, "mode='incremental'"),
    ("transfer of many", {"sources": []}, ""),
    ("transfer of many", {"collection_task_id": "b", "sources": ["a"]}, ""),
    ("transfer of many", {"sources": "a"}, ""),
    ("transfer of many", {"sources": [{"task": "a"}]}, r"\[0\]"),
    ("transfer of many", {"sources": [WITH_WRONG_CHECKS]}, r"\[0\]: checks"),
    ("transfer of many", {"sources": [{"collection_task_id": ""}]}, r"\[0\].collection_task_id"),
    ("transfer of many", {"sources": ["a", "a"]}, r"\[0\]"),
    ("transfer of many", {"sources": ["a", {"collection_task_id": "a", "lotno": "1"}]}, r"\[1\]"),
    ("transfer of many", {"sources": ["t", {"collection_task_id": "u", "destination": "b/u"}]}, "is 'b/u'"),
    ("transfer of many", {"on_reset": "full", "sources": BATCH_AMONG_TASKS, "mode": None}, "of a batch"),
    *(
        ("transfer of many", {"sources": ["a", {"collection_task_id": "b", **own}]}, rf"\[1\]{rule}")
        for own, rule in (
            ({"page_size": 0}, ": page_size` is 0; it must be an integer"),
            ({"column_types": {"a": "int"}}, r": column_types\['a'\]` is 'int'; it must be one of"),
            ({"mode": "full", "whole_runs_key": "url"}, ": whole_runs_key` is 'url'; it requires"),
            ({"retries": 3}, r"` is \['retries'\]; its keys can be collection_task_id"),
        )
    ),
    (
        "transfer into iceberg",
        {"sources": ONE_TABLE, "collection_task_id": None},
        r"\[[01]\]`.*must not be in the folder of",
    ),
    ("transfer into iceberg", {"sources": ["a"], "collection_task_id": None}, r"\[0\].destination` is None"),
    ("transfer into iceberg", {"destination": "shop.prices"}, "is named catalog.namespace.table"),
    ("transfer into iceberg", {"destination": "s3://bucket/prices"}, "is named catalog.namespace.table"),
    ("transfer into iceberg", {"partition": "dt=2026-01-01"}, "must be None for an Iceberg table"),
    (
        "transfer into iceberg",
        {"sources": [ICEBERG_IN_PARTITIONS], "collection_task_id": None},
        r"\[0\]: partition.* must be None for an Iceberg table",
    ),
    ("transfer into iceberg", {"object_storage_conn_id": "aws"}, "the credentials of an Iceberg table"),
    ("transfer into iceberg", {"file_format": "csv"}, "is 'csv'; table_format='iceberg' requires 'parquet'"),
    ("load", {"table": "prices"}, ""),
    ("load", {"landing": "my-bucket/prices"}, ""),
    ("load", {"warehouse_conn_id": ""}, ""),
    ("load", {"on_gone": "delete"}, ""),
    ("load of many", {"landing": "s3://b/a"}, "is 's3://b/a'; it cannot be given with `sources`"),
    ("load of many", {"sources": []}, "it must hold at least one"),
    *(
        ("load of many", {"sources": [source]}, rf"\[0\]{rule}")
        for source, rule in (
            ("s3://b/a", "` is 's3://b/a'; it must be a dict"),
            ({"landing": "s3://b/a"}, ": table` is None"),
            ({**LOADED, "primary_key": "url"}, ": primary_key` is 'url'; it requires write_disposition="),
            ({**LOADED, "lotno": "1"}, ": lotno` is '1'; there is no such option"),
        )
    ),
    (
        "load of many",
        {"sources": [LOADED, {**LOADED, "landing": "s3://b/c", "write_disposition": "replace"}]},
        r"\[1\]: table` is 'a.b'; sources\[0\] has the same table: write_disposition='replace'",
    ),
    (
        "load of many",
        {"sources": [LOADED, {**LOADED, "landing": f"{LOADED['landing']}/".replace("s3:", "s3a:")}]},
        r"\[1\]: landing` is 's3a://.*'; sources\[0\] loads it into the same table",
    ),
    ("verify", {"destination": ""}, ""),
    ("accept", {"decision": "keep"}, ""),
    ("accept", {"commit": None, "decision": "discard"}, ""),
    ("accept", {"commit": 0}, ""),
    ("clean", {"older_than": -1}, ""),
    ("clean", {"dry_run": "no"}, ""),
    ("status sensor", {"collection_task_id": None}, "either `collection_task_id` or `collection_task_ids`"),
    ("status sensor", {"collection_task_id": "a", "collection_task_ids": ["b"]}, "either `collection_task"),
    ("status sensor", {"collection_task_id": ""}, ""),
    ("status sensor", {"collection_task_ids": [], "collection_task_id": None}, ""),
    ("status sensor", {"wait_for": "some"}, ""),
    ("status sensor", {"target_states": []}, ""),
    ("status sensor", {"failure_states": [""]}, ""),
    ("status sensor", {"status_delay": -1}, ""),
    ("status sensor", {"after": "now", "mode": "reschedule", "deferrable": False}, "use deferrable=True"),
    *(
        ("status sensor", {"no_new_rows_for": limit}, "seconds or a timedelta above 0")
        for limit in (0, -1, True, "60", math.inf, datetime.timedelta(0))
    ),
    *(("status sensor", {"after": after}, "") for after in BASELINES),
    ("sub-task sensor", {"collection_task_id": ""}, ""),
    ("sub-task sensor", {"sub_task_ids": []}, ""),
    ("sub-task sensor", {"missing_timeout": "soon"}, ""),
    ("capacity sensor", {"max_active_tasks": None}, ""),
    ("capacity sensor", {"max_active_tasks": 0}, ""),
    ("trigger", {"collection_task_id": None}, "is None"),
    ("trigger", {"collection_task_id": "a", "collection_task_ids": ["b"]}, "is 'a'"),
    ("trigger", {"collection_task_ids": [], "collection_task_id": None}, ""),
    ("trigger", {"states": []}, ""),
    ("trigger", {"states": ["Extracting"]}, "is 'Extracting'"),
    *(("trigger", {"poke_interval": wrong}, f"is {wrong!r}") for wrong in (0, "60")),
    ("trigger", {"webcollect_conn_id": ""}, "is ''"),
]
#: The first wrong arguments of each operator that calls the service.
ONE_OF_EACH = {kind: wrong for kind, wrong, _ in reversed(WRONG) if hasattr(RIGHT[kind][0], "perform")}


def make(kind: str, **arguments: Any) -> Any:
    """Make an entry of `RIGHT` with right arguments, except those given."""
    factory, right = RIGHT[kind]
    return factory(**{**right, **arguments})


@pytest.mark.parametrize(("kind", "wrong", "rule"), WRONG)
def test_a_literal_one_fails_while_the_dag_is_parsed(kind: str, wrong: dict[str, Any], rule: str) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=rf"`{next(iter(wrong))}.*{rule}"):
        make(kind, **wrong)


class TestWhileTheTaskRuns:
    pytestmark = on_sandbox()

    @pytest.mark.parametrize(("kind", "wrong"), ONE_OF_EACH.items())
    def test_a_rendered_one_sends_nothing(self, sandbox: Sandbox, kind: str, wrong: dict[str, Any]) -> None:
        operator, right = RIGHT[kind]
        arguments = {**right, **wrong}
        with make_dag():
            mapped = operator.partial(task_id="mapped").expand_kwargs([{**arguments, "task_id": "mapped"}])
        tasks = [mapped.unmap(arguments)]
        # one template defers all checks, except checks of names, and of arguments that no template can set
        at_parse = {"collection_task_id", "renew_after", "poll_interval", "min_success_rate"}
        if not at_parse & wrong.keys():
            tasks.append(operator(**arguments, webcollect_conn_id="{{ 'webcollect_default' }}"))
        for task in tasks:
            with pytest.raises(AirflowFailException, match=f"`{next(iter(wrong))}"):
                execute(task)
        assert sandbox.control.requests() == []

    @pytest.mark.parametrize(
        "wrong",
        [
            {"page_size": 0},
            {"destination": "{{ 's4' }}://bucket/prices"},
            {"partition": "{{ 'dt=' }}"},
            {"mode": "incremental", "columns": ["url"], "whole_runs_key": "{{ 'sku' }}"},
        ],
    )
    def test_a_wrong_landing_sends_nothing(
        self, sandbox: Sandbox, destination: str, wrong: dict[str, Any]
    ) -> None:
        usual = {"destination": destination, "webcollect_conn_id": "{{ 'webcollect_default' }}"}
        with pytest.raises(AirflowFailException, match=f"`{[*wrong][-1]}"):
            transfer(**{"collection_task_id": "a", **usual, **wrong})
        assert sandbox.control.requests() == []

    def test_one_of_a_load_that_is_rendered_fails_its_task(self) -> None:
        with pytest.raises(AirflowFailException, match="`table` is 'prices'"):
            execute(make("load", table="{{ 'prices' }}"))

    def test_a_mapped_one_fails_once_and_its_callback_is_called(self, sandbox: Sandbox) -> None:
        ended: list[str] = []
        note = {"on_failure_callback": lambda context: ended.append(context["ti"].task_id)}

        def mark(task_id: str) -> None:
            mark = webcollect.WebCollectMarkExportedOperator
            mapped = mark.partial(task_id=task_id, retries=2, retry_delay=timedelta(0), **note)
            mapped.expand(collection_task_id=[""])

        with make_dag() as dag:
            mark("alone")
            with TaskGroup("group"):
                mark("in")
        run = run_dag(dag)

        assert run.states == {"alone[0]": "failed", "group.in[0]": "failed"}
        assert run.tries == {"alone[0]": 1, "group.in[0]": 1}
        assert sorted(ended) == ["alone", "group.in"]
        assert sandbox.control.requests() == []


def test_a_literal_one_is_checked_everywhere() -> None:
    refused = pytest.raises(InvalidArgument, match="`collection_task_id`")
    with refused:
        make("mark_exported", collection_task_id="")
    with make_dag(), TaskGroup("group"), refused:
        make("mark_exported", collection_task_id="")
    with make_dag(), pytest.raises(InvalidArgument, match="`renew_after"):
        make("refresh_token", renew_after=2, webcollect_conn_id="{{ params.c }}")


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("status sensor", {"wait_for": "both", "after": "{{ x }}"}),
        ("status sensor", {"target_states": ["Finish"], "after": "{{ x }}"}),
        ("status sensor", {"no_new_rows_for": -1, "after": "{{ x }}"}),
        ("status sensor", {"collection_task_id": "", "after": "{{ x }}"}),
        ("sub-task sensor", {"missing_timeout": -1, "sub_task_ids": "{{ x }}"}),
        ("sub-task sensor", {"collection_task_id": "", "sub_task_ids": "{{ x }}"}),
        ("start_subtasks", {"poll_interval": -4, "sub_task_ids": "{{ x }}"}),
        ("metrics_check", {"on_violation": "wran", "max_cost": 1, "end": "{{ ds }}"}),
    ],
)
def test_a_literal_one_is_checked_beside_a_template(kind: str, wrong: dict[str, Any]) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=f"`{next(iter(wrong))}"):
        make(kind, **wrong)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("start_subtasks", "sub_task_ids"), ("status sensor", "after"), ("transfer", "destination")],
)
def test_a_function_is_left_to_airflow_to_call(kind: str, name: str) -> None:
    with make_dag():
        make(kind, **{name: lambda context, jinja_env: None})


def test_the_error_says_in_which_task_it_stands() -> None:
    with make_dag(), pytest.raises(InvalidArgument) as error:
        make("transfer", mode="append")
    assert "in the task land" in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize(
    ("destination", "rule"),
    [("file:///data/a::b", "must not hold `::`"), ("my-bucket/prices", NO_SCHEME)],
)
def test_a_destination_that_is_a_path_is_checked_too(destination: str, rule: str) -> None:
    path = ObjectStoragePath(destination)
    if str(path) == f"/{destination}":
        pytest.skip("the path of Airflow 2 is absolute")
    with make_dag(), pytest.raises(InvalidArgument, match=rule):
        make("transfer", destination=path)
