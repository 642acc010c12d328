"""Thirty days of landings for the page, put into Airflow's database: ``python -m demo.history``.

No DAG runs: `make ui`, the pictures and the tests in a browser need weeks of history, and cannot wait for it.
Only the landing with quarantined rows has files, below the current folder, so that a person can accept or
discard them. It uses the Airflow of its environment (``AIRFLOW_HOME``), and the sandbox of its connection.
"""

from __future__ import annotations

import datetime
import itertools
import random
import sys
import uuid
from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import DAG, Asset

from airflow_provider_webcollect import WebCollectToObjectStorageOperator
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.landing.checks import usual_of
from airflow_provider_webcollect.sandbox import Control

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy.orm import Session

DAY = datetime.timedelta(days=1)
#: The duration of each run.
TOOK = datetime.timedelta(minutes=4)
TASK_ID = "land"
BUNDLE = "history"
#: The collection task of the sandbox whose rows really land.
OFFERS_TASK_ID = "5a9d0b0e-0000-4000-8000-0000000000f0"
_TASK_INSTANCE = {
    "operator": "WebCollectToObjectStorageOperator",
    "try_number": 1,
    "max_tries": 0,
    "pool": "default_pool",
    "queue": "default",
    "hostname": "worker",
}


@dataclass(frozen=True)
class History:
    """The landings of one Airflow task.

    :ivar rows: number of rows of each run, the oldest first; None for a run that failed.
    :ivar every: time between two runs.
    :ivar age: time since the end of the newest run.
    :ivar tasks: ids of its collection tasks.
    :ivar map_index: map index of the Airflow task; -1 if it is not mapped.
    :ivar empty: number of the newest runs in which the price is missing, which fails a check.
    :ivar quarantines: whether the rows of such runs are quarantined; if so, the rows of all runs really land.
    """

    dag_id: str
    rows: Sequence[int | None]
    every: datetime.timedelta = DAY
    age: datetime.timedelta = datetime.timedelta(hours=2)
    tasks: Sequence[str] = ()
    map_index: int = -1
    empty: int = 0
    quarantines: bool = False

    @property
    def name(self) -> str:
        """The name of its asset."""
        return self.dag_id.rpartition("_")[0]

    @property
    def folder(self) -> str:
        """The URI where its rows land: on this machine, or in a bucket that does not exist."""
        return Path(self.name).absolute().as_uri() if self.quarantines else f"s3://lake/{self.name}"


def histories(task_ids: Sequence[str] = ()) -> list[History]:
    """Return a history of each kind.

    The kinds: all well, late, with an odd number of rows, without rows, failed, of twelve sources, mapped,
    with a column that has become empty, with quarantined rows.

    :param task_ids: ids of the service's collection tasks to use first; random ids follow.
    """
    chance = random.Random(28)

    def usual(count: int, middle: int) -> list[int]:
        return [chance.randint(int(middle * 0.8), int(middle * 1.2)) for _ in range(count)]

    ids = iter([*task_ids, *(str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(40))])

    def history(dag_id: str, rows: Sequence[int | None], **facts: Any) -> History:
        return History(dag_id, rows, tasks=facts.pop("tasks", None) or [next(ids)], **facts)

    hour = datetime.timedelta(hours=1)
    return [
        # the first run landed the whole history
        history("books_daily", [30_000, *usual(29, 105)]),
        history("jobs_daily", [*usual(29, 105), 20]),
        history("hotels_daily", [*usual(29, 480), 0]),
        history("flights_daily", [*usual(12, 900), None, *usual(15, 900), None, None]),
        history("prices_hourly", usual(30, 60), every=hour, age=9 * hour),
        history("alerts_daily", [count if count > 4 else 0 for count in usual(30, 5)]),
        history("shops_daily", usual(30, 5_000), tasks=[next(ids) for _ in range(12)]),
        history("old_catalogue", usual(20, 70), age=45 * DAY),
        history("reviews_daily", usual(30, 1_200), empty=4),
        history("offers_daily", usual(30, 600), empty=2, quarantines=True, tasks=[OFFERS_TASK_ID]),
        *(history("regions_daily", usual(30, 200), map_index=index) for index in range(3)),
    ]


