"""The description of a landing: source, folder, run and options; and its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from airflow_provider_webcollect.landing.manifest import (
    PARTITION_PATTERN,
    Manifest,
    Mode,
    Part,
    Run,
    Source,
)
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.endpoints import MAX_DATA_SIZE
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.service.models import DataPage
    from airflow_provider_webcollect.service.pauses import Stop

IfExists = Literal["fail", "overwrite", "skip"]
OnReset = Literal["fail", "full", "append"]
MAX_PART_BYTES = 128 * 1024 * 1024
SETTLE_SECONDS = 15.0
_PARTITION = re.compile(f"{PARTITION_PATTERN}(?:/{PARTITION_PATTERN})*")


def check_partition(value: object) -> str | None:
    """Return the folders for a run's new parts, such as ``dt=2026-01-01/hour=07``; None for no partition.

    :param value: an empty string means None.
    :raises InvalidArgument: if readers might not find the folders, or might misread their names.
    """
    if value is None or value == "":
        return None
    partition = validation.text("partition", value)
    if not _PARTITION.fullmatch(partition):
        raise InvalidArgument(
            "partition",
            value,
            "it must be one or more name=value, separated by /, such as dt=2026-01-01/hour=07: of letters, "
            "digits, '=', '-', '_' and '.', and none beginning with '_' or '.', which readers take for "
            "hidden. Not all readers take ':' and '+', which run ids hold: give the day of the run, such as "
            "dt={{ (dag_run.data_interval_end or dag_run.run_after) | ds }}",
        )
    return partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a landing does; :func:`make_options` makes them of arguments, and explains them."""

    file_format: FileFormat
    mode: Mode
    on_reset: OnReset
    if_exists: IfExists
    partition: str | None
    mark_exported: bool
    page_size: int
    max_part_bytes: int
    settle: float


