"""Endpoints 17 to 19: reading rows and confirming that they were exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_webcollect.sandbox import bodies
from airflow_provider_webcollect.sandbox.errors import invalid
from airflow_provider_webcollect.sandbox.pages import MAX_PAGE_ROWS, read_page

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox.rows import Span
    from airflow_provider_webcollect.sandbox.state import Call, State
    from airflow_provider_webcollect.sandbox.world import Task


def read_data(state: State, call: Call) -> bytes:
    """Endpoint 17."""
    return _read(state, call, by_batch=False)


def read_batch_data(state: State, call: Call) -> bytes:
    """Endpoint 18."""
    return _read(state, call, by_batch=True)


def mark_exported(state: State, call: Call) -> object:
    """Endpoint 19: rows that exist now count as exported, later ones do not."""
    body = bodies.decode_body(call.content_type, call.body, bodies.TaskId)
    for run in state.world.own(call.user, body.task_id).runs:
        run.exported_rows = run.row_count(state.clock.now())
    return None


def visible_rows(state: State, task: Task, lotno: str | None) -> list[Span]:
    """Return the rows of a complete read of a task, or of one of its batches."""
    now, delay = state.clock.now(), state.settings.empty_after_finish_seconds
    return [run.readable(now, delay) for run in task.runs if lotno in (None, run.lotno)]


def _read(state: State, call: Call, by_batch: bool) -> bytes:
    batch = ("lotno",) if by_batch else ()
    query = bodies.decode_query(call.query, needed=("taskId", *batch, "offset", "size"))
    offset, size = bodies.integer(query, "offset"), bodies.integer(query, "size", 1, MAX_PAGE_ROWS)
    spans = visible_rows(state, state.world.own(call.user, query["taskId"]), query.get("lotno"))
    if by_batch and not spans:
        raise invalid("The task has no batch of this number.")
    settings = state.settings
    return read_page(
        spans, offset, size, settings.offset_jump, state.blocks, settings.large_pages == "refuse"
    )
