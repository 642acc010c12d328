"""The OpenTelemetry spans below the span of a task, which show where its time goes."""

from __future__ import annotations

import asyncio
import functools
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_provider_webcollect.landing.log.commits import Run, Source
from airflow_provider_webcollect.landing.options import LandOptions
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.write.job import Landed, job_of
from airflow_provider_webcollect.landing.write.run import land_all, run_job
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.client import AsyncClient, Client
from airflow_provider_webcollect.service.errors import PermissionDenied
from airflow_provider_webcollect.service.pages import PageReader
from airflow_provider_webcollect.service.settings import ClientTiming, Credentials
from airflow_provider_webcollect.waiting.conditions import TASK_STATUSES
from airflow_provider_webcollect.waiting.poll import Poll
from tests.spans import Spans, recording

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

READ = "/data/all"
CALL = endpoints.get_running_counts()
#: With the first, no response counts as slow and no page is prefetched; with the second, all but one are.
IN_TURN, PREFETCHING = ClientTiming(slow_response=float("inf")), ClientTiming(slow_response=0.0)

Connect = Callable[..., Client]
Land = Callable[..., Landed]


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recording() as spans:
        yield spans


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect(timing=IN_TURN)


@pytest.fixture
def land(client: Client, tmp_path: Path) -> Land:
    """Lands a collection task, with pages of 100 rows."""
    usual_client = client

    def land(task_id: str, *, client: Client = usual_client, **options: Any) -> Landed:
        usual: dict[str, Any] = {"mode": "full", "page_size": 100, "late_rows_delay": 0.0}
        return run_job(
            job_of(
                client,
                Source(collection_task_id=task_id),
                Folder(fsspec.filesystem("file"), str(tmp_path / task_id)),
                Run(dag_id="d", task_id="t", run_id="r1"),
                LandOptions.parse({**usual, **options}),
            )
        )

    return land


def task_of(sandbox: Sandbox, rows: int) -> str:
    return str(sandbox.control.add_task(lots=[rows])["task_id"])


def is_tree(spans: Spans, tree: str) -> bool:
    """Assert that this tree was recorded, so that pytest shows a difference by lines."""
    assert spans.tree().splitlines() == textwrap.dedent(tree).strip().splitlines()
    return True


def test_a_landing_has_a_span_for_each_of_its_steps(spans: Spans, sandbox: Sandbox, land: Land) -> None:
    task_id = task_of(sandbox, 250)
    with spans.of_task():
        rows = {"checks": {"rows": {"min": 1}}, "late_rows_delay": 0.01, "mark_exported": True}
        land(task_id, max_part_bytes=30_000, **rows)
    assert is_tree(
        spans,
        """
        task
          landing rows=250
            page offset=0 rows=100
              call endpoint=read_data http.response.status_code=200
                token
            part offset=0 rows=200
              page offset=1024 rows=100
                call endpoint=read_data http.response.status_code=200
            page offset=1124 rows=50
              call endpoint=read_data http.response.status_code=200
            part offset=1124 rows=50
            page offset=1174 rows=0
              call endpoint=read_data http.response.status_code=200
            wait
            page offset=1174 rows=0
              call endpoint=read_data http.response.status_code=200
            page offset=0 rows=100
              call endpoint=read_data http.response.status_code=200
            check checks.count=1 checks.failed=0
            commit commit.number=1 commit.kind=landed rows=250 parts=2
            publish
            mark
              call endpoint=mark_exported http.response.status_code=200
            commit commit.number=2 commit.kind=exported rows=0 parts=0
            publish
        """,
    )
    (landing,) = spans.named("webcollect.landing")
    assert landing.attributes == {"webcollect.collection_task_id": task_id, "webcollect.rows": 250}


def test_a_call_has_the_attributes_of_http(spans: Spans, client: Client) -> None:
    with spans.of_task():
        client.send(CALL)
    (call,) = spans.named("webcollect.call")
    assert call.kind.name == "CLIENT"
    assert call.attributes == {
        "webcollect.endpoint": "get_running_counts",
        "http.request.method": "GET",
        "url.template": "/cloudextraction/task/stats",
        "server.address": "127.0.0.1",
        "http.response.status_code": 200,
    }


def test_a_retried_page_shows_each_attempt_and_no_secret(
    spans: Spans, sandbox: Sandbox, connect: Connect, land: Land
) -> None:
    credentials = Credentials(access_token=sandbox.access_token, refresh_token=sandbox.refresh_token)
    client = connect(timing=IN_TURN, credentials=credentials)
    task_id = task_of(sandbox, 50)
    sandbox.control.fail(READ, status=503)
    sandbox.control.fail(READ, kind="drop")
    sandbox.control.expire_tokens()
    with spans.of_task():
        land(task_id, client=client)
    assert is_tree(
        spans,
        """
        task
          landing rows=50
            page offset=0 rows=50
              call endpoint=read_data http.response.status_code=200
                * attempt_failed error.type=ServiceFailure http.response.status_code=503
                * attempt_failed error.type=NoResponse
                * attempt_failed error.type=TokenRejected http.response.status_code=401
                token
                token
                  renewal
                    call endpoint=refresh_token http.response.status_code=200
            part offset=0 rows=50
            commit commit.number=1 commit.kind=landed rows=50 parts=1
            publish
        """,
    )
    recorded = "".join(span.to_json() for span in spans.all())
    tokens = {client.context.tokens.current(), *credentials.secrets()}
    assert [token for token in tokens if token and token in recorded] == []


