"""The state of a landing after its commits, and the commit that follows; nothing is read or written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.commits import (
    MOST_RECORDS,
    Commit,
    Manifest,
    RunRecord,
    SetApart,
    now,
)
from airflow_provider_webcollect.landing.names import new_attempt_id
from airflow_provider_webcollect.landing.profile import Profile, sum_of

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.commits import Kind, Run


class Contradiction(Exception):
    """A commit does not follow from those before it; the text says how.

    :ivar number: of the commit, as its place in the log is.
    """

    number = 0


def fold(state: Manifest | None, commits: Iterable[Commit]) -> Manifest | None:
    """Return the state of a landing after commits.

    :param state: the state before them; None for no landing.
    :raises Contradiction: if one does not follow from those before it.
    """
    number = 0 if state is None else state.commit
    try:
        for commit in commits:
            number += 1
            _require(commit.number == number, f"it is commit {commit.number} in the place of {number}")
            state = _after(state, commit)
        if state is not None:
            twice = [name for name, count in Counter(part.name for part in state.parts).items() if count > 1]
            _require(not twice, f"{twice[:1]} has landed twice")
    except Contradiction as contradiction:
        contradiction.number = number
        raise
    return state


def following(state: Manifest | None, kind: Kind, run: Run, **fields: Any) -> Commit:
    """Return a commit that leaves a landing where it stands in its source.

    :param state: what it follows; None for nothing.
    :param fields: what it says of its parts, and where the landing stands otherwise.
    """
    at = now()
    own_fields = {
        "number": 1 if state is None else state.commit + 1,
        "attempt_id": new_attempt_id(),
        "started_at": at,
        "finished_at": at,
        "provider_version": airflow_provider_webcollect.__version__,
    }
    return Commit(kind=kind, run=run, **{**({} if state is None else state.place), **own_fields, **fields})


def alone(commit: Commit) -> Manifest:
    """Return what a commit has set apart as a landing of its own."""
    return _after(None, replace(commit, kind="landed", total=commit.rows, earlier_rows=0))


def _after(state: Manifest | None, commit: Commit) -> Manifest:
    _require(
        state is None or state.source.is_same_as(commit.source),
        f"it is of {commit.source}, and the landing of {state and state.source}",
    )
    if state is None or commit.replaces:
        _require(
            commit.kind == "restored" or (commit.kind != "exported" and commit.about is None),
            "nothing was landed before it",
        )
        return _moved(_begun(state, commit), commit)
    if commit.kind == "exported":
        return replace(state, commit=commit.number, exported_at=commit.finished_at)
    if commit.about is not None:
        return _decided(state, commit)
    return _moved(state, commit)


def _begun(state: Manifest | None, commit: Commit) -> Manifest:
    """Return the state of a landing that begins, or begins again, without rows.

    :param state: what it replaces.
    """
    # a table keeps its own versions
    replaced = () if state is None or commit.table_format else tuple(part.name for part in state.parts)
    return Manifest(
        commit=commit.number,
        first_commit=commit.number,
        log_id=commit.attempt_id if state is None else state.log_id,
        run=commit.run,
        started_at=commit.started_at,
        finished_at=commit.finished_at,
        provider_version=commit.provider_version,
        history=() if state is None else state.history,
        replaced=replaced,
        set_apart=commit.set_apart,
        **{**commit.place, "columns": None, "earlier_rows": 0},
    )


def _moved(state: Manifest, commit: Commit) -> Manifest:
    """Return the state once rows have been landed or set apart, and the place in the source has changed."""
    apart = tuple(replace(skipped, is_earlier=True) for skipped in state.set_apart)
    place = commit.place
    if commit.kind == "discarded":
        # columns that only these rows have are none of the landing's
        place["columns"] = state.columns
    moved = replace(state, set_apart=apart if _is_reset(state, commit) else state.set_apart, **place)
    moved = (_with_parts if commit.changes_rows else _with_apart)(moved, commit)
    rows = moved.source_rows
    _require(
        rows == commit.total, f"it makes {rows} of the source's rows, and says that there are {commit.total}"
    )
    return moved


def _is_reset(state: Manifest, commit: Commit) -> bool:
    """Return whether a commit has the rows of a source that was filled again (``on_reset="append"``)."""
    if commit.kind == "restored":
        return False
    is_reset = state.source_rows > 0 and bool(commit.parts) and commit.parts[0].start_offset == 0
    earlier = state.rows if is_reset else state.earlier_rows
    _require(
        commit.earlier_rows == earlier,
        f"{earlier} rows are not the source's any more, and it says {commit.earlier_rows}",
    )
    return is_reset


def _decided(state: Manifest, commit: Commit) -> Manifest:
    """Return the state once a person has decided on rows that were set apart."""
    waiting = [skipped for skipped in state.quarantined if skipped.commit == commit.about]
    _require(bool(waiting), f"it decides on commit {commit.about}, of which no rows wait")
    apart = waiting[0]
    if commit.kind == "discarded":
        discarded = replace(apart, kind="discarded", at=commit.finished_at)
        others = tuple(discarded if skipped is apart else skipped for skipped in state.set_apart)
        return replace(state, commit=commit.number, set_apart=others)
    _require(commit.rows == apart.rows, f"it has {commit.rows} rows of {apart.rows} that were set apart")
    earlier = state.earlier_rows + (apart.rows if apart.is_earlier else 0)
    others = tuple(skipped for skipped in state.set_apart if skipped is not apart)
    return _with_parts(replace(state, set_apart=others, earlier_rows=earlier), commit)


def _with_parts(state: Manifest, commit: Commit) -> Manifest:
    """Return the state with the parts of a commit."""
    profile = sum_of(part.profile for part in commit.parts)
    return replace(
        state,
        commit=commit.number,
        rows_commit=commit.number,
        rows=state.rows + commit.rows,
        bytes=state.bytes + sum(part.bytes for part in commit.parts),
        run=commit.run,
        started_at=commit.started_at,
        finished_at=commit.finished_at,
        provider_version=commit.provider_version,
        checks=commit.checks,
        exported_at=None,
        history=state.history if commit.kind == "restored" else _with_record(state, commit, profile),
        profile=sum_of((state.profile, profile)),
        part_count=state.part_count + len(commit.parts),
        parts=(*state.parts, *commit.added),
    )


def _with_apart(state: Manifest, commit: Commit) -> Manifest:
    """Return the state with the rows of a commit set apart."""
    _require(bool(commit.parts), f"it is {commit.kind}, and has no rows")
    apart = SetApart(
        commit=commit.number,
        kind="discarded" if commit.kind == "discarded" else "quarantined",
        run=commit.run,
        rows=commit.rows,
        start_offset=commit.parts[0].start_offset,
        next_offset=commit.parts[-1].next_offset,
        at=commit.finished_at,
        checks=commit.failed,
    )
    return replace(state, commit=commit.number, exported_at=None, set_apart=(*state.set_apart, apart))


def _with_record(state: Manifest, commit: Commit, profile: Profile) -> tuple[RunRecord, ...]:
    """Return the records of the last runs with that of a commit's run, which may have landed rows before."""
    record = RunRecord(
        commits=(commit.number,),
        run=commit.run,
        finished_at=commit.finished_at,
        rows=commit.rows,
        filled={name: counts.filled for name, counts in profile.columns.items()},
        is_cut=profile.is_cut,
    )
    earlier = state.record_of(commit.run)
    if earlier and not commit.replaces:
        filled = Counter(record.filled)
        filled.update(earlier.filled)
        record = replace(
            record,
            commits=(*earlier.commits, commit.number),
            rows=earlier.rows + commit.rows,
            filled=dict(filled),
            is_cut=earlier.is_cut or profile.is_cut,
        )
    return (*(past for past in state.history if past is not earlier), record)[-MOST_RECORDS:]


def _require(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise Contradiction(otherwise)
