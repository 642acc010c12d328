"""The service's data for the page, which is read only while somebody views the page, and kept for a while."""

from __future__ import annotations

import datetime
import logging
import statistics
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import unquote, urlsplit

from airflow.models import Connection
from airflow.models.asset import AssetModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_webcollect.assets import SCHEME
from airflow_provider_webcollect.collection_tasks import file_of_names
from airflow_provider_webcollect.hooks.token_store import make_token_store
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.service.endpoints import get_running_counts
from airflow_provider_webcollect.service.errors import ServiceFailure, TransportError, WebCollectError
from airflow_provider_webcollect.service.models import AnalyticsRow, TaskState, active_subtask_ids
from airflow_provider_webcollect.service.pages import all_analytics
from airflow_provider_webcollect.ui.activity import active_collection_task_ids, recognized
from airflow_provider_webcollect.ui.landings import ODD_FACTOR, newest_landings
from airflow_provider_webcollect.waiting.conditions import SUBTASKS, all_task_statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from sqlalchemy.orm import Session

    from airflow_provider_webcollect.service.models import SubTask, TaskStatus

log = logging.getLogger(__name__)

#: Seconds after which a value is read again; after which a reading that failed is tried again; and after
#: which analytics, which change slowly, are read again. The page asks every 30 seconds, and finds a value old
#: each time, however long it took to read.
LIFETIME, RETRY_AFTER, ANALYTICS_LIFETIME = 25.0, 5.0, 3600.0
#: Seconds to wait for a response of the service by default; after that, the page says that it is waiting.
PATIENCE = 2.0
#: Number of days of analytics that are shown.
DAYS = 30
#: The share of successful runs below which a day is marked.
SUCCEEDED_LOW = 0.9
#: Maximum number of tasks that are shown, and of extracting tasks whose sub-tasks are counted.
MOST_TASKS, MOST_COUNTED = 500, 20

T = TypeVar("T")


@dataclass(frozen=True)
class Known(Generic[T]):
    """A value as it was last read.

    :ivar value: None if it has never been read.
    :ivar read_at: when the value was read; None if it has never been read.
    :ivar problem: why the last attempt to read it has failed; None if it has not.
    :ivar unanswered_since: since when the service has been asked for the value without a response; None if
        there was a response.
    """

    value: T | None = None
    read_at: datetime.datetime | None = None
    problem: str | None = None
    unanswered_since: datetime.datetime | None = None

    def as_json(self, value: Callable[[T], Any]) -> dict[str, Any]:
        """Return the value and the facts about its reading, as JSON for the page.

        :param value: function that converts the value for the page.
        """
        return {
            "value": None if self.value is None else value(self.value),
            "read_at": self.read_at and self.read_at.isoformat(),
            "problem": self.problem,
            "unanswered_since": self.unanswered_since and self.unanswered_since.isoformat(),
        }


