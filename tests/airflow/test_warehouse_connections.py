"""The dlt destination and credentials of each type of connection, tested without any warehouse."""

from __future__ import annotations

import base64
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from airflow.models import Connection

from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.transfers.warehouses import Warehouse, warehouse_of

LOGIN = {"login": "me", "password": "p"}
USER = {"username": "me", "password": "p"}
KEY = "-----BEGIN PRIVATE KEY-----\n"
CATALOG = {"http_path": "/sql", "catalog": "main"}
HOST = "adb.azuredatabricks.net"
SNOWFLAKE = {"account": "ab123", "database": "SHOP"}
OAUTH = {"service_principal_oauth": True, **CATALOG}
#: The type, the fields and the extra of a connection, and the credentials that dlt gets.
KNOWN: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
    ("duckdb", {"host": "/data/shop.duckdb"}, {}, "/data/shop.duckdb"),
    (
        "postgres",
        {"host": "db", "schema": "shop", **LOGIN},
        {"sslmode": "require", "connect_timeout": "9", "cursor": "dictcursor"},
        {
            **{"host": "db", "port": 5432, "database": "shop", **USER},
            **{"connect_timeout": 9, "query": {"hostaddr": "", "sslmode": "require"}},
        },
    ),
    (
        "redshift",
        {"host": "r.amazonaws.com", "schema": "shop", "port": 5440, **LOGIN},
        {"connect_timeout": "-1"},
        {
            **{"host": "r.amazonaws.com", "port": 5440, "database": "shop", **USER},
            **{"connect_timeout": -1, "query": {"hostaddr": ""}},
        },
    ),
    (
        "snowflake",
        {"schema": "public", **LOGIN},
        {"account": "ab123", "region": "eu-west-1", "database": "SHOP", "warehouse": "WH", "role": "R"},
        {"host": "ab123.eu-west-1", "database": "SHOP", "warehouse": "WH", "role": "R", **USER},
    ),
    (
        "snowflake",
        {"login": "me", "password": "phrase"},
        {"extra__snowflake__account": "ab123", "database": "SHOP", "private_key_file": "/keys/k.p8"},
        {
            **{"host": "ab123", "database": "SHOP", "username": "me"},
            **{"private_key_path": "/keys/k.p8", "private_key_passphrase": "phrase"},
        },
    ),
    (
        "snowflake",
        {"login": "me"},
        {**SNOWFLAKE, "private_key_content": base64.b64encode(KEY.encode()).decode()},
        {"host": "ab123", "database": "SHOP", "username": "me", "private_key": KEY},
    ),
    (
        "google_cloud_platform",
        {},
        {"project": "shop", "keyfile_dict": json.dumps({"project_id": "keys", "private_key": "k"})},
        {"project_id": "keys", "private_key": "k"},
    ),
    ("google_cloud_platform", {}, {"project": "shop"}, {"project_id": "shop"}),
    ("google_cloud_platform", {}, {}, None),
    (
        "databricks",
        {"host": f"https://{HOST}/", "password": "dapi"},
        CATALOG,
        {"server_hostname": HOST, "access_token": "dapi", **CATALOG},
    ),
    (
        "databricks",
        {"host": HOST, "login": "id", "password": "secret"},
        OAUTH,
        {"server_hostname": HOST, "client_id": "id", "client_secret": "secret", **CATALOG},
    ),
    (
        "clickhouse",
        {"host": "ch", "schema": "shop", **LOGIN},
        {"secure": True},
        {"host": "ch", "port": 9440, "http_port": 8443, "database": "shop", "secure": 1, **USER},
    ),
]
#: The classes that declare the fields of credentials, in `dlt.destinations.impl`.
SPECS = {
    "postgres": "postgres.configuration.PostgresCredentials",
    "redshift": "redshift.configuration.RedshiftCredentials",
    "snowflake": "snowflake.configuration.SnowflakeCredentialsWithoutDefaults",
    "databricks": "databricks.configuration.DatabricksCredentials",
    "clickhouse": "clickhouse.configuration.ClickHouseCredentials",
}


