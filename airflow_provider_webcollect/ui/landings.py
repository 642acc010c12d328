"""The landings in Airflow's database, and the columns of their rows.

Asset events and failed task instances show the runs of a landing. Events have, for each column, the share of
the run's rows in which it is filled.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import json
import math
import re
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunType
from msgspec import UNSET, ValidationError, convert
from sqlalchemy import ColumnElement, String, and_, cast, func, or_, select, true

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.common import MOST_RETRIES, RETRY_GROUP
from airflow_provider_webcollect.landing.checks import (
    INPUTS,
    LEAST_USUAL,
    MOST_USUAL,
    CheckOutcome,
    usual_of,
)
from airflow_provider_webcollect.landing.formats.profile import MAX_COLUMNS
from airflow_provider_webcollect.landing.log.commits import COMMAND

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy.orm import Session

    from airflow_provider_webcollect.assets import InputsWithoutRows, LandedSource

#: Maximum number of series of landings that are shown, and of runs of each series.
MOST_SERIES, MOST_RUNS = 200, 30
#: If there are more series than this, the list of series is cached for this number of seconds.
MANY_SERIES, KEPT_SECONDS = 1_000, 60.0
#: Maximum number of columns of a landing that are shown.
MOST_COLUMNS = 50
#: A number is odd if it differs from the usual number by more than this factor; a landing is late after this
#: many of its usual intervals.
ODD_FACTOR = 2
#: Maximum number of a source's failed checks and warnings that are shown, and of characters of each.
MOST_OUTCOMES, MOST_CHARACTERS = 5, 300
#: Maximum number of missing inputs of a source that are shown.
MOST_INPUTS = 20
#: The task group of a retry of missing inputs, in the task id of the retry's landing.
_RETRY = re.compile(rf"(?<![^.]){RETRY_GROUP.format('[0-9]')}\.(?=land$)")
#: The names of the events in Airflow's audit log for decisions on quarantined rows that are made on the page.
DECISIONS = {"accept": "webcollect_accept", "discard": "webcollect_discard"}
#: No decision can have been made before this time.
_FIRST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
#: Selects the task instances of this provider's operators, but not of subclasses that a DAG's author has
#: written under other names.
IS_OURS = TaskInstance.operator.startswith("WebCollect")
#: The problems of a landing's newest run, or of one of its sources, the most serious first.
MARKS = ("failed", "checks", "late", "odd", "empty")
#: The types of runs that a person starts, which do not show when the next run is due. The last type exists
#: from Airflow 3.3 on.
_UNPLANNED = (DagRunType.MANUAL, DagRunType.BACKFILL_JOB, "asset_materialization")

_UNNAMED_RUN = "a run of another DAG"

#: The columns of a :class:`SeriesKey`.
_SERIES: tuple[Any, ...] = (
    AssetEvent.asset_id,
    AssetEvent.source_dag_id,
    AssetEvent.source_task_id,
    func.coalesce(AssetEvent.source_map_index, -1),
)
#: The columns of a :class:`SeriesKey` as one text; no id in Airflow contains a slash.
_SERIES_TEXT: ColumnElement[str] = functools.reduce(
    lambda text, column: text + "/" + column, [cast(column, String) for column in _SERIES]
)
#: Conditions that an asset event is from a landing: other operators and users also add events to assets.
_IS_LANDING = (
    cast(AssetEvent.extra, String).contains('"webcollect_conn_id"'),
    AssetEvent.source_dag_id.is_not(None),
    AssetEvent.source_task_id.is_not(None),
    AssetEvent.source_run_id.is_not(None),
)


class SeriesKey(NamedTuple):
    """The key of a series: the landings of one task, or one index of a mapped task, for one outlet asset."""

    asset_id: int
    dag_id: str
    task_id: str
    map_index: int

    @property
    def first(self) -> SeriesKey:
        """The series whose missing inputs this series retries; this series itself if it is not a retry."""
        return self._replace(task_id=_RETRY.sub("", self.task_id))

    @property
    def retries(self) -> list[SeriesKey]:
        """The series that may retry the missing inputs of this series."""
        group, _, label = self.task_id.rpartition("land")
        groups = [RETRY_GROUP.format(number) for number in range(1, MOST_RETRIES + 1)]
        return [] if label else [self._replace(task_id=f"{group}{retry}.land") for retry in groups]


class _Extent(NamedTuple):
    """All events of a series, without their contents.

    :ivar newest_id: the id of the last event.
    """

    newest: datetime.datetime
    oldest: datetime.datetime
    events: int
    newest_id: int

    def is_overdue(self, now: datetime.datetime) -> bool:
        """Return whether the last event is old for its series, by the mean time between its events."""
        if self.events < LEAST_USUAL:
            return False
        return now - self.newest > ODD_FACTOR * (self.newest - self.oldest) / (self.events - 1)


#: The time of ``time.monotonic()`` at which all series were last read, and these series.
_known: tuple[float, dict[SeriesKey, _Extent]] = (-math.inf, {})


@dataclass
class PastRun:
    """A run of a landing, from its newest event or from its failed task instance.

    :ivar ended_at: time of the event, or the end of the failed task instance.
    :ivar event: the newest event; None if the run has failed.
    :ivar is_planned: whether a schedule or an asset has started the run.
    :ivar retries: the events of the landings that have retried missing inputs in this run.
    """

    run_id: str
    ended_at: datetime.datetime
    event: LandingEvent | None
    logical_date: datetime.datetime | None = None
    is_planned: bool = True
    retries: list[LandingEvent] = field(default_factory=list)

    @functools.cached_property
    def sources(self) -> list[LandedSource]:
        """The state of each collection task after the run, from its events."""
        sources = self.event.sources() if self.event else []
        for event in self.retries:
            retried = {source.collection_task_id: source for source in event.sources()}
            sources = [_with_retry(source, retried.get(source.collection_task_id)) for source in sources]
        return sources

    @property
    def events(self) -> list[LandingEvent]:
        """All events of the run, in order."""
        return [self.event, *self.retries] if self.event else []

    @property
    def rows(self) -> int:
        """The number of rows that the run has landed, retries included."""
        return sum(event.rows for event in self.events)

    @property
    def state(self) -> str:
        if self.event is None:
            return "failed"
        if self.rows:
            return "landed"
        return "quarantined" if self.event.quarantined_rows else "empty"


def _with_retry(source: LandedSource, retry: LandedSource | None) -> LandedSource:
    """Return the state of a collection task after a retry of its missing inputs.

    :param retry: the source of the retry's event; None if there was no retry.
    """
    if retry is None:
        return source
    return source._replace(
        rows=None if source.rows is None or retry.rows is None else source.rows + retry.rows,
        checks=[*(check for check in source.checks if check.get("check") != INPUTS), *retry.checks],
        missing_inputs=retry.missing_inputs,
        commit=retry.commit,
        quarantined=[*source.quarantined, *retry.quarantined],
        waiting=retry.waiting,
    )


class _Expectation(NamedTuple):
    """The expected time of the next landing of a series.

    :ivar interval: the median time between the latest planned landings; None if there are too few of them.
    :ivar at: the time at which the next landing is due; None if there are too few planned landings.
    """

    interval: datetime.timedelta | None = None
    at: datetime.datetime | None = None

    @classmethod
    def of(cls, planned: Sequence[datetime.datetime], newest: datetime.datetime) -> _Expectation:
        """Return the expectation for a series.

        :param planned: the times of the planned landings, the oldest first.
        :param newest: the time of the newest landing, planned or not.
        """
        pairs = itertools.pairwise(planned)
        seconds = usual_of([(later - earlier).total_seconds() for earlier, later in pairs])
        if seconds is None:
            return cls()
        interval = datetime.timedelta(seconds=seconds)
        # the next planned time after the newest landing, which may have been started by hand
        passed = (newest - planned[-1]) // interval if interval else 0
        return cls(interval, planned[-1] + (passed + 1) * interval)

    def is_late(self, now: datetime.datetime) -> bool:
        """Return whether the next landing is overdue."""
        if self.interval is None or self.at is None:
            return False
        return now > self.at + (ODD_FACTOR - 1) * self.interval


def read_landings(
    session: Session, dag_ids: Collection[str], now: datetime.datetime, search: str = ""
) -> dict[str, Any]:
    """Return the latest landings for the page.

    :param session: a session of Airflow's database.
    :param dag_ids: the ids of the DAGs whose landings are returned.
    :param search: words, each of which must occur in the id of the DAG or the task, or in the name or the URI
        of the asset; empty (default) for all landings.
    """
    of_all = _known_extents(session)
    found_extents = of_all
    if search:
        found = _extents(session, and_(*map(_has_word, search.replace(" · ", " ").split())))
        # add the series that are new since all series were read
        of_all = of_all | {key: found[key] for key in found if key.first == key or key.first not in of_all}
        # if only a retry is found, the series of its first landing is shown
        firsts = (key.first if key.first in of_all else key for key in found)
        found_extents = {key: of_all[key] for key in firsts}
    extents = {key: extent for key, extent in found_extents.items() if key.dag_id in dag_ids}
    paused = set(session.scalars(select(DagModel.dag_id).where(DagModel.is_paused)))
    by_hand = set(session.scalars(select(DagModel.dag_id).where(DagModel.timetable_summary == "None")))
    unexpected = paused | by_hand
    failed_at = _last_failures(session)

    def is_expected(key: SeriesKey) -> bool:
        return key.dag_id not in unexpected

    def urgency(key: SeriesKey) -> tuple[bool, datetime.datetime]:
        extent = extents[key]
        has_failed = key[1:] in failed_at and failed_at[key[1:]] > extent.newest
        return has_failed or (is_expected(key) and extent.is_overdue(now)), extent.newest

    # retired series are the first to be left out, even if many of them are overdue
    ordered = sorted(extents, key=urgency, reverse=True)
    looked_at, retired = 0, dict[SeriesKey, str]()
    while looked_at < len(ordered) and looked_at - len(retired) < MOST_SERIES:
        retired |= _retired(session, of_all, ordered[looked_at : looked_at + 2 * MOST_SERIES])
        looked_at += 2 * MOST_SERIES
    keys = sorted(ordered[:looked_at], key=lambda key: key in retired)[:MOST_SERIES]
    landed_of = _landed(session, keys)
    failed_of = _failures(session, landed_of)
    is_shown = AssetModel.id.in_({key.asset_id for key in keys})
    shown = session.execute(select(AssetModel.id, AssetModel.name, AssetModel.uri).where(is_shown))
    assets = {row.id: row for row in shown}
    waiting = _waiting(session, landed_of, dag_ids)
    series = []
    for key, landed in landed_of.items():
        if landed and key.asset_id in assets:
            facts = _described(landed, failed_of[key], now, is_expected(key), retired.get(key))
            asset = {"name": assets[key.asset_id].name, "uri": assets[key.asset_id].uri}
            more = {"asset": asset, "is_paused": key.dag_id in paused, "quarantines": waiting[key]}
            series.append({**key._asdict(), **facts, **more})
    series.sort(key=lambda one: (one["dag_id"], one["task_id"], one["map_index"], one["asset"]["name"]))
    counts = {mark: sum(mark in one["marks"] for one in series) for mark in MARKS}
    return {
        "read_at": now.isoformat(),
        "left_out": len(extents) - len(keys),
        "counts": {"landings": len(series), **counts},
        "series": series,
        "names": {
            source.collection_task_id: source.collection_task_name
            for landed in landed_of.values()
            for run in landed
            for source in run.sources
            if source.collection_task_name
        },
    }


def _has_word(word: str) -> ColumnElement[bool]:
    """Return the SQL condition that a landing has a word in one of its names or in its asset's URI."""

    def has_it(*columns: Any) -> ColumnElement[bool]:
        return or_(*(func.lower(column).contains(word.lower(), autoescape=True) for column in columns))

    assets = select(AssetModel.id).where(has_it(AssetModel.name, AssetModel.uri))
    return or_(has_it(AssetEvent.source_dag_id, AssetEvent.source_task_id), AssetEvent.asset_id.in_(assets))


