"""Landings in processes of their own, which get killed."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.location import folder_at
from airflow_provider_webcollect.landing.log.commits import Run, Source
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.tables.iceberg import IcebergFolder
from airflow_provider_webcollect.landing.tables.table import TableFolder
from airflow_provider_webcollect.landing.write.run import run_job
from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.endpoints import mark_exported
from airflow_provider_webcollect.service.pages import PageReader
from airflow_provider_webcollect.service.settings import Credentials, Retries, Settings
from airflow_provider_webcollect.service.tokens import MemoryTokenStore
from tests.landing.pages import make_job
from tests.simulation.forks import die, die_after, disturbed_at, serve
from tests.storages import filesystem

#: File classes of object stores: their uploads and commits also change the storage.
FILES = {"s3": "s3fs.core.S3File", "abfs": "adlfs.spec.AzureBlobFile", "gs": "gcsfs.core.GCSFile"}


def main() -> None:
    """Carry out the orders."""
    serve(land)


def land(order: dict[str, Any]) -> None:
    """Land; die instead of the operation with the number ``kill_at``, or after ``kill_after`` seconds."""
    settings = Settings(base_url=order["url"], requests_per_second=0, retries=Retries(first_wait=0.01))
    credentials = Credentials(access_token=order["token"])
    client = Client(make_context(settings, credentials, "lander", MemoryTokenStore("lander")))
    fs = filesystem(order["kind"], order["storage"])
    if order.get("kill_at"):
        kill_at(order["kill_at"], client, fs)
    task = order["task"]
    if table := order.get("table"):
        from tests.landing.tables import sql_catalog

        folder: Folder = IcebergFolder(sql_catalog(Path(table[0])).load_table(table[1]))
    else:
        folder = folder_at(fs, order["root"], table_format=order["table_format"])
    if seconds := order.get("kill_after"):
        die_after(seconds)
    run_job(
        make_job(
            PageReader(client, task, size=50).read,
            source=Source(collection_task_id=task),
            folder=folder,
            run=Run(dag_id="d", task_id="t", run_id="r1"),
            file_format=make_format("jsonl" if order["table_format"] is None else "parquet"),
            mark=lambda: client.send(mark_exported(task)),
            max_part_bytes=20_000,
            stop=client.stop,
        )
    )


def kill_at(operation: int, client: Client, fs: Any) -> None:
    """End this process instead of a request, or of an operation that changes or lists files.

    :param operation: number of the request or operation, from 1.
    """
    lethal = disturbed_at(operation, die)
    lethal(client, "transmit")
    lethal(TableFolder, "call")
    if "file" in fs.protocol:
        for name in ("open", "fsync", "link", "rename", "unlink", "mkdir", "scandir"):
            lethal(os, name)
    for protocol, file in FILES.items():
        if protocol in fs.protocol:
            module, _, kind = file.rpartition(".")
            for name in ("_upload_chunk", "commit"):
                lethal(getattr(importlib.import_module(module), kind), name)
            for name in ("call_s3", "_call", "pipe_file", "rm_file", "find", "open"):
                if hasattr(fs, name):
                    lethal(fs, name)
