"""Landings on Google Cloud Storage, as an emulator serves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.landing.object_store import LandingsOnAnObjectStore, LandingsThatGetKilled
from tests.landing.storages import Storage, running

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """A Google Cloud Storage server on loopback."""
    with running("gcs", tmp_path_factory.mktemp("gcs")) as server:
        yield server


class TestGoogleCloudStorage(LandingsOnAnObjectStore, LandingsThatGetKilled):
    module = "gcsfs.core"
