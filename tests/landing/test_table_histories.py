"""The random histories of test_histories.py, of landings that are tables of Delta Lake and of Iceberg.

What the table's own readers find is what the commits say: the source's rows, each once. After a kill the
table may lack the rows of the last commits, until the next landing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import NoColumns
from airflow_provider_webcollect.landing.formats import make_format
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.histories import History, does_harm
from tests.landing.interleaving import Land
from tests.landing.tables import Table, same, tables_in

EVERY = range(2000)
HISTORIES = EVERY if ALL_HISTORIES else random.Random(SEED).sample(EVERY, 2)
#: Histories that do harm where a file is created though it is there: harm is rare, so they come first.
HARMFUL = [162, 18]
#: The number of histories that are tried if these do none any more, as a landing's operations are others.
HARMED = 400

pytestmark = pytest.mark.usefixtures("long_reads")


class TableHistory(History):
    """What happens to a table; others compact it meanwhile."""

    ENDS = (*History.ENDS, NoColumns)

    folder: Table

    def options(self) -> dict[str, Any]:
        return {**super().options(), "file_format": make_format("parquet", columns=["g", "n"])}

    def things(self) -> list[Callable[[], None]]:
        return [*super().things(), self.optimize]

    def hold(self, work: Land, most: int = 60) -> None:
        # it comes to more operations than in a folder
        super().hold(work, most)

    def optimize(self) -> None:
        """Let others compact the table, after which its rows have no order."""
        if self.rows():
            self.folder.compact()

    def rows(self) -> list[tuple[int, int]]:
        return sorted((int(row["g"]), int(row["n"])) for row in self.folder.rows())

    def check_all_is_there(self) -> None:
        super().check_all_is_there()
        expected = self.folder.committed_rows()
        for name, read in self.folder.readers().items():
            assert same(read(), expected), name

    def check_nothing_is_left(self) -> None:
        """What was replaced stays for the table's older versions; what no version has goes."""
        clean(self.folder.location, older_than=0)
        assert same(self.folder.rows(), self.folder.committed_rows())


Tables = Callable[[], Table]


@pytest.fixture(params=["delta", "iceberg"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Make a table that is not there yet."""
    return tables_in(tmp_path, request.param)


def histories(tables: Tables, seeds: Iterable[int], *, unconditional: bool = False) -> Iterator[History]:
    """Yield histories that have not begun."""
    for seed in seeds:
        chance = random.Random(f"table {seed}")
        on_reset = chance.choice(["fail", "fail", "append", "full"])
        yield TableHistory(tables(), chance, on_reset, unconditional=unconditional)


def test_every_row_is_in_the_table_once_and_every_part_is_reported_by_one_run(tables: Tables) -> None:
    for history in histories(tables, HISTORIES):
        history.happen()


def test_harm_is_found_where_files_that_are_there_are_created_again(tables: Tables) -> None:
    assert does_harm(histories(tables, itertools.chain(HARMFUL, range(HARMED)), unconditional=True))
