"""Whenever the process dies, the next try ends with every row once and in order."""

from __future__ import annotations

import itertools
import random
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.conftest import SERVERS
from tests.landing.storages import Storage
from tests.landing.victim import Victim, check, running_lander

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

KILLS = 15 if ALL_HISTORIES else 2
ROWS = 600


#: What the storages need, to be imported before anything forks.
MODULES = ("s3fs.core", "adlfs", "gcsfs.core")


@pytest.fixture(params=["disk", *(pytest.param(kind, marks=pytest.mark.at_night) for kind in SERVERS)])
def storage(request: pytest.FixtureRequest, storage_of: Callable[[str], Storage]) -> Storage:
    """A real storage of each kind."""
    return storage_of(request.param)


@pytest.fixture(scope="module")
def lander() -> Iterator[subprocess.Popen[str]]:
    """What lands in forks of itself."""
    installed = [module for module in MODULES if find_spec(module.partition(".")[0])]
    with running_lander(", ".join(installed)) as process:
        yield process


def test_every_row_lands_once_wherever_the_process_is_killed(
    lander: subprocess.Popen[str], sandbox: Sandbox, storage: Storage
) -> None:
    """Kills in the place of random requests, uploads, renames, listings and removals; then retries."""
    chance = random.Random(f"{SEED} operations")
    kills = 0
    while kills < KILLS:
        task = sandbox.control.add_task(rows=ROWS // 2, lots=2)["task_id"]
        victim = Victim(lander, sandbox, storage, task)
        while not victim.land(kill_at=chance.randint(1, 60)):
            check(victim, sandbox)
        check(victim, sandbox)
        assert victim.folder.manifest()["exported_at"]
        assert sandbox.control.task(task)["exported"]
        kills += victim.kills


@pytest.mark.at_night
@pytest.mark.parametrize("storage", ["disk", "s3"], indirect=True)
def test_every_row_lands_once_whenever_the_process_is_killed(
    lander: subprocess.Popen[str], sandbox: Sandbox, storage: Storage
) -> None:
    """Kills after random times."""
    sandbox.control.configure(latency=0.02)
    chance = random.Random(f"{SEED} times")
    kills = 0
    while kills < KILLS:
        task = sandbox.control.add_task(rows=ROWS // 2, lots=2)["task_id"]
        victim = Victim(lander, sandbox, storage, task)
        while victim.kills < 6 and not victim.land(kill_after=chance.uniform(0, 0.6)):
            check(victim, sandbox)
        assert victim.land()
        check(victim, sandbox)
        kills += victim.kills


@pytest.mark.at_night
@pytest.mark.parametrize("storage", ["disk"], indirect=True)
def test_every_row_lands_once_after_a_kill_at_each_single_operation(
    lander: subprocess.Popen[str], sandbox: Sandbox, storage: Storage
) -> None:
    """Requests and changes of the storage in turn, mark and cleaning included."""
    task = sandbox.control.add_task(rows=ROWS // 2, lots=2)["task_id"]
    for operation in itertools.count(1):
        victim = Victim(lander, sandbox, storage, task)
        if victim.land(kill_at=operation):
            break
        check(victim, sandbox)
        assert victim.land()
        assert victim.folder.rows() == sandbox.control.true_rows(task)
        assert victim.folder.manifest()["exported_at"]
    assert operation > 40
