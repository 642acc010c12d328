"""Shared by the scenarios: one distributed Airflow, a sandbox for each, and the table at the end."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest

from airflow_provider_webcollect.sandbox import Control, demo
from demo.processes import Processes
from demo.sandbox import start_sandbox
from tests.postgresql import copy_programs
from tests.storages import Storage, s3_server
from tests.system.cluster import Cluster
from tests.system.safeguards import SAFEGUARDS

StartService: TypeAlias = Callable[..., "Service"]
Say: TypeAlias = Callable[[str], None]

SEEN = "seen in scenario"
TOO_MANY_REQUESTS = 429
KEPT = pytest.StashKey[Path]()


@dataclass(frozen=True)
class Service:
    """A sandbox with its own connection in Airflow.

    :param conn_id: id of the connection, which has the sandbox's refresh token.
    """

    url: str
    control: Control
    conn_id: str

    def answers(self, path: str) -> dict[int, int]:
        """Return how many requests the sandbox has answered, by status, except with 429.

        Any request may be answered 429 once, and is repeated: all processes share the limit.

        :param path: the contract's path.
        """
        counts = self.control.counters().get(path, {})
        return {status: count for status, count in counts.items() if status != TOO_MANY_REQUESTS}

    def refused_for_rate(self) -> int:
        """Return the number of answers 429."""
        return sum(counts.get(TOO_MANY_REQUESTS, 0) for counts in self.control.counters().values())


@dataclass(frozen=True)
class FileRequest:
    """A request of a client for a file on S3.

    :param time: Unix time of the answer.
    :param path: path with the bucket.
    """

    time: float
    method: str
    path: str
    status: int


@dataclass(frozen=True)
class S3:
    """An S3 server, and the requests that it has got.

    :param storage: access to the server without Airflow.
    :param conn_id: id of the connection in Airflow.
    """

    storage: Storage
    conn_id: str
    requests: list[FileRequest] = field(default_factory=list)

    def take(self, record: logging.LogRecord) -> bool:
        """Take a request from the server's access log; none of its thousands of lines is printed."""
        if line := re.search(r"(GET|PUT) /(\S+) HTTP/\S+ (\d{3})", record.getMessage()):
            self.requests.append(FileRequest(record.created, line[1], line[2], int(line[3])))
        return False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without", choices=SAFEGUARDS, help="remove a safeguard of the package: its scenario must then fail"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give scenarios time for a busy machine; with ``--without``, run only the one that must then fail."""
    if removed := config.getoption("without"):
        items[:] = [item for item in items if item.name == SAFEGUARDS[removed].scenario]
        assert len(items) == 1
        items[0].add_marker(pytest.mark.xfail(raises=AssertionError, strict=True, reason=f"no {removed}"))
    for item in items:
        item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that every user may enter. It is kept if a test fails, for the logs in it."""
    folder = Path(tempfile.mkdtemp(prefix="webcollect-system-"))
    folder.chmod(0o711)
    yield folder
    processes = psutil.process_iter(["cwd"])
    assert [process for process in processes if Path(process.info["cwd"] or "/").is_relative_to(folder)] == []
    if request.session.testsfailed:
        request.config.stash[KEPT] = folder
    else:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def cluster(folder: Path, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    programs = copy_programs(Path(os.environ["WEBCOLLECT_SERVERS"]), folder)
    package = None
    if removed := pytestconfig.getoption("without"):
        package = folder / "package"
        SAFEGUARDS[removed].remove(package)
    with Cluster(folder, pytestconfig.rootpath / "tests" / "system" / "dags", programs, package) as cluster:
        yield cluster


@pytest.fixture
def start_service(cluster: Cluster, folder: Path) -> Iterator[StartService]:
    """Starts a sandbox with its connection.

    :param name: the connection's id.
    :param extra: further extras of the connection.
    :param settings: settings of the sandbox, whose speed is 1 by default.
    """
    with Processes() as processes:

        def start(name: str, extra: dict[str, Any] | None = None, **settings: Any) -> Service:
            settings = {"speed": 1, **settings}
            options = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
            url, control = start_sandbox(processes, folder / "sandboxes" / name, *options)
            extras = {"refresh_token": demo.REFRESH_TOKEN, **(extra or {})}
            cluster.add_connection(name, "webcollect", host=url, extra=json.dumps(extras))
            return Service(url, control, name)

        yield start


@pytest.fixture(scope="session")
def s3(cluster: Cluster) -> Iterator[S3]:
    """An S3 server with its connection."""
    with s3_server() as storage:
        s3 = S3(storage, "storage")
        keys = {"login": storage.options["key"], "password": storage.options["secret"]}
        extra = {"endpoint_url": storage.options["endpoint_url"], "region_name": "us-east-1"}
        cluster.add_connection(s3.conn_id, "aws", **keys, extra=json.dumps(extra))
        access_log = logging.getLogger("werkzeug")
        access_log.addFilter(s3.take)
        yield s3
        access_log.removeFilter(s3.take)


@pytest.fixture
def seen(record_property: Callable[[str, object], None]) -> Say:
    """Adds an observation of the test to the table at the end."""
    return functools.partial(record_property, SEEN)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table of scenarios."""
    reports = [
        report for name in ("passed", "failed", "xfailed") for report in terminalreporter.getreports(name)
    ]
    terminalreporter.write_line("\n| Scenario | Outcome | Seen | Seconds |\n|---|---|---|---|")
    for report in reports:
        if report.when == "call":
            name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
            facts = "; ".join(str(value) for key, value in report.user_properties if key == SEEN)
            terminalreporter.write_line(f"| {name} | {report.outcome} | {facts} | {report.duration:.0f} |")
    if folder := config.stash.get(KEPT, None):
        terminalreporter.write_line(f"The logs are in {folder / 'output'}")
