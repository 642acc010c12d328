"""A client of a running Airflow's public API, for the demo and the tests that need a whole Airflow."""

from __future__ import annotations

import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from demo.processes import Processes

#: Seconds after which something expected counts as hanging; a busy machine may take minutes.
PATIENCE_SECONDS = 300.0
DATABASE_TRIES = 5
DATABASE_ERROR = "Database error"
FINAL_RUN_STATES = frozenset({"success", "failed"})


class AirflowProblem(RuntimeError):
    """The started Airflow does not behave as expected."""


@dataclass(frozen=True)
class TaskInstance:
    """The current state of one task instance of a run.

    :param hostname: the host of the latest try that ran on a worker; empty if there is none.
    """

    task_id: str
    map_index: int
    try_number: int
    state: str | None
    hostname: str

    @property
    def name(self) -> str:
        """The task's name, with the index if it is mapped."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


class AirflowApi:
    """Calls the public API of an Airflow whose components are ``processes``.

    :param url: the API server's address
    :param folder: where the components write their logs, for error messages
    """

    def __init__(self, url: str, folder: Path, processes: Processes) -> None:
        self.url = url
        self.folder = folder
        self._processes = processes
        self._session = requests.Session()
        self._session.trust_env = False

    def sign_in(self, person: str | None = None) -> None:
        """Get a token for the requests; see :meth:`token`."""
        self._session.headers["Authorization"] = f"Bearer {self.token(person)}"

    def token(self, person: str | None = None) -> str:
        """Return a token; Airflow's simple auth manager gives one to everybody.

        :param person: name, and password, of the person who signs in; None if the API is open to everybody.
        """
        if person is None:
            answer = self._session.get(f"{self.url}/auth/token", timeout=PATIENCE_SECONDS)
        else:
            credentials = {"username": person, "password": person}
            answer = self._session.post(f"{self.url}/auth/token", json=credentials, timeout=PATIENCE_SECONDS)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def is_healthy(self) -> bool:
        """Return whether the API server answers, and reports each component as healthy."""
        health = self.health()
        return bool(health) and all(health.values())

    def health(self) -> dict[str, bool]:
        """Return whether each component, also the database, is healthy; an empty dict without a response."""
        try:
            health = self.get("monitor/health")
        except AirflowProblem:
            return {}
        return {name: component["status"] == "healthy" for name, component in health.items()}

    def answers(self, url: str) -> bool:
        """Return whether another server of this Airflow answers without an error."""
        try:
            return self._ask("GET", url).ok
        except AirflowProblem:
            return False

    def get(self, path: str, **query: Any) -> Any:
        """Read from the API server, ``path`` relative to the public API's ``/api/v2/``."""
        return self._api("GET", path, params=query)

    def add_connection(self, connection_id: str, conn_type: str, **fields: Any) -> None:
        """Add a connection to the database."""
        self._api(
            "POST", "connections", json={"connection_id": connection_id, "conn_type": conn_type, **fields}
        )

    def update_connection(self, connection_id: str, conn_type: str, **fields: Any) -> None:
        """Change fields of a connection in the database; the others stay."""
        self._api(
            "PATCH",
            f"connections/{connection_id}",
            params={"update_mask": list(fields)},
            json={"connection_id": connection_id, "conn_type": conn_type, **fields},
        )

    def delete_connection(self, connection_id: str) -> None:
        """Delete a connection from the database."""
        self._api("DELETE", f"connections/{connection_id}")

    def add_pool(self, name: str, slots: int) -> None:
        """Add a pool of slots for tasks."""
        self._api("POST", "pools", json={"name": name, "slots": slots})

    def import_errors(self) -> dict[str, str]:
        """Return the traceback of each DAG file that could not be imported."""
        return {
            error["filename"]: error["stack_trace"] for error in self.get("importErrors")["import_errors"]
        }

    def providers(self) -> dict[str, str]:
        """Return the version of each provider that Airflow found, by distribution name."""
        providers = self.get("providers", limit=1000)["providers"]
        return {provider["package_name"]: provider["version"] for provider in providers}

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG as soon as it is known.

        :raises AirflowProblem: if a DAG file has an import error, or the DAG does not appear
        """
        self.wait_for(lambda: self._is_known(dag_id), PATIENCE_SECONDS, f"DAG {dag_id} to be parsed")
        self._api("PATCH", f"dags/{dag_id}", json={"is_paused": False})

    def runs(self, dag_id: str) -> dict[str, str]:
        """Return the state of each run of a DAG, by its id, oldest first."""
        dag_runs = self.get(f"dags/{dag_id}/dagRuns", limit=1000, order_by="id")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in dag_runs}

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
        timeout: float = PATIENCE_SECONDS,
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

    def clear(self, dag_id: str, run_id: str, *, only_failed: bool = False) -> None:
        """Clear the tasks of a run, so that they run again: all, or only the failed and upstream-failed."""
        self._api(
            "POST",
            f"dags/{dag_id}/clearTaskInstances",
            json={"dry_run": False, "dag_run_id": run_id, "only_failed": only_failed, "only_running": False},
        )

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
                raise AirflowProblem(f"Waited {timeout:.0f} s for {what}; logs are in {self.folder}")
            time.sleep(0.2)

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return a run's state."""
        return str(self.get(f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        """Return the task instances of a run."""
        instances = self.get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=1000)["task_instances"]
        return [
            TaskInstance(
                task["task_id"], task["map_index"], task["try_number"], task["state"], task["hostname"] or ""
            )
            for task in instances
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

    def _is_known(self, dag_id: str) -> bool:
        if errors := self.import_errors():
            raise AirflowProblem("\n".join(f"{file} cannot be imported:\n{errors[file]}" for file in errors))
        dags = self.get("dags", dag_id_pattern=dag_id, exclude_stale=True)["dags"]
        return dag_id in {dag["dag_id"] for dag in dags}

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
        return response.json() if response.content else None

    def _ask(self, method: str, path: str, **arguments: Any) -> requests.Response:
        try:
            return self._session.request(
                method, urljoin(f"{self.url}/api/v2/", path), timeout=PATIENCE_SECONDS, **arguments
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


def _log_line(entry: dict[str, Any] | str) -> str:
    if isinstance(entry, str):
        return entry
    words = [str(entry[key]) for key in ("timestamp", "level", "event") if entry.get(key)]
    return "\n".join([" ".join(words), *(_traceback(error) for error in entry.get("error_detail") or ())])


def _traceback(error: dict[str, Any]) -> str:
    frames = [f"  {frame['filename']}:{frame['lineno']} in {frame['name']}" for frame in error["frames"]]
    return "\n".join([*frames, f"{error['exc_type']}: {error['exc_value']}"])
