"""The landings of the last weeks, by the asset events that they have left in Airflow's database."""

from __future__ import annotations

import datetime
import itertools
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.asset import AssetEvent, AssetModel
from sqlalchemy import func, select

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sqlalchemy.orm import Session

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


class _Event(NamedTuple):
    """What is read of an asset event."""

    run_id: str | None
    timestamp: datetime.datetime
    extra: Any


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
        if runs := _one_per_run(events[event_id] for _, event_id in reversed(newest[series])):
            found.append(_described(series, assets[series.asset_id], runs, now))
    return {"read_at": now.isoformat(), "left_out": len(readable) - len(shown), "series": found}


def is_landing(extra: Any) -> bool:
    """Return whether an asset event's ``extra`` is that of a landing."""
    return (
        isinstance(extra, dict)
        and ("manifest" in extra or "manifests" in extra)
        and all(isinstance(extra.get(name), int) for name in ("rows", "bytes"))
    )


def collection_tasks(extra: dict[str, Any]) -> list[str]:
    """Return the collection tasks that a landing's event names; anyone may add events, with any extra."""
    ids = extra.get("collection_task_ids") or [extra.get("collection_task_id")]
    return [task_id for task_id in ids if isinstance(task_id, str)]


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
    return {asset.id: asset for asset, event in newest_events(session) if is_landing(event.extra)}


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


def _events(session: Session, ids: Sequence[int]) -> dict[int, _Event]:
    event = AssetEvent
    # not as objects of the ORM, which keep the garbage collector busy for longer than the query takes
    rows = session.execute(
        select(event.id, event.source_run_id, event.timestamp, event.extra).where(event.id.in_(ids))
    )
    return {event_id: _Event(*values) for event_id, *values in rows}


def _one_per_run(events: Iterable[_Event]) -> list[_Event]:
    """Return the landings among the events, and of each run the last: one that was cleared has several."""
    found: dict[str | None, _Event] = {}
    for event in events:
        if is_landing(event.extra):
            found.pop(event.run_id, None)
            found[event.run_id] = event
    return list(found.values())


def _described(
    series: _Series, asset: AssetModel, events: Sequence[_Event], now: datetime.datetime
) -> dict[str, Any]:
    newest = events[-1]
    interval = _usual_interval(events)
    silence = (now - newest.timestamp).total_seconds()
    return {
        "dag_id": series.dag_id,
        "task_id": series.task_id,
        "map_index": series.map_index,
        "asset": {"name": asset.name, "uri": asset.uri},
        "webcollect_conn_id": newest.extra.get("webcollect_conn_id"),
        "collection_task_id": ", ".join(collection_tasks(newest.extra)) or None,
        "lotno": newest.extra.get("lotno"),
        "destination": newest.extra.get("destination"),
        "usual_seconds": interval,
        "is_stale": interval is not None and silence > ODD_FACTOR * interval,
        "runs": [_run(event, events[:index]) for index, event in enumerate(events)],
    }


def _run(event: _Event, earlier: Sequence[_Event]) -> dict[str, Any]:
    extra = event.extra
    usual = usual_count([each.extra["rows"] for each in earlier])
    return {
        "run_id": event.run_id,
        "landed_at": event.timestamp.isoformat(),
        "rows": extra["rows"],
        "bytes": extra["bytes"],
        "total_rows": extra.get("total_rows"),
        "duration": extra.get("duration"),
        "manifests": extra.get("manifests") or [extra.get("manifest")],
        "usual_rows": usual,
        "is_odd": is_odd(extra["rows"], usual),
    }


def usual_count(earlier: Sequence[float]) -> float | None:
    """Return the median of the latest counts; None if there are too few."""
    return statistics.median(earlier[-USUAL_RUNS:]) if len(earlier) >= FEWEST_RUNS else None


def is_odd(count: float, usual: float | None) -> bool:
    """Return whether a count is far from the usual one; nothing is if that is 0, or not known."""
    return bool(usual) and not usual / ODD_FACTOR <= count <= usual * ODD_FACTOR  # type: ignore[operator]


def _usual_interval(events: Sequence[_Event]) -> float | None:
    """Return the median of the seconds between the latest landings; None if there are too few."""
    pairs = itertools.pairwise(event.timestamp for event in events)
    return usual_count([(later - earlier).total_seconds() for earlier, later in pairs])
