"""Processes that share a token in a file, as those of a fleet share it in Airflow's Variable."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import TokenStoreUnavailable, WebCollectError
from airflow_provider_webcollect.service.settings import ClientTiming, Credentials, Retries, Settings
from airflow_provider_webcollect.service.tokens import FileTokenStore, Register, StoredToken
from tests.interruption import PATIENCE
from tests.service.tokens.cases import CALL

#: Starts processes as forks of one that has already imported what they need.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__, "requests", "urllib3"])


class SlowFileTokenStore(FileTokenStore):
    """A token shared by processes, as the Airflow Variable shares it: slower than a file of this disk."""

    write_bound = 1.0

    def __init__(self, path: Path, *, dies_before_saving: bool = False) -> None:
        super().__init__(path)
        self._dies = dies_before_saving

    def write(self, register: Register, text: str) -> None:
        if self._dies and register is Register.TOKEN:
            os._exit(9)
        time.sleep(0.02)
        super().write(register, text)


class Fleet:
    """Processes that call the service in rounds, all at once; nothing tells them that they share a host.

    :param store: the file that they share the token in.
    :param dies: has each of them end before it stores a new token.
    """

    def __init__(self, sandbox: Sandbox, store: Path, *, size: int, dies: bool = False) -> None:
        # each host would have an address, and so a rate, of its own
        sandbox.control.configure(enforce_limits=False)
        self._processes = []
        self._pipes = []
        for _ in range(size):
            ours, its = FORKS.Pipe()
            shared = SlowFileTokenStore(store, dies_before_saving=dies)
            process = FORKS.Process(target=_serve, args=(sandbox.url, sandbox.refresh_token, shared, its))
            process.start()
            its.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(PATIENCE)

    def call(self) -> list[str]:
        """Have every process make a call, and return what each says of it."""
        self._begin()
        return [pipe.recv() for pipe in self._pipes]

    def exit_codes(self) -> list[int | None]:
        """Have every process make a call and die of it; return how each has ended."""
        self._begin()
        for process in self._processes:
            process.join(PATIENCE)
        return [process.exitcode for process in self._processes]

    def _begin(self) -> None:
        for pipe in self._pipes:
            pipe.send("call")


def _serve(url: str, refresh_token: str, store: SlowFileTokenStore, rounds: Connection) -> None:
    settings = Settings(
        base_url=url,
        requests_per_second=0,
        retries=Retries(first_wait=0.2, longest_wait=5),
        # the tests drop tokens within seconds, and any process may be the one that renews each time
        timing=ClientTiming(youth=0.0),
    )
    client = Client(make_context(settings, Credentials(refresh_token=refresh_token), "fleet", store))
    with contextlib.suppress(EOFError):
        while rounds.recv():
            rounds.send(_call(client))


def _call(client: Client) -> str:
    """Make a call, and say how it went. Where the machine stalls, no process may claim the renewal."""
    for _ in range(20):
        try:
            client.send(CALL)
        except TokenStoreUnavailable as error:
            said = str(error)
        except WebCollectError as error:
            return str(error)
        else:
            return "ok"
    return said


def store_expired(sandbox: Sandbox, path: Path) -> None:
    """Store a token whose day is over, as a fleet finds it in the morning."""
    expired = StoredToken(
        access_token="yesterday's",
        refresh_token=sandbox.refresh_token,
        obtained_at=time.time() - 86_400,
        expires_at=time.time() - 1,
        lineage=Credentials(refresh_token=sandbox.refresh_token).lineage_at(sandbox.url),
    )
    SlowFileTokenStore(path).save(expired)
