"""Testing a connection with a harmless call, for the button in Airflow's connection form.

Airflow tests a connection under a random id, so a token obtained here cannot be shared with workers. A
refresh token works only once: exchanging it here would lock the workers out. So it is never sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import mask_secret

from airflow_provider_webcollect.hooks.token_store import make_token_store
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.errors import (
    CredentialError,
    MalformedResponse,
    NotFound,
    PermissionDenied,
    ServiceUnreachable,
    TlsError,
    TokenRejected,
    WebCollectError,
)
from airflow_provider_webcollect.service.settings import Credentials, Retries
from airflow_provider_webcollect.service.sync import Client
from airflow_provider_webcollect.service.tokens.store import MemoryTokenStore

if TYPE_CHECKING:
    from airflow_provider_webcollect.hooks.connection import WebCollectConnection

#: A token that the service does not know.
NO_TOKEN = "connection-test"
UNTRIED = (
    "The refresh token itself was not tried, since that would spend it: the first task that needs an access "
    "token proves it."
)
MASKED = (
    "Airflow's form sent only its mask of what is stored for {}, so that took no part in the test; enter it "
    "again to test it."
)


def check_connection(connection: WebCollectConnection) -> tuple[bool, str]:
    """Return whether the connection works, and a message for the user."""
    try:
        passed, said = True, _prove(connection)
    except WebCollectError as error:
        passed, said = _judged(error, connection.credentials)
    if connection.masked:
        said = f"{said} {MASKED.format(', '.join(connection.masked))}"
    return passed, said


def _prove(connection: WebCollectConnection) -> str:
    credentials = _without_refresh_token(connection)
    has_refresh_token = bool(connection.credentials.refresh_token)
    with _client(connection, credentials) as client:
        if credentials.key_only:
            return _prove_key(client, has_refresh_token)
        try:
            counts = client.send(endpoints.get_running_counts())
        except TokenRejected:
            if not has_refresh_token:
                raise
            # the refresh token may still give a valid access token
            return f"The service answers. {UNTRIED}"
    return f"Connected; {counts.extracting_count} tasks are extracting, {counts.waiting_count} waiting."


def _without_refresh_token(connection: WebCollectConnection) -> Credentials:
    """Return credentials that can be tried without using up the refresh token."""
    given = connection.credentials
    credentials = dataclasses.replace(given, refresh_token=None)
    if not given.refresh_token or credentials.can_get_tokens or credentials.api_key:
        return credentials
    stored = make_token_store(connection.conn_id).load()
    known = stored is not None and stored.descends_from(given.lineage_at(connection.settings.base_url))
    token = stored.access_token if stored is not None and known else NO_TOKEN
    return dataclasses.replace(credentials, access_token=token or NO_TOKEN)


def _client(connection: WebCollectConnection, credentials: Credentials) -> Client:
    # few retries, since a person waits for the result
    settings = dataclasses.replace(connection.settings, retries=Retries(attempts=2), token_refresh="auto")
    name = f"test-{secrets.token_hex(8)}"
    return Client(make_context(settings, credentials, name, MemoryTokenStore(name), learned=mask_secret))


def _prove_key(client: Client, has_refresh_token: bool) -> str:
    with contextlib.suppress(NotFound):
        # only five endpoints accept a key, and of these only this one changes nothing
        client.send(endpoints.read_batch_data(NO_TOKEN, "0", size=1))
    rest = UNTRIED if has_refresh_token else "Operations that take an access token will not work with it."
    return f"Connected; the API key is accepted. {rest}"


def _judged(error: WebCollectError, credentials: Credentials) -> tuple[bool, str]:
    match error:
        case MalformedResponse():
            return False, f"Something answered, but not the service; is the host right? {error}"
        case PermissionDenied():
            plan = f"the plan does not include the test's call ({error.message})."
            return True, f"The credential works; {plan}"
        case TlsError():
            return False, f"No trusted connection (TLS): {error}"
        case ServiceUnreachable():
            return False, f"The service cannot be reached: {error}"
        case CredentialError():
            return False, f"The service refused the {'API key' if credentials.key_only else 'token'}: {error}"
    return False, str(error)
