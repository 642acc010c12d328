"""Loads into PostgreSQL: what its servers, roles and tables refuse or do in their own way."""

from __future__ import annotations

import uuid
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from airflow.providers.common.compat.sdk import Connection

from airflow_provider_webcollect.landing.errors import LoadFailed
from airflow_provider_webcollect.landing.options import LoadOptions
from airflow_provider_webcollect.landing.read import loading
from airflow_provider_webcollect.transfers.warehouses import warehouse_of
from tests.landing.loading.databases import Database, Landing, product
from tests.landing.loading.loader import load_twice
from tests.postgresql import PostgreSQL


@pytest.fixture
def database(postgresql: PostgreSQL) -> Database:
    """A table that does not exist yet, reached as a superuser."""
    return Database("postgres", f"postgresql://{postgresql.address}")


@pytest.fixture
def role(database: Database) -> str:
    """A role without privileges."""
    name = f"loader_{uuid.uuid4().hex[:8]}"
    database.query(f"create role {name} login password 'p'")
    return name


@pytest.fixture
def by_role(database: Database, role: str) -> Database:
    """The same table, reached as the role."""
    return replace(database, address=f"postgresql://{role}:p@{database.address.partition('@')[2]}")


@pytest.mark.at_night
def test_a_pooler_that_shares_sessions_blocks_a_second_load(
    landing: Landing, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled = Database("postgres", f"postgresql://{postgresql.start_pooler()}")
    load_twice(landing, pooled, monkeypatch)


@pytest.mark.parametrize("name", ["cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"])
def test_a_system_column_is_refused_by_name(landing: Landing, database: Database, name: str) -> None:
    landing.land(product(0) | {name: "x"})
    landing.refused(
        rf"can be called '{name}'; nothing was loaded: .* `columns` that leave out '{name}'", database
    )
    assert database.columns() == []


def test_a_role_that_may_not_make_schemas_is_told_which_grant(
    landing: Landing, database: Database, role: str, by_role: Database
) -> None:
    database.query(f"create schema {database.table.partition('.')[0]} authorization {role}")
    landing.land(product(0))
    with pytest.raises(LoadFailed, match=f'GRANT CREATE ON DATABASE "postgres" TO "{role}"') as failed:
        landing.load(by_role)
    assert failed.value.permanent
    assert database.columns() == []
    database.query(f"grant create on database postgres to {role}")
    assert landing.load(by_role) == 1


def test_a_denied_change_is_told(landing: Landing, database: Database, role: str, by_role: Database) -> None:
    database.create("url text, n text")
    database.query(f"grant create on database postgres to {role}")
    landing.land(product(0))
    with pytest.raises(LoadFailed, match="permission denied for schema") as failed:
        landing.load(by_role)
    assert failed.value.permanent


def test_an_own_column_in_capital_letters_is_refused(landing: Landing, database: Database) -> None:
    database.create('"URL" text')
    landing.land(product(0))
    landing.refused("the column 'URL' of .* differs from 'url'.*letter case alone", database)
    assert database.columns() == ["URL"]


def test_a_connection_by_a_socket_loads(landing: Landing, database: Database, postgresql: PostgreSQL) -> None:
    landing.land(product(0))
    fields = urlsplit(database.address)
    connection = Connection(
        conn_id="shop",
        conn_type="postgres",
        host=postgresql.socket_folder,
        port=fields.port,
        login=fields.username,
        password=fields.password,
        schema="postgres",
    )
    options = LoadOptions()
    loading.load(landing.read(), options, database.table, warehouse_of(connection).destination)
    assert database.rows("url", "n") == [("/0", "0")]
