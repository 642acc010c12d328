"""Landings that meet in a folder, and what has to hold however they end."""

from __future__ import annotations

import dataclasses
from typing import Any

from airflow_provider_webcollect.landing.errors import DestinationBusy
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.run import run_job
from tests.landing.conftest import Crash, Folder
from tests.landing.interleaving import Held, Land, Outcome, outcome_of
from tests.landing.pages import PAGE, Rows, job, true_rows
from tests.landing.storages import Storage

#: What a landing does. Run r1 has landed half of the rows where anything is landed.
KINDS: dict[str, dict[str, Any]] = {
    "retry": {"run": "r1", "mode": "incremental"},
    "retry that marks": {"run": "r1", "mode": "incremental", "mark": lambda: None},
    "next": {"mode": "incremental"},
    "next that marks": {"mode": "incremental", "mark": lambda: None},
    "overwrite": {"mode": "full", "if_exists": "overwrite"},
}
HALF, ALL = 10, 20


@dataclasses.dataclass(frozen=True)
class State:
    """What is in the folder before.

    :param landed: rows that run r1 has landed.
    :param killed_at: the operation at which a first attempt of run a was killed, if there was one.
    :param kind: what that attempt did.
    """

    landed: int
    killed_at: int | tuple[str, str] | None = None
    kind: str = "next"


STATES = {
    "nothing": State(0),
    "a commit": State(HALF),
    "an unfinished landing": State(HALF, 11),
    "an unfinished overwriting": State(HALF, 11, "overwrite"),
    "an unwritten commit": State(HALF, ("replace", "_manifest.json")),
    "an unwritten overwriting": State(HALF, ("replace", "_manifest.json"), "overwrite"),
    "an unreported commit": State(HALF, ("remove", "_progress.json")),
    "an unreported overwriting": State(HALF, ("remove", "_progress.json"), "overwrite"),
}


@dataclasses.dataclass
class Case:
    """Folders in one state, and landings in them."""

    storage: Storage
    state: State

    def __post_init__(self) -> None:
        self.fs = self.storage.fs
        folder = Folder(self.fs, self.storage.new_folder())
        if self.state.landed:
            run_job(job(Rows(self.state.landed), folder.destination, "r1", mode="incremental"))
        if self.state.killed_at:
            held = Held(landing_of(self.state.kind, "a", 0), folder.destination, self.state.killed_at)
            assert held.met
            assert isinstance(held.end(kill=True), Crash)
        self._content = {name: folder.read(name) for name in folder.names()}

    def new_folder(self) -> Folder:
        folder = Folder(self.fs, self.storage.new_folder())
        for name, content in self._content.items():
            folder.write(name, content)
        return folder

    def check(self, folder: Folder, outcomes: list[tuple[str, Outcome]], held: int) -> None:
        """What a reader gets is exact; the next run brings what is missing, and leaves nothing needless.

        :param held: how many landings were held, or did not hear what they had done: each may leave a part,
            or what it has replaced, if it was killed before it had deleted that.
        """
        for _, outcome in outcomes:
            assert isinstance(outcome, Landed | DestinationBusy | Crash), outcome
        whole = any(isinstance(outcome, Landed) and kind != "retry" for kind, outcome in outcomes)
        rows = folder.rows() if "_manifest.json" in folder.names() else []
        assert rows in ([true_rows(ALL)] if whole else [true_rows(self.state.landed), true_rows(ALL)])
        manifest = run_job(job(Rows(ALL + 5), folder.destination, "last", mode="incremental")).manifest
        assert folder.rows() == true_rows(ALL + 5)
        needless = folder.names() - {"_manifest.json", *(part.name for part in manifest.parts)}
        # whoever loses the lease between writing a part and recording it deletes nothing: it cannot know
        crashed = any(isinstance(outcome, Crash) and kind == "overwrite" for kind, outcome in outcomes)
        assert len(needless) <= (held + HALF // PAGE if crashed else held)
        assert all(name.startswith("part-") for name in needless)

    def interleave(self, first: str, second: str, operation: int, *, kill: bool) -> bool:
        """Hold the first landing before an operation, while the second runs; then let it go on, or kill it.

        :return: False if the first has fewer operations.
        """
        folder = self.new_folder()
        held = Held(landing_of(first, "a", 1), folder.destination, operation)
        if held.met:
            outcome = outcome_of(landing_of(second, "b", 2), folder.destination)
            self.check(folder, [(first, held.end(kill=kill)), (second, outcome)], held=1)
        return held.met


def landing_of(kind: str, run: str, attempt: int) -> Land:
    options = {"run": run, **KINDS[kind], "attempt": attempt}
    return lambda folder: run_job(job(Rows(ALL), folder, **options))
