"""Databases to load into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.landing.loading.databases import Database, Landing


@pytest.fixture
def in_duckdb(tmp_path: Path) -> Database:
    return Database("duckdb", str(tmp_path / "shop.duckdb"))


@pytest.fixture(params=["duckdb", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    if request.param == "duckdb":
        return request.getfixturevalue("in_duckdb")  # type: ignore[no-any-return]
    return Database("postgres", f"postgresql://{request.getfixturevalue('postgresql').address}")


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    """A landing in which nothing has landed yet."""
    return Landing(tmp_path)