class LastKnown(Generic[T]):
    """A value that a thread reads again when somebody asks for it and it is old.

    :param read: function that reads the value.
    :param lifetime: seconds until the value is old; after a failed reading, :data:`RETRY_AFTER` applies.
    """

    def __init__(self, read: Callable[[], T], lifetime: float = LIFETIME) -> None:
        self._read = read
        self._lifetime = lifetime
        self._known: Known[T] = Known()
        self._old_at = 0.0
        self._reading: threading.Thread | None = None
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Start a thread that reads the value, if it is old and no thread reads it yet."""
        with self._lock:
            if self._reading is None and time.monotonic() >= self._old_at:
                since = self._known.unanswered_since or datetime.datetime.now(datetime.UTC)
                self._known = replace(self._known, unanswered_since=since)
                # a daemon thread, so that the API server can end while the service does not answer
                self._reading = threading.Thread(target=self._read_again, daemon=True)
                self._reading.start()

    def get(self, patience: float) -> Known[T]:
        """Return the value; if it is being read, wait for it.

        :param patience: maximum number of seconds to wait; after that the last known value is returned.
        """
        if reading := self._reading:
            reading.join(max(0.0, patience))
        return self._known

    def _read_again(self) -> None:
        try:
            answer = Known(self._read(), datetime.datetime.now(datetime.UTC))
            lifetime = self._lifetime
        except WebCollectError as error:
            # any other error is a response of the service, or occurs before the service is asked
            is_silent = isinstance(error, TransportError | ServiceFailure)
            answer, lifetime = self._failed(str(error), is_silent), RETRY_AFTER
        except Exception as error:
            # such as an error of a secrets backend; its text may contain facts that a user may not see
            log.exception("Data for the page cannot be read")
            problem = f"{type(error).__name__}; the API server's log says more"
            answer, lifetime = self._failed(problem), RETRY_AFTER
        with self._lock:
            self._known, self._old_at, self._reading = answer, time.monotonic() + lifetime, None

    def _failed(self, problem: str, is_silent: bool = False) -> Known[T]:
        since = self._known.unanswered_since if is_silent else None
        return replace(self._known, problem=problem, unanswered_since=since)


class ServiceView:
    """The service's data about the account of one connection.

    Each reading uses the connection as it is at that moment, and the rate limit that all users of the
    connection in this process share. It never renews the token, since its thread may end at any moment.

    :param conn_id: id of the connection.
    :param patience: seconds to wait for a response of the service; after that, the last known data is shown.
    """

    def __init__(self, conn_id: str, patience: float = PATIENCE) -> None:
        self._conn_id = conn_id
        self._patience = patience
        self._parts: dict[str, LastKnown[Any]] = {
            "token": LastKnown(self._token),
            "capacity": LastKnown(self._capacity),
            "tasks": LastKnown(self._tasks),
            "days": LastKnown(self._analytics, ANALYTICS_LIFETIME),
        }

    def read(self, dag_ids: Collection[str] | None) -> dict[str, Any]:
        """Return the data that a user may see, after at most ``patience`` seconds.

        :param dag_ids: the DAGs that the user may read: only their collection tasks are shown. None for all
            DAGs, which shows all tasks.
        """
        until = time.monotonic() + self._patience
        for part in self._parts.values():
            part.refresh()
        answers = {name: part.get(until - time.monotonic()) for name, part in self._parts.items()}
        with create_session() as session:
            ids = _named_ids(session, self._conn_id, dag_ids)

        def shown(rows: Iterable[AnalyticsRow]) -> list[AnalyticsRow]:
            return [row for row in rows if dag_ids is None or row.task_id in ids]

        tasks, days = answers["tasks"], answers["days"]
        latest = AnalyticsRow.names(shown(days.value or ()))
        names = {task_id: name for task_id, name in latest.items() if name}
        return {
            "connection_id": self._conn_id,
            "sees_all": dag_ids is None,
            "names": names
            | file_of_names().names({*ids, *names})
            | {task_id: name for task_id, name in ids.items() if name},
            "token": answers["token"].as_json(dict),
            "capacity": answers["capacity"].as_json(dict),
            "tasks": tasks.as_json(
                lambda value: {
                    # with fewer tasks, missing ones are only new: the next reading has them
                    "left_out": len(ids.keys() - {task["task"] for task in value})
                    if len(value) >= MOST_TASKS
                    else 0,
                    "tasks": [task for task in value if task["task"] in ids],
                }
            ),
            "days": days.as_json(lambda rows: _per_day(shown(rows))),
        }

    def _token(self) -> dict[str, Any] | None:
        connection = WebCollectHook(self._conn_id).connection
        token = make_token_store(self._conn_id).load()
        lineage = connection.credentials.lineage_at(connection.settings.base_url)
        if token is None or not token.descends_from(lineage):
            return None
        return {
            "stored_at": _moment(token.obtained_at),
            "expires_at": token.expires_at and _moment(token.expires_at),
            "stored_by": token.stored_by,
        }

    def _capacity(self) -> dict[str, Any]:
        with WebCollectHook(self._conn_id).reading_client() as client:
            return client.send(get_running_counts()).as_dict()

    def _tasks(self) -> list[dict[str, Any]]:
        with create_session() as session:
            ids = [*_named_ids(session, self._conn_id, None)][:MOST_TASKS]
        hook = WebCollectHook(self._conn_id)
        with hook.reading_client() as client:
            size = hook.connection.status_batch_size
            statuses: dict[str, TaskStatus] = all_task_statuses(client, ids, size)
            extracting = [
                task_id for task_id, status in statuses.items() if status.status == TaskState.EXTRACTING
            ]
            subtasks = SUBTASKS.ask(client, extracting[:MOST_COUNTED])
        return [_task(task_id, statuses.get(task_id), subtasks.get(task_id)) for task_id in ids]

    def _analytics(self) -> list[AnalyticsRow]:
        today = datetime.datetime.now(datetime.UTC).date()
        start = today - datetime.timedelta(days=DAYS)
        with WebCollectHook(self._conn_id).reading_client() as client:
            return all_analytics(client, start=start, end=today, time_granularity="Day")


def known_connections(session: Session) -> list[str]:
    """Return the ids of the connections to the service: in the database, or named by assets or landings.

    A connection of a secrets backend that neither an asset nor a landing names cannot be known.
    """
    stored = session.scalars(
        select(Connection.conn_id).where(Connection.conn_type == WebCollectHook.conn_type)
    )
    landed = {landing.webcollect_conn_id for _, landing in newest_landings(session)}
    return sorted({*stored, *(conn_id for conn_id, _ in _asset_tasks(session)), *landed})


def _named_ids(session: Session, conn_id: str, dag_ids: Collection[str] | None) -> dict[str, str | None]:
    """Return the ids of a connection's collection tasks, each with its name in the newest landings, or None.

    They are the collection tasks that Airflow tasks at work name, that have landed, or that assets name.

    :param dag_ids: the DAGs whose collection tasks are returned; None for all DAGs, and for assets, which
        belong to no DAG.
    """
    assets = _asset_tasks(session) if dag_ids is None else []
    named: dict[str, str | None] = dict.fromkeys(task_id for of_conn, task_id in assets if of_conn == conn_id)
    for dag_id, landing in newest_landings(session):
        if landing.webcollect_conn_id == conn_id and (dag_ids is None or dag_id in dag_ids):
            for source in landing.sources():
                text, name = source.collection_task_id, source.collection_task_name
                named[text] = name or named.get(text)
    file = file_of_names()
    # events and assets may have any text
    ids = {task_id: named[text] for text in sorted(named) if (task_id := recognized(file, text))}
    return {**dict.fromkeys(active_collection_task_ids(session, conn_id, dag_ids)), **ids}


def _asset_tasks(session: Session) -> list[tuple[str, str]]:
    """Return the connections and the collection tasks of Airflow's stored ``webcollect`` assets."""
    uris = session.scalars(select(AssetModel.uri).where(AssetModel.uri.startswith(f"{SCHEME}://")))
    return [(unquote(uri.netloc), unquote(uri.path.split("/")[1])) for uri in map(urlsplit, uris)]


