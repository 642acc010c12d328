"""Airflow connections: to the service (``--conn-id``) and to the storage."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect import read_landing
from airflow_provider_webcollect.sandbox import Sandbox, demo
from tests.airflow.conftest import airflow_database, airflow_home  # noqa: F401  # fixtures
from tests.cli.conftest import Run, Start, json_lines
from tests.cli.processes import on_terminal
from tests.storages import Storage

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.usefixtures("airflow_database", "airflow"),
]

CONN_ID = "my_service"
SetConnection = Callable[..., None]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Airflow with its usual token store."""
    monkeypatch.setenv("AIRFLOW__WEBCOLLECT__TOKEN_STORE", "variable")


@pytest.fixture
def set_connection(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> SetConnection:
    """Defines an Airflow connection in the environment; by default one to the sandbox."""

    def set_connection(conn_id: str = CONN_ID, **fields: Any) -> None:
        usual = {
            "conn_type": "webcollect",
            "host": sandbox.url,
            "extra": {"access_token": sandbox.access_token, "requests_per_second": 0},
        }
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(usual | fields))

    return set_connection


@pytest.fixture(scope="module")
def bucket(storage_of: Callable[[str], Storage]) -> dict[str, Any]:
    """A bucket ``landings``, and the connection of Airflow that opens it."""
    connection: dict[str, Any] = json.loads(storage_of("s3").as_connection())
    return connection


@pytest.fixture
def forgotten_token() -> Iterator[str]:
    """The name of the Variable for the token, which does not exist yet and is deleted after the test."""
    from airflow.models import Variable

    yield f"webcollect_token__{CONN_ID}"
    for name in ("token", "renewal"):
        Variable.delete(f"webcollect_{name}__{CONN_ID}")


@contextlib.contextmanager
def stored(row: Any) -> Iterator[None]:
    """Keep a row in Airflow's database while the block runs."""
    from airflow.utils.session import create_session

    with create_session() as session:
        session.add(row)
        session.flush()
        kind, key = type(row), row.id
    yield
    with create_session() as session:
        session.delete(session.get(kind, key))


