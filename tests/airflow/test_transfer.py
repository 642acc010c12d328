"""The transfer: what lands, and what a retry or another run adds.

After its task has ended, it sends, commits and marks nothing; a token that expires costs no row.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, AirflowTaskTimeout
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.hooks import connection
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.landing.write.job import Observer
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.sandbox.state import Entry, RequestLog
from airflow_provider_webcollect.service.settings import ClientTiming
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)
from tests.airflow.dag_runs import make_dag, run_tasks
from tests.airflow.executions import Connect, Task, execute, on_sandbox
from tests.airflow.landings import (
    GROWING,
    Landing,
    landed,
    make_transfer,
    manifest,
    rows_at,
    table_rows,
    transfer,
)
from tests.interruption import PATIENCE, signalled_when, until_no_thread

pytestmark = on_sandbox()

READ, MARK = "/data/all", "/data/markexported"


def test_every_row_lands_in_an_attached_filesystem(landing: Landing) -> None:
    io = importlib.import_module("airflow.sdk.io" if AIRFLOW_V_3_0_PLUS else "airflow.io.store")
    io.attach("memory", fs=fsspec.filesystem("memory"))
    destination = f"memory://{landing.task_id}/landed"
    transfer(destination, landing.task)
    assert landed(destination) == landing.truth()
    assert not landing.control.task(landing.task_id)["exported"]


@pytest.mark.parametrize("many", [False, True])
def test_ids_of_digits_survive_native_rendering(sandbox: Sandbox, destination: str, many: bool) -> None:
    sandbox.control.add_task(task_id="20260103", lots=[5])
    source = {"collection_task_id": "{{ params.task }}", "lotno": "{{ params.lotno }}"}
    what: dict[str, Any] = {"sources": [source, "{{ params.other }}"]} if many else source
    with make_dag(render_template_as_native_obj=True):
        operator = make_transfer(destination, **what)
    # the first source does not exist
    with pytest.raises(AirflowFailException):
        execute(operator, params={"task": "20260101", "lotno": "20260102", "other": "20260103"})

    (request,) = sandbox.control.requests("/data/lotno/all")
    assert (request["query"]["taskId"], request["query"]["lotno"]) == ("20260101", "20260102")
    if many:
        assert landed(f"{destination}/20260103") == sandbox.control.true_rows("20260103")


def test_it_can_be_mapped_and_the_manifest_names_the_run(two_ids: list[str], tmp_path: Path) -> None:
    run = run_tasks(
        lambda: WebCollectToObjectStorageOperator.partial(task_id="land").expand_kwargs(
            [{"collection_task_id": task, "destination": f"file://{tmp_path}/{task}"} for task in two_ids]
        )
    )

    assert [run.xcoms[f"land[{index}]"]["rows"] for index in range(2)] == [5, 7]
    named = manifest(f"file://{tmp_path}/{two_ids[1]}")["run"]
    assert (named["task_id"], named["run_id"], named["map_index"]) == ("land", run.run_id, 1)


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({"file_format": "csv", "compression": "gzip", "sanitize_formulas": True}, {"format": "csv"}),
        # the default
        ({"compression": "{{ '' }}"}, {"format": "jsonl", "compression": None}),
    ],
)
def test_a_format_can_be_chosen(landing: Landing, options: dict[str, Any], written: dict[str, Any]) -> None:
    assert landing.transfer(**options)["rows"] == 400
    assert landing.manifest().items() >= written.items()


@pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.at_night)])
def test_the_format_of_a_table_may_be_a_template(landing: Landing, native: bool) -> None:
    def to(folder: str, kind: str | None) -> str:
        place = f"{landing.destination}/{folder}"
        with make_dag(render_template_as_native_obj=native):
            operator = make_transfer(place, landing.task, table_format="{{ params.kind }}")
        execute(operator, params={"kind": kind})
        return place

    assert table_rows(to("table", "delta")) == landing.truth()
    # the default format is JSON lines in folders, and Parquet in tables
    assert landed(to("folder", None if native else "")) == landing.truth()


class TestManySources:
    def test_each_has_a_folder_of_its_own(self, landing: Landing, tmp_path: Path, two_ids: list[str]) -> None:
        own = f"file://{tmp_path}/elsewhere"
        batch = {"collection_task_id": landing.task_id, "lotno": "000002"}
        elsewhere = {"collection_task_id": two_ids[1], "destination": own}
        summary = transfer(landing.destination, sources=[batch, two_ids[0], elsewhere])

        folders = [f"{landing.destination}/{name}" for name in (f"{landing.task_id}/000002", two_ids[0])]
        assert [source["destination"] for source in summary["sources"]] == [*folders, own]
        assert (summary["rows"], summary["parts"]) == (162, 3)
        truth = [landing.truth("000002"), *map(landing.control.true_rows, two_ids)]
        assert [landed(folder) for folder in (*folders, own)] == truth

    def test_only_one_that_fails_is_retried(self, sandbox: Sandbox, destination: str) -> None:
        tasks = [sandbox.control.add_task(lots=[10])["task_id"] for _ in range(6)]
        sandbox.control.fail(READ, after=2, status=400, code="TaskExecuting")
        summary = transfer(destination, tries=2, sources=tasks, max_concurrency=1)
        read = [request["query"]["taskId"] for request in sandbox.control.requests(READ)]
        assert read == [*tasks, tasks[2]]
        rows = [*map(sandbox.control.true_rows, tasks)]
        assert [landed(f"{destination}/{task}") for task in tasks] == rows
        # the result names the parts that any try has landed
        assert [rows_at(facts["uris"]) for facts in summary["sources"]] == rows
        assert [facts["commit"] for facts in summary["sources"]] == [1] * 6
        for listed in ("uris", "objects"):
            assert summary[listed] == [name for facts in summary["sources"] for name in facts[listed]]

    def test_late_rows_are_waited_for_together(self, sandbox: Sandbox, destination: str) -> None:
        tasks = [sandbox.control.add_task(lots=[10])["task_id"] for _ in range(4)]
        options = {"sources": tasks, "max_concurrency": 1, **GROWING}
        transfer(destination, run_id="first", **options)
        sandbox.control.clear_requests()
        transfer(destination, run_id="second", late_rows_delay=0.3, **options)

        read = [request["query"]["taskId"] for request in sandbox.control.requests(READ)]
        # a source that waits is read twice; once the first has waited, the time is over for the others
        assert [read.count(task) for task in tasks[1:]] == [1, 1, 1]


class TestWhichMode:
    def test_by_default_a_task_grows_and_a_batch_lands_once(self, landing: Landing) -> None:
        other = landing.control.add_task(lots=[10])["task_id"]
        batch = {"collection_task_id": landing.task_id, "lotno": "000002"}
        first = transfer(landing.destination, sources=[batch, other], **GROWING)
        landing.control.grow(other, 5)
        with pytest.raises(AirflowFailException, match=r"1 of 2 sources did not land.*batch 000002"):
            transfer(landing.destination, sources=[batch, other], **GROWING)

        assert [source.get("total_rows") for source in first["sources"]] == [None, 10]
        assert "total_rows" not in first
        assert landed(f"{landing.destination}/{other}") == landing.control.true_rows(other)
        assert landed(f"{landing.destination}/{landing.task_id}/000002") == landing.truth("000002")

    def test_a_template_that_gives_no_batch_lands_the_task(self, landing: Landing) -> None:
        options = {"lotno": "{{ '' }}", "skip_if_nothing_new": True, **GROWING}
        assert landing.transfer(**options)["rows"] == 400
        landing.grow()
        assert landing.transfer(**options)["rows"] == 30

    @pytest.mark.parametrize(("name", "value"), [("skip_if_nothing_new", True), ("on_reset", "append")])
    def test_wrong_options_of_a_batch_send_nothing(self, landing: Landing, name: str, value: object) -> None:
        with pytest.raises(AirflowFailException, match=rf"`{name}`.*not the default of a batch"):
            landing.transfer(**{"lotno": "{{ '000002' }}", **GROWING, name: value})
        assert landing.control.requests() == []

    @pytest.mark.parametrize("mode", ["incremental", "{{ 'incremental' }}"])
    def test_a_batch_can_grow_too(self, landing: Landing, mode: str) -> None:
        options = {"lotno": "000002", "mode": mode, "skip_if_nothing_new": True}
        assert landing.transfer(**options)["total_rows"] == 150
        with pytest.raises(AirflowSkipException):
            landing.transfer(**options)


def test_a_later_run_adds_what_is_new_and_names_its_parts_alone(landing: Landing) -> None:
    first = landing.transfer(**GROWING)
    landing.grow()
    second, third = (landing.transfer(**GROWING) for _ in range(2))
    with pytest.raises(AirflowSkipException):
        landing.transfer(**GROWING, skip_if_nothing_new=True)

    rows = landing.truth()
    assert landing.rows() == rows
    assert (rows_at(first["uris"]), rows_at(second["uris"])) == (rows[:400], rows[400:])
    assert (third["uris"], third["objects"]) == ([], [])
    # a run that has found nothing new has made no commit
    facts = [(run["rows"], run["total_rows"], run["commit"]) for run in (first, second, third)]
    assert facts == [(400, 400, 1), (30, 430, 2), (0, 430, 2)]


def test_a_reset_source_fails_for_good_unless_told_otherwise(landing: Landing) -> None:
    landing.transfer(**GROWING)
    landing.control.reset_data(landing.task_id)
    landing.grow(20)
    with pytest.raises(AirflowFailException):
        landing.transfer(**GROWING)
    assert landing.transfer(**GROWING, on_reset="full")["rows"] == 20


def sent(landing: Landing, path: str) -> int:
    """Return how many requests for a path the service has answered."""
    return len(landing.control.requests(path))


def end_when(
    landing: Landing,
    happened: Callable[[], object],
    then: Callable[[], object] = lambda: None,
    **options: Any,
) -> dict[str, Any] | None:
    """Land a task as one of many sources, and end Airflow's task once something has happened.

    :return: the manifest; None if nothing was committed.
    """
    with signalled_when(happened, AirflowTaskTimeout), pytest.raises(AirflowTaskTimeout):
        transfer(landing.destination, sources=[landing.task_id], **options)
    then()
    until_no_thread("webcollect-land")
    with contextlib.suppress(FileNotFoundError):
        return manifest(f"{landing.destination}/{landing.task_id}")
    return None


def test_nothing_is_read_with_a_token_that_comes_later(
    sandbox: Sandbox, set_connection: Connect, landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    # longer than the test waits, so that a landing that still waits does not pass for an ended one
    monkeypatch.setattr(connection, "TIMING", ClientTiming(patience=2 * PATIENCE))
    set_connection(extra={"refresh_token": sandbox.refresh_token, "token_refresh": "keeper"})
    committed = end_when(
        landing,
        lambda: any(thread.name == "webcollect-land" for thread in threading.enumerate()),
        then=WebCollectHook().refresh_token,
    )
    assert (sent(landing, "/token"), sent(landing, READ), committed) == (1, 0, None)


def test_nothing_is_committed_after_the_end(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()
    # before it marks, the landing waits for late rows
    monkeypatch.setattr(Observer, "on_late_rows_wait", lambda observer, seconds: waiting.set())
    committed = end_when(landing, waiting.is_set, mark_exported=True, late_rows_delay=PATIENCE)
    assert (sent(landing, MARK), committed) == (0, None)


@pytest.fixture
def at_page_20(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Calls a function while the twentieth page is answered."""
    # otherwise, on a slow machine, the client asks for the next page meanwhile
    monkeypatch.setattr(connection, "TIMING", ClientTiming(adoption=0.1, slow_response=PATIENCE))
    add = RequestLog.add

    def plan(action: Callable[[], None]) -> None:
        def add_and_act(log: RequestLog, entry: Entry) -> None:
            add(log, entry)
            if entry.endpoint == READ and log.counters()[READ].total() == 20:
                action()

        monkeypatch.setattr(RequestLog, "add", add_and_act)

    return plan


