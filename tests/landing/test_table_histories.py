"""The random histories of test_histories.py, of landings that are tables of Delta Lake and of Iceberg.

What the table's own readers find is what the landing says: the source's rows, each once.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.plan import FolderState
from airflow_provider_webcollect.landing.tables.table import TableFolder
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.histories import History, does_harm
from tests.landing.storages import local
from tests.landing.tables import IcebergTable, SteppingDelta, SteppingIceberg, Table, same, sql_catalog

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.manifest import Manifest

EVERY = range(2000)
HISTORIES = EVERY if ALL_HISTORIES else random.Random(SEED).sample(EVERY, 2)
#: Histories that do harm where a commit has no condition: harm is rare, so they come first.
HARMFUL = [95, 116]
#: And those that do harm where no run takes over a report.
UNREPORTED = [2, 3]
#: The number of histories that are tried if these do none any more, as a landing's operations are others.
HARMED = 400

pytestmark = pytest.mark.usefixtures("long_reads")


class TableHistory(History):
    """What happens to a table; others compact it meanwhile."""

    folder: Table

    def options(self) -> dict[str, Any]:
        return {**super().options(), "file_format": make_format("parquet")}

    def things(self) -> list[Callable[[], None]]:
        return [*super().things(), self.optimize]

    def optimize(self) -> None:
        """Let others compact the table, after which its rows have no order."""
        if self.rows():
            self.folder.compact()

    def rows(self) -> list[tuple[int, int]]:
        return sorted((int(row["g"]), int(row["n"])) for row in self.folder.rows())

    def check_all_is_there(self) -> None:
        super().check_all_is_there()
        expected = [{"g": str(generation), "n": str(number)} for generation, number in self.rows()]
        for name, read in self.folder.readers().items():
            assert same(read(), expected), name
        self.folder.landed().verify()


class Unconditional(TableFolder):
    """A table to which a landing commits whatever others have committed since it was read."""

    def _commit_to_table(
        self, manifest: Manifest, before: Manifest | None, expected: str | None, version: int
    ) -> None:
        now = self.committed()
        super()._commit_to_table(manifest, before, now and now.version, version)


class UnconditionalDelta(Unconditional, SteppingDelta):
    """Such a table of Delta Lake."""


class UnconditionalIceberg(Unconditional, SteppingIceberg):
    """Such a table of Iceberg."""


Tables = Callable[[], Table]


@pytest.fixture(params=["delta", "iceberg"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Make a table that is not there yet."""
    if request.param == "delta":
        storage = local(tmp_path)
        return lambda: Table(storage.fs, storage.new_folder())
    catalog = sql_catalog(tmp_path)
    return lambda: IcebergTable(catalog, f"shop.t{uuid.uuid4().hex}")


def histories(tables: Tables, seeds: Iterable[int], *, unconditional: bool = False) -> Iterator[History]:
    """Yield histories that have not begun."""
    for seed in seeds:
        chance = random.Random(f"table {seed}")
        on_reset = chance.choice(["fail", "fail", "append", "full"])
        table = tables()
        if unconditional:
            table.kind = UnconditionalDelta
            table.iceberg_kind = UnconditionalIceberg
        yield TableHistory(table, chance, on_reset)


def test_every_row_is_in_the_table_once_and_every_part_is_reported_by_one_run(tables: Tables) -> None:
    for history in histories(tables, HISTORIES):
        history.happen()


def test_harm_is_found_where_a_commit_has_no_condition(tables: Tables) -> None:
    assert does_harm(histories(tables, itertools.chain(HARMFUL, range(HARMED)), unconditional=True))


def test_harm_is_found_where_no_run_takes_over_a_report(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderState, "is_unreported", False)
    assert does_harm(histories(tables, itertools.chain(UNREPORTED, range(HARMED))))
