"""Landings on S3, as moto serves it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.service.errors import ServiceFailure
from tests.landing.conftest import in_order
from tests.landing.object_store import LandingsOnAnObjectStore, big_pages
from tests.landing.storages import Storage

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.models import DataPage
    from tests.landing.conftest import Folder, Landed

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.xdist_group("s3")]


@pytest.fixture
def storage(storage_of: Callable[[str], Storage]) -> Storage:
    """An S3 server on loopback."""
    return storage_of("s3")


def uploads(folder: Folder) -> list[Any]:
    """Return the folder's unfinished uploads; moto keeps those of all tests of a process."""
    answer = folder.fs.call_s3("list_multipart_uploads", Bucket="landings")
    prefix = f"{folder.root.partition('/')[2]}/"
    return [each for each in answer.get("Uploads", []) if each["Key"].startswith(prefix)]


class TestS3(LandingsOnAnObjectStore):
    def test_an_upload_that_was_begun_is_aborted(self, landing: Landed, folder: Folder) -> None:
        def failing() -> Iterator[DataPage]:
            yield from itertools.islice(big_pages(20), 12)
            assert uploads(folder)
            raise ServiceFailure("in mid-read")

        with pytest.raises(ServiceFailure):
            landing("t", fetch=in_order(failing()))
        gc.collect()
        assert uploads(folder) == []
        assert folder.names() == set()
