"""What Airflow's database knows: landings of the last weeks by their asset events; waits, failed tasks."""

from __future__ import annotations

import datetime
import itertools
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState
from msgspec import UNSET
from sqlalchemy import and_, func, select

from airflow_provider_webcollect.assets import LandingEvent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sqlalchemy.orm import Session
    from sqlalchemy.sql.elements import ColumnElement

#: How far back landings are shown.
DAYS = 30
#: How many series of landings are shown, and how many runs of each.
MOST_SERIES, MOST_RUNS = 100, 30
#: How many earlier runs show what is usual, and how many it takes at least.
USUAL_RUNS, FEWEST_RUNS = 10, 4
#: A count is odd if it is this many times the usual one, or the usual one this many times it.
ODD_FACTOR = 2


class _Series(NamedTuple):
    """The landings of one Airflow task for one outlet asset."""

    asset_id: int
    dag_id: str | None
    task_id: str | None
    map_index: int | None


class _Landing(NamedTuple):
    """A landing, by the newest event that its run has left."""

    run_id: str | None
    timestamp: datetime.datetime
    event: LandingEvent


def read_landings(session: Session, dag_ids: Collection[str], now: datetime.datetime) -> dict[str, Any]:
    """Return the landings of the last :data:`DAYS` days for the page.

    :param session: of Airflow's database.
    :param dag_ids: the DAGs whose landings are returned.
    """
    assets = _assets_of_landings(session)
    newest = _newest_ids(session, assets, now - datetime.timedelta(days=DAYS))
    # that with the newest event first
    readable = sorted(
        (each for each in newest if each.dag_id in dag_ids), key=newest.__getitem__, reverse=True
    )
    shown = readable[:MOST_SERIES]
    ids = [event_id for series in shown for _, event_id in newest[series]]
    events = _events(session, ids)
    found = []
    for series in shown:
        runs = _one_per_run(
            events[event_id] for _, event_id in reversed(newest[series]) if event_id in events
        )
        if runs:
            found.append(_described(series, assets[series.asset_id], runs, now))
    return {"read_at": now.isoformat(), "left_out": len(readable) - len(shown), "series": found}


def newest_events(session: Session) -> Iterable[tuple[AssetModel, AssetEvent]]:
    """Return each asset that has events, with its newest one."""
    newest = (
        select(AssetEvent.id)
        .where(AssetEvent.asset_id == AssetModel.id)
        .order_by(AssetEvent.timestamp.desc())
        .limit(1)
        .correlate(AssetModel)
        .scalar_subquery()
    )
    rows = session.execute(select(AssetModel, AssetEvent).join(AssetEvent, AssetEvent.id == newest))
    return [(asset, event) for asset, event in rows]


def _assets_of_landings(session: Session) -> dict[int, AssetModel]:
    return {asset.id: asset for asset, event in newest_events(session) if LandingEvent.of(event.extra)}


def _newest_ids(
    session: Session, assets: Collection[int], since: datetime.datetime
) -> dict[_Series, list[tuple[datetime.datetime, int]]]:
    """Return the times and ids of each series' newest events, the newest first."""
    event = AssetEvent
    columns = (event.asset_id, event.source_dag_id, event.source_task_id, event.source_map_index)
    place = func.row_number().over(partition_by=columns, order_by=(event.timestamp.desc(), event.id.desc()))
    numbered = (
        select(*columns, event.timestamp, event.id, place.label("place"))
        .where(event.asset_id.in_(assets), event.timestamp >= since, event.source_run_id.is_not(None))
        .subquery()
    )
    found: dict[_Series, list[tuple[datetime.datetime, int]]] = {}
    rows = session.execute(select(numbered).where(numbered.c.place <= MOST_RUNS).order_by(numbered.c.place))
    for *series, timestamp, event_id, _ in rows:
        found.setdefault(_Series(*series), []).append((timestamp, event_id))
    return found


def _events(session: Session, ids: Sequence[int]) -> dict[int, _Landing]:
    event = AssetEvent
    # not as objects of the ORM, which keep the garbage collector busy for longer than the query takes
    rows = session.execute(
        select(event.id, event.source_run_id, event.timestamp, event.extra).where(event.id.in_(ids))
    )
    return {
        event_id: _Landing(run_id, timestamp, landing)
        for event_id, run_id, timestamp, extra in rows
        if (landing := LandingEvent.of(extra))
    }


def _one_per_run(landings: Iterable[_Landing]) -> list[_Landing]:
    """Return the last landing of each run: one that was cleared has several."""
    found: dict[str | None, _Landing] = {}
    for landing in landings:
        found.pop(landing.run_id, None)
        found[landing.run_id] = landing
    return list(found.values())


def _described(
    series: _Series, asset: AssetModel, landings: Sequence[_Landing], now: datetime.datetime
) -> dict[str, Any]:
    newest = landings[-1]
    interval = _usual_interval(landings)
    silence = (now - newest.timestamp).total_seconds()
    return {
        "dag_id": series.dag_id,
        "task_id": series.task_id,
        "map_index": series.map_index,
        "asset": {"name": asset.name, "uri": asset.uri},
        "webcollect_conn_id": newest.event.webcollect_conn_id,
        "collection_task_id": ", ".join(newest.event.tasks()) or None,
        "lotno": newest.event.lotno or None,
        "destination": newest.event.destination,
        "usual_seconds": interval,
        "is_stale": interval is not None and silence > ODD_FACTOR * interval,
        "runs": [_run(landing, landings[:index]) for index, landing in enumerate(landings)],
    }


