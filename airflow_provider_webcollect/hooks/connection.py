"""Reading an Airflow connection of the type ``webcollect``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from airflow_provider_webcollect.service.errors import ConnectionIncomplete, InvalidArgument
from airflow_provider_webcollect.service.settings import GENERAL_RATE, Credentials, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.providers.common.compat.sdk import Connection

log = logging.getLogger(__name__)

#: Tasks that one status query may name (assumptions.md, Errors).
MAX_STATUS_BATCH_SIZE = 100


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """The extras of a connection; texts that spell numbers or booleans are read as such."""

    refresh_token: str | None = None
    access_token: str | None = None
    api_key: str | None = None
    api_key_everywhere: bool = False
    datahub_url: str | None = None
    datahub_api_key: str | None = None
    token_refresh: Literal["auto", "keeper"] = "auto"
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    total_timeout: float = 300.0
    max_response_bytes: int = 64 * 1024 * 1024
    ca_file: str | None = None
    requests_per_second: float = GENERAL_RATE
    status_batch_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_STATUS_BATCH_SIZE)] = MAX_STATUS_BATCH_SIZE
    timezone: str | None = None
    task_url_template: str | None = None
    export_url_template: str | None = None

    def __repr__(self) -> str:
        return "Extras(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebCollectConnection:
    """What a connection says, checked. Its repr shows no secret.

    :param status_batch_size: tasks per status query.
    :param task_url_template: the service's web page of a task, with ``{task_id}``; None if it has none.
    :param export_url_template: the storage's web page of a folder, with ``{bucket}`` and ``{path}``; None if
        it has none.
    """

    conn_id: str
    settings: Settings
    credentials: Credentials
    status_batch_size: int
    task_url_template: str | None
    export_url_template: str | None


def read_connection(connection: Connection, extra: Mapping[str, Any]) -> WebCollectConnection:
    """Check a connection and return what it says.

    :param extra: the connection's extra, decoded.
    :raises ConnectionIncomplete: if it has no host.
    :raises InvalidArgument: naming the field, if one is not as it should be.
    """
    extras = _extras(extra)
    return WebCollectConnection(
        conn_id=str(connection.conn_id),
        settings=Settings(
            base_url=_base_url(connection),
            datahub_url=extras.datahub_url,
            connect_timeout=extras.connect_timeout,
            read_timeout=extras.read_timeout,
            total_timeout=extras.total_timeout,
            max_response_bytes=extras.max_response_bytes,
            ca_file=extras.ca_file,
            requests_per_second=extras.requests_per_second,
            timezone=extras.timezone,
            token_refresh=extras.token_refresh,
        ),
        credentials=Credentials(
            refresh_token=extras.refresh_token,
            access_token=extras.access_token,
            login=connection.login or None,
            password=connection.password or None,
            api_key=extras.api_key,
            api_key_everywhere=extras.api_key_everywhere,
            datahub_api_key=extras.datahub_api_key,
        ),
        status_batch_size=extras.status_batch_size,
        task_url_template=_link_template("task_url_template", extras.task_url_template),
        export_url_template=_link_template("export_url_template", extras.export_url_template),
    )


def _extras(extra: Mapping[str, Any]) -> Extras:
    """Read the extras; what a form leaves empty counts as not set."""
    # what is pasted into a form often has a blank or line end behind it
    tidy = {name: value.strip() if isinstance(value, str) else value for name, value in extra.items()}
    given = {name: value for name, value in tidy.items() if value not in (None, "")}
    if (store := given.pop("token_store", "variable")) != "variable":
        # in a connection, it would have whoever edits connections choose what code runs
        raise InvalidArgument("extra token_store", store, "set it in Airflow's configuration, [webcollect]")
    unknown = sorted(set(given) - set(Extras.__struct_fields__))
    if unknown:
        log.warning("The connection has extras that mean nothing here: %s", ", ".join(unknown))
    for name in Extras.__struct_fields__:
        try:
            msgspec.convert({name: given[name]} if name in given else {}, Extras, strict=False)
        except msgspec.ValidationError as error:
            # only the name: the value may be a secret
            raise InvalidArgument(f"extra {name}", "what the connection holds", str(error)) from None
    return msgspec.convert(given, Extras, strict=False)


def _link_template(name: str, template: str | None) -> str | None:
    """Return ``template`` if a browser takes what it gives for a web page, and not for a script, say."""
    if template is None:
        return None
    try:
        parts = urlsplit(template)
        usable = parts.scheme in {"http", "https"} and parts.hostname
    except ValueError:
        usable = False
    if not usable:
        raise InvalidArgument(f"extra {name}", template, "it must be an http(s) URL")
    return template


def _base_url(connection: Connection) -> str:
    """Return the main service's base URL; a host without scheme is taken as https, or as ``schema`` says."""
    host = (connection.host or "").strip()
    if not host:
        raise ConnectionIncomplete(
            f"the connection {connection.conn_id} has no host: set it to the service's base URL"
        )
    if "://" not in host:
        host = f"{connection.schema or 'https'}://{host}"
    scheme, _, rest = host.partition("://")
    place, slash, path = rest.partition("/")
    if connection.port and urlsplit(f"//{place}").port is None:
        place = f"{place}:{connection.port}"
    return f"{scheme}://{place}{slash}{path}"
