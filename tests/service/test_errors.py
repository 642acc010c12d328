"""Errors: they have all facts, survive pickling, say what to do, and never show a secret."""

from __future__ import annotations

import functools
import inspect
import json
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service import endpoints, errors
from airflow_provider_webcollect.service.call import Request
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.models import TokenRecord
from airflow_provider_webcollect.service.settings import Credentials, Retries, Settings
from airflow_provider_webcollect.service.tokens import StoredToken
from airflow_provider_webcollect.service.url_file import url_file
from tests.service.conftest import Connect

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

CALL = endpoints.get_running_counts()
CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.WebCollectError) and kind is not errors.InvalidArgument
]


def facts(error: errors.WebCollectError) -> dict[str, Any]:
    return {**error.__dict__, "kind": type(error), "text": str(error), "args": error.args}


@pytest.mark.parametrize("kind", [*CLASSES, functools.partial(errors.DataAppError, can_retry=True)])
def test_an_error_keeps_all_it_knows_when_pickled(kind: Callable[..., errors.WebCollectError]) -> None:
    details = {"endpoint": "copy_task", "status": 400, "code": "Odd", "request_id": "r", "retry_after": 1.5}
    error = kind("it broke", category="c", **details)
    assert facts(pickle.loads(pickle.dumps(error))) == facts(error)
    assert str(error).startswith("copy_task: HTTP 400 Odd: it broke (requestId r)")
    assert str(error).endswith(error.advice)


@pytest.mark.parametrize("message", ["Connection refused", "Connection refused."])
@pytest.mark.parametrize("request_id", [None, "r1"])
def test_a_full_stop_stands_before_the_advice(message: str, request_id: str | None) -> None:
    error = errors.ServiceUnreachable(message, request_id=request_id)
    before = str(error).removesuffix(error.advice)
    assert before in {"Connection refused. ", f"{message} (requestId r1). "}


def test_the_error_of_an_unpicklable_argument_can_be_pickled(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("https://a.example")
    with (tmp_path / "urls.txt").open() as file, pytest.raises(errors.InvalidArgument) as refusal:
        url_file(file)
    copy = pickle.loads(pickle.dumps(refusal.value))
    assert facts(copy) == facts(refusal.value)
    assert copy.argument == "file"


@pytest.mark.parametrize(
    ("argument", "name", "place"),
    [
        ("page_size", "page_size", ""),
        ("task_ids[2]", "task_ids", "[2]"),
        ("actions[0].properties[1].value", "actions", "[0].properties[1].value"),
        ("checks['columns']['a, b']", "checks", "['columns']['a, b']"),
        ("file, line 3", "file", ", line 3"),
        ("extra timezone", "extra timezone", ""),
    ],
)
def test_a_wrong_argument_is_data_apart_from_the_place_in_it(argument: str, name: str, place: str) -> None:
    error = errors.InvalidArgument(argument, 7, "it must be a text")
    assert (error.name, error.place, error.value, error.rule) == (name, place, "7", "it must be a text")
    assert str(error) == f"`{argument}` is 7; it must be a text"


#: Faults that together reach every place at which the client words an error.
FAULTS: list[dict[str, Any]] = [
    {"status": 401},
    {"status": 403},
    {"status": 429},
    {"status": 500},
    {"kind": "html"},
    {"kind": "broken_json"},
    {"kind": "cut_body"},
    {"kind": "drop"},
    {"kind": "raw", "status": 307, "headers": {"Location": "http://other.example/x"}},
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: " ".join(map(str, fault.values())))
def test_no_error_shows_a_secret(on_clock: Connect, sandbox: Sandbox, fault: dict[str, Any]) -> None:
    secrets = ("sandbox-access-token", "REFRESH", "PASSWORD", "APIKEY", "HUBSECRET")
    credentials = Credentials(
        access_token=sandbox.access_token,
        refresh_token="REFRESH",
        login="me",
        password="PASSWORD",
        datahub_api_key="HUBSECRET",
    )
    client = on_clock(credentials=credentials, retries=Retries(attempts=1))
    for call in (
        CALL,
        endpoints.copy_task(demo.TASK_ID),
        endpoints.refresh_token("REFRESH"),
        endpoints.first_token("me", "PASSWORD"),
        endpoints.deprecate_data_app(demo.APP_ID),
    ):
        sandbox.control.fail("*", times=None, **fault)
        with pytest.raises(errors.WebCollectError) as failure:
            client.send(call)
        sandbox.control.clear_faults()
        assert not [secret for secret in secrets if secret in shown_by(failure.value)]


@pytest.mark.parametrize("of", ["access token", "refresh token"])
def test_an_unreadable_token_response_shows_no_token(on_clock: Connect, sandbox: Sandbox, of: str) -> None:
    record = {"accessToken": "SECRET", "refreshToken": "SECRET", "expiresIn": 9}
    record["accessToken" if of == "access token" else "refreshToken"] = ["SECRET"]
    body = json.dumps({"data": record}).encode()
    sandbox.control.fail("/token", times=None, kind="raw", body=body)
    client = on_clock(credentials=Credentials(login="me", password="PASSWORD"))
    with pytest.raises(errors.WebCollectError) as failure:
        client.send(CALL)
    assert "SECRET" not in shown_by(failure.value)
    assert "PASSWORD" not in shown_by(failure.value)


@pytest.mark.parametrize("fault", [{"status": 500}, {"kind": "drop"}], ids=["status", "drop"])
def test_a_handled_error_keeps_its_traceback(
    on_clock: Connect, sandbox: Sandbox, fault: dict[str, Any]
) -> None:
    client = on_clock(retries=Retries(attempts=1))
    sandbox.control.fail("*", times=None, **fault)
    handled = ValueError()
    try:
        raise handled
    except ValueError:
        with pytest.raises(errors.WebCollectError):
            client.send(CALL)
    assert handled.__traceback__ is not None


def shown_by(failure: BaseException) -> str:
    """Return what an error and its causes show, and the variables of the frames below the test's."""
    objects: list[object] = []
    error: BaseException | None = failure
    while error is not None:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][error is failure :]
        objects += [error, repr(error), error.args, *(dict(frame.f_locals) for frame in frames)]
        error = error.__cause__ or error.__context__
    return " ".join(map(str, objects))


