"""Commits that landings and people could make, one after another, without any landing."""

from __future__ import annotations

from typing import Any, Literal

from airflow_provider_webcollect.landing.commits import (
    Commit,
    Kind,
    Manifest,
    Part,
    Run,
    Source,
    Staged,
    commit_of,
    following,
    now,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.names import new_attempt_id, part_name
from airflow_provider_webcollect.landing.plan import encoding_of

#: With which row a landing begins: behind those that are landed; with the first, added or in their place.
Begin = Literal["end", "reset", "replace"]


def commit_after(
    state: Manifest | None, rows: int, *, kind: Kind = "landed", begin: Begin = "end", run: str = "r1"
) -> Commit:
    """Return the commit of a run that lands rows, or sets them apart, as a part each.

    :param state: what has landed before.
    """
    attempt_id = new_attempt_id()
    fields: dict[str, Any] = {"base": 0 if state is None else state.commit}
    if state is not None and begin != "replace":
        fields["continues"] = True
        fields["parts_before"] = state.part_count
        fields["earlier_rows"] = state.rows if begin == "reset" else state.earlier_rows
        if begin == "end":
            fields |= {"rows_before": state.source_rows, "offset_before": state.next_offset}
    before = fields.get("offset_before", 0)
    parts = tuple(
        Part(
            name=part_name(fields.get("parts_before", 0) + number, attempt_id, ".jsonl"),
            rows=1,
            bytes=8,
            sha256="",
            start_offset=before + number - 1,
            next_offset=before + number,
        )
        for number in range(1, rows + 1)
    )
    staged = Staged(
        attempt_id=attempt_id,
        source=Source(collection_task_id="t"),
        run=Run(dag_id="d", task_id="t", run_id=run),
        mode="incremental",
        encoding=encoding_of(make_format()),
        started_at=now(),
        parts=parts,
        **fields,
    )
    return commit_of(kind, staged, staged.rows)


def decision(state: Manifest, about: Commit, kind: Kind) -> Commit:
    """Return the commit that accepts or discards what another has quarantined."""
    parts = about.parts if kind == "accepted" else ()
    return following(state, kind, about.run, parts=parts, about=about.number)


def restoring(state: Manifest, before: Manifest) -> Commit:
    """Return the commit that puts back what had landed before."""
    return following(
        state,
        "restored",
        before.run,
        replaces=True,
        parts=before.parts,
        cursor=before.cursor,
        about=before.commit,
        set_apart=before.set_apart,
    )
