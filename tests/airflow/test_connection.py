"""The Airflow connection: its forms, what can be wrong with it, and that it stays secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_webcollect.hooks.connection import WebCollectConnection
from airflow_provider_webcollect.hooks.connection_fields import FIELDS
from airflow_provider_webcollect.hooks.token_store import make_token_store
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service.errors import ConnectionIncomplete, InvalidArgument, WebCollectError
from airflow_provider_webcollect.service.settings import Settings
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, StoredToken, TokenStore
from tests.airflow.executions import Connect

pytestmark = pytest.mark.usefixtures("airflow_database")
CONNECTED = "Connected; extracting tasks: 0, waiting tasks: 0."
UNTRIED = "The refresh token itself was not tried"
SECRET = "very-secret"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads a connection that is given as a URI, or by the fields of its JSON form."""

    def read(uri: str | None = None, **fields: Any) -> WebCollectConnection:
        written = uri or json.dumps({"conn_type": "webcollect", "host": "api.example.com", **fields})
        monkeypatch.setenv("AIRFLOW_CONN_WEBCOLLECT_DEFAULT", written)
        return WebCollectHook().connection

    return read


@pytest.mark.parametrize(
    ("fields", "base_url"),
    [
        *(
            ({"host": host}, "https://api.example.com")
            for host in ("api.example.com", "https://api.example.com", "https://api.example.com/")
        ),
        ({"host": " https://api.example.com/v1/ "}, "https://api.example.com/v1"),
        ({"host": "api.example.com/v1"}, "https://api.example.com/v1"),
        ({"host": "http://api.example.com"}, "http://api.example.com"),
        ({"host": "HTTPS://api.example.com/v1/"}, "https://api.example.com/v1"),
        ({"host": "api.example.com", "schema": "http"}, "http://api.example.com"),
        ({"host": "https://api.example.com", "schema": "http"}, "https://api.example.com"),
        ({"host": "api.example.com", "port": 8443}, "https://api.example.com:8443"),
        ({"host": "https://api.example.com/v1", "port": 8443}, "https://api.example.com:8443/v1"),
        ({"host": "api.example.com:8443", "port": 8443}, "https://api.example.com:8443"),
        ({"host": "http://[::1]", "port": 8443}, "http://[::1]:8443"),
        ({"host": "http://[::1]:9000"}, "http://[::1]:9000"),
    ],
)
def test_the_base_url_is_made_of_host_and_port(read: Any, fields: dict[str, Any], base_url: str) -> None:
    assert read(**fields).settings.base_url == base_url


@pytest.mark.parametrize("host", ["api.example.com:9000", "http://[::1]:9000/v1"])
def test_two_ports_of_one_host_are_refused(read: Any, host: str) -> None:
    with pytest.raises(InvalidArgument, match="`port` is 8443; the host has another port, 9000"):
        read(host=host, port=8443)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        *((host, "webcollect_default has no host: set it to") for host in (None, "", "  ")),
        ("https://api.example.com:abc", "base_url"),
        # the error leaves out the query, which may be a secret
        ("https://api.example.com/v1?api_key=very-secret", r"`base_url` is 'https://api\.example\.com/v1'"),
    ],
)
def test_a_host_that_is_no_base_url_is_refused(read: Any, host: str | None, said: str) -> None:
    with pytest.raises(WebCollectError, match=said) as refusal:
        read(host=host)
    assert isinstance(refusal.value, ConnectionIncomplete) == (not (host or "").strip())
    assert "very-secret" not in f"{refusal.value!r} {refusal.value}"


def test_a_path_behind_the_host_of_a_uri_is_refused(read: Any) -> None:
    with pytest.raises(InvalidArgument, match="`schema` is 'gateway/v2'; it must be http or https; a path"):
        read("webcollect://https://api.example.com/gateway/v2?access_token=x")
    encoded = read("webcollect://https%3A%2F%2Fapi.example.com%2Fgateway?access_token=x")
    assert encoded.settings.base_url == "https://api.example.com/gateway"


