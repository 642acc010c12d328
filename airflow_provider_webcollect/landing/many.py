"""Several landings in parallel."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_webcollect.landing.errors import SomeFailed
from airflow_provider_webcollect.service.pauses import first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

T = TypeVar("T")
log = logging.getLogger(__name__)


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
