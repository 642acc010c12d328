"""A landing as a job: its source, folder, run, timing and observer, its plan, and its result.

The plan depends only on the state of the landing and the drafts; making it reads and writes nothing.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.landing.errors import DestinationTaken, FormatChanged
from airflow_provider_webcollect.landing.log.commits import Manifest, Part, Run, Source
from airflow_provider_webcollect.landing.log.fold import following
from airflow_provider_webcollect.service.endpoints import get_actions, mark_exported
from airflow_provider_webcollect.service.models import ActionType
from airflow_provider_webcollect.service.pages import PageReader

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.log.commits import Commit, Landing, MissingInputs
    from airflow_provider_webcollect.landing.options import LandOptions
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.service.client import Client
    from airflow_provider_webcollect.service.models import Action
    from airflow_provider_webcollect.service.threads import Stop

log = logging.getLogger(__name__)


class Observer:
    """Is notified of a landing's progress, in its threads; the methods do nothing unless overridden."""

    def on_request(self) -> None:
        """A request for rows was sent, possibly as a retry."""

    def on_page(self) -> None:
        """A page of rows was read."""

    def on_progress(self, rows: int, total: int) -> None:
        """A page was written.

        :param rows: number of the source's rows that are written so far.
        :param total: number of all rows that the service announces.
        """

    def on_late_rows_wait(self, seconds: float) -> None:
        """The landing waits for rows that the source may not show yet.

        :param seconds: the maximum duration of the wait, in seconds.
        """

    def on_checks(self, outcomes: Sequence[CheckOutcome]) -> None:
        """The rows were checked; nothing is committed yet.

        :param outcomes: the outcome of each check. A landing that begins again may check several times.
        """

    def on_commit(self, landed: Landed) -> None:
        """The rows are committed; the export is not marked yet.

        :param landed: the result of the landing so far.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A landing: one source, one folder, one run.

    :param source: the source to read.
    :param called: the name of the source for messages.
    :param folder: the folder that only this landing uses.
    :param run: the run that lands; its rows land once, however many attempts it makes.
    :param run_began: when the run began, with a time zone; None if that is not known. The whole log is read
        for a run that is older than the runs in the manifest.
    :param began: when a task that lands several sources began, by ``time.monotonic()``: a source without new
        rows waits for late rows until ``late_rows_delay`` seconds after that, or longer if a mark is due.
        None to count from its own beginning.
    :param options: see :class:`~airflow_provider_webcollect.landing.options.LandOptions`.
    :param pages: reads pages of the source.
    :param mark: confirms the export to the service.
    :param loops: reads the loops of the collection task, for the check of inputs.
    :param observer: is notified while the landing runs.
    :param stop: ends the landing once it is set; nothing is committed from then on. The client of ``pages``
        and ``mark`` must share it, so that it sends nothing either.
    """

    source: Source
    called: str
    folder: Folder
    run: Run
    run_began: datetime.datetime | None = None
    began: float | None = None
    options: LandOptions
    pages: PageReader
    mark: Callable[[], object]
    loops: Callable[[], Sequence[Action]]
    observer: Observer
    stop: Stop


