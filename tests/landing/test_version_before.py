"""A folder that version 0.1 has landed, and in which it was killed, is continued."""

from __future__ import annotations

import shutil
from pathlib import Path

import fsspec
import pytest

from airflow_provider_webcollect.landing.run import land
from tests.landing.conftest import Folder
from tests.landing.pages import Rows, job, true_rows

#: Run r1 has landed 10 rows; run r2 was killed when it had recorded 5 more, as its part shows.
LANDED = Path(__file__).with_name("landed_by_0_1")


@pytest.mark.parametrize("run", ["r2", "r3"], ids=["a retry", "the next run"])
def test_a_folder_of_the_version_before_is_continued(tmp_path: Path, run: str) -> None:
    shutil.copytree(LANDED, tmp_path / "landing")
    folder = Folder(fsspec.filesystem("file"), str(tmp_path / "landing"))
    before = folder.manifest()["parts"]
    (recorded,) = folder.record().parts[len(before) :]
    manifest = land(job(Rows(20), folder.destination, run, mode="incremental")).manifest
    assert [part.name for part in manifest.parts[:3]] == [*(part["name"] for part in before), recorded.name]
    assert folder.rows() == true_rows(20)
    assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}


def test_a_commit_of_the_version_before_stands_for_its_run(tmp_path: Path) -> None:
    shutil.copytree(LANDED, tmp_path / "landing")
    folder = Folder(fsspec.filesystem("file"), str(tmp_path / "landing"))
    before = folder.names()
    assert land(job(Rows(20), folder.destination, "r1", mode="incremental")).manifest.rows == 10
    assert folder.names() == before
