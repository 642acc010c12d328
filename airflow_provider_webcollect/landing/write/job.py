"""One landing for the engine: its source, folder, run, timing and observer, and its result."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from airflow_provider_webcollect.landing.log.commits import Manifest, Part, Run, Source
from airflow_provider_webcollect.service.endpoints import mark_exported
from airflow_provider_webcollect.service.pages import PageReader

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.options import LandOptions
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.service.client import Client
    from airflow_provider_webcollect.service.models import DataPage
    from airflow_provider_webcollect.service.threads import Stop


class Observer:
    """Follows a landing while it runs, in its threads; the methods do nothing unless overridden."""

    def on_request(self) -> None:
        """A request for rows was sent, maybe not for the first time."""

    def on_page(self) -> None:
        """A page of rows was read."""

    def on_progress(self, rows: int, total: int) -> None:
        """A page was written.

        :param rows: number of the source's rows so far.
        :param total: how many the service announces.
        """

    def on_late_rows_wait(self, seconds: float) -> None:
        """The landing waits for rows that the source may not show yet.

        :param seconds: how long at most.
        """

    def on_checks(self, outcomes: Sequence[CheckOutcome]) -> None:
        """The rows were checked; nothing is committed yet.

        :param outcomes: of each check. A landing that begins again may check several times.
        """

    def on_commit(self, landed: Landed) -> None:
        """The rows are committed, and not marked yet.

        :param landed: the result.
        """


class Pages(Protocol):
    """The pages of a source, as a :class:`~.service.pages.PageReader` gives them."""

    def read(self, offset: int) -> DataPage: ...

    def forget(self) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A landing: one source, one folder, one run.

    :param source: what is read.
    :param folder: of this landing alone.
    :param run: what it is for; its rows count once, in any of its attempts.
    :param run_began: when the run began, with a zone; None if that is not known. A run that is older than
        those that the manifest knows is looked for in the log.
    :param began: when a task that lands several sources began, by ``time.monotonic()``: each of them waits
        for late rows until ``late_rows_delay`` seconds after that; None to count from its own beginning.
    :param options: see :class:`~airflow_provider_webcollect.landing.options.LandOptions`.
    :param pages: of the source.
    :param mark: confirms the export to the service.
    :param observer: follows the landing while it runs.
    :param stop: ends the landing once it is set; nothing is committed from then on. The client of ``pages``
        and ``mark`` must share it, so that it sends nothing either.
    """

    source: Source
    folder: Folder
    run: Run
    run_began: datetime.datetime | None = None
    began: float | None = None
    options: LandOptions
    pages: Pages
    mark: Callable[[], object]
    observer: Observer
    stop: Stop


def job_of(
    client: Client,
    source: Source,
    folder: Folder,
    run: Run,
    options: LandOptions,
    *,
    run_began: datetime.datetime | None = None,
    began: float | None = None,
    observer: Observer | None = None,
) -> Job:
    """Return the landing of a source of the service; nothing is read or written.

    :param client: of the service; once its ``stop`` is set, nothing is committed any more.
    :param source: the host of the client is added to it.
    :param folder: see :class:`Job`, as for ``run``, ``options``, ``run_began`` and ``began``.
    :param run: likewise.
    :param options: likewise.
    :param run_began: likewise.
    :param began: likewise.
    :param observer: likewise; None for none.
    """
    observer = observer or Observer()
    task, lotno = source.collection_task_id, source.lotno
    return Job(
        source=msgspec.structs.replace(source, host=client.context.settings.host),
        folder=folder,
        run=run,
        run_began=run_began,
        began=began,
        options=options,
        pages=PageReader(client, task, lotno, size=options.page_size, sent=observer.on_request),
        mark=functools.partial(client.send, mark_exported(task)),
        observer=observer,
        stop=client.stop,
    )


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of a landing.

    :ivar manifest: what has landed.
    :ivar new: the parts that the run has landed, in any of its attempts, with the profiles of their rows;
        without those that were replaced since.
    :ivar committed: those that this attempt has committed.
    :ivar checks: the outcomes of the checks of this run's rows, in any of its attempts.
    """

    manifest: Manifest
    new: tuple[Part, ...] = ()
    committed: tuple[Part, ...] = ()
    checks: tuple[CheckOutcome, ...] = ()
