"""The connection form of Airflow 2: created, edited and tested over HTTP, as its page does."""

from __future__ import annotations

import html
import json
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask.testing import FlaskClient

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database"),
    pytest.mark.skipif(not version("apache-airflow").startswith("2."), reason="Airflow 3 has another form"),
]
CONN_ID = "from_the_form"
PREFIX = "extra__webcollect__"
SECRETS = {
    "refresh_token": "secret-refresh",
    "access_token": "secret-access",
    "api_key": "secret-key",
    "datahub_api_key": "secret-datahub",
}


@pytest.fixture(scope="module")
def web(airflow_database: None) -> Iterator[FlaskClient]:
    """A browser at Airflow's web application, logged in as an administrator."""
    from airflow.www.app import create_app

    app = create_app(config={"WTF_CSRF_ENABLED": False}, testing=True)
    security = app.appbuilder.sm
    security.add_user("ann", "Ann", "Admin", "ann@example.com", security.find_role("Admin"), password="ann")
    with app.test_client() as client:
        assert client.post("/login/", data={"username": "ann", "password": "ann"}).status_code == 302
        yield client


@pytest.fixture(autouse=True)
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
    """The page of the form for the connection, as Airflow shows it now."""
    return web.get(f"/connection/edit/{stored().id}").get_data(as_text=True)


def fields(page: str) -> dict[str, str]:
    """What a browser sends of a page's form: each text, and each ticked box."""
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
    assert extra is not None
    return {"conn_type": "webcollect", **sent, "extra": html.unescape(extra[1]).strip()}


def save(web: FlaskClient, where: str, data: dict[str, str]) -> None:
    answer = web.post(where, data=data)
    assert answer.status_code == 302, answer.get_data(as_text=True)


def create(web: FlaskClient, **extras: str) -> None:
    blank = fields(web.get("/connection/add").get_data(as_text=True))
    typed = {f"{PREFIX}{name}": value for name, value in extras.items()}
    save(web, "/connection/add", {**blank, "conn_id": CONN_ID, "host": "api.example.com", **typed})


def test_a_new_connection_holds_what_was_typed(web: FlaskClient) -> None:
    create(web, **SECRETS)

    assert stored().extra_dejson.items() >= SECRETS.items()


def test_secrets_stay_when_a_connection_is_edited(web: FlaskClient) -> None:
    create(web, **SECRETS)
    page = edit_page(web)
    save(web, f"/connection/edit/{stored().id}", {**fields(page), "host": "other.example.com"})

    assert stored().host == "other.example.com"
    assert stored().extra_dejson.items() >= SECRETS.items()
    assert not any(secret in page for secret in SECRETS.values())


def test_one_secret_can_be_replaced_and_another_removed(web: FlaskClient) -> None:
    create(web, **SECRETS)
    changes = {f"{PREFIX}api_key": "another-key", f"{PREFIX}access_token": ""}
    save(web, f"/connection/edit/{stored().id}", {**fields(edit_page(web)), **changes})

    kept = {name: value for name, value in SECRETS.items() if name != "access_token"}
    assert stored().extra_dejson.items() >= {**kept, "api_key": "another-key"}.items()
    assert "access_token" not in stored().extra_dejson


def test_a_new_secret_stays_in_a_form_that_is_shown_again_for_an_error(web: FlaskClient) -> None:
    create(web, **SECRETS)
    wrong = {f"{PREFIX}api_key": "another-key", f"{PREFIX}token_refresh": "sometimes"}
    where = f"/connection/edit/{stored().id}"
    shown_again = fields(web.post(where, data={**fields(edit_page(web)), **wrong}).get_data(as_text=True))
    save(web, where, {**shown_again, f"{PREFIX}token_refresh": "auto"})

    assert stored().extra_dejson.items() >= {**SECRETS, "api_key": "another-key"}.items()


@pytest.mark.parametrize(
    ("value", "ticked"), [(True, True), ("true", True), (False, False), ("false", False)]
)
def test_a_box_is_ticked_if_the_value_means_true(web: FlaskClient, value: Any, ticked: bool) -> None:
    from airflow.utils.session import create_session

    create(web)
    with create_session() as session:
        session.merge(stored()).set_extra(json.dumps({"api_key_everywhere": value}))

    assert (f"{PREFIX}api_key_everywhere" in fields(edit_page(web))) is ticked


class TestTest:
    """The button *Test*: its script sends every field that is not empty, each extra under two names."""

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
        return answer.json["status"], answer.json["message"]

    @pytest.mark.beyond_the_contract
    def test_it_passes_with_a_ticked_box(self, web: FlaskClient, sandbox: Sandbox) -> None:
        sandbox.control.configure(api_key_everywhere=True)
        form = fields(web.get("/connection/add").get_data(as_text=True)) | {"host": sandbox.url}
        typed = {f"{PREFIX}api_key": sandbox.api_key, f"{PREFIX}api_key_everywhere": "y"}

        assert self.press(web, {**form, **typed}) == (True, "Connected; 0 tasks are extracting, 0 waiting.")

    def test_it_says_which_secrets_the_form_did_not_send(self, web: FlaskClient, sandbox: Sandbox) -> None:
        create(web, refresh_token="secret-refresh")
        passed, said = self.press(web, {**fields(edit_page(web)), "host": sandbox.url})

        assert not passed
        assert "the connection has no credential" in said
        assert "only its mask of what is stored for refresh_token" in said
