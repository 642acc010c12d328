"""Endpoints 1, 2 and 20: tokens, analytics, data apps."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from airflow_provider_webcollect.sandbox import bodies, demo
from airflow_provider_webcollect.sandbox.analytics import months_back, records, with_nulls
from airflow_provider_webcollect.sandbox.errors import ServiceError, invalid

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox.state import Call, State


def refresh_token(state: State, call: Call) -> object:
    """Endpoint 1, and the first token by password."""
    grant = bodies.decode_object(call.content_type, call.body).get("grant_type")
    if grant == "password":
        login = bodies.decode_body(call.content_type, call.body, bodies.PasswordGrant)
        return state.tokens.log_in(state.settings, login.username, login.password)
    body = bodies.decode_body(call.content_type, call.body, bodies.RefreshGrant)
    return state.tokens.refresh(state.settings, body.refresh_token)


def query_analytics(state: State, call: Call) -> object:
    """Endpoint 2."""
    query = bodies.decode_body(call.content_type, call.body, bodies.AnalyticsQuery)
    start, end = _period(query.start, query.end, datetime.fromtimestamp(state.clock.wall(), UTC).date())
    members = set(query.member_names) or {call.user}
    if not members <= {call.user, demo.COLLEAGUE}:
        raise ServiceError("MemberNotAllowed", "A member name is not one of your team.")
    tasks = [
        task
        for task in state.world.tasks.values()
        if task.owner in members and (not query.task_ids or task.task_id in query.task_ids)
    ]
    methods = ["Cloud", "Local"] if query.collection_method == "All" else [query.collection_method]
    seed, null_share = state.settings.seed, state.settings.null_metrics
    found = records(seed, tasks, start, end, query.time_granularity, methods)
    first = (query.page - 1) * query.page_size
    page = found[first : first + query.page_size]
    return {"total": len(found), "data": [with_nulls(seed, record, null_share) for record in page]}


def deprecate_data_app(state: State, call: Call) -> object:
    """Endpoint 20."""
    app = state.world.apps.get(call.path_id)
    if app is None or app.author != call.user:
        raise ServiceError("not_found", "There is no such data app.", status=404)
    app.status = "deprecated"
    version = {"version": app.version} if app.version else {}
    return {
        "app_name": app.app_name,
        "namespace": app.author,
        **version,
        "status": app.status,
        "missing_secrets": app.missing_secrets,
    }


def _period(start: str, end: str, today: date) -> tuple[date, date]:
    try:
        first, last = date.fromisoformat(start), date.fromisoformat(end)
    except ValueError as error:
        raise invalid(f"start and end must be dates: {error}") from error
    if last > today or last < first:
        raise invalid("end must not be later than today (UTC) and not earlier than start.")
    if first < months_back(today, 3):
        raise invalid("Only the latest 3 months can be queried.")
    return first, last
