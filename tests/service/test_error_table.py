"""Which error each cause leads to, whatever the endpoint, and which properties that error has."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from airflow_provider_webcollect.service import client as client_module
from airflow_provider_webcollect.service import errors
from airflow_provider_webcollect.service.endpoints import Call, Retry
from airflow_provider_webcollect.service.responses import NOTHING
from airflow_provider_webcollect.service.settings import Retries
from tests.interruption import until
from tests.operations import Scene, one_call_of_each
from tests.service.conftest import Connect
from tests.service.servers import Server, answer, make_authority, refusal, serving
from tests.simulation.samples import ALL_HISTORIES, SEED

pytestmark = [
    pytest.mark.usefixtures("plain_environment"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

ELSEWHERE = "service.example"
#: The errors that have each property. All codes and statuses that lead to them are in ``errors``.
PROPERTIES: dict[str, set[type[errors.WebCollectError]]] = {
    "retryable": {
        *(errors.ServiceUnreachable, errors.NoResponse, errors.MalformedResponse),
        *(errors.TooManyRequests, errors.ServiceFailure, errors.DataAppError),
    },
    "unsent": {
        *(errors.InvalidArgument, errors.ConnectionIncomplete, errors.Stopped, errors.ServiceUnreachable),
        *(errors.ProxyUnusable, errors.TlsError, errors.TokenRejected, errors.GrantRejected),
        *(errors.LoginRejected, errors.TokenUnavailable, errors.TokenStoreUnavailable),
        *(errors.PermissionDenied, errors.TooManyRequests),
    },
    "uncertain": {
        *(errors.NoResponse, errors.MalformedResponse, errors.ResponseTooDeep, errors.ResponseTooLarge),
        *(errors.ServiceFailure, errors.DataAppError, errors.OutcomeUnknown),
    },
    "permanent": {
        *(errors.InvalidArgument, errors.ConnectionIncomplete, errors.ProxyUnusable, errors.RedirectRefused),
        *(errors.TokenRejected, errors.GrantRejected, errors.LoginRejected, errors.PermissionDenied),
        *(errors.NotFound, errors.MemberNotAllowed, errors.RequestRejected, errors.PageTooLarge),
        *(errors.TooManyTasks, errors.OutcomeUnknown),
    },
}


class World:
    """What a cause may need.

    :ivar server: the server that receives the requests; None if there is none.
    :ivar now: the time by which the client measures how long a response takes.
    """

    server: Server | None = None
    now = 0.0

    def __init__(self, folder: Path, setenv: Callable[[str, str], None]) -> None:
        self.folder = folder
        self.setenv = setenv

    @contextlib.contextmanager
    def serve(self, respond: Any, settings: dict[str, Any], **how: Any) -> Iterator[dict[str, Any]]:
        with serving(respond, **how) as self.server:
            yield at(self.server.url, **settings)


#: Makes the service, or the network, behave in a certain way; yields settings of the client.
Cause = Callable[[World], AbstractContextManager[dict[str, Any]]]


class Row(NamedTuple):
    """Something that happens, the error that it leads to, and what makes it happen."""

    what: str
    error: type[errors.WebCollectError]
    cause: Cause


def at(url: str, **settings: Any) -> dict[str, Any]:
    return {"base_url": url, "datahub_url": url, **settings}


def says(said: Any, **settings: Any) -> Cause:
    return lambda world: world.serve(lambda _: said, settings)


@contextlib.contextmanager
def refused(world: World) -> Iterator[dict[str, Any]]:
    with serving(lambda _: None) as server:
        url = server.url
    yield at(url)


def untrusted(world: World) -> AbstractContextManager[dict[str, Any]]:
    return world.serve(lambda _: None, {}, context=make_authority(world.folder)[1])


@contextlib.contextmanager
def untrusted_behind_a_proxy(world: World) -> Iterator[dict[str, Any]]:
    tunnel = make_authority(world.folder)[1]
    with world.serve(lambda _: None, {}, tunnel=tunnel) as settings:
        world.setenv("https_proxy", settings["base_url"])
        yield at("https://127.0.0.1")


@contextlib.contextmanager
def proxy_down(world: World) -> Iterator[dict[str, Any]]:
    with refused(world) as settings:
        world.setenv("http_proxy", settings["base_url"])
        yield at(f"http://{ELSEWHERE}")


def proxy(scheme: str, said: bytes) -> Cause:
    @contextlib.contextmanager
    def cause(world: World) -> Iterator[dict[str, Any]]:
        with says(said)(world) as settings:
            world.setenv(f"{scheme}_proxy", settings["base_url"])
            yield at(f"{scheme}://{ELSEWHERE}")

    return cause


def proxy_named(name: str) -> Cause:
    @contextlib.contextmanager
    def cause(world: World) -> Iterator[dict[str, Any]]:
        world.setenv("all_proxy", name)
        yield at(f"https://{ELSEWHERE}")

    return cause


def drips(head: bytes) -> Cause:
    """Return a cause by which each byte takes ten seconds; a response may take a hundred."""

    def cause(world: World) -> AbstractContextManager[dict[str, Any]]:
        def drip(request: bytes) -> Iterator[bytes]:
            yield head
            for _ in itertools.repeat(None):
                time.sleep(0.001)
                world.now += 10
                yield b" "

        return world.serve(drip, {"total_timeout": 100.0})

    return cause


HTML = b"<html><body>Sorry"
PACKED = gzip.compress(b'{"data": null}' + b" " * 100_000)
BOUND = {"max_response_bytes": 50_000}
UNKNOWN = "NobodyKnows"
WITH_A_RESULT = "if the operation has a result"
CAUSES: dict[type[errors.WebCollectError], dict[str, Cause]] = {
    errors.ServiceUnreachable: {
        "connection refused": refused,
        "a proxy that is down": proxy_down,
        "a proxy that refuses the tunnel": proxy("https", answer(HTML, 503)),
    },
    errors.TlsError: {
        "a certificate that is not trusted": untrusted,
        "an untrusted one behind a proxy": untrusted_behind_a_proxy,
    },
    errors.ProxyUnusable: {
        "a proxy that wants a login (407) for the tunnel": proxy("https", answer(HTML, 407)),
        "one that wants it for the request": proxy("http", answer(HTML, 407)),
        "one whose address is malformed": proxy_named("http://me:SECRET@proxy.example:port"),
        "a SOCKS proxy without its library": proxy_named("socks5://me:SECRET@proxy.example"),
    },
    errors.NoResponse: {
        "no response within read_timeout": says(None, read_timeout=0.05),
        "headers that take longer than total_timeout": drips(b"HTTP/1.1 200 OK\r\nX-Slow:"),
        "a body that takes longer than total_timeout": drips(answer(b"{", Content_Length="900")),
        "a connection closed without a response": says(b""),
        "a response that is cut": says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
        "one cut within a chunk": says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"),
        "one that is not HTTP": says(b"nonsense\r\n\r\n"),
        "one said to be gzip that is not": says(answer(b"{}", Content_Encoding="gzip")),
    },
    errors.ResponseTooLarge: {
        "a response of more than max_response_bytes": says(answer(b" " * 60_000), **BOUND),
        "more than that once unpacked": says(answer(PACKED, Content_Encoding="gzip"), **BOUND),
    },
    errors.RedirectRefused: {
        "a redirect": says(answer(b"", 307, Location=f"https://{ELSEWHERE}/")),
    },
    errors.MalformedResponse: {
        "gzip that is cut": says(answer(gzip.compress(b'{"data": null}')[:-12], Content_Encoding="gzip")),
        "200 with HTML": says(answer(HTML)),
        "200 with an empty body": says(answer(b"")),
        "200 with torn JSON": says(answer(b'{"data": {"offset": 1')),
        "200 with a byte that is not UTF-8": says(
            answer(b'{"data": {"offset": 1, "total": 1, "restTotal": 0, "data": [{"a": "\xff"}]}}')
        ),
        f"200 without data, {WITH_A_RESULT}": says(answer(b'{"requestId": "r"}')),
        f"200 with data of another shape, {WITH_A_RESULT}": says(answer(b'{"data": [7, "x"]}')),
        **{
            f"{status} without an error": says(answer(HTML, status))
            for status in (400, 401, 403, 404, 413, 418, 451, 500, 502)
        },
    },
    errors.ResponseTooDeep: {
        "JSON nested 3,000 levels deep": says(answer(b'{"data": ' + b"[" * 3000 + b"]" * 3000 + b"}")),
    },
    errors.TooManyRequests: {
        "429 without an error": says(answer(HTML, 429)),
        "an unknown code with 429": says(refusal(UNKNOWN, 429)),
    },
    errors.TokenRejected: {
        "401 with WWW-Authenticate: Bearer and no body": says(
            answer(b"", 401, WWW_Authenticate='Bearer error="invalid_token"')
        ),
        "an unknown code with 401": says(refusal(UNKNOWN, 401)),
    },
    errors.PermissionDenied: {"an unknown code with 403": says(refusal(UNKNOWN, 403))},
    errors.NotFound: {"an unknown code with 404": says(refusal(UNKNOWN, 404))},
    errors.ServiceFailure: {
        f"an unknown code with {status}": says(refusal(UNKNOWN, status)) for status in (408, 500)
    },
    errors.RequestRejected: {
        f"an unknown code with {status}": says(refusal(UNKNOWN, status)) for status in (200, 400)
    },
}
ROWS = [
    *(Row(what, kind, cause) for kind, causes in CAUSES.items() for what, cause in causes.items()),
    *(Row(code, kind, says(refusal(code))) for code, kind in errors.CODES.items()),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_what_happens_leads_to_its_error(
    on_clock: Connect, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    world = World(tmp_path, monkeypatch.setenv)
    monkeypatch.setattr(client_module, "time", SimpleNamespace(monotonic=lambda: world.now))
    calls = one_call_of_each(scene)
    # some causes take too long for all calls, even at night
    if row.what.endswith("_timeout") or not ALL_HISTORIES:
        calls = one_of_each_kind(calls, random.Random(f"{SEED} {row.what}"))
    with row.cause(world) as settings:
        client = on_clock(retries=Retries(attempts=2, first_wait=0.01), **settings)
        for call in calls:
            before = world.server.connections if world.server else 0
            if row.what.endswith(WITH_A_RESULT) and call.result is NOTHING:
                client.send(call)
                continue
            with pytest.raises(errors.WebCollectError) as caught:
                client.send(call)
            tries = check(row, call, caught.value)
            if server := world.server:
                until(lambda: server.connections - before >= tries)  # noqa: B023
                assert server.connections - before == tries


def one_of_each_kind(calls: list[Call[Any]], chance: random.Random) -> list[Call[Any]]:
    """Draw a call of each kind; errors and attempts depend on it. The data-app service is a kind too."""
    kinds = defaultdict(list)
    for call in calls:
        kinds[call.retry, call.result is NOTHING, call.endpoint.name == "deprecate_data_app"].append(call)
    return [chance.choice(alike) for alike in kinds.values()]


def check(row: Row, call: Call[Any], error: errors.WebCollectError) -> int:
    """Check the error of a call, and return the expected number of attempts."""
    # a rejected token without another credential is not an error of the call
    assert error.endpoint == call.endpoint.name or row.error is errors.TokenRejected
    assert "SECRET" not in f"{error} {error!r} {error.__cause__!r}"
    once = row.error in PROPERTIES["uncertain"] and call.retry is Retry.ONLY_IF_UNSENT
    if once:
        assert type(error) is errors.OutcomeUnknown
        assert isinstance(error.__cause__, errors.WebCollectError)
        error = error.__cause__
    assert type(error) is row.error
    assert properties_of(error) == {name for name, kinds in PROPERTIES.items() if row.error in kinds}
    return 2 if error.retryable and not once else 1


def properties_of(error: errors.WebCollectError | type[errors.WebCollectError]) -> set[str]:
    return {name for name in PROPERTIES if getattr(error, name)}


def test_every_error_has_its_properties() -> None:
    for kind in vars(errors).values():
        # a base class that is never raised itself
        is_raised = isinstance(kind, type) and kind is not errors.CredentialError
        if is_raised and issubclass(kind, errors.WebCollectError):
            assert properties_of(kind) == {name for name, kinds in PROPERTIES.items() if kind in kinds}, kind
