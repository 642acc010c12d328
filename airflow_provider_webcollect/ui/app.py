"""The routes of the page, all of which require a signed-in user.

Importing FastAPI takes long, so only the API server imports this module, at the first request.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import logging
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
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
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Body, Depends, FastAPI, HTTPException, Request, Response, status
from sqlalchemy import select

from airflow_provider_webcollect.landing.errors import LandingError, NothingToReview
from airflow_provider_webcollect.landing.write.review import Choice
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.ui.activity import read_activity
from airflow_provider_webcollect.ui.landings import SeriesKey, read_columns, read_landings
from airflow_provider_webcollect.ui.rows import decide, read_loads, read_rows, read_waiting
from airflow_provider_webcollect.ui.service import ServiceView, known_connections

log = logging.getLogger(__name__)

#: The media types of the page's files, by the extensions of their names.
TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_service_view = cache(ServiceView)
_may_read_asset = Depends(requires_access_asset("GET"))
#: Rows are data of a DAG, just like the results of its tasks.
_may_read_data = Depends(requires_access_dag("GET", DagAccessEntity.XCOM))
#: Users who may clear a landing, and so have its rows read again, may also decide on the rows.
_may_edit_dag = Depends(requires_access_dag("PUT"))

# without FastAPI's documentation pages, which would need no sign-in
app = FastAPI(dependencies=[Depends(get_user)], openapi_url=None)


@app.get("/static/{name}")
def _file(name: str, request: Request) -> Response:
    files = {file.name: file for file in resources.files(__package__).joinpath("static").iterdir()}
    if name not in files:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"{name} is no file of this page")
    content = files[name].read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()}"'
    # no shared cache may keep the file, and browsers must check whether an upgrade has changed it
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
    return Response(content, media_type=TYPES[name.rpartition(".")[2]], headers=headers)


@app.get("/landings", dependencies=[_may_read_asset])
def _landings(user: GetUserDep, session: SessionDep, search: str = "") -> Response:
    landings = read_landings(session, _dags(user), _now(), search)
    editable = _dags(user, "PUT") if any(series["quarantines"] for series in landings["series"]) else ()
    for series in landings["series"]:
        series["may_decide"] = series["dag_id"] in editable
    # FastAPI's own encoder takes about 40 times as long
    return Response(msgspec.json.encode(landings), media_type="application/json")


def _series(asset_id: int, dag_id: str, task_id: str, user: GetUserDep, map_index: int = -1) -> SeriesKey:
    if dag_id not in _dags(user):
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"No landing of {dag_id} is known")
    return SeriesKey(asset_id, dag_id, task_id, map_index)


_Series = Annotated[SeriesKey, Depends(_series)]


@app.get("/landings/{asset_id}/columns", dependencies=[_may_read_asset])
def _columns(key: _Series, session: SessionDep) -> dict[str, Any]:
    return read_columns(session, key, _now())


@app.get("/landings/{asset_id}/rows", dependencies=[_may_read_asset, _may_read_data])
def _rows(key: _Series, landing: str | None = None, commit: int | None = None) -> dict[str, Any]:
    with _errors_as_responses():
        return read_rows(key, landing, commit)


@app.get("/landings/{asset_id}/loads", dependencies=[_may_read_asset])
def _loads(key: _Series, request: Request, user: GetUserDep) -> dict[str, Any]:
    def is_readable(load: dict[str, Any]) -> bool:
        try:
            requires_access_dag("GET", DagAccessEntity.XCOM, load["dag_id"])(request, user)
        except HTTPException:
            return False
        return True

    return {"loads": list(filter(is_readable, read_loads(key, _dags(user))))}


@app.get("/landings/{asset_id}/waiting", dependencies=[_may_read_asset, _may_edit_dag])
def _waiting(key: _Series, landing: str, commit: int, user: GetUserDep) -> dict[str, Any]:
    with _errors_as_responses():
        return read_waiting(key, landing, commit, _dags(user))


def _refuse_other_sites(request: Request) -> None:
    """Refuse requests that another site makes the browser of a signed-in user send.

    A form cannot send JSON. Browsers add ``Origin``, and ``Sec-Fetch-Site`` for https and localhost; no
    script can change these headers.
    """
    headers = request.headers
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    own = {headers.get("Host"), urlsplit(conf.get("api", "base_url", fallback="")).netloc} - {""}
    is_own = site == "same-origin" if site else origin is None or urlsplit(origin).netloc in own
    is_json = headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json"
    if not (is_own and is_json):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "This is not a request of Airflow's own page")


@app.post(
    "/landings/{asset_id}/decision",
    dependencies=[Depends(_refuse_other_sites), _may_read_asset, _may_edit_dag],
)
def _decision(
    key: _Series,
    user: GetUserDep,
    landing: Annotated[str, Body()],
    commit: Annotated[int, Body()],
    decision: Annotated[Choice, Body()],
) -> dict[str, Any]:
    with _errors_as_responses():
        return decide(key, landing, commit, decision, user.get_name())


@contextlib.contextmanager
def _errors_as_responses() -> Iterator[None]:
    """Turn errors of a landing or its storage into HTTP responses."""
    try:
        yield
    except NothingToReview as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
    except (LandingError, InvalidArgument) as error:
        raise HTTPException(status.HTTP_502_BAD_GATEWAY, str(error)) from error
    except Exception as error:
        # the text of the error may contain more than the user may see
        log.exception("A landing cannot be read for the page")
        problem = f"{type(error).__name__}; the API server's log says more"
        raise HTTPException(status.HTTP_502_BAD_GATEWAY, problem) from error


@app.get("/activity", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))])
def _activity(user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    return read_activity(session, _dags(user), _now())


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
    readable = _dags(user)
    reads_all = readable.issuperset(session.scalars(select(DagModel.dag_id)))
    return _service_view(connection_id).read(None if reads_all else readable)


def _dags(user: Any, method: Literal["GET", "PUT"] = "GET") -> set[str]:
    """Return the ids of the DAGs that a user may read (``GET``) or edit (``PUT``)."""
    return get_auth_manager().get_authorized_dag_ids(user=user, method=method)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