def newest_landings(session: Session) -> Iterator[tuple[str, LandingEvent]]:
    """Yield the DAG's id and the newest landing of each Airflow task for each of its assets.

    If there are more than :data:`MANY_SERIES` series, a landing of the last minute may be missing.
    """
    newest = [extent.newest_id for extent in _known_extents(session).values()]
    columns = (AssetEvent.source_dag_id, AssetEvent.extra)
    # databases limit the parameters of a query
    for some in (newest[begin : begin + 1000] for begin in range(0, len(newest), 1000)):
        for dag_id, extra in session.execute(select(*columns).where(AssetEvent.id.in_(some))):
            if landing := LandingEvent.of(extra):
                yield dag_id, landing


def read_columns(session: Session, key: SeriesKey, now: datetime.datetime) -> dict[str, Any]:
    """Return the latest runs of a landing and its columns.

    Columns with failed checks or warnings come first, then those whose filled share has changed most.

    :param session: a session of Airflow's database.
    :param key: the key of the landing's series; an unknown series has no runs and no columns.
    """

    def importance(column: dict[str, Any]) -> tuple[bool, float]:
        shares = [share for share in column["shares"] if share is not None]
        return bool(column["checks"]), max(shares) - min(shares) if shares else 0.0

    runs = runs_of(session, key)
    columns = sorted(_columns(runs), key=importance, reverse=True)
    return {
        "read_at": now.isoformat(),
        "left_out": max(0, len(columns) - MOST_COLUMNS),
        "runs": [{"ended_at": run.ended_at.isoformat(), "state": run.state} for run in runs],
        "columns": columns[:MOST_COLUMNS],
    }


