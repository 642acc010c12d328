"""A real Airflow 3 in a separate folder: scheduler, dag processor, triggerer, API servers, on loopback."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urljoin, urlsplit

import requests

from demo.ports import free_port
from demo.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

START_TIMEOUT_SECONDS = 120.0
DAG_TIMEOUT_SECONDS = 60.0
DATABASE_TRIES = 5
DATABASE_ERROR = "Database error"
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
FINAL_RUN_STATES = frozenset({"success", "failed"})
# The only variables passed to Airflow, so that a user's own Airflow, proxies and accounts have no effect.
PASSED_ON = ("LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")


class AirflowProblem(RuntimeError):
    """The started Airflow does not behave as expected."""


@dataclass(frozen=True)
class TaskInstance:
    """The current state of one task instance of a run."""

    task_id: str
    map_index: int
    try_number: int
    state: str | None

    @property
    def name(self) -> str:
        """The task's name, with the index if it is mapped."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


class RealAirflow:
    """Context manager that starts Airflow, waits until every component is healthy, and ends it on exit.

    :param home: folder for the configuration, the database and the logs; created if it is missing
    :param dags_folder: the folder of the DAGs
    :param environment: further variables for Airflow's processes, including options (``AIRFLOW__...``)
    """

    def __init__(self, home: Path, dags_folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.home = home.resolve()
        self.url = f"http://127.0.0.1:{free_port()}"
        self._execution_url = f"http://127.0.0.1:{free_port()}/execution/"
        self._environment = {
            **_environment(self.home, dags_folder.resolve(), self.url, self._execution_url),
            **(environment or {}),
        }
        self._processes = Processes()
        self._session = requests.Session()
        self._session.trust_env = False

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
        self._session.close()
        self._processes.__exit__()

    def cli(self, *arguments: str) -> str:
        """Run an ``airflow`` command and return its output.

        :raises AirflowProblem: if it fails, with its output
        """
        done = subprocess.run(
            _airflow(*arguments),
            env=self._environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AirflowProblem(f"airflow {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, component: str) -> None:
        """Start one of ``COMPONENTS``; entering the context has started all of them."""
        url = self._execution_url if component == EXECUTION_API else self.url
        self._processes.start(
            component,
            _airflow(*COMPONENTS[component]),
            log=self.home / "output" / f"{component}.log",
            env={**self._environment, "AIRFLOW__API__PORT": str(urlsplit(url).port)},
            cwd=self.home,
        )

    def kill(self, component: str) -> None:
        """Kill a component with SIGKILL; the rest of Airflow continues."""
        self._processes.kill(component)

    def get(self, path: str, **query: Any) -> Any:
        """Read from the API server, ``path`` relative to the public API's ``/api/v2/``."""
        return self._api("GET", path, params=query)

    def add_connection(self, connection_id: str, conn_type: str, **fields: Any) -> None:
        """Add a connection to the database."""
        self._api(
            "POST", "connections", json={"connection_id": connection_id, "conn_type": conn_type, **fields}
        )

    def import_errors(self) -> dict[str, str]:
        """Return the traceback of each DAG file that could not be imported."""
        return {
            error["filename"]: error["stack_trace"] for error in self.get("importErrors")["import_errors"]
        }

    def providers(self) -> dict[str, str]:
        """Return the version of each provider that Airflow found, by distribution name."""
        found = self.get("providers", limit=1000)["providers"]
        return {provider["package_name"]: provider["version"] for provider in found}

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG as soon as it is known.

        :raises AirflowProblem: if a DAG file has an import error, or the DAG does not appear
        """
        self.wait_for(lambda: self._is_known(dag_id), DAG_TIMEOUT_SECONDS, f"DAG {dag_id} to be parsed")
        self._api("PATCH", f"dags/{dag_id}", json={"is_paused": False})

    def runs(self, dag_id: str) -> dict[str, str]:
        """Return the state of each run of a DAG, by its id, oldest first."""
        found = self.get(f"dags/{dag_id}/dagRuns", limit=1000, order_by="id")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run as soon as the DAG is known and return its id.

        :raises AirflowProblem: if a DAG file has an import error, or the DAG does not appear
        """
        self.unpause(dag_id)
        run = self._api(
            "POST", f"dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": dict(conf or {})}
        )
        return str(run["dag_run_id"])

    def wait(
        self,
        dag_id: str,
        run_id: str,
        timeout: float,
        on_change: Callable[[TaskInstance], None] = lambda _: None,
    ) -> str:
        """Wait until a run has ended and return its state.

        :param timeout: seconds
        :param on_change: called with each task instance whose state or try has changed
        :raises AirflowProblem: if the run does not end in time
        :raises demo.processes.ProcessEnded: if a component of Airflow ends meanwhile
        """
        seen: dict[str, TaskInstance] = {}

        def is_over() -> bool:
            over = self.run_state(dag_id, run_id) in FINAL_RUN_STATES
            for task in self.task_instances(dag_id, run_id):
                if seen.get(task.name) != task:
                    seen[task.name] = task
                    on_change(task)
            return over

        self.wait_for(is_over, timeout, f"run {run_id} of {dag_id} to be over")
        return self.run_state(dag_id, run_id)

    def wait_for(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait until the condition is true.

        :param timeout: seconds
        :param what: description of the condition
        :raises AirflowProblem: if it is not true in time
        :raises demo.processes.ProcessEnded: if a component of Airflow ends meanwhile
        """
        deadline = time.monotonic() + timeout
        while not condition():
            self._processes.check()
            if time.monotonic() > deadline:
                raise AirflowProblem(f"Waited {timeout:.0f} s in vain for {what}; logs are in {self.home}")
            time.sleep(0.2)

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return a run's state."""
        return str(self.get(f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        """Return the task instances of a run."""
        found = self.get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=1000)["task_instances"]
        return [
            TaskInstance(task["task_id"], task["map_index"], task["try_number"], task["state"])
            for task in found
        ]

    def task_log(self, dag_id: str, run_id: str, task: TaskInstance) -> str:
        """Return the log of a task instance's latest attempt."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task.task_id}/logs/{max(task.try_number, 1)}"
        content = self.get(path, map_index=task.map_index, full_content=True)["content"]
        return "\n".join(_log_line(entry) for entry in content)

    def xcom(
        self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1
    ) -> Any:
        """Return an XCom of a task."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.get(path, map_index=map_index, deserialize=True)["value"]

    def _start_components(self) -> None:
        for name in COMPONENTS:
            self.start(name)
        self.wait_for(self._is_healthy, START_TIMEOUT_SECONDS, "Airflow to be healthy")
        token = self._session.get(f"{self.url}/auth/token", timeout=30)
        token.raise_for_status()
        self._session.headers["Authorization"] = f"Bearer {token.json()['access_token']}"

    def _is_healthy(self) -> bool:
        try:
            health = self.get("monitor/health")
            tasks_can_ask = self._ask("GET", urljoin(self._execution_url, "health")).ok
        except AirflowProblem:
            return False
        return tasks_can_ask and all(component["status"] == "healthy" for component in health.values())

    def _is_known(self, dag_id: str) -> bool:
        if errors := self.import_errors():
            raise AirflowProblem("\n".join(f"{file} cannot be imported:\n{errors[file]}" for file in errors))
        found = self.get("dags", dag_id_pattern=dag_id, exclude_stale=True)["dags"]
        return dag_id in {dag["dag_id"] for dag in found}

    def _api(self, method: str, path: str, **arguments: Any) -> Any:
        for _ in range(DATABASE_TRIES):
            response = self._ask(method, path, **arguments)
            # SQLite refuses a write if another one has happened since the read; the request then had no
            # effect
            if (
                response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR
                or DATABASE_ERROR not in response.text
            ):
                break
            time.sleep(1)
        if response.status_code >= 400:
            raise AirflowProblem(
                f"Airflow answers {response.status_code} to {method} {path}: {_complaint(response)}"
            )
        return response.json()

    def _ask(self, method: str, path: str, **arguments: Any) -> requests.Response:
        try:
            return self._session.request(
                method, urljoin(f"{self.url}/api/v2/", path), timeout=60, **arguments
            )
        except requests.RequestException as error:
            self._processes.check()
            raise AirflowProblem(f"No answer from Airflow to {method} {path}") from error


def _complaint(response: requests.Response) -> str:
    """Return the message of an error response, without the input that it repeats, which may hold secrets."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError):
        return response.text
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in detail)
    return str(detail)


def _airflow(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "airflow", *arguments]


def _environment(home: Path, dags_folder: Path, url: str, execution_url: str) -> dict[str, str]:
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
        # SQLite's default of five seconds is too short if all components write at once on a busy machine.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=25",
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # A worker reports a deferral with a delay of up to this many seconds. If the task resumes before
        # that, the scheduler considers it lost.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        # A request that is repeated after a late response is refused, and the task fails.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    }


def _log_line(entry: dict[str, Any] | str) -> str:
    if isinstance(entry, str):
        return entry
    words = [str(entry[key]) for key in ("timestamp", "level", "event") if entry.get(key)]
    return "\n".join([" ".join(words), *(_traceback(error) for error in entry.get("error_detail") or ())])


def _traceback(error: dict[str, Any]) -> str:
    frames = [f"  {frame['filename']}:{frame['lineno']} in {frame['name']}" for frame in error["frames"]]
    return "\n".join([*frames, f"{error['exc_type']}: {error['exc_value']}"])