def job_of(
    client: Client,
    source: Source,
    folder: Folder,
    run: Run,
    options: LandOptions,
    *,
    called: str = "",
    run_began: datetime.datetime | None = None,
    began: float | None = None,
    observer: Observer | None = None,
) -> Job:
    """Return the job that lands a source of the service; nothing is read or written.

    :param client: the client of the service; once its ``stop`` is set, nothing is committed any more.
    :param source: the source to read; the client's host is added to it.
    :param folder: the folder that only this landing uses.
    :param run: the run that lands.
    :param options: the options of the landing.
    :param called: the name of the source for messages; empty for the text of ``source``.
    :param run_began: when the run began, with a time zone; None if that is not known.
    :param began: when the wait for late rows begins to count, see :class:`Job`; None for its own beginning.
    :param observer: is notified while the landing runs; None for no observer.
    """
    observer = observer or Observer()
    task, lotno = source.collection_task_id, source.lotno

    def loops() -> list[Action]:
        tasks = client.send(get_actions([task], [ActionType.LOOP]))
        return [action for actions in tasks for action in actions.actions]

    return Job(
        source=msgspec.structs.replace(source, host=client.context.settings.host),
        called=called or str(source),
        folder=folder,
        run=run,
        run_began=run_began,
        began=began,
        options=options,
        pages=PageReader(client, task, lotno, size=options.page_size, sent=observer.on_request),
        mark=functools.partial(client.send, mark_exported(task)),
        loops=loops,
        observer=observer,
        stop=client.stop,
    )


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of a landing.

    :ivar manifest: the state of the landing.
    :ivar new: the parts that the run has landed in all of its attempts, with the profiles of their rows;
        without parts that have been replaced since.
    :ivar committed: the parts that this attempt has committed.
    :ivar checks: the outcomes of the latest checks of this run's rows, in any of its attempts.
    :ivar missing_inputs: the inputs without a row; None if they are not known, or not checked.
    """

    manifest: Manifest
    new: tuple[Part, ...] = ()
    committed: tuple[Part, ...] = ()
    checks: tuple[CheckOutcome, ...] = ()
    missing_inputs: MissingInputs | None = None


def make_plan(
    job: Job, state: Manifest | None, staged: Iterable[Commit], *, has_committed: bool
) -> list[Commit]:
    """Return the drafts from which the landing may start; the first that the source still matches is used.

    :param state: the state of the landing; None if nothing has landed.
    :param staged: the drafts of the run's earlier attempts; the draft with the most rows is continued.
    :param has_committed: whether an attempt of the run has committed: its result stays, whatever has landed
        since.
    :return: the drafts; empty if the landing stays as it is.
    :raises DestinationTaken: if the destination has rows of another source, or rows of another run that must
        not be changed.
    :raises FormatChanged: if the data to continue has other format options.
    """
    if state is not None:
        _refuse_another_source(job, state)
        if has_committed:
            # before a mark, rows that have arrived since must land first
            if state.run != job.run or not is_mark_due(job, state):
                return []
        elif job.options.mode == "full" and state.rows_commit and job.options.if_exists == "fail":
            raise DestinationTaken(
                f"{job.folder.root} holds what {state.run} landed; land with mode='incremental', which adds "
                "what is new, or give every run its own destination (in a DAG, with {{ run_id }} in it), or "
                "land with if_exists='skip' or if_exists='overwrite'"
            )
        elif job.options.mode == "full" and state.rows_commit and job.options.if_exists == "skip":
            return []
    starts = _starts(job, state)
    continued = (draft for draft in staged if draft.may_continue(state))
    resumed = [start for draft in continued if (start := _resumed(job, draft, starts))]
    return [*sorted(resumed, key=lambda draft: draft.total)[-1:], *starts]


def is_mark_due(job: Job, state: Manifest | None) -> bool:
    """Return whether the job has to mark the export of the landed rows."""
    return job.options.mark_exported and state is not None and state.lacks_mark


def _refuse_another_source(job: Job, state: Manifest) -> None:
    if state.table_format != job.folder.table_format:
        raise DestinationTaken(
            f"{job.folder.root} holds a landing that is {_kind(state.table_format)}, and this one is "
            f"{_kind(job.folder.table_format)}; give it a destination of its own"
        )
    if (landed := state.source).is_same_as(job.source):
        return
    elsewhere = (
        f"; the landing is of the service at {landed.host}, and the connection leads to {job.source.host}. "
        "Even if both are the same service, land at another destination"
        if landed.is_same_as(msgspec.structs.replace(job.source, host=None))
        else "; give each collection task, or batch of one, a destination of its own"
    )
    raise DestinationTaken(f"{job.folder.root} holds {landed}, not {job.called}{elsewhere}")


def _kind(table_format: str | None) -> str:
    return "no table" if table_format is None else f"a table of {table_format}"


def _starts(job: Job, state: Manifest | None) -> list[Commit]:
    """Return the drafts without parts from which an attempt may start, the preferred one first."""
    checks = job.options.checks
    # a draft depends on the rules about values: they decide what it has quarantined and counted
    judged = checks and msgspec.json.encode((checks.rows.max_wrong, checks.columns))
    rules = hashlib.sha256(judged).hexdigest()[:16] if judged else ""
    first_row = following(
        None,
        "landed",
        job.run,
        rules=rules,
        number=1 if state is None else state.commit + 1,
        replaces=state is not None or job.options.mode == "full",
        source=job.source,
        table_format=job.folder.table_format,
        columns=job.options.format.columns_after(()).names or None,
        **encoding_of(job.options.format),
    )
    if state is None or (job.options.mode == "full" and state.run != job.run):
        return [first_row]
    _refuse_another_format(job, first_row, state)
    encoding = {"encoding": first_row.encoding, "columns": first_row.columns or state.columns}
    end = following(state, "landed", job.run, source=job.source, rules=rules, **encoding)
    match job.options.on_reset:
        case "full":
            return [end, first_row]
        case "append":
            added = {"replaces": False, "columns": end.columns, "earlier_rows": state.rows}
            return [end, msgspec.structs.replace(first_row, **added)]
    return [end]


def _resumed(job: Job, draft: Commit, starts: Sequence[Commit]) -> Commit | None:
    """Return an earlier attempt's draft, adapted to this attempt; None if it cannot be continued."""
    if not draft.written or draft.source != job.source:
        return None
    # a landing that restarted from the first row after a reset of the source still needs `on_reset`
    if (start := next((start for start in starts if start.start == draft.start), None)) is None:
        return None
    if (draft.rules, _options_of(draft)) != (start.rules, _options_of(start)):
        log.warning(
            "%d rows were written with other checks or format options; they are read again.", draft.total
        )
        return None
    # since the draft was begun, others may have committed decisions or a mark
    return msgspec.structs.replace(
        draft, attempt_id=start.attempt_id, number=start.number, earlier_rows=start.earlier_rows
    )


