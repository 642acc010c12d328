"""Reads, checks and tests an Airflow connection of the type ``webcollect``.

The command line reads connections without Airflow; only the functions that test a connection import Airflow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from airflow_provider_webcollect.hooks.connection_fields import FIELDS, MASKS, PREFIX, Field, read_boolean
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.call import is_sendable, make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    CredentialError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    TokenRejected,
    WebCollectError,
)
from airflow_provider_webcollect.service.settings import TIMING, Credentials, Retries, Settings
from airflow_provider_webcollect.service.tokens import MemoryTokenStore

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection

log = logging.getLogger(__name__)

#: The rule for a value, by the type of its field, for errors.
_RULES = {str: "a string", float: "a number", int: "an integer", bool: "true or false"}
#: Stands for a token or a task id in tests of a connection; the service knows neither.
_UNKNOWN_TO_SERVICE = "connection-test"
UNTRIED = (
    "The refresh token itself was not tried, since that would use it up: the first task that needs an access "
    "token shows whether it works."
)
MASKED = "Airflow's form sent only a mask for {}, so the test left it out; enter the value again to test it."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WebCollectConnection:
    """The checked values of a connection. The repr shows no secret.

    :param status_batch_size: maximum number of tasks per status query.
    :param task_url_template: URL of the service's web page of a task, with ``{task_id}``; None if not set.
    :param export_url_template: URL of the storage's web page of a folder, with ``{bucket}`` and ``{path}``;
        None if not set.
    :param masked: names of the fields for which the connection holds only Airflow's mask; these fields count
        as not set.
    """

    conn_id: str
    settings: Settings
    credentials: Credentials
    status_batch_size: int
    task_url_template: str | None
    export_url_template: str | None
    masked: tuple[str, ...] = dataclasses.field(default=(), compare=False)


def read_connection(connection: Connection, extra: Any, origin: str = "") -> WebCollectConnection:
    """Check a connection and return its values.

    :param extra: the connection's extra, decoded.
    :param origin: description of the connection's origin, for messages; by default "the connection" and its
        id.
    :raises ConnectionIncomplete: if it has no host.
    :raises InvalidArgument: naming the field, if a field is invalid.
    """
    extras = _without_prefix(extra)
    values = _values(extras)
    login = connection.login and connection.login.strip()
    standard_fields = {"login": login, "password": connection.password}
    masked = tuple(sorted(name for name, value in {**extras, **standard_fields}.items() if value in MASKS))
    if masked:
        log.warning(
            "The connection holds Airflow's mask in place of a value, which counts as not set: %s",
            ", ".join(masked),
        )
    values |= {name: None if name in masked else value or None for name, value in standard_fields.items()}
    credentials = Credentials(**_take(values, Credentials))
    settings = Settings(
        base_url=_base_url(connection),
        timing=TIMING,  # tests replace the name in this module
        origin=origin or f"the connection {connection.conn_id}",
        **_take(values, Settings),
    )
    # the remaining values are attributes of WebCollectConnection: any other name raises a TypeError
    return WebCollectConnection(
        conn_id=str(connection.conn_id), settings=settings, credentials=credentials, masked=masked, **values
    )


def _take(values: dict[str, Any], kind: type[Settings | Credentials]) -> dict[str, Any]:
    """Remove the attributes of ``kind`` from ``values``, and return them."""
    names = {attribute.name for attribute in dataclasses.fields(kind)}
    return {name: values.pop(name) for name in names & values.keys()}


def _without_prefix(extra: Any) -> dict[str, Any]:
    """Return the extras by name without the form's prefix, with whitespace stripped from strings."""
    if extra is None:
        return {}
    if not isinstance(extra, dict):
        raise InvalidArgument("extra", extra, "it must be a JSON object", as_text=_describe_hidden(extra))
    # values that are pasted into a form often end with a space or a newline
    return {
        name.removeprefix(PREFIX): value.strip() if isinstance(value, str) else value
        for name, value in extra.items()
    }


def _values(extras: dict[str, Any]) -> dict[str, Any]:
    """Return the value of every field; an empty or masked value counts as not set."""
    entered = {name: value for name, value in extras.items() if value not in (None, "", *MASKS)}
    if store := entered.pop("token_store", None):
        # in a connection, it would let anyone who can edit connections choose which code runs
        raise InvalidArgument("extra token_store", store, "set it in Airflow's configuration, [webcollect]")
    if unknown := sorted(entered.keys() - {field.name for field in FIELDS}):
        log.warning("The connection has unknown extras: %s", ", ".join(unknown))
    return {field.name: _value(field, entered.get(field.name, field.default)) for field in FIELDS}


def _value(field: Field, value: Any) -> Any:
    """Convert ``value`` to the type of the field; strings can spell numbers and booleans.

    :raises InvalidArgument: if the value breaks the field's rule; the error shows no secret.
    """
    if value is None:
        return None
    kind: Any = field.kind
    rule = f"it must be {_RULES[field.kind]}"
    if field.choices:
        kind = Literal[field.choices]
        rule = f"it must be one of {', '.join(field.choices)}"
    elif field.limits:
        lowest, highest = field.limits
        kind = Annotated[kind, msgspec.Meta(ge=lowest, le=highest)]
        rule += f" from {lowest} to {highest}"
    try:
        spelled = read_boolean(value) if field.kind is bool and isinstance(value, str) else value
        converted: Any = msgspec.convert(spelled, kind, strict=False)
        if isinstance(converted, str):
            converted.encode()  # a lone surrogate cannot be sent
    except (msgspec.ValidationError, UnicodeEncodeError):
        may_be_secret = isinstance(value, str | list | dict) or (field.kind is str and not field.choices)
        summary = _describe_hidden(value) if may_be_secret else None
        raise InvalidArgument(f"extra {field.name}", value, rule, as_text=summary) from None
    if field.web_page and not _is_web_page(converted):
        raise InvalidArgument(f"extra {field.name}", converted, "it must be an http(s) URL")
    if field.secret and not is_sendable(converted):
        rule = (
            "it must have no space, line end or other character that is invalid in a header: copy it again "
            "(in a URI, write + as %2B)"
        )
        raise InvalidArgument(f"extra {field.name}", value, rule, as_text=_describe_hidden(value))
    return converted


