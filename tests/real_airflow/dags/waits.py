"""The waits of :mod:`test_start_from_trigger`."""

from datetime import timedelta

from airflow.sdk import Asset, dag, task

from airflow_provider_webcollect.operators.webcollect import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectSubTaskStatusSensor,
    WebCollectTaskStatusSensor,
)

EACH = {"poke_interval": 0.5, "timeout": 600}
ZERO = {**EACH, "start_from_trigger": True}
DEFERRED = {**EACH, "deferrable": True}
RETRIES = {"retries": 1, "retry_delay": timedelta(0)}
# Airflow's scheduler, if it is slow, takes a task whose deferral has ended at once for one that was lost.
MORE_RETRIES = {"retries": 3, "retry_delay": timedelta(seconds=1)}
ENDLESS = "{{ params.endless }}"
STOPPED = "{{ params.stopped }}"
PARAMS = {"endless": "", "stopped": "", "ids": []}


def one(task_id, collection_task_id, **arguments):
    return WebCollectTaskStatusSensor(task_id=task_id, collection_task_id=collection_task_id, **arguments)


@task
def name(params):
    return params["fresh"]


@task
def read(value):
    return {"type": type(value).__name__, "value": value}


@dag(schedule=None, params={"fresh": ""})
def main():
    start = WebCollectStartSubTasksOperator(task_id="start", collection_task_id="{{ params.fresh }}")
    wait = one("wait", "{{ params.fresh }}", after=start.output, **ZERO)
    after = "{{ ti.xcom_pull('start', map_indexes=-1) | tojson }}"
    templated = one("templated", "{{ params.fresh }}", after=after, **ZERO)
    subtasks = WebCollectSubTaskStatusSensor(task_id="subtasks", collection_task_id=name(), **ZERO)
    read(wait.output)
    start >> [templated, subtasks]


@dag(schedule=None, params=PARAMS)
def endings():
    one("stopped", STOPPED, **ZERO)
    one("stopped_with_retries", STOPPED, **ZERO, **RETRIES)
    one("stopped_and_lenient", STOPPED, soft_fail=True, **ZERO)
    one("stopped_and_never_failing", STOPPED, never_fail=True, **ZERO)
    one("late", ENDLESS, **{**ZERO, "timeout": 2})
    one("late_with_retries", ENDLESS, **{**ZERO, "timeout": 2}, **RETRIES)
    one("late_and_lenient", ENDLESS, soft_fail=True, **{**ZERO, "timeout": 2})
    one("wrong", "{{ '' }}", **ZERO)
    one("wrong_with_retries", "{{ '' }}", soft_fail=True, **ZERO, **RETRIES)
    one("executing_too_long", ENDLESS, execution_timeout=timedelta(seconds=2), **ZERO, **RETRIES)
    one("deferred_late", ENDLESS, **{**DEFERRED, "timeout": 5}, **RETRIES)
    one("deferred_late_and_lenient", ENDLESS, soft_fail=True, **{**DEFERRED, "timeout": 5})
    one("deferred_executing_too_long", ENDLESS, execution_timeout=timedelta(seconds=5), **DEFERRED, **RETRIES)


@dag(schedule=None, params=PARAMS)
def workers():
    WebCollectTaskStatusSensor.partial(task_id="mapped", **ZERO, **MORE_RETRIES).expand(
        collection_task_id=["{{ params.ids[0] }}"]
    )
    one("with_outlets", "{{ params.ids[0] }}", outlets=[Asset("seen")], **ZERO, **MORE_RETRIES)
    many = WebCollectTaskStatusSensor(
        task_id="mapped_over", collection_task_ids="{{ params.ids | tojson }}", **ZERO, **MORE_RETRIES
    )
    read.expand(value=many.output)


@dag(schedule=None, params=PARAMS)
def handled():
    one("zero", ENDLESS, **ZERO)
    one("deferred", ENDLESS, **DEFERRED)


@task
def conn_id():
    return "webcollect_default"


@task
def nothing():
    return None


@task
def pick(index, params):
    return params["ids"][index]


@task
def pick_subtasks(params):
    return params["sub_task_ids"]


def alike(name, sensor=WebCollectTaskStatusSensor, **arguments):
    for way, how in {"zero": ZERO, "deferred": DEFERRED}.items():
        sensor(task_id=f"{name}_{way}", **{**how, **MORE_RETRIES, "missing_timeout": 5, **arguments})


@dag(schedule=None, params={"ids": [], "sub_task_ids": [], "now": "now", "empty": ""})
def arguments():
    task_id = "{{ params.ids[0] }}"
    first, second = (pick.override(task_id=f"pick_{index}")(index) for index in (0, 1))
    no_result = nothing()
    subtasks = {"sensor": WebCollectSubTaskStatusSensor, "collection_task_id": first}
    alike("result", collection_task_id=first)
    alike("results", collection_task_ids=[first, second])
    alike("template", collection_task_ids="{{ params.ids | tojson }}")
    alike("subtasks", sub_task_ids=pick_subtasks(), **subtasks)
    alike("conn_id", collection_task_id=task_id, webcollect_conn_id=conn_id())
    alike("no_task", collection_task_id=no_result)
    alike("no_tasks", collection_task_ids=[no_result])
    alike("no_subtasks", sub_task_ids=no_result, **subtasks)
    alike("no_conn_id", collection_task_id=task_id, webcollect_conn_id=no_result)
    alike("now", collection_task_id=task_id, after="{{ params.now }}", timeout=10)
    alike("empty", collection_task_id=task_id, after="{{ params.empty }}")
    # the error is Airflow's own, which is retried as often as a task may be
    alike("undefined", collection_task_id=task_id + "{{ params.typo }}", retries=1)


main()
endings()
workers()
handled()
arguments()