def test_white_space_around_a_login_is_left_out(read: Any) -> None:
    assert (
        read(login=" demo\n", password=" a b ").credentials
        == read(login="demo", password=" a b ").credentials
    )


@pytest.mark.parametrize("name", ["refresh_token", "access_token", "api_key", "datahub_api_key"])
def test_a_key_with_white_space_is_refused_and_not_shown(read: Any, name: str) -> None:
    for value in ("very secret", "very\nsecret", "very-söcret"):
        with pytest.raises(
            InvalidArgument, match=f"`extra {name}` is a string of 11 .*: copy it again"
        ) as refusal:
            read(extra={name: value})
        assert value not in f"{refusal.value!r} {refusal.value}"
    # in the query of a URI, a plus is a space
    with pytest.raises(InvalidArgument, match=r"write \+ as %2B"):
        read(f"webcollect://api.example.com/?{name}=ab+cd")


def test_a_uri_says_the_same_as_json(read: Any) -> None:
    extra = {"refresh_token": "a/token+&=?", "read_timeout": "30", "api_key_everywhere": "true"}
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in extra.items())
    from_uri = read(f"webcollect://someone:pass%40word@api.example.com:8443/?{query}")
    as_json = quote(json.dumps(extra), safe="")
    with_json = read(f"webcollect://someone:pass%40word@api.example.com:8443/?__extra__={as_json}")
    from_json = read(login="someone", password="pass@word", port=8443, extra=extra)

    assert from_uri == with_json == from_json
    assert from_uri.credentials.refresh_token == "a/token+&=?"
    assert from_uri.credentials.password == "pass@word"
    assert from_uri.settings.base_url == "https://api.example.com:8443"


MEANING_TRUE = [True, 1, "true", "True", "TRUE", "t", "yes", "y", "Y", "on", "1", " on "]
MEANING_FALSE = [False, 0, "false", "False", "f", "no", "n", "off", "OFF", "0", "", None]


@pytest.mark.parametrize(
    ("name", "spellings", "meaning"),
    [
        ("api_key_everywhere", MEANING_TRUE, True),
        ("api_key_everywhere", MEANING_FALSE, False),
        *((name, [50, 50.0, "50", "50.0", " 50 "], 50) for name in ("read_timeout", "status_batch_size")),
    ],
)
def test_values_are_read_in_any_spelling(read: Any, name: str, spellings: list[Any], meaning: Any) -> None:
    meant = read(extra={name: meaning})
    assert [read(extra={name: spelling}) for spelling in spellings] == [meant] * len(spellings)
    # of these meanings, only false is a default
    assert (meant == read(extra={})) is (meaning is False)


