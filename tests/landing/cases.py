"""Landings that meet in a folder, and what has to hold however they end."""

from __future__ import annotations

import dataclasses
from typing import Any

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.names import MANIFEST
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from tests.landing.conftest import Crash, Folder
from tests.landing.interleaving import Held, Land, Outcome, kill, outcome_of
from tests.landing.pages import Rows, job, true_rows
from tests.storages import Storage

#: What a landing does. Run r1 has landed half of the rows where anything is landed.
KINDS: dict[str, dict[str, Any]] = {
    "retry": {"run": "r1", "mode": "incremental"},
    "retry that marks": {"run": "r1", "mode": "incremental", "marks": True},
    "next": {"mode": "incremental"},
    "next in a partition": {"mode": "incremental", "partition": "dt=2026-01-01"},
    "next that marks": {"mode": "incremental", "marks": True},
    "overwrite": {"mode": "full", "if_exists": "overwrite"},
}
HALF, ALL = 10, 25


@dataclasses.dataclass(frozen=True)
class State:
    """What is in the folder before.

    :param landed: rows that run r1 has landed.
    :param killed_at: the operation at which a first attempt of run a was killed, if there was one.
    :param kind: what that attempt did.
    """

    landed: int
    killed_at: tuple[str, str] | None = None
    kind: str = "next"


STATES = {
    "nothing": State(0),
    "a first landing that was killed": State(0, ("create", "00000001.json")),
    "a first commit that nothing shows": State(0, ("write", MANIFEST)),
    "a commit": State(HALF),
    "a landing that was killed": State(HALF, ("create", "00000002.json")),
    "an overwriting that was killed": State(HALF, ("create", "00000002.json"), "overwrite"),
    "a commit that nothing shows": State(HALF, ("write", MANIFEST)),
    "an overwriting that nothing shows": State(HALF, ("write", MANIFEST), "overwrite"),
    "a commit that is not marked": State(HALF, ("create", "00000003.json"), "next that marks"),
}


@dataclasses.dataclass
class Case:
    """Folders in one state, and landings in them."""

    storage: Storage
    state: State

    def __post_init__(self) -> None:
        folder = Folder.new(self.storage)
        if self.state.landed:
            run_job(job(Rows(self.state.landed), folder.destination, "r1", mode="incremental"))
        if self.state.killed_at:
            kill(landing_of(self.state.kind, "a"), folder.destination, self.state.killed_at)
        self._content = folder.contents()
        self._before = folder.committed_rows()

    def new_folder(self) -> Folder:
        folder = Folder.new(self.storage)
        for name, content in self._content.items():
            folder.write(name, content)
        return folder

    def check(self, folder: Folder, *ended: tuple[str, str, Outcome]) -> None:
        """What a reader gets is exact; the next run brings what is missing, and nothing needless is left.

        :param ended: what landings did, for which runs, and how they have ended.
        """
        whole = any(isinstance(outcome, Landed) and kind != "retry" for kind, _, outcome in ended)
        before = [] if whole else [self._before]
        assert folder.committed_rows() in [*before, true_rows(ALL)]
        if all(isinstance(outcome, Landed) for *_, outcome in ended):
            assert folder.rows() == folder.committed_rows()
            assert folder.manifest()["commit"] == len(folder.commits())
        assert folder.rows() in [*before, true_rows(self.state.landed), true_rows(ALL)]
        for kind, run, outcome in ended:
            assert isinstance(outcome, Landed | Crash), outcome
            self.check_retry(folder, kind, run, outcome)
        run_job(job(Rows(ALL + 5), folder.destination, "last", mode="incremental"))
        assert folder.rows() == folder.committed_rows() == true_rows(ALL + 5)
        clean(folder.location, older_than=0)
        assert folder.names() == folder.needed()

    @staticmethod
    def check_retry(folder: Folder, kind: str, run: str, outcome: Landed | Crash) -> None:
        """However a run has ended: the result of a retry is what it has landed and nobody has replaced."""

        def own() -> set[str]:
            name = KINDS[kind].get("run", run)
            commits = [commit for commit in folder.commits() if commit["run"]["run_id"] == name]
            return {part["name"] for commit in commits for part in commit.get("parts", ())}

        if isinstance(outcome, Landed):
            assert {part.name for part in outcome.new} <= own()
        landed = landing_of(kind, run)(folder.destination)
        assert {part.name for part in landed.new} == own() & {part["name"] for part in folder.committed()}

    def interleave(self, first: str, second: str, operation: int, *, kill: bool) -> bool:
        """Hold the first landing before an operation, while the second runs; then let it go on, or kill it.

        :return: False if the first has fewer operations.
        """
        folder = self.new_folder()
        held = Held(landing_of(first, "a"), folder.destination, operation)
        if held.met is None:
            return False
        other = outcome_of(landing_of(second, "b"), folder.destination)
        self.check(folder, (first, "a", held.end(kill=kill)), (second, "b", other))
        return True


def landing_of(kind: str, run: str) -> Land:
    """Return what lands all rows.

    :param kind: one of :data:`KINDS`; a retry belongs to a run of its own.
    """
    options = {"run": run, **KINDS[kind]}
    marks = options.pop("marks", False)

    def land(folder: Destination) -> Landed:
        def mark() -> None:
            step = getattr(folder._storage, "step", None)
            if step is not None:
                step("mark", "/mark")
            # it covers all rows of the source
            assert Folder(folder.fs, folder.root).committed_rows() == true_rows(ALL)

        return run_job(job(Rows(ALL), folder, **options, mark=mark if marks else None))

    return land