def test_what_fails_has_the_class_of_its_error_alone(spans: Spans, sandbox: Sandbox, land: Land) -> None:
    sandbox.control.fail(READ, status=403, code="PermissionDenied", message="Of a row: 4711.")
    task_id = task_of(sandbox, 50)
    with spans.of_task(), pytest.raises(PermissionDenied, match="4711"):
        land(task_id)
    assert "4711" not in "".join(span.to_json() for span in spans.all() if span.name != "task")
    denied = "error.type=PermissionDenied"
    assert [line for line in spans.tree().splitlines() if not line.startswith("task")] == [
        f"  landing {denied} ERROR",
        f"    page offset=0 {denied} ERROR",
        f"      call endpoint=read_data http.response.status_code=403 {denied} ERROR",
        f"        * attempt_failed {denied} http.response.status_code=403",
        "        token",
    ]


def test_a_prefetched_page_says_so(spans: Spans, sandbox: Sandbox, connect: Connect) -> None:
    reader = PageReader(connect(timing=PREFETCHING), task_of(sandbox, 30), size=10)
    with spans.of_task():
        assert [len(page.rows) for page in reader.pages()] == [10, 10, 10]
    assert is_tree(
        spans,
        """
        task
          page offset=0 rows=10
            call endpoint=read_data http.response.status_code=200
              token
          page offset=934 rows=10
            call endpoint=read_data is_prefetched=True http.response.status_code=200
          page offset=944 rows=10
            call endpoint=read_data is_prefetched=True http.response.status_code=200
        """,
    )


def test_a_wait_for_the_rate_limit_is_an_event(spans: Spans, connect: Connect) -> None:
    client = connect(requests_per_second=100)
    with spans.of_task():
        for _ in range(9):
            client.send(CALL)
    events = [event for call in spans.named("webcollect.call") for event in call.events]
    assert {event.name for event in events} == {"webcollect.rate_limit_wait"}
    waited = [(event.attributes or {})["webcollect.seconds"] for event in events]
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in waited)


def test_beyond_a_hundred_pages_few_are_recorded(spans: Spans, sandbox: Sandbox, connect: Connect) -> None:
    credentials = Credentials(access_token=sandbox.access_token, refresh_token=sandbox.refresh_token)
    reader = PageReader(connect(timing=IN_TURN, credentials=credentials), task_of(sandbox, 301), size=1)
    offsets = [0]
    with spans.of_task():
        for page in reader.pages():
            offsets.append(page.offset)
            if len(offsets) == 150:
                sandbox.control.expire_tokens()
    numbers = [*range(1, 101), 200, 300]
    pages = spans.named("webcollect.page")
    assert [(page.attributes or {})["webcollect.offset"] for page in pages] == [
        offsets[number - 1] for number in numbers
    ]
    # the spans below a page that is not recorded move below the enclosing span
    assert spans.tree().splitlines()[-7:] == [
        "  token",
        "    renewal",
        "      call endpoint=refresh_token http.response.status_code=200",
        f"  page offset={offsets[199]} rows=1",
        "    call endpoint=read_data http.response.status_code=200",
        f"  page offset={offsets[299]} rows=1",
        "    call endpoint=read_data http.response.status_code=200",
    ]


def test_sources_are_each_below_the_task(spans: Spans, sandbox: Sandbox, land: Land) -> None:
    tasks = [task_of(sandbox, rows) for rows in (10, 20)]
    with spans.of_task():
        land_all({task_id: functools.partial(land, task_id) for task_id in tasks}, 2)
    (task,), landings = spans.named("task"), spans.named("webcollect.landing")
    assert [span.parent == task.context for span in landings] == [True, True]
    assert {(span.attributes or {})["webcollect.rows"] for span in landings} == {10, 20}


async def test_one_poll_is_linked_to_several_waits(spans: Spans, sandbox: Sandbox, connect: Connect) -> None:
    tasks = [task_of(sandbox, 1) for _ in range(3)]

    async def wait(number: int) -> None:
        with spans.of_task(f"trigger {number}"):
            await poll.until([tasks[number]], 60, lambda states: states)

    async with AsyncClient(connect(timing=IN_TURN).context) as client:
        poll = Poll(lambda keys: client.run(lambda sender: TASK_STATUSES.ask(sender, keys)), 100)
        await asyncio.gather(*map(wait, range(3)))
    assert is_tree(
        spans,
        """
        trigger 0
          poll keys=3 waits=3
            call endpoint=get_task_statuses_v2 http.response.status_code=200
              token
        trigger 1
        trigger 2
        """,
    )
    (poll_span,) = spans.named("webcollect.poll")
    others = [span.context for number in (1, 2) for span in spans.named(f"trigger {number}")]
    assert [link.context for link in poll_span.links] == others


def test_nothing_is_recorded_without_a_span_around_it(spans: Spans, sandbox: Sandbox, land: Land) -> None:
    land(task_of(sandbox, 50))
    assert spans.all() == []