def _run(landing: _Landing, earlier: Sequence[_Landing]) -> dict[str, Any]:
    event = landing.event
    usual = usual_count([each.event.rows for each in earlier])
    return {
        "run_id": landing.run_id,
        "landed_at": landing.timestamp.isoformat(),
        "rows": event.rows,
        "bytes": event.bytes,
        "total_rows": None if event.total_rows is UNSET else event.total_rows,
        "duration": event.duration,
        "manifests": event.all_manifests(),
        "usual_rows": usual,
        "is_odd": is_odd(event.rows, usual),
    }


def usual_count(earlier: Sequence[float]) -> float | None:
    """Return the median of the latest counts; None if there are too few."""
    return statistics.median(earlier[-USUAL_RUNS:]) if len(earlier) >= FEWEST_RUNS else None


def is_odd(count: float, usual: float | None) -> bool:
    """Return whether a count is far from the usual one; nothing is if that is 0, or not known."""
    return bool(usual) and not usual / ODD_FACTOR <= count <= usual * ODD_FACTOR  # type: ignore[operator]


def _usual_interval(landings: Sequence[_Landing]) -> float | None:
    """Return the median of the seconds between the latest landings; None if there are too few."""
    pairs = itertools.pairwise(landing.timestamp for landing in landings)
    return usual_count([(later - earlier).total_seconds() for earlier, later in pairs])


#: How far back failures are shown.
FAILURE_HOURS = 24
#: How many tasks at work, and how many failures, are shown.
MOST_TASKS = 200

AT_WORK = (TaskInstanceState.RUNNING, TaskInstanceState.DEFERRED, TaskInstanceState.UP_FOR_RESCHEDULE)
FAILED = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)
#: The arguments that name collection tasks.
_IDS = ("collection_task_id", "collection_task_ids", "tasks", "sources")


def read_activity(session: Session, dag_ids: Collection[str], now: datetime.datetime) -> dict[str, Any]:
    """Return the tasks at work and the failures of the last day for the page.

    :param session: of Airflow's database.
    :param dag_ids: the DAGs whose tasks are returned.
    """
    day = now - datetime.timedelta(hours=FAILURE_HOURS)
    at_work = _tasks(session, dag_ids, TaskInstance.state.in_(AT_WORK), TaskInstance.start_date)
    failed = and_(TaskInstance.state.in_(FAILED), TaskInstance.end_date >= day)
    failures = _tasks(session, dag_ids, failed, TaskInstance.end_date)
    return {
        "read_at": now.isoformat(),
        "left_out": max(0, len(at_work) - MOST_TASKS) + max(0, len(failures) - MOST_TASKS),
        "running": [
            {
                **_task_facts(ti, fields),
                "since": _text(ti.start_date),
                "timeout_at": _text(ti.trigger_timeout),
                "way": _way(ti),
            }
            for ti, fields in at_work[:MOST_TASKS]
        ],
        "failures": [
            {**_task_facts(ti, fields), "ended_at": _text(ti.end_date)}
            for ti, fields in failures[:MOST_TASKS]
        ],
    }


def _tasks(
    session: Session, dag_ids: Collection[str], condition: ColumnElement[bool], moment: Any
) -> Sequence[tuple[TaskInstance, dict[str, Any] | None]]:
    """Return the provider's task instances with their rendered arguments, the latest first."""
    rendered = RenderedTaskInstanceFields
    is_same = [
        getattr(rendered, name) == getattr(TaskInstance, name)
        for name in ("dag_id", "run_id", "task_id", "map_index")
    ]
    rows = session.execute(
        select(TaskInstance, rendered.rendered_fields)
        .outerjoin(rendered, and_(*is_same))
        # operators of a DAG's author that extend the provider's are not found by their names
        .where(TaskInstance.operator.startswith("WebCollect"), condition)
        .order_by(moment.desc())
    )
    return [(ti, fields) for ti, fields in rows if ti.dag_id in dag_ids]


def _task_facts(ti: TaskInstance, fields: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "dag_id": ti.dag_id,
        "run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": ti.map_index,
        "operator": ti.operator,
        "state": ti.state,
        "try_number": ti.try_number,
        "collection_task_ids": _ids(fields or {}),
    }


def _ids(fields: dict[str, Any]) -> list[str]:
    """Return the collection tasks that the arguments of a task name."""
    found: list[str] = []
    for name in _IDS:
        value = fields.get(name)
        for entry in value if isinstance(value, list) else [value]:
            task_id = entry.get("collection_task_id") if isinstance(entry, dict) else entry
            if isinstance(task_id, str | int) and str(task_id) not in found:
                found.append(str(task_id))
    return found


def _way(ti: TaskInstance) -> str:
    """Return where a task is at work."""
    if ti.state == TaskInstanceState.UP_FOR_RESCHEDULE:
        return "between two queries, without a worker"
    if ti.state == TaskInstanceState.RUNNING:
        return "on a worker"
    # a host is recorded once a worker has run the task
    return "in the triggerer" if ti.hostname else "in the triggerer from the start"


def _text(moment: datetime.datetime | None) -> str | None:
    return moment.isoformat() if moment else None
