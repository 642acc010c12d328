"""The DAG runs of a scenario that work on one service."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_webcollect.landing.reader import read_landing
from demo.airflow_api import FINAL_RUN_STATES, TaskInstance
from demo.landing import prove
from tests.interruption import PATIENCE
from tests.system.cluster import Cluster
from tests.system.conftest import Service


class Runs:
    """DAG runs, each with the collection tasks that it works on.

    :param folder: the folder that the collection tasks land in.
    """

    def __init__(self, cluster: Cluster, service: Service, folder: Path) -> None:
        self.cluster, self.service, self._folder = cluster, service, folder
        self._runs: list[tuple[str, str]] = []

    def start(self, dag_id: str, ids: Sequence[str]) -> None:
        """Start a run of a DAG for collection tasks."""
        conf = {"conn_id": self.service.conn_id, "ids": ids, "folder": self._folder.as_uri()}
        self._runs.append((dag_id, self.cluster.trigger(dag_id, conf)))

    def add_tasks(self, count: int, **facts: Any) -> list[str]:
        """Add collection tasks to the service, and return their ids."""
        return [self.service.control.add_task(**facts)["task_id"] for _ in range(count)]

    def tasks(self, *dag_ids: str) -> list[TaskInstance]:
        runs = [run for run in self._runs if run[0] in dag_ids]
        return [task for run in runs for task in self.cluster.task_instances(*run)]

    def states(self, *dag_ids: str) -> Counter[str | None]:
        return Counter(task.state for task in self.tasks(*dag_ids))

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        self.cluster.wait_for(condition, PATIENCE, what)

    def outcomes(self) -> set[str]:
        """Return the states of all runs."""
        return {self.cluster.run_state(*run) for run in self._runs}

    def wait(self) -> set[str]:
        """Wait until all runs have ended, and return their states."""
        self.wait_for(lambda: self.outcomes() <= FINAL_RUN_STATES, "all runs to be over")
        return self.outcomes()

    def clear_failed(self, error: str) -> None:
        """Clear the failed tasks, as a person does who has fixed the cause.

        :param error: a regular expression that the error of each task's last attempt must match.
        """
        for run in self._runs:
            for task in self.cluster.task_instances(*run):
                if task.state == "failed":
                    said = self.cluster.error(*run, task.task_id, task.try_number)
                    assert re.search(error, said or ""), f"{run} {task.name}: {said}"
            if self.cluster.run_state(*run) == "failed":
                self.cluster.clear(*run, only_failed=True)

    def failures(self) -> dict[str, str | None]:
        """Return the error of each failed attempt; None if Airflow ended it."""
        return {
            f"{' '.join(run)} {task.name} {attempt}": self.cluster.error(*run, task.task_id, attempt)
            for run in self._runs
            for task in self.cluster.task_instances(*run)
            for attempt in range(1, task.try_number + (task.state == "failed"))
        }

    def check_landed(self, task_id: str, rows: int) -> None:
        """Check that exactly the rows of a collection task have landed."""
        folder = self._folder / task_id
        read_landing(folder).verify()
        assert prove(folder, self.service.control.true_rows(task_id)).rows == rows