def of(conn_type: str, extra: dict[str, Any] | None = None, **fields: Any) -> Warehouse:
    connection = Connection(conn_id="wh", conn_type=conn_type, extra=json.dumps(extra or {}), **fields)
    return warehouse_of(connection)


@pytest.mark.parametrize(("conn_type", "fields", "extra", "credentials"), KNOWN)
def test_each_type_gives_a_destination_with_its_credentials(
    conn_type: str, fields: dict[str, Any], extra: dict[str, Any], credentials: Any
) -> None:
    warehouse = of(conn_type, extra, **fields)
    kind = "bigquery" if conn_type == "google_cloud_platform" else conn_type

    assert (warehouse.kind, warehouse.credentials) == (kind, credentials)
    destination = warehouse.destination(staging_dataset_name_layout="%s_staging")
    assert destination.destination_name == kind
    if kind in SPECS:
        module, _, name = SPECS[kind].rpartition(".")
        spec = getattr(importlib.import_module(f"dlt.destinations.impl.{module}"), name)
        assert credentials.keys() <= {*spec.get_resolvable_fields()}


def test_the_project_and_the_location_of_bigquery_are_options() -> None:
    warehouse = of("google_cloud_platform", {"project": "shop", "location": "EU"})
    assert warehouse.options == {"project_id": "shop", "location": "EU"}
    assert of("google_cloud_platform").options == {}


def test_a_file_with_the_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    key = {"project_id": "keys", "private_key": "k"}
    file.write_text(json.dumps(key))
    assert of("google_cloud_platform", {"key_path": str(file)}).credentials == key


@pytest.mark.parametrize(
    ("conn_type", "fields", "extra", "rule"),
    [
        ("duckdb", {}, {}, "its `host`, the path of DuckDB's file, is missing"),
        ("postgres", {"host": "db", "login": "me"}, {}, "its `schema`, the name of the database, is missing"),
        ("postgres", {"host": "db"}, {"iam": True}, "its extra has `iam`"),
        ("databricks", {"host": "db"}, {"azure_tenant_id": True}, "its extra has `azure_tenant_id`"),
        ("snowflake", {"host": "db"}, {"refresh_token": True}, "its extra has `refresh_token`"),
        ("snowflake", {"login": "me"}, {"account": "a"}, "its `database` is missing"),
        ("snowflake", {"login": "me"}, {**SNOWFLAKE, "authenticator": "oauth"}, "its `token` is missing"),
        ("databricks", {"host": "h"}, CATALOG, "its token is missing"),
        ("databricks", {"host": "h", "login": "id"}, OAUTH, "its `password` is missing"),
        ("databricks", {"host": "h", "password": "secret"}, OAUTH, "its `login` is missing"),
        *(
            ("google_cloud_platform", {}, extra, "is not the JSON of a service account")
            for extra in (
                {"keyfile_dict": "{hunter2"},
                {"keyfile_dict": "[" * 60_000},
                {"keyfile_dict": "{}"},
                {"key_path": "/nowhere"},
            )
        ),
        ("google_cloud_platform", {}, {"impersonation_chain": "a"}, "its extra has `impersonation_chain`"),
        ("clickhouse", {}, {}, "its `host` is missing"),
        ("clickhouse", {"host": "h"}, {"http_port": "x"}, "its `http_port` is not a whole number"),
        (
            "postgres",
            {"host": "h", "schema": "s", "login": "me"},
            {"connect_timeout": "10s"},
            "its `connect_timeout` is not a whole number",
        ),
    ],
)
def test_what_is_missing_or_unknown_to_dlt_is_an_error(
    conn_type: str, fields: dict[str, Any], extra: dict[str, Any], rule: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        of(conn_type, extra, **fields)
    assert str(refused.value) == f"`warehouse_conn_id` is 'wh'; {rule}" or rule in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is refused.value.__context__ is None


def test_its_repr_has_no_credentials() -> None:
    warehouse = of("postgres", host="db", schema="shop", login="me", password="hunter2")
    assert repr(warehouse) == "<Warehouse postgres>"
