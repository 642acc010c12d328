"""The transfer to S3 through an Airflow connection of the storage, as moto serves it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath

from airflow_provider_webcollect.assets import Address
from tests.airflow.landings import RETRIES, land, landed, manifest
from tests.landing.storages import Storage, s3_server

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytest.importorskip("moto", reason="needs moto[server]")
pytest.importorskip("airflow.providers.amazon.aws.fs.s3", reason="needs the Amazon provider and s3fs")
pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected", "storage_connection"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]


@pytest.fixture(scope="module")
def s3() -> Iterator[Storage]:
    """An S3 server on loopback."""
    with s3_server() as storage:
        yield storage


@pytest.fixture
def storage_connection(s3: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Airflow connection ``storage`` to the S3 server; without it there are no credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    connection = {
        "conn_type": "aws",
        "login": s3.options["key"],
        "password": s3.options["secret"],
        "extra": {"endpoint_url": s3.options["endpoint_url"], "region_name": "us-east-1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_STORAGE", json.dumps(connection))


@pytest.fixture
def folder(s3: Storage) -> str:
    """A folder of its own, without scheme."""
    return s3.new_folder()


@pytest.mark.parametrize("in_url", [True, False])
def test_every_row_lands_once_through_the_storages_connection(
    sandbox: Sandbox, s3: Storage, source: dict[str, Any], folder: str, in_url: bool
) -> None:
    # the third page breaks the first try
    sandbox.control.fail("/data/all", after=2, status=400, code="TaskExecuting")
    where: dict[str, Any] = {"object_storage_conn_id": "{{ 'storage' }}"}
    destination, options = (f"s3://storage@{folder}", {}) if in_url else (f"s3://{folder}", where)
    run = land(destination, source, max_part_bytes=1, **options, **RETRIES)

    assert (run.states, run.tries) == ({"land": "success"}, {"land": 2})
    assert landed(f"s3://{folder}", **s3.options) == sandbox.control.true_rows(source["task_id"])
    assert s3.fs.call_s3("list_multipart_uploads", Bucket="landings").get("Uploads", []) == []


def test_many_sources_share_the_storage(sandbox: Sandbox, s3: Storage, folder: str) -> None:
    tasks = [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (20, 30, 40)]
    run = land(f"s3://{folder}", sources=tasks, object_storage_conn_id="storage", file_format="csv")

    assert run.xcoms["land"]["rows"] == 90
    assert [manifest(f"s3://{folder}/{task}", **s3.options)["rows"] for task in tasks] == [20, 30, 40]


def test_an_address_is_without_the_connection() -> None:
    assert Address.of(ObjectStoragePath("s3://storage@landings/a b/c")) == ("s3", "landings", "/a b/c")
    assert Address.of(ObjectStoragePath("s3://landings/a/", conn_id="storage")).uri == "s3://landings/a"
