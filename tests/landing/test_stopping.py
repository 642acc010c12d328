"""A landing whose task has ended: held at each of its operations in turn, stopped, and let go on."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from airflow_provider_webcollect.landing.write.job import Landed, Observer
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.endpoints import mark_exported
from airflow_provider_webcollect.service.errors import Stopped
from airflow_provider_webcollect.service.pages import PageReader
from airflow_provider_webcollect.service.settings import ClientTiming
from airflow_provider_webcollect.service.threads import Stop
from tests.landing.conftest import OTHER_RUN, Folder, Landing
from tests.landing.interleaving import Held, kill
from tests.storages import local

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.usefixtures("each_part_is_staged"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder that is not there yet."""
    return Folder.new(local(tmp_path))


@pytest.fixture
def land(land_job: Landing, connect: Callable[..., Client], sandbox: Sandbox) -> Landing:
    """Lands a task with 300 rows, in three parts and with a mark."""
    # no page is on its way already when a landing is stopped, however slow the machine is
    client = connect(timing=ClientTiming(slow_response=math.inf))
    task = sandbox.control.add_task(lots=[300])["task_id"]

    def land(place: Destination, stop: Stop | None = None, **options: Any) -> Landed:
        stoppable = Client(client.context, stop=stop or Stop())
        usual = {
            "fetch": PageReader(stoppable, task, size=100).read,
            "mark": lambda: stoppable.send(mark_exported(task)),
            "stop": stoppable.stop,
            "max_part_bytes": 1,
            "mode": "incremental",
        }
        return land_job(task, folder=place, **usual | options)

    return land


#: What exists before: nothing, rows of another run, or an attempt that was killed at an operation.
BEFORE: dict[str, tuple[str, str] | None] = {
    "nothing": None,
    "a commit": None,
    "a landing that was killed": ("create", "00000001.json"),
    "a commit that nothing shows": ("write", MANIFEST),
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_landing_that_is_stopped_commits_and_marks_nothing_and_the_next_attempt_does(
    land: Landing, sandbox: Sandbox, tmp_path: Path, before: str
) -> None:
    ends = []
    for operation in itertools.count(1):
        folder = Folder.new(local(tmp_path))
        if before == "a commit":
            land(folder.destination, run=OTHER_RUN, mark=None)
        if killed_at := BEFORE[before]:
            kill(land, folder.destination, killed_at)
            staged = [part for record in folder.staged() for part in record["parts"]]
            assert len(staged) == (3 if killed_at[0] == "create" else 0)
        stop = Stop()
        held = Held(functools.partial(land, stop=stop), folder.destination, operation)
        if held.met is None:
            break
        committed, sent = folder.commits(), len(sandbox.control.requests())
        stop.set()
        ends.append(held.end())
        assert len(sandbox.control.requests()) == sent
        # a write that is under way is not recalled
        if held.met[0] != "create":
            assert folder.commits() == committed
        assert land(folder.destination).manifest.exported_at
        assert len(folder.rows()) == 300
    # after the last commit, there is only what is to be shown and deleted
    kinds = [kind for kind, _ in itertools.groupby(ends, type)]
    assert kinds == [Stopped, Landed]


def test_a_landing_that_is_stopped_right_before_its_commit_makes_none(land: Landing, folder: Folder) -> None:
    stop = Stop()

    class Ends(Observer):
        def on_checks(self, outcomes: object) -> None:
            stop.set()

    checks = make_checks({"rows": {"min": 1}}, make_format())
    with pytest.raises(Stopped):
        land(folder.destination, stop, mark=None, checks=checks, observer=Ends())
    assert folder.commits() == []
