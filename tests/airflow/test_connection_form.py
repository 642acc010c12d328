"""The connection form: the same fields on every Airflow, and Airflow takes them."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import types
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
import yaml
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

import airflow_provider_webcollect
from airflow_provider_webcollect.get_provider_info import get_provider_info
from airflow_provider_webcollect.hooks import form
from airflow_provider_webcollect.hooks.connection import Extras
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

AIRFLOW = Path(airflow.__file__).parent
SECRETS = {"refresh_token", "access_token", "api_key", "datahub_api_key"}
only_2 = pytest.mark.skipif(AIRFLOW_V_3_0_PLUS, reason="Airflow 3 comes without flask_appbuilder")
only_3 = pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="conn-fields came with Airflow 3.2")


def connection_type() -> dict[str, Any]:
    (found,) = get_provider_info()["connection-types"]
    return found


def test_the_form_has_every_extra_and_no_other() -> None:
    assert set(connection_type()["conn-fields"]) == set(Extras.__struct_fields__)


def test_secrets_are_password_fields() -> None:
    fields = connection_type()["conn-fields"]

    assert {name for name, field in fields.items() if field["schema"].get("format") == "password"} == SECRETS


def test_every_field_says_what_it_is_for() -> None:
    assert all(field["label"] and field["description"] for field in connection_type()["conn-fields"].values())


def test_every_default_fits_its_own_schema() -> None:
    for field in connection_type()["conn-fields"].values():
        jsonschema.Draft7Validator.check_schema(field["schema"])
        jsonschema.validate(field["schema"].get("default"), {"type": field["schema"]["type"]})


@only_3
def test_airflow_3_takes_the_metadata_of_the_form() -> None:
    schema = json.loads((AIRFLOW / "provider.yaml.schema.json").read_text())["properties"]["connection-types"]

    jsonschema.validate([connection_type()], schema)


@only_3
def test_airflow_3_shows_the_form() -> None:
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

    (shown,) = [m for m in HookMetaService.hook_meta_data() if m.connection_type == "webcollect"]

    assert set(shown.extra_fields or {}) == set(Extras.__struct_fields__)
    # it masks the default of a field whose name looks secret, and the form saves what it shows
    assert "***" not in {field["value"] for field in (shown.extra_fields or {}).values()}
    assert shown.standard_fields is not None
    assert shown.standard_fields.port is not None
    assert shown.standard_fields.port.hidden
    assert shown.standard_fields.host is not None
    assert shown.standard_fields.host.title == "Base URL"


@only_2
def test_airflow_2_shows_the_form() -> None:
    from airflow.providers_manager import ProvidersManager

    widgets = ProvidersManager().connection_form_widgets
    prefix = "extra__webcollect__"
    ours = {name.removeprefix(prefix): widget for name, widget in widgets.items() if name.startswith(prefix)}

    assert set(ours) == set(Extras.__struct_fields__)
    assert {name for name, widget in ours.items() if widget.is_sensitive} == SECRETS
    assert ProvidersManager().field_behaviours["webcollect"]["hidden_fields"] == ["schema", "port"]


@only_2
def test_the_widgets_take_what_the_form_suggests() -> None:
    from wtforms import Form

    entries = type("Entries", (Form,), WebCollectHook.get_connection_form_widgets())()

    assert entries.validate(), entries.errors
    assert entries.data["requests_per_second"] == "20"
    assert entries.data["api_key_everywhere"] is False


@only_2
def test_the_widgets_refuse_a_word_that_is_no_choice() -> None:
    from werkzeug.datastructures import MultiDict
    from wtforms import Form

    entry = type("Entries", (Form,), WebCollectHook.get_connection_form_widgets())
    assert not entry(MultiDict({"token_refresh": "sometimes"})).validate()
    assert entry(MultiDict({"token_refresh": "keeper"})).validate()


def test_the_hooks_behaviour_is_the_metadatas() -> None:
    schema = json.loads((AIRFLOW / "customized_form_field_behaviours.schema.json").read_text())
    behaviour = WebCollectHook.get_ui_field_behaviour()

    jsonschema.validate(behaviour, schema)
    assert {name.replace("_", "-"): value for name, value in behaviour.items()} == form.METADATA_BEHAVIOUR


HOOK = "airflow_provider_webcollect.hooks.webcollect.WebCollectHook"


def test_the_provider_info_is_what_airflow_expects() -> None:
    schema = json.loads((AIRFLOW / "provider_info.schema.json").read_text())

    jsonschema.validate(get_provider_info(), schema)
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
    offered |= {link.rpartition(".")[2] for link in info.get("extra-links", ())}

    there = set()
    for kind in ("hooks", "operators", "sensors", "triggers", "transfers"):
        package = importlib.import_module(f"{airflow_provider_webcollect.__name__}.{kind}")
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            there |= {name for name, _ in inspect.getmembers(module, inspect.isclass)}
    ours = {name for name in there if name.startswith("WebCollect")}
    assert ours - offered <= {"WebCollectError", "WebCollectConnection", "WebCollectOperator"}
    assert len(ours & offered) >= 9


def test_airflow_knows_the_connection_type_and_its_hook(monkeypatch: pytest.MonkeyPatch) -> None:
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


@only_3
def test_airflow_3_0_and_3_1_can_read_the_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    # they put stand-ins of their own, which the newest Airflow still has, in the place of flask_appbuilder
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService as Meta

    for name, content in {
        "flask_appbuilder": {},
        "flask_appbuilder.fieldwidgets": {
            "BS3TextFieldWidget": Meta.MockAnyWidget,
            "BS3PasswordFieldWidget": Meta.MockAnyWidget,
        },
        "wtforms": {
            "StringField": Meta.MockStringField,
            "PasswordField": Meta.MockPasswordField,
            "BooleanField": Meta.MockBooleanField,
        },
        "wtforms.validators": {"Optional": Meta.MockOptional, "any_of": Meta.MockEnum},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)

    shown = {name: w.param.dump() for name, w in WebCollectHook.get_connection_form_widgets().items()}

    assert set(shown) == set(Extras.__struct_fields__)
    assert {name for name, field in shown.items() if field["schema"].get("format") == "password"} == SECRETS
    assert shown["token_refresh"]["schema"]["enum"] == ["auto", "keeper"]
    assert shown["read_timeout"]["value"] == "60"
    assert {shown[name]["value"] for name in ("api_key_everywhere", "token_refresh")} == {None}
