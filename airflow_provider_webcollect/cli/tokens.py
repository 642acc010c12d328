"""The commands on the access token that a connection's processes share; no token is ever shown."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Any, TypeVar

import click

from airflow_provider_webcollect.cli.connecting import connect, url_option
from airflow_provider_webcollect.cli.output import output_option, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.service.tokens.state import StoredToken

F = TypeVar("F", bound="Callable[..., Any]")
FACTS = ("connection", "stored", "age_seconds", "expires", "seconds_left", "stored_by")


def _of_connection(command: F) -> F:
    argument = click.argument("conn_id", metavar="[CONN]", required=False)
    return argument(url_option(output_option(command)))


@click.group()
def token() -> None:
    """Show or renew a connection's access token.

    All processes of the connection share it. CONN is the Airflow connection, webcollect_default if it is left
    out. No token is shown.
    """


@token.command("status")
@_of_connection
def status(conn_id: str | None, url: str | None, output: str) -> int:
    """Show the age and the end of the stored token, and who stored it.

    Nothing is sent.

    Exit code 1: there is none, or it has ended, or it belongs to a credential that was replaced since.
    """
    access = connect(conn_id, url)
    found = access.store.load()
    current = access.connection.credentials.lineage_at(access.connection.settings.base_url)
    if found is None or not found.descends_from(current):
        why = "no token is stored" if found is None else "the stored token is of another credential"
        click.echo(f"For this connection {why}.", err=True)
        return 1
    _show(access.connection.conn_id, found, output)
    return int(found.has_ended(time.time()))


@token.command("refresh")
@_of_connection
def refresh(conn_id: str | None, url: str | None, output: str) -> None:
    """Renew the token now, for all processes."""

    access = connect(conn_id, url)
    with access.client() as client:
        _show(access.connection.conn_id, client.renew_token(), output)


def _show(connection: str, found: StoredToken, output: str) -> None:
    now = time.time()
    row = {
        "connection": connection,
        "stored": _moment(found.obtained_at),
        "age_seconds": round(now - found.obtained_at),
        "expires": found.expires_at and _moment(found.expires_at),
        "seconds_left": found.expires_at and round(found.expires_at - now),
        "stored_by": found.stored_by,
    }
    show([row], output, FACTS)


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
