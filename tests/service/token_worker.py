"""One process of a fleet: shares its token in a file, calls the service, and says how it went.

Arguments: the sandbox's URL, the refresh token, the file, and what else to do. It makes a call for
each line of its input, and answers each with a line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.auth import renewal
from airflow_provider_webcollect.service.auth.store import FileTokenStore, Register
from airflow_provider_webcollect.service.client.context import make_context
from airflow_provider_webcollect.service.client.sync import Client
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.settings import Credentials, Retries, Settings


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


def client_for(url: str, refresh_token: str, path: str, *, dies: bool = False) -> Client:
    settings = Settings(base_url=url, requests_per_second=0, retries=Retries(first_wait=0.2, longest_wait=5))
    store = SlowFileTokenStore(Path(path), dies_before_saving=dies)
    context = make_context(settings, Credentials(refresh_token=refresh_token), "fleet", store)
    return Client(context)


def main() -> None:
    # the tests drop tokens within seconds, and any process may be the one that renews each time
    renewal.YOUTH = 0.0
    url, refresh_token, path, *what = sys.argv[1:]
    client = client_for(url, refresh_token, path, dies="die" in what)
    # each line that comes is a round: all processes of the fleet call at once
    for _ in sys.stdin:
        try:
            client.send(endpoints.get_running_counts())
            said = {"ok": True}
        except WebCollectError as error:
            said = {"ok": False, "error": str(error)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
