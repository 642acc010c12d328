"""Computes the state of a landing from its commits, and the next commit; nothing is read or written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.formats.profile import Profile, sum_of
from airflow_provider_webcollect.landing.log.commits import (
    MOST_RECORDS,
    Commit,
    Decision,
    Manifest,
    RunRecord,
    SetApart,
    now,
)
from airflow_provider_webcollect.landing.log.names import new_attempt_id

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.log.commits import Kind, Run


class Contradiction(Exception):
    """A commit contradicts the commits before it; the text says how.

    :ivar number: the number of the commit, according to its position in the log.
    """

    number = 0


def fold(state: Manifest | None, commits: Iterable[Commit]) -> Manifest | None:
    """Return the state of a landing after commits.

    :param state: the state before these commits; None if nothing has landed.
    :param commits: the commits that follow the state, in order.
    :raises Contradiction: if a commit contradicts the commits before it.
    """
    number = 0 if state is None else state.commit
    try:
        for commit in commits:
            number += 1
            _require(commit.number == number, f"its number is {commit.number}, not {number}")
            state = _after(state, commit)
        if state is not None:
            twice = [name for name, count in Counter(part.name for part in state.parts).items() if count > 1]
            _require(not twice, f"the part {', '.join(twice[:1])} has landed twice")
    except Contradiction as contradiction:
        contradiction.number = number
        raise
    return state


def following(state: Manifest | None, kind: Kind, run: Run, **fields: Any) -> Commit:
    """Return the next commit of a landing, which keeps the landing's place in the source.

    :param state: the state that the commit follows; None for the first commit.
    :param fields: other fields of the commit, such as its parts; they may change the place.
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


def quarantined_by(commit: Commit) -> SetApart:
    """Return the quarantined rows of a commit, as a manifest lists them."""
    return SetApart(
        commit=commit.number,
        kind="quarantined",
        run=commit.run,
        rows=commit.quarantined_rows,
        at=commit.finished_at,
        checks=tuple(outcome for outcome in commit.checks if outcome.state in ("failed", "warning")),
        has_failed=bool(commit.failed and not commit.parts),
        replaces=commit.waits_to_replace,
    )


def as_landing(commit: Commit) -> Manifest:
    """Return the quarantined rows of a commit as a landing of their own; only Parquet parts keep types."""
    rows, parts = commit.quarantined_rows, commit.quarantined
    has_types = commit.has_typed_files and not any(part.broke for part in parts)
    encoding = commit.encoding if has_types else {**commit.encoding, "column_types": None}
    own = {
        "kind": "landed",
        "parts": parts,
        "quarantined": (),
        "replaces": False,
        "total": rows,
        "earlier_rows": 0,
    }
    return _after(None, replace(commit, encoding=encoding, **own))


def _after(state: Manifest | None, commit: Commit) -> Manifest:
    _require(
        state is None or state.source.is_same_as(commit.source),
        f"it is of {commit.source}, and the landing is of {state and state.source}",
    )
    _require(state is not None or commit.kind == "landed", "nothing was landed before it")
    if state is not None and commit.kind == "exported":
        return replace(state, commit=commit.number, exported_at=commit.finished_at)
    if state is not None and commit.kind == "decided":
        return _decided(state, commit)
    if commit.waits_to_replace:
        return _with_apart(_begin(None, commit) if state is None else state, commit)
    if state is None or commit.replaces:
        state = _begin(state, commit)
    return _move(state, commit)


def _begin(state: Manifest | None, commit: Commit) -> Manifest:
    """Return the state of a landing that begins, or begins again, without rows.

    :param state: the state that it replaces, whose quarantined rows stay quarantined; None if it begins.
    """
    begun = Manifest(
        commit=commit.number,
        first_commit=commit.number,
        log_id=commit.attempt_id if state is None else state.log_id,
        source=commit.source,
        format=commit.format,
        compression=commit.compression,
        encoding=commit.encoding,
        table_format=commit.table_format,
        run=commit.run,
        started_at=commit.started_at,
        finished_at=commit.finished_at,
        provider_version=commit.provider_version,
    )
    if state is None:
        return begun
    return replace(
        begun, history=state.history, decisions=state.decisions, set_apart=_as_earlier(state.set_apart)
    )


def _as_earlier(set_apart: Iterable[SetApart]) -> tuple[SetApart, ...]:
    return tuple(replace(apart, is_earlier=True) for apart in set_apart)


