"""A real Airflow 3 in a separate folder: scheduler, dag processor, triggerer, API servers, on loopback."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urljoin, urlsplit

from demo.airflow_api import AirflowApi, AirflowProblem
from demo.ports import free_port
from demo.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROJECT = Path(__file__).resolve().parent.parent
START_TIMEOUT_SECONDS = 120.0
EXECUTION_API = "execution-api"
COMPONENTS = {
    "api-server": ("api-server", "--workers", "1", "--apps", "core"),
    # A separate server for tasks: Airflow logs a user's action in the event loop, and SQLite allows only one
    # writer. If a task's request were in flight on the same server, nothing could finish it, and both would
    # block until SQLite's timeout.
    EXECUTION_API: ("api-server", "--workers", "1", "--apps", "execution"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
# The only variables passed to Airflow, so that a user's own Airflow, proxies and accounts have no effect.
PASSED_ON = ("LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")


class RealAirflow(AirflowApi):
    """Context manager that starts Airflow, waits until every component is healthy, and ends it on exit.

    :param home: folder for the configuration, the database and the logs; created if it is missing
    :param dags_folder: the folder of the DAGs
    :param environment: further variables for Airflow's processes, including options (``AIRFLOW__...``)
    """

    def __init__(self, home: Path, dags_folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.home = home.resolve()
        super().__init__(f"http://127.0.0.1:{free_port()}", self.home, Processes())
        self._execution_url = f"http://127.0.0.1:{free_port()}/execution/"
        self._environment = {
            **base_environment(self.home, dags_folder.resolve(), self.url, self._execution_url),
            # SQLite's default of five seconds is too short if all components write at once on a busy machine.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db?timeout=25",
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        self.cli("db", "migrate")
        self._processes.__enter__()
        try:
            self._start_components()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._processes.__exit__()

    def cli(self, *arguments: str) -> str:
        """Run an ``airflow`` command and return its output.

        :raises AirflowProblem: if it fails, with its output
        """
        return run_airflow(arguments, self._environment, self.home)

    def add_history(self, *task_ids: str) -> None:
        """Put thirty days of landings into the database, as ``demo.history`` makes them.

        :param task_ids: collection tasks of the service
        :raises AirflowProblem: if that fails, with its output
        """
        command = [sys.executable, "-m", "demo.history", *task_ids]
        _run(command, {**self._environment, "PYTHONPATH": str(PROJECT)}, self.home)

    def start(self, component: str) -> None:
        """Start one of ``COMPONENTS``; entering the context has started all of them."""
        url = self._execution_url if component == EXECUTION_API else self.url
        self._processes.start(
            component,
            airflow_command(*COMPONENTS[component]),
            log=self.home / "output" / f"{component}.log",
            env={**self._environment, "AIRFLOW__API__PORT": str(urlsplit(url).port)},
            cwd=self.home,
        )

    def serve(self, path: str, environment: Mapping[str, str]) -> str:
        """Start another API server on the same database, and return its address.

        :param path: of its address, such as ``/team/airflow``
        :param environment: further variables for it
        """
        url = f"http://127.0.0.1:{free_port()}{path}"
        self._processes.start(
            f"api-server at {path}",
            airflow_command("api-server", "--workers", "1", "--apps", "core", "--proxy-headers"),
            log=self.home / "output" / "another-api-server.log",
            env={
                **self._environment,
                "AIRFLOW__API__BASE_URL": url,
                "AIRFLOW__API__PORT": str(urlsplit(url).port),
                **environment,
            },
            cwd=self.home,
        )
        self.wait_for(
            lambda: self.answers(f"{url}/api/v2/monitor/health"), START_TIMEOUT_SECONDS, "the API server"
        )
        return url

    def kill(self, component: str) -> None:
        """Kill a component with SIGKILL; the rest of Airflow continues."""
        self._processes.kill(component)

    def _start_components(self) -> None:
        for name in COMPONENTS:
            self.start(name)
        self.wait_for(self._is_healthy, START_TIMEOUT_SECONDS, "Airflow to be healthy")
        self.sign_in()

    def _is_healthy(self) -> bool:
        return self.is_healthy() and self.answers(urljoin(self._execution_url, "health"))


def airflow_command(*arguments: str) -> list[str]:
    """Return the command line of an ``airflow`` command, in the Python of this process."""
    return [sys.executable, "-m", "airflow", *arguments]


def run_airflow(arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    """Run an ``airflow`` command and return its output.

    :raises AirflowProblem: if it fails, with its output
    """
    return _run(airflow_command(*arguments), environment, folder)


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AirflowProblem(f"{' '.join(command[2:])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def base_environment(home: Path, dags_folder: Path, url: str, execution_url: str) -> dict[str, str]:
    """Return the variables of an Airflow process, without those that say where the database is."""
    return {
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        "HOME": str(home),
        "NO_PROXY": "*",
        "PYTHONUNBUFFERED": "1",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": execution_url,
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.4",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # A worker reports a deferral with a delay of up to this many seconds. If the task resumes before
        # that, the scheduler considers it lost.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        # A request that is repeated after a late response is refused, and the task fails.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    }
