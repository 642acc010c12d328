"""Random histories of the runs that land one source in one folder, and of what they report.

Their attempts are stopped before any operation of the storage, go on while others run, or are killed there;
answers get lost; marks and reports fail after the commit; the source grows and is emptied. Whatever happens,
a reader finds the source's rows, each once and in order, every part is reported by one run, and a consumer
who remembers the commit that it has come to gets each once.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.conftest import Folder
from tests.landing.histories import History, does_harm
from tests.landing.storages import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("long_reads", "each_part_is_staged")

EVERY = range(5000)
HISTORIES = EVERY if ALL_HISTORIES else random.Random(SEED).sample(EVERY, 12)
#: Histories that do harm where the condition is left out: harm is rare, so they come first.
HARMFUL = [103, 123]
#: The number of histories that are tried if these do none any more, as a landing's operations are others.
HARMED = 2000


def histories(tmp_path: Path, seeds: Iterable[int], **options: Any) -> Iterator[History]:
    """Yield histories that have not begun."""
    storage = local(tmp_path)
    for seed in seeds:
        chance = random.Random(f"{seed}")
        on_reset = chance.choice(["fail", "fail", "append", "full"])
        yield History(Folder(storage.fs, storage.new_folder()), chance, on_reset, **options)


def test_every_row_is_landed_once_and_every_part_is_of_one_run(tmp_path: Path) -> None:
    for history in histories(tmp_path, HISTORIES):
        history.happen()


def test_harm_is_found_where_a_commit_is_created_though_it_is_there(tmp_path: Path) -> None:
    seeds = itertools.chain(HARMFUL, range(HARMED))
    assert does_harm(histories(tmp_path, seeds, unconditional=True))
