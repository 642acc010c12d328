"""The transfer to S3, as moto serves it, through an Airflow connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, Asset, ObjectStoragePath

from airflow_provider_webcollect import (
    WebCollectAcceptLandingOperator,
    WebCollectCleanLandingOperator,
    WebCollectLoadOperator,
    WebCollectQueryAnalyticsOperator,
    WebCollectReplaceUrlsOperator,
    WebCollectVerifyLandingOperator,
    read_landing,
)
from airflow_provider_webcollect.landing.errors import LandingError
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.executions import Task, execute, on_sandbox
from tests.airflow.landings import (
    GROWING,
    TABLE,
    landed,
    make_transfer,
    manifest,
    reported,
    table_rows,
    transfer,
)
from tests.storages import Storage

pytest.importorskip("moto", reason="needs moto[server]")
pytest.importorskip("airflow.providers.amazon.aws.fs.s3", reason="needs the Amazon provider and s3fs")
pytestmark = on_sandbox("storage_connection")


@pytest.fixture
def storage_connection(s3_storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Airflow connection ``storage``, which alone says how to reach the S3 server."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_STORAGE", s3_storage.as_connection())


@pytest.fixture
def folder(s3_storage: Storage) -> str:
    """A new folder, without the scheme."""
    return s3_storage.new_folder()


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.at_night)])
def where(request: pytest.FixtureRequest, folder: str) -> dict[str, Any]:
    """The arguments that name the folder and the connection, in the URL or as its own argument."""
    if request.param:
        return {"destination": f"s3://storage@{folder}"}
    return {"destination": f"s3://{folder}", "object_storage_conn_id": "{{ 'storage' }}"}


def read_table(s3: Storage, folder: str) -> list[dict[str, Any]]:
    options = {
        "aws_endpoint_url": s3.options["endpoint_url"],
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": s3.options["key"],
        "aws_secret_access_key": s3.options["secret"],
    }
    return table_rows(f"s3://{folder}", options)


def test_every_row_lands_once_through_the_storages_connection(
    sandbox: Sandbox, s3_storage: Storage, source: Task, folder: str, where: dict[str, Any]
) -> None:
    # the third page breaks the first try
    sandbox.control.fail("/data/all", after=2, status=400, code="TaskExecuting")
    summary = transfer(source=source, tries=2, max_part_bytes=1, **where)

    assert landed(f"s3://{folder}", **s3_storage.options) == sandbox.control.true_rows(source["task_id"])
    bucket, _, prefix = folder.partition("/")
    uploads = s3_storage.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
    assert uploads.get("Uploads", []) == []
    # uris and objects name the parts without the connection
    names = [part["name"] for part in manifest(f"s3://{folder}", **s3_storage.options)["parts"]]
    assert summary["uris"] == [f"s3://{folder}/{name}" for name in names]
    assert summary["objects"] == [f"{prefix}/{name}" for name in names]
    assert all(s3_storage.fs.exists(f"{bucket}/{name}") for name in summary["objects"])


def test_every_row_lands_once_in_a_table(
    sandbox: Sandbox, s3_storage: Storage, source: Task, folder: str, where: dict[str, Any]
) -> None:
    sandbox.control.fail("/data/all", after=2, status=400, code="TaskExecuting")
    growing = {**where, **TABLE, **GROWING, "max_part_bytes": 1}
    transfer(source=source, tries=2, **growing)
    sandbox.control.grow(source["task_id"], 30)
    second = transfer(source=source, **growing)

    assert read_table(s3_storage, folder) == sandbox.control.true_rows(source["task_id"])
    assert second["manifest"] == where["destination"]
    assert [s3_storage.fs.exists(uri) for uri in second["uris"]] == [True]


def test_an_event_names_the_connection_of_its_source(
    sandbox: Sandbox, s3_storage: Storage, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", s3_storage.as_connection())
    task = sandbox.control.add_task(lots=[20])["task_id"]
    source = {"collection_task_id": task, "destination": f"s3://other@{folder}/own"}
    asset, told = Asset(f"s3://{folder}/own"), dict[str, Any]()
    place: dict[str, Any] = {"destination": f"s3://{folder}", "object_storage_conn_id": "storage"}
    operator = make_transfer(sources=[source], outlets=[asset], **place)
    execute(operator, outlet_events={asset: SimpleNamespace(extra=told)})

    assert told["object_storage_conn_id"] == "other"
    own = read_landing(told["manifest"], object_storage_conn_id=told["object_storage_conn_id"])
    assert [*own.iter_rows()] == sandbox.control.true_rows(task)


def test_many_sources_share_the_connection(sandbox: Sandbox, s3_storage: Storage, folder: str) -> None:
    tasks = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (20, 30, 40)]
    told = reported(f"s3://{folder}", sources=tasks, object_storage_conn_id="storage", file_format="csv")
    assert (told["rows"], told["object_storage_conn_id"]) == (90, "storage")
    assert [manifest(f"s3://{folder}/{task}", **s3_storage.options)["rows"] for task in tasks] == [20, 30, 40]


@pytest.mark.parametrize("beside", [False, True], ids=["in the URL", "beside it"])
def test_a_missing_connection_is_refused_in_spite_of_credentials(
    s3: Storage, source: Task, folder: str, database: str, beside: bool
) -> None:
    transfer(f"s3://storage@{folder}/landed", source=source)
    missing = "aws_defualt"
    place, conn = (f"s3://{folder}", missing) if beside else (f"s3://{missing}@{folder}", None)
    landed_there: dict[str, Any] = {"destination": f"{place}/landed", "object_storage_conn_id": conn}
    today = pendulum.now("UTC").date()
    for operator in (
        make_transfer(f"{place}/prices", source, object_storage_conn_id=conn),
        make_transfer(ObjectStoragePath(f"{place}/prices", conn_id=missing), source),
        WebCollectReplaceUrlsOperator(
            task_id="urls",
            collection_task_id=source["task_id"],
            urls_path=f"{place}/urls.txt",
            object_storage_conn_id=conn,
        ),
        WebCollectQueryAnalyticsOperator(
            task_id="query",
            start=today,
            end=today,
            destination=f"{place}/metrics.jsonl",
            object_storage_conn_id=conn,
        ),
        WebCollectVerifyLandingOperator(task_id="verify", **landed_there),
        WebCollectCleanLandingOperator(task_id="clean", **landed_there),
        WebCollectAcceptLandingOperator(task_id="accept", **landed_there),
        WebCollectLoadOperator(
            task_id="load",
            landing=f"{place}/landed",
            object_storage_conn_id=conn,
            warehouse_conn_id="warehouse",
            table="shop.prices",
        ),
    ):
        with pytest.raises(LandingError, match=f"Airflow has no connection '{missing}'"):
            execute(operator)
    with pytest.raises(InvalidArgument, match=f"Airflow has no connection '{missing}'"):
        read_landing(f"{place}/landed", object_storage_conn_id=conn)
    with pytest.raises(LandingError, match=f"Airflow has no connection '{missing}'"):
        read_landing(ObjectStoragePath(f"{place}/landed", conn_id=missing))
    assert s3.fs.ls(folder, detail=False) == [f"{folder}/landed"]


def test_an_address_is_without_the_connection() -> None:
    location = Location.parse("destination", ObjectStoragePath("s3://storage@landings/a b/c"))
    assert (location.scheme, location.bucket, location.key) == ("s3", "landings", "a b/c")
    named = Location.parse("destination", ObjectStoragePath("s3://landings/a/", conn_id="storage"))
    assert (named.asset_uri, named.uri) == ("s3://landings/a", "s3://storage@landings/a")


def test_the_operators_on_landings_use_the_connection(source: Task, folder: str) -> None:
    named: dict[str, Any] = {"destination": f"s3://{folder}", "object_storage_conn_id": "storage"}
    transfer(source=source, **TABLE, **named)
    verified = execute(WebCollectVerifyLandingOperator(task_id="verify", **named))
    cleaned = execute(WebCollectCleanLandingOperator(task_id="clean", **named))
    assert (verified["rows"], cleaned["files"]) == (400, 0)


def test_commands_of_a_failed_check_name_the_connection(source: Task, folder: str) -> None:
    command = f"webcollect landing accept s3://storage@{folder} --commit 1`"
    with pytest.raises(AirflowFailException, match=command):
        transfer(f"s3://{folder}", source, object_storage_conn_id="storage", checks={"rows": {"min": 500}})
