"""Landings on object stores: S3, Azure Blob Storage and Google Cloud Storage, served by stand-ins."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import LandingDamaged
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.models import DataPage
from tests.landing.conftest import OTHER_RUN, SERVERS, Folder, Landed, listed
from tests.landing.pages import rows_of, widening
from tests.storages import Storage

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.parametrize("storage", SERVERS, indirect=True),
]


@pytest.fixture
def folder(storage: Storage) -> Folder:
    """A folder in a bucket that is not there yet."""
    return Folder.new(storage)


def test_every_row_lands_once_and_what_is_overwritten_stays_readable_until_the_new_rows_are_there(
    landing: Landed, folder: Folder, sandbox: Sandbox
) -> None:
    task = sandbox.control.add_task(rows=300, lots=2)["task_id"]
    landing(task)
    old = folder.rows()
    assert old == sandbox.control.true_rows(task)
    sandbox.control.grow(task, 50)

    def observed(pages: Iterator[DataPage]) -> Iterator[DataPage]:
        for each in pages:
            assert folder.rows() == old
            yield each

    manifest = landing(task, run=OTHER_RUN, if_exists="overwrite", read=observed, max_part_bytes=1)
    assert folder.rows() == sandbox.control.true_rows(task)
    assert folder.names() == folder.needed() | set(manifest.replaced)


@pytest.mark.by_day(3)
@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_it_is_read_back_and_its_leftovers_removed(landing: Landed, folder: Folder, file_format: str) -> None:
    pages = widening()
    chosen = make_format(file_format)
    landing("t", fetch=listed(pages), file_format=chosen, max_part_bytes=1, partition="dt=2026-01-01")
    leftover = "dt=2026-01-01/part-00001-0badcafe.jsonl"
    folder.write(leftover, b"x")
    before = clean(folder.location, older_than=3600)
    with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)):
        after = clean(folder.location, older_than=3600)
    assert ([*before], [(file.name, file.bytes) for file in after]) == ([], [(leftover, 1)])
    landed = read_landing(folder.location)
    landed.verify()
    whole = dict.fromkeys(landed.manifest.columns or rows_of(pages)[-1])
    assert landed.to_arrow().to_pylist() == [{**whole, **row} for row in rows_of(pages)]
    folder.fs.rm_file(f"{folder.root}/{landed.manifest.parts[0].name}")
    with pytest.raises(LandingDamaged, match=f"{landed.manifest.parts[0].name} is missing"):
        landed.verify()
