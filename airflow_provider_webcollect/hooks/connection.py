"""Reading an Airflow connection of the type ``webcollect``."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints
from urllib.parse import urlsplit

import msgspec

from airflow_provider_webcollect.hooks import form
from airflow_provider_webcollect.service.errors import ConnectionIncomplete, InvalidArgument
from airflow_provider_webcollect.service.settings import GENERAL_RATE, TIMING, Credentials, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.providers.common.compat.sdk import Connection

log = logging.getLogger(__name__)

#: Maximum number of tasks in one status query (assumptions.md, Errors).
MAX_STATUS_BATCH_SIZE = 100

# The description is the rule that the error message states.
Text = Annotated[str | None, msgspec.Meta(description="it must be a string")]
Number = Annotated[float, msgspec.Meta(description="it must be a number")]
Integer = Annotated[int, msgspec.Meta(description="it must be an integer")]
Boolean = Annotated[bool, msgspec.Meta(description="it must be true or false")]
BatchSize = Annotated[
    int,
    msgspec.Meta(
        ge=1, le=MAX_STATUS_BATCH_SIZE, description=f"it must be an integer from 1 to {MAX_STATUS_BATCH_SIZE}"
    ),
]
TokenRefresh = Annotated[
    Literal["auto", "keeper"], msgspec.Meta(description="it must be one of auto, keeper")
]


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """The extras of a connection; strings that contain numbers or booleans are converted."""

    refresh_token: Text = None
    access_token: Text = None
    api_key: Text = None
    api_key_everywhere: Boolean = False
    datahub_url: Text = None
    datahub_api_key: Text = None
    token_refresh: TokenRefresh = "auto"
    connect_timeout: Number = 10.0
    read_timeout: Number = 60.0
    total_timeout: Number = 300.0
    max_response_bytes: Integer = 64 * 1024 * 1024
    ca_file: Text = None
    requests_per_second: Number = GENERAL_RATE
    status_batch_size: BatchSize = MAX_STATUS_BATCH_SIZE
    timezone: Text = None
    task_url_template: Text = None
    export_url_template: Text = None

    def __repr__(self) -> str:
        return "Extras(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebCollectConnection:
    """The checked values of a connection. Its repr shows no secret.

    :param status_batch_size: tasks per status query.
    :param task_url_template: the service's web page of a task, with ``{task_id}``; None if not set.
    :param export_url_template: the storage's web page of a folder, with ``{bucket}`` and ``{path}``; None if
        not set.
    :param masked: names of fields for which the connection holds only Airflow's mask, which counts as not
        set.
    """

    conn_id: str
    settings: Settings
    credentials: Credentials
    status_batch_size: int
    task_url_template: str | None
    export_url_template: str | None
    masked: tuple[str, ...] = field(default=(), compare=False)


def read_connection(connection: Connection, extra: Any, origin: str = "") -> WebCollectConnection:
    """Check a connection and return its values.

    :param extra: the connection's extra, decoded.
    :param origin: where it comes from, for messages; by default an Airflow connection.
    :raises ConnectionIncomplete: if it has no host.
    :raises InvalidArgument: naming the field, if a field is invalid.
    """
    cleaned = _cleaned(extra)
    extras = _extras(cleaned)
    fields = {**cleaned, "login": connection.login, "password": connection.password}
    masked = tuple(sorted(name for name, value in fields.items() if value in form.MASKS))
    if masked:
        log.warning(
            "The connection holds Airflow's mask in place of a value, which counts as not set: %s",
            ", ".join(masked),
        )
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
            timing=TIMING,  # tests replace the name in this module
            origin=origin or f"the connection {connection.conn_id}",
        ),
        credentials=Credentials(
            refresh_token=extras.refresh_token,
            access_token=extras.access_token,
            login=None if "login" in masked else connection.login or None,
            password=None if "password" in masked else connection.password or None,
            api_key=extras.api_key,
            api_key_everywhere=extras.api_key_everywhere,
            datahub_api_key=extras.datahub_api_key,
        ),
        status_batch_size=extras.status_batch_size,
        task_url_template=_link_template("task_url_template", extras.task_url_template),
        export_url_template=_link_template("export_url_template", extras.export_url_template),
        masked=masked,
    )


def _cleaned(extra: Any) -> dict[str, Any]:
    if extra is None:
        return {}
    if not isinstance(extra, dict):
        raise InvalidArgument("extra", extra, "it must be a JSON object", shown=_in_words(extra))
    # values pasted into a form often end with a blank or a newline
    return {
        name.removeprefix(form.PREFIX): value.strip() if isinstance(value, str) else value
        for name, value in extra.items()
    }


def _extras(cleaned: Mapping[str, Any]) -> Extras:
    """Read the extras; fields left empty in the form count as not set."""
    given = {name: value for name, value in cleaned.items() if value not in (None, "", *form.MASKS)}
    if store := given.pop("token_store", None):
        # set in a connection, it would let anyone who can edit connections choose which code runs
        raise InvalidArgument("extra token_store", store, "set it in Airflow's configuration, [webcollect]")
    kinds = get_type_hints(Extras, include_extras=True)
    if unknown := sorted(given.keys() - kinds.keys()):
        log.warning("The connection has unknown extras: %s", ", ".join(unknown))
    return Extras(**{name: _value(name, given[name], kind) for name, kind in kinds.items() if name in given})


def _value(name: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(form.read_boolean(value) if kind is Boolean else value, kind, strict=False)
    except msgspec.ValidationError:
        (meta,) = kind.__metadata__
        shown = None if kind is not Text and isinstance(value, int | float) else _in_words(value)
        raise InvalidArgument(f"extra {name}", value, meta.description, shown=shown) from None


def _in_words(value: Any) -> str:
    """Describe a value without showing it: a person can enter a secret into the wrong field."""
    match value:
        case str():
            return f"a string of {len(value)} characters"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case list():
            return "a list"
    return "an object"


def _link_template(name: str, template: str | None) -> str | None:
    """Return ``template`` if its links are web pages and not, for example, scripts."""
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
    """Return the main service's base URL; a host without scheme gets that of ``schema``, or https."""
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
