"""Creates dlt's destination with credentials from an Airflow connection or from dlt's configuration."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from airflow_provider_webcollect.landing.formats import require
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.providers.common.compat.sdk import Connection

#: The extras of a connection that a load passes on to libpq, PostgreSQL's client library.
_LIBPQ = (
    "application_name",
    "channel_binding",
    "fallback_application_name",
    "gssdelegation",
    "gssencmode",
    "gsslib",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "krbsrvname",
    "load_balance_hosts",
    "options",
    "require_auth",
    "requirepeer",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcertmode",
    "sslcompression",
    "sslcrl",
    "sslcrldir",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
    "sslsni",
    "target_session_attrs",
    "tcp_user_timeout",
)
#: Extras that could select another server, database or user than the connection's fields name.
_ELSEWHERE = ("dbname", "host", "hostaddr", "passfile", "password", "port", "service", "user")
#: Extras that Airflow's own hooks use, but that dlt does not support or should not use.
_UNSUPPORTED = {
    "databricks": ("azure_tenant_id", "use_azure_managed_identity", "use_default_azure_credential"),
    "google_cloud_platform": ("credential_config_file", "impersonation_chain", "key_secret_name"),
    "postgres": ("iam", *_ELSEWHERE),
    "redshift": ("iam", *_ELSEWHERE),
    "snowflake": ("azure_conn_id", "refresh_token"),
}
_OTHERS = "for other destinations of dlt, run a pipeline with read_landing(…).to_dlt()"
_WITH_ITS_TYPE = (
    "Airflow stores the type as 'generic' if no installed provider has it: delete the connection, and create "
    "it again after installing the provider, or with `--conn-json`, which keeps the type"
)
_PEM = "-----BEGIN"
#: Warehouses with transactions that dlt does not use: it would commit each statement by itself.
_WITH_TRANSACTIONS = ("duckdb", "postgres", "redshift", "snowflake")


#: The names of dlt's destinations that are supported warehouses.
DESTINATIONS = ("bigquery", "clickhouse", "databricks", "duckdb", "postgres", "redshift", "snowflake")


class Warehouse(msgspec.Struct, frozen=True, kw_only=True):
    """The name, credentials and options of a dlt destination. The repr shows no secret.

    :ivar kind: the name of the destination in dlt.
    :ivar credentials: the credentials in a form that dlt accepts.
    :ivar options: further arguments of the destination.
    """

    kind: str
    credentials: Any
    options: dict[str, Any] = {}

    def __repr__(self) -> str:
        # not the credentials, which would appear in logs
        return f"<Warehouse {self.kind}>"

    def destination(self, **options: Any) -> Any:
        """Return dlt's destination; it does not connect yet, and does not need its packages yet.

        :param options: further arguments of the destination.
        """
        from dlt import destinations

        make = _postgres() if self.kind == "postgres" else getattr(destinations, self.kind)
        if self.kind in _WITH_TRANSACTIONS:
            options["supports_transactions"] = True
        return make(credentials=self.credentials, **self.options, **options)


@functools.cache
def _postgres() -> Any:
    """Return dlt's destination for PostgreSQL, changed so that it does not load empty strings as null."""
    from dlt import destinations
    from dlt.destinations.impl.postgres.postgres import PostgresClient, PostgresCsvCopyJob

    class CopyJob(PostgresCsvCopyJob):
        def run(self) -> None:
            schema = self._job_client.schema = self._job_client.schema.clone()
            for column in schema.get_table_columns(self.load_table_name).values():
                # the file distinguishes empty strings from null; for nullable columns, dlt makes COPY ignore
                # the difference
                column["nullable"] = False
            super().run()

    class Client(PostgresClient):
        def create_load_job(self, table: Any, file_path: str, load_id: str, restore: bool = False) -> Any:
            job = super().create_load_job(table, file_path, load_id, restore)
            return CopyJob(file_path) if isinstance(job, PostgresCsvCopyJob) else job

    class Destination(destinations.postgres):
        client_class = Client
        destination_type = "dlt.destinations.postgres"

    return Destination


