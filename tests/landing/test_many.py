"""Several landings at once: who hears of what, what is left running when the caller is interrupted, and what
keeps those that have landed until they are reported."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import fsspec
import pytest

from airflow_provider_webcollect.landing import run
from airflow_provider_webcollect.landing.errors import LeaseLost, SomeFailed, SourceReset, StorageError
from airflow_provider_webcollect.landing.job import Landed, LeaseTiming
from airflow_provider_webcollect.landing.manifest import MANIFEST, PROGRESS, Manifest, decode
from airflow_provider_webcollect.landing.run import Unreported, land_all, run_job
from airflow_provider_webcollect.service.errors import Stopped
from tests.interruption import PATIENCE, Signalled, ended_by, signalled_when, until, until_no_thread
from tests.landing.conftest import Folder
from tests.landing.pages import Rows, changed, finish, job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def fail(error: BaseException) -> str:
    raise error


def test_results_come_in_the_order_of_the_jobs() -> None:
    first_may_end = threading.Event()

    def wait() -> str:
        assert first_may_end.wait(PATIENCE)
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
        assert may_end.wait(PATIENCE)

    with signalled_when(lambda: begun), pytest.raises(Signalled):
        land_all({name: partial(work, name) for name in ("a", "b", "c")}, 1)
    may_end.set()
    until_no_thread("webcollect-land")

    assert begun == ["a"]


@pytest.mark.parametrize(
    "interrupt",
    ["os.kill(os.getpid(), signal.SIGINT)", "signal.pthread_kill(threading.get_ident(), signal.SIGINT)"],
    ids=["it", "another of its threads"],
)
def test_a_process_that_is_interrupted_ends_though_a_landing_hangs(interrupt: str) -> None:
    script = f"""
import os, signal, sys, threading, time
from airflow_provider_webcollect.landing.run import land_all

def hang():
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_filename != threading.__file__:
        time.sleep(0.01)  # until the main thread waits
    {interrupt}
    threading.Event().wait()

land_all({{"a": hang}}, 1)
"""
    assert ended_by(script) == "KeyboardInterrupt"


class Stub:
    """A report that does what it is told to in one of its steps."""

    def __init__(self, step: str, work: Callable[[], object]) -> None:
        self._step, self._work = step, work

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *_: self._work() if name == self._step else None


class TestUnreported:
    """Two folders in which run r1 has landed and not reported yet."""

    @pytest.fixture
    def folders(self, tmp_path: Path) -> list[Folder]:
        return [Folder(fsspec.filesystem("file"), str(tmp_path / name)) for name in ("a", "b")]

    @staticmethod
    def land(folder: Folder, run: str = "r1", heartbeats: float = 60) -> Landed:
        timing = LeaseTiming(heartbeat_interval=heartbeats, progress_interval=0)
        return run_job(
            job(Rows(10), folder.destination, run, mode="incremental", timing=timing), finish=False
        )

    @classmethod
    def report(
        cls,
        folders: list[Folder],
        work: Callable[[], object] = lambda: None,
        *,
        last: Stub | None = None,
        heartbeats: float = 60,
    ) -> None:
        """Land in the folders and report it.

        :param work: is done before the reports end.
        :param last: a report that ends after theirs.
        """
        with Unreported() as unreported:
            for folder in folders:
                assert len(unreported.add(cls.land(folder, heartbeats=heartbeats)).new) == 2
            if last is not None:
                unreported.add(Landed(decode(folders[0].read(MANIFEST), MANIFEST, Manifest), report=last))
            work()

    @classmethod
    def takes_over(cls, folder: Folder) -> bool:
        """Whether another run reports what r1 has landed."""
        return cls.land(folder, "r2").new != ()

    @staticmethod
    def beats(folders: list[Folder]) -> None:
        """Wait until each record has got two more heartbeats."""
        before = [folder.progress().heartbeat for folder in folders]
        until(
            lambda: all(
                folder.progress().heartbeat > count + 1 for folder, count in zip(folders, before, strict=True)
            )
        )

    def test_until_then_their_heartbeats_go_on(self, folders: list[Folder]) -> None:
        self.report(folders, partial(self.beats, folders), heartbeats=0.001)
        until_no_thread("webcollect-lease")
        assert not any(PROGRESS in folder.names() for folder in folders)

    def test_after_an_error_the_next_run_takes_them_over_without_watching_them(
        self, folders: list[Folder]
    ) -> None:
        with pytest.raises(ConnectionError):
            self.report(folders, partial(fail, ConnectionError("the API server is down")))
        assert [folder.progress().owner for folder in folders] == ["", ""]
        assert all(self.takes_over(folder) for folder in folders)

    def test_an_error_at_the_end_leaves_all_of_them_to_the_next_run(self, folders: list[Folder]) -> None:
        with pytest.raises(StorageError):
            self.report(folders, last=Stub("tidy", partial(fail, StorageError("the storage is down"))))
        assert [folder.progress().owner for folder in folders] == ["", ""]
        assert all(self.takes_over(folder) for folder in folders)

    def test_a_storage_that_is_down_is_not_waited_for(
        self, folders: list[Folder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run, "LONGEST_WAIT", 0.5)
        hangs = threading.Event()
        with pytest.raises(ConnectionError):
            self.report(
                folders, partial(fail, ConnectionError("all is down")), last=Stub("release", hangs.wait)
            )
        hangs.set()
        assert all(self.takes_over(folder) for folder in folders)

    def test_after_an_interruption_no_storage_is_waited_for(self, folders: list[Folder]) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.report(folders, partial(fail, KeyboardInterrupt()), heartbeats=0.001)
        until_no_thread("webcollect-lease")
        assert "" not in [folder.progress().owner for folder in folders]
        assert all(self.takes_over(folder) for folder in folders)

    def test_if_one_was_taken_over_none_of_them_is_reported(self, folders: list[Folder]) -> None:
        with pytest.raises(LeaseLost):
            # the other takes it for dead between two heartbeats
            self.report(folders, lambda: finish(self.land(folders[1], "other")))
        assert self.takes_over(folders[0])
        assert not self.takes_over(folders[1])

    def test_a_landing_alone_that_is_stopped_right_after_its_commit_is_taken_over_at_once(
        self, folders: list[Folder]
    ) -> None:
        stopped = job(Rows(10), folders[0].destination, "r1", mode="incremental")
        with pytest.raises(Stopped):
            run_job(changed(stopped, on_commit=lambda landed: stopped.stop.set()))
        assert folders[0].progress().owner == ""
        assert self.takes_over(folders[0])
