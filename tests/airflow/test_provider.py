"""The provider's metadata in Airflow, what operators and sensors declare, and what imports cost."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

import airflow_provider_webcollect
from airflow_provider_webcollect.get_provider_info import get_provider_info
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.links import WebCollectTaskLink

PACKAGE = "airflow_provider_webcollect"
HOOK = f"{PACKAGE}.hooks.webcollect.WebCollectHook"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
NAMES = [name for name in dir(airflow_provider_webcollect) if name.endswith(("Operator", "Sensor"))]
KINDS = ("hooks", "operators", "sensors", "triggers", "transfers")
PAGES = "".join(page.read_text() for page in sorted((REFERENCE / "api").glob("*.md")))
#: The modules and names that the reference describes: import paths that stay.
DESCRIBED = re.findall(r"auto(?:class|function):: ([\w.]+)\.(\w+)$", PAGES, re.MULTILINE)
#: Functions that Airflow calls, not DAGs.
FOR_AIRFLOW = {"convert_asset_to_openlineage", "sanitize_uri"}
#: Arguments that a base class describes: they matter only if an outcome can be unknown.
IN_BASES = {"retry_unknown_outcome"}
OF_PROVIDERS_THAT_TESTS_DO_NOT_INSTALL = {
    *("Google BigQuery", "Google Cloud Storage (GCS)", "Microsoft Azure Blob Storage", "Snowflake"),
    # not installed with Airflow 2.11
    *("Iceberg", "PostgreSQL"),
}
WITHOUT_THE_SERVICE = {
    "WebCollectAcceptLandingOperator",
    "WebCollectCleanLandingOperator",
    "WebCollectLoadOperator",
    "WebCollectVerifyLandingOperator",
}
#: Arguments that are lists or objects, in addition to ids and names.
MANY = {"actions", "after", "columns", "column_types", "loop_items", "sources", "urls"}


def named_modules(*kinds: str) -> list[str]:
    """Return the modules that the provider info names for kinds such as hooks and operators."""
    entries = [entry for kind in kinds for entry in get_provider_info()[kind]]
    return [name for entry in entries for name in entry.get("python-modules") or [entry["python-module"]]]


def test_the_provider_info_names_every_public_module() -> None:
    links = get_provider_info()["extra-links"]
    offered = set().union(*(vars(importlib.import_module(module)) for module in named_modules(*KINDS)))
    offered |= {link.rpartition(".")[2] for link in links}

    there = set()
    for kind in KINDS:
        package = importlib.import_module(f"{PACKAGE}.{kind}")
        for module_info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{module_info.name}")
            there |= {name for name, _ in inspect.getmembers(module, inspect.isclass)}
    ours = {name for name in there if name.startswith("WebCollect")}
    assert ours - offered <= {"WebCollectError", "WebCollectConnection", "WebCollectOperator"}
    assert len(ours & offered) >= 9
    for path in [HOOK, *links]:
        module_name, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module_name), name)


# Airflow itself uses the older of its two managers
@pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")
def test_airflow_knows_the_connection_type_and_its_hook() -> None:
    from airflow.models import Connection
    from airflow.providers_manager import ProvidersManager

    assert (
        ProvidersManager().providers["airflow-provider-webcollect"].version
        == airflow_provider_webcollect.__version__
    )
    hook_info = ProvidersManager().hooks["webcollect"]
    assert hook_info is not None
    assert (hook_info.hook_class_name, hook_info.hook_name) == (HOOK, "Web Data Collection")
    assert hook_info.connection_testable
    hook = Connection(conn_id="another", conn_type="webcollect", host="api.example.com").get_hook()
    assert isinstance(hook, WebCollectHook)
    assert hook.webcollect_conn_id == "another"


def test_both_ends_of_a_transfer_are_declared_integrations() -> None:
    from airflow.providers_manager import ProvidersManager

    installed = [provider.data for provider in ProvidersManager().providers.values()]
    declared = {entry["integration-name"] for data in installed for entry in data.get("integrations", ())}
    transfers = get_provider_info()["transfers"]
    ends = {transfer[f"{end}-integration-name"] for transfer in transfers for end in ("source", "target")}
    assert ends - declared <= OF_PROVIDERS_THAT_TESTS_DO_NOT_INSTALL
    folders = {transfer["target-integration-name"] for transfer in transfers if "to_object" in str(transfer)}
    assert {name for name in folders if re.search(r"S3|GCS|Azure", name)} == {
        "Amazon Simple Storage Service (S3)",
        "Google Cloud Storage (GCS)",
        "Microsoft Azure Blob Storage",
    }


@pytest.mark.at_night
def test_the_plugin_is_loaded_once() -> None:
    # Airflow 3 reports a plugin that it finds a second time as an import error
    environment = {**os.environ, "AIRFLOW__CORE__LAZY_DISCOVER_PROVIDERS": "False"}
    done = subprocess.run(
        [sys.executable, "-c", PLUGINS], capture_output=True, text=True, check=True, env=environment
    )
    names, problems = json.loads(done.stdout.splitlines()[-1])
    assert names.count("webcollect") == 1
    assert "webcollect" not in problems


def arguments(cls: type[Any]) -> Iterator[str]:
    """Yield the names of the arguments that this package adds to Airflow's."""
    for base in cls.__mro__:
        if base.__module__.startswith(f"{PACKAGE}.") and "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            yield from (argument.name for argument in parameters if argument.kind is argument.KEYWORD_ONLY)


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_is_complete(name: str) -> None:
    cls = getattr(airflow_provider_webcollect, name)
    text = " ".join((inspect.getdoc(cls) or "").split())
    described = {match[1]: match[2] for match in re.finditer(r":param (\w+): (.*?)(?= :\w+ \w+:|$)", text)}

    assert described.keys() | IN_BASES == set(arguments(cls)) | IN_BASES
    templated = {argument for argument, meaning in described.items() if "(templated)" in meaning}
    # `timeout` is a template field only because Airflow stores these, for the page; it is no template
    assert templated == set(cls.template_fields) - {"timeout"}
    assert ":raises AirflowFailException:" in text
    assert " Returns " in text
    assert bool(re.search(r"\(contract\.md, endpoint", text)) == (name not in WITHOUT_THE_SERVICE)


