"""An Airflow of these tests' own: it has to be told of its home before anything imports it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.sandbox import Sandbox

assert "airflow" not in sys.modules, "Airflow was imported before it was told of its home"
HOME = tempfile.TemporaryDirectory(prefix="webcollect-airflow-")
for _name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
    del os.environ[_name]
os.environ |= {
    "AIRFLOW_HOME": HOME.name,
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
}


@pytest.fixture(scope="session", autouse=True)
def airflow_home() -> Iterator[str]:
    """The folder that holds everything of this Airflow."""
    yield HOME.name
    HOME.cleanup()


@pytest.fixture(scope="session")
def airflow_database(airflow_home: str) -> None:
    """An empty metadata database."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def set_connection(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Defines an Airflow connection to the sandbox; ``fields`` and ``extra`` replace the usual values."""

    def set_connection(
        extra: dict[str, Any] | None = None, conn_id: str = "webcollect_default", **fields: Any
    ) -> None:
        usual = {"refresh_token": sandbox.refresh_token} if extra is None else extra
        connection = {"conn_type": "webcollect", "host": sandbox.url, "extra": usual, **fields}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))

    return set_connection
