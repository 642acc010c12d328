"""The rows of a landing: the first five rows, the tables that they were loaded into, and quarantined rows.

The storage may hang, so functions that query it have no session of Airflow's database open at that time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from airflow.models.log import Log
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import and_, select

from airflow_provider_webcollect.assets import storable
from airflow_provider_webcollect.hooks.storage import connections_of
from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.errors import NothingLanded, NothingToReview, StorageError
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.write import review
from airflow_provider_webcollect.ui.activity import IDENTITY, is_same_task
from airflow_provider_webcollect.ui.landings import (
    DECISIONS,
    first_checks,
    landed_runs_of,
    run_name,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from airflow_provider_webcollect.assets import LandedSource, WaitingRows
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.ui.landings import SeriesKey

    #: The id of a run, a source of the run's event, and the connection of the storage.
    _Found = tuple[str, LandedSource, str | None]

#: Maximum number of rows, of their columns, and of characters of a value that are shown.
MOST_ROWS, MOST_COLUMNS, MOST_CHARACTERS = 5, 20, 100
#: Maximum number of requests that query storages at once in a process, since they use threads of Airflow's
#: whole API; and the number of seconds for which another request waits.
MOST_AT_ONCE, PATIENCE = 4, 5.0
#: The fields of a load's result that are shown.
_LOADED = ("table", "rows", "parts", "commit", "skipped_rows", "skipped")
_turns = threading.BoundedSemaphore(MOST_AT_ONCE)


def read_rows(key: SeriesKey, landing: str | None = None, commit: int | None = None) -> dict[str, Any]:
    """Return the first rows of the newest run with rows, as text. If it has several sources, one is chosen.

    :param key: the key of the landing's series.
    :param landing: the folder, or the name of the table, that ``commit`` belongs to; None without ``commit``.
    :param commit: the number of a commit, to return the first rows that it has quarantined, with the rules
        that each row has broken; None (default) for landed rows.
    :raises NothingLanded: if there are no rows.
    :raises NothingToReview: if the commit has no quarantined rows.
    :raises LandingError: or :class:`.InvalidArgument`, if the storage cannot be read.
    """
    if commit is not None:
        _, source, conn_id = _quarantining(key, landing, commit)
    elif newest := _newest(key, lambda source: bool(source.rows)):
        _, source, conn_id = newest
    else:
        raise NothingLanded("none of the latest runs has landed rows")
    with _opened(source.manifest, conn_id) as folder:
        landed = read_landing(folder, quarantined=commit)
        rows = landed.first_rows(MOST_ROWS)
        reasons = [] if commit is None else list(itertools.islice(landed.reasons(), MOST_ROWS))
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = names[:MOST_COLUMNS]
    return storable(
        {
            "collection_task_id": source.collection_task_id,
            "columns": [_text(name) for name in columns],
            "rows": [[_text(row.get(name)) for name in columns] for row in rows],
            "broke": [_text(", ".join(broke) or None) for broke in reasons],
            "left_out": len(names) - len(columns),
        }
    )


def read_loads(key: SeriesKey, dag_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return the last load of a landing's rows into each table by each Airflow task, the newest first.

    Loads are found by their results in Airflow's XComs, and only in runs whose rendered arguments Airflow
    keeps, by default the latest 30.

    :param key: the key of the landing's series.
    :param dag_ids: the ids of the DAGs whose loads are returned.
    """
    ti, arguments, xcom = TaskInstance, RenderedTaskInstanceFields, XComModel
    loads = (
        select(ti, arguments.rendered_fields, xcom.value)
        .join(arguments, is_same_task(arguments, ti))
        .join(xcom, and_(is_same_task(xcom, ti), xcom.key == "return_value"))
        .where(ti.operator == "WebCollectLoadOperator", ti.state == TaskInstanceState.SUCCESS)
        .where(ti.dag_id.in_(dag_ids))
        .order_by(ti.end_date)
    )
    loads_of: dict[tuple[Any, ...], dict[str, Any]] = {}
    with create_session() as session:
        events = [run.event for run in landed_runs_of(session, key) if run.event]
        places = {_address(manifest) for event in events for manifest in event.all_manifests()}
        for row in session.execute(loads):
            instance, given, value = row.TaskInstance, row.rendered_fields, XComModel.deserialize_value(row)
            # a custom XCom backend may store the value elsewhere: then the result is not a dict
            results = value.get("sources", [value]) if isinstance(value, dict) else []
            for result in results:
                if not places & {_address(of.get("landing")) for of in (given, result)}:
                    continue
                task = {name: getattr(instance, name) for name in IDENTITY}
                facts = {name: result.get(name) for name in _LOADED}
                where = {
                    "warehouse_conn_id": given.get("warehouse_conn_id"),
                    "ended_at": instance.end_date.isoformat(),
                }
                table = (instance.dag_id, instance.task_id, instance.map_index, str(facts["table"]))
                # a load without new rows only shows that the table has all rows
                earlier = {} if facts["parts"] else loads_of.get(table, {})
                loads_of[table] = {**task, **where, **facts, **earlier, "commit": facts["commit"]}
    return sorted(loads_of.values(), key=lambda load: load["ended_at"], reverse=True)