def landed_runs_of(session: Session, key: SeriesKey) -> list[PastRun]:
    """Return the latest runs of a landing that have not failed, the oldest first."""
    return _one_per_run(_landed(session, [key])[key])


def runs_of(session: Session, key: SeriesKey) -> list[PastRun]:
    """Return the latest runs of a landing, the oldest first."""
    landed_of = _landed(session, [key])
    return _one_per_run([*landed_of[key], *_failures(session, landed_of)[key]])


def _columns(runs: Sequence[PastRun]) -> list[dict[str, Any]]:
    """Return the columns that any of the runs had; the newest run's columns come first.

    Each list of a column has an entry for each run; None if the run has no such value.
    """
    # by run and collection task: the source, and the failed checks and warnings of its columns
    by_run: list[dict[str, tuple[LandedSource, dict[str, list[str]]]]] = []
    for run in runs:
        by_task = {}
        for source in run.sources:
            checks = defaultdict[str, list[str]](list)
            for outcome in _not_passed(source):
                if outcome.column:
                    checks[outcome.column].append(str(outcome))
            by_task[source.collection_task_id] = source, {**checks}
        by_run.append(by_task)
    names = dict.fromkeys(
        (task_id, name)
        for by_task in reversed(by_run)
        for task_id, (source, checks) in by_task.items()
        for name in (*source.filled, *checks)
    )
    columns = []
    for task_id, name in names:
        facts = [by_task.get(task_id) for by_task in by_run]
        columns.append(
            {
                "collection_task_id": task_id,
                "name": name,
                "rows": [fact and fact[0].rows for fact in facts],
                "shares": [fact and _share(fact[0], name) for fact in facts],
                "checks": {
                    index: shortened("; ".join(fact[1][name]))
                    for index, fact in enumerate(facts)
                    if fact and name in fact[1]
                },
            }
        )
    return columns


