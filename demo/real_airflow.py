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

from demo.airflow_api import PATIENCE_SECONDS, AirflowApi, AirflowProblem
from demo.ports import free_port
from demo.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROJECT = Path(__file__).resolve().parent.parent
EXECUTION_API = "execution-api"
API_SERVER = "api-server"
COMPONENTS = {
    API_SERVER: ("api-server", "--workers", "1", "--apps", "core"),
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
    :param path: path of the API server's address, such as ``/team/airflow``, as if it were behind a proxy
    :param person: who signs in, if the API is not open to everybody; see :meth:`token`
    :param say: called with each step while Airflow starts
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        path: str = "",
        person: str | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.home = home.resolve()
        super().__init__(f"http://127.0.0.1:{free_port()}{path}", self.home, Processes())
        self._person = person
        self._say = say
        self._execution_url = f"http://127.0.0.1:{free_port()}/execution/"
        self._environment = {
            **base_environment(self.home, dags_folder.resolve(), self.url, self._execution_url),
            # SQLite's default of five seconds is too short if all components write at once on a busy machine.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db?timeout=120",
            # A request may wait that long for the database.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "300",
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        self._say("its database is made")
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

        :param task_ids: ids of the service's collection tasks
        :raises AirflowProblem: if that fails, with its output
        """
        command = [sys.executable, "-m", "demo.history", *task_ids]
        # with this, hooks find the connections in the database
        context = {"_AIRFLOW_PROCESS_CONTEXT": "server"}
        _run(command, {**self._environment, **context, "PYTHONPATH": str(PROJECT)}, self.home)

    def start(self, component: str) -> None:
        """Start one of ``COMPONENTS``; entering the context has started all of them."""
        url = urlsplit(self._execution_url if component == EXECUTION_API else self.url)
        behind_proxy = ["--proxy-headers"] if component == API_SERVER and url.path else []
        self._processes.start(
            component,
            airflow_command(*COMPONENTS[component], *behind_proxy),
            log=self.home / "output" / f"{component}.log",
            env={
                **self._environment,
                "AIRFLOW__API__PORT": str(url.port),
                # without the path, which would be put before the path of the execution API
                **({"AIRFLOW__API__BASE_URL": f"http://{url.netloc}"} if component == EXECUTION_API else {}),
            },
            cwd=self.home,
        )

    def kill(self, component: str) -> None:
        """Kill a component with SIGKILL; the rest of Airflow continues."""
        self._processes.kill(component)

    def _start_components(self) -> None:
        for name in COMPONENTS:
            self.start(name)
        self._say(f"{', '.join(COMPONENTS)} are started")
        up: set[str] = set()

        def all_are_up() -> bool:
            for name in sorted(self._up() - up):
                up.add(name)
                self._say(f"{name} is up ({len(up)} of {len(COMPONENTS)})")
            return up >= COMPONENTS.keys()

        self.wait_for(all_are_up, PATIENCE_SECONDS, "Airflow to be healthy")
        self.sign_in(self._person)

    def _up(self) -> set[str]:
        """Return the names of the components that are up, most of them as the API server reports."""
        health = self.health()
        up = {name.replace("_", "-") for name, is_healthy in health.items() if is_healthy}
        up |= {API_SERVER} if health else set()
        up |= {EXECUTION_API} if self.answers(urljoin(self._execution_url, "health")) else set()
        return up & COMPONENTS.keys()


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
    """Return the environment variables of an Airflow process, except for the address of the database."""
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
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": execution_url,
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
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