def read_waiting(key: SeriesKey, landing: str, commit: int, dag_ids: Collection[str]) -> dict[str, Any]:
    """Return the facts on quarantined rows that a person should know before a decision.

    :param key: the key of the landing's series.
    :param landing: the folder, or the name of the table.
    :param commit: the number of the commit that has quarantined the rows.
    :param dag_ids: the ids of the DAGs whose runs the user may see by name.
    :raises NothingToReview: if the rows are not quarantined; the error says who has decided, if that is
        known.
    :raises LandingError: or :class:`.InvalidArgument`, if the storage cannot be read.
    """
    _, source, conn_id = _quarantining(key, landing, commit)
    with _opened(source.manifest, conn_id) as folder:
        apart = review.waiting(folder, commit)
        parts = read_landing(folder, quarantined=commit).parts()
    broken = sum((Counter(part.broke) for part in parts), Counter())
    outcomes = sorted(apart.checks, key=lambda outcome: outcome.state != "failed")
    told = first_checks(outcomes)
    for outcome, check in zip(outcomes, told["checks"], strict=False):
        check["rows"] = broken.get(outcome.check)
    return storable(
        {
            "run_id": run_name(apart.run.dag_id, apart.run.run_id, dag_ids),
            "rows": apart.rows,
            "is_whole": apart.has_failed,
            "replaces": apart.replaces,
            "is_earlier": apart.is_earlier,
            **told,
        }
    )


def decide(key: SeriesKey, landing: str, commit: int, decision: review.Choice, user: str) -> dict[str, Any]:
    """Accept or discard the rows that a commit has quarantined, and add the decision to Airflow's audit log.

    :param key: the key of the landing's series.
    :param landing: the folder, or the name of the table.
    :param commit: the number of the commit that has quarantined the rows.
    :param user: the user who decides; a second decision of the same user on the same rows changes nothing.
    :raises NothingToReview: if the rows are not quarantined; the error says who has decided, if that is
        known.
    :raises LandingError: or :class:`.InvalidArgument`, if the storage cannot be read or written.
    """
    run_id, source, conn_id = _quarantining(key, landing, commit)
    with _opened(source.manifest, conn_id) as folder:
        act = {"accept": review.accept, "discard": review.discard}[decision]
        rows = act(folder, commit=commit, by=user).rows
    facts = {
        "collection_task_id": source.collection_task_id,
        "collection_task_name": source.collection_task_name,
        "manifest": source.manifest,
        "commit": commit,
        "rows": rows,
    }
    extra = json.dumps(storable(facts))
    task: dict[str, Any] = {**key._asdict(), "run_id": run_id}
    with create_session() as session:
        session.add(Log(DECISIONS[decision], owner=user, extra=extra, **task))
    return {"rows": rows}


def _quarantining(key: SeriesKey, landing: str | None, commit: int) -> _Found:
    """Return the source whose rows a commit has quarantined, and the id of the run that has read them."""

    def meant(source: LandedSource) -> list[WaitingRows]:
        return [rows for rows in source.waiting if source.landing == landing and rows.commit == commit]

    found = _newest(key, lambda source: bool(meant(source)))
    if found is None:
        raise NothingToReview(f"no run shown here has quarantined rows in commit {commit} at {landing}")
    _, source, conn_id = found
    return meant(source)[0].run_id, source, conn_id


def _newest(key: SeriesKey, is_meant: Callable[[LandedSource], bool]) -> _Found | None:
    """Return the newest source that meets the condition, with its run; None if there is none."""
    with create_session() as session:
        runs = landed_runs_of(session, key)
    found = (
        (run.run_id, source, run.event.object_storage_conn_id)
        for run in reversed(runs)
        if run.event
        for source in run.sources
        if is_meant(source)
    )
    return next(found, None)


@contextlib.contextmanager
def _opened(manifest: str, conn_id: str | None) -> Iterator[Folder]:
    """Yield a landing's folder, once this request may query the storage.

    :raises StorageError: if other requests query storages for too long.
    """
    if not _turns.acquire(timeout=PATIENCE):
        raise StorageError("other requests wait for a storage that does not answer; try again later")
    try:
        location = Location.parse_landed("landing", manifest, conn_id=conn_id, may_differ=True)
        yield location.open_landed(connections_of(location))
    finally:
        _turns.release()


def _address(landing: object) -> str:
    """Return the address of a landing without its connection, to compare landings.

    :param landing: the folder, its manifest, or the name of the table; all give the same address.
    """
    return Location("folder", str(landing).removesuffix(f"/{MANIFEST}")).asset_uri


def _text(value: Any) -> str | None:
    if value is None:
        return None
    # values from Parquet can also be decimals, dates and times
    is_json = isinstance(value, bool | int | float | list | dict)
    text = json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)
    return shortened(text, MOST_CHARACTERS)
