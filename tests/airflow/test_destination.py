"""Destinations: templates, connections, folders with special characters, and a missing extra."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath

from airflow_provider_webcollect.hooks.storage import AirflowConnections, read_landing
from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import make_dag
from tests.airflow.executions import Task, on_sandbox
from tests.airflow.landings import make_transfer, transfer
from tests.storages import Storage

pytestmark = on_sandbox()
TASK = {"task_id": "t"}
LEFTOVER = "part-00009-0badcafe.jsonl"


def test_a_path_may_be_a_template(source: Task, destination: str) -> None:
    summary = transfer(ObjectStoragePath(f"{destination}/{{{{ task.task_id }}}}"), source)
    assert summary["destination"] == f"{destination}/land"


@pytest.mark.parametrize(
    "destination",
    [
        "s3://bucket",
        "s3a://conn@bucket/prices",
        "gs://bucket/prices",
        "abfss://conn@container/prices",
        *("file:///data/prices", "/data/prices", "/data/t1:t2"),
    ],
)
def test_a_right_one_is_not_connected_to_while_the_dag_is_parsed(destination: str) -> None:
    with make_dag():
        make_transfer(destination, TASK)


class TestConnections:
    """Landings that are read through an Airflow connection, which alone has credentials."""

    URL = "s3://prices_storage@my-bucket/prices"

    @pytest.fixture(autouse=True)
    def bucket(self, s3: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        """The bucket ``my-bucket``; only the connection ``prices_storage`` has credentials for it."""
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AIRFLOW_CONN_PRICES_STORAGE", s3.as_connection())

    @pytest.fixture
    def landed(self, connected: None, source: Task, sandbox: Sandbox) -> list[dict[str, Any]]:
        transfer(self.URL, source)
        return sandbox.control.true_rows(source["task_id"])

    def test_a_landing_is_read_and_cleaned_by_it(self, s3: Storage, landed: list[dict[str, Any]]) -> None:
        for reader in (
            *map(read_landing, (self.URL, f"{self.URL}/_manifest.json")),
            read_landing("s3://my-bucket/prices", object_storage_conn_id="prices_storage"),
            read_landing(self.URL, object_storage_conn_id="prices_storage"),
        ):
            assert list(reader.iter_rows()) == landed
            assert [uri.startswith("s3://my-bucket/prices/part-") for uri in reader.uris()] == [True]
            assert reader.fs.exists(reader.uris()[0])
        s3.fs.pipe_file(f"my-bucket/prices/{LEFTOVER}", b"x")
        assert [file.name for file in clean(ObjectStoragePath(self.URL), older_than=0)] == [LEFTOVER]
        # the package `landing` opens no Airflow connection
        with pytest.raises(InvalidArgument, match=r"`landing` is .*: give an ObjectStoragePath with"):
            clean(self.URL, older_than=0)
        # a path that has its own filesystem takes no connection
        with pytest.raises(InvalidArgument, match="object_storage_conn_id"):
            read_landing(ObjectStoragePath(self.URL), object_storage_conn_id="prices_storage")

    @pytest.mark.parametrize(("path", "beside"), [(URL, {}), ("s3://b/c", {"object_storage_conn_id": "one"})])
    def test_options_beside_a_connection_are_refused(self, path: str, beside: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match="storage_options"):
            read_landing(path, storage_options={"key": "x"}, **beside)


@pytest.mark.parametrize(
    ("scheme", "module", "extra"),
    [
        ("gs", "airflow.providers.google.cloud.fs.gcs", "gcs"),
        ("abfs", "airflow.providers.microsoft.azure.fs.adls", "azure"),
    ],
)
def test_an_extra_that_is_missing_is_named(scheme: str, module: str, extra: str) -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
        pytest.skip("it is not missing")
    message = rf"{scheme}://bucket/prices needs an extra: .*airflow-provider-webcollect\[{extra}\]"
    with pytest.raises(StorageError, match=message) as caught:
        Location.parse("destination", f"{scheme}://bucket/prices").open(AirflowConnections())
    assert caught.value.permanent


#: A folder name with each character that is special in some kind of address.
SIGNED = "a !\"#$%&'()*+,-.:;<=>?@[\\]^_`{|}~%41%2F\u0301b"


@pytest.mark.parametrize("table_format", [None, "delta"])
@pytest.mark.parametrize("place", ["disk", "s3"])
def test_rows_land_in_the_folder_that_was_said_and_in_no_other(
    source: Task, s3: Storage, tmp_path: Path, place: str, table_format: Any
) -> None:
    folder = f"{tmp_path}/{SIGNED}" if place == "disk" else f"s3://my-bucket/{SIGNED}"
    transfer(folder, source, table_format=table_format)
    if place == "disk":
        assert [path.name for path in tmp_path.iterdir()] == [SIGNED]
    else:
        keys = s3.fs.call_s3("list_objects_v2", Bucket="my-bucket")["Contents"]
        assert {key["Key"].split("/")[0] for key in keys} == {SIGNED}
    landed = read_landing(folder)
    landed.verify()
    assert landed.manifest.rows == landed.to_arrow().num_rows == 400
