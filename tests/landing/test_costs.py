"""What one more run costs on S3, in a folder or a table, however many have landed: requests, and bytes."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.formats import FormatName
from airflow_provider_webcollect.landing.storage.object_stores import S3
from airflow_provider_webcollect.landing.write import staging
from tests.interruption import PATIENCE
from tests.landing.costs import EACH, Landing, Runs, rows_of
from tests.landing.tables import IcebergTable, Table, land, numbers, sql_catalog
from tests.simulation.relay import relayed
from tests.simulation.samples import ALL_HISTORIES
from tests.storages import Storage

Grown = Callable[[int, FormatName], Landing]
pytestmark = pytest.mark.xdist_group("s3")

#: Numbers of runs that have landed before: enough to show a cost that grows with them.
COUNTS = (10, 1000, 10_000) if ALL_HISTORIES else (10, 50)


@pytest.fixture(autouse=True)
def in_no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what other tests know about buckets; let nothing be staged, however slow the machine is."""
    monkeypatch.setattr(S3, "respects", {})
    monkeypatch.setattr(staging, "INTERVAL", PATIENCE)


@pytest.fixture(scope="module")
def grown(storage_of: Callable[[str], Storage]) -> Grown:
    """A function that returns a landing of that many runs, and of those that other tests have added."""
    return functools.cache(lambda runs, file_format: Landing(storage_of("s3"), Runs(runs, file_format)))


@pytest.mark.by_day(1)
@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
@pytest.mark.parametrize("runs", COUNTS)
class TestOneMoreRun:
    def test_new_rows_cost_ten_requests(self, grown: Grown, runs: int, file_format: FormatName) -> None:
        landing = grown(runs, file_format)
        bill = landing.land(rows_of(landing.runs))
        [part] = bill.landed.new
        assert part.rows == EACH
        assert bill.parts == [f"PUT {part.name}"]
        assert len(bill.requests) <= 10, bill.requests
        assert bill.bytes <= 4096

    def test_nothing_new_costs_four_requests(self, grown: Grown, runs: int, file_format: FormatName) -> None:
        bill = grown(runs, file_format).land([])
        assert bill.landed.new == ()
        assert bill.parts == []
        assert len(bill.requests) <= 4, bill.requests
        assert bill.bytes == 0
        assert all(request.startswith("GET ") for request in bill.requests)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_a_run_leaves_a_whole_landing(storage_of: Callable[[str], Storage], file_format: FormatName) -> None:
    """Confirm that the files prepared for these tests have the form that landings write."""
    landing = Landing(storage_of("s3"), Runs(10, file_format))
    before = landing.folder.manifest()
    landing.land(rows_of(10))
    after = landing.folder.manifest()
    assert {*before} == {*after}
    assert {*before["parts"][0]} == {*after["parts"][-1]}
    assert after["rows"] == len(landing.rows) == sum(part["rows"] for part in after["parts"])
    first, *_, last = landing.folder.commits()
    assert {*first} <= {*last}
    assert {*first["parts"][0]} == {*last["parts"][0]}
    assert first["parts"][0]["profile"] == last["parts"][0]["profile"]
    if file_format == "jsonl":
        assert landing.folder.rows() == landing.rows


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("file_format", "most"), [("jsonl", 195), ("csv", 205)])
def test_a_manifest_has_some_200_bytes_a_part(file_format: FormatName, most: int) -> None:
    """Of these, 76 are for the digest and, in CSV, 12 for the number of columns."""
    content = Runs(1000, file_format).files()[MANIFEST]
    entries = [line for line in content.splitlines() if line.startswith(b'{"name"')]
    assert len(entries) == 1000
    assert sum(map(len, entries)) <= most * 1000, entries[-1]
    # nearly all of the rest are the records of the last thirty runs
    assert len(content) - sum(map(len, entries)) <= 12_000


#: Runs below this number land ten rows each: enough for several checkpoints.
MANY = 200 if ALL_HISTORIES else 21


#: Maximum requests of a run. With a catalog in SQLite, they include those for an Iceberg table's metadata.
MOST = 25


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.at_night)])
def test_a_run_sends_as_few_requests_at_any_age(
    storage_of: Callable[[str], Storage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with relayed(storage_of("s3")) as (storage, relay):
        table = Table.new(storage)
        if kind == "iceberg":
            table = IcebergTable(sql_catalog(tmp_path, storage), "shop.prices")
        for run in range(1, MANY):
            relay.requests.clear()
            # as in a process that knows nothing of the bucket
            monkeypatch.setattr(S3, "respects", {})
            began = datetime.datetime.now(datetime.UTC)
            land(table, 10 * run, f"r{run}", max_part_bytes=10**6, run_began=began)
            assert len(relay.requests) <= MOST, relay.requests
        small = [request.bytes for request in relay.requests if "/part-" not in request.path]
        if kind == "delta":
            assert sum(small) <= 10_000
        assert numbers(table) == list(range(10 * run))
