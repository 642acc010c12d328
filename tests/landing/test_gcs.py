"""Landings on Google Cloud Storage, as an emulator serves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.landing.object_store import LandingsOnAnObjectStore, LandingsThatGetKilled
from tests.landing.storages import Storage, gcs_server

pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator", reason="needs gcp-storage-emulator")
pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    """A Google Cloud Storage server on loopback."""
    with gcs_server() as server:
        yield server


class TestGoogleCloudStorage(LandingsOnAnObjectStore, LandingsThatGetKilled):
    module = "gcsfs.core"
