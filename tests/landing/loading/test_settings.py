"""dlt's settings in a worker's environment and working directory: they have no effect on loads."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlt
import pytest
from dlt.common.configuration.container import Container
from dlt.common.configuration.specs import BaseConfiguration, PluggableRunContext

from airflow_provider_webcollect.landing.errors import LoadFailed
from airflow_provider_webcollect.landing.options import LoadOptions
from airflow_provider_webcollect.landing.read import loading
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.loading.databases import Database, Landing, product, products

#: The settings that the documentation offers.
OFFERED = {"SCHEMA__NAMING", "RUNTIME__DLTHUB_TELEMETRY"}
#: Settings of a single part of dlt, which looks for them under longer names.
OF_PARTS = {
    *("PIPELINES__DEV_MODE", "PIPELINES__DATASET_NAME_LAYOUT"),
    *("NORMALIZE__PARQUET_NORMALIZER__ADD_DLT_ID", "DESTINATION__DUCKDB__CREDENTIALS__READ_ONLY"),
}


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have dlt look for its settings again, as in a process that has not used it yet."""
    # outside of loads, dlt sends no telemetry, and imports no Airflow
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    monkeypatch.setenv("PROVIDERS__ENABLE_AIRFLOW_SECRETS", "false")
    forget()
    yield
    forget()


def forget() -> None:
    with contextlib.suppress(KeyError):
        del Container()[PluggableRunContext]


def load_then_add_and_load(landing: Landing, database: Database) -> None:
    """Load some rows, then one more."""
    landing.land(*products(0, 3))
    assert landing.load(database) == 1
    landing.land(product(3))
    assert landing.load(database) == 1
    assert database.rows("url", "n") == [(row["url"], row["n"]) for row in landing.source]
    assert database.columns() == ["url", "n"]


@pytest.mark.parametrize("config", ["dev_mode = true", "this is no TOML"])
def test_dlt_settings_in_the_working_directory_steer_no_load(
    tmp_path: Path, landing: Landing, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    folder = tmp_path / ".dlt"
    folder.mkdir()
    (folder / "config.toml").write_text(config)
    (folder / "secrets.toml").write_text("[pipelines]\ndataset_name_layout = 'dev_%s'")
    (folder / ".workspace").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLT_LOCAL_DIR", str(tmp_path / "elsewhere"))
    load_then_add_and_load(landing, Database("duckdb", "shop.duckdb"))


def settings(spec: type[BaseConfiguration]) -> Iterator[str]:
    """Yield the environment variables of all settings that dlt declares."""
    own = f"{spec.__section__}__" if spec.__section__ else ""
    for field in spec.get_resolvable_fields():
        for section in ("", own, "CREDENTIALS__", "DESTINATION__CREDENTIALS__", "DATA_WRITER__"):
            yield f"{section}{field}".upper()
    for further in spec.__subclasses__():
        yield from settings(further)


def test_no_setting_that_dlt_has_steers_a_load(
    landing: Landing, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes settings that a later release of dlt adds."""
    importlib.import_module(f"dlt.destinations.impl.{database.kind}.configuration")
    variables = {*settings(BaseConfiguration)} - OFFERED | OF_PARTS
    assert {"DEV_MODE", "DATASET_NAME_LAYOUT", "CREDENTIALS__READ_ONLY", "WORKERS"} <= variables
    for variable in variables:
        monkeypatch.setenv(variable, "%s_other")
    load_then_add_and_load(landing, database)


def test_a_naming_convention_that_renames_the_table_is_refused(
    landing: Landing, in_duckdb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEMA__NAMING", "dlt.destinations.impl.weaviate.naming")
    landing.land(product(0))
    written = in_duckdb.table.title().replace("_", "")
    rule = f"'{in_duckdb.table}'; dlt would write {written} instead: check SCHEMA__NAMING"
    with pytest.raises(InvalidArgument, match=f"`table` is {rule}"):
        landing.load(in_duckdb)
    assert in_duckdb.query("from information_schema.schemata where schema_name ilike 'shop%'") == []


def test_an_unknown_naming_convention_is_refused(
    landing: Landing, in_duckdb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEMA__NAMING", "camel")
    landing.land(product(0))
    with pytest.raises(InvalidArgument, match="`SCHEMA__NAMING` is 'camel'; it must be one of dlt's naming"):
        landing.load(in_duckdb)


def test_dlt_has_its_own_settings_again_after_a_load(
    landing: Landing, in_duckdb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEV_MODE", "true")
    landing.land(product(0))
    assert dlt.config["dev_mode"] is True
    assert setting_in_load("dev_mode", landing, in_duckdb) is None
    assert dlt.config["dev_mode"] is True


def test_telemetry_is_off_unless_the_environment_turns_it_on(
    landing: Landing, in_duckdb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.land(product(0))
    monkeypatch.delenv("RUNTIME__DLTHUB_TELEMETRY")
    # dlt starts telemetry with the first load of a process or never, so nothing is sent
    assert setting_in_load("runtime.dlthub_telemetry", landing, in_duckdb) is False
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "true")
    assert setting_in_load("runtime.dlthub_telemetry", landing, in_duckdb) is True


def setting_in_load(name: str, landing: Landing, database: Database) -> Any:
    """Return a setting of dlt in a load, which then fails."""
    found: list[Any] = []

    def destination(**options: Any) -> Any:
        found.append(dlt.config.get(name))
        raise OSError

    with pytest.raises(LoadFailed):
        loading.load(landing.read(), LoadOptions(), database.table, destination)
    return found.pop()
