"""A client that is stopped while other threads use it: it sends nothing more, and no thread waits in it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.errors import Stopped
from airflow_provider_webcollect.service.pages import PageReader
from airflow_provider_webcollect.service.settings import ClientTiming, Credentials, Retries
from airflow_provider_webcollect.service.threads import Stop
from airflow_provider_webcollect.service.tokens import FileTokenStore, MemoryTokenStore, Register
from tests.interruption import PATIENCE, Pauses, ended_by, until
from tests.service.conftest import Connect
from tests.service.servers import Server, answer, make_authority, query_number, refusal, serving

pytestmark = pytest.mark.usefixtures("plain_environment")

CALL = endpoints.get_running_counts()
#: What a server has received over a connection that was closed before a request.
NOTHING = b"\r\n\r\n"
TOKEN: dict[str, object] = {
    "access_token": "new",
    "refresh_token": "next",
    "expires_in": "86399",
    "token_type": "Bearer",
}


@pytest.fixture
def stop() -> Stop:
    return Stop()


@pytest.fixture
def stoppable(connect: Connect, stop: Stop) -> Connect:
    """Makes clients that share the stop; it takes the arguments of ``connect``."""
    return functools.partial(connect, stop=stop)


@pytest.mark.parametrize(
    "credentials",
    [Credentials(access_token="t"), Credentials(refresh_token="r")],
    ids=["access token", "refresh token"],
)
def test_nothing_is_begun_after_a_stop(stop: Stop, stoppable: Connect, credentials: Credentials) -> None:
    stop.set()
    store = Registers("not begun")
    with serving(lambda _: answer({})) as server:
        client = stoppable(base_url=server.url, store=store, credentials=credentials)
        with client, pytest.raises(Stopped) as stopped:
            client.send(CALL)
    assert stopped.value.unsent
    assert server.connections == 0
    # a note, for which the other processes would wait
    assert store.load_note() is None


def test_a_pause_that_has_begun_ends_at_once(stop: Stop) -> None:
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    with pytest.raises(Stopped):
        stop.sleep(3600)
    timer.join()


def test_a_pause_ends_by_a_signal_to_another_thread() -> None:
    script = """
import signal, threading, time
from airflow_provider_webcollect.service.threads import Stop

def interrupt():
    time.sleep(0.2)  # until the main thread waits
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupt).start()
Stop().sleep(3600)
"""
    assert ended_by(script) == "KeyboardInterrupt"


@pytest.mark.parametrize(
    "said",
    [
        answer({}, status=429, Retry_After="3600"),
        refusal("ServerError", 500),
        answer(b"<html>", status=502),
        refusal("InvalidToken", 401),
    ],
    ids=["429", "500", "502", "401"],
)
def test_nothing_more_is_sent_whatever_was_answered(stop: Stop, stoppable: Connect, said: bytes) -> None:
    def respond(request: bytes) -> bytes:
        stop.set()
        return said

    retries = Retries(first_wait=3600, longest_wait=3600, deadline=1e9)
    credentials = Credentials(access_token="old", refresh_token="r")
    with (
        serving(respond) as server,
        stoppable(base_url=server.url, retries=retries, credentials=credentials) as client,
        pytest.raises(Stopped),
    ):
        client.send(CALL)
    assert len(server.received) == 1


def test_what_the_service_did_is_still_its_result(stop: Stop, stoppable: Connect) -> None:
    def respond(request: bytes) -> bytes:
        stop.set()
        return answer({"taskId": "copy"})

    with serving(respond) as server, stoppable(base_url=server.url) as client:
        assert client.send(endpoints.copy_task("t")).task_id == "copy"


def test_no_page_is_asked_for_ahead(stop: Stop, stoppable: Connect) -> None:
    def respond(request: bytes) -> bytes:
        offset = query_number(request)
        if offset == 1:
            stop.set()
        return answer({"offset": offset + 1, "total": 9, "restTotal": 8 - offset, "data": [{"n": offset}]})

    with (
        serving(respond) as server,
        stoppable(base_url=server.url, timing=ClientTiming(slow_response=0.0)) as client,
    ):
        rows = PageReader(client, "t", size=1).pages()
        assert [page.records() for page in (next(rows), next(rows))] == [[{"n": 0}], [{"n": 1}]]
        with pytest.raises(Stopped):
            next(rows)
    assert sorted(map(query_number, server.received)) == [0, 1]


def test_nothing_is_sent_over_a_slow_connection(stop: Stop, stoppable: Connect, tmp_path: Path) -> None:
    authority, context = make_authority(tmp_path)
    context.sni_callback = lambda *_: stop.set()
    with serving(lambda _: answer({}), context) as server:
        with stoppable(base_url=server.url, ca_file=str(authority)) as client, pytest.raises(Stopped):
            client.send(CALL)
        until(lambda: server.received)
    assert server.received == [NOTHING]


class Registers(MemoryTokenStore):
    """A shared store that fails to store a token a given number of times."""

    write_bound = 1.0

    def __init__(self, name: str, failures: int = 0) -> None:
        super().__init__(name)
        self.failures = failures

    def write(self, register: Register, text: str) -> None:
        if register is Register.TOKEN and self.failures:
            self.failures -= 1
            raise OSError
        super().write(register, text)


class Ending(Pauses):
    """Pauses that take no time until they end with :class:`Stopped`."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.check()


