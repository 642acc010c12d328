"""The random histories of test_histories.py, of landings that are tables of Delta Lake.

What the table's own readers find is what the landing says: the source's rows, each once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.plan import FolderState
from tests.conftest import ALL_HISTORIES
from tests.landing.histories import History
from tests.landing.storages import local
from tests.landing.tables import SteppingDelta, Table, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_provider_webcollect.landing.manifest import Manifest

HISTORIES = 2000 if ALL_HISTORIES else 40
#: The number of histories in which a harm must be found once a safeguard is left out.
HARMED = 200

pytestmark = pytest.mark.usefixtures("long_reads")


class TableHistory(History):
    """What happens to a table; others compact it meanwhile."""

    folder: Table

    def options(self) -> dict[str, Any]:
        return {**super().options(), "file_format": make_format("parquet")}

    def things(self) -> list[Callable[[], None]]:
        return [*super().things(), self.compact]

    def compact(self) -> None:
        """Let others compact the table, after which its rows have no order."""
        if self.rows():
            self.folder.table().optimize.compact()

    def rows(self) -> list[tuple[int, int]]:
        return sorted((int(row["g"]), int(row["n"])) for row in self.folder.rows())

    def check_all_is_there(self) -> None:
        super().check_all_is_there()
        expected = [{"g": str(generation), "n": str(number)} for generation, number in self.rows()]
        for name, read in self.folder.readers().items():
            assert same(read(), expected), name
        self.folder.landed().verify()


class Unconditional(SteppingDelta):
    """A table to which a landing commits whatever others have committed since it was read."""

    def _commit_to_table(
        self, manifest: Manifest, before: Manifest | None, expected: str | None, version: int
    ) -> None:
        now = self.committed()
        super()._commit_to_table(manifest, before, now and now.version, version)


def histories(tmp_path: Path, count: int, kind: type[SteppingDelta] = SteppingDelta) -> Iterator[History]:
    """Yield histories that have not begun."""
    storage = local(tmp_path)
    for seed in range(count):
        chance = random.Random(f"table {seed}")
        on_reset = chance.choice(["fail", "fail", "append", "full"])
        table = Table(storage.fs, storage.new_folder())
        table.kind = kind
        yield TableHistory(table, chance, on_reset)


@pytest.mark.timeout(3600)
def test_every_row_is_in_the_table_once_and_every_part_is_reported_by_one_run(tmp_path: Path) -> None:
    for history in histories(tmp_path, HISTORIES):
        history.happen()


def does_harm(histories: Iterator[History]) -> bool:
    """Return whether a history does harm."""
    for history in histories:
        try:
            history.happen()
        except AssertionError:
            return True
    return False


def test_harm_is_found_where_a_commit_has_no_condition(tmp_path: Path) -> None:
    assert does_harm(histories(tmp_path, HARMED, Unconditional))


def test_harm_is_found_where_no_run_takes_over_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderState, "is_unreported", False)
    assert does_harm(histories(tmp_path, HARMED))
