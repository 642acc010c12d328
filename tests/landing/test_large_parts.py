"""Parts of many megabytes: written in batches behind the reading, brought to the disk early, and whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.landing.conftest import Folder, Landed

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False, row_bytes=4000)


def test_a_large_part_arrives_whole(landing: Landed, folder: Folder, sandbox: Sandbox) -> None:
    task = sandbox.control.add_task(lots=[3000])["task_id"]
    (part,) = landing(task, size=1000).parts
    assert part.bytes > 10_000_000
    assert folder.rows() == sandbox.control.true_rows(task)


def test_a_part_ends_with_the_page_that_reaches_its_size(
    landing: Landed, folder: Folder, sandbox: Sandbox
) -> None:
    task = sandbox.control.add_task(lots=[3000])["task_id"]
    manifest = landing(task, size=100, max_part_bytes=5_000_000)
    assert len(manifest.parts) > 1
    assert all(0 <= part.bytes - 5_000_000 < 1_000_000 for part in manifest.parts[:-1])
    assert folder.rows() == sandbox.control.true_rows(task)
