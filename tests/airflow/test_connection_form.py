"""The connection form: the same fields on every Airflow; on Airflow 2, also requests as its page sends."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import airflow
import jsonschema
import pytest
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.get_provider_info import get_provider_info
from airflow_provider_webcollect.hooks.connection import WebCollectConnection
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.settings import Credentials, Settings

if TYPE_CHECKING:
    from flask.testing import FlaskClient

AIRFLOW = Path(airflow.__file__).parent
SECRETS = {name: f"secret-{name}" for name in ("refresh_token", "access_token", "api_key", "datahub_api_key")}
#: The attributes of a connection, except Airflow's own fields and those that no connection sets.
EXTRAS = {
    attribute.name
    for kind in (WebCollectConnection, Settings, Credentials)
    for attribute in dataclasses.fields(kind)
} - {
    *("conn_id", "base_url", "login", "password", "settings", "credentials"),
    *("masked", "origin", "retries", "timing"),
}
CONN_ID = "from_the_form"
PREFIX = "extra__webcollect__"
only_2 = pytest.mark.skipif(AIRFLOW_V_3_0_PLUS, reason="Airflow 3 comes without flask_appbuilder")
only_3 = pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="conn-fields came with Airflow 3.2")


def connection_type() -> dict[str, Any]:
    (info,) = get_provider_info()["connection-types"]
    return dict(info)


def test_the_form_describes_every_extra_and_hides_secrets() -> None:
    fields = connection_type()["conn-fields"]

    assert set(fields) == EXTRAS
    assert all(field["label"] and field["description"] for field in fields.values())
    schemas = {name: field["schema"] for name, field in fields.items()}
    assert {name for name, schema in schemas.items() if schema.get("format") == "password"} == SECRETS.keys()
    urls = {name for name, schema in schemas.items() if schema.get("format") == "url"}
    assert urls == {"task_url_template", "export_url_template"}
    assert (schemas["status_batch_size"]["minimum"], schemas["status_batch_size"]["maximum"]) == (1, 100)
    for schema in schemas.values():
        jsonschema.Draft7Validator.check_schema(schema)
        jsonschema.validate(schema.get("default"), {"type": schema["type"]})


@only_3
def test_airflow_3_takes_the_metadata_of_the_form() -> None:
    schema = json.loads((AIRFLOW / "provider.yaml.schema.json").read_text())["properties"]["connection-types"]
    jsonschema.validate([connection_type()], schema)


@only_3
def test_airflow_3_shows_the_form() -> None:
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

    (form,) = [m for m in HookMetaService.hook_meta_data() if m.connection_type == "webcollect"]

    shown, standard = form.extra_fields or {}, form.standard_fields
    assert set(shown) == EXTRAS
    # Airflow masks the default of a field whose name looks secret, and the form would save the mask
    assert "***" not in {field["value"] for field in shown.values()}
    assert standard and standard.port and standard.host  # noqa: PT018  # for the types
    assert standard.port.hidden
    assert standard.host.title == "Base URL"


@only_2
def test_airflow_2_shows_the_form() -> None:
    from airflow.providers_manager import ProvidersManager

    widgets = ProvidersManager().connection_form_widgets
    ours = {name.removeprefix(PREFIX): widget for name, widget in widgets.items() if name.startswith(PREFIX)}
    assert set(ours) == EXTRAS
    assert {name for name, widget in ours.items() if widget.is_sensitive} == SECRETS.keys()
    assert ProvidersManager().field_behaviours["webcollect"]["hidden_fields"] == ["schema", "port"]


@only_2
def test_the_widgets_take_defaults_and_refuse_unknown_choices() -> None:
    from werkzeug.datastructures import MultiDict
    from wtforms import Form

    entry = type("Entries", (Form,), WebCollectHook.get_connection_form_widgets())
    suggested = entry()
    assert suggested.validate(), suggested.errors
    assert suggested.data["requests_per_second"] == "20"
    assert suggested.data["api_key_everywhere"] is False
    assert not entry(MultiDict({"token_refresh": "sometimes"})).validate()
    assert entry(MultiDict({"token_refresh": "keeper"})).validate()


def test_the_hooks_behaviour_is_the_metadatas() -> None:
    schema = json.loads((AIRFLOW / "customized_form_field_behaviours.schema.json").read_text())
    behaviour = WebCollectHook.get_ui_field_behaviour()
    jsonschema.validate(behaviour, schema)
    assert {name.replace("_", "-"): value for name, value in behaviour.items()} == connection_type()[
        "ui-field-behaviour"
    ]


@only_3
def test_airflow_3_0_and_3_1_can_read_the_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    # they replace flask_appbuilder with stand-ins, which the newest Airflow still has
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService as Meta

    widgets = ("BS3TextFieldWidget", "BS3PasswordFieldWidget")
    stand_ins: dict[str, dict[str, Any]] = {
        "flask_appbuilder": {},
        "flask_appbuilder.fieldwidgets": dict.fromkeys(widgets, Meta.MockAnyWidget),
        "wtforms": {
            "StringField": Meta.MockStringField,
            "PasswordField": Meta.MockPasswordField,
            "BooleanField": Meta.MockBooleanField,
        },
        "wtforms.validators": {"Optional": Meta.MockOptional, "any_of": Meta.MockEnum},
    }
    for name, content in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)

    fields = {name: w.param.dump() for name, w in WebCollectHook.get_connection_form_widgets().items()}

    assert set(fields) == EXTRAS
    formats = {name: field["schema"].get("format") for name, field in fields.items()}
    assert {name for name, kind in formats.items() if kind == "password"} == SECRETS.keys()
    assert fields["token_refresh"]["schema"]["enum"] == ["auto", "keeper"]
    assert fields["read_timeout"]["value"] == "60"
    assert {fields[name]["value"] for name in ("api_key_everywhere", "token_refresh")} == {None}


@pytest.fixture(scope="module")
def web(airflow_database: None) -> Iterator[FlaskClient]:
    """A client of Airflow 2's web application, signed in as an administrator."""
    from airflow.www.app import create_app

    app = create_app(config={"WTF_CSRF_ENABLED": False}, testing=True)
    security = app.appbuilder.sm
    security.add_user("ann", "Ann", "Admin", "ann@example.com", security.find_role("Admin"), password="ann")
    with app.test_client() as client:
        assert client.post("/login/", data={"username": "ann", "password": "ann"}).status_code == 302
        yield client


