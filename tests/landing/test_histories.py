"""Random histories of runs that land one source in one folder or table, of decisions, and of cleaning.

Attempts are stopped before any operation of the storage, go on while others are at work, or are killed there;
answers get lost; marks and reports fail after the commit; the source grows and is emptied, and rows of it
fail their checks; tasks and persons decide on these rows, at once and again. Whatever happens, each row of
the source is landed, waits, or was discarded, once; every part is reported by one run; nobody is stuck; and
consumers who remember the commit that they have come to get each row once.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_webcollect.landing.formats import make_format
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.conftest import Folder
from tests.landing.decisions import Ledger, Row
from tests.landing.histories import History, harms, histories
from tests.landing.tables import Table, same, tables_in
from tests.storages import local

pytestmark = [
    pytest.mark.usefixtures("long_reads", "each_part_is_staged"),
    # pyiceberg's, where rows take the place of none
    pytest.mark.filterwarnings("ignore:Delete operation did not match any records"),
]

#: How many histories of each kind of place are tried: all, and by day.
COUNTS = {"folder": (5000, 40), "delta": (2000, 4), "iceberg": (2000, 4)}
#: Histories that show harm where files are created again: it is rare, so they come first.
UNCONDITIONAL: dict[str, list[int]] = {"folder": [15], "delta": [85], "iceberg": [10]}
LOSSES = {
    "a row is lost",
    "a row is there twice",
    "a file that has landed is gone",
    "a consumer by since lacks rows",
    "readers find other rows",
    "what has landed cannot be read",
}
#: The number of histories that are tried if these do no harm any more, as a landing's operations are others.
HARMED = 2000


class TableHistory(History):
    """What happens to a table; others compact it meanwhile."""

    folder: Table
    OPERATIONS = 60
    FORMAT = make_format("parquet", columns=["g", "n", "ok"])

    def things(self) -> list[Callable[[], None]]:
        return [*super().things(), self.optimize]

    def optimize(self) -> None:
        """Let others compact the table, after which its rows have no order."""
        if self.folder.rows():
            self.folder.compact()

    def check_readers(self, expected: list[Row]) -> None:
        committed = self.folder.committed_rows()
        read = {"the table's own": self.folder.rows, **self.folder.readers()} if expected else {}
        found = [reader for reader, rows in read.items() if not same(rows(), committed)]
        if found or sorted((int(row["g"]), int(row["n"])) for row in committed) != sorted(expected):
            self.found("readers find other rows", found)

    def check_nothing_is_left(self, ledger: Ledger) -> None:
        """The files of older versions are the table's own."""
        own = {name for name in self.folder.names() if name.startswith(("_staged/", "_quarantine/"))}
        if left := own - ledger.needed():
            self.found("other files are left than are needed", left)


def places(folder: Path, kind: str) -> Callable[[], Folder]:
    """Return what makes folders or tables."""
    return functools.partial(Folder.new, local(folder)) if kind == "folder" else tables_in(folder, kind)


def history_of(kind: str) -> type[History]:
    return History if kind == "folder" else TableHistory


@pytest.mark.parametrize("kind", COUNTS)
def test_each_row_is_landed_or_waits_or_was_discarded_once(tmp_path: Path, kind: str) -> None:
    every, by_day = COUNTS[kind]
    seeds = range(every) if ALL_HISTORIES else random.Random(SEED).sample(range(every), by_day)
    happened = harms(histories(history_of(kind), places(tmp_path, kind), seeds))
    for seed, harm in zip(seeds, happened, strict=True):
        assert not harm, f"{kind} {seed}"


@pytest.mark.parametrize(("kind", "seeds"), UNCONDITIONAL.items())
def test_harm_is_found_where_a_commit_is_created_though_it_is_there(
    tmp_path: Path, kind: str, seeds: list[int]
) -> None:
    seeds = [*seeds, *range(HARMED)]
    harmed = histories(history_of(kind), places(tmp_path, kind), seeds, unconditional=True)
    assert any(not harm.keys().isdisjoint(LOSSES) for harm in harms(harmed))
