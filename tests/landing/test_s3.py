"""Landings on S3, as moto serves it: streamed in bounded memory, and aborted when something fails."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.service.errors import ServiceFailure
from airflow_provider_webcollect.service.records import DataPage
from tests.landing.conftest import OTHER_RUN, Folder, Landed
from tests.landing.storages import Storage, s3_server
from tests.landing.test_formats_landed import from_offset, read, rows_of, widening

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytest.importorskip("moto", reason="needs moto[server] and s3fs")
pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@pytest.fixture(scope="module")
def s3() -> Iterator[Storage]:
    """An S3 server on loopback."""
    with s3_server() as storage:
        yield storage


@pytest.fixture
def folder(s3: Storage) -> Folder:
    """A folder in a bucket that is not there yet."""
    return Folder(s3.fs, s3.new_folder())


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 600 rows."""
    task_id: str = sandbox.control.add_task(rows=300, lots=2)["task_id"]
    return task_id


def big_pages(count: int) -> Iterator[DataPage]:
    """Pages of 1 MB."""
    for number in range(1, count + 1):
        rows = [msgspec.Raw(b'{"id":%d,"x":"%s"}' % (number, b"x" * 1000)) for _ in range(1000)]
        yield DataPage(
            offset=number * 1000, total=count * 1000, rest_total=(count - number) * 1000, rows=rows
        )


def uploads(folder: Folder) -> list[Any]:
    answer = folder.fs.call_s3("list_multipart_uploads", Bucket="landings")
    return list(answer.get("Uploads", []))


def test_every_row_lands_once_and_in_order(
    landing: Landed, folder: Folder, sandbox: Sandbox, task: str
) -> None:
    manifest = landing(task, max_part_bytes=40_000)
    assert folder.rows() == sandbox.control.true_rows(task)
    assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}


def test_a_part_larger_than_a_block_is_uploaded_in_pieces(landing: Landed, folder: Folder) -> None:
    manifest = landing("t", pages=lambda offset, rows: big_pages(20))
    (part,) = manifest.parts
    assert part.bytes > 2 * 8 * 1024 * 1024
    assert len(folder.read(part.name)) == part.bytes
    assert uploads(folder) == []


def test_an_upload_that_was_begun_is_aborted(landing: Landed, folder: Folder) -> None:
    def failing() -> Iterator[DataPage]:
        yield from big_pages(12)
        assert uploads(folder)
        raise ServiceFailure("in mid-read")

    with pytest.raises(ServiceFailure):
        landing("t", pages=lambda offset, rows: failing())
    gc.collect()
    assert uploads(folder) == []
    assert folder.names() == {"_progress.json"}


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_columns_that_appear_late_are_in_every_part(
    landing: Landed, folder: Folder, file_format: str
) -> None:
    pages = widening()
    chosen = make_format(file_format)
    manifest = landing(
        "t", pages=lambda offset, rows: from_offset(pages, offset), file_format=chosen, max_part_bytes=1
    )
    assert read(folder) == [{**dict.fromkeys(manifest.columns or ()), **row} for row in rows_of(pages)]
    assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}


def test_it_grows(landing: Landed, folder: Folder, sandbox: Sandbox, task: str) -> None:
    landing(task, mode="incremental")
    sandbox.control.grow(task, 50)
    landing(task, mode="incremental", run=OTHER_RUN)
    assert folder.rows() == sandbox.control.true_rows(task)
