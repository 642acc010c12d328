"""A load that another one meets."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_webcollect.landing.options import LoadOptions
from airflow_provider_webcollect.landing.read import loading
from tests.landing.loading.databases import Database, Landing, as_rows, products
from tests.landing.loading.loader import FAILED
from tests.simulation.forks import running


def load_twice(landing: Landing, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zombie's load beside that of its retry, as seen while it reads rows, and before it writes any."""
    landing.land(*products(0, 7))
    landed, ended = landing.read(), []
    order = landing.order(database, at=0, kill=False)
    tables_of = landed.tables_of

    def meanwhile(part: Any) -> Any:
        ended.append(loader.run(order))
        return tables_of(part)

    monkeypatch.setattr(landed, "tables_of", meanwhile)
    with running("tests.landing.loading.loader") as loader:
        loading.load(landed, LoadOptions(), database.table, database.destination)
        ended.append(loader.run(order))
    assert ended == [FAILED, FAILED, 0]
    assert database.rows("url", "n") == as_rows(landing.source)
