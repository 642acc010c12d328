"""Commits as landings and people make them, one after another, built without a landing."""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.log.commits import (
    Commit,
    Manifest,
    PageFingerprint,
    Part,
    Run,
    Source,
)
from airflow_provider_webcollect.landing.log.fold import following
from airflow_provider_webcollect.landing.log.names import data_name, part_name
from airflow_provider_webcollect.landing.write.job import encoding_of

#: Where a landing begins: ``end``, after the landed rows; ``reset`` and ``replace``, with the first row
#: of the source, to add to the landed rows or to replace them.
Begin = Literal["end", "reset", "replace"]


def commit_after(
    state: Manifest | None, rows: int, waiting: int = 0, *, begin: Begin = "end", run: str = "r1"
) -> Commit:
    """Return the commit of a run that lands some rows and quarantines the next ones; each row is a part.

    :param state: the state before the commit; None if nothing has landed.
    :param waiting: number of rows that are quarantined.
    """
    earlier = {"earlier_rows": state.rows} if begin == "reset" and state is not None else {}
    commit = following(
        state if begin == "end" else None,
        "landed",
        Run(dag_id="d", task_id="t", run_id=run),
        number=1 if state is None else state.commit + 1,
        source=Source(collection_task_id="t"),
        replaces=begin == "replace",
        **encoding_of(make_format()),
        **earlier,
    )
    before, parts_before = commit.next_offset, state.part_count if state else 0
    parts = [
        Part(
            name=part_name(parts_before + number, commit.attempt_id, ".jsonl"),
            rows=1,
            bytes=8,
            sha256="",
            start_offset=before + number - 1,
            next_offset=before + number,
        )
        for number in range(1, rows + waiting + 1)
    ]
    page = PageFingerprint()
    return replace(
        commit,
        parts=tuple(parts[:rows]),
        quarantined=tuple(parts[rows:]),
        next_offset=before + rows + waiting,
        total=commit.total + rows + waiting,
        first_page=page,
        last_page=page,
    )


def decision(state: Manifest, about: Commit, *, accepts: bool, by: str = "") -> Commit:
    """Return the commit that accepts or discards the rows that another one has quarantined."""
    fields: dict[str, Any] = {"about": about.number, "by": by}
    if accepts:
        parts = tuple(replace(part, name=data_name(part.name)) for part in about.quarantined)
        place = about.place if about.waits_to_replace else {}
        fields |= {"parts": parts, "replaces": about.waits_to_replace, **place}
    return following(state, "decided", about.run, **fields)