#: Options with which a task of 400 rows has 40 pages.
PAGES: dict[str, Any] = {"page_size": 10, "max_part_bytes": 10_000}


def test_the_end_of_a_token_costs_no_page_and_one_renewal(
    sandbox: Sandbox, source: Task, destination: str, at_page_20: Callable[..., None]
) -> None:
    at_page_20(sandbox._state.tokens.expire)
    transfer(destination, source, **PAGES)
    assert landed(destination) == sandbox.control.true_rows(source["task_id"])
    pages = sandbox.control.counters()[READ]
    assert (pages[200], pages[401]) == (40, 1)
    assert [request["status"] for request in sandbox.control.requests("/token")] == [200, 200]


def test_a_credential_that_a_person_replaces_is_used(
    sandbox: Sandbox, source: Task, destination: str, set_connection: Connect, at_page_20: Callable[..., None]
) -> None:
    def replace() -> None:
        set_connection(login=sandbox.username, password=sandbox.password, extra={})
        sandbox._state.tokens.expire(refresh_tokens=True)

    at_page_20(replace)
    transfer(destination, source, tries=2, **PAGES)

    assert landed(destination) == sandbox.control.true_rows(source["task_id"])
    assert [request["status"] for request in sandbox.control.requests("/token")] == [200, 400, 200]
