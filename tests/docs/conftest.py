"""Every block of Python, SQL and shell in docs/ runs. The rules for a page:

- A page's blocks run in order. They share one namespace, one folder to work in, which is ``~`` too, and
  one environment: what a shell block exports, and where it goes with ``cd``, holds for the blocks after
  it.
- They find an empty Airflow, with its DAGs in ``$AIRFLOW_HOME/dags``; an S3 server with the bucket
  ``my-bucket``, for the connection ``aws_default``; and a sandbox on port 8155 (all blocks get a free port
  instead), for the connection ``webcollect_default``: it has no limits, and its runs take a second. The
  environment has no credentials: what a page shows has to work with the connections alone.
- A shell block that starts a sandbox runs until the page ends or starts another. Such a page has no other
  sandbox, and has to define the connection itself.
- SQL is DuckDB's; ``rows`` is what the last block gave. ``output`` is what the last shell block printed.
- ``<!--- invisible-code-block: python``, lines of code, ``--->``: imports, and what must hold afterwards.
  They may use ``sandbox`` (unless the page starts one itself), ``AIRFLOW_3`` and ``AIRFLOW_3_3``, and
  ``DBT``, which is the environment of `make test-dbt`, or None.
- ``<!--- run-dag: prices --->`` runs the DAG ``prices`` of the blocks above, or of the folder of DAGs, by
  ``dag.test()``, with short pauses. It must succeed; ``dag_run`` is a `tests.airflow.dag_runs.FinishedRun`.
- ``<!--- file: tests/test_prices.py --->`` writes the next block, of any language, to a file, and does not
  run it.
- ``<!--- skip: next "needs a cluster" --->`` leaves the next block out. There may be a condition: ``<!---
  skip: next if(not AIRFLOW_3, reason="needs Airflow 3") --->``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from demo.ports import free_port
from tests.airflow.conftest import (  # noqa: F401  # fixtures
    airflow_database,
    airflow_home,
    forgotten_secrets,
    no_waste_of_time,
    s3,
    set_connection,
)
from tests.docs.world import STARTS_SANDBOX, World
from tests.storages import Storage, s3_server


@pytest.fixture(scope="session")
def s3_storage() -> Iterator[Storage]:
    """One S3 server for all pages: Airflow keeps a connection's filesystem as long as the process lives."""
    with s3_server() as storage:
        yield storage


@pytest.fixture
def dags(airflow_home: str, airflow_database: Path) -> Iterator[Path]:  # noqa: F811
    """The folder of DAGs of an empty Airflow; its database is restored afterwards."""
    folder = Path(airflow_home, "dags")
    folder.mkdir()
    with (
        closing(sqlite3.connect(":memory:")) as before,
        closing(sqlite3.connect(f"{airflow_home}/airflow.db")) as now,
        closing(sqlite3.connect(airflow_database)) as empty,
    ):
        now.backup(before)
        empty.backup(now)
        yield folder
        before.backup(now)
    shutil.rmtree(folder)


@pytest.fixture
def run_page(
    s3: Storage,  # noqa: F811
    dags: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Path], None]]:
    """Runs the blocks of a page in a world of its own, which ends with the test."""
    worlds = []

    def run_page(page: Path) -> None:
        if STARTS_SANDBOX.search(page.read_text()):
            names = {}
            port = free_port()
        else:
            sandbox = request.getfixturevalue("sandbox")
            credentials = {"access_token": sandbox.access_token, "refresh_token": sandbox.refresh_token}
            request.getfixturevalue("set_connection")(
                extra=credentials | {"datahub_api_key": sandbox.datahub_api_key}
            )
            names = {"sandbox": sandbox}
            port = int(sandbox.url.rpartition(":")[2])
        world = World(tmp_path, dags, port, **names)
        worlds.append(world)
        world.run(page)

    monkeypatch.chdir(tmp_path)
    with patch.dict(os.environ):
        # successive processes share tokens through the default store
        del os.environ["AIRFLOW__WEBCOLLECT__TOKEN_STORE"]
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ |= {
            "AIRFLOW_CONN_AWS_DEFAULT": s3.as_connection(),
            "HOME": str(tmp_path),
            # otherwise root has one folder for all tests, which keeps the pipelines of killed tests
            "DLT_DATA_DIR": str(tmp_path / "dlt"),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            # what a page installs is installed already
            "PIP_NO_INDEX": "1",
        }
        yield run_page
        for world in worlds:
            world.close()