def _share(source: LandedSource, name: str) -> float | None:
    """Return the share of the rows in which a column is filled, 0 to 1; None if it is not known."""
    if not source.rows or not source.filled:
        return None
    # with the maximum number of columns, it may be one of the columns that were left out
    return source.filled.get(name, 0.0 if len(source.filled) < MAX_COLUMNS else None)


def _not_passed(source: LandedSource) -> list[CheckOutcome]:
    """Return the checks that a source's rows have not passed, failed checks before warnings."""
    outcomes = []
    for check in source.checks:
        # users can add events with any checks
        with contextlib.suppress(ValidationError):
            outcomes.append(convert(check, CheckOutcome))
    return [outcome for state in ("failed", "warning") for outcome in outcomes if outcome.state == state]


def _known_extents(session: Session) -> dict[SeriesKey, _Extent]:
    """Return the series of all landings; if there are many, the list may be up to a minute old.

    Reading all events of thousands of series takes longer than everything else, and the choice of the shown
    series need not change more often. The contents of the shown series are always read again.
    """
    global _known  # each process has its own
    known_at, known = _known
    is_new = time.monotonic() - known_at < KEPT_SECONDS
    if not is_new or len(known) <= MANY_SERIES:
        known = _extents(session, true())
        _known = time.monotonic(), known
    return known