def make_options(
    file_format: FileFormat,
    *,
    mode: Mode = "full",
    on_reset: OnReset = "fail",
    if_exists: IfExists = "fail",
    partition: str | None = None,
    mark_exported: bool = False,
    page_size: int | str = MAX_DATA_SIZE,
    max_part_bytes: int | str = MAX_PART_BYTES,
    settle: float = SETTLE_SECONDS,
) -> Options:
    """Return the checked options of a landing. Imports nothing heavy.

    :param file_format: the format of the parts, see :func:`~.landing.formats.make_format`.
    :param mode: ``full`` lands all rows for this run; ``incremental`` adds new rows to those that earlier
        runs have landed.
    :param on_reset: for ``incremental``: what to do if the source no longer begins with the landed rows:
        ``fail``; ``full`` to replace them by all of the source's rows; ``append`` to add all of these.
    :param if_exists: for ``full``: what to do if there is a commit of another run: ``fail``, ``overwrite`` or
        ``skip``.
    :param partition: the subfolder for this run's new parts, see :func:`check_partition`; None for the
        landing's folder itself.
    :param mark_exported: whether to confirm the export to the service after the commit.
    :param page_size: rows per request, 1 to 1000 (default).
    :param max_part_bytes: a part ends with the page that reaches this size; by default 128 MiB.
    :param settle: seconds to wait for rows that the source may not show yet; by default 15.
    :raises InvalidArgument: if an argument is wrong, or does not go with the mode.
    """
    validation.one_of("if_exists", if_exists, get_args(IfExists))
    validation.one_of("mode", mode, get_args(Mode))
    validation.one_of("on_reset", on_reset, get_args(OnReset))
    if mode == "incremental" and if_exists != "fail":
        raise InvalidArgument("if_exists", if_exists, "it goes with mode='full' alone")
    if mode == "full" and on_reset != "fail":
        raise InvalidArgument("on_reset", on_reset, "it goes with mode='incremental' alone")
    return Options(
        file_format=file_format,
        mode=mode,
        on_reset=on_reset,
        if_exists=if_exists,
        partition=check_partition(partition),
        mark_exported=validation.boolean("mark_exported", mark_exported),
        page_size=validation.integer("page_size", page_size, 1, MAX_DATA_SIZE),
        max_part_bytes=validation.integer("max_part_bytes", max_part_bytes, 1),
        settle=validation.seconds("settle", settle, may_be_zero=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How the lease of a folder is kept and taken over, in seconds.

    :param heartbeat_interval: between two heartbeats.
    :param watch_interval: between two reads of another run's record.
    :param abandoned_after: how long that record must stay unchanged before its landing counts as dead, and is
        taken over; several times ``heartbeat_interval``.
    :param record_interval: between two writes of the record after a part: stores such as Google Cloud Storage
        take one write per second of an object.
    """

    heartbeat_interval: float = 15.0
    record_interval: float = 1.0
    watch_interval: float = 2.0
    abandoned_after: float = 60.0


class Observer:
    """Hears of a landing while it is at work, in its threads; the methods do nothing unless overridden."""

    def on_request(self) -> None:
        """A request for rows was sent, maybe not for the first time."""

    def on_page(self) -> None:
        """A page of rows was read."""

    def on_progress(self, rows: int, total: int) -> None:
        """A page was written.

        :param rows: number of the source's rows so far.
        :param total: how many the service announces.
        """

    def on_commit(self, landed: Landed) -> None:
        """The rows are committed, and not marked yet.

        :param landed: the result. A landing that begins again may commit several times.
        """


class Pages(Protocol):
    """The pages of a source, such as a :class:`~.service.pages.PageReader`."""

    def read(self, offset: int) -> DataPage:
        """Return the page at an offset."""

    def forget(self) -> object:
        """Drop what was read ahead: the next page is requested from the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One source, one folder, one run.

    :param attempt: Airflow's try number; of the attempts of one run, the highest may take the folder over.
    :param pages: of the source.
    :param mark: confirms the export to the service.
    :param stop: ends the landing once it is set; no manifest is written from then on. The client of ``pages``
        and ``mark`` must share it, so that it sends nothing either.
    :param timing: of the lease.
    """

    source: Source
    folder: Folder
    run: Run
    attempt: int = 1
    options: Options
    pages: Pages
    mark: Callable[[], object]
    observer: Observer
    stop: Stop
    timing: Timing = Timing()


def intervals(seconds: float, longest: float) -> Iterator[float]:
    """Split a waiting time into intervals of at most ``longest`` seconds, to poll after each."""
    while seconds > 0:
        yield (interval := min(seconds, longest))
        seconds -= interval


class Report(Protocol):
    """The report of a commit: until it ends, the next run would report the parts with its own."""

    def keep(self) -> object:
        """Write heartbeats from now on, until the report ends or is given up: no other run takes it over."""

    def rest(self) -> object:
        """Write no more heartbeats."""

    def renew(self) -> object:
        """Write a heartbeat now, which proves that the report is still this run's.

        :raises LeaseLost: if another run has taken it over.
        """

    def tidy(self) -> object:
        """Delete the files that no manifest will list again: what is left to do before the end."""

    def finish(self) -> object:
        """End the report: from now on, no other run reports these parts.

        :raises LeaseLost: if another run has taken it over.
        """

    def release(self, error: Exception) -> object:
        """Give the report up after an error: the next run takes it over at once."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A landing that is committed.

    :ivar own: whether the landing is this run's; if not, that of another run was left as it is.
    :ivar new: the parts whose rows this run reports: those that it has added, in whichever of its attempts,
        and those that a run before it had committed without finishing its report. Each part belongs to one
        run.
    :ivar committed: the parts with the rows that this attempt has committed; empty if the commit already
        existed.
    :ivar report: None if nothing was written.
    """

    manifest: Manifest
    own: bool = True
    new: tuple[Part, ...] = ()
    committed: tuple[Part, ...] = ()
    report: Report | None = field(default=None, compare=False, repr=False)

    def finish(self) -> None:
        """End the report; to be called once when the result is reported.

        :raises LeaseLost: if another run has taken the report over meanwhile.
        """
        if self.report is not None:
            self.report.tidy()
            self.report.finish()
