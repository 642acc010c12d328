"""Processes that share a token in a file, as the processes of a fleet share it in an Airflow Variable."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import TokenStoreUnavailable, WebCollectError
from airflow_provider_webcollect.service.settings import ClientTiming, Credentials, Retries, Settings
from airflow_provider_webcollect.service.tokens import FileTokenStore, Register, StoredToken
from tests.interruption import PATIENCE
from tests.service.tokens.cases import CALL
from tests.simulation.forks import die

#: Starts processes as forks of one that has already imported what they need.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__, "requests", "urllib3"])


class SlowFileTokenStore(FileTokenStore):
    """A token shared by processes, as in an Airflow Variable: slower than in a file on this disk."""

    write_bound = 1.0

    def write(self, register: Register, text: str) -> None:
        time.sleep(0.02)
        super().write(register, text)


class DeadlyTokenStore(SlowFileTokenStore):
    """Ends its process before a new token is stored."""

    def write(self, register: Register, text: str) -> None:
        if register is Register.TOKEN:
            die()
        super().write(register, text)


@contextlib.contextmanager
def fleet(sandbox: Sandbox, path: Path, size: int) -> Iterator[Callable[[], list[str]]]:
    """Processes that share the token in a file; nothing tells them that they share a host.

    :return: a function that has all of them make a call at once, and returns their results, see ``_call``.
    """
    # each host would have an address, and so a rate, of its own
    sandbox.control.configure(enforce_limits=False)
    account = (sandbox.url, sandbox.refresh_token, SlowFileTokenStore(path))
    with FORKS.Pool(size, _begin, (*account, FORKS.Barrier(size))) as processes:
        yield lambda: processes.map_async(_call, range(size), chunksize=1).get(PATIENCE)
        # otherwise they are terminated, which a process measured by coverage may survive
        processes.close()
        processes.join()


def exit_code_of_one_that_dies(sandbox: Sandbox, path: Path) -> int | None:
    """Have a process make a call, and die before it stores a new token."""
    account = (sandbox.url, sandbox.refresh_token, DeadlyTokenStore(path))
    process = FORKS.Process(target=_begin_and_call, args=account)
    process.start()
    process.join(PATIENCE)
    return process.exitcode


#: In each process: its client, and the barrier at which the processes wait for each other.
_own: dict[str, Any] = {}


def _begin(url: str, refresh_token: str, store: FileTokenStore, together: threading.Barrier) -> None:
    settings = Settings(
        base_url=url,
        requests_per_second=0,
        retries=Retries(first_wait=0.2, longest_wait=5),
        # the tests drop tokens within seconds, and the same process may renew each time
        timing=ClientTiming(youth=0.0),
    )
    client = Client(make_context(settings, Credentials(refresh_token=refresh_token), "fleet", store))
    _own.update(client=client, together=together)


def _begin_and_call(url: str, refresh_token: str, store: FileTokenStore) -> None:
    _begin(url, refresh_token, store, threading.Barrier(1))
    _call()


def _call(_: int = 0) -> str:
    """Make a call and return `ok` or the error; repeat it while a stalling machine lets no process claim."""
    _own["together"].wait(PATIENCE)
    for _ in range(20):
        try:
            _own["client"].send(CALL)
        except TokenStoreUnavailable as error:
            said = str(error)
        except WebCollectError as error:
            return str(error)
        else:
            return "ok"
    return said


def store_expired(sandbox: Sandbox, path: Path) -> None:
    """Store a token that has just expired, as a fleet finds it in the morning."""
    expired = StoredToken(
        access_token="yesterday's",
        refresh_token=sandbox.refresh_token,
        obtained_at=time.time() - 86_400,
        expires_at=time.time() - 1,
        lineage=Credentials(refresh_token=sandbox.refresh_token).lineage_at(sandbox.url),
    )
    SlowFileTokenStore(path).save(expired)
