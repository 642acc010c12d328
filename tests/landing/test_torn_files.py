"""Storages that do not replace a file whole: a process that is killed leaves the beginning of it."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider_webcollect.landing.errors import DestinationUnreadable
from airflow_provider_webcollect.landing.manifest import MANIFEST, PROGRESS
from airflow_provider_webcollect.landing.run import run_job
from tests.interruption import Pauses
from tests.landing.cases import ALL, HALF
from tests.landing.conftest import Crash, Folder, Store
from tests.landing.pages import Rows, job, true_rows


@pytest.fixture
def folder() -> Folder:
    """A folder on a storage without conditions."""
    return Folder(Store(), "bucket/landing")


def killed_landing(folder: Folder) -> bytes:
    """Kill a landing that has written a part, and return its record."""

    def die(rows: int, total: int) -> None:
        if rows > HALF:
            raise Crash

    with pytest.raises(Crash):
        run_job(job(Rows(ALL), folder.destination, "a", on_progress=die))
    return folder.read(PROGRESS)


def test_a_torn_manifest_is_an_error_that_says_how_to_mend_it(folder: Folder) -> None:
    run_job(job(Rows(HALF), folder.destination, "a", mode="incremental"))
    torn = folder.read(MANIFEST)[:-1]
    folder.write(MANIFEST, torn)
    with pytest.raises(DestinationUnreadable, match="put back an older version of the file") as refusal:
        run_job(job(Rows(ALL), folder.destination, "b", mode="incremental"))
    assert refusal.value.permanent
    assert folder.read(MANIFEST) == torn
    folder.fs.rm_file(f"{folder.root}/{MANIFEST}")
    assert run_job(job(Rows(ALL), folder.destination, "b", mode="incremental")).manifest.rows == ALL
    assert folder.rows() == true_rows(ALL)


def test_a_torn_record_is_watched_before_it_is_taken_over(folder: Folder) -> None:
    folder.write(PROGRESS, killed_landing(folder)[:100])
    waits: list[float] = []
    run_job(dataclasses.replace(job(Rows(ALL), folder.destination, "b"), stop=Pauses(waits.append)))
    assert sum(waits) == 60
    assert folder.rows() == true_rows(ALL)


def test_rows_whose_report_a_torn_record_may_not_have_ended_are_reported_again(folder: Folder) -> None:
    run_job(job(Rows(HALF), folder.destination, "a", mode="incremental"), finish=False)
    folder.write(PROGRESS, folder.read(PROGRESS)[:100])
    landed = run_job(job(Rows(ALL), folder.destination, "b", mode="incremental"))
    assert landed.new == landed.manifest.parts
    assert PROGRESS not in folder.names()