@pytest.mark.parametrize("name", NAMES)
def test_lists_are_shown_as_json_and_tasks_linked(name: str) -> None:
    cls = getattr(airflow_provider_webcollect, name)
    many = {field for field in cls.template_fields if field in MANY or field.endswith(("_ids", "_names"))}
    assert many <= set(cls.template_fields_renderers)

    linked = any(isinstance(link, WebCollectTaskLink) for link in cls.operator_extra_links)
    assert linked == ("collection_task_id" in cls.template_fields)


def test_the_reference_lists_and_describes_each_once() -> None:
    listed = re.findall(r"^- (`WebCollect[^:]*):", (REFERENCE / "operators.md").read_text(), re.MULTILINE)
    described = [name for _, name in DESCRIBED if re.fullmatch(r"WebCollect\w*(Operator|Sensor)", name)]
    assert sorted(re.findall(r"WebCollect\w+", "".join(listed))) == sorted(NAMES)
    bases = ["WebCollectOperator", "WebCollectTaskOperator"]
    assert sorted(described) == sorted([*NAMES, *bases])


PLUGINS = """
import json
from airflow import plugins_manager as manager
names = [plugin["name"] for plugin in manager.get_plugin_info(["name"])]
problems = manager.get_import_errors() if hasattr(manager, "get_import_errors") else manager.import_errors
print(json.dumps([names, str(problems)]))
"""

HEAVY = (
    *("requests", "httpx", "pyarrow", "deltalake", "dlt", "fastapi", "starlette", "uvicorn", "fsspec"),
    *("flask_appbuilder", "wtforms"),
)

#: The modules that DAG files import.
FOR_DAGS = [*named_modules("operators", "sensors", "transfers"), f"{PACKAGE}.task_group"]
#: The modules that are imported only when work begins.
MACHINERY = {
    *(
        "hooks.connection",
        "hooks.token_store",
        "landing.formats.writing",
        "landing.write.run",
        "landing.write.job",
    ),
    *("landing.storage", "landing.storage.folder", "landing.tables.delta", "landing.tables.table"),
    *("service.call", "service.client", "service.pages", "service.tokens", "waiting.poll"),
}

