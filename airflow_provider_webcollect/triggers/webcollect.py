"""Triggers that wait in the triggerer, and a trigger that reports each run that ends; they share one poll."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
from airflow.providers.common.compat.sdk import Stats
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_webcollect.assets import storable
from airflow_provider_webcollect.collection_tasks import one_or_many
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.models import FINAL_STATES, TaskState, TaskStatus
from airflow_provider_webcollect.waiting.conditions import (
    TASK_STATUSES,
    Capacity,
    Condition,
    Ended,
    History,
    Outcome,
    SubTaskStates,
    TaskStates,
    Wait,
)
from airflow_provider_webcollect.waiting.runs import LONGEST_CONTRADICTION, LastRun, follow
from airflow_provider_webcollect.waits import read_with_retries, shared_feed

__all__ = [
    "WebCollectCapacityTrigger",
    "WebCollectSubTaskStatusTrigger",
    "WebCollectTaskFinishedTrigger",
    "WebCollectTaskStatusTrigger",
]


class WaitTrigger(BaseTrigger):
    """Base of the triggers that wait until a condition is met, and then let a worker continue.

    The event's payload is an :class:`~airflow_provider_webcollect.waiting.conditions.Ended` as plain JSON.

    :param condition: the condition to wait for, as plain JSON.
    :param poke_interval: seconds between two status queries.
    :param began: Unix time at which the wait began; None (default) for now. It stays the same after a restart
        of the triggerer.
    :param timeout: seconds after ``began`` at which the wait times out, with an event that says so; None for
        no limit. Airflow's own timeout of a deferred task has no effect in ``dag.test()``.
    :param webcollect_conn_id: the Airflow connection of the service.
    """

    _kind: ClassVar[type[Condition]]

    def __init__(
        self,
        *,
        condition: Mapping[str, Any],
        webcollect_conn_id: str,
        poke_interval: float = 60.0,
        began: float | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no annotations
        self.condition = dict(condition)
        self.poke_interval = poke_interval
        self.began = time.time() if began is None else began
        self.timeout = timeout
        self.webcollect_conn_id = webcollect_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and the arguments, which contain no secret."""
        return f"{type(self).__module__}.{type(self).__name__}", {
            "condition": self.condition,
            "poke_interval": self.poke_interval,
            "began": self.began,
            "timeout": self.timeout,
            "webcollect_conn_id": self.webcollect_conn_id,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield an event when the wait has ended."""
        ended = await self._end()
        tags = {"connection": self.webcollect_conn_id, "outcome": str(ended.outcome)}
        Stats.incr("webcollect.waits.ended", tags=tags)
        yield TriggerEvent(storable(msgspec.to_builtins(ended)))

    async def _end(self) -> Ended:
        """Wait on the connection's shared poll, and return how the wait ended."""
        # the class's logger: one per instance would increase the memory of each of ten thousand waits by a
        # quarter
        now = time.time()
        wait = Wait(msgspec.convert(self.condition, self._kind), self.began, self.logger(), since=now)
        left = None if self.timeout is None else self.began + self.timeout - now
        if left is not None and (left <= 0 or left < LAST_LOOK <= (self.timeout or 0)):
            left = LAST_LOOK
        query, keys = wait.condition.query, wait.condition.keys
        try:
            async with (
                asyncio.timeout(left) as limit,
                shared_feed(self.webcollect_conn_id, self.poke_interval) as feed,
            ):
                ended = await feed.polls[query].until(keys, self.poke_interval, wait.judge)
                if not limit.expired():
                    limit.reschedule(None)  # closing the feed may take longer than the remaining time
                return ended
        except WebCollectError as error:
            return Ended(outcome=Outcome.ERROR, reason=str(error), permanent=error.permanent)
        except TimeoutError:
            if not limit.expired():
                raise  # for example while reading the connection
            return Ended(outcome=Outcome.TIMEOUT, reason=f"the wait was not over after {self.timeout:.0f} s")


class WebCollectTaskStatusTrigger(WaitTrigger):
    """Waits until tasks reach a state. ``condition`` is a :class:`~.waiting.conditions.TaskStates`."""

    _kind = TaskStates


class WebCollectSubTaskStatusTrigger(WaitTrigger):
    """Waits until sub-tasks reach a state. ``condition`` is a :class:`~.waiting.conditions.SubTaskStates`."""

    _kind = SubTaskStates


class WebCollectCapacityTrigger(WaitTrigger):
    """Waits until there is capacity. ``condition`` is a :class:`~.waiting.conditions.Capacity`."""

    _kind = Capacity


if TYPE_CHECKING or AIRFLOW_V_3_0_PLUS:
    from airflow.triggers.base import BaseEventTrigger
else:
    from airflow.triggers.base import BaseTrigger as BaseEventTrigger

if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
    from airflow.triggers.shared_stream import SharedStreamProducer
else:
    SharedStreamProducer = object

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import AdvanceItem


log = logging.getLogger(__name__)

#: A task's id, its status (None if it is missing), and the seconds for which the status has been unchanged.
_Seen: TypeAlias = "tuple[str, TaskStatus | None, float]"

#: Seconds for one last query if the timeout passed before the first query, while the triggerer was down.
LAST_LOOK = 5.0
#: Number of poke intervals until the next query after a refusal, which usually only a person can resolve.
PATIENCE = 10


class WebCollectTaskFinishedTrigger(BaseEventTrigger):
    """Triggers DAGs when a run of a task ends, whoever started the run (contract.md, endpoint 13).

    For an ``AssetWatcher`` (Airflow 3): the trigger watches forever, and yields an event when a run has
    ended. All watchers and waits on a connection share one poll. The payload is an
    :class:`~airflow_provider_webcollect.waiting.runs.EndedRun` as JSON: ``collection_task_id``, ``run`` and
    ``first_run`` (``executedTimes``), ``status``, ``rows``, ``started_at``, ``finished_at``. Runs that ended
    between two queries share an event, which covers the runs ``first_run`` to ``run``; its ``status`` is None
    if the next run had already started.

    From Airflow 3.3 on, each task's last run is stored in the asset's state store after Airflow has stored
    the run's event. So a restart of the triggerer loses no run. If the triggerer is killed in the one or two
    seconds between the two, the run is reported again, with the same payload. This requires that all watchers
    with the same trigger belong to one asset. Before Airflow 3.3, and with several assets, nothing is stored:
    after a restart, the watch begins with the first status that it sees, and runs that ended in the meantime
    are not reported.

    A run that had ended before the first query is not reported. As in a wait, a state that may still belong
    to the previous run does not count as an end (``docs/reference/waiting.md``). No error ends the watch. If
    the service does not respond, it is queried again with increasing pauses. A refusal (credential, plan,
    id) is logged as an error; after ten poke intervals, the trigger reads the connection again and makes the
    next query.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
    :param collection_task_ids: several tasks instead of one, by id or name.
    :param states: final states to report: ``Finished`` (default), ``Stopped`` or both.
    :param poke_interval: seconds between two status queries of a task.
    :param webcollect_conn_id: the Airflow connection of the service.
    :raises InvalidArgument: (a ``ValueError``) if an argument is invalid.
    """

    def __init__(
        self,
        *,
        collection_task_id: str | None = None,
        collection_task_ids: Sequence[str] | None = None,
        states: Sequence[str] = (TaskState.FINISHED,),
        poke_interval: float = 60.0,
        webcollect_conn_id: str = "webcollect_default",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no annotations
        self.collection_task_ids = sorted(one_or_many(collection_task_id, collection_task_ids))
        self.states = sorted(set(arguments.texts("states", states)))
        for state in self.states:
            arguments.one_of("states", state, FINAL_STATES)
        self.poke_interval = arguments.seconds("poke_interval", poke_interval)
        self.webcollect_conn_id = arguments.text("webcollect_conn_id", webcollect_conn_id)
        self._last_runs: dict[str, LastRun | None] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and the normalized arguments, which contain no secret."""
        return f"{__name__}.{type(self).__name__}", {
            "collection_task_ids": self.collection_task_ids,
            "states": self.states,
            "poke_interval": self.poke_interval,
            "webcollect_conn_id": self.webcollect_conn_id,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch, and yield an event for each run that has ended; only Airflow before 3.3 calls this."""
        watch = self.create_shared_stream_producer(self.serialize()[1])
        try:
            async for event in self.filter_shared_stream(
                shared_event async for shared_event, _ in watch.open_stream()
            ):
                yield event
        finally:
            await watch.aclose()

    def shared_stream_key(self) -> Hashable:
        """Return a key of this trigger's own: the stream serves only to learn when events are stored."""
        return msgspec.json.encode(self.serialize())

    @classmethod
    def create_shared_stream_producer(cls, kwargs: Mapping[str, Any]) -> _Watch:
        """Return the object that watches the tasks."""
        return _Watch(kwargs["collection_task_ids"], kwargs["poke_interval"], kwargs["webcollect_conn_id"])

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[_Statuses]
    ) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each run whose end the statuses show."""
        async for statuses in shared_stream:
            changed: dict[str, LastRun] = {}
            for task_id, status, unchanged_for in statuses.seen:
                if task_id not in self._last_runs:
                    self._last_runs[task_id] = await self._recall(task_id)
                before = self._last_runs[task_id]
                last_run, ended = follow(before, task_id, status, self.states, unchanged_for)
                if last_run != before:
                    self._last_runs[task_id] = changed[task_id] = last_run
                if ended:
                    log.info("Ended: %s", ended)
                    yield TriggerEvent(storable(msgspec.to_builtins(ended)))
            statuses.when_stored = functools.partial(self._remember, changed)

    async def _recall(self, task_id: str) -> LastRun | None:
        store = getattr(self, "asset_state_store", None)
        if store is None:
            return None
        try:
            stored = await read_with_retries(
                f"The stored last run of {task_id}",
                lambda: store.aget(self._key(task_id)),
                self.poke_interval,
                is_certain=_means_several_assets,
            )
        except ValueError as error:
            if not _means_several_assets(error):
                raise
            log.warning("The watchers are on several assets: runs are not remembered over a restart.")
            self.asset_state_store = None
            return None
        try:
            return msgspec.convert(stored, LastRun | None)
        except msgspec.ValidationError as error:
            log.warning("%s: its stored last run cannot be read; the watch begins again. %s", task_id, error)
            return None

    async def _remember(self, last_runs: Mapping[str, LastRun]) -> None:
        store = getattr(self, "asset_state_store", None)
        if store is None:
            return
        for task_id, last_run in last_runs.items():
            try:
                await store.aset(self._key(task_id), storable(msgspec.to_builtins(last_run)))
            except Exception as error:
                # the events are already stored; an error here would end the trigger before the other runs are
                # stored
                log.warning(
                    "%s: a restart of the triggerer may report its last run again. %s", task_id, error
                )

    def _key(self, task_id: str) -> str:
        return f"{self.webcollect_conn_id} {task_id} {'+'.join(self.states)}"


class _Statuses:
    """Statuses, and a callback to run when Airflow has stored the events of these statuses."""

    def __init__(self, seen: list[_Seen]) -> None:
        self.seen = seen
        self.when_stored: Callable[[], Awaitable[None]] | None = None


class _Shown(msgspec.Struct):
    """The last run that a task's status shows.

    :ivar since: Unix time since which the service has shown it.
    :ivar is_complete: whether it was passed on after so long that more time cannot change its meaning.
    """

    run: LastRun
    since: float
    is_complete: bool = False


class _Watch(SharedStreamProducer):
    """Watches tasks on the connection's shared poll, and passes on statuses that may show the end of a run.

    A status may do so when it changes, and when it stays unchanged for long enough to be trusted.
    """

    def __init__(self, task_ids: Sequence[str], poke_interval: float, conn_id: str) -> None:
        self._task_ids = task_ids
        self._poke_interval = poke_interval
        self._conn_id = conn_id
        self._shown: dict[str, _Shown] = {}
        self._changes: asyncio.Queue[_Seen] = asyncio.Queue()
        self._watching: list[asyncio.Task[None]] = []

    async def open_stream(self) -> AsyncIterator[tuple[_Statuses, _Statuses]]:
        self._watching = [asyncio.create_task(self._watch(task_id)) for task_id in self._task_ids]
        while True:
            seen = [await self._changes.get()]
            while not self._changes.empty():
                seen.append(self._changes.get_nowait())
            statuses = _Statuses(seen)
            yield statuses, statuses

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for statuses, outcome in batch:
            if outcome.is_clean and statuses.when_stored:
                await statuses.when_stored()

    async def aclose(self) -> None:
        for watching in self._watching:
            watching.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def _watch(self, task_id: str) -> None:
        """Watch a task forever."""
        see = functools.partial(self._see, task_id, History(time.time()))
        while True:
            try:
                async with shared_feed(self._conn_id, self._poke_interval) as feed:
                    await feed.polls[TASK_STATUSES].until((task_id,), self._poke_interval, see)
            except Exception as error:
                # an error must not end the trigger: Airflow would restart it immediately, again and again
                pause = self._poke_interval * PATIENCE
                log.error("%s cannot be watched; the next poll follows in %.0f s. %s", task_id, pause, error)
                await asyncio.sleep(pause)

    def _see(self, task_id: str, history: History, states: Mapping[str, TaskStatus | None]) -> None:
        now, status = time.time(), states[task_id]
        history.note((task_id,) if status is None else ())
        if history.unconfirmed:
            return
        last_run = LastRun.of(status)
        last_seen = self._shown.get(task_id)
        if last_seen is None or last_seen.run != last_run:
            last_seen = self._shown[task_id] = _Shown(last_run, now)
        if not last_seen.is_complete:
            unchanged_for = now - last_seen.since
            last_seen.is_complete = unchanged_for >= LONGEST_CONTRADICTION
            self._changes.put_nowait((task_id, status, unchanged_for))


def _means_several_assets(error: Exception) -> bool:
    # Airflow raises a plain ValueError for several assets, but a subclass for unreadable stored values
    return type(error) is ValueError