class TestService:
    @pytest.mark.parametrize("command", [["capacity"], ["token", "status"]], ids=" ".join)
    def test_a_connection_that_airflow_does_not_have_is_named(self, run: Run, command: list[str]) -> None:
        run(*command, "--conn-id", "output").refused(
            3,
            "Error: Airflow cannot provide the connection output: The conn_id `output` isn't",
            "Name another connection, or use --url, which works without Airflow",
        )

    def test_a_wrong_field_of_a_connection_is_named(self, run: Run, set_connection: SetConnection) -> None:
        set_connection(host="ftp://host")
        run("capacity", "--conn-id", CONN_ID).refused(2, "Error: the connection's host is 'ftp://host'")
        set_connection(extra={"timezone": "Mars"})
        run("capacity", "--conn-id", CONN_ID).refused(2, "Error: the connection's extra timezone is 'Mars'")

    def test_that_airflow_is_not_installed_is_said(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "airflow.settings", None)
        for command in (
            ["capacity", "--conn-id", "any"],
            ["status"],
            ["token", "status"],
            ["landing", "verify", "s3://any@bucket/folder"],
        ):
            run(*command).refused(2, "apache-airflow, which cannot be imported here")

    @pytest.mark.at_night
    def test_a_broken_airflow_is_named_without_values(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = "nothing://airflow:the-password@host/airflow"
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", wrong)
        ended = start("capacity", "--conn-id", "any")
        assert ended.end() == 3
        assert ended.err.splitlines()[-1].startswith("Error: Airflow cannot start with its configuration (")
        assert "Traceback" not in ended.err
        assert "the-password" not in ended.err + ended.out

    def test_connection_and_address_exclude_each_other(
        self, run: Run, sandbox: Sandbox, set_connection: SetConnection
    ) -> None:
        set_connection()
        run("capacity", "--conn-id", CONN_ID, "--url", sandbox.url).refused(2, "--url")
        assert sandbox.control.requests() == []

    @pytest.mark.usefixtures("no_pauses")
    def test_the_token_is_the_one_that_airflow_s_tasks_share(
        self, run: Run, sandbox: Sandbox, set_connection: SetConnection, forgotten_token: str
    ) -> None:
        from airflow.models import Variable

        set_connection(extra={"refresh_token": sandbox.refresh_token, "requests_per_second": 0})
        assert run("token", "status", "--conn-id", CONN_ID).code == 1
        assert run("token", "refresh", "--conn-id", CONN_ID).code == 0
        shared = json.loads(Variable.get(forgotten_token))
        ended = run("token", "status", "--conn-id", CONN_ID, "-o", "json")
        assert run("capacity", "--conn-id", CONN_ID).code == 0
        assert ended.code == 0
        assert ended.json[0]["connection"] == CONN_ID
        assert shared["access_token"] not in ended.out
        assert len(sandbox.control.requests("/token")) == 1

    @pytest.mark.usefixtures("no_pauses", "forgotten_token")
    @pytest.mark.parametrize("extra", [{"refresh_token": "another"}, {"access_token": "another"}])
    def test_the_token_of_a_replaced_credential_is_code_1(
        self, run: Run, set_connection: SetConnection, extra: dict[str, str]
    ) -> None:
        set_connection(login=demo.USERNAME, password=demo.PASSWORD, extra={})
        assert run("token", "refresh", "--conn-id", CONN_ID).code == 0
        assert run("token", "status", "--conn-id", CONN_ID).code == 0
        set_connection(extra=extra)
        run("token", "status", "--conn-id", CONN_ID).refused(1, "another credential")

    def test_a_connection_in_airflows_database_is_found(self, start: Start, sandbox: Sandbox) -> None:
        from airflow.models import Connection

        task = sandbox.control.add_task(lots=[30])["task_id"]
        # every command warns about the unknown extra
        extra = {"access_token": sandbox.access_token, "unknown_extra": 1}
        kept = Connection(
            conn_id="in_database", conn_type="webcollect", host=sandbox.url, extra=json.dumps(extra)
        )
        with stored(kept):
            reading = start("read", task, "--conn-id", "in_database")
            assert reading.end() == 0, reading.err
        assert json_lines(reading.out) == sandbox.control.true_rows(task)
        assert "unknown_extra" in reading.err


class TestStorage:
    def test_rows_land_in_a_bucket_opened_by_an_airflow_connection(
        self,
        run: Run,
        sandbox: Sandbox,
        connected: None,
        set_connection: SetConnection,
        bucket: dict[str, Any],
    ) -> None:
        set_connection("my_storage", **bucket)
        task = sandbox.control.add_task(lots=[300])["task_id"]
        place = ("s3://landings/cli", "--object-storage-conn-id", "my_storage")

        landed = run("land", task, *place)

        assert landed.code == 0, landed.err
        [row] = run("landing", "verify", *place, "-o", "json").json
        assert (row["landing"], row["rows"]) == ("s3://my_storage@landings/cli", 300)
        assert row["landing"] in landed.out
        assert run("landing", "cat", *place).lines == sandbox.control.true_rows(task)
        query = "select count(*) number from landing"
        assert run("landing", "sql", *place, query, "-o", "json").json == [{"number": 300}]
        assert run("landing", "clean", *place, "-o", "json").json == []
        assert run("land", task, *place, "--mode", "full").code == 3

        in_url = row["landing"]
        assert read_landing(in_url).manifest.rows == 300
        assert run("landing", "cat", in_url).lines == sandbox.control.true_rows(task)
        assert run("land", task, in_url, "--mode", "full").code == 3

    @pytest.mark.at_night
    @pytest.mark.parametrize("as_json", ["False", "True"])
    def test_what_airflow_logs_of_a_connection_is_not_in_the_rows(
        self,
        run: Run,
        start: Start,
        sandbox: Sandbox,
        connected: None,
        set_connection: SetConnection,
        bucket: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
        as_json: str,
    ) -> None:
        set_connection("my_storage", **bucket)
        task = sandbox.control.add_task(lots=[3])["task_id"]
        place = f"s3://my_storage@landings/logged-{as_json}"
        assert run("land", task, place).code == 0
        monkeypatch.setenv("AIRFLOW__LOGGING__JSON_LOGS", as_json)

        reading = start("landing", "cat", place)

        assert reading.end() == 0
        assert json_lines(reading.out) == sandbox.control.true_rows(task)
        assert "credentials retrieved" in reading.err

    @pytest.mark.parametrize(
        "place",
        [["s3://landings/cli", "--object-storage-conn-id", "forgotten"], ["s3://forgotten@landings/cli"]],
    )
    def test_a_connection_of_the_storage_that_is_not_there_is_named(self, run: Run, place: list[str]) -> None:
        run("landing", "verify", *place).refused(2, "forgotten", place[0])


def test_logs_control_no_terminal(
    run: Run, sandbox: Sandbox, set_connection: SetConnection, tmp_path: Path
) -> None:
    set_connection()
    task = sandbox.control.add_task("clear\x1b[2J", lots=[1])["task_id"]
    command = ("-v", "land", task, tmp_path / "landed", "--conn-id", CONN_ID, "--late-rows-delay", "0")
    assert run(*command).code == 0
    _, printed = on_terminal(*command)
    assert "clear\ufffd[2J has nothing new for" in printed
    assert "\x1b[2J" not in printed
