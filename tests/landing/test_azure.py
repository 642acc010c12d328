"""Landings on Azure Blob Storage, as Azurite serves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.landing.object_store import LandingsOnAnObjectStore, LandingsThatGetKilled
from tests.landing.storages import Storage, running

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """An Azure server on loopback."""
    with running("azure", tmp_path_factory.mktemp("azurite")) as server:
        yield server


class TestAzure(LandingsOnAnObjectStore, LandingsThatGetKilled):
    module = "adlfs"
