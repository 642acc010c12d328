"""Several landings at once: which errors are raised, and what is left running after an interruption."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from airflow_provider_webcollect.landing.errors import SomeFailed, SourceReset
from airflow_provider_webcollect.landing.write.run import land_all
from tests.interruption import PATIENCE, Signalled, ended_by, signalled_when, until_no_thread


def fail(error: BaseException) -> str:
    raise error


def test_jobs_run_at_once() -> None:
    first_may_end = threading.Event()

    def wait() -> None:
        assert first_may_end.wait(PATIENCE)

    land_all({"a": wait, "b": first_may_end.set}, 2)


@pytest.mark.parametrize("other", [ConnectionError("gone"), SourceReset("gone")], ids=["passing", "lasting"])
def test_the_error_names_all_that_failed(other: Exception) -> None:
    reset = SourceReset("it is another")
    jobs = {"a": partial(str, "one"), "b": partial(fail, reset), "c": partial(fail, other)}
    with pytest.raises(SomeFailed, match=r"2 of 3 sources did not land\. b: it is another.*gone") as failed:
        land_all(jobs, 2)
    assert failed.value.errors == {"b": reset, "c": other}
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
def test_an_interrupted_process_ends_though_a_landing_hangs(interrupt: str) -> None:
    script = f"""
import os, signal, sys, threading, time
from airflow_provider_webcollect.landing.write.run import land_all

def hang():
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_filename != threading.__file__:
        time.sleep(0.01)  # until the main thread waits
    {interrupt}
    threading.Event().wait()

land_all({{"a": hang}}, 1)
"""
    assert ended_by(script) == "KeyboardInterrupt"