@pytest.fixture
def no_connection(airflow_database: None) -> Iterator[None]:
    yield
    from airflow.models import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        session.query(Connection).filter_by(conn_id=CONN_ID).delete()


def stored() -> Any:
    from airflow.models import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        connection = session.query(Connection).filter_by(conn_id=CONN_ID).one()
        session.expunge(connection)
        return connection


def edit_page(web: FlaskClient) -> str:
    return web.get(f"/connection/edit/{stored().id}").get_data(as_text=True)


def fields(page: str) -> dict[str, str]:
    """Return the fields of a page's form that a browser sends: all texts, and ticked boxes."""
    inputs = (
        dict(re.findall(r'([\w-]+)="([^"]*)"', tag)) | {"checked": " checked" in tag}
        for tag in re.findall(r"<input[^>]*>", page)
    )
    sent = {
        field["name"]: html.unescape(field.get("value", ""))
        for field in inputs
        if "name" in field and (field.get("type") != "checkbox" or field["checked"])
    }
    extra = re.search(r'<textarea[^>]*id="extra"[^>]*>(.*?)</textarea>', page, re.DOTALL)
    assert extra
    return {"conn_type": "webcollect", **sent, "extra": html.unescape(extra[1]).strip()}


def save(web: FlaskClient, where: str, data: dict[str, str]) -> None:
    answer = web.post(where, data=data)
    assert answer.status_code == 302, answer.get_data(as_text=True)


def create(web: FlaskClient, **extras: str) -> None:
    blank = fields(web.get("/connection/add").get_data(as_text=True))
    typed = {f"{PREFIX}{name}": value for name, value in extras.items()}
    save(web, "/connection/add", {**blank, "conn_id": CONN_ID, "host": "api.example.com", **typed})


@only_2
@pytest.mark.usefixtures("no_connection")
class TestPageOfAirflow2:
    def test_secrets_that_nobody_edits_stay(self, web: FlaskClient) -> None:
        create(web, **SECRETS)
        page = edit_page(web)
        changes = {"host": "other", f"{PREFIX}api_key": "another-key", f"{PREFIX}access_token": ""}
        save(web, f"/connection/edit/{stored().id}", {**fields(page), **changes})
        kept = {**SECRETS, "api_key": "another-key"}
        del kept["access_token"]
        assert stored().host == "other"
        assert stored().extra_dejson.items() >= kept.items()
        assert "access_token" not in stored().extra_dejson
        assert not any(secret in page for secret in SECRETS.values())

    def test_a_new_secret_stays_in_a_form_with_an_error(self, web: FlaskClient) -> None:
        create(web, **SECRETS)
        wrong = {f"{PREFIX}api_key": "another-key", f"{PREFIX}token_refresh": "sometimes"}
        where = f"/connection/edit/{stored().id}"
        shown_again = fields(web.post(where, data={**fields(edit_page(web)), **wrong}).get_data(as_text=True))
        save(web, where, {**shown_again, f"{PREFIX}token_refresh": "auto"})
        assert stored().extra_dejson.items() >= {**SECRETS, "api_key": "another-key"}.items()

    @pytest.mark.parametrize(
        ("value", "ticked"), [(True, True), ("true", True), (False, False), ("false", False)]
    )
    def test_a_box_is_ticked_if_the_value_is_true(self, web: FlaskClient, value: Any, ticked: bool) -> None:
        from airflow.utils.session import create_session

        create(web)
        with create_session() as session:
            session.merge(stored()).set_extra(json.dumps({"api_key_everywhere": value}))
        assert (f"{PREFIX}api_key_everywhere" in fields(edit_page(web))) is ticked


@only_2
@pytest.mark.usefixtures("no_connection")
class TestButtonTest:
    """The script of the button *Test* sends every field that is not empty, each extra under two names."""

    @pytest.fixture(autouse=True)
    def enabled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__TEST_CONNECTION", "Enabled")

    def press(self, web: FlaskClient, form: dict[str, str]) -> tuple[bool, str]:
        extra = json.loads(form["extra"] or "{}")
        for name, value in form.items():
            if name.startswith(PREFIX) and value:
                extra |= {name: value, name.removeprefix(PREFIX): value}
        body = {"connection_id": CONN_ID, "conn_type": "webcollect", "host": form["host"]}
        answer = web.post("/api/v1/connections/test", json={**body, "extra": json.dumps(extra)})
        assert answer.status_code == 200, answer.get_data(as_text=True)
        said = answer.get_json()
        return said["status"], said["message"]

    def test_it_says_which_secrets_the_form_did_not_send(self, web: FlaskClient, sandbox: Sandbox) -> None:
        create(web, refresh_token="secret-refresh")
        passed, said = self.press(web, {**fields(edit_page(web)), "host": sandbox.url})
        assert not passed
        assert "the connection has no credential" in said
        assert "only a mask for refresh_token" in said
