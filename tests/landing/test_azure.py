"""Landings on Azure Blob Storage, as Azurite serves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.landing.object_store import LandingsOnAnObjectStore, LandingsThatGetKilled
from tests.landing.storages import Storage

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.xdist_group("azure")]


@pytest.fixture
def storage(storage_of: Callable[[str], Storage]) -> Storage:
    """An Azure server on loopback."""
    return storage_of("azure")


class TestAzure(LandingsOnAnObjectStore, LandingsThatGetKilled):
    module = "adlfs"