def fill(session: Session, now: datetime.datetime, task_ids: Sequence[str] = ()) -> list[str]:
    """Put the histories into Airflow's database, and return the ids of their DAGs.

    :param task_ids: see :func:`histories`.
    """
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import insert, select

    made = histories(task_ids)
    dags = {dag_id: _dag(*of_dag) for dag_id, of_dag in itertools.groupby(made, attrgetter("dag_id"))}
    # before the session writes: SQLite has one writer, and a landing may store a token
    landed = {each.dag_id: _land(each, dags[each.dag_id], now) for each in made if each.quarantines}
    _add_dags(session, dags.values())
    versions = {version.dag_id: version.id for version in session.scalars(select(DagVersion))}
    assets = {asset.name: asset.id for asset in session.scalars(select(AssetModel))}
    runs: dict[tuple[str, str], dict[str, Any]] = {}
    tasks, fields, events = [], [], []
    for history in made:
        extras = landed.get(history.dag_id) or _events(history)
        for (ended_at, run_id, rows), extra in zip(_runs(history, now), extras, strict=True):
            run = {"dag_id": history.dag_id, "run_id": run_id}
            state = "success" if rows is not None else "failed"
            ended = {"start_date": ended_at - TOOK, "end_date": ended_at}
            runs[history.dag_id, run_id] = {
                **run,
                **ended,
                "run_type": "scheduled",
                "state": state,
                "logical_date": ended_at - history.every,
                "run_after": ended_at - TOOK,
                "created_dag_version_id": versions[history.dag_id],
            }
            task = {**run, "task_id": TASK_ID, "map_index": history.map_index}
            facts = {"id": uuid.uuid4(), "state": state, "dag_version_id": versions[history.dag_id]}
            tasks.append({**task, **_TASK_INSTANCE, **ended, **facts})
            rendered = {"collection_task_id": history.tasks[0], "webcollect_conn_id": "webcollect_default"}
            fields.append({**task, "rendered_fields": rendered})
            if extra is not None:
                event = {f"source_{name}": value for name, value in task.items()}
                # the page of an asset fails if two events have the same time
                landed_at = ended_at + datetime.timedelta(microseconds=history.map_index + 1)
                events.append(
                    {**event, "asset_id": assets[history.name], "extra": extra, "timestamp": landed_at}
                )
    session.execute(insert(DagRun.__table__), list(runs.values()))
    session.execute(insert(TaskInstance.__table__), tasks)
    session.execute(insert(RenderedTaskInstanceFields.__table__), fields)
    session.execute(insert(AssetEvent.__table__), events)
    return sorted(dags)


def _dag(*of_dag: History) -> DAG:
    """Return the DAG that lands one history, or several by a mapped task; no run of it ever begins."""
    history, *_ = of_dag
    facts: dict[str, Any] = {
        "task_id": TASK_ID,
        "destination": history.folder,
        "outlets": [Asset(history.name, uri=history.folder)],
    }
    if history.empty:
        checks = {"columns": {"price": {"filled": 0.9}}}
        on_failed_checks = "quarantine" if history.quarantines else "warn"
        facts |= {"checks": checks, "on_failed_checks": on_failed_checks, "late_rows_delay": 0}
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    with DAG(history.dag_id, schedule=history.every, start_date=start, catchup=False) as dag:
        if history.map_index >= 0:
            task_ids = [each.tasks[0] for each in of_dag]
            WebCollectToObjectStorageOperator.partial(**facts).expand(collection_task_id=task_ids)
        elif len(history.tasks) > 1:
            WebCollectToObjectStorageOperator(sources=history.tasks, **facts)
        else:
            WebCollectToObjectStorageOperator(collection_task_id=history.tasks[0], **facts)
    return dag