def _extents(session: Session, condition: ColumnElement[bool]) -> dict[SeriesKey, _Extent]:
    """Return the extents of the series whose events meet a condition, except retries of these series."""
    moment = AssetEvent.timestamp
    columns = (*_SERIES, func.max(moment), func.min(moment), func.count(), func.max(AssetEvent.id))
    rows = session.execute(select(*columns).where(*_IS_LANDING, condition).group_by(*_SERIES))
    extents = {SeriesKey(*row[:4]): _Extent(*row[4:]) for row in rows}
    return {key: extent for key, extent in extents.items() if key.first == key or key.first not in extents}


def _landed(session: Session, keys: Collection[SeriesKey]) -> dict[SeriesKey, list[PastRun]]:
    """Return the runs of each series from its newest events, the oldest first."""
    event, run = AssetEvent, DagRun
    number = func.row_number().over(
        partition_by=_SERIES_TEXT, order_by=(event.timestamp.desc(), event.id.desc())
    )
    # the condition on the assets is redundant, but has an index
    texts = [_text(each) for key in keys for each in (key, *key.retries)]
    is_asked = (event.asset_id.in_({key.asset_id for key in keys}), _SERIES_TEXT.in_(texts))
    numbered = select(event.id, number.label("number")).where(*_IS_LANDING, *is_asked).subquery()
    # select columns and JSON text: ORM objects and dicts keep the garbage collector busy for longer than the
    # query takes
    extra_json = cast(event.extra, String)
    rows = session.execute(
        select(*_SERIES, event.timestamp, event.source_run_id, extra_json, run.logical_date, run.run_type)
        .join(numbered, numbered.c.id == event.id)
        .outerjoin(run, and_(run.dag_id == event.source_dag_id, run.run_id == event.source_run_id))
        .where(numbered.c.number <= MOST_RUNS)
        .order_by(event.timestamp, event.id)
    )
    landed_of: dict[SeriesKey, list[PastRun]] = {key: [] for key in keys}
    for *parts, timestamp, run_id, extra, logical_date, run_type in rows:
        if not (landing := LandingEvent.of(extra)):
            continue
        if (key := SeriesKey(*parts)) in landed_of:
            past = PastRun(run_id, timestamp, landing, logical_date, run_type not in _UNPLANNED)
            landed_of[key].append(past)
        else:
            for past in landed_of[key.first]:
                if past.run_id == run_id:
                    past.retries.append(landing)
    return landed_of


def _text(key: SeriesKey) -> str:
    return "/".join(map(str, key))


def _last_failures(session: Session) -> dict[tuple[str, str, int], datetime.datetime]:
    """Return the time of the last failure of each task of this provider, by task and map index."""
    ti = TaskInstance
    columns = (ti.dag_id, ti.task_id, ti.map_index)
    failed = (IS_OURS, ti.state == TaskInstanceState.FAILED)
    rows = session.execute(select(*columns, func.max(ti.end_date)).where(*failed).group_by(*columns))
    return {
        (dag_id, task_id, map_index): ended_at for dag_id, task_id, map_index, ended_at in rows if ended_at
    }


def _failures(
    session: Session, landed_of: Mapping[SeriesKey, Sequence[PastRun]]
) -> dict[SeriesKey, list[PastRun]]:
    """Return the failed runs of each series since the oldest event in ``landed_of``."""
    since = min((landed[0].ended_at for landed in landed_of.values() if landed), default=None)
    if since is None:
        return {key: [] for key in landed_of}
    ti, run = TaskInstance, DagRun
    rows = session.execute(
        select(ti.dag_id, ti.task_id, ti.map_index, ti.run_id, ti.end_date, run.logical_date, run.run_type)
        .join(run, and_(run.dag_id == ti.dag_id, run.run_id == ti.run_id))
        .where(IS_OURS, ti.state == TaskInstanceState.FAILED, ti.end_date >= since)
        .where(ti.dag_id.in_({key.dag_id for key in landed_of}))
    )
    of_task: dict[tuple[str, str, int], list[PastRun]] = {}
    for dag_id, task_id, map_index, run_id, ended_at, logical_date, run_type in rows:
        assert ended_at
        failed = PastRun(run_id, ended_at, None, logical_date, run_type not in _UNPLANNED)
        of_task.setdefault((dag_id, task_id, map_index), []).append(failed)
    return {
        key: [run for each in (key, *key.retries) for run in of_task.get(each[1:], ())] for key in landed_of
    }