def _describe_hidden(value: Any) -> str:
    """Describe a value without showing it, since users can enter a secret into the wrong field."""
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


def _is_web_page(url: str) -> bool:
    """Return whether ``url`` is an http(s) URL, so that a link to it cannot run a script."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        return False


def _base_url(connection: Connection) -> str:
    """Return the main service's base URL; a host without a scheme gets the scheme in ``schema``, or https.

    :raises ConnectionIncomplete: if the connection has no host.
    :raises InvalidArgument: if ``schema`` is neither http nor https, or if the host has another port. In a
        connection URI, ``schema`` is the path after the host.
    """
    host = (connection.host or "").strip()
    if not host:
        raise ConnectionIncomplete(
            f"the connection {connection.conn_id} has no host: set it to the service's base URL"
        )
    schema = (connection.schema or "https").strip().lower()
    if schema not in {"http", "https"}:
        rule = "it must be http or https; a path belongs to the host (in a URI, with / as %2F)"
        raise InvalidArgument("schema", connection.schema, rule)
    if "://" not in host:
        host = f"{schema}://{host}"
    scheme, _, rest = host.partition("://")
    place, slash, path = rest.partition("/")
    try:
        port = urlsplit(f"//{place}").port
    except ValueError:
        # `Settings` refuses the invalid port
        return f"{scheme}://{rest}"
    if connection.port and port not in (None, connection.port):
        raise InvalidArgument("port", connection.port, f"the host has another port, {port}")
    if connection.port and port is None:
        place = f"{place}:{connection.port}"
    return f"{scheme}://{place}{slash}{path}"


def check_connection(connection: WebCollectConnection) -> tuple[bool, str]:
    """Test a connection with a harmless call; return whether it works, and a message for the user.

    Airflow tests a connection under a random id, so the test cannot share a token with the workers. A refresh
    token works only once: if the test used it, the workers would be locked out, so the test never sends it.
    """
    try:
        passed, message = True, _try_credentials(connection)
    except PermissionDenied as error:
        plan = f"the plan does not include the test's call ({error.message})."
        passed, message = True, f"The credential works; {plan}"
    except CredentialError as error:
        kind = "API key" if connection.credentials.key_only else "token"
        passed, message = False, f"The service refused the {kind}: {error}"
    except WebCollectError as error:
        passed, message = False, str(error)
    if connection.masked:
        message = f"{message} {MASKED.format(', '.join(connection.masked))}"
    return passed, message


def _try_credentials(connection: WebCollectConnection) -> str:
    from airflow.providers.common.compat.sdk import mask_secret

    own = connection.credentials
    others = (own.can_get_tokens, own.api_key, own.password)
    if own.datahub_api_key and connection.settings.datahub_url and not any(others):
        return "The key of the data-app service was not tried, since each call with it deprecates an app."
    credentials = _without_refresh_token(connection)
    has_refresh_token = bool(connection.credentials.refresh_token)
    # few retries, since a person waits for the result
    settings = dataclasses.replace(connection.settings, retries=Retries(attempts=2), token_refresh="auto")
    name = f"test-{secrets.token_hex(8)}"
    context = make_context(settings, credentials, name, MemoryTokenStore(name), learned=mask_secret)
    with Client(context) as client:
        if credentials.key_only:
            with contextlib.suppress(NotFound):
                # only five endpoints accept a key, and this is the only one of them that changes nothing
                client.send(endpoints.read_batch_data(_UNKNOWN_TO_SERVICE, "0", size=1))
            rest = "Operations that need an access token will not work with it."
            return f"Connected; the API key is accepted. {UNTRIED if has_refresh_token else rest}"
        try:
            counts = client.send(endpoints.get_running_counts())
        except TokenRejected:
            if not has_refresh_token:
                raise
            # the workers may still get a valid access token with the refresh token
            return f"The service answers. {UNTRIED}"
    return f"Connected; extracting tasks: {counts.extracting_count}, waiting tasks: {counts.waiting_count}."


def _without_refresh_token(connection: WebCollectConnection) -> Credentials:
    """Return credentials for a test that does not use up the refresh token."""
    from airflow_provider_webcollect.hooks.token_store import make_token_store

    credentials = dataclasses.replace(connection.credentials, refresh_token=None)
    if not connection.credentials.refresh_token or credentials.can_get_tokens or credentials.api_key:
        return credentials
    stored = make_token_store(connection.conn_id).load()
    lineage = connection.credentials.lineage_at(connection.settings.base_url)
    token = stored.access_token if stored is not None and stored.descends_from(lineage) else None
    return dataclasses.replace(credentials, access_token=token or _UNKNOWN_TO_SERVICE)
