"""The tables of ``docs/reference/errors.md`` hold for every endpoint."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import random
import re
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

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
ROW = re.compile(r"^\| (.+) \| `(\w+)` \|$", re.MULTILINE)
PROPERTY = re.compile(r"^\| \*\w+\* \| .+ \| (.+) \|$", re.MULTILINE)
STATUSES = re.compile(r"\d+(?:, \d+)* or \d+")
ELSEWHERE = "service.example"


class Row(NamedTuple):
    """Something that happens, and the error that it leads to."""

    what: str
    error: str

    @property
    def properties(self) -> tuple[bool, ...]:
        return tuple(self.error in names for names in PROPERTIES)

    @property
    def uncertain(self) -> bool:
        return self.properties[2]


def entries(cell: str) -> Iterator[str]:
    """Yield what a cell lists, and of several statuses each one."""
    for entry in cell.split("; "):
        statuses = STATUSES.search(entry)
        for status in re.findall(r"\d+", statuses[0]) if statuses else [""]:
            yield STATUSES.sub(status, entry)


TEXT = PAGE.read_text().partition("\n## Landing\n")[0]
ROWS = [Row(what, error) for cell, error in ROW.findall(TEXT) for what in entries(cell)]
#: The names of the errors that are retryable, unsent, uncertain and permanent.
PROPERTIES = [set(re.findall(r"\w+", names)) for names in PROPERTY.findall(TEXT)]


class World:
    """What a cause may need.

    :ivar server: the server that got requests, if there was one.
    :ivar now: the time by which the client knows how long an answer takes.
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


#: Makes the service, or the way to it, behave so; gives the settings of the client.
Cause = Callable[[World], AbstractContextManager[dict[str, Any]]]


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
    """Each byte takes ten seconds, of a hundred that the answer may take."""

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
CAUSES: dict[str, Cause] = {
    "host name not resolved, no route, connection refused or timed out": refused,
    "a certificate that is not trusted": untrusted,
    "an untrusted one behind a proxy": untrusted_behind_a_proxy,
    "a proxy that is down": proxy_down,
    "one that refuses the tunnel": proxy("https", answer(HTML, 503)),
    "a proxy that wants a login (407) for the tunnel": proxy("https", answer(HTML, 407)),
    "one that wants it for the request": proxy("http", answer(HTML, 407)),
    "one whose address is malformed": proxy_named("http://me:SECRET@proxy.example:port"),
    "a SOCKS proxy without its library": proxy_named("socks5://me:SECRET@proxy.example"),
    "no response within `read_timeout`": says(None, read_timeout=0.05),
    "headers that take longer than `total_timeout`": drips(b"HTTP/1.1 200 OK\r\nX-Slow:"),
    "a body that takes longer than `total_timeout`": drips(answer(b"{", Content_Length="900")),
    "a connection closed without a response": says(b""),
    "a response that is cut": says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
    "one cut within a chunk": says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"),
    "one that is not HTTP": says(b"nonsense\r\n\r\n"),
    "one said to be gzip that is not": says(answer(b"{}", Content_Encoding="gzip")),
    "gzip that is cut": says(answer(gzip.compress(b'{"data": null}')[:-12], Content_Encoding="gzip")),
    "a response of more than `max_response_bytes`": says(answer(b" " * 60_000), **BOUND),
    "more than that once unpacked": says(answer(PACKED, Content_Encoding="gzip"), **BOUND),
    "a redirect, wherever it leads": says(answer(b"", 307, Location=f"https://{ELSEWHERE}/")),
    "200 with HTML": says(answer(HTML)),
    "200 with an empty body": says(answer(b"")),
    "200 with torn JSON": says(answer(b'{"data": {"offset": 1')),
    "200 with a byte that is not UTF-8": says(
        answer(b'{"data": {"offset": 1, "total": 1, "restTotal": 0, "data": [{"a": "\xff"}]}}')
    ),
    "200 with JSON nested 3,000 levels deep": says(answer(b'{"data": ' + b"[" * 3000 + b"]" * 3000 + b"}")),
    "200 without `data`, if the operation has a result": says(answer(b'{"requestId": "r"}')),
    "200 with `data` of another shape, if the operation has a result": says(answer(b'{"data": [7, "x"]}')),
    "429 without an error": says(answer(HTML, 429)),
    "401 with `WWW-Authenticate: Bearer` and no body": says(
        answer(b"", 401, WWW_Authenticate='Bearer error="invalid_token"')
    ),
}
#: Causes that are tried with one call of each kind at night, too.
TAKE_TIME = {what for what in CAUSES if "_timeout`" in what}