def encoding_of(file_format: FileFormat) -> dict[str, Any]:
    """Return the fields of a commit for a format and all of its options."""
    types = {name: kind.declared for name, kind in file_format.column_types.items()}
    options = msgspec.to_builtins({**msgspec.structs.asdict(file_format), "column_types": types})
    # as when read back from JSON: without tuples
    encoding = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return {"format": file_format.name, "compression": encoding.pop("compression"), "encoding": encoding}


def _options_of(landing: Landing) -> dict[str, Any]:
    return {"file_format": landing.format, "compression": landing.compression, **landing.encoding}


def _changed_types(wanted: Mapping[str, Any], landed: Mapping[str, Any], columns: Sequence[str]) -> bool:
    """Return whether the type of a column that the landing has would change."""
    return any(wanted.get(name) != landed.get(name) for name in (*landed, *columns))


def _as_text(option: Any) -> str:
    return "not set" if option is None else ", ".join(option) if isinstance(option, list) else str(option)


def _refuse_another_format(job: Job, draft: Commit, state: Manifest) -> None:
    wanted, landed = _options_of(draft), _options_of(state)
    named, ways = wanted.get("columns"), "Use the same options"
    # without `columns`, made columns follow the column that they are made of; with it, they come last
    has_made = any(kind.from_ for kind in job.options.format.column_types.values())
    if named and state.columns and not landed.get("columns") and not has_made:
        ways += f" (`columns` may also begin with {[*state.columns]})"
        if named[: len(state.columns)] == [*state.columns]:
            # from now on, the landing gets no other columns
            landed["columns"] = named
    if not draft.has_typed_files:
        # these files store texts, so the types of columns may change
        for name in ("column_types", "on_cast_error"):
            landed[name] = wanted.get(name)
    elif not _changed_types(wanted["column_types"], landed["column_types"], state.columns or ()):
        landed["column_types"] = wanted["column_types"]
    differing = [name for name in {**wanted, **landed} if wanted.get(name) != landed.get(name)]
    if differing:
        if draft.format != state.format:
            # the other differences only result from the other format
            del differing[1:]
        said = [
            f"`{name}` is {_as_text(wanted.get(name))} and was {_as_text(landed.get(name))}"
            for name in differing
        ]
        raise FormatChanged(
            f"the landing at {job.folder.root} was written with other options: {'; '.join(said)}. "
            f"{ways}, or give the landing another destination",
            options=differing,
        )
