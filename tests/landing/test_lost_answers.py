"""Storage operations that are done and whose answers get lost, while another landing runs or none does."""

from __future__ import annotations

import functools
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.landing.storage import Exists
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.cases import ALL, KINDS, STATES, Case, landing_of
from tests.landing.conftest import Crash, Folder
from tests.landing.interleaving import LOST, Losing, Outcome, outcome_of, with_storage
from tests.storages import local

pytestmark = pytest.mark.usefixtures("each_part_is_staged")

#: Of this many changes the answer of one is lost.
STRIDE = 1 if ALL_HISTORIES else 4


@pytest.mark.by_day(8)
@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("second", [None, "next", "overwrite", "a retry"])
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("state", ["nothing", "a commit"])
def test_an_answer_that_gets_lost_does_no_harm(
    tmp_path: Path, state: str, first: str, second: str | None, error: str
) -> None:
    case = Case(local(tmp_path), STATES[state])
    first_change = random.Random(f"{SEED} {state} {first} {second} {error}").randint(1, STRIDE)
    for at in itertools.count(first_change, STRIDE):
        folder = case.new_folder()
        others: list[tuple[str, str, Outcome]] = []
        run_other = functools.partial(land_another, folder, first, second, others)
        losing = Losing(folder.destination._storage, at, run_other, LOST[error])
        outcome = outcome_of(landing_of(first, "a"), with_storage(folder.destination, losing))
        if not losing.lost:
            assert at > STRIDE or first == "retry"
            return
        if isinstance(outcome, StorageError | Exists):
            # a part, what is staged or the manifest: a retry does it again, as if the process had ended
            outcome = Crash()
        case.check(folder, (first, "a", outcome), *others)


def land_another(folder: Folder, first: str, second: str | None, outcomes: list[Any]) -> None:
    """Land meanwhile, and add what was done to ``outcomes``."""
    if second is not None:
        kind, run = (first, "a") if second == "a retry" else (second, "b")
        outcomes.append((kind, run, outcome_of(landing_of(kind, run), folder.destination)))


@pytest.mark.parametrize("error", LOST)
def test_a_commit_whose_answer_gets_lost_counts(tmp_path: Path, error: str) -> None:
    folder = Case(local(tmp_path), STATES["nothing"]).new_folder()
    storage = folder.destination._storage
    losing = LosingCommit(storage, 1, lambda: None, LOST[error])
    landed = landing_of("next that marks", "a")(with_storage(folder.destination, losing))
    assert losing.lost
    assert sum(part.rows for part in landed.committed) == ALL
    assert [commit["kind"] for commit in folder.commits()] == ["landed", "exported"]


class LosingCommit(Losing):
    """A storage of which the answer of a commit is lost."""

    def lose(self, path: str) -> None:
        if "/_commits/" in path:
            super().lose(path)
