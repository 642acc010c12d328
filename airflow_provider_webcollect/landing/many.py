"""Several landings in parallel, and what holds them until their results are reported."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_webcollect.landing.errors import SomeFailed
from airflow_provider_webcollect.landing.job import Timing
from airflow_provider_webcollect.service.pauses import first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    from airflow_provider_webcollect.landing.job import Landed

T = TypeVar("T")
log = logging.getLogger(__name__)


class Unreported:
    """The landings of a task that are committed and not reported yet.

    Until the end of the ``with`` block they are kept from other runs by heartbeats. If the block ends well,
    the result of each is reported from then on; after an error the next run reports them, and need not wait.

    :param interval: seconds between two heartbeats.
    :raises LeaseLost: at the end of the block, if another run has taken one of them over; it reports that
        one, and the next run the others.
    """

    def __init__(self, interval: float = Timing().heartbeat_interval) -> None:
        self._interval = interval
        self._landed: list[Landed] = []
        self._over = threading.Event()

    def add(self, landed: Landed) -> Landed:
        """Keep a landing whose report was not finished, and return it."""
        self._landed.append(landed)
        return landed

    def __enter__(self) -> Unreported:
        threading.Thread(target=self._beat, name="webcollect-unreported", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        if error is None:
            try:
                # before the first ends: then either all are reported or, as good as always, none
                if len(self._landed) > 1:
                    for landed in self._landed:
                        landed.renew()
                for landed in self._landed:
                    landed.finish()
            except Exception as failure:
                self._release(failure)
                raise
        elif isinstance(error, Exception):
            # but whoever is interrupted does not wait for a storage that may hang
            self._release(error)

    def _release(self, error: Exception) -> None:
        for landed in self._landed:
            landed.release(error)

    def _beat(self) -> None:
        wait = self._interval
        while not self._over.wait(wait):
            began = time.monotonic()
            for landed in tuple(self._landed):
                if self._over.is_set():
                    return
                # the end of the block raises what lasts
                with contextlib.suppress(Exception):
                    landed.renew()
            wait = max(0.0, self._interval - (time.monotonic() - began))


def land_all(jobs: Mapping[str, Callable[[], T]], at_once: int) -> dict[str, T]:
    """Run ``jobs`` in threads and return their results by name, in the order of the jobs.

    If one fails, the others continue. If this is interrupted, for example by a timeout of the task, jobs that
    have not begun are not run; running ones are not waited for, and end when their ``stop`` is set.

    :param jobs: the jobs by the name of what they land.
    :raises SomeFailed: at the end, with all errors, if any have failed.
    """
    results: dict[str, T] = {}
    errors: dict[str, Exception] = {}
    waiting = deque(jobs)
    running: dict[Future[T], str] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.popleft()
            running[in_background(jobs[name], "webcollect-land")] = name
        for future in first_done(running):
            name = running.pop(future)
            try:
                results[name] = future.result()
            except Exception as error:
                log.exception("%s did not land.", name)
                errors[name] = error
    if errors:
        raise SomeFailed({name: errors[name] for name in jobs if name in errors}, len(jobs))
    return {name: results[name] for name in jobs}
