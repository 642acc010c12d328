"""Storage operations that are done and whose answers get lost, while another landing runs or none does."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.landing.errors import DestinationTaken, StorageError
from airflow_provider_webcollect.landing.storage.conditional import Changed
from tests.conftest import ALL_HISTORIES
from tests.landing.cases import KINDS, STATES, Case, landing_of
from tests.landing.conftest import Folder
from tests.landing.interleaving import Outcome, Stepping, outcome_of, stepping
from tests.landing.storages import local

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_webcollect.landing.storage.conditional import Storage


class Losing(Stepping):
    """A storage of which the answer of one change is lost.

    :param at: the number of the change, from 1.
    :param meanwhile: what happens before the caller hears of it.
    :param error: what it hears: a failure, or the refusal of a request that its client has repeated.
    :ivar lost: whether it has come so far.
    """

    def __init__(
        self, storage: Storage, at: int, meanwhile: Callable[[], object], error: Callable[[], Exception]
    ) -> None:
        super().__init__(storage, lambda operation, path: None)
        self.lost = False
        self._left = at
        self._meanwhile = meanwhile
        self._error = error

    def _lose(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.lost = True
            self._meanwhile()
            raise self._error()

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        version = super().replace(path, content, expected)
        self._lose()
        return version

    def remove(self, path: str, expected: str) -> bool:
        done = super().remove(path, expected)
        self._lose()
        return done

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        with super().upload(path) as file:
            yield file
        self._lose()


#: Of this many changes the answer of one is lost.
STRIDE = 1 if ALL_HISTORIES else 4
ERRORS = {
    "failed": functools.partial(OSError, "connection reset"),
    "refused": functools.partial(Changed, "412"),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("second", [None, "next", "overwrite", "a retry"])
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("state", ["nothing", "a commit"])
def test_an_answer_that_gets_lost_does_no_harm(
    tmp_path: Path, state: str, first: str, second: str | None, error: str
) -> None:
    case = Case(local(tmp_path), STATES[state])
    first_change = random.Random(f"{state} {first} {second} {error}").randint(1, STRIDE)
    for at in itertools.count(first_change, STRIDE):
        folder = case.new_folder()
        others: list[tuple[str, Outcome]] = []
        run_other = functools.partial(land_another, folder, first, second, others)
        slow = stepping(folder.destination, lambda operation, path: None)
        slow._storage = losing = Losing(slow._storage, at, run_other, ERRORS[error])
        outcome = outcome_of(landing_of(first, "a", 1), slow)
        if not losing.lost:
            assert at > STRIDE or first == "retry"
            return
        ended = [] if isinstance(outcome, StorageError | Changed) else [(first, outcome)]
        # nobody else was there to take the lease
        assert second or not isinstance(outcome, DestinationTaken)
        case.check(folder, [*ended, *others], held=1)


def land_another(folder: Folder, first: str, second: str | None, outcomes: list[tuple[str, Outcome]]) -> None:
    if second == "a retry":
        outcomes.append((first, outcome_of(landing_of(first, "a", 2), folder.destination)))
    elif second:
        outcomes.append((second, outcome_of(landing_of(second, "b", 1), folder.destination)))
