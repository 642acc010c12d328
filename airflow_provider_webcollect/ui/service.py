"""What the service tells the page: asked only while somebody looks, and kept for a while."""

from __future__ import annotations

import datetime
import logging
import statistics
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow.models import Connection
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_webcollect.assets import LandingEvent, stored_tasks
from airflow_provider_webcollect.hooks.token_store import make_token_store
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.service.endpoints import get_running_counts
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.pages import all_analytics
from airflow_provider_webcollect.ui.landings import newest_events
from airflow_provider_webcollect.waiting.conditions import all_task_statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy.orm import Session

    from airflow_provider_webcollect.service.models import TaskStatus

log = logging.getLogger(__name__)

#: Seconds after which a value is read again; analytics change slowly.
LIFETIME, ANALYTICS_LIFETIME = 30.0, 3600.0
#: Seconds for which an answer of the service is awaited by default.
PATIENCE = 1.5
#: The days of analytics that are shown.
DAYS = 30
#: The share of successful runs below which a day is marked.
SUCCEEDED_LOW = 0.9
#: A day is marked if its rows are this many times the usual, or the usual this many times them; or its cost.
ODD_FACTOR = 2
#: How many tasks are shown.
MOST_TASKS = 500

T = TypeVar("T")


@dataclass(frozen=True)
class Known(Generic[T]):
    """A value as it was last read.

    :ivar value: None if it has never been read.
    :ivar read_at: when that was.
    :ivar problem: why the last attempt to read it has failed; None if it has not.
    """

    value: T | None = None
    read_at: datetime.datetime | None = None
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it for the page."""
        return {
            "value": self.value,
            "read_at": self.read_at and self.read_at.isoformat(),
            "problem": self.problem,
        }


class LastKnown(Generic[T]):
    """A value that a thread reads again when somebody asks for it and it is old.

    :param read: reads it.
    :param lifetime: seconds until it is old; one that could not be read is old after :data:`LIFETIME`.
    """

    def __init__(self, read: Callable[[], T], lifetime: float = LIFETIME) -> None:
        self._read = read
        self._lifetime = lifetime
        self._known: Known[T] = Known()
        self._old_at = 0.0
        self._reading: threading.Thread | None = None
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Begin to read the value if it is old and nobody reads it yet."""
        with self._lock:
            if self._reading is None and time.monotonic() >= self._old_at:
                # a daemon, so that the API server can end while the service does not answer
                self._reading = threading.Thread(target=self._read_again, daemon=True)
                self._reading.start()

    def get(self, patience: float) -> Known[T]:
        """Return the value; if it is being read, wait for it.

        :param patience: seconds to wait at most; after that the last known value is returned.
        """
        if reading := self._reading:
            reading.join(max(0.0, patience))
        return self._known

    def _read_again(self) -> None:
        try:
            known = Known(self._read(), datetime.datetime.now(datetime.UTC))
            lifetime = self._lifetime
        except WebCollectError as error:
            known, lifetime = replace(self._known, problem=str(error)), LIFETIME
        except Exception as error:
            # of a secrets backend, for example; its text may tell more than a reader of the page may know
            log.exception("Data for the page cannot be read")
            problem = f"{type(error).__name__}; the API server's log says more"
            known, lifetime = replace(self._known, problem=problem), LIFETIME
        with self._lock:
            self._known, self._old_at, self._reading = known, time.monotonic() + lifetime, None


