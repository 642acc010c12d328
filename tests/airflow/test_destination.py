"""Destinations that cannot be: refused when the DAG is parsed, or by an error that says what to do."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath

from airflow_provider_webcollect.common.storage import folder_at
from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.operators.analytics import WebCollectQueryAnalyticsOperator
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag
from tests.airflow.landings import RETRIES, land

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]
WRONG = [
    ("s4://bucket/prices", "Airflow has no filesystem for the scheme `s4`"),
    ("S3://bucket/prices", "Airflow has no filesystem for the scheme `S3`"),
    ("memory-of-nobody://prices", "Airflow has no filesystem for the scheme `memory-of-nobody`"),
    ("s3://bucket/a::b", "must not hold `::`"),
    ("/data/a::b", "must not hold `::`"),
    ("s3://", "must name a bucket"),
    ("gs://conn@/prices", "must name a bucket"),
    ("s3:/bucket/prices", "must name a bucket: s3://bucket/folder"),
]


@pytest.mark.parametrize(("destination", "rule"), WRONG)
def test_a_wrong_destination_is_an_import_error(destination: str, rule: str) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=rf"`destination` is '{destination}'; .*{rule}"):
        WebCollectToObjectStorageOperator(task_id="land", collection_task_id="t", destination=destination)
    with make_dag(), pytest.raises(InvalidArgument, match=rf"`destination` is '{destination}'; .*{rule}"):
        WebCollectQueryAnalyticsOperator(
            task_id="query", start="2026-01-01", end="2026-01-02", destination=destination
        )


def test_a_path_that_chains_filesystems_is_an_import_error() -> None:
    path = ObjectStoragePath("file:///data/a::b")
    with make_dag(), pytest.raises(InvalidArgument, match="must not hold `::`"):
        WebCollectToObjectStorageOperator(task_id="land", collection_task_id="t", destination=path)


def test_a_path_may_be_a_template(source: dict[str, Any], destination: str) -> None:
    run = land(ObjectStoragePath(f"{destination}/{{{{ task.task_id }}}}"), source)
    assert run.xcoms["land"]["destination"] == f"{destination}/land"


def test_the_wrong_one_of_many_sources_is_named() -> None:
    sources = ["t", {"collection_task_id": "u", "destination": "s4://bucket/u"}]
    with make_dag(), pytest.raises(InvalidArgument, match=r"`sources\[1\].destination` is 's4://bucket/u'"):
        WebCollectToObjectStorageOperator(task_id="land", sources=sources, destination="s3://bucket/prices")


@pytest.mark.parametrize(
    "destination",
    [
        "s3://bucket",
        "s3a://conn@bucket/prices",
        "gs://bucket/prices",
        "abfss://container@account.dfs.core.windows.net/prices",
        "file:///data/prices",
        "/data/prices",
        "prices",
        "/data/t1:t2",
    ],
)
def test_a_right_one_is_not_connected_to_while_the_dag_is_parsed(destination: str) -> None:
    with make_dag():
        WebCollectToObjectStorageOperator(task_id="land", collection_task_id="t", destination=destination)


def test_a_wrong_one_that_is_rendered_ends_the_task_without_retries(
    sandbox: Sandbox, source: dict[str, Any], said: Callable[[], str]
) -> None:
    run = land("{{ 's4' }}://bucket/prices", source, **RETRIES)
    assert (run.states, run.tries) == ({"land": "failed"}, {"land": 1})
    assert "Airflow has no filesystem for the scheme `s4`" in said()
    assert sandbox.control.requests("/data/all") == []


@pytest.mark.parametrize(
    ("scheme", "module", "extra"),
    [("gs", "airflow.providers.google", "gcs"), ("abfs", "airflow.providers.microsoft.azure", "azure")],
)
def test_an_extra_that_is_missing_is_named(scheme: str, module: str, extra: str) -> None:
    if _is_installed(module):
        pytest.skip("it is not missing")
    message = rf"{scheme}://bucket/prices needs an extra: .*airflow-provider-webcollect\[{extra}\]"
    with pytest.raises(StorageError, match=message) as caught:
        folder_at(ObjectStoragePath(f"{scheme}://bucket/prices"))
    assert caught.value.permanent


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