def warehouse_of(connection: Connection) -> Warehouse:
    """Return the warehouse of an Airflow connection, without connecting to it.

    :raises InvalidArgument: if the connection's type is not supported, if a required field is missing, or if
        it gets its credentials in a way that dlt does not support.
    """
    kind = connection.conn_type or ""
    make = _KINDS.get(kind)
    if make is None:
        cure = _WITH_ITS_TYPE if kind == "generic" else _OTHERS
        rule = f"its type is {connection.conn_type!r}, and loads support {', '.join(_KINDS)}; {cure}"
        raise InvalidArgument("warehouse_conn_id", connection.conn_id, rule)
    fields = _Fields(connection)
    for name in _UNSUPPORTED.get(kind, ()):
        if fields.option(name):
            raise fields.wrong(f"its extra has `{name}`, which loads do not support")
    return make(fields)


def configured_warehouse(kind: str) -> Warehouse:
    """Return the warehouse from dlt's own configuration: environment variables, and files in ``.dlt``.

    Only the credentials are read, and BigQuery's project and location. Airflow is not imported.

    :param kind: one of :data:`DESTINATIONS`.
    :raises InvalidArgument: if the configuration lacks required credentials, or cannot be read.
    :raises ExtraMissing: if dlt is not installed.
    """
    require("dlt", "dlt", "a load by dlt")
    from dlt import destinations
    from dlt.common.configuration.container import Container

    from airflow_provider_webcollect.landing.read.loading import dlt_context

    destination: Any = getattr(destinations, kind)()
    try:
        with Container().injectable_context(dlt_context({}, and_found=True)):
            found = destination.configuration(destination.spec(), accept_partial=True)
    except Exception as error:
        # dlt raises many kinds of errors; their text is left out, since it may contain a secret
        rule = f"dlt cannot read its configuration ({type(error).__name__})"
        raise InvalidArgument("destination", kind, rule) from None
    credentials: Any = found.credentials
    # without `database`, dlt would name DuckDB's file after the pipeline
    fields = {"database": str} if kind == "duckdb" else credentials.get_resolvable_fields()
    lacking = [
        f"`{name}`"
        for name, hint in fields.items()
        if not credentials.is_field_resolved(getattr(credentials, name), hint)
    ]
    if lacking and (kind == "duckdb" or not credentials.is_resolved()):
        rule = f"set DESTINATION__{kind.upper()}__CREDENTIALS, or write it to .dlt/secrets.toml"
        raise InvalidArgument("destination", kind, f"dlt's configuration lacks {', '.join(lacking)}; {rule}")
    options = _without_none(**{name: found.get(name) for name in ("project_id", "location")})
    return Warehouse(kind=kind, credentials=credentials, options=options)