def cause_of(what: str) -> Cause:
    if match := re.fullmatch(r"(\d+) without an error", what):
        return CAUSES.get(what) or says(answer(HTML, int(match[1])))
    if match := re.fullmatch(r"an unknown code with (\d+)", what):
        return says(refusal("NobodyKnows", int(match[1])))
    if match := re.fullmatch(r"`(\w+)`", what):
        return says(refusal(match[1]))
    return CAUSES[what]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_what_happens_leads_to_its_error(
    on_clock: Connect, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    world = World(tmp_path, monkeypatch.setenv)
    monkeypatch.setattr(client_module, "time", SimpleNamespace(monotonic=lambda: world.now))
    calls = one_call_of_each(scene)
    if row.what in TAKE_TIME or not ALL_HISTORIES:
        calls = one_of_each_kind(calls, random.Random(f"{SEED} {row.what}"))
    with cause_of(row.what)(world) as settings:
        client = on_clock(retries=Retries(attempts=2, first_wait=0.01), **settings)
        for call in calls:
            before = world.server.connections if world.server else 0
            if row.what.endswith("if the operation has a result") and call.result is NOTHING:
                client.send(call)
                continue
            with pytest.raises(errors.WebCollectError) as caught:
                client.send(call)
            tries = check(row, call, caught.value)
            if server := world.server:
                until(lambda: server.connections - before >= tries)  # noqa: B023
                assert server.connections - before == tries


def one_of_each_kind(calls: list[Call[Any]], chance: random.Random) -> list[Call[Any]]:
    """Draw the calls of which an error's class and the tries depend, and one of the other service's."""
    kinds = defaultdict(list)
    for call in calls:
        kinds[call.retry, call.result is NOTHING, call.endpoint.name == "deprecate_data_app"].append(call)
    return [chance.choice(alike) for alike in kinds.values()]


def check(row: Row, call: Call[Any], error: errors.WebCollectError) -> int:
    """Check the error of a call and return how often the call was to be tried."""
    # that there is no other token is not about the call
    assert error.endpoint == call.endpoint.name or row.error == "TokenRejected"
    assert "SECRET" not in f"{error} {error!r} {error.__cause__!r}"
    once = row.uncertain and call.retry is Retry.ONLY_IF_UNSENT
    if once:
        assert type(error) is errors.OutcomeUnknown
        assert isinstance(error.__cause__, errors.WebCollectError)
        error = error.__cause__
    assert type(error).__name__ == row.error
    assert properties(error) == row.properties
    return 2 if error.retryable and not once else 1


def properties(error: errors.WebCollectError | type[errors.WebCollectError]) -> tuple[bool, ...]:
    return error.retryable, error.unsent, error.uncertain, error.permanent


def test_the_tables_name_every_cause_and_every_code() -> None:
    rows = [row.what for row in ROWS]
    assert len(rows) == len(set(rows))
    assert set(CAUSES) <= set(rows)
    codes = {what.strip("`").lower() for what in rows if what.startswith("`")}
    assert codes == set(errors._BY_CODE)


def test_the_table_of_properties_names_every_error_that_has_them() -> None:
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.WebCollectError)
    }
    # a base that is never raised itself
    del kinds["CredentialError"]
    assert set().union(*PROPERTIES) <= kinds.keys()
    for name, kind in kinds.items():
        assert properties(kind) == Row("", name).properties, name
