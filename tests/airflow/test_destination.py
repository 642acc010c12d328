"""Destinations that cannot be: refused when the DAG is parsed, or by an error that says what to do."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from airflow.models import Connection
from airflow.providers.common.compat.sdk import ObjectStoragePath
from airflow.utils.session import create_session

from airflow_provider_webcollect.destinations import folder_at, read_landing
from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.operators.analytics import WebCollectQueryAnalyticsOperator
from airflow_provider_webcollect.operators.landings import (
    WebCollectAcceptLandingOperator,
    WebCollectCleanLandingOperator,
    WebCollectVerifyLandingOperator,
)
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag
from tests.airflow.landings import RETRIES, land

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.storages import Storage

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]
SCHEME_OR_ABSOLUTE = r"needs a scheme \(s3://bucket/folder\) or an absolute path \(/data/folder\)"
WRONG = [
    ("s4://bucket/prices", "Airflow has no filesystem for the scheme `s4`"),
    ("S3://bucket/prices", "Airflow has no filesystem for the scheme `S3`"),
    ("memory-of-nobody://prices", "Airflow has no filesystem for the scheme `memory-of-nobody`"),
    ("s3://bucket/a::b", "must not hold `::`"),
    ("/data/a::b", "must not hold `::`"),
    ("s3://", "must name a bucket"),
    ("gs://conn@/prices", "must name a bucket"),
    ("s3:/bucket/prices", SCHEME_OR_ABSOLUTE),
    ("my-bucket/prices", SCHEME_OR_ABSOLUTE),
    ("prices", SCHEME_OR_ABSOLUTE),
    ("./prices", SCHEME_OR_ABSOLUTE),
    ("~/prices", SCHEME_OR_ABSOLUTE),
    ("file://my-bucket/prices", SCHEME_OR_ABSOLUTE),
]


@pytest.mark.parametrize(("destination", "rule"), WRONG)
def test_a_wrong_destination_is_an_import_error(destination: str, rule: str) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=rf"`destination` is '{destination}'; .*{rule}"):
        WebCollectToObjectStorageOperator(task_id="land", collection_task_id="t", destination=destination)
    with make_dag(), pytest.raises(InvalidArgument, match=rf"`destination` is '{destination}'; .*{rule}"):
        WebCollectQueryAnalyticsOperator(
            task_id="query", start="2026-01-01", end="2026-01-02", destination=destination
        )


@pytest.mark.parametrize(
    ("destination", "rule"),
    [("file:///data/a::b", "must not hold `::`"), ("my-bucket/prices", SCHEME_OR_ABSOLUTE)],
)
def test_a_path_that_is_wrong_is_an_import_error(destination: str, rule: str) -> None:
    path = ObjectStoragePath(destination)
    if str(path) == f"/{destination}":
        pytest.skip("the path of Airflow 2 is absolute")
    with make_dag(), pytest.raises(InvalidArgument, match=rule):
        WebCollectToObjectStorageOperator(task_id="land", collection_task_id="t", destination=path)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (WebCollectAcceptLandingOperator, {}),
        (WebCollectVerifyLandingOperator, {}),
        (WebCollectCleanLandingOperator, {}),
        (WebCollectQueryAnalyticsOperator, {"start": "2026-01-01", "end": "2026-01-02"}),
    ],
)
def test_a_forgotten_scheme_is_an_import_error_of_every_operator(
    operator: Callable[..., object], arguments: dict[str, Any]
) -> None:
    with make_dag(), pytest.raises(InvalidArgument, match=rf"`destination` is 'b/c'; .*{SCHEME_OR_ABSOLUTE}"):
        operator(task_id="check", destination="b/c", **arguments)


def test_a_path_may_be_a_template(source: dict[str, Any], destination: str) -> None:
    run = land(ObjectStoragePath(f"{destination}/{{{{ task.task_id }}}}"), source)
    assert run.xcoms["land"]["destination"] == f"{destination}/land"


@pytest.mark.parametrize("wrong", ["s4://bucket/u", "bucket/u"])
def test_the_wrong_one_of_many_sources_is_named(wrong: str) -> None:
    sources = ["t", {"collection_task_id": "u", "destination": wrong}]
    with make_dag(), pytest.raises(InvalidArgument, match=rf"`sources\[1\].destination` is '{wrong}'"):
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


class TestConnections:
    """Landings that are read through a connection of Airflow, by whoever has no credentials otherwise."""

    @pytest.fixture(autouse=True)
    def bucket(self, s3: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        """The bucket ``my-bucket``; only the connection ``prices_storage`` has credentials for it."""
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AIRFLOW_CONN_PRICES_STORAGE", s3.as_connection())

    @pytest.fixture
    def landed(self, connected: None, source: dict[str, Any], sandbox: Sandbox) -> list[dict[str, Any]]:
        """The rows that the landing has."""
        assert land("s3://prices_storage@my-bucket/prices", source).state == "success"
        return sandbox.control.true_rows(source["task_id"])

    def test_a_landing_is_read_as_the_log_names_it_or_with_a_connection(
        self, landed: list[dict[str, Any]]
    ) -> None:
        for found in (
            read_landing("s3://prices_storage@my-bucket/prices"),
            read_landing("s3://prices_storage@my-bucket/prices/_manifest.json"),
            read_landing("s3://my-bucket/prices", storage_conn_id="prices_storage"),
            read_landing("s3://prices_storage@my-bucket/prices", storage_conn_id="prices_storage"),
        ):
            assert list(found.iter_rows()) == landed
            assert [uri.startswith("s3://my-bucket/prices/part-") for uri in found.uris()] == [True]
            assert found.fs.exists(found.uris()[0])

    @pytest.mark.at_night
    def test_a_connection_in_airflow_s_database_is_found(
        self, landed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fields = json.loads(os.environ["AIRFLOW_CONN_PRICES_STORAGE"])
        monkeypatch.delenv("AIRFLOW_CONN_PRICES_STORAGE")
        kept = Connection(conn_id="in_database", **fields | {"extra": json.dumps(fields["extra"])})
        with create_session() as session:
            session.add(kept)
        try:
            # a process that Airflow has not started; this one is a task's, since it has run DAGs
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    "import os; from airflow_provider_webcollect import read_landing\n"
                    "print(read_landing('s3://in_database@my-bucket/prices').manifest.rows)\n"
                    "print('_AIRFLOW_PROCESS_CONTEXT' in os.environ)",
                ],
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            with create_session() as session:
                session.query(Connection).filter_by(conn_id="in_database").delete()
        assert done.stdout.split()[-2:] == [str(len(landed)), "False"], done.stderr

    @pytest.mark.usefixtures("landed")
    def test_leftovers_are_removed_with_a_connection(self, s3: Storage) -> None:
        s3.fs.pipe_file("my-bucket/prices/part-00009-0badcafe.jsonl", b"x")

        removed = clean(ObjectStoragePath("s3://prices_storage@my-bucket/prices"), older_than=0)

        assert [file.name for file in removed] == ["part-00009-0badcafe.jsonl"]

    def test_landings_themselves_open_no_connection(self) -> None:
        with pytest.raises(InvalidArgument, match=r"`path` is .*: give an ObjectStoragePath of it"):
            clean("s3://prices_storage@my-bucket/prices", older_than=0)

    @pytest.mark.parametrize(
        ("arguments", "refusal"),
        [
            (("s3://forgotten@b/c",), r"`storage_conn_id` is 'forgotten'; s3://forgotten@b/c .*"),
            (("s3://b/c", None, "forgotten"), r"`storage_conn_id` is 'forgotten'; s3://b/c .*"),
            (("s3://another@b/c", None, "one"), r"`storage_conn_id` is 'one'; .*another connection"),
            (("s3://prices_storage@my-bucket/prices", {"key": "x"}), "storage_options"),
            (("s3://my-bucket/prices", {"key": "x"}, "prices_storage"), "storage_options"),
        ],
    )
    def test_a_connection_that_is_not_there_and_options_beside_one_are_refused(
        self, arguments: tuple[Any, ...], refusal: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=refusal):
            read_landing(*arguments)

    def test_a_connection_beside_a_path_that_has_its_filesystem_is_refused(self) -> None:
        path = ObjectStoragePath("s3://prices_storage@my-bucket/prices")
        with pytest.raises(InvalidArgument, match="storage_conn_id"):
            read_landing(path, storage_conn_id="prices_storage")


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
