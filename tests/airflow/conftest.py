"""A separate Airflow for these tests: its home must be set before anything imports Airflow."""

from __future__ import annotations

import base64
import collections
import functools
import itertools
import json
import logging
import os
import secrets
import sys
import tempfile
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from tests.storages import Storage

if TYPE_CHECKING:
    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from tests.airflow.executions import Metric
    from tests.airflow.landings import Landing

assert "airflow" not in sys.modules, "Airflow was imported before its home was set"
# in memory, if tests/conftest.py says so: each DAG run commits to the database a dozen times
HOME = tempfile.TemporaryDirectory(prefix="webcollect-airflow-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
for _name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
    del os.environ[_name]
os.environ |= {
    "AIRFLOW_HOME": HOME.name,
    "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(os.urandom(32)).decode(),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
    # hosts that share a Variable need seconds to agree on which of them renews the token
    "AIRFLOW__WEBCOLLECT__TOKEN_STORE": "memory",
}


@pytest.fixture(scope="session", autouse=True)
def airflow_home() -> Iterator[str]:
    """The folder with all files of this Airflow."""
    yield HOME.name
    HOME.cleanup()


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """Clear the secrets that Airflow masks: for each new one, it compiles a pattern of all of them again."""
    yield
    for name in ("airflow._shared", "airflow.sdk._shared"):
        if module := sys.modules.get(f"{name}.secrets_masker.secrets_masker"):
            module._secrets_masker().reset_masker()
    if module := sys.modules.get("airflow.utils.log.secrets_masker"):
        # Airflow 2
        masker = module._secrets_masker()
        masker.patterns, masker.replacer = set(), None


@pytest.fixture(autouse=True)
def no_waste_of_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make random pauses as short as possible; do not space status queries if no limit is enforced."""
    from airflow_provider_webcollect.service.rate_limit import STATUS_INTERVALS

    settings = [marker.kwargs for marker in request.node.iter_markers("webcollect_sandbox")]
    if not ChainMap(*settings).get("enforce_limits", True):
        for limit in STATUS_INTERVALS:
            monkeypatch.setitem(STATUS_INTERVALS, limit, 0.0)
    monkeypatch.setattr("random.uniform", lambda least, most: least)


@pytest.fixture(scope="session")
def airflow_database(airflow_home: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make Airflow's metadata database; return the file of an empty copy, which stays empty."""
    # imports Airflow, so not before its home is set
    from tests.airflow.dag_runs import make_database

    folder = tmp_path_factory.getbasetemp()
    # the folder of an xdist worker is inside the folder of all workers
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    make_database(airflow_home, shared / "airflow.db")
    return shared / "airflow.db"


@pytest.fixture
def set_connection(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Defines the Airflow connection to the sandbox; ``fields`` and ``extra`` replace the usual values.

    The login is not used. It differs for each sandbox, so that no test takes a token that was stored for
    another sandbox.
    """

    login = secrets.token_hex()

    def set_connection(*, extra: dict[str, Any] | None = None, **fields: Any) -> None:
        usual = {"refresh_token": sandbox.refresh_token, "datahub_api_key": sandbox.datahub_api_key}
        connection = {
            "conn_type": "webcollect",
            "host": sandbox.url,
            "login": login,
            "extra": {
                "datahub_url": sandbox.datahub_url,
                "requests_per_second": 0,
                **(usual if extra is None else extra),
            },
            **fields,
        }
        monkeypatch.setenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT", json.dumps(connection))

    return set_connection


@pytest.fixture
def write_tasks(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of collection tasks with an old modification time, and returns its path."""
    numbers = itertools.count()

    def write(content: str | bytes, suffix: str = ".yaml") -> Path:
        path = tmp_path / f"tasks-{next(numbers)}{suffix}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (1, 1))
        return path

    return write


@pytest.fixture
def configure_tasks(write_tasks: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a file of collection tasks, and sets it as the deployment's file."""

    def configure(*content: Any) -> Path:
        path = write_tasks(*content)
        monkeypatch.setenv("AIRFLOW__WEBCOLLECT__COLLECTION_TASKS", str(path))
        return path

    return configure


@pytest.fixture(scope="session")
def s3_storage(storage_of: Callable[[str], Storage]) -> Storage:
    """An S3 server on loopback."""
    return storage_of("s3")


@functools.cache
def read_models_once() -> None:
    """Have botocore read its description of S3, a megabyte of JSON, once rather than for each session."""
    from botocore.loaders import JSONFileLoader

    read = functools.cache(JSONFileLoader().load_file)
    JSONFileLoader.load_file = lambda loader, path: read(path)


@pytest.fixture
def s3(s3_storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """The S3 server with an empty bucket `my-bucket`; environment variables say how to reach it."""
    read_models_once()
    variables = {
        "AWS_ENDPOINT_URL": s3_storage.options["endpoint_url"],
        "AWS_ACCESS_KEY_ID": s3_storage.options["key"],
        "AWS_SECRET_ACCESS_KEY": s3_storage.options["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    s3_storage.fs.call_s3("create_bucket", Bucket="my-bucket")
    yield s3_storage
    s3_storage.fs.rm("my-bucket", recursive=True)
    s3_storage.fs.clear_instance_cache()


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Returns what was logged so far. Airflow 2 uses `logging`, Airflow 3 writes to the standard streams."""
    if version("apache-airflow").startswith("2."):
        # initializing the database leaves the level at WARNING
        caplog.set_level(logging.INFO)
        return lambda: caplog.text
    return lambda: "".join(capfd.readouterr())


@pytest.fixture
def connected(set_connection: Callable[..., None]) -> None:
    """The Airflow connection to the sandbox, with its refresh token."""
    set_connection()


@pytest.fixture
def hook(connected: None) -> Iterator[WebCollectHook]:
    """A hook on the usual connection."""
    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

    hook = WebCollectHook()
    yield hook
    hook.client.close()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses take no time."""
    from airflow_provider_webcollect.service.threads import Stop

    monkeypatch.setattr(Stop, "sleep", lambda stop, seconds: stop.check())


@pytest.fixture
def source(sandbox: Sandbox) -> dict[str, Any]:
    """A task with two batches of rows, 400 in all."""
    return sandbox.control.add_task(lots=[250, 150])


@pytest.fixture
def destination(tmp_path: Path) -> str:
    """A folder on this machine, as a URL."""
    return f"file://{tmp_path}/landed"


@pytest.fixture
def landing(sandbox: Sandbox, source: dict[str, Any], destination: str) -> Landing:
    """The task ``source`` and the folder ``destination``."""
    from tests.airflow.landings import Landing

    return Landing(sandbox, source, destination)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the DuckDB file of the connection `warehouse`."""
    path = f"{tmp_path}/warehouse.duckdb"
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "duckdb", "host": path}))
    return path


@pytest.fixture
def task(sandbox: Sandbox) -> dict[str, Any]:
    """A task that ran once and has 30 rows."""
    return sandbox.control.add_task(lots=[30], subtasks=3, loop_items=["one", "two"])


@pytest.fixture
def two_ids(sandbox: Sandbox) -> list[str]:
    """The ids of two tasks, which have 5 and 7 rows."""
    return [sandbox.control.add_task(lots=[rows])["task_id"] for rows in (5, 7)]


@pytest.fixture
def after_requests(sandbox: Sandbox) -> Iterator[Callable[..., None]]:
    """Takes ``(count, path, action, *arguments)``; acts once the service got that many requests of a path."""

    has_ended = threading.Event()

    def wait_and_do(count: int, path: str, action: Callable[..., None], *arguments: Any) -> None:
        while sum(sandbox.control.counters().get(path, {}).values()) < count:
            # after the test has failed, no more requests follow
            assert not has_ended.wait(0.02), f"{path} got less than {count} requests"
        action(*arguments)

    planned: list[Future[None]] = []
    with ThreadPoolExecutor() as pool:
        yield lambda *arguments: planned.append(pool.submit(wait_and_do, *arguments))
        has_ended.set()
    for action in planned:
        action.result()


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> list[Metric]:
    """The provider's metrics that were sent to Airflow, the latest last."""
    from airflow.providers.common.compat.sdk import Stats

    from tests.airflow.executions import Metric

    got: list[Metric] = []
    for method, kind in (("incr", "counter"), ("gauge", "gauge"), ("timing", "timer")):

        def send(name: str, value: Any = 1, *arguments: Any, kind: str = kind, **options: Any) -> None:
            if name.startswith("webcollect."):
                got.append(Metric(kind, name, value, options["tags"]))

        monkeypatch.setattr(Stats, method, send)
    return got


@pytest.fixture
def counted(metrics: list[Metric]) -> Callable[[], dict[str, int]]:
    """Returns the sum of each counter so far."""

    def counted() -> dict[str, int]:
        sums = collections.Counter[str]()
        for metric in metrics:
            if metric.kind == "counter":
                sums[metric.name] += metric.value
        return dict(sums)

    return counted
