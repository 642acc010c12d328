"""A distributed Airflow on loopback: PostgreSQL, Redis, CeleryExecutor, two workers, two triggerers.

Each component has its own home, temporary folder and host name, as on its own host, so that no lock of the
file system is shared. A component that ends by itself is started again, as systemd or Kubernetes would do.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import redis

from demo.airflow_api import AirflowApi
from demo.ports import free_port
from demo.processes import Processes
from demo.real_airflow import airflow_command, base_environment, run_airflow
from tests.postgresql import PostgreSQL, wait_for

START_TIMEOUT_SECONDS = 180.0
#: Beginning of the command line of a process that runs a task; its supervisor's begins differently.
TASK_TITLE = "airflow worker -- "
#: Log messages of an attempt that fails, and of one that Airflow has replaced by another.
FAILED = "Task failed with exception"
GIVEN_UP = "Server indicated the task shouldn't be running anymore. Terminating process"
WORKERS = ("worker-a", "worker-b")
TRIGGERERS = ("triggerer-a", "triggerer-b")
COMPONENTS = {
    "api-server": ("api-server", "--workers", "1"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    **dict.fromkeys(TRIGGERERS, ("triggerer", "--skip-serve-logs")),
    **{
        name: ("celery", "worker", "--celery-hostname", name, "--skip-serve-logs", "--without-gossip")
        for name in WORKERS
    },
}
#: The module of a host's configuration. Workers import once what each of their tasks needs.
HOST_MODULE = """
from airflow.providers.celery.executors.default_celery import DEFAULT_CELERY_CONFIG

CELERY = DEFAULT_CELERY_CONFIG | dict(imports={imports})


def name():
    return "{name}"