IMPORT = """
import importlib, json, os, sys
import airflow.{sdk}, airflow.providers.common.compat.sdk as sdk
from airflow.{triggers} import BaseTrigger
for name in {used}:
    getattr(sdk, name)
def new(modules):
    before = set(sys.modules)
    for module in modules:
        importlib.import_module(module)
    return sorted(set(sys.modules) - before)
for_dags = new({for_dags})
# one import hides what the other would need
if child := os.fork():
    os.waitpid(child, 0)
    new({worker})
    print("new:", json.dumps(new({plugin})))
else:
    print("new:", json.dumps([for_dags, new({look})]), flush=True)
"""


@pytest.fixture(scope="module")
def imported() -> SimpleNamespace:
    """The modules that a process imports in addition to those that DAG authors import anyway.

    ``for_dags``: by DAG files. After them, ``look``: when Airflow reads the provider's metadata; ``plugin``:
    when the process of a task loads the plugin.
    """
    code = IMPORT.format(
        sdk="sdk" if AIRFLOW_V_3_0_PLUS else "models.dag",
        triggers="triggers.base",
        used=("BaseOperator", "BaseSensorOperator", "BaseHook", "conf", "Variable"),
        for_dags=FOR_DAGS,
        worker=["airflow.plugins_manager"],
        plugin=[f"{PACKAGE}.ui"],
        look=[f"{PACKAGE}.{name}" for name in ("get_provider_info", "hooks.webcollect", "ui")],
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # the output also has Airflow's log
    said = [line.removeprefix("new:") for line in done.stdout.splitlines() if line.startswith("new:")]
    (dags, look), plugin = map(json.loads, said)
    return SimpleNamespace(for_dags=dags, look=look, plugin=plugin)


def test_dags_import_little_of_the_provider(imported: SimpleNamespace) -> None:
    # the imported modules decide the cost; seconds would depend on the machine's load
    packages = {name.partition(".")[0] for name in imported.for_dags}
    assert packages - sys.stdlib_module_names <= {"airflow", PACKAGE, "msgspec"}
    prefix = f"{PACKAGE}."
    own = {name.removeprefix(prefix) for name in imported.for_dags if name.startswith(prefix)}
    assert len(own) <= 38
    assert own.isdisjoint(MACHINERY)


def test_what_dags_use_can_be_imported_from_the_package_itself() -> None:
    used = {name for module in FOR_DAGS for name in vars(importlib.import_module(module))}
    ours = {name for name in used if name.startswith("WebCollect") and name.endswith(("Operator", "Sensor"))}
    bases = {"WebCollectOperator", "WebCollectTaskOperator"}

    assert ours - bases <= {*dir(airflow_provider_webcollect)}
    assert bases.isdisjoint(dir(airflow_provider_webcollect))
    assert len(NAMES) >= 24
    others = {"WebCollectHook", "WebCollectTaskFinishedTrigger", "read_landing", "create_asset"}
    assert others <= {*dir(airflow_provider_webcollect)}
    for name in dir(airflow_provider_webcollect):
        assert getattr(airflow_provider_webcollect, name) is not None
    with pytest.raises(ImportError, match="WebCollectNothing"):
        from airflow_provider_webcollect import WebCollectNothing  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize(
    "module", [*named_modules(*KINDS), f"{PACKAGE}.assets", f"{PACKAGE}.landing.reader", PACKAGE]
)
def test_a_star_imports_exactly_what_the_reference_has(module: str) -> None:
    names: dict[str, Any] = {}
    exec(f"from {module} import *", names)
    del names["__builtins__"]

    assert names.keys() >= {name for place, name in DESCRIBED if place == module} - FOR_AIRFLOW
    assert {value.__module__.partition(".")[0] for value in names.values()} == {PACKAGE}


def test_airflows_own_look_at_the_provider_imports_nothing_heavy(imported: SimpleNamespace) -> None:
    new = [*imported.for_dags, *imported.look]
    assert [name for name in new if name.partition(".")[0] in HEAVY] == []
    # a task's process has imported the provider's operators when it loads the plugins, or will
    assert 1 <= len(imported.plugin) <= 5, imported.plugin


@pytest.mark.parametrize("module", [PACKAGE, f"{PACKAGE}.get_provider_info"])
def test_the_package_imports_the_standard_library_alone(module: str) -> None:
    code = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name.partition(".")[0] for name in new} == {PACKAGE}
    # the package itself imports none of its modules
    assert module != PACKAGE or new == {PACKAGE}
