"""Landings on object stores: S3, Azure Blob Storage and Google Cloud Storage, served by stand-ins."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import LandingDamaged
from airflow_provider_webcollect.landing.formats import make_format
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


@pytest.mark.by_day(3)
@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_rows_are_readable_while_they_are_overwritten_are_read_back_and_leftovers_removed(
    landing: Landed, folder: Folder, file_format: str
) -> None:
    chosen = {"file_format": make_format(file_format), "max_part_bytes": 1, "partition": "dt=2026-01-01"}
    landing("t", fetch=listed(widening(3)), **chosen)
    old, replaced = folder.rows(), folder.parts()
    assert len(old) == 6

    def observed(pages: Iterator[DataPage]) -> Iterator[DataPage]:
        for page in pages:
            assert folder.rows() == old
            yield page

    rows = rows_of(widening())
    fetch = listed(widening())
    landing("t", fetch=fetch, run=OTHER_RUN, if_exists="overwrite", read=observed, **chosen)
    whole = dict.fromkeys(rows[-1])
    assert folder.landed().to_arrow().to_pylist() == [{**whole, **row} for row in rows]
    assert len(folder.rows()) == len(rows)
    assert folder.names() == folder.needed() | replaced
    leftover = "dt=2026-01-01/part-00001-0badcafe.jsonl"
    folder.write(leftover, b"x")
    assert clean(folder.location, older_than=3600) == ()
    with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)):
        removed = {file.name: file.bytes for file in clean(folder.location, older_than=3600)}
    assert {*removed} == replaced | {leftover}
    assert removed[leftover] == 1
    landed = folder.landed()
    landed.verify()
    folder.damage(landed.manifest.parts[0].name, None)
    with pytest.raises(LandingDamaged, match=f"{landed.manifest.parts[0].name} is missing"):
        landed.verify()