@pytest.mark.parametrize("failures", [0, 2])
def test_a_token_that_comes_afterwards_is_stored_and_not_used(connect: Connect, failures: int) -> None:
    stop = Ending()
    store = Registers(f"stored after {failures}", failures)

    def respond(request: bytes) -> bytes:
        stop.set()
        return answer(TOKEN)

    with serving(respond) as server:
        client = connect(
            base_url=server.url, store=store, credentials=Credentials(refresh_token="r"), stop=stop
        )
        with pytest.raises(Stopped):
            client.send(CALL)
    assert [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.received] == [
        {"refresh_token": "r", "grant_type": "refresh_token"}
    ]
    stored = store.load()
    assert stored is not None
    assert (stored.access_token, stored.refresh_token) == ("new", "next")


#: Sends a call, and cancels it once it reads a line.
CANCELS = """
import asyncio, sys
from pathlib import Path
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.call import make_context
from airflow_provider_webcollect.service.client import AsyncClient
from airflow_provider_webcollect.service.settings import Credentials, Settings
from airflow_provider_webcollect.service.tokens import FileTokenStore

async def main(url, path, credential, closes):
    settings = Settings(base_url=url, read_timeout=86400, total_timeout=86400)
    context = make_context(settings, Credentials(**{credential: "r"}), "ends", FileTokenStore(Path(path)))
    client = AsyncClient(context)
    sending = asyncio.create_task(client.send(endpoints.get_running_counts()))
    await asyncio.to_thread(sys.stdin.readline)
    sending.cancel()
    await asyncio.wait([sending])
    if closes:
        await client.aclose()

asyncio.run(main(*sys.argv[1:]))
print("main has ended", flush=True)
"""


class TestTheEndOfTheProcess:
    @pytest.fixture
    def cancels(self, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
        """Begins a process that sends a call, and has it cancel the call once the server has a request."""
        begun = []

        def begin(server: Server, credential: str, closes: str = "") -> subprocess.Popen[str]:
            command = [sys.executable, "-c", CANCELS, server.url, str(tmp_path / "token"), credential, closes]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            begun.append(process)
            until(lambda: server.received)
            assert process.stdin
            assert process.stdout
            print(file=process.stdin, flush=True)
            assert process.stdout.readline() == "main has ended\n"
            return process

        yield begin
        for process in begun:
            process.kill()
            process.communicate()

    @pytest.mark.parametrize("closes", ["", "closes"])
    @pytest.mark.parametrize("answers", ["not at all", "byte by byte"])
    def test_does_not_wait_for_an_answer(
        self, cancels: Callable[..., subprocess.Popen[str]], answers: str, closes: str
    ) -> None:
        ended = threading.Event()

        def drip() -> Iterator[bytes]:
            while not ended.wait(0.05):
                yield b"H"

        with serving(lambda _: None if answers == "not at all" else drip()) as server:
            assert cancels(server, "access_token", closes).wait(PATIENCE) == 0
            ended.set()

    def test_waits_for_a_token_and_stores_it(
        self, cancels: Callable[..., subprocess.Popen[str]], tmp_path: Path
    ) -> None:
        has_ended = threading.Event()

        def respond(request: bytes) -> bytes:
            has_ended.wait(PATIENCE)
            return answer(TOKEN)

        with serving(respond) as server:
            process = cancels(server, "refresh_token")
            has_ended.set()
            assert process.wait(PATIENCE) == 0
        stored = FileTokenStore(tmp_path / "token").load()
        assert stored
        assert (stored.access_token, stored.refresh_token) == ("new", "next")
