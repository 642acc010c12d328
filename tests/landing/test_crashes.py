"""Whenever the process dies, the next try ends with every row once and in order."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox
from tests.landing.conftest import Folder
from tests.landing.formats.parts import as_texts
from tests.landing.tables import IcebergTable, Table, same, sql_catalog
from tests.simulation.forks import Forks, running
from tests.simulation.samples import ALL_HISTORIES, chance_of
from tests.storages import Storage

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

KILLS = 15 if ALL_HISTORIES else 2
ROWS = 600
#: Modules that storages and tables need, to be imported before anything forks.
MODULES = (
    "requests",
    "s3fs.core",
    "adlfs",
    "gcsfs.core",
    "deltalake",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.fsspec",
)


@pytest.fixture(scope="module")
def lander() -> Iterator[Forks]:
    """A process that lands in forks of itself."""
    installed = [module for module in MODULES if find_spec(module.partition(".")[0])]
    with running("tests.landing.lander", *installed) as forks:
        yield forks


class Victim:
    """Lands a task in processes that get killed."""

    def __init__(
        self, lander: Forks, sandbox: Sandbox, storage: Storage, task: str, table_format: str | None = None
    ) -> None:
        self.lander, self.sandbox, self.task = lander, sandbox, task
        self.folder = Folder.new(storage)
        self.is_table = table_format is not None
        self.kills = 0
        self.order: dict[str, Any] = {
            "url": sandbox.url,
            "token": sandbox.access_token,
            "kind": storage.kind,
            "storage": storage.options,
            "root": self.folder.root,
            "task": task,
            "table_format": table_format,
        }

    def land(self, **kill: float) -> bool:
        """Return whether it landed; if not, it was killed.

        :param kill: ``kill_at`` an operation, or ``kill_after`` some seconds.
        """
        status = self.lander.run({**self.order, **kill})
        assert status in {0, -signal.SIGKILL, -signal.SIGALRM}
        self.kills += status != 0
        return status == 0

    def check(self, *, whole: bool = False) -> None:
        """Check that a reader sees all rows, each once, or, unless ``whole``, none."""
        expected, rows = self.sandbox.control.true_rows(self.task), self.folder.rows()
        if self.is_table:
            assert same(rows, [as_texts(row) for row in expected]) or (rows == [] and not whole)
        else:
            assert rows == expected or (rows == [] and not whole)
        if whole:
            assert self.folder.manifest()["exported_at"]
            assert self.sandbox.control.task(self.task)["exported"]


def kill_and_land(lander: Forks, sandbox: Sandbox, storage: Storage, kill: Callable[[], Any]) -> None:
    """Land tasks in processes that get killed again and again, and finally in one that is not."""
    kills = 0
    while kills < KILLS:
        task = sandbox.control.add_task(rows=ROWS // 2, lots=2)["task_id"]
        victim = Victim(lander, sandbox, storage, task)
        while victim.kills < 6 and not victim.land(**kill()):
            victim.check()
        assert victim.land()
        victim.check(whole=True)
        kills += victim.kills


def test_each_row_lands_once_wherever_it_is_killed(lander: Forks, sandbox: Sandbox, storage: Storage) -> None:
    """Kill instead of random requests, uploads, renames, listings and removals; then retry."""
    chance = chance_of("operations")
    kill_and_land(lander, sandbox, storage, lambda: {"kill_at": chance.randint(1, 60)})


@pytest.mark.at_night
@pytest.mark.parametrize("storage", ["disk", "s3"], indirect=True)
def test_each_row_lands_once_whenever_it_is_killed(lander: Forks, sandbox: Sandbox, storage: Storage) -> None:
    """Kill after random times."""
    sandbox.control.configure(latency=0.02)
    chance = chance_of("times")
    kill_and_land(lander, sandbox, storage, lambda: {"kill_after": chance.uniform(0, 0.6)})


@pytest.mark.at_night
@pytest.mark.parametrize("kind", [None, "delta", "iceberg"])
def test_each_row_lands_once_after_a_kill_at_each_operation(
    lander: Forks, sandbox: Sandbox, storage_of: Callable[[str], Storage], tmp_path: Path, kind: str | None
) -> None:
    """Kill at each request, storage change and call of a table's library, mark and cleaning included."""
    task = sandbox.control.add_task(rows=ROWS // 2, lots=2)["task_id"]
    catalog = sql_catalog(tmp_path) if kind == "iceberg" else None
    for operation in itertools.count(1):
        victim = Victim(lander, sandbox, storage_of("disk"), task, kind)
        if kind == "delta":
            victim.folder = Table(victim.folder.fs, victim.folder.root)
        elif catalog is not None:
            victim.folder = table = IcebergTable(catalog, f"shop.t{operation}")
            victim.order["table"] = [str(tmp_path), table.name]
        if victim.land(kill_at=operation):
            break
        victim.check()
        assert victim.land()
        victim.check(whole=True)
    assert operation > 40
