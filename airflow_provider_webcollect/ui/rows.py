"""The rows of a landing: five of them, where they were loaded to, and decisions on quarantined ones.

Functions that ask the storage, which may hang, have no session of Airflow's database open meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, Literal

from airflow.models.log import Log
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import and_, select

from airflow_provider_webcollect.assets import Address, storable
from airflow_provider_webcollect.destinations import connected_path
from airflow_provider_webcollect.landing import review
from airflow_provider_webcollect.landing.errors import NothingLanded, NothingToReview, StorageError
from airflow_provider_webcollect.landing.names import MANIFEST
from airflow_provider_webcollect.landing.options import connection_of
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.ui.landings import DECISIONS, quarantining, runs_of, shortened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from airflow_provider_webcollect.ui.landings import SeriesKey

Decision = Literal["accept", "discard"]

#: How many rows are shown, how many of their columns, and how many characters of a value.
MOST_ROWS, MOST_COLUMNS, MOST_CHARACTERS = 5, 20, 100
#: How many requests of a process ask a storage at once, since they use threads of Airflow's whole API; how
#: many seconds another one waits.
MOST_AT_ONCE, PATIENCE = 4, 5.0
#: The fields of a load's result that are shown.
_LOADED = ("table", "rows", "parts", "commit", "skipped_rows", "skipped")
_turns = threading.BoundedSemaphore(MOST_AT_ONCE)


def read_rows(key: SeriesKey) -> dict[str, Any]:
    """Return the first rows of the newest run with rows, as texts; of several sources, of one.

    :param key: of the landing's series.
    :raises NothingLanded: if there are none.
    :raises LandingError: or :class:`.InvalidArgument`, if the storage cannot be read.
    """
    with create_session() as session:
        events = [run.event for run in reversed(runs_of(session, key)) if run.event]
    sources = [
        (source, event.object_storage_conn_id)
        for event in events
        for source in event.sources()
        if source.rows
    ]
    if not sources:
        raise NothingLanded("none of the latest runs has landed rows")
    source, conn_id = sources[0]
    with _opened(source.manifest, conn_id) as landing:
        rows = read_landing(landing).first_rows(MOST_ROWS)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = names[:MOST_COLUMNS]
    return storable(
        {
            "collection_task_id": source.collection_task_id,
            "columns": [_text(name) for name in columns],
            "rows": [[_text(row.get(name)) for name in columns] for row in rows],
            "left_out": len(names) - len(columns),
        }
    )


def read_loads(key: SeriesKey, dag_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return the last load of rows of a landing into each table by each Airflow task, the newest first.

    They are known by their results, in Airflow's XComs, of the runs whose arguments it keeps: the latest 30.

    :param dag_ids: the DAGs whose loads are returned.
    """
    ti, arguments, xcom = TaskInstance, RenderedTaskInstanceFields, XComModel

    def is_of(other: Any) -> Any:
        names = ("dag_id", "run_id", "task_id", "map_index")
        return and_(*(getattr(other, name) == getattr(ti, name) for name in names))

    loads = (
        select(ti, arguments.rendered_fields, xcom.value)
        .join(arguments, is_of(arguments))
        .join(xcom, and_(is_of(xcom), xcom.key == "return_value"))
        .where(ti.operator == "WebCollectLoadOperator", ti.state == TaskInstanceState.SUCCESS)
        .where(ti.dag_id.in_(dag_ids))
        .order_by(ti.end_date)
    )
    loads_of: dict[tuple[Any, ...], dict[str, Any]] = {}
    with create_session() as session:
        events = [run.event for run in runs_of(session, key) if run.event]
        places = {_address(manifest) for event in events for manifest in event.all_manifests()}
        for row in session.execute(loads):
            instance, given, result = row.TaskInstance, row.rendered_fields, XComModel.deserialize_value(row)
            # a backend of XComs may keep the value elsewhere
            if isinstance(result, dict) and places & {_address(of.get("landing")) for of in (given, result)}:
                task = {
                    name: getattr(instance, name) for name in ("dag_id", "task_id", "map_index", "run_id")
                }
                facts = {name: result.get(name) for name in _LOADED}
                where = {
                    "warehouse_conn_id": given.get("warehouse_conn_id"),
                    "ended_at": instance.end_date.isoformat(),
                }
                table = (instance.dag_id, instance.task_id, instance.map_index, str(facts["table"]))
                # a load of nothing only shows that the table has all rows
                earlier = {} if facts["parts"] else loads_of.get(table, {})
                loads_of[table] = {**task, **where, **facts, **earlier, "commit": facts["commit"]}
    return sorted(loads_of.values(), key=lambda load: load["ended_at"], reverse=True)


def read_waiting(key: SeriesKey, run_id: str, collection_task_id: str) -> dict[str, Any]:
    """Return how many quarantined rows of a run wait for a decision, and the commit that they are of.

    :raises NothingToReview: if there are none.
    :raises LandingError: or :class:`.InvalidArgument`, if the storage cannot be read.
    """
    with _opened(*_place(key, run_id, collection_task_id)) as landing:
        waiting = review.in_review(landing)
    for in_review in waiting:
        if in_review.run.run_id == run_id and in_review.commit is not None:
            return {"rows": in_review.rows, "commit": in_review.commit}
    raise NothingToReview(f"somebody has decided already: no quarantined rows of {run_id} wait any more")


def decide(
    key: SeriesKey, run_id: str, collection_task_id: str, decision: Decision, commit: int, user: str
) -> dict[str, Any]:
    """Accept or discard the rows that a commit has quarantined, by one commit; the audit log has it.

    :param commit: of the rows that the user was shown; others of the run stay as they are.
    :param user: the user who has decided.
    :raises NothingToReview: if they do not wait any more.
    :raises LandingError: or :class:`.InvalidArgument`, if the storage cannot be read or written.
    """
    manifest, conn_id = _place(key, run_id, collection_task_id)
    with _opened(manifest, conn_id) as landing:
        rows = {"accept": review.accept, "discard": review.discard}[decision](landing, run_id, commit).rows
    facts = {"collection_task_id": collection_task_id, "manifest": manifest, "commit": commit, "rows": rows}
    task: dict[str, Any] = {**key._asdict(), "run_id": run_id}
    with create_session() as session:
        session.add(Log(DECISIONS[decision], owner=user, extra=json.dumps(storable(facts)), **task))
    return {"rows": rows}


def _place(key: SeriesKey, run_id: str, collection_task_id: str) -> tuple[str, str | None]:
    """Return the manifest of rows that a run has quarantined, and the connection of their storage."""
    with create_session() as session:
        events = [run.event for run in runs_of(session, key) if run.event and run.run_id == run_id]
    for event in events:
        for source in quarantining(event):
            if source.collection_task_id == collection_task_id:
                return source.manifest, event.object_storage_conn_id
    raise NothingToReview(f"no run {run_id} that has quarantined rows of {collection_task_id} is known")


@contextlib.contextmanager
def _opened(manifest: str, conn_id: str | None) -> Iterator[Any]:
    """Provide a landing's path, or its table, when this request may ask the storage."""
    if not _turns.acquire(timeout=PATIENCE):
        raise StorageError("other requests wait for a storage that does not answer; try again later")
    try:
        connection = connection_of(manifest, conn_id)
        yield manifest if connection is None else connected_path(manifest, connection)
    finally:
        _turns.release()


def _address(landing: object) -> str:
    """Return the address of a landing, whichever of its names is given, without its connection."""
    return Address.of(str(landing).removesuffix(f"/{MANIFEST}")).uri


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return shortened(text, MOST_CHARACTERS)
