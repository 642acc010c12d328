"""Lands in processes of their own, which get killed.

Everything is imported once; each line of JSON on the input is an order that a fork carries out, and each is
answered by how that ended (as of ``subprocess``): a signal below 0, or the exit status.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from airflow_provider_webcollect.landing.commits import Run, Source
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.tables import landing_folder
from airflow_provider_webcollect.landing.tables.iceberg import IcebergFolder
from airflow_provider_webcollect.landing.tables.table import TableFolder
from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.endpoints import mark_exported
from airflow_provider_webcollect.service.pages import PageReader
from airflow_provider_webcollect.service.settings import Credentials, Retries, Settings
from airflow_provider_webcollect.service.tokens import MemoryTokenStore
from tests.landing.pages import make_job
from tests.landing.storages import filesystem

#: The files of object stores, whose uploads and commits are changes too.
FILES = {"s3": "s3fs.core.S3File", "abfs": "adlfs.spec.AzureBlobFile", "gs": "gcsfs.core.GCSFile"}


def serve() -> None:
    """Carry out the orders."""
    for line in sys.stdin:
        order = json.loads(line)
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                land_it(order, tell)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(tell)
        if (seconds := order.get("kill_after")) is not None:
            os.read(ready, 1)
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(ready)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def land_it(order: dict[str, Any], tell: int) -> None:
    """Land; with ``kill_at``, a SIGKILL comes in the place of the operation of that number.

    :param tell: a pipe that gets a byte when the landing begins.
    """
    settings = Settings(base_url=order["url"], requests_per_second=0, retries=Retries(first_wait=0.01))
    client = Client(
        make_context(settings, Credentials(access_token=order["token"]), "lander", MemoryTokenStore("lander"))
    )
    fs = filesystem(order["kind"], order["storage"])
    if order.get("kill_at"):
        kill_at(order["kill_at"], client, fs)
    task = order["task"]

    os.write(tell, b"r")
    run_job(
        make_job(
            PageReader(client, task, size=50).read,
            source=Source(collection_task_id=task),
            folder=folder_of(order, fs),
            run=Run(dag_id="d", task_id="t", run_id=order["run"]),
            file_format=make_format(**order.get("format", {})),
            mark=lambda: client.send(mark_exported(task)),
            max_part_bytes=order["max_part_bytes"],
            stop=client.stop,
            **order.get("options", {}),
        )
    )


def folder_of(order: dict[str, Any], fs: Any) -> Folder:
    """Return where to land: a folder, or a table."""
    if (table := order.get("table")) is None:
        return landing_folder(fs, order["root"], table_format=order.get("table_format"))
    from tests.landing.tables import sql_catalog

    catalog, name = table
    return IcebergFolder(sql_catalog(Path(catalog)).load_table(name))


def kill_at(operation: int, client: Client, fs: Any) -> None:
    """End this process in the place of a request, or of what changes or lists files.

    :param operation: which of them, from 1.
    """
    left = operation

    def lethal(work: Any) -> Any:
        def worked(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*arguments, **options)

        return worked

    client.transmit = lethal(client.transmit)  # type: ignore[method-assign]
    if "file" in fs.protocol:
        for name in ("open", "fsync", "link", "rename", "unlink", "mkdir", "scandir"):
            setattr(os, name, lethal(getattr(os, name)))
    TableFolder.call = lethal(TableFolder.call)  # type: ignore[method-assign]
    for owner, names in requests_of(fs):
        for name in names:
            setattr(owner, name, lethal(getattr(owner, name)))


def requests_of(fs: Any) -> list[tuple[Any, tuple[str, ...]]]:
    """Return the functions of an object store's client that send requests."""
    for protocol, file in FILES.items():
        if protocol in fs.protocol:
            module, _, kind = file.rpartition(".")
            opened = getattr(importlib.import_module(module), kind)
            own = [
                name
                for name in ("call_s3", "_call", "pipe_file", "rm_file", "find", "open")
                if hasattr(fs, name)
            ]
            return [(opened, ("_upload_chunk", "commit")), (fs, tuple(own))]
    return []


if __name__ == "__main__":
    serve()