def _move(state: Manifest, commit: Commit) -> Manifest:
    """Return the state after a commit that lands or quarantines rows and moves the place in the source."""
    columns = state.columns or ()
    _require(
        (commit.columns or ())[: len(columns)] == columns,
        f"its columns are {commit.columns}, and the landing begins with {columns}",
    )
    apart = _as_earlier(state.set_apart) if _is_reset(state, commit) else state.set_apart
    moved = replace(
        state,
        commit=commit.number,
        place_commit=commit.number,
        exported_at=None,
        set_apart=apart,
        missing_inputs=commit.missing_inputs,
        **commit.place,
    )
    if commit.changes_rows:
        moved = _with_parts(moved, commit)
    if commit.quarantined:
        moved = _with_apart(moved, commit)
    rows = moved.source_rows
    _require(rows == commit.total, f"it makes {rows} rows of the source, and its `total` is {commit.total}")
    return moved


def _is_reset(state: Manifest, commit: Commit) -> bool:
    """Return whether a commit begins with the first rows of a reset source (``on_reset="append"``)."""
    is_reset = state.source_rows > 0 and bool(commit.written) and commit.start[1] == 0
    earlier = state.rows if is_reset else state.earlier_rows
    _require(
        commit.earlier_rows == earlier,
        f"{earlier} rows are from before the source was reset, and its `earlier_rows` is "
        f"{commit.earlier_rows}",
    )
    return is_reset


def _decided(state: Manifest, commit: Commit) -> Manifest:
    """Return the state after a person's decision on quarantined rows."""
    waiting = [skipped for skipped in state.quarantined if skipped.commit == commit.about]
    _require(bool(waiting), f"it decides on commit {commit.about}, which has no quarantined rows")
    (apart,) = waiting
    is_accepted = bool(commit.parts)
    others = tuple(skipped for skipped in state.set_apart if skipped is not apart)
    if not is_accepted:
        others = (*others, replace(apart, kind="discarded", at=commit.finished_at))
        decided = replace(state, commit=commit.number, set_apart=others)
    else:
        rows = commit.rows + commit.quarantined_rows
        _require(rows == apart.rows, f"it has {rows} rows, and {apart.rows} are quarantined")
        _require(
            commit.replaces == apart.replaces, f"its `replaces` is {commit.replaces}, not {apart.replaces}"
        )
        state = replace(state, set_apart=others)
        decided = (
            _move(_begin(state, commit), commit) if apart.replaces else _add_accepted(state, apart, commit)
        )
    decision = Decision(
        commit=commit.number,
        about=apart.commit,
        run_id=apart.run.run_id,
        by=commit.by,
        is_accepted=is_accepted,
    )
    return replace(decided, decisions=(*state.decisions, decision)[-MOST_RECORDS:])


def _add_accepted(state: Manifest, apart: SetApart, commit: Commit) -> Manifest:
    """Return the state with accepted rows; accepted rows that cannot land stay quarantined."""
    earlier = state.earlier_rows + (commit.rows if apart.is_earlier else 0)
    # older drafts lack columns that the accepted rows add; a new place keeps retries from continuing them
    has_columns = commit.columns == state.columns
    added = replace(
        state,
        earlier_rows=earlier,
        columns=commit.columns,
        place_commit=state.place_commit if has_columns else commit.number,
    )
    if commit.quarantined:
        left = replace(quarantined_by(commit), is_earlier=apart.is_earlier)
        added = replace(added, set_apart=(*added.set_apart, left))
    with_parts = _with_parts(added, commit)
    is_old = len(state.history) >= MOST_RECORDS and state.record_of(commit.run) is None
    # later runs are not compared with the single rows of a run that no longer has a record
    return replace(with_parts, history=state.history) if is_old and not apart.has_failed else with_parts


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
        history=_with_record(state, commit, profile),
        profile=sum_of((state.profile, profile)),
        part_count=state.part_count + len(commit.parts),
        parts=(*state.parts, *commit.added),
    )


def _with_apart(state: Manifest, commit: Commit) -> Manifest:
    """Return the state with the rows that a commit has quarantined."""
    return replace(state, commit=commit.number, set_apart=(*state.set_apart, quarantined_by(commit)))


def _with_record(state: Manifest, commit: Commit, profile: Profile) -> tuple[RunRecord, ...]:
    """Return the records of the last runs after a commit, whose run may already have a record."""
    run = commit.missing_inputs.run if commit.missing_inputs else commit.run
    record = RunRecord(
        commits=(commit.number,),
        run=run,
        finished_at=commit.finished_at,
        rows=commit.rows,
        filled={name: counts.filled for name, counts in profile.columns.items()},
        is_cut=profile.is_cut,
    )
    earlier = state.record_of(run)
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
