"""Deciding what a landing does from what has landed and what is staged, without any reads or writes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.landing.commits import Manifest, PageFingerprint, Staged, now
from airflow_provider_webcollect.landing.errors import DestinationTaken, FormatChanged
from airflow_provider_webcollect.landing.names import new_attempt_id

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.commits import Run
    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.job import Job

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keep:
    """What has landed stays as it is."""

    state: Manifest


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows must be copied.

    :ivar starts: possible starting points; the first one that the source still matches is used.
    """

    starts: tuple[Staged, ...]


def make_plan(job: Job, state: Manifest | None, staged: Iterable[Staged]) -> Keep | Copy:
    """Return what a landing does.

    :param state: what has landed; None for nothing.
    :param staged: what attempts of the run have written, the last one last.
    :raises DestinationTaken: if another source, or another run's rows, must not be changed.
    :raises FormatChanged: if the data to continue has other format options.
    """
    if state is not None:
        _refuse_another_source(job, state)
        if has_committed(job.run, state):
            # before a mark, rows that have come since must land first
            if state.run != job.run or not is_mark_due(job, state):
                return Keep(state)
        elif job.options.mode == "full" and job.options.if_exists == "fail":
            raise DestinationTaken(
                f"{job.folder.root} holds what {state.run} landed; land with mode='incremental', which adds "
                "what is new, or give every run its own destination (with {{ run_id }} in it, say), or "
                "land with if_exists='skip' or if_exists='overwrite'"
            )
        elif job.options.mode == "full" and job.options.if_exists == "skip":
            return Keep(state)
    starts = _starts(job, state)
    resumed = [start for each in staged if (start := _resumed(job, each, starts))]
    return Copy((*resumed[-1:], *starts))


def has_committed(run: Run, state: Manifest) -> bool:
    """Return whether an attempt of a run has committed: its result stays, whatever has landed since."""
    return state.record_of(run) is not None or any(each.run == run for each in state.set_apart)


def is_mark_due(job: Job, state: Manifest | None) -> bool:
    """Return whether the job marks, and what has landed is not marked."""
    return job.options.mark_exported and state is not None and state.lacks_mark


def can_be_set_apart(staged: Staged) -> bool:
    """Return whether a landing can go on behind rows without having them; else it begins with them."""
    return staged.mode == "incremental" and (staged.continues or not staged.base)


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


def _starts(job: Job, state: Manifest | None) -> list[Staged]:
    """Return the possible starting points besides an unfinished landing, the best first."""
    first_row = _first_row(job, state)
    if state is None or (job.options.mode == "full" and state.run != job.run):
        return [first_row]
    end = continuing(job, state)
    match job.options.on_reset:
        case "full":
            return [end, first_row]
        case "append":
            return [end, _after_reset(end, state)]
    return [end]


def _first_row(job: Job, state: Manifest | None) -> Staged:
    """Return the start of a landing that begins with the first row."""
    return Staged(
        attempt_id=new_attempt_id(),
        source=job.source,
        run=job.run,
        mode=job.options.mode,
        encoding=encoding_of(job.options.file_format),
        table_format=job.folder.table_format,
        columns=job.options.file_format.columns_after(()).names,
        base=0 if state is None else state.commit,
        started_at=now(),
    )


def continuing(job: Job, state: Manifest) -> Staged:
    """Return the start of a landing that adds to what has landed.

    :raises FormatChanged: if the job has other format options.
    """
    _refuse_another_format(job, state.file_format)
    return msgspec.structs.replace(
        _first_row(job, state),
        columns=state.columns or (),
        continues=True,
        rows_before=state.source_rows,
        # names go on from there, so that their order is that of the rows
        parts_before=state.part_count,
        offset_before=state.next_offset,
        earlier_rows=state.earlier_rows,
        last_page=state.last_page,
    )


def _after_reset(end: Staged, state: Manifest) -> Staged:
    """Return the start of a landing that adds the source's rows, from the first, to what has landed."""
    return msgspec.structs.replace(
        end, rows_before=0, offset_before=0, earlier_rows=state.rows, last_page=PageFingerprint()
    )


def _resumed(job: Job, staged: Staged, starts: Sequence[Staged]) -> Staged | None:
    """Return what an earlier attempt of the run has written, as a start for this one, if it can be used."""
    if not staged.parts or staged.source != job.source:
        return None
    # a landing that restarted from the first row after a reset of the source still needs `on_reset`
    if (start := next((start for start in starts if _begins(start) == _begins(staged)), None)) is None:
        return None
    if staged.encoding != start.encoding:
        log.warning("%d rows were written with other format options; they are read again.", staged.rows)
        return None
    return msgspec.structs.replace(staged, attempt_id=start.attempt_id, refused=())


def _begins(staged: Staged) -> tuple[object, ...]:
    return (staged.base, staged.mode, staged.continues, staged.rows_before, staged.earlier_rows)


def encoding_of(file_format: FileFormat) -> dict[str, Any]:
    """Return the format with all its options, as plain JSON."""
    options = msgspec.structs.asdict(file_format)
    encoding: dict[str, Any] = msgspec.to_builtins({"file_format": file_format.name, **options})
    # as it will be when read back: without tuples
    return {name: list(value) if isinstance(value, tuple) else value for name, value in encoding.items()}


def _in_words(option: Any) -> str:
    return "not set" if option is None else ", ".join(option) if isinstance(option, list) else str(option)


def _refuse_another_format(job: Job, landed: Mapping[str, Any]) -> None:
    wanted = encoding_of(job.options.file_format)
    differing = [
        f"`{name}` is {_in_words(wanted.get(name))} and was {_in_words(landed.get(name))}"
        for name in {**wanted, **landed}
        if wanted.get(name) != landed.get(name)
    ]
    if differing:
        if wanted["file_format"] != landed.get("file_format"):
            # the other differences only follow from the format
            del differing[1:]
        raise FormatChanged(
            f"the landing at {job.folder.root} was written with other options: {'; '.join(differing)}. "
            "Use the same options, or give the landing another destination"
        )