def _retired(
    session: Session, extents: Mapping[SeriesKey, _Extent], keys: Collection[SeriesKey]
) -> dict[SeriesKey, str]:
    """Return the retired series, whose landings no longer come, each with the reason.

    A DAG has the tasks, and the indexes of mapped tasks, of its newest run that has ended.

    :param extents: the extents of all series, including those that a search leaves out.
    :param keys: the keys of the series to check.
    """
    stale = set(session.scalars(select(DagModel.dag_id).where(DagModel.is_stale)))
    ti, run = TaskInstance, DagRun
    has_ended = run.state.in_((DagRunState.SUCCESS, DagRunState.FAILED))
    is_asked = run.dag_id.in_({key.dag_id for key in keys})
    newest_runs = select(func.max(run.id)).where(has_ended, is_asked).group_by(run.dag_id)
    rows = session.execute(
        select(ti.dag_id, ti.task_id, ti.map_index, ti.state, run.end_date)
        .join(run, and_(run.dag_id == ti.dag_id, run.run_id == ti.run_id))
        .where(run.id.in_(newest_runs))
    )
    indexes_of: dict[str, dict[str, dict[int, str | None]]] = {}
    ended_at: dict[str, datetime.datetime | None] = {}
    for dag_id, task_id, map_index, state, moment in rows:
        indexes_of.setdefault(dag_id, {}).setdefault(task_id, {})[map_index] = state
        ended_at[dag_id] = moment
    # a task may land elsewhere in each run, or to several assets in one run
    newest_of = {key[1:]: extents[key] for key in sorted(extents, key=lambda key: extents[key].newest)}
    event_ids = {extent.newest_id for key in keys for extent in (extents[key], newest_of[key[1:]])}
    is_newest = AssetEvent.id.in_(event_ids)
    events = session.execute(select(AssetEvent.id, AssetEvent.source_run_id).where(is_newest))
    run_of = {event.id: event.source_run_id for event in events}

    def reason(key: SeriesKey) -> str | None:
        if key.dag_id in stale:
            return "Airflow no longer has the DAG"
        tasks, moment = indexes_of.get(key.dag_id), ended_at.get(key.dag_id)
        # a landing after that run's end is from a run that is still running, or that was cleared
        if tasks and (moment is None or extents[key].newest <= moment):
            indexes = tasks.get(key.task_id)
            if indexes is None:
                return "the DAG no longer has the task"
            # a mapped task that this run did not expand has the index -1, under which it has not run
            if key.map_index not in indexes and indexes.get(-1, "success") in ("success", "failed"):
                return "the task no longer has the index"
        if run_of[extents[key].newest_id] != run_of[newest_of[key[1:]].newest_id]:
            return "the task has landed elsewhere since"
        return None

    return {key: why for key in keys if (why := reason(key))}


def _one_per_run(runs: Iterable[PastRun]) -> list[PastRun]:
    """Return the last entry for each run, the oldest first: a run that was cleared has several entries."""
    last_of: dict[str, PastRun] = {}
    for run in sorted(runs, key=lambda run: run.ended_at):
        last_of.pop(run.run_id, None)
        last_of[run.run_id] = run
    return list(last_of.values())[-MOST_RUNS:]


