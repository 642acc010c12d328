"""Transfers that fail after their commit: the next run's result has what no run has reported, once."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    Asset,
)

from airflow_provider_webcollect.landing.reader import read_landing
from tests.airflow.dag_runs import make_dag, run_dag
from tests.airflow.executions import execute
from tests.airflow.landings import landed, make_transfer, manifest, rows_at, transfer
from tests.interruption import signalled_when, until_no_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = [
    pytest.mark.usefixtures("airflow_database", "connected"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

READ, MARK = "/data/all", "/data/markexported"
MARKING: dict[str, Any] = {"mode": "incremental", "mark_exported": True, "max_part_bytes": 1}
Summary = dict[str, Any]


@pytest.fixture
def refused(sandbox: Sandbox) -> None:
    """The first mark is refused for good."""
    sandbox.control.fail(MARK, status=400, code="Odd")


def is_reported(destination: str, run_id: str) -> list[str]:
    """Return what a reader is told to be a run's."""
    return read_landing(destination).uris(new_only=run_id)


@pytest.mark.usefixtures("refused")
class TestRefusedMark:
    def fail(self, destination: str, source: dict[str, Any]) -> list[str]:
        """Land, but fail since the mark is refused; return the URIs of the parts."""
        with pytest.raises(AirflowFailException, match="Odd"):
            transfer(destination, source, run_id="first", **MARKING)
        parts = is_reported(destination, "first")
        assert len(parts) == 4
        return parts

    @pytest.mark.at_night
    def test_the_next_run_of_a_dag_names_the_parts_of_both(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        asset = Asset(f"{destination}-asset")
        events: list[dict[str, Any]] = []

        def remember(context: Any, result: Any) -> None:
            events.append(dict(context["outlet_events"][asset].extra))

        with make_dag() as dag:
            make_transfer(destination, source, outlets=[asset], post_execute=remember, **MARKING)
        first = run_dag(dag)
        assert (first.states, first.xcoms) == ({"land": "failed"}, {})
        sandbox.control.grow(source["task_id"], 30)

        second = run_dag(dag)

        summary = second.xcoms["land"]
        assert second.states == {"land": "success"}
        assert (summary["rows"], summary["parts"], summary["total_rows"]) == (430, 5, 430)
        assert rows_at(summary["uris"]) == sandbox.control.true_rows(source["task_id"])
        assert summary["uris"] == [f"file://{name}" for name in summary["objects"]]
        assert is_reported(destination, second.run_id) == summary["uris"]
        assert is_reported(destination, first.run_id) == []
        # of a run that has failed, nobody is told
        [event] = events
        assert event["uris"] == summary["uris"]

    @pytest.mark.at_night
    def test_a_run_that_finds_nothing_new_reports_them_and_is_not_skipped(
        self, source: dict[str, Any], destination: str
    ) -> None:
        parts = self.fail(destination, source)
        options = {**MARKING, "skip_if_nothing_new": True}

        second = transfer(destination, source, run_id="second", **options)

        assert (second["uris"], second["rows"], second["parts"]) == (parts, 400, 4)
        assert is_reported(destination, "second") == parts
        with pytest.raises(AirflowSkipException):
            transfer(destination, source, run_id="third", **options)


class Sources:
    """Three tasks that are landed at once, of which one can be made to fail."""

    def __init__(self, sandbox: Sandbox, destination: str) -> None:
        self.tasks = [str(sandbox.control.add_task(lots=[rows])["task_id"]) for rows in (5, 7, 9)]
        self.destination = destination
        self._control = sandbox.control
        self._foreign = Path(self.folder(2).removeprefix("file://")) / "notes.txt"

    def folder(self, index: int) -> str:
        """Return the folder of a task."""
        return f"{self.destination}/{self.tasks[index]}"

    def fail(self, run_id: str) -> None:
        """Land, but the last one fails for good: its folder has another's file until then."""
        self._foreign.parent.mkdir(parents=True)
        self._foreign.touch()
        with pytest.raises(AirflowFailException, match=r"1 of 3 sources did not land.*notes\.txt"):
            self.land(run_id)
        assert [len(is_reported(self.folder(index), run_id)) for index in (0, 1)] == [1, 1]
        self._foreign.unlink()

    def grow(self, index: int, rows: int) -> None:
        """Add rows to a task."""
        self._control.grow(self.tasks[index], rows)

    def operator(self, **options: Any) -> Any:
        """Return what lands all of them, one after another."""
        usual: dict[str, Any] = {"mode": "incremental", "sources": self.tasks, "max_concurrency": 1}
        return make_transfer(self.destination, **usual, **options)

    def land(self, run_id: str, **context: Any) -> Summary:
        """Land all of them."""
        summary: Summary = execute(self.operator(), run_id=run_id, **context)
        return summary

    def rows(self) -> list[list[dict[str, Any]]]:
        """Return the rows of each."""
        return [self._control.true_rows(task) for task in self.tasks]


@pytest.fixture
def sources(sandbox: Sandbox, destination: str) -> Sources:
    """Three tasks with 5, 7 and 9 rows."""
    return Sources(sandbox, destination)


def land_and_tell(operator: Any, meanwhile: Callable[[], None]) -> None:
    """Land in the run ``first``; something happens when that is to be an event of an asset."""

    class Extra(dict[str, Any]):
        def update(self, *facts: Any, **more: Any) -> None:
            meanwhile()
            super().update(*facts, **more)

    asset = Asset("s3://bucket/told")
    operator.outlets = [asset]
    execute(operator, run_id="first", outlet_events={asset: SimpleNamespace(extra=Extra())})


def rows_of_each(summary: Summary) -> list[list[dict[str, Any]]]:
    """Return the rows that a result names for each source."""
    return [rows_at(facts["uris"]) for facts in summary["sources"]]


@pytest.mark.usefixtures("no_pauses")
class TestSources:
    def test_the_next_run_reports_those_that_landed_though_one_failed_for_good(
        self, sources: Sources
    ) -> None:
        sources.fail("first")
        sources.grow(1, 3)

        second = sources.land("second")

        assert rows_of_each(second) == sources.rows()
        assert (second["rows"], second["parts"], second["total_rows"]) == (24, 4, 24)
        assert second["uris"] == [uri for facts in second["sources"] for uri in facts["uris"]]
        for index, facts in enumerate(second["sources"]):
            assert is_reported(sources.folder(index), "second") == facts["uris"]
            assert is_reported(sources.folder(index), "first") == []

    @pytest.mark.at_night
    def test_the_next_run_reports_those_that_landed_before_the_task_timed_out(
        self, sandbox: Sandbox, sources: Sources
    ) -> None:
        # it does not answer before the task has ended
        sandbox.control.fail(READ, kind="slow", seconds=10, after=2)

        def two_have_landed() -> bool:
            with suppress(FileNotFoundError):
                return bool(manifest(sources.folder(1)))
            return False

        with signalled_when(two_have_landed, AirflowTaskTimeout), pytest.raises(AirflowTaskTimeout):
            sources.land("first")
        until_no_thread("webcollect-land")

        assert rows_of_each(sources.land("second")) == sources.rows()
        assert sources.land("third")["uris"] == []


@pytest.mark.usefixtures("no_pauses")
class TestErrorsAfterTheLanding:
    def test_the_next_run_reports_what_a_run_has_landed_that_could_not_tell_airflow(
        self, sandbox: Sandbox, source: dict[str, Any], destination: str
    ) -> None:
        def be_away() -> None:
            raise ConnectionError("the API server is down")

        with pytest.raises(ConnectionError):
            land_and_tell(make_transfer(destination, source, mode="incremental"), be_away)
        assert len(landed(destination)) == 400
        sandbox.control.grow(source["task_id"], 30)

        second = transfer(destination, source, run_id="second", mode="incremental")

        assert rows_at(second["uris"]) == sandbox.control.true_rows(source["task_id"])
        assert is_reported(destination, "first") == []
        assert transfer(destination, source, run_id="first", mode="incremental")["uris"] == []