class _Fields:
    """Access to the fields and extras of a connection, with errors that name the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._extra = connection.extra_dejson

    def option(self, name: str) -> Any:
        """Return an extra, which may have the name prefix of old forms; None if it is not set."""
        return self._value(name) or None

    def spelled(self, name: str) -> str | None:
        """Return an extra as text, with 1 and 0 for booleans; None if it is not set."""
        value = self._value(name)
        if value is None or value == "":
            return None
        return str(int(value) if isinstance(value, bool) else value)

    def _value(self, name: str) -> Any:
        value = self._extra.get(name)
        if value is None or value == "":
            return self._extra.get(f"extra__{self._connection.conn_type}__{name}")
        return value

    def whole(self, name: str) -> int | None:
        """Return an extra as an integer; None if it is not set.

        :raises InvalidArgument: if it is neither a whole number nor the text of one.
        """
        value = self.option(name)
        with contextlib.suppress(TypeError, ValueError):
            return None if value is None else int(value)
        raise self.wrong(f"its `{name}` is not a whole number")

    def get(self, name: str) -> Any:
        """Return a field; None if it is not set."""
        return getattr(self._connection, name) or None

    def needed(self, name: str, value: Any) -> Any:
        """Return ``value`` if it is set.

        :param name: the name of the field, for the error.
        :raises InvalidArgument: if the value is not set.
        """
        if not value:
            raise self.wrong(f"its {name} is missing")
        return value

    def wrong(self, rule: str) -> InvalidArgument:
        """Return the error for a connection that cannot be used."""
        return InvalidArgument("warehouse_conn_id", self._connection.conn_id, rule)


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _duckdb(fields: _Fields) -> Warehouse:
    path = fields.needed("`host`, the path of DuckDB's file,", fields.get("host"))
    return Warehouse(kind="duckdb", credentials=path)


def _libpq(fields: _Fields, kind: str, port: int) -> Warehouse:
    host = str(fields.needed("`host`", fields.get("host")))
    credentials = _without_none(
        # libpq needs a quoted socket folder: otherwise it would become part of the URL's path
        host=quote(host, safe="") if host.startswith("/") else host,
        port=fields.get("port") or port,
        database=fields.needed("`schema`, the name of the database,", fields.get("schema")),
        username=fields.needed("`login`", fields.get("login")),
        password=fields.get("password"),
        connect_timeout=fields.whole("connect_timeout"),
        client_encoding=fields.option("client_encoding"),
        query={
            # otherwise, PGHOSTADDR in the environment could select another server
            "hostaddr": "",
            **{name: value for name in _LIBPQ if (value := fields.spelled(name)) is not None},
        },
    )
    return Warehouse(kind=kind, credentials=credentials)


def _snowflake(fields: _Fields) -> Warehouse:
    account, region = fields.needed("`account`", fields.option("account")), fields.option("region")
    authenticator, token = fields.option("authenticator"), fields.option("token")
    if authenticator == "oauth":
        # without a token, dlt would use the token and the account of the container that it runs in
        fields.needed("`token`", token)
    private_key = fields.option("private_key_content")
    if private_key is not None and not private_key.lstrip().startswith(_PEM):
        # Airflow also accepts a key in Base64; for any other text, dlt reports the error
        with contextlib.suppress(ValueError):
            private_key = base64.b64decode(private_key, validate=True).decode()
    credentials = _without_none(
        host=f"{account}.{region}" if region else account,
        database=fields.needed("`database`", fields.option("database")),
        username=fields.get("login"),
        warehouse=fields.option("warehouse"),
        role=fields.option("role"),
        authenticator=authenticator,
        token=token,
        private_key=private_key,
        private_key_path=fields.option("private_key_file"),
    )
    # if there is a private key, the connection's password is the key's passphrase
    is_key = bool(credentials.keys() & {"private_key", "private_key_path"})
    credentials |= _without_none(
        **{"private_key_passphrase" if is_key else "password": fields.get("password")}
    )
    return Warehouse(kind="snowflake", credentials=credentials)


def _bigquery(fields: _Fields) -> Warehouse:
    path, project = fields.option("key_path"), fields.option("project")
    key, credentials = fields.option("keyfile_dict"), None
    if path or key:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            content = Path(path).read_text() if path else key
            credentials = json.loads(content) if isinstance(content, str) else content
        # without a private key, dlt would use the machine's credentials
        if not (isinstance(credentials, dict) and credentials.get("private_key")):
            # the error has no cause, since a cause would contain the secret text
            raise fields.wrong("its `key_path` or `keyfile_dict` is not the JSON of a service account")
    elif project:
        # dlt uses the machine's credentials
        credentials = {"project_id": project}
    options = _without_none(project_id=project, location=fields.option("location"))
    return Warehouse(kind="bigquery", credentials=credentials, options=options)


def _databricks(fields: _Fields) -> Warehouse:
    host = str(fields.needed("`host`", fields.get("host")))
    credentials = _without_none(
        server_hostname=host.removeprefix("https://").rstrip("/"),
        http_path=fields.needed("`http_path`", fields.option("http_path")),
        catalog=fields.needed("`catalog`", fields.option("catalog")),
    )
    if fields.option("service_principal_oauth"):
        # without these, dlt would use credentials from the environment
        credentials["client_id"] = fields.needed("`login`", fields.get("login"))
        credentials["client_secret"] = fields.needed("`password`", fields.get("password"))
    else:
        token = fields.option("token") or fields.get("password")
        credentials["access_token"] = fields.needed("token", token)
    return Warehouse(kind="databricks", credentials=credentials)


def _clickhouse(fields: _Fields) -> Warehouse:
    is_secure = bool(fields.option("secure"))
    credentials = _without_none(
        host=fields.needed("`host`", fields.get("host")),
        port=fields.get("port") or (9440 if is_secure else 9000),
        http_port=fields.whole("http_port") or (8443 if is_secure else 8123),
        username=fields.get("login"),
        password=fields.get("password"),
        database=fields.get("schema"),
        secure=int(is_secure),
    )
    return Warehouse(kind="clickhouse", credentials=credentials)


_KINDS: dict[str, Callable[[_Fields], Warehouse]] = {
    "clickhouse": _clickhouse,
    "databricks": _databricks,
    "duckdb": _duckdb,
    "google_cloud_platform": _bigquery,
    "postgres": functools.partial(_libpq, kind="postgres", port=5432),
    "redshift": functools.partial(_libpq, kind="redshift", port=5439),
    "snowflake": _snowflake,
}
