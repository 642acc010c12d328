"""Several landings at once."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_webcollect.landing.errors import SomeFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
log = logging.getLogger(__name__)


def land_all(jobs: Mapping[str, Callable[[threading.Event], T]], at_once: int) -> dict[str, T]:
    """Run ``jobs`` in threads and return their results by name, in the order of the jobs.

    One that fails does not stop the others. If this is interrupted, as by a timeout of the task, those at
    work are asked to stop and are not waited for; those that have not begun never do.

    :param jobs: by what they land; each is given an event that is set when it is to stop as soon as it can.
    :raises SomeFailed: at the end, if any have failed; with all errors.
    """
    stop = threading.Event()
    results: dict[str, T] = {}
    errors: dict[str, Exception] = {}
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="webcollect-land")
    try:
        running = {pool.submit(job, stop): name for name, job in jobs.items()}
        for future in as_completed(running):
            name = running[future]
            try:
                results[name] = future.result()
            except Exception as error:
                log.exception("%s did not land.", name)
                errors[name] = error
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
    if errors:
        raise SomeFailed({name: errors[name] for name in jobs if name in errors}, len(jobs))
    return {name: results[name] for name in jobs}
