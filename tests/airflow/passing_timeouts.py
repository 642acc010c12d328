"""A task's ``execution_timeout`` that passes just when the service has acted, however slow the machine is."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

from tests.airflow.proxy import proxy
from tests.interruption import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def passing_timeout(target: str, path: str) -> Iterator[str]:
    """Give the URL of a proxy that does not answer a request, but ends the task in the main thread for it.

    :param target: where the proxy sends requests.
    :param path: how that of the request begins; it is answered if it comes again.
    """
    passed, over = threading.Event(), threading.Event()

    def pass_timeout(requested: str, status: int, body: Any) -> tuple[int, Any]:
        if requested.startswith(path) and not passed.is_set():
            passed.set()
            # what Airflow's timer sends
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            over.wait(PATIENCE)
        return status, body

    with proxy(target, pass_timeout) as url:
        try:
            yield url
        finally:
            over.set()
