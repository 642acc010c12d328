"""Deciding what a landing does from what has landed and what is staged, without any reads or writes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.landing.checks import Checks
from airflow_provider_webcollect.landing.errors import DestinationTaken, FormatChanged
from airflow_provider_webcollect.landing.log.commits import Manifest
from airflow_provider_webcollect.landing.log.fold import following

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.log.commits import Commit, Landing
    from airflow_provider_webcollect.landing.write.job import Job

log = logging.getLogger(__name__)


def make_plan(
    job: Job, state: Manifest | None, staged: Iterable[Commit], *, has_committed: bool
) -> list[Commit]:
    """Return the drafts with which a landing may begin; the first that the source still matches is used.

    :param state: what has landed; None for nothing.
    :param staged: the drafts of earlier attempts of the run, the last one last.
    :param has_committed: whether an attempt of the run has committed: its result stays, whatever has landed
        since.
    :return: none if what has landed stays as it is.
    :raises DestinationTaken: if another source, or another run's rows, must not be changed.
    :raises FormatChanged: if the data to continue has other format options.
    """
    if state is not None:
        _refuse_another_source(job, state)
        if has_committed:
            # before a mark, rows that have come since must land first
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
    return [*resumed[-1:], *starts]


def is_mark_due(job: Job, state: Manifest | None) -> bool:
    """Return whether the job marks, and what has landed is not marked."""
    return job.options.mark_exported and state is not None and state.lacks_mark


def _refuse_another_source(job: Job, state: Manifest) -> None:
    if state.table_format != job.folder.table_format:
        raise DestinationTaken(
            f"{job.folder.root} holds a landing that is {_kind(state.table_format)}; give the one that is "
            f"{_kind(job.folder.table_format)} a destination of its own"
        )
    if (landed := state.source).is_same_as(job.source):
        return
    elsewhere = (
        f"; the first is of the service at {landed.host}, the second at {job.source.host}. If both are "
        "one service, land at another destination"
        if landed.is_same_as(msgspec.structs.replace(job.source, host=None))
        else "; give each collection task, or batch of one, a destination of its own"
    )
    raise DestinationTaken(f"{job.folder.root} holds {landed}, not {job.source}{elsewhere}")


def _kind(table_format: str | None) -> str:
    return "no table" if table_format is None else f"a table of {table_format}"


def _starts(job: Job, state: Manifest | None) -> list[Commit]:
    """Return the possible beginnings besides the drafts of earlier attempts, the best first."""
    rules = _digest_of(job.options.checks)
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
    """Return the draft of an earlier attempt for this one, if it can be used."""
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
    # others may have decided, or marked, since it was begun
    return msgspec.structs.replace(
        draft, attempt_id=start.attempt_id, number=start.number, earlier_rows=start.earlier_rows
    )


def _digest_of(checks: Checks | None) -> str:
    """Return the digest of the rules about values, which tell what was quarantined and counted so far."""
    rules = checks and (checks.rows.max_wrong, checks.columns)
    return hashlib.sha256(msgspec.json.encode(rules)).hexdigest()[:16] if rules else ""


def encoding_of(file_format: FileFormat) -> dict[str, Any]:
    """Return a format with all its options, as a commit has it."""
    options = msgspec.to_builtins(msgspec.structs.asdict(file_format))
    # as it will be when read back: without tuples
    encoding = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return {"format": file_format.name, "compression": encoding.pop("compression"), "encoding": encoding}


def _options_of(landing: Landing) -> dict[str, Any]:
    return {"file_format": landing.format, "compression": landing.compression, **landing.encoding}


def _in_words(option: Any) -> str:
    return "not set" if option is None else ", ".join(option) if isinstance(option, list) else str(option)


def _refuse_another_format(job: Job, draft: Commit, state: Manifest) -> None:
    wanted, landed = _options_of(draft), _options_of(state)
    named, ways = wanted.get("columns"), "Use the same options"
    if named and state.columns and not landed.get("columns"):
        ways += f" (`columns` may also begin with {[*state.columns]})"
        if named[: len(state.columns)] == [*state.columns]:
            # from now on the landing gets no others
            landed["columns"] = named
    differing = [
        f"`{name}` is {_in_words(wanted.get(name))} and was {_in_words(landed.get(name))}"
        for name in {**wanted, **landed}
        if wanted.get(name) != landed.get(name)
    ]
    if differing:
        if draft.format != state.format:
            # the other differences only follow from the format
            del differing[1:]
        raise FormatChanged(
            f"the landing at {job.folder.root} was written with other options: {'; '.join(differing)}. "
            f"{ways}, or give the landing another destination"
        )
