"""What all tests share: clients of a sandbox, and the check that all their requests keep the contract."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.service import rate_limit
from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.settings import Credentials, Retries, Settings
from airflow_provider_webcollect.service.threads import Stop
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, renewal
from tests.simulation.samples import ALL_HISTORIES, SEED, leave_to_the_night

pytest.register_assert_rewrite("tests.operations")

if TYPE_CHECKING:  # slow to import, or not in every environment
    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.contract.client_requests import RequestContract
    from tests.operations import Scene
    from tests.postgresql import PostgreSQL
    from tests.storages import Storage

pytest_plugins = ["airflow_provider_webcollect.sandbox.pytest_plugin", "tests.budget"]

#: As many attempts as in production, with short waits.
RETRIES = Retries(first_wait=0.01, longest_wait=0.05)

#: The fixtures of tests that run DAGs, or load into warehouses.
RUNS_AND_LOADS = {"airflow_database", "database", "in_duckdb", "postgresql"}

#: Linux's filesystem in memory, and the bytes that must be free in it.
MEMORY, ENOUGH_MEMORY = Path("/dev/shm"), 2 * 1024**3


def pytest_report_header() -> str:
    """Say which histories are tried."""
    return "all histories are tried" if ALL_HISTORIES else f"a sample of the histories is tried: SEED={SEED}"


def pytest_configure() -> None:
    """Put temporary folders into memory if possible: landings and databases sync to the disk all the time."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH_MEMORY:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable garbage collection during imports: it takes seconds and finds nothing, since modules stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks, and xdist the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave cases to the night; keep a file's tests in one process, unless they are marked otherwise.

    The longest tests come first: in one process all that need a whole Airflow, since two of these are too
    much for two cores; in another process all that run DAGs or load into warehouses, since the first DAG run
    of a process takes five seconds, and the first load four.
    """
    samples = defaultdict(list)
    for item in items:
        if (marker := item.get_closest_marker("by_day")) and not item.get_closest_marker("at_night"):
            samples[item.nodeid.partition("[")[0], marker.args[0]].append(item)
    for (test, count), cases in samples.items():
        leave_to_the_night(test, cases, count)
    first: dict[str, list[pytest.Item]] = {"real_airflow": [], "runs and loads": []}
    others = []
    for item in items:
        if item.get_closest_marker("xdist_group"):
            others.append(item)
            continue
        group = item.nodeid.partition("::")[0]
        if item.get_closest_marker("real_airflow"):
            group = "real_airflow"
        elif not RUNS_AND_LOADS.isdisjoint(getattr(item, "fixturenames", ())):
            group = "runs and loads"
        item.add_marker(pytest.mark.xdist_group(group))
        first.get(group, others).append(item)
    items[:] = [*itertools.chain(*first.values()), *others]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many interleavings of landings were tried, on each storage."""
    tried: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name.startswith("interleavings on "):
                tried[name] += value
    for name, number in sorted(tried.items()):
        terminalreporter.write_line(f"{name}: {number}")


@pytest.fixture(autouse=True)
def only_new_garbage() -> None:
    """Exclude loaded objects from garbage collection until the end; otherwise each takes half a second."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let pytest's last collections find all garbage, and with it errors that could not be raised."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def storage_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Storage]]:
    """Gives a real storage of a kind (disk, memory, s3, azure or gcs), whose server runs until the last test.

    A test must use a folder of its own, and is skipped where the server is not installed.
    """
    from tests.storages import running

    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda kind: stack.enter_context(running(kind, tmp_path_factory.mktemp(kind))))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A PostgreSQL server, if its programs are installed."""
    if not (programs := os.environ.get("WEBCOLLECT_SERVERS")):
        pytest.skip("WEBCOLLECT_SERVERS does not name the folder of PostgreSQL's programs")
    from tests.postgresql import running_postgresql

    with running_postgresql(Path(programs)) as server:
        yield server


@pytest.fixture(scope="session")
def contract() -> RequestContract:
    """The check of requests against the contract, which is read only in processes that need it."""
    from tests.contract.client_requests import RequestContract

    return RequestContract()


@pytest.fixture
def sandbox(
    webcollect_sandbox: Sandbox,
    contract: RequestContract,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Sandbox]:
    """A sandbox; every request that the provider's client sends it in the test must keep the contract.

    Only ``@pytest.mark.beyond_the_contract`` lifts that, for what assumptions.md adds to the contract.
    """
    from airflow_provider_webcollect.sandbox import Control

    # a process remembers tokens and rates by the service's address, which another test's sandbox may have had
    monkeypatch.setattr(MemoryTokenStore, "_shared", {})
    for module, memory in ((renewal, "_unsaved"), (rate_limit, "_shared")):
        monkeypatch.setattr(module, memory, {})
    if request.node.get_closest_marker("beyond_the_contract"):
        yield webcollect_sandbox
        return
    forget = Control.clear_requests

    def check_and_forget(control: Control) -> None:
        contract.check(control.requests())
        forget(control)

    # what a test clears from the log would otherwise go unchecked
    monkeypatch.setattr(Control, "clear_requests", check_and_forget)
    yield webcollect_sandbox
    contract.check(webcollect_sandbox.control.requests())


@pytest.fixture
def connect(sandbox: Sandbox) -> Iterator[Callable[..., Client]]:
    """Makes clients of the sandbox; arguments replace the usual settings, credentials and so on."""
    clients: list[Client] = []

    def make(
        *,
        credentials: Credentials | None = None,
        name: str = "test",
        store: Any = None,
        stop: Stop | None = None,
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> Client:
        merged = {
            "base_url": sandbox.url,
            "datahub_url": sandbox.datahub_url,
            "retries": RETRIES,
            "requests_per_second": 0,
            **settings,
        }
        credentials = credentials or Credentials(
            access_token=sandbox.access_token, datahub_api_key=sandbox.datahub_api_key
        )
        name = f"{name}:{sandbox.url}"
        store = store or MemoryTokenStore(name)
        clients.append(
            Client(make_context(Settings(**merged), credentials, name, store, clock=clock), stop=stop)
        )
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    """A client of the sandbox with the usual settings."""
    return connect()


@pytest.fixture
def scene(sandbox: Sandbox, tmp_path: Path) -> Scene:
    """The tasks and other values to which the table of operations refers."""
    from tests.operations import Scene

    return Scene(sandbox, tmp_path)
