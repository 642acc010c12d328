"""The routes of the page: every one of them asks who is there.

FastAPI is heavy, so this module is imported by the first request, in the API server alone.
"""

from __future__ import annotations

import datetime
import hashlib
from functools import cache
from importlib import resources
from typing import Any

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
from airflow_provider_webcollect.ui.landings import SeriesKey, read_columns, read_landings
from airflow_provider_webcollect.ui.service import ServiceView, known_connections

#: The media types of the page's files, by how their names end.
TYPES = {"js": "text/javascript", "css": "text/css"}
_service_view = cache(ServiceView)
_may_read_asset = Depends(requires_access_asset("GET"))

# without pages of documentation, which would be open to everybody
app = FastAPI(dependencies=[Depends(get_user)], openapi_url=None)


@app.get("/static/{name}")
def _file(name: str, request: Request) -> Response:
    files = {file.name: file for file in resources.files(__package__).joinpath("static").iterdir()}
    if name not in files:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"{name} is no file of this page")
    content = files[name].read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()}"'
    # only who has signed in may get it, and after an upgrade everybody gets the new one
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
    return Response(content, media_type=TYPES[name.rpartition(".")[2]], headers=headers)


@app.get("/landings", dependencies=[_may_read_asset])
def _landings(user: GetUserDep, session: SessionDep, search: str = "") -> dict[str, Any]:
    return read_landings(session, _readable_dags(user), _now(), search)


@app.get("/landings/{asset_id}/columns", dependencies=[_may_read_asset])
def _columns(
    asset_id: int, dag_id: str, task_id: str, user: GetUserDep, session: SessionDep, map_index: int = -1
) -> dict[str, Any]:
    if dag_id not in _readable_dags(user):
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"No landing of {dag_id} is known")
    return read_columns(session, SeriesKey(asset_id, dag_id, task_id, map_index), _now())


@app.get("/activity", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))])
def _activity(user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    return read_activity(session, _readable_dags(user), _now())


@app.get("/connections")
def _connections(user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    is_authorized = get_auth_manager().is_authorized_connection
    readable = [
        conn_id
        for conn_id in known_connections(session)
        if is_authorized(method="GET", details=ConnectionDetails(conn_id=conn_id), user=user)
    ]
    return {"connections": readable}


@app.get("/connections/{connection_id}", dependencies=[Depends(requires_access_connection("GET"))])
def _connection(connection_id: str, user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    if connection_id not in known_connections(session):
        detail = f"No connection {connection_id} of the service is known"
        raise HTTPException(status.HTTP_404_NOT_FOUND, detail)
    readable = _readable_dags(user)
    reads_all = readable.issuperset(session.scalars(select(DagModel.dag_id)))
    return _service_view(connection_id).read(None if reads_all else readable)


def _readable_dags(user: Any) -> set[str]:
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
