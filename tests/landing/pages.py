"""Sources that need no service, with chosen rows and counts or with numbered rows, and landings of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec

from airflow_provider_webcollect.landing.log.commits import Run, Source
from airflow_provider_webcollect.landing.options import LandOptions
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.write.job import Job, Observer
from airflow_provider_webcollect.service.models import DataPage
from tests.interruption import Pauses

#: Rows in a page of :class:`Rows`.
PAGE = 5
Fetch = Callable[[int], DataPage]
Stream = Callable[[Iterator[DataPage]], Iterator[DataPage]]


def nothing(*_: object) -> None:
    """Do nothing."""


def unreachable(*_: object) -> None:
    """Fail as a call does while the service is down."""
    raise ConnectionError("the service is down")


def make_job(fetch: Fetch, **arguments: Any) -> Job:
    """Return a landing of the pages that ``fetch`` returns; it waits for no late rows.

    :param arguments: arguments of :class:`Job`, and fields of its options and observer, each by its own name.
        ``mark`` also sets ``mark_exported``; ``on_replan`` is called when fetched pages are to be forgotten.
    """
    pages: Any = SimpleNamespace(read=fetch, forget=nothing)
    job = Job(
        source=Source(collection_task_id="t"),
        called="task t",
        folder=arguments["folder"],
        run=arguments["run"],
        options=LandOptions.parse({"mode": "full", "late_rows_delay": 0.0}),
        pages=pages,
        mark=nothing,
        loops=tuple,
        observer=Observer(),
        stop=Pauses(),
    )
    return changed(job, **arguments)


def changed(job: Job, **arguments: Any) -> Job:
    """Return the landing with some arguments of :func:`make_job` changed."""
    changes: dict[str, Any] = {}
    if form := arguments.pop("file_format", None):
        changes = {name: getattr(form, name) for name in form.__struct_fields__}
        changes |= {"file_format": form.name, "compression": form.compression or "none"}
    options = {*LandOptions.__struct_fields__} & arguments.keys()
    changes |= {name: arguments.pop(name) for name in options}
    if "mark" in arguments:
        changes["mark_exported"] = arguments["mark"] is not None
        arguments["mark"] = arguments["mark"] or nothing
    if "fetch" in arguments:
        forget = arguments.pop("on_replan", nothing)
        arguments["pages"] = SimpleNamespace(read=arguments.pop("fetch"), forget=forget)
    if heard := {"on_progress", "on_checks", "on_commit"} & arguments.keys():
        arguments["observer"] = observer = Observer()
        for name in heard:
            setattr(observer, name, arguments.pop(name))
    return dataclasses.replace(job, options=msgspec.structs.replace(job.options, **changes), **arguments)


def counted_page(rows: list[dict[str, Any]], offset: int, total: int, rest: int) -> DataPage:
    """Return a page whose counts may make no sense."""
    raw = [msgspec.Raw(json.dumps(row).encode()) for row in rows]
    return DataPage(offset=offset, total=total, rest_total=rest, rows=raw)


def page(rows: list[dict[str, Any]], before: int, total: int) -> DataPage:
    """Return the page after the first ``before`` rows of a source that has ``total``."""
    after = before + len(rows)
    return counted_page(rows, after, total, total - after)


def widening(count: int = 6) -> list[DataPage]:
    """Return pages of two rows; on each page, rows have one key more than on the page before."""
    pages = []
    for number in range(count):
        keys = [f"k{index}" for index in range(number + 1)]
        rows = [dict.fromkeys(keys, f"{number}.{row}") for row in range(2)]
        pages.append(page(rows, number * 2, count * 2))
    return pages


def rows_of(pages: list[DataPage]) -> list[dict[str, Any]]:
    return [row for page in pages for row in page.records()]


def serving(rows: list[dict[str, Any]], size: int = 100) -> Callable[[int], DataPage]:
    """Return a function that returns pages of ``rows`` as they are at the call; the cursor counts rows."""

    def fetch(offset: int) -> DataPage:
        return page(rows[offset : offset + size], offset, len(rows))

    return fetch


def through(stream: Stream, fetch: Fetch) -> Fetch:
    """Return a function that passes the pages of ``fetch`` through ``stream``, one after another."""
    requested: list[int] = []

    def fetched() -> Iterator[DataPage]:
        while requested:
            yield fetch(requested.pop())

    pages = stream(fetched())

    def passed(offset: int) -> DataPage:
        nonlocal pages
        requested.append(offset)
        try:
            return next(pages)
        except StopIteration:
            requested[:] = [offset]
            pages = stream(fetched())
            return next(pages)

    return passed


class Rows:
    """A source whose rows are numbered."""

    def __init__(self, count: int) -> None:
        self.count = count

    def encoded(self, number: int) -> bytes:
        return b'{"n":%d}' % number

    def fetch(self, offset: int) -> DataPage:
        end = min(offset + PAGE, self.count)
        rows = [msgspec.Raw(self.encoded(number)) for number in range(offset, end)]
        return DataPage(offset=end, total=self.count, rest_total=self.count - end, rows=rows)


def true_rows(count: int) -> list[dict[str, int]]:
    """Return the rows of a :class:`Rows` of that size."""
    return [{"n": number} for number in range(count)]


def job(rows: Rows, destination: Folder, run: str, **options: Any) -> Job:
    """Return a landing of numbered rows, with one part for each page."""
    return make_job(
        rows.fetch,
        folder=destination,
        run=Run(dag_id="d", task_id="t", run_id=run),
        **{"max_part_bytes": 1, **options},
    )
