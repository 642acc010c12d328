"""What a run into a table on S3 costs, however many have landed: requests, and bytes that are sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_webcollect.landing.storage.object_stores import S3
from tests.conftest import ALL_HISTORIES
from tests.landing.relay import relayed
from tests.landing.storages import Storage
from tests.landing.tables import IcebergTable, Table, land, numbers, sql_catalog

pytestmark = pytest.mark.xdist_group("s3")

#: Runs that land, each of them ten rows: enough for several checkpoints.
MANY = 200 if ALL_HISTORIES else 31


#: Requests of a run. The catalog in SQLite reads and writes the metadata of a table of Iceberg itself.
MOST = 25


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.at_night)])
def test_a_run_sends_as_few_requests_at_any_age(
    storage_of: Callable[[str], Storage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with relayed(storage_of("s3")) as (storage, relay):
        table: Table = (
            Table(storage.fs, storage.new_folder())
            if kind == "delta"
            else IcebergTable(sql_catalog(tmp_path, storage), "shop.prices")
        )
        for run in range(1, MANY):
            relay.requests.clear()
            # in a process that knows nothing of the bucket
            monkeypatch.setattr(S3, "respects", {})
            land(table, 10 * run, f"r{run}", max_part_bytes=10**6)
            assert len(relay.requests) <= MOST, relay.requests
        small = [request.bytes for request in relay.requests if "/part-" not in request.path]
        if kind == "delta":
            assert sum(small) <= 10_000
        assert numbers(table) == list(range(10 * run))