def _task(task_id: str, status: TaskStatus | None, subtasks: Sequence[SubTask] | None) -> dict[str, Any]:
    if status is None:
        return {"task": task_id, "status": "unknown to the service"}
    done = None if subtasks is None else len(subtasks) - len(active_subtask_ids(subtasks))
    facts = {
        name: value.isoformat() if isinstance(value, datetime.datetime) else value
        for name, value in status.overview().items()
    }
    return {"task": task_id, **facts, "sub_tasks_done": done}


def _per_day(rows: Iterable[AnalyticsRow]) -> dict[str, Any]:
    """Return the metrics of each day, and the limits beyond which a day is marked."""
    by_day = defaultdict(list)
    for row in rows:
        by_day[row.day_key].append(row)
    days = [{"day": day, **by_day[day][0].total(by_day[day])} for day in sorted(by_day)]

    def usual(name: str) -> float | None:
        # the last day is not over
        known = [value for day in days[:-1] if isinstance(value := day[name], int | float)]
        return statistics.median(known) if known else None

    usual_rows, usual_cost = usual("rows"), usual("cost")
    thresholds = {
        "rows_low": usual_rows and usual_rows / ODD_FACTOR,
        "rows_high": usual_rows and usual_rows * ODD_FACTOR,
        "succeeded_low": SUCCEEDED_LOW,
        "cost_high": usual_cost and usual_cost * ODD_FACTOR,
    }
    return {"days": days, "thresholds": thresholds}


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
