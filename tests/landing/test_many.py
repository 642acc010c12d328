"""Several landings at once: who hears of what, and what is left running when the caller is interrupted."""

from __future__ import annotations

import signal
import threading
from functools import partial

import pytest

from airflow_provider_webcollect.landing.errors import SomeFailed, SourceReset
from airflow_provider_webcollect.landing.many import land_all
from tests.landing.interruption import ended_by


def land(result: str, stop: threading.Event) -> str:
    return result


def fail(error: Exception, stop: threading.Event) -> str:
    raise error


def test_results_come_in_the_order_of_the_jobs() -> None:
    first_may_end = threading.Event()

    def wait(stop: threading.Event) -> str:
        assert first_may_end.wait(10)
        return "one"

    def go_on(stop: threading.Event) -> str:
        first_may_end.set()
        return "two"

    assert list(land_all({"a": wait, "b": go_on}, 2).items()) == [("a", "one"), ("b", "two")]


def test_the_error_names_all_that_failed() -> None:
    reset = SourceReset("it is another")
    with pytest.raises(SomeFailed, match=r"1 of 3 sources did not land\. b: it is another") as failed:
        land_all({"a": partial(land, "one"), "b": partial(fail, reset), "c": partial(land, "three")}, 2)

    assert failed.value.errors == {"b": reset}
    assert failed.value.permanent


@pytest.mark.parametrize("other", [ConnectionError("gone"), SourceReset("reset")], ids=["passing", "lasting"])
def test_trying_again_is_in_vain_only_if_it_is_for_all_errors(other: Exception) -> None:
    with pytest.raises(SomeFailed) as failed:
        land_all({"a": partial(fail, SourceReset("reset")), "b": partial(fail, other)}, 2)

    assert failed.value.permanent == isinstance(other, SourceReset)


class Timeout(BaseException):
    """What Airflow raises in the main thread when a task takes too long."""


def test_an_interruption_stops_those_at_work_and_keeps_the_rest_from_beginning() -> None:
    begun: list[str] = []
    stopped = threading.Event()

    def end_the_task(number: int, frame: object) -> None:
        raise Timeout

    def work(name: str, stop: threading.Event) -> None:
        begun.append(name)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        assert stop.wait(10)
        stopped.set()

    before = signal.signal(signal.SIGUSR1, end_the_task)
    try:
        with pytest.raises(Timeout):
            land_all({name: partial(work, name) for name in ("a", "b", "c")}, 1)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert stopped.wait(10)
    assert begun == ["a"]


def test_a_process_that_is_interrupted_ends_though_a_landing_hangs() -> None:
    script = """
import os, signal, threading
from airflow_provider_webcollect.landing.many import land_all

def hang(stop):
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

land_all({"a": hang}, 1)
"""
    assert ended_by(script) == "KeyboardInterrupt"