def _described(
    landed: Sequence[PastRun],
    failed: Sequence[PastRun],
    now: datetime.datetime,
    is_expected: bool,
    retired: str | None,
) -> dict[str, Any]:
    """Return the description of a series for the page.

    :param landed: the runs that have landed, the oldest first; at least one.
    :param failed: the failed runs.
    :param is_expected: whether the DAG has a schedule and is not paused.
    :param retired: the reason why the landing no longer comes; None if it still does.
    """
    newest = landed[-1]
    assert newest.event
    runs = _one_per_run([*landed, *failed])
    # runs that a person has started do not show the usual interval
    planned = [run.ended_at for run in _one_per_run(landed) if run.is_planned]
    if not is_expected or retired:
        planned = []
    next_one = _Expectation.of(planned, newest.ended_at)
    sources = _sources(runs, newest)
    holds = {source["mark"] for source in sources}
    holds |= {"checks" for source in sources if source["checks"]}
    holds |= {"failed" if runs[-1].event is None else None, "late" if next_one.is_late(now) else None}
    return {
        "webcollect_conn_id": newest.event.webcollect_conn_id,
        "lotno": newest.event.lotno or None,
        "sources": sources,
        "object_storage_conn_id": newest.event.object_storage_conn_id,
        "destination": newest.event.destination,
        "manifests": newest.event.all_manifests(),
        "retired": retired,
        "marks": [] if retired else [mark for mark in MARKS if mark in holds],
        "usual_seconds": next_one.interval and next_one.interval.total_seconds(),
        "expected_at": next_one.at and next_one.at.isoformat(),
        "landed_at": newest.ended_at.isoformat(),
        "runs": [_run(run, newest.event) for run in runs],
    }


def _is_odd(rows: int, usual_rows: float | None) -> bool:
    """Return whether a number of rows differs from the usual number by more than :data:`ODD_FACTOR`."""
    if not rows or not usual_rows:
        return False
    return not usual_rows / ODD_FACTOR <= rows <= usual_rows * ODD_FACTOR


def _sources(runs: Sequence[PastRun], newest: PastRun) -> list[dict[str, Any]]:
    """Return the sources of the newest landing, each with its usual number of rows and its problems."""
    earlier = defaultdict[str, list[int]](list)
    for run in runs[:-1]:
        for source in run.sources:
            if source.rows is not None and not source.is_quarantined:
                earlier[source.collection_task_id].append(source.rows)
    # a failed run has no information about its sources
    has_ended_well = runs[-1].event is not None
    described = []
    for source in newest.sources:
        mark = None
        if has_ended_well and source.rows is not None and not source.is_quarantined:
            latest = earlier[source.collection_task_id][-MOST_USUAL:]
            if _is_odd(source.rows, source.usual_rows):
                mark = "odd"
            # an empty run is only unusual if none of the latest runs was empty
            elif not source.rows and len(latest) >= LEAST_USUAL and all(latest):
                mark = "empty"
        described.append(
            {
                "collection_task_id": source.collection_task_id,
                "rows": source.rows,
                "commit": source.commit,
                "usual_rows": source.usual_rows,
                "mark": mark,
                "missing_inputs": _shown_inputs(source.missing_inputs) if has_ended_well else None,
                **first_checks(_not_passed(source) if has_ended_well else []),
            }
        )
    return described


def _shown_inputs(missing: InputsWithoutRows | None) -> dict[str, Any] | None:
    """Return the first missing inputs and the number of the others; None if none is missing."""
    if not (missing and missing.count):
        return None
    shown = [shortened(item) for item in missing.inputs[:MOST_INPUTS]]
    return {"inputs": shown, "left_out": max(0, missing.count - len(shown))}