def _add_dags(session: Session, dags: Iterable[DAG]) -> None:
    """Store DAGs as the DAG processor does, but so that the scheduler starts no run."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from sqlalchemy import update

    # a bundle that Airflow's configuration does not have, so that Airflow leaves its DAGs alone
    session.add(DagBundleModel(name=BUNDLE))
    session.flush()
    bag = DagBag(dag_folder="/dev/null", bundle_name=BUNDLE)
    for dag in dags:
        bag.bag_dag(dag)
    sync_bag_to_db(bag, BUNDLE, None, session=session)
    idle = {"is_paused": False, "next_dagrun": None, "next_dagrun_create_after": None}
    session.execute(update(DagModel).where(DagModel.bundle_name == BUNDLE).values(idle))


def _runs(history: History, now: datetime.datetime) -> Iterator[tuple[datetime.datetime, str, int | None]]:
    """Yield the end, the id and the number of rows of each run; None rows for a run that failed."""
    for index, rows in enumerate(history.rows):
        ended_at = now - history.age - history.every * (len(history.rows) - 1 - index)
        yield ended_at, f"scheduled__{ended_at.isoformat()}", rows


def _land(history: History, dag: DAG, now: datetime.datetime) -> list[dict[str, Any]]:
    """Add the rows of each run to the service, land them, and return the extras of the asset events."""
    operator: Any = dag.get_task(TASK_ID)
    control = Control(WebCollectHook().connection.settings.base_url)
    control.add_task(OFFERS_TASK_ID, "Special offers", lots=[0])
    extras = []
    ended_at = {run_id: ended.isoformat() for ended, run_id, _ in _runs(history, now)}
    for index, (_, run_id, rows) in enumerate(_runs(history, now)):
        if index == len(history.rows) - history.empty:
            control.change_rows(OFFERS_TASK_ID, "price", to="empty")
        control.grow(OFFERS_TASK_ID, rows or 0)
        names = {"dag_id": dag.dag_id, "task_id": TASK_ID, "run_id": run_id, "map_index": -1}
        ti = SimpleNamespace(**names, try_number=1, xcom_push=lambda **_: None)
        events = defaultdict[Any, Any](lambda: SimpleNamespace(extra={}))
        operator.execute({"ti": ti, "task": operator, "outlet_events": events})
        extras += [event.extra for event in events.values()]
    # all rows have landed just now, but the runs are spread over thirty days
    for extra in extras:
        for apart in extra["waiting"]:
            apart["at"] = ended_at[apart["run_id"]]
    return extras


def _events(history: History) -> Iterator[dict[str, Any] | None]:
    """Yield the extra of each landing's asset event; None for a run that failed."""
    total = 0
    for index, rows in enumerate(history.rows):
        total += rows or 0
        yield None if rows is None else {**_event(history, index, rows), "total_rows": total}


def _event(history: History, index: int, rows: int) -> dict[str, Any]:
    """Return the extra of a landing's asset event, without ``total_rows``.

    :param index: number of the run, from 0.
    """
    is_bad = index >= len(history.rows) - history.empty
    usual = usual_of([count for count in history.rows[:index] if count])
    facts: dict[str, Any] = {
        "webcollect_conn_id": "webcollect_default",
        "destination": history.folder,
        "rows": rows,
        "usual_rows": usual,
        "bytes": rows * 240,
        "parts": 1 if rows else 0,
        "duration": round(1 + rows / 2000, 1),
        "changes": {"new": rows // 40, "changed": rows // 5, "gone": index} if rows else None,
    }
    filled = _filled(index, is_bad) if rows else {}
    checks = [_check(is_bad, rows)] if history.empty else []
    if len(history.tasks) == 1:
        one = {"collection_task_id": history.tasks[0], "lotno": None, "filled": filled, "checks": checks}
        where = {"manifest": f"{history.folder}/_manifest.json", "commit": index + 1}
        return {**facts, **one, **where, "uris": None}
    share = rows // len(history.tasks)
    return {
        **facts,
        "collection_task_ids": list(history.tasks),
        "manifests": [f"{history.folder}/{task_id}/_manifest.json" for task_id in history.tasks],
        "source_rows": [share] * (len(history.tasks) - 1) + [rows - share * (len(history.tasks) - 1)],
        "source_usual_rows": [usual and usual / len(history.tasks)] * len(history.tasks),
        "source_commits": [index + 1] * len(history.tasks),
        "source_filled": [filled] * len(history.tasks),
        "source_checks": [checks] * len(history.tasks),
    }


def _filled(index: int, is_bad: bool) -> dict[str, float]:
    """Return the share of a run's rows in which each column is filled."""
    others = {f"property_{number}": 1.0 for number in range(1, 8)}
    price = 0.0 if is_bad else 0.98
    return {"title": 1.0, "price": price, "rating": 0.8 + index % 5 / 100, "stock": 0.99, **others}


def _check(is_bad: bool, rows: int) -> dict[str, Any]:
    """Return the result of the check of the price, as the asset event has it."""
    return {
        "check": "columns.price.filled",
        "state": "failed" if is_bad else "passed",
        "expected": "filled in at least 90 % of the rows",
        "found": f"filled in {0 if is_bad else 98} % of {rows:,} rows",
    }


def main() -> None:
    """Fill the database; the arguments are ids of collection tasks."""
    from airflow.utils.session import create_session

    with create_session() as session:
        fill(session, datetime.datetime.now(datetime.UTC), sys.argv[1:])


if __name__ == "__main__":
    main()
