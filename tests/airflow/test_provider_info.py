"""What Airflow learns of the provider: its info, and the hook of its connection type."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
import yaml

import airflow_provider_webcollect
from airflow_provider_webcollect.get_provider_info import get_provider_info
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

HOOK = "airflow_provider_webcollect.hooks.webcollect.WebCollectHook"


def test_the_provider_info_is_plain() -> None:
    assert yaml.safe_load(yaml.safe_dump(get_provider_info())) == get_provider_info()


def test_the_modules_that_the_provider_info_names_hold_all_that_dags_may_use() -> None:
    info = get_provider_info()
    named = [
        module
        for kind in ("hooks", "operators", "sensors", "triggers")
        for entry in info[kind]
        for module in entry["python-modules"]
    ] + [entry["python-module"] for entry in info["transfers"]]
    offered = set().union(*(vars(importlib.import_module(module)) for module in named))
    offered |= {link.rpartition(".")[2] for link in info["extra-links"]}

    there = set()
    for kind in ("hooks", "operators", "sensors", "triggers", "transfers"):
        package = importlib.import_module(f"{airflow_provider_webcollect.__name__}.{kind}")
        for found in pkgutil.iter_modules(package.__path__):
            name = f"{package.__name__}.{found.name}"
            module = importlib.import_module(name)
            there |= {name for name, _ in inspect.getmembers(module, inspect.isclass)}
    ours = {name for name in there if name.startswith("WebCollect")}
    assert ours - offered <= {"WebCollectError", "WebCollectConnection", "WebCollectOperator"}
    assert len(ours & offered) >= 9
    for path in [HOOK, *info["extra-links"]]:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name)


# Airflow itself asks the older of its two managers
@pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")
def test_airflow_knows_the_connection_type_and_its_hook() -> None:
    from airflow.models import Connection
    from airflow.providers_manager import ProvidersManager

    assert (
        ProvidersManager().providers["airflow-provider-webcollect"].version
        == airflow_provider_webcollect.__version__
    )
    known = ProvidersManager().hooks["webcollect"]
    assert known is not None
    assert (known.hook_class_name, known.hook_name) == (HOOK, "Web Data Collection")
    assert known.connection_testable
    hook = Connection(conn_id="another", conn_type="webcollect", host="api.example.com").get_hook()
    assert isinstance(hook, WebCollectHook)
    assert hook.webcollect_conn_id == "another"
