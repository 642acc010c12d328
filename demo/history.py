"""Thirty days of landings for the page, put into Airflow's database: ``python -m demo.history``.

Nothing has run: it is for the pictures, the tests in a browser and the benchmark of the page, for which weeks
would be long to wait for. It uses the Airflow of its environment (``AIRFLOW_HOME``).
"""

from __future__ import annotations

import datetime
import random
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.checks import usual_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.orm import Session

DAY = datetime.timedelta(days=1)
#: How long each run takes.
TOOK = datetime.timedelta(minutes=4)
TASK_ID = "land"
BUNDLE = "history"
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

    :ivar rows: of each run, the oldest first; None for one that has failed.
    :ivar every: between two runs.
    :ivar age: of the newest run.
    :ivar tasks: its collection tasks.
    :ivar map_index: of the Airflow task, if it is mapped.
    :ivar empty: in how many of the newest runs the price is missing, which fails a check.
    :ivar quarantines: whether the rows of such runs are quarantined.
    """

    dag_id: str
    rows: Sequence[int | None]
    every: datetime.timedelta = DAY
    age: datetime.timedelta = datetime.timedelta(hours=2)
    tasks: Sequence[str] = ()
    map_index: int = -1
    empty: int = 0
    quarantines: bool = False


def histories(task_ids: Sequence[str] = ()) -> list[History]:
    """Return a history of each kind: all well, late, odd, without rows, failed, of twelve sources, mapped,
    with a column that has become empty, with quarantined rows.

    :param task_ids: ids of collection tasks of the service, which its page of tasks then shows.
    """
    chance = random.Random(28)

    def usual(count: int, middle: int) -> list[int]:
        return [chance.randint(int(middle * 0.8), int(middle * 1.2)) for _ in range(count)]

    ids = iter([*task_ids, *(str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(40))])

    def history(dag_id: str, rows: Sequence[int | None], **facts: Any) -> History:
        return History(dag_id, rows, tasks=facts.pop("tasks", None) or [next(ids)], **facts)

    hour = datetime.timedelta(hours=1)
    return [
        # the first run has landed all that was there
        history("books_daily", [30_000, *usual(29, 105)]),
        history("jobs_daily", [*usual(29, 105), 20]),
        history("hotels_daily", [*usual(29, 480), 0]),
        history("flights_daily", [*usual(12, 900), None, *usual(15, 900), None, None]),
        history("prices_hourly", usual(30, 60), every=hour, age=9 * hour),
        history("alerts_daily", [count if count > 4 else 0 for count in usual(30, 5)]),
        history("shops_daily", usual(30, 5_000), tasks=[next(ids) for _ in range(12)]),
        history("old_catalogue", usual(20, 70), age=45 * DAY),
        history("reviews_daily", usual(30, 1_200), empty=4),
        history("offers_daily", usual(30, 600), empty=2, quarantines=True),
        *(history("regions_daily", usual(30, 200), map_index=index) for index in range(3)),
    ]


def fill(session: Session, now: datetime.datetime, task_ids: Sequence[str] = ()) -> list[str]:
    """Put the histories into Airflow's database, and return the ids of their DAGs.

    :param task_ids: as for :func:`histories`.
    """
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.dagrun import DagRun
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import insert

    made = histories(task_ids)
    dag_ids = sorted({history.dag_id for history in made})
    _add_dags(session, dag_ids)
    assets = {name: AssetModel(name=name, uri=f"s3://lake/{name}", group="") for name in map(_asset, made)}
    session.add_all(assets.values())
    session.flush()
    runs: dict[tuple[str, str], dict[str, Any]] = {}
    tasks, fields, events = [], [], []
    for history in made:
        name = _asset(history)
        for index, (ended_at, rows) in enumerate(_runs(history, now)):
            run_id = f"scheduled__{ended_at.isoformat()}"
            run = {"dag_id": history.dag_id, "run_id": run_id}
            runs[history.dag_id, run_id] = {
                **run,
                "run_type": "scheduled",
                "state": "success" if rows is not None else "failed",
                "logical_date": ended_at - history.every,
                "run_after": ended_at - TOOK,
            }
            task = {**run, "task_id": TASK_ID, "map_index": history.map_index}
            ended = {"start_date": ended_at - TOOK, "end_date": ended_at}
            state = "success" if rows is not None else "failed"
            tasks.append({**task, **_TASK_INSTANCE, **ended, "id": uuid.uuid4(), "state": state})
            rendered = {"collection_task_id": history.tasks[0], "webcollect_conn_id": "webcollect_default"}
            fields.append({**task, "rendered_fields": rendered})
            if rows is not None:
                event = {f"source_{name}": value for name, value in task.items()}
                extra = _event(history, name, index, rows)
                events.append({**event, "asset_id": assets[name].id, "extra": extra, "timestamp": ended_at})
    session.execute(insert(DagRun.__table__), list(runs.values()))
    session.execute(insert(TaskInstance.__table__), tasks)
    session.execute(insert(RenderedTaskInstanceFields.__table__), fields)
    session.execute(insert(AssetEvent.__table__), events)
    return dag_ids


def _add_dags(session: Session, dag_ids: Sequence[str]) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel

    # one that Airflow's configuration does not know, so that Airflow leaves its DAGs alone
    session.add(DagBundleModel(name=BUNDLE))
    session.flush()
    session.add_all(
        DagModel(
            dag_id=dag_id,
            bundle_name=BUNDLE,
            # Airflow's list of DAGs fails without one
            fileloc="history.py",
            is_paused=False,
            is_stale=False,
            max_active_tasks=16,
            max_consecutive_failed_dag_runs=0,
            has_task_concurrency_limits=False,
        )
        for dag_id in dag_ids
    )
    session.flush()


def _asset(history: History) -> str:
    return history.dag_id.rpartition("_")[0]


def _runs(history: History, now: datetime.datetime) -> Iterator[tuple[datetime.datetime, int | None]]:
    """Yield when each run has ended, and its rows."""
    for index, rows in enumerate(history.rows):
        yield now - history.age - history.every * (len(history.rows) - 1 - index), rows


def _event(history: History, name: str, index: int, rows: int) -> dict[str, Any]:
    """Return what a landing leaves in its asset event.

    :param index: of the run.
    """
    folder = f"s3://lake/{name}"
    is_bad = index >= len(history.rows) - history.empty
    apart = rows if is_bad and history.quarantines else 0
    landed = rows - apart
    usual = usual_of([count for count in history.rows[:index] if count])
    facts: dict[str, Any] = {
        "webcollect_conn_id": "webcollect_default",
        "destination": folder,
        "rows": landed,
        "usual_rows": usual,
        "total_rows": rows * 30,
        "bytes": landed * 240,
        "parts": 1 if landed else 0,
        "duration": round(1 + rows / 2000, 1),
        "quarantined_rows": apart,
        "changes": {"new": landed // 40, "changed": landed // 5, "gone": index} if landed else None,
    }
    filled = _filled(index, is_bad) if landed else {}
    checks = [_check(is_bad, rows)] if history.empty else []
    if len(history.tasks) == 1:
        one = {"collection_task_id": history.tasks[0], "lotno": None, "filled": filled, "checks": checks}
        quarantined = [index + 1] if apart else []
        where = {"manifest": f"{folder}/_manifest.json", "commit": index + 1, "quarantined": quarantined}
        return {**facts, **one, **where, "uris": None}
    share = rows // len(history.tasks)
    return {
        **facts,
        "collection_task_ids": list(history.tasks),
        "manifests": [f"{folder}/{task_id}/_manifest.json" for task_id in history.tasks],
        "source_rows": [share] * (len(history.tasks) - 1) + [rows - share * (len(history.tasks) - 1)],
        "source_usual_rows": [usual and usual / len(history.tasks)] * len(history.tasks),
        "source_commits": [index + 1] * len(history.tasks),
        "source_filled": [filled] * len(history.tasks),
        "source_checks": [checks] * len(history.tasks),
    }


def _filled(index: int, is_bad: bool) -> dict[str, float]:
    """Return in which share of a run's rows each column is filled."""
    others = {f"property_{number}": 1.0 for number in range(1, 8)}
    price = 0.0 if is_bad else 0.98
    return {"title": 1.0, "price": price, "rating": 0.8 + index % 5 / 100, "stock": 0.99, **others}


def _check(is_bad: bool, rows: int) -> dict[str, Any]:
    """Return what became of the check of the price."""
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
