"""Ways to land rows, except dlt's: ``python -m benchmarks.landers WAY URL FOLDER TASK...``.

For this provider's own ways, the folder may be on S3. All ways read one page after another, without a rate
limit; this provider requests one page ahead if responses take long. ``floor`` discards the rows.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import requests

from airflow_provider_webcollect.landing.log.commits import Run, Source
from airflow_provider_webcollect.landing.options import LandOptions
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.write.job import job_of
from airflow_provider_webcollect.landing.write.run import land_all, run_job
from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.settings import Credentials, Settings
from airflow_provider_webcollect.service.tokens import MemoryTokenStore
from benchmarks.measured import measured

PAGE_ROWS = 1000
AT_ONCE = 8
#: Three rules about values, which no row breaks.
RULES: dict[str, Any] = {
    "columns": {
        "url": {"required": True},
        "price": {"pattern": r"\d+\.\d\d", "min": 0},
    }
}
#: The cursor and the number of remaining rows, which come before the rows in a page.
HEAD = re.compile(rb'"offset": ?(\d+), ?"total": ?(\d+), ?"restTotal": ?(\d+)')


def main(way: str, url: str, folder: str, *tasks: str) -> None:
    """Measure one way."""
    match way:
        case "floor":
            measured(lambda: floor(url, tasks[0]))
        case "plain":
            measured(lambda: plain(url, tasks[0], Path(folder)))
        case "jsonl" | "jsonl gzip" | "parquet":
            if way == "parquet":
                import pyarrow.parquet  # noqa: F401  # imported here, so that the import is not measured
            fs, path = fsspec.url_to_fs(folder)
            fs.exists(path)  # S3's client imports more at its first call
            landed = Folder(fs, path)
            chosen = dict(zip(("file_format", "compression"), way.split(), strict=False))
            measured(lambda: ours(connected(url), tasks[0], landed, chosen))
        case "jsonl checked" | "jsonl sorted":
            landed = Folder(*fsspec.url_to_fs(folder))
            checks = {**RULES, "rows": {"max_wrong": 0.01 if way == "jsonl sorted" else 0}}
            measured(lambda: ours(connected(url), tasks[0], landed, {"checks": checks}))
        case "jsonl traced":
            landed = Folder(*fsspec.url_to_fs(folder))
            with task_span():
                measured(lambda: ours(connected(url), tasks[0], landed))
        case "many":
            measured(lambda: many(url, tasks, folder))
        case _:
            raise SystemExit(f"no such way: {way}")


def floor(url: str, task: str) -> int:
    """Fetch every page, and read only the cursor."""
    session, offset, left, total = session_(), 0, 1, 0
    while left:
        body = session.get(f"{url}/data/all", params=window(task, offset)).content
        head = HEAD.search(body, 0, 200)
        assert head, body[:200]
        offset, total, left = map(int, head.groups())
    return total


def plain(url: str, task: str, folder: Path) -> int:
    """Fetch with requests and write with json: the simplest loop."""
    session, offset, left, rows = session_(), 0, 1, 0
    folder.mkdir(parents=True)
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        while left:
            page = session.get(f"{url}/data/all", params=window(task, offset)).json()["data"]
            for row in page["data"]:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            offset, left, rows = page["offset"], page["restTotal"], rows + len(page["data"])
    return rows


def session_() -> requests.Session:
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {demo.ACCESS_TOKEN}"
    return session


def window(task: str, offset: int) -> dict[str, Any]:
    return {"taskId": task, "offset": offset, "size": PAGE_ROWS}


def ours(client: Client, task: str, folder: Folder, more: dict[str, Any] | None = None) -> int:
    """Land the rows with this provider, as its operator does."""
    run = Run(dag_id="benchmark", task_id="land", run_id="1")
    given = {"mode": "full", "page_size": PAGE_ROWS, "late_rows_delay": 0}
    options = LandOptions.parse({**given, **(more or {})})
    return run_job(job_of(client, Source(collection_task_id=task), folder, run, options)).manifest.rows


def many(url: str, tasks: tuple[str, ...], folder: str) -> int:
    """Land several sources, at most :data:`AT_ONCE` of them at once."""
    client = connected(url)

    rows = []

    def job(task: str) -> None:
        own = Folder(*fsspec.url_to_fs(f"{folder}/{task}"))
        rows.append(ours(client, task, own))

    land_all({task: functools.partial(job, task) for task in tasks}, AT_ONCE)
    return sum(rows)


def task_span() -> contextlib.AbstractContextManager[object]:
    """Trace the block as Airflow traces a task; the spans are encoded for a collector, but not sent."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Encodes(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            encode_spans(spans).SerializeToString()
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Encodes()))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("airflow").start_as_current_span("worker.land")


def connected(url: str) -> Client:
    settings = Settings(base_url=url, requests_per_second=0)
    context = make_context(
        settings, Credentials(access_token=demo.ACCESS_TOKEN), "benchmark", MemoryTokenStore("benchmark")
    )
    return Client(context)


if __name__ == "__main__":
    main(*sys.argv[1:])
