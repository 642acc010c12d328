"""Random histories of runs whose rows are checked, and of decisions about rows that have failed.

Runs, accepting and discarding are stopped before any operation of the storage, go on while others are at
work, or are killed there. Whatever happens, each row of the source is landed, quarantined or discarded, once,
and every part of the landing is reported by one run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.errors import ChecksFailed
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.manifest import MANIFEST, Manifest, decode
from airflow_provider_webcollect.landing.review import Review, in_review
from airflow_provider_webcollect.service.models import DataPage
from tests.conftest import ALL_HISTORIES, SEED
from tests.interruption import Pauses
from tests.landing.conftest import Folder
from tests.landing.histories import Generations, History
from tests.landing.pages import AT_ONCE, PAGE
from tests.landing.storages import local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
    from tests.landing.interleaving import Outcome

pytestmark = pytest.mark.usefixtures("long_reads")
EVERY = range(3000)
HISTORIES = EVERY if ALL_HISTORIES else random.Random(SEED).sample(EVERY, 40)
#: The number of histories in which a harm must be found once a safeguard is left out.
HARMED = 300
CHECKS = make_checks({"columns": {"ok": {"filled": 1}}}, make_format())


class Site(Generations):
    """A source some of whose rows have an empty column.

    :ivar bad: the numbers of these rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[int] = set()

    def reset(self, count: int) -> None:
        super().reset(count)
        self.bad.clear()

    def fetch(self, offset: int) -> DataPage:
        rows = [
            msgspec.Raw(b'{"g":%d,"n":%d,"ok":"%s"}' % (*row, b"" if row[1] in self.bad else b"yes"))
            for row in self.rows()[offset : offset + PAGE]
        ]
        end = min(offset + PAGE, self.count)
        return DataPage(offset=end, total=self.count, rest_total=self.count - end, rows=rows)


@dataclass
class CheckedHistory(History):
    """What happens to a folder whose runs check their rows."""

    source: Site = field(default_factory=Site)
    on_failed_checks: str = "fail"

    def things(self) -> list[Callable[[], None]]:
        return [*super().things(), self.decide, self.decide]

    def options(self) -> dict[str, Any]:
        return {**super().options(), "checks": CHECKS, "on_failed_checks": self.on_failed_checks}

    def grow(self) -> None:
        before = self.source.count if self.source.count else 0
        super().grow()
        if self.chance.random() < 0.5:
            self.source.bad.update(range(min(before, self.source.count), self.source.count))

    def decide(self) -> None:
        """Begin to accept rows, to set them apart or to discard them."""
        kind = self.chance.choice(["accept", "quarantine", "discard"])
        number = self.chance.random()

        def work(place: Destination) -> Any:
            there = in_review(self.folder.location)
            run = there[int(number * len(there))].run.run_id if there else None
            return getattr(Review(place, run, stop=Pauses(), timing=AT_ONCE), kind)()

        self.hold(work)

    def after_failure(self, outcome: Outcome) -> None:
        if isinstance(outcome, ChecksFailed):
            Review(self.folder.destination, "last", stop=Pauses(), timing=AT_ONCE).accept()

    def check_rows(self) -> None:
        """No row is there twice, landed or quarantined."""
        rows = [*self.rows(), *self.quarantined()]
        assert len(rows) == len(set(rows)), rows

    def check_all_is_there(self) -> None:
        """Each row of the source is landed, quarantined or discarded."""
        generation = self.source.generation
        numbers = [n for g, n in [*self.rows(), *self.quarantined()] if g == generation]
        for apart in self.manifest().set_apart:
            if apart.kind == "discarded" and not apart.is_earlier:
                numbers += range(apart.start_offset, apart.next_offset)
        assert sorted(numbers) == list(range(self.source.count))
        assert self.manifest().total == self.source.count == self.manifest().source_rows

    def manifest(self) -> Manifest:
        return decode(self.folder.read(MANIFEST), "the manifest", Manifest)

    def quarantined(self) -> list[tuple[int, int]]:
        """Return the rows that are quarantined."""
        if MANIFEST not in self.folder.names():
            return []
        inside = [
            Folder(self.folder.fs, f"{self.folder.root}/{each.folder}")
            for each in self.manifest().quarantined
        ]
        return [(row["g"], row["n"]) for folder in inside for row in folder.rows()]


def happen(tmp_path: Path, seeds: Iterable[int]) -> None:
    """Let histories happen, one after another."""
    storage = local(tmp_path)
    for seed in seeds:
        chance = random.Random(f"{seed}")
        on_reset = chance.choice(["fail", "fail", "append", "full"])
        on_failed_checks = chance.choice(["fail", "quarantine", "quarantine"])
        folder = Folder(storage.fs, storage.new_folder())
        CheckedHistory(folder, chance, on_reset, on_failed_checks=on_failed_checks, longest=30).happen()


def test_every_row_is_landed_quarantined_or_discarded_once(tmp_path: Path) -> None:
    happen(tmp_path, HISTORIES)


def test_harm_is_found_where_leftovers_are_deleted_without_regard_to_the_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_parts(manifest: Manifest, names: Iterable[str]) -> set[str]:
        return {*names} - {part.name for part in manifest.parts}

    monkeypatch.setattr(Manifest, "without_needed", without_parts)
    with pytest.raises((AssertionError, FileNotFoundError)):
        happen(tmp_path, range(HARMED))
