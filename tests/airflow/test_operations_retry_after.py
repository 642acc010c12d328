"""How long retries wait: as long as the service asks for, where Airflow lets an error say so."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_webcollect import common
from airflow_provider_webcollect.common import LONGEST
from airflow_provider_webcollect.landing.errors import SomeFailed
from airflow_provider_webcollect.operators.webcollect import WebCollectMarkExportedOperator
from airflow_provider_webcollect.sensors.webcollect import WebCollectCapacitySensor
from airflow_provider_webcollect.service.errors import ServiceFailure, TooManyRequests
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag

policies = pytest.importorskip("airflow.sdk.definitions.retry_policy", reason="Airflow before 3.3")
# it is there on Airflow 3.3 and later alone
RetryAfterPolicy = common.RetryAfterPolicy


def decided(error: Exception, try_number: int = 1, **task: Any) -> timedelta | None:
    """Return the delay that the default policy asks for; None if the task's own holds."""
    with make_dag():
        operator = WebCollectMarkExportedOperator(task_id="t", collection_task_id="t", **task)
    context: Any = {"ti": SimpleNamespace(task=operator)}
    decision = operator.retry_policy.evaluate(error, try_number, 3, context)
    if decision.action is policies.RetryAction.DEFAULT:
        return None
    assert decision.action is policies.RetryAction.RETRY
    return decision.retry_delay


def limited(seconds: float | None) -> TooManyRequests:
    return TooManyRequests("slow down", retry_after=seconds)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (limited(90), 90),
        (limited(59), None),
        (limited(None), None),
        (ServiceFailure("down", retry_after=61), 61),
        (limited(1e9), LONGEST),
        (ValueError("not the service's"), None),
        # of many sources, the longest counts
        (
            SomeFailed({"a": limited(90), "b": limited(120), "c": limited(None), "d": OSError("full")}, of=9),
            120,
        ),
        (SomeFailed({"d": OSError("disk full")}, of=9), None),
    ],
)
def test_a_longer_wish_of_the_service_replaces_the_tasks_delay(
    error: Exception, seconds: float | None
) -> None:
    delay = decided(error, retry_delay=timedelta(seconds=60))
    assert delay == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("try_number", "task", "waits"),
    [
        (1, {"retry_exponential_backoff": True}, True),
        (5, {"retry_exponential_backoff": 2.0, "retry_delay": timedelta(60)}, False),
        (10_000, {"retry_exponential_backoff": 2.0}, False),
        (9, {"retry_exponential_backoff": True, "max_retry_delay": timedelta(seconds=70)}, True),
    ],
)
def test_growing_delays_are_taken_into_account(try_number: int, task: dict[str, Any], waits: bool) -> None:
    found = decided(limited(90), try_number, **{"retry_delay": timedelta(seconds=60), **task})
    assert found == (timedelta(seconds=90) if waits else None)


each_base = pytest.mark.parametrize(
    ("operator", "needed"),
    [
        (WebCollectMarkExportedOperator, {"collection_task_id": "t"}),
        (WebCollectCapacitySensor, {"max_active_tasks": 1}),
        (WebCollectToObjectStorageOperator, {"collection_task_id": "t", "destination": "file:///a"}),
    ],
)


@each_base
def test_operators_transfer_and_sensors_wait_as_asked(operator: Any, needed: dict[str, Any]) -> None:
    with make_dag():
        assert isinstance(operator(task_id="a", **needed).retry_policy, RetryAfterPolicy)


@each_base
@pytest.mark.parametrize("own", [policies.ExceptionRetryPolicy(rules=[]), None])
def test_a_policy_of_the_users_own_or_none_stays(operator: Any, needed: dict[str, Any], own: Any) -> None:
    with make_dag():
        given = operator(task_id="a", **needed, retry_policy=own)
        default_of_task = operator(task_id="b", **needed, default_args={"retry_policy": own})
    with make_dag(default_args={"retry_policy": own}):
        default_of_dag = operator(task_id="a", **needed)
        given_beside = operator(task_id="b", **needed, retry_policy=common.RETRY_AFTER)

    assert [each.retry_policy for each in (given, default_of_task, default_of_dag)] == [own] * 3
    assert given_beside.retry_policy is common.RETRY_AFTER


@each_base
def test_mapped_tasks_have_the_policy_too(operator: Any, needed: dict[str, Any]) -> None:
    argument, value = next(iter(needed.items()))
    rest = {name: needed[name] for name in needed if name != argument}
    own = policies.ExceptionRetryPolicy(rules=[])
    with make_dag(default_args={"owner": "me"}):
        mapped = operator.partial(task_id="a", **rest).expand(**{argument: [value]})
        without = operator.partial(task_id="b", **rest, retry_policy=None).expand(**{argument: [value]})
        with_own = operator.partial(task_id="c", **rest, retry_policy=own).expand(**{argument: [value]})

    made = [each.unmap({argument: value}).retry_policy for each in (mapped, without, with_own)]
    assert made == [common.RETRY_AFTER, None, own]


def test_a_dag_with_it_can_be_stored_and_read() -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    with make_dag() as dag:
        WebCollectMarkExportedOperator(task_id="one", collection_task_id="t")
        WebCollectMarkExportedOperator.partial(task_id="many").expand(collection_task_id=["t", "u"])
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))

    assert stored.get_task("one").has_retry_policy
    assert stored.get_task("many").task_type == "WebCollectMarkExportedOperator"
    policy = dag.get_task("one").retry_policy
    assert isinstance(type(policy).deserialize(policy.serialize()), type(policy))