class ServiceView:
    """What the service tells of the account of one connection.

    Each reading takes the connection as it is then, and the rate limit that it shares with the other users of
    the connection in this process. It never renews the token: its threads may end at any moment.

    :param patience: seconds for which an answer of the service is awaited; after that, what was last known
        is shown.
    """

    def __init__(self, conn_id: str, patience: float = PATIENCE) -> None:
        self._conn_id = conn_id
        self._patience = patience
        self._parts: dict[str, LastKnown[Any]] = {
            "token": LastKnown(self._token),
            "capacity": LastKnown(self._capacity),
            "tasks": LastKnown(self._tasks),
            "days": LastKnown(self._days, ANALYTICS_LIFETIME),
        }

    def read(self) -> dict[str, Any]:
        """Return all of it for the page, after as long as its patience lasts."""
        until = time.monotonic() + self._patience
        for part in self._parts.values():
            part.refresh()
        known = {name: part.get(until - time.monotonic()).as_json() for name, part in self._parts.items()}
        return {"connection_id": self._conn_id, **known}

    def _token(self) -> dict[str, Any] | None:
        connection = WebCollectHook(self._conn_id).connection
        found = make_token_store(self._conn_id).load()
        lineage = connection.credentials.lineage_at(connection.settings.base_url)
        if found is None or not found.descends_from(lineage):
            return None
        return {
            "stored_at": _moment(found.obtained_at),
            "expires_at": found.expires_at and _moment(found.expires_at),
            "stored_by": found.stored_by,
        }

    def _capacity(self) -> dict[str, Any]:
        with WebCollectHook(self._conn_id).reading_client() as client:
            return client.send(get_running_counts()).as_dict()

    def _tasks(self) -> list[dict[str, Any]]:
        with create_session() as session:
            ids = sorted(_known_tasks(session, self._conn_id))[:MOST_TASKS]
        hook = WebCollectHook(self._conn_id)
        with hook.reading_client() as client:
            size = hook.connection.status_batch_size
            found: dict[str, TaskStatus] = all_task_statuses(client, ids, size)
        return [
            {"task": task_id, **{name: _plain(value) for name, value in found[task_id].overview().items()}}
            if task_id in found
            else {"task": task_id, "status": "unknown to the service"}
            for task_id in ids
        ]

    def _days(self) -> dict[str, Any]:
        today = datetime.datetime.now(datetime.UTC).date()
        start = today - datetime.timedelta(days=DAYS)
        with WebCollectHook(self._conn_id).reading_client() as client:
            rows = all_analytics(client, start=start, end=today, time_granularity="Day")
        by_day = defaultdict(list)
        for row in rows:
            by_day[row.day_key].append(row)
        days = [{"day": day, **by_day[day][0].total(by_day[day])} for day in sorted(by_day)]
        return {"days": days, "thresholds": _thresholds(days)}


def known_connections(session: Session) -> list[str]:
    """Return the ids of the service's connections: in the database, of assets, or of landings.

    Those of a secrets backend that neither an asset nor a landing names cannot be known.
    """
    stored = session.scalars(
        select(Connection.conn_id).where(Connection.conn_type == WebCollectHook.conn_type)
    )
    return sorted({*stored, *stored_tasks(session), *(conn_id for conn_id, _ in _landed_tasks(session))})


def _known_tasks(session: Session, conn_id: str) -> set[str]:
    """Return the collection tasks of a connection that assets or landings name."""
    landed = (task_id for each, task_id in _landed_tasks(session) if each == conn_id)
    return {*stored_tasks(session).get(conn_id, []), *landed}


def _landed_tasks(session: Session) -> Iterator[tuple[str, str]]:
    """Yield the connections and collection tasks of the newest landings."""
    for _, event in newest_events(session):
        if landing := LandingEvent.of(event.extra):
            for task_id in landing.tasks():
                yield landing.webcollect_conn_id, task_id


def _thresholds(days: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the counts beyond which a day is marked; the last day is not over, and does not count."""
    rows, cost = (_median([day[name] for day in days[:-1]]) for name in ("rows", "cost"))
    return {
        "rows_low": rows and rows / ODD_FACTOR,
        "rows_high": rows and rows * ODD_FACTOR,
        "succeeded_low": SUCCEEDED_LOW,
        "cost_high": cost and cost * ODD_FACTOR,
    }


def _median(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return statistics.median(known) if known else None


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.datetime) else value