@pytest.mark.parametrize("value", ["", None, "***", "RATHER_LONG_SENSITIVE_FIELD_PLACEHOLDER", " *** "])
def test_what_is_empty_or_the_mask_of_a_secret_counts_as_not_set(
    read: Any, value: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    field = value and value.strip()
    extra = dict.fromkeys(("token_store", *(field.name for field in FIELDS)), value)
    with caplog.at_level(logging.WARNING):
        connection = read(extra=extra, login=field, password=field)

    assert connection == read(extra={}) == read(extra="null")
    assert not connection.credentials.can_get_tokens
    assert [name in caplog.text for name in ("refresh_token", "password")] == [bool(field)] * 2


@pytest.mark.parametrize(("given", "extra", "meant"), [("real", "***", "real"), ("***", "real", None)])
def test_an_extra_named_like_a_field_is_ignored(read: Any, given: str, extra: str, meant: str | None) -> None:
    connection = read(login=given, password=given, extra={"login": extra, "password": extra})
    assert (connection.credentials.login, connection.credentials.password) == (meant, meant)


def test_extras_may_have_a_prefix_and_a_typo_is_logged(read: Any, caplog: pytest.LogCaptureFixture) -> None:
    extra = {"read_timeout": "30", "api_key_everywhere": "y", "refresh_token": "secret"}
    prefixed = {f"extra__webcollect__{name}": value for name, value in extra.items()}
    with caplog.at_level(logging.WARNING):
        assert read(extra={**extra, **prefixed}) == read(extra=extra)
        assert "unknown extras" not in caplog.text
        read(extra={"refreshtoken": "very-secret", "colour": "blue"})

    assert "colour, refreshtoken" in caplog.text
    assert "very-secret" not in caplog.text


def test_the_forms_defaults_are_those_of_a_connection(read: Any) -> None:
    suggested = {field.name: field.default for field in FIELDS if field.default is not None}
    assert read(extra=suggested) == read(extra={})
    assert read(extra={}).settings == Settings(
        base_url="https://api.example.com", origin="the connection webcollect_default"
    )
    assert read(extra={name: str(value) for name, value in suggested.items()}) == read(extra={})


AN_URL = "it must be an http(s) URL without user, query and fragment"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("extra read_timeout", "soon", "is a string of 4 characters; it must be a number"),
        ("extra requests_per_second", {"a": 1}, "is an object; it must be a number"),
        ("extra max_response_bytes", "8 MB", "is a string of 4 characters; it must be an integer"),
        ("extra status_batch_size", 101, "is 101; it must be an integer from 1 to 100"),
        ("extra status_batch_size", True, "is True; it must be an integer from 1 to 100"),
        ("extra api_key_everywhere", "perhaps", "is a string of 7 characters; it must be true or false"),
        ("extra api_key_everywhere", 2, "is 2; it must be true or false"),
        ("extra token_refresh", SECRET, "is a string of 11 characters; it must be one of auto, keeper"),
        ("extra refresh_token", {"refresh_token": SECRET}, "is an object; it must be a string"),
        ("extra api_key", True, "is a boolean; it must be a string"),
        ("extra ca_file", ["a"], "is a list; it must be a string"),
        ("timezone", "Mars", "is 'Mars'; it must name a time zone, such as Asia/Shanghai"),
        ("datahub_url", f"https://api.example.com/?key={SECRET}", f"is 'https://api.example.com/'; {AN_URL}"),
        ("datahub_url", f"https://me:{SECRET}?@a.example", f"is a string of 33 characters; {AN_URL}"),
    ],
)
def test_a_wrong_extra_is_refused_without_secrets(read: Any, name: str, value: Any, said: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        read(password=SECRET, extra={"access_token": SECRET, name.removeprefix("extra "): value})
    assert str(refusal.value) == f"`{name}` {said}"
    assert SECRET not in f"{refusal.value!r} {refusal.value.__cause__!r}"


@pytest.mark.parametrize(
    ("extra", "said"),
    [(["secret"], "a list"), ('"secret"', "a string of 6 characters"), (7, "a number"), (True, "a boolean")],
)
def test_extras_that_are_no_object_are_refused(read: Any, extra: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"`extra` is {said}; it must be a JSON object"):
        read(extra=extra)


@pytest.mark.parametrize("name", ["task_url_template", "export_url_template"])
@pytest.mark.parametrize(
    "template",
    [
        *("javascript:alert('{task_id}')", " JavaScript://service.example/%0aalert(1)"),
        *("data:text/html,{path}", "{task_id}", "https://", "https:{task_id}"),
        *(f"{begin}service.example/{{task_id}}" for begin in ("ftp://", "//", "", "https://[")),
    ],
)
def test_a_template_of_links_that_is_no_web_address_is_refused(read: Any, name: str, template: str) -> None:
    with pytest.raises(InvalidArgument, match=f"`extra {name}` is .*it must be an http.s. URL") as refusal:
        read(extra={name: template})
    assert repr(template.strip()) in str(refusal.value)


def test_a_template_of_links_is_taken_as_it_is(read: Any) -> None:
    for address in ("service.example/tasks/{task_id}?tab={x}", "{bucket}.storage.example/{path}"):
        for template in (f"https://{address}", f"HTTP://localhost:8080/#/{address}"):
            connection = read(extra={"task_url_template": template, "export_url_template": template})
            assert connection.task_url_template == connection.export_url_template == template


def test_no_repr_shows_a_secret(read: Any) -> None:
    names = ("refresh_token", "access_token", "api_key", "datahub_api_key")
    secrets = {name: f"very-secret-{name}" for name in names}
    connection = read(login="someone", password="very-secret-password", extra=secrets)
    hook = WebCollectHook()
    token = StoredToken(access_token="very-secret-a", refresh_token="very-secret-r", lineage="f")

    client = hook.client
    objects = [connection, hook, client, hook.async_client(), client.context, client.context.tokens, token]

    assert "very-secret" not in repr(objects)
    assert "very-secret" not in repr(vars(hook))


class OwnStore(MemoryTokenStore):
    """A user's own token store."""


class TestTokenStore:
    def configure(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> TokenStore:
        monkeypatch.setenv("AIRFLOW__WEBCOLLECT__TOKEN_STORE", kind)
        return make_token_store("stored")

    @pytest.mark.parametrize("kind", ["variable", "memory", f"{__name__}.OwnStore"])
    def test_the_configuration_names_it(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        store = self.configure(monkeypatch, kind)
        token = StoredToken(access_token="a", refresh_token="r", lineage="f", generation=1)
        store.save(token)
        assert store.load() == token
        store.save(newer := StoredToken(access_token="b", lineage="f", generation=2))
        assert store.load() == newer

    @pytest.mark.parametrize("kind", ["no.such.Store", "os.mkdir", "json.JSONDecoder", "own"])
    def test_what_is_no_token_store_is_not_called(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InvalidArgument, match=r"\[webcollect\] token_store") as refusal:
            self.configure(monkeypatch, kind)
        assert refusal.value.permanent

    @pytest.mark.parametrize(("text", "seconds"), [(None, 2.0), ("10", 10.0)])
    def test_it_may_take_as_long_as_the_configuration_says(
        self, text: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if text is not None:
            monkeypatch.setenv("AIRFLOW__WEBCOLLECT__TOKEN_STORE_TIMEOUT", text)
        assert self.configure(monkeypatch, "variable").write_bound == seconds

    @pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "61"])
    def test_what_is_no_time_for_it_is_named(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__WEBCOLLECT__TOKEN_STORE_TIMEOUT", text)
        with pytest.raises(InvalidArgument, match=r"\[webcollect\] token_store_timeout.*number of seconds"):
            self.configure(monkeypatch, "variable")

    def test_a_connection_cannot_choose_it(self, read: Any) -> None:
        with pytest.raises(InvalidArgument, match=r"\[webcollect\]"):
            read(extra={"token_store": "os.mkdir"})


@pytest.fixture
def answer(set_connection: Connect) -> Callable[..., tuple[bool, str]]:
    """Tests the connection with these fields, and returns the answer."""

    def answer(**connection: Any) -> tuple[bool, str]:
        set_connection(**connection)
        return WebCollectHook().test_connection()

    return answer


@pytest.mark.parametrize(
    "beside",
    [{}, {"access_token": "yesterday's"}, {"api_key": demo.API_KEY}, {"token_refresh": "keeper"}],
    ids=str,
)
def test_a_refresh_token_is_not_spent(answer: Any, sandbox: Sandbox, beside: dict[str, str]) -> None:
    passed, said = answer(extra={"refresh_token": sandbox.refresh_token, **beside})

    assert passed
    assert UNTRIED in said
    assert "will not work" not in said
    assert sandbox.control.requests("/token") == []


def test_a_stored_token_is_tested_while_valid(answer: Any, hook: WebCollectHook, sandbox: Sandbox) -> None:
    assert hook.get_running_counts()
    assert answer() == (True, CONNECTED)
    sandbox.control.expire_tokens()
    passed, said = answer()

    assert passed
    assert UNTRIED in said
    assert len(sandbox.control.requests("/token")) == 1


@pytest.mark.parametrize("credential", ["refresh_token", "access_token", "api_key"])
@pytest.mark.parametrize("status", [200, 401, 403, 404, 502])
def test_a_page_is_no_service(answer: Any, sandbox: Sandbox, credential: str, status: int) -> None:
    sandbox.control.fail("*", kind="html", status=status, times=None)
    passed, said = answer(extra={credential: getattr(sandbox, credential)})
    assert not passed
    assert "the connection's host is probably wrong" in said


@pytest.mark.parametrize(
    ("connection", "passes", "expected"),
    [
        ({"extra": {"access_token": demo.ACCESS_TOKEN}}, True, CONNECTED),
        ({"login": demo.USERNAME, "password": demo.PASSWORD, "extra": {}}, True, CONNECTED),
        (
            {"extra": {"api_key": demo.API_KEY}},
            True,
            "the API key is accepted. Operations that need an access token will not work",
        ),
        ({"extra": {"access_token": "mistyped"}}, False, "The service refused the token"),
        (
            {"login": demo.USERNAME, "password": f"{demo.PASSWORD} ", "extra": {}},
            False,
            ". The password begins or ends with a blank",
        ),
        ({"extra": {"api_key": "mistyped"}}, False, "The service refused the API key"),
        ({"extra": {}}, False, "the connection has no credential"),
        ({"extra": {"datahub_api_key": "k"}}, True, "The key of the data-app service was not tried"),
        (
            {"extra": {"datahub_api_key": "k", "datahub_url": None}},
            False,
            "the connection has no credential",
        ),
        ({"extra": {"read_timeout": "soon"}}, False, "extra read_timeout"),
        ({"host": "http://127.0.0.1:9"}, False, "no connection to http://127.0.0.1:9 ("),
        ({"schema": "https"}, False, " does not use TLS ("),
    ],
)
def test_the_test_explains_each_connection_and_changes_nothing(
    answer: Any, sandbox: Sandbox, connection: dict[str, Any], passes: bool, expected: str
) -> None:
    if "schema" in connection:
        connection = {**connection, "host": sandbox.url.removeprefix("http://")}
    passed, said = answer(**connection)

    assert passed == passes, said
    assert expected in said
    assert "mistyped" not in said
    asked = sandbox.control.requests()
    assert {request["path"] for request in asked if request["method"] != "GET"} <= {"/token"}


@pytest.mark.beyond_the_contract
def test_a_key_that_is_taken_everywhere_is_tested_like_a_token(answer: Any, sandbox: Sandbox) -> None:
    sandbox.control.configure(api_key_everywhere=True)
    assert answer(extra={"api_key": sandbox.api_key, "api_key_everywhere": "true"}) == (True, CONNECTED)


def test_a_plan_that_is_too_low_for_the_tests_call_passes(answer: Any, sandbox: Sandbox) -> None:
    sandbox.control.configure(tier="Flagship")
    passed, said = answer(extra={"access_token": sandbox.access_token})
    assert (passed, "The credential works; the plan does not include the test's call" in said) == (True, True)


@pytest.mark.parametrize(("times", "passes"), [(1, True), (None, False)])
def test_on_faults_it_is_asked_twice(answer: Any, sandbox: Sandbox, times: int | None, passes: bool) -> None:
    sandbox.control.fail("/cloudextraction/task/stats", kind="drop", times=times)
    # a person waits for the answer; other calls retry for a minute
    assert answer()[0] is passes
    assert len(sandbox.control.requests("/cloudextraction/task/stats")) == 2
