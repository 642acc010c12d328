"""Several landings at once: who hears of what, what is left running when the caller is interrupted, and what
keeps those that have landed until they are reported."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import fsspec
import pytest

from airflow_provider_webcollect.landing.errors import LeaseLost, SomeFailed, SourceReset
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import PROGRESS
from airflow_provider_webcollect.landing.run import Unreported, land, land_all
from tests.interruption import Signalled, ended_by, signalled_when
from tests.landing.conftest import Folder
from tests.landing.pages import Rows, job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def fail(error: BaseException) -> str:
    raise error


def test_results_come_in_the_order_of_the_jobs() -> None:
    first_may_end = threading.Event()

    def wait() -> str:
        assert first_may_end.wait(10)
        return "one"

    def go_on() -> str:
        first_may_end.set()
        return "two"

    assert list(land_all({"a": wait, "b": go_on}, 2).items()) == [("a", "one"), ("b", "two")]


def test_the_error_names_all_that_failed() -> None:
    reset = SourceReset("it is another")
    with pytest.raises(SomeFailed, match=r"1 of 3 sources did not land\. b: it is another") as failed:
        land_all({"a": lambda: "one", "b": partial(fail, reset), "c": lambda: "three"}, 2)

    assert failed.value.errors == {"b": reset}
    assert failed.value.permanent


@pytest.mark.parametrize("other", [ConnectionError("gone"), SourceReset("reset")], ids=["passing", "lasting"])
def test_trying_again_is_in_vain_only_if_it_is_for_all_errors(other: Exception) -> None:
    with pytest.raises(SomeFailed) as failed:
        land_all({"a": partial(fail, SourceReset("reset")), "b": partial(fail, other)}, 2)

    assert failed.value.permanent == isinstance(other, SourceReset)


def test_after_an_interruption_no_other_begins() -> None:
    begun: list[str] = []
    may_end = threading.Event()

    def work(name: str) -> None:
        begun.append(name)
        assert may_end.wait(10)

    with signalled_when(lambda: begun), pytest.raises(Signalled):
        land_all({name: partial(work, name) for name in ("a", "b", "c")}, 1)
    may_end.set()
    for thread in threading.enumerate():
        if thread.name == "webcollect-land":
            thread.join()

    assert begun == ["a"]


@pytest.mark.parametrize(
    "interrupt",
    ["os.kill(os.getpid(), signal.SIGINT)", "signal.pthread_kill(threading.get_ident(), signal.SIGINT)"],
    ids=["it", "another of its threads"],
)
def test_a_process_that_is_interrupted_ends_though_a_landing_hangs(interrupt: str) -> None:
    script = f"""
import os, signal, threading, time
from airflow_provider_webcollect.landing.run import land_all

def hang():
    time.sleep(0.2)  # until the main thread waits
    {interrupt}
    threading.Event().wait()

land_all({{"a": hang}}, 1)
"""
    assert ended_by(script) == "KeyboardInterrupt"


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class TestUnreported:
    """Two folders in which run r1 has landed and not reported yet."""

    @pytest.fixture
    def folders(self, tmp_path: Path) -> list[Folder]:
        return [Folder(fsspec.filesystem("file"), str(tmp_path / name)) for name in ("a", "b")]

    @staticmethod
    def land(folder: Folder, run: str = "r1") -> Landed:
        return land(job(Rows(10), folder.destination, run, mode="incremental"), finish=False)

    @classmethod
    def report(cls, folders: list[Folder], work: Callable[[], object], interval: float = 0.001) -> None:
        """Land in the folders and report it: ``work`` is done before the reports end."""
        with Unreported(interval) as unreported:
            for folder in folders:
                assert len(unreported.add(cls.land(folder)).new) == 2
            work()

    @classmethod
    def takes_over(cls, folder: Folder) -> bool:
        """Whether another run reports what r1 has landed."""
        return cls.land(folder, "r2").new != ()

    def test_they_are_reported_at_the_end(self, folders: list[Folder]) -> None:
        self.report(folders, lambda: None)
        assert not any(PROGRESS in folder.names() for folder in folders)
        assert not any(self.takes_over(folder) for folder in folders)

    def test_until_then_their_heartbeats_go_on(self, folders: list[Folder]) -> None:
        def heartbeats() -> list[int]:
            return [folder.record().heartbeat for folder in folders]

        def wait() -> None:
            before = heartbeats()
            until(lambda: all(now > then + 1 for now, then in zip(heartbeats(), before, strict=True)))

        self.report(folders, wait)
        until(lambda: "webcollect-unreported" not in {thread.name for thread in threading.enumerate()})
        assert not any(PROGRESS in folder.names() for folder in folders)

    def test_after_an_error_the_next_run_takes_them_over_without_watching_them(
        self, folders: list[Folder]
    ) -> None:
        with pytest.raises(ConnectionError):
            self.report(folders, partial(fail, ConnectionError("the API server is down")))
        assert [folder.record().owner for folder in folders] == ["", ""]
        assert all(self.takes_over(folder) for folder in folders)

    def test_after_an_interruption_no_storage_is_waited_for(self, folders: list[Folder]) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.report(folders, partial(fail, KeyboardInterrupt()))
        until(lambda: "webcollect-unreported" not in {thread.name for thread in threading.enumerate()})
        assert "" not in [folder.record().owner for folder in folders]
        assert all(self.takes_over(folder) for folder in folders)

    def test_if_one_was_taken_over_none_of_them_is_reported(self, folders: list[Folder]) -> None:
        with pytest.raises(LeaseLost):
            # the other takes it for dead between two heartbeats
            self.report(folders, lambda: self.land(folders[1], "other").finish(), interval=60)
        assert self.takes_over(folders[0])
        assert not self.takes_over(folders[1])