@pytest.mark.parametrize("bad", ["SECRET\n", "SEC RET", "SECRET\x00", "SECRÉT", " SECRET"])
@pytest.mark.parametrize("field", ["access_token", "api_key", "datahub_api_key"])
def test_a_credential_unfit_for_headers_is_hidden(
    on_clock: Connect, sandbox: Sandbox, bad: str, field: str
) -> None:
    given: dict[str, Any] = {field: bad}
    client = on_clock(credentials=Credentials(**given), retries=Retries(attempts=3))
    call = {
        "access_token": CALL,
        "api_key": endpoints.copy_task("t"),
        "datahub_api_key": endpoints.deprecate_data_app("a"),
    }[field]
    named = field.replace("access_token", "access token")
    with pytest.raises(errors.ConnectionIncomplete, match=named) as refusal:
        client.send(call)
    assert "SEC" not in str(refusal.value)
    assert refusal.value.endpoint == call.endpoint.name
    assert sandbox.control.requests() == []


def test_nothing_that_holds_a_secret_shows_it(client: Client) -> None:
    credentials = Credentials(
        refresh_token="SECRET1",
        access_token="SECRET2",
        login="me",
        password="SECRET3",
        api_key="SECRET4",
        datahub_api_key="SECRET5",
    )
    bearer = {"Authorization": "Bearer SECRET"}
    things = [
        credentials,
        Request("GET", "https://a.example/x", bearer, 1.0, content=b"SECRET"),
        StoredToken(access_token="SECRET6", refresh_token="SECRET7", lineage="f"),
        endpoints.refresh_token("SECRET8"),
        endpoints.first_token("me", "SECRET9"),
        TokenRecord(access_token="SECRET", refresh_token="SECRET", unknown_fields={"more": "SECRET"}),
        client.context,
    ]
    for thing in things:
        assert "SECRET" not in f"{thing!r} {thing} {[*getattr(thing, '__rich_repr__', list)()]}"
        assert demo.ACCESS_TOKEN not in repr(thing)
    assert set(credentials.secrets()) == {f"SECRET{n}" for n in range(1, 6)}


class TestSettings:
    @pytest.mark.parametrize(
        "url",
        [
            *("a.example", "ftp://a.example", "https://", "https://a.example?x=1"),
            *("https://a.example#x", "https://me:PASSWORD@a.example"),
            *("https://me:PASS@WORD@a.example/x", "https://PASSWORD@a.example"),
            *("https://[::1", "https://a.example:port", "https://a.example:0"),
            *("https://a..example", f"https://{'a' * 64}.example", "http://ho\nst"),
            *("http:// host", ""),
        ],
    )
    @pytest.mark.parametrize("name", ["base_url", "datahub_url"])
    def test_an_address_that_is_none_is_refused(self, url: str, name: str) -> None:
        given: dict[str, Any] = {"base_url": "https://a.example", name: url}
        with pytest.raises(errors.InvalidArgument, match=f"`{name}`") as refusal:
            Settings(**given)
        assert "PASS" not in str(refusal.value)
        assert "WORD" not in str(refusal.value)

    def test_a_base_url_may_have_a_path_and_a_scheme_in_capitals(self) -> None:
        assert Settings(base_url="https://a.example/api/").base_url == "https://a.example/api"
        assert Settings(base_url="HTTPS://Host/v1").base_url == "https://Host/v1"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("connect_timeout", 0),
            ("read_timeout", -1),
            ("read_timeout", float("nan")),
            ("connect_timeout", float("inf")),
            ("total_timeout", 1e10),
            ("total_timeout", 0),
            ("max_response_bytes", 0),
            ("requests_per_second", -1),
            ("requests_per_second", float("nan")),
            ("requests_per_second", 1e-300),
            ("timezone", "Middle/Earth"),
            ("timezone", ""),
            ("timezone", "../../etc/passwd"),
        ],
    )
    def test_a_setting_that_makes_no_sense_is_refused(self, name: str, value: Any) -> None:
        with pytest.raises(errors.InvalidArgument, match=f"`{name}`"):
            Settings(**{"base_url": "https://a.example", name: value})
