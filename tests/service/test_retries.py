"""Retries: calls that may be repeated are, others are sent once, and the outcome is reported."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service import client as client_module
from airflow_provider_webcollect.service import endpoints, errors
from airflow_provider_webcollect.service.client import AsyncClient, Client
from airflow_provider_webcollect.service.endpoints import Call
from airflow_provider_webcollect.service.settings import Credentials, Retries
from demo.ports import free_port
from tests.interruption import PATIENCE, Pauses, Signalled, signalled_when, until_no_thread
from tests.operations import OPERATIONS, Scene
from tests.service.conftest import Clock, Connect
from tests.service.servers import answer, serving

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

CALL = endpoints.get_running_counts()
STATS = CALL.endpoint.path
COPIED = answer({"taskId": "new"})


class TestSafeCalls:
    @pytest.mark.parametrize("host", ["127.0.0.1:{port}", "nowhere.invalid"])
    def test_an_unreachable_service_is_tried_again(self, on_clock: Connect, clock: Clock, host: str) -> None:
        client = on_clock(base_url=f"http://{host.format(port=free_port())}", retries=Retries(attempts=4))
        with pytest.raises(errors.ServiceUnreachable, match="Check the connection's host") as failure:
            client.send(CALL)
        assert failure.value.unsent
        assert len(clock.slept) == 3

    def test_it_is_given_up_with_the_last_error(self, on_clock: Connect, sandbox: Sandbox) -> None:
        client = on_clock(retries=Retries(attempts=3, first_wait=0.01))
        sandbox.control.fail(STATS, times=2, status=503)
        sandbox.control.fail(STATS, status=500, message="The last.")
        with pytest.raises(errors.ServiceFailure, match=r"The last\.") as failure:
            client.send(CALL)
        assert failure.value.status == 500
        assert failure.value.endpoint == "get_running_counts"
        assert len(sandbox.control.requests()) == 3

    def test_it_is_given_up_at_the_deadline(self, on_clock: Connect, sandbox: Sandbox, clock: Clock) -> None:
        sandbox.control.fail(STATS, times=None, status=503, headers={"Retry-After": "9"})
        client = on_clock(retries=Retries(attempts=100, deadline=5))
        with pytest.raises(errors.ServiceFailure):
            client.send(CALL)
        assert clock.slept == []
        assert len(sandbox.control.requests()) == 1

    def test_the_waits_grow_up_to_a_bound(self, on_clock: Connect, sandbox: Sandbox, clock: Clock) -> None:
        sandbox.control.fail(STATS, times=39, status=503)
        client = on_clock(retries=Retries(attempts=40, first_wait=1, longest_wait=8, deadline=1e9))
        client.send(CALL)
        waits = clock.slept
        assert len(waits) == 39
        assert all(wait <= 2**number for number, wait in enumerate(waits))
        assert max(waits) <= 8
        assert sum(waits[4:]) / len(waits[4:]) == pytest.approx(4, abs=2)
        assert len(set(waits)) > 30


@pytest.mark.parametrize(
    ("status", "retry_after", "waited"),
    [
        *((status, "7", 7) for status in (429, 503)),
        # a day, for ever, and a date
        *((429, endless, 30) for endless in ("86400", "9" * 400, "Fri, 31 Dec 9998 23:59:59 GMT")),
    ],
)
def test_retry_after_holds_all_calls_up_to_a_bound(
    on_clock: Connect, sandbox: Sandbox, clock: Clock, status: int, retry_after: str, waited: int
) -> None:
    client = on_clock(retries=Retries(longest_wait=30))
    sandbox.control.fail(STATS, status=status, headers={"Retry-After": retry_after})
    client.send(CALL)
    client.send(endpoints.read_data(demo.FINISHED_TASK_ID))
    assert clock.slept == [waited]


def test_a_service_that_comes_up_late_gets_an_unsafe_call_once(connect: Connect) -> None:
    port, pauses, servers = free_port(), itertools.count(1), []
    with contextlib.ExitStack() as running:

        def come_up(seconds: float) -> None:
            if next(pauses) == 3:
                servers.append(running.enter_context(serving(lambda _: COPIED, port=port)))

        client = connect(base_url=f"http://127.0.0.1:{port}", stop=Pauses(come_up))
        assert client.send(endpoints.copy_task("t")).task_id == "new"
        assert len(servers[0].received) == 1


class TestInterruptions:
    """An exception that a signal raises is not the client's, but may leave an outcome unknown."""

    def test_an_unrepeatable_call_has_an_unknown_outcome(self, connect: Connect, scene: Scene) -> None:
        for call in [operation.call(scene) for operation in OPERATIONS if operation.doubt]:
            with serving(lambda _: None) as server:
                client = connect(base_url=server.url)
                received = server.received
                with signalled_when(lambda: received), pytest.raises(Signalled) as interruption:  # noqa: B023
                    client.send(call)
            unknown = errors.unknown_outcome(interruption.value)
            assert unknown is not None
            assert unknown.endpoint == call.endpoint.name
            assert interruption.value.__cause__ is unknown
            assert "interrupted before an answer (Signalled). Check in the service" in str(unknown)

    async def test_a_cancellation_is_told_of_too(self, connect: Connect) -> None:
        with serving(lambda _: None) as server:
            async with AsyncClient(connect(base_url=server.url).context) as client:
                sending = asyncio.create_task(client.send(endpoints.copy_task("t")))
                while not server.received:
                    await asyncio.sleep(0.01)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError) as interruption:
                    await sending
        assert errors.unknown_outcome(interruption.value) is not None

    async def test_a_cancelled_call_sends_nothing_more(self, connect: Connect, sandbox: Sandbox) -> None:
        pauses, goes_on = threading.Event(), threading.Event()

        def pause(_: float) -> None:
            pauses.set()
            goes_on.wait(PATIENCE)

        sandbox.control.fail(STATS, times=None, status=503)
        client = AsyncClient(connect().context, stop=Pauses(pause))
        sending = asyncio.create_task(client.send(CALL))
        await asyncio.to_thread(pauses.wait, PATIENCE)
        sending.cancel()
        await asyncio.wait([sending])
        goes_on.set()
        await asyncio.to_thread(until_no_thread, "webcollect-call")
        assert sending.cancelled()
        assert len(sandbox.control.requests()) == 1

    @pytest.mark.parametrize(
        ("call", "credentials"),
        [
            (CALL, Credentials(access_token="a")),
            # here, the response to the renewal of the token is outstanding
            (endpoints.copy_task("t"), Credentials(refresh_token="r")),
        ],
        ids=["safe", "unsent"],
    )
    def test_nothing_is_unknown_of_a_call_that_may_be_repeated(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch, call: Call[Any], credentials: Credentials
    ) -> None:
        monkeypatch.setattr(client_module, "INTERRUPTED_RENEWAL", 0.0)
        with serving(lambda _: None) as server:
            client = connect(base_url=server.url, credentials=credentials)
            with signalled_when(lambda: server.received), pytest.raises(Signalled) as interruption:
                client.send(call)
        client.close()
        assert len(server.received) == 1
        assert errors.unknown_outcome(interruption.value) is None

    def test_nothing_is_unknown_between_two_attempts(self, connect: Connect) -> None:
        def interrupt(_: float) -> None:
            raise Signalled

        with serving(lambda _: answer({}, status=429)) as server:
            context = connect(base_url=server.url).context
            with Client(context, stop=Pauses(interrupt)) as client, pytest.raises(Signalled) as interruption:
                client.send(endpoints.copy_task("t"))
        assert len(server.received) == 1
        assert errors.unknown_outcome(interruption.value) is None


def test_a_service_that_takes_no_connection_is_unreachable(on_clock: Connect) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        full = [socket.socket() for _ in range(4)]
        for connection in full:
            connection.setblocking(False)
            connection.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = on_clock(base_url=url, connect_timeout=0.1, retries=Retries(attempts=1))
        with pytest.raises(errors.ServiceUnreachable) as failure:
            client.send(endpoints.copy_task("t"))
        assert failure.value.unsent
        for connection in full:
            connection.close()
