"""Commits that landings and people could make, one after another, without any landing."""

from __future__ import annotations

from typing import Literal

from airflow_provider_webcollect.landing.commits import (
    Commit,
    Kind,
    Manifest,
    PageFingerprint,
    Part,
    Run,
    Source,
)
from airflow_provider_webcollect.landing.fold import following
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.names import part_name
from airflow_provider_webcollect.landing.plan import encoding_of

#: With which row a landing begins: behind those that are landed; with the first, added or in their place.
Begin = Literal["end", "reset", "replace"]


def commit_after(
    state: Manifest | None, rows: int, *, kind: Kind = "landed", begin: Begin = "end", run: str = "r1"
) -> Commit:
    """Return the commit of a run that lands rows, or sets them apart, as a part each.

    :param state: what has landed before.
    """
    earlier = {"earlier_rows": state.rows} if begin == "reset" and state is not None else {}
    commit = following(
        state if begin == "end" else None,
        kind,
        Run(dag_id="d", task_id="t", run_id=run),
        number=1 if state is None else state.commit + 1,
        source=Source(collection_task_id="t"),
        replaces=begin == "replace",
        **encoding_of(make_format()),
        **earlier,
    )
    before, parts_before = commit.next_offset, state.part_count if state else 0
    for number in range(1, rows + 1):
        part = Part(
            name=part_name(parts_before + number, commit.attempt_id, ".jsonl"),
            rows=1,
            bytes=8,
            sha256="",
            start_offset=before + number - 1,
            next_offset=before + number,
        )
        commit = commit.with_part(part, (), PageFingerprint(), PageFingerprint())
    return commit


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
        about=before.commit,
        set_apart=before.set_apart,
        **before.place,
    )
