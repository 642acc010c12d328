"""The routes of the page: every one of them asks who is there.

FastAPI is heavy, so this module is imported by the first request, in the API server alone.
"""

from __future__ import annotations

import datetime
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    get_user,
    requires_access_asset,
    requires_access_connection,
    requires_access_dag,
)
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, HTTPException, Request, Response, status
from sqlalchemy import select

from airflow_provider_webcollect.ui.activity import read_activity
from airflow_provider_webcollect.ui.columns import read_columns
from airflow_provider_webcollect.ui.landings import SeriesKey, read_landings
from airflow_provider_webcollect.ui.service import Reader, ServiceView, known_connections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.orm import Session

#: The files of the page, with their media types; no other file can be asked for.
FILES = {
    "page.js": "text/javascript",
    "sections.js": "text/javascript",
    "charts.js": "text/javascript",
    "dom.js": "text/javascript",
    "logic.js": "text/javascript",
    "tile.js": "text/javascript",
    "page.css": "text/css",
}


@cache
def get_app() -> FastAPI:
    """Return the application of this process."""
    # without pages of documentation, which would be open to everybody
    app = FastAPI(dependencies=[Depends(get_user)], openapi_url=None)
    app.get("/static/{name}")(_file)
    may_read_asset = requires_access_asset("GET")
    app.get("/landings", dependencies=[Depends(may_read_asset)])(_landings)
    app.get("/landings/{asset_id}/columns", dependencies=[Depends(may_read_asset)])(_columns)
    may_see_tasks = requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE)
    app.get("/activity", dependencies=[Depends(may_see_tasks)])(_activity)
    app.get("/connections")(_connections)
    may_see_connection = requires_access_connection("GET")
    app.get("/connections/{connection_id}", dependencies=[Depends(may_see_connection)])(_connection)
    return app


def _file(name: str, request: Request) -> Response:
    if name not in FILES:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"{name} is no file of this page")
    content = resources.files(__package__).joinpath("static", name).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()}"'
    # only who has signed in may get it, and after an upgrade everybody gets the new one
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
    return Response(content, media_type=FILES[name], headers=headers)


def _landings(user: GetUserDep, session: SessionDep, search: str = "") -> dict[str, Any]:
    return read_landings(session, _readable_dags(user), datetime.datetime.now(datetime.UTC), search)


def _columns(
    asset_id: int, dag_id: str, task_id: str, user: GetUserDep, session: SessionDep, map_index: int = -1
) -> dict[str, Any]:
    if dag_id not in _readable_dags(user):
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"No landing of {dag_id} is known")
    key = SeriesKey(asset_id, dag_id, task_id, map_index)
    return read_columns(session, key, datetime.datetime.now(datetime.UTC))


def _activity(user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    return read_activity(session, _readable_dags(user), datetime.datetime.now(datetime.UTC))


def _connections(user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    manager = get_auth_manager()
    readable = [
        conn_id
        for conn_id in known_connections(session)
        if manager.is_authorized_connection(
            method="GET", details=ConnectionDetails(conn_id=conn_id), user=user
        )
    ]
    return {"connections": readable}


def _connection(connection_id: str, user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    if connection_id not in known_connections(session):
        raise HTTPException(
            status.HTTP_404_NOT_FOUND, f"No connection {connection_id} of the service is known"
        )
    readable = _readable_dags(user)
    return _service_view(connection_id).read(Reader(readable, readable.issuperset(_all_dags(session))))


@cache
def _service_view(connection_id: str) -> ServiceView:
    return ServiceView(connection_id)


def _all_dags(session: Session) -> Iterable[str]:
    return session.scalars(select(DagModel.dag_id))


def _readable_dags(user: Any) -> set[str]:
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