"""
IMPORTS = (
    "airflow.dag_processing.dagbag",
    "airflow.sdk.execution_time.task_runner",
    "airflow_provider_webcollect.operators.webcollect",
    "airflow_provider_webcollect.sensors.webcollect",
    "airflow_provider_webcollect.transfers.webcollect_to_object_storage",
    "requests",
    "s3fs",
    "urllib3",
)
#: Shorter than Airflow's defaults, so that the death of a component is noticed within seconds.
SHORT_TIMES = {
    "AIRFLOW__CELERY__TASK_PUBLISH_RETRY_DELAY": "2",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
}
#: The pool for calls that run at the same time, on all slots of the workers.
CALLS_POOL = "calls"
SLOTS = 28
LIMITS = {
    "AIRFLOW__API__MAXIMUM_PAGE_LIMIT": "1000",
    "AIRFLOW__CELERY__WORKER_CONCURRENCY": str(SLOTS // 2),
    "AIRFLOW__CELERY__WORKER_PREFETCH_MULTIPLIER": "1",
    "AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG": "1000",
    "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "1000",
    # other tasks must leave time on two cores for Airflow itself
    "AIRFLOW__CORE__DEFAULT_POOL_TASK_SLOT_COUNT": "12",
    # as many as the workers' slots: a task that is queued for longer than the timeout counts as lost
    "AIRFLOW__CORE__PARALLELISM": str(SLOTS),
    # With the pool's 5, more than the 40 threads of an API server. With the default of 15 in all, it may hang
    # for 30 s: all threads wait for a connection, and the requests that have one wait for a thread.
    "AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW": "40",
    "AIRFLOW__SCHEDULER__MAX_DAGRUNS_TO_CREATE_PER_LOOP": "100",
    # 24 tasks begin at once on two cores: a read took 1.6 s; half of this is allowed, 1 s by default
    "AIRFLOW__WEBCOLLECT__TOKEN_STORE_TIMEOUT": "6",
}


class _Components(Processes):
    """The processes of Airflow; those that end by themselves are started again."""

    def __init__(self, restart: Callable[[str], None]) -> None:
        super().__init__()
        self._restart = restart
        #: How often each component was started again.
        self.restarts: Counter[str] = Counter()

    def check(self) -> None:
        for name in self.ended():
            self.restarts[name] += 1
            self._restart(name)


class Redis:
    """A Redis server without a file; what it holds is lost when it is killed."""

    def __init__(self, programs: Path, folder: Path, processes: Processes) -> None:
        self._programs, self._folder, self._processes = programs, folder, processes
        self._port, self._password = free_port(), secrets.token_hex()
        self.url = f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._folder.mkdir(exist_ok=True)
        configuration = self._folder / "redis.conf"
        configuration.write_text(
            f'bind 127.0.0.1\nport {self._port}\nrequirepass {self._password}\nsave ""\nappendonly no\n'
        )
        configuration.chmod(0o600)
        self._processes.start(
            "redis",
            [str(self._programs / "redis-server"), str(configuration)],
            log=self._folder.parent / "output" / "redis.log",
            env=os.environ,
            cwd=self._folder,
        )
        wait_for(self._answers, "Redis")

    def kill(self) -> None:
        """Kill the server."""
        self._processes.kill("redis")

    def _answers(self) -> bool:
        try:
            return bool(redis.Redis.from_url(self.url).ping())
        except redis.ConnectionError:
            return False


class Cluster(AirflowApi):
    """Context manager that starts everything, and ends it on exit.

    :param folder: the folder for all written files; any user must be able to reach it
    :param dags_folder: the folder of the DAGs, which all hosts read
    :param programs: the folder with the programs of PostgreSQL and Redis
    :param package: a folder with the package that all components run; None for the installed one
    """

    def __init__(self, folder: Path, dags_folder: Path, programs: Path, package: Path | None = None) -> None:
        self._components = _Components(self.start)
        super().__init__(f"http://127.0.0.1:{free_port()}", folder, self._components)
        self._servers = Processes()
        self._exit = ExitStack()
        self.postgres = PostgreSQL(programs, folder / "postgres", self._servers)
        self.redis = Redis(programs, folder / "redis", self._servers)
        database = f"postgresql+psycopg2://{self.postgres.address}"
        self._environment = {
            **base_environment(folder, dags_folder, self.url, f"{self.url}/execution/"),
            "AIRFLOW__API__PORT": self.url.rpartition(":")[2],
            "AIRFLOW__CELERY__BROKER_URL": self.redis.url,
            "AIRFLOW__CELERY__CELERY_CONFIG_OPTIONS": "webcollect_host.CELERY",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql://{self.postgres.address}",
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__HOSTNAME_CALLABLE": "webcollect_host.name",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
            **SHORT_TIMES,
            **LIMITS,
            **({"PYTHONPATH": str(package)} if package else {}),
        }

    @property
    def restarts(self) -> Counter[str]:
        """How often each component ended by itself, and was started again."""
        return self._components.restarts

    def __enter__(self) -> Self:
        with self._exit as stack:
            stack.enter_context(self._servers)
            stack.enter_context(self._components)
            stack.callback(self.close)
            self.postgres.create()
            self.redis.start()
            run_airflow(("db", "migrate"), self._host("migration"), self.folder)
            for name in COMPONENTS:
                self.start(name)
            self.wait_for(self.is_up, START_TIMEOUT_SECONDS, "Airflow to be up")
            self.sign_in()
            self.add_pool(CALLS_POOL, SLOTS)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def start(self, name: str) -> None:
        """Start one of ``COMPONENTS``, which must not be running."""
        command = airflow_command(*COMPONENTS[name])
        if name in WORKERS:
            # tasks must not slow down the service and the rest of Airflow, which would be on other hosts
            command = ["nice", *command]
        self._components.start(
            name, command, log=self.output(name), env=self._host(name), cwd=self.folder / name
        )

    def kill(self, name: str) -> None:
        """Kill a component and its task processes with SIGKILL."""
        self._components.kill(name)

    def suspend(self, name: str) -> None:
        """Suspend a component and its task processes with SIGSTOP, like a host that hangs."""
        self._components.send_signal(name, signal.SIGSTOP)

    def resume_tasks(self, name: str) -> None:
        """Resume the task processes of a suspended worker, but not yet their supervisors."""
        self._components.send_signal(name, signal.SIGCONT, TASK_TITLE)

    def resume(self, name: str) -> None:
        """Resume a suspended component."""
        self._components.send_signal(name, signal.SIGCONT)

    def runs_tasks(self, worker: str) -> bool:
        """Return whether there are task processes on a worker."""
        return bool(self._components.pids(worker, TASK_TITLE))

    def is_up(self) -> bool:
        """Return whether all components are healthy, and both workers accept tasks."""
        ready = all(f"{name} ready." in self.output(name).read_text() for name in WORKERS)
        return ready and self.is_healthy()

    def output(self, name: str) -> Path:
        """Return the file with the output of a component."""
        return self.folder / "output" / f"{name}.log"

    def error(self, dag_id: str, run_id: str, task_id: str, attempt: int) -> str | None:
        """Return the error with which an attempt of a task failed, on any host.

        None if it was ended before it could log one, or if Airflow had given it up before: such an attempt's
        later calls are refused.
        """
        log = f"dag_id={dag_id}/run_id={run_id}/task_id={task_id}/attempt={attempt}.log"
        entries: list[dict[str, Any]] = []
        for path in self.folder.glob(f"*/logs/{log}"):
            said = map(json.loads, path.open())
            entries += itertools.takewhile(lambda entry: entry["event"] != GIVEN_UP, said)
        errors = [entry["error_detail"][0] for entry in entries if entry["event"] == FAILED]
        return f"{errors[-1]['exc_type']}: {errors[-1]['exc_value']}" if errors else None

    def _host(self, name: str) -> dict[str, str]:
        """Return the environment of a component on its host."""
        home = self.folder / name
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        (home / "config").mkdir(exist_ok=True)
        module = HOST_MODULE.format(imports=IMPORTS, name=name)
        (home / "config" / "webcollect_host.py").write_text(module)
        places = {"AIRFLOW_HOME": str(home), "HOME": str(home), "TMPDIR": str(home / "tmp")}
        return {**self._environment, **places}
