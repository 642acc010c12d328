"""Landings on Azure Blob Storage, as Azurite serves it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.landing.object_store import LandingsOnAnObjectStore, LandingsThatGetKilled
from tests.landing.storages import Storage, azure_server

pytest.importorskip("adlfs")
pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.skipif(
        not Path(os.environ.get("WEBCOLLECT_AZURITE", "none")).is_file(),
        reason="WEBCOLLECT_AZURITE does not name Azurite's azurite-blob",
    ),
]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """An Azure server on loopback."""
    with azure_server(tmp_path_factory.mktemp("azurite")) as server:
        yield server


class TestAzure(LandingsOnAnObjectStore, LandingsThatGetKilled):
    module = "adlfs"
