"""Landings on Google Cloud Storage, as an emulator serves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.landing.object_store import LandingsOnAnObjectStore, LandingsThatGetKilled
from tests.landing.storages import Storage

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.xdist_group("gcs")]


@pytest.fixture
def storage(storage_of: Callable[[str], Storage]) -> Storage:
    """A Google Cloud Storage server on loopback."""
    return storage_of("gcs")


class TestGoogleCloudStorage(LandingsOnAnObjectStore, LandingsThatGetKilled):
    module = "gcsfs.core"