def first_checks(outcomes: Sequence[CheckOutcome]) -> dict[str, Any]:
    """Return the first of the given checks for the page, and the number of the others."""
    return {
        "checks": [
            {"state": outcome.state, "text": shortened(str(outcome))} for outcome in outcomes[:MOST_OUTCOMES]
        ],
        "checks_left_out": max(0, len(outcomes) - MOST_OUTCOMES),
    }


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text, shortened to at most ``most`` characters to keep responses small."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _waiting(
    session: Session, landed_of: Mapping[SeriesKey, Sequence[PastRun]], dag_ids: Collection[str]
) -> dict[SeriesKey, list[dict[str, Any]]]:
    """Return the runs with quarantined rows in each series, the newest first.

    The newest event of a landing lists all rows that were quarantined at that time. Later decisions are only
    known if they were made on the page. Several DAGs may land in one folder.

    :param dag_ids: the ids of the DAGs whose runs the user may see by name.
    """
    found = [
        (key, event, source, rows)
        for key, landed in landed_of.items()
        for event, source in _newest_sources(landed)
        for rows in source.waiting
    ]
    decided = _decisions(session, min((rows.at for *_, rows in found), default=None))
    has_id = DagRun.run_id.in_({rows.run_id for *_, rows in found})
    known = {tuple(row) for row in session.execute(select(DagRun.dag_id, DagRun.run_id).where(has_id))}
    waiting: dict[SeriesKey, dict[tuple[str, str], dict[str, Any]]] = {key: {} for key in landed_of}
    for key, event, source, rows in sorted(found, key=lambda each: each[-1].at, reverse=True):
        # in a folder that was emptied, the numbers of commits begin again
        if decided.get((source.manifest, rows.commit), rows.at) > rows.at:
            continue
        run = (rows.dag_id, rows.run_id)
        new = {
            "dag_id": rows.dag_id if rows.dag_id in dag_ids else key.dag_id,
            "run_id": run_name(*run, dag_ids),
            "is_known": rows.dag_id in dag_ids and run in known,
            "ended_at": rows.at.isoformat(),
            "rows": 0,
            "object_storage_conn_id": event.object_storage_conn_id,
            "waiting": [],
        }
        of_run = waiting[key].setdefault(run, new)
        of_run["rows"] += rows.rows
        of_run["waiting"].append(
            {
                "collection_task_id": source.collection_task_id,
                "landing": source.landing,
                "commit": rows.commit,
            }
        )
    return {key: list(runs.values()) for key, runs in waiting.items()}


def run_name(dag_id: str, run_id: str, dag_ids: Collection[str]) -> str:
    """Return the name of a run for a user; only runs of readable DAGs and of commands have their ids.

    :param dag_ids: the ids of the DAGs that the user may read.
    """
    return run_id if dag_id == COMMAND or dag_id in dag_ids else _UNNAMED_RUN


def _newest_sources(landed: Sequence[PastRun]) -> Iterable[tuple[LandingEvent, LandedSource]]:
    """Return the newest event and source of each landing."""
    return {
        source.manifest: (run.event, source) for run in landed if run.event for source in run.sources
    }.values()


def _decisions(session: Session, since: datetime.datetime | None) -> dict[tuple[str, int], datetime.datetime]:
    """Return the times of decisions on the page, by the landing's manifest and the commit's number.

    :param since: the time of the first possible decision; None to return no decisions.
    """
    if since is None:
        return {}
    # users can add events with any times, some of which cannot be converted to UTC
    since = min(max(since, _FIRST), datetime.datetime.now(datetime.UTC))
    is_decision = (Log.event.in_(DECISIONS.values()), Log.dttm >= since)
    decided = {}
    rows = session.execute(select(Log.extra, Log.dttm).where(*is_decision).order_by(Log.dttm))
    for extra, moment in rows:
        assert extra
        assert moment
        facts = json.loads(extra)
        decided[facts["manifest"], facts["commit"]] = moment
    return decided


def _run(run: PastRun, newest: LandingEvent) -> dict[str, Any]:
    event, last = run.event, run.events[-1] if run.event else None
    facts: dict[str, Any] = {
        "run_id": run.run_id,
        "logical_date": run.logical_date and run.logical_date.isoformat(),
        "ended_at": run.ended_at.isoformat(),
        "state": run.state,
        "rows": event and run.rows,
        "total_rows": None if last is None or last.total_rows is UNSET else last.total_rows,
        "commit": None if last is None or last.commit is UNSET else last.commit,
        "bytes": event and sum(each.bytes for each in run.events),
        "duration": event and sum(each.duration for each in run.events),
        "usual_rows": event and event.usual_rows,
        # for quarantined rows, their checks show the problem
        "is_odd": event is not None
        and not any(source.is_quarantined for source in run.sources)
        and _is_odd(run.rows, event.usual_rows),
    }
    if quarantined := sum(each.quarantined_rows for each in run.events):
        facts["quarantined_rows"] = quarantined
    if event and event.changes:
        facts["changes"] = event.changes
    if event and event.all_manifests() != newest.all_manifests():
        facts["manifests"] = event.all_manifests()
    return facts
