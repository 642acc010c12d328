"""Running a few operators as a DAG run of the real Airflow, in this process."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import inspect
import itertools
import json
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pendulum
from airflow.providers.common.compat.sdk import DAG, literal
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.serialization import serialized_objects
from airflow.utils.session import create_session
from sqlalchemy import text

_numbers = itertools.count(1)


@dataclass(frozen=True)
class FinishedRun:
    """How a DAG run ended. Mapped tasks are keyed ``task_id[map_index]``.

    :ivar names: the names of mapped tasks that Airflow shows instead of their map indexes.
    """

    run_id: str
    state: str
    states: dict[str, str]
    tries: dict[str, int]
    xcoms: dict[str, Any] = field(repr=False)
    names: dict[str, str | None] = field(repr=False)


def make_database(home: str, copy: Path) -> None:
    """Make Airflow's tables, and the bundle that DAGs of :func:`run_dag` belong to.

    :param home: Airflow's home folder; if it has a database, nothing is done.
    :param copy: the file of an empty database, which the first process makes and the others copy.
    """
    database = Path(home) / "airflow.db"
    if database.exists():
        return
    with copy.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.exists():
            _initialize()
            _copy_database(database, copy)
            return
    _copy_database(copy, database)


def _initialize() -> None:
    from airflow.utils.db import initdb

    initdb()
    if AIRFLOW_V_3_0_PLUS:
        from airflow.dag_processing.bundles.manager import DagBundlesManager

        DagBundlesManager().sync_bundles_to_db()


def _copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def make_dag(**options: Any) -> DAG:
    """Return an empty DAG with a unique id; by default, without a schedule."""
    usual = {"schedule": None, "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"), "catchup": False}
    return DAG(dag_id=f"dag_{next(_numbers)}", **{**usual, **options})


def run_dag(
    dag: DAG, conf: dict[str, Any] | None = None, *, when_idle: Callable[[], object] = int, **when: Any
) -> FinishedRun:
    """Run a DAG to its end with ``dag.test()``.

    :param when_idle: called repeatedly while no task can run; it may act as a person would.
    :param when: further arguments of ``dag.test()``, such as the logical date.
    """
    if AIRFLOW_V_3_0_PLUS:
        _register(dag)
    with mock.patch("time.sleep", functools.partial(_sleep, time.sleep, when_idle)):
        run = dag.test(run_conf=conf, **when)
    return _finished(dag.dag_id, run.run_id)


def run_tasks(*make: Callable[[], Any], when_idle: Callable[[], object] = int, **options: Any) -> FinishedRun:
    """Make operators inside a DAG, and run them in this order as a DAG run."""
    with make_dag(**options) as dag:
        tasks = [make_task() for make_task in make]
        for first, second in itertools.pairwise(tasks):
            first >> second
    return run_dag(dag, when_idle=when_idle)


def serialized(dag: DAG) -> Any:
    """Serialize a DAG as Airflow stores it, and return it as the web interface reads it."""
    name = "DagSerialization" if AIRFLOW_V_3_0_PLUS else "SerializedDAG"
    serialization: Any = getattr(serialized_objects, name)
    # a scheduler turns this off for its whole process, perhaps in an earlier test
    serialization._load_operator_extra_links = True
    return serialization.from_dict(json.loads(json.dumps(serialization.to_dict(dag))))


def edges(dag: Any) -> set[tuple[str, str]]:
    """Return the edges of a DAG, as pairs of task ids."""
    return {(task.task_id, after) for task in dag.tasks for after in task.downstream_task_ids}


def passed(value: Any) -> Any:
    """Return an argument as Airflow passes it on, with each literal value unwrapped."""
    match value:
        case dict():
            return {name: passed(item) for name, item in value.items()}
        case list():
            return [passed(item) for item in value]
    return value.value if isinstance(value, type(literal(None))) else value


def _sleep(sleep: Callable[[float], None], when_idle: Callable[[], object], seconds: float) -> None:
    """Sleep, but only for a moment if `dag.test()` is idle: it would look for tasks once a second."""
    is_idle = sys._getframe(1).f_code is inspect.unwrap(DAG.test).__code__
    if is_idle:
        when_idle()
    sleep(0.02 if is_idle else seconds)


def _register(dag: DAG) -> None:
    """Store a DAG as the dag processor does: `dag.test()` looks for it in the database."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    bag = DagBag(dag_folder="/dev/null", bundle_name="dags-folder")
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)


def _finished(dag_id: str, run_id: str) -> FinishedRun:
    """Read how a run ended, straight from the tables."""
    with create_session() as session:

        def select(columns: str, table: str) -> Any:
            where = "where dag_id = :dag_id and run_id = :run_id"
            return session.execute(
                text(f"select {columns} from {table} {where}"), {"dag_id": dag_id, "run_id": run_id}
            ).all()

        ((state,),) = select("state", "dag_run")
        instances = select("task_id, map_index, state, try_number, rendered_map_index", "task_instance")
        xcoms = select("task_id, map_index, value, key", "xcom")
    return FinishedRun(
        run_id=run_id,
        state=state,
        states={_name(task_id, index): state for task_id, index, state, *_ in instances},
        tries={_name(task_id, index): tries for task_id, index, _, tries, _ in instances},
        names={_name(task_id, index): name for task_id, index, *_, name in instances},
        xcoms={
            _name(task_id, index): _decoded(value)
            for task_id, index, value, key in xcoms
            if key == "return_value"
        },
    )


def _name(task_id: str, map_index: int) -> str:
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"


def _decoded(value: str | bytes | int) -> Any:
    # SQLite returns text of digits as a number
    decoded = value if isinstance(value, int) else json.loads(value)
    # Airflow 3 encodes all values but strings as JSON before the JSON column encodes them, too
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(decoded) if isinstance(decoded, str) and AIRFLOW_V_3_0_PLUS else decoded
    return decoded
