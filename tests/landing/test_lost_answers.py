"""Storage operations that are done and whose answers get lost, while another landing runs or none does."""

from __future__ import annotations

import functools
import itertools
import random
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.landing.errors import DestinationBusy, StorageError
from airflow_provider_webcollect.landing.storage import Changed
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.cases import HALF, KINDS, STATES, Case, landing_of
from tests.landing.conftest import Folder
from tests.landing.interleaving import LOST, Losing, Outcome, outcome_of, with_storage
from tests.landing.pages import PAGE
from tests.landing.storages import local

if TYPE_CHECKING:
    from pathlib import Path


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
        others: list[tuple[str, Outcome]] = []
        run_other = functools.partial(land_another, folder, first, second, others)
        losing = Losing(folder.destination._storage, at, run_other, LOST[error])
        slow = with_storage(folder.destination, losing)
        outcome = outcome_of(landing_of(first, "a", 1), slow)
        if not losing.lost:
            assert at > STRIDE or first == "retry"
            return
        ended = [] if isinstance(outcome, StorageError | Changed) else [(first, outcome)]
        # nobody else was there to take the lease
        assert second or not isinstance(outcome, DestinationBusy)
        # who does not hear of its commit does not delete what that replaces either
        case.check(folder, [*ended, *others], held=1 + (HALF // PAGE if first == "overwrite" else 0))


def land_another(folder: Folder, first: str, second: str | None, outcomes: list[tuple[str, Outcome]]) -> None:
    if second == "a retry":
        outcomes.append((first, outcome_of(landing_of(first, "a", 2), folder.destination)))
    elif second:
        outcomes.append((second, outcome_of(landing_of(second, "b", 1), folder.destination)))
