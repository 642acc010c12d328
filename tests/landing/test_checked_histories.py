"""Random histories of runs whose rows are checked, and of decisions about rows that have failed.

Runs, decisions and restoring are stopped before any operation of the storage, go on while others are at work,
or are killed there; leftovers are removed. Whatever happens, each row of the source is landed, quarantined or
discarded, once, and every part of the landing is reported by one run.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.cleaning import clean, restore
from airflow_provider_webcollect.landing.commits import Manifest
from airflow_provider_webcollect.landing.errors import (
    ChecksFailed,
    NothingLanded,
    NothingToReview,
    PartsMissing,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.review import accept, discard, in_review, quarantine
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from tests.conftest import ALL_HISTORIES, SEED
from tests.landing.conftest import Folder
from tests.landing.histories import Generations, History, does_harm, histories
from tests.landing.interleaving import Outcome
from tests.storages import local

pytestmark = pytest.mark.usefixtures("long_reads", "each_part_is_staged")
EVERY = range(3000)
HISTORIES = EVERY if ALL_HISTORIES else random.Random(SEED).sample(EVERY, 40)
#: The number of histories that must show the harm if a safeguard is left out.
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

    def encoded(self, number: int) -> bytes:
        return b'{"g":%d,"n":%d,"ok":"%s"}' % (self.generation, number, b"" if number in self.bad else b"yes")


@dataclass
class CheckedHistory(History):
    """What happens to a folder whose runs check their rows."""

    ENDS = (*History.ENDS, ChecksFailed, NothingToReview, NothingLanded, PartsMissing)
    RESETS = ["fail", "append", "full", "full"]  # noqa: RUF012  # as in the class above

    source: Site = field(default_factory=Site)
    longest: int = 30
    on_failed_checks: str = field(init=False)

    def __post_init__(self) -> None:
        self.on_failed_checks = self.chance.choice(["fail", "quarantine", "quarantine"])

    def things(self) -> list[Callable[[], None]]:
        return [*super().things(), self.decide, self.decide, self.put_back, self.tidy]

    def options(self) -> dict[str, Any]:
        return {**super().options(), "checks": CHECKS, "on_failed_checks": self.on_failed_checks}

    def grow(self) -> None:
        before = self.source.count
        super().grow()
        if self.chance.random() < 0.5:
            self.source.bad.update(range(min(before, self.source.count), self.source.count))

    def decide(self) -> None:
        """Begin to accept rows, to set them apart or to discard them."""
        decision = self.chance.choice([accept, quarantine, discard])
        number = self.chance.random()

        def work(place: Destination) -> Any:
            waiting = in_review(place)
            return decision(place, waiting[int(number * len(waiting))].run.run_id if waiting else "none")

        self.hold(work, 16)

    def put_back(self) -> None:
        """Begin to put back what was replaced, if anything was."""
        self.hold(restore, 16)

    def tidy(self) -> None:
        """Remove all leftovers of a landing while nobody is at work, as :func:`clean` asks for."""
        if self.folder.commits() and not self.held:
            clean(self.folder.location, older_than=0)

    def after_failure(self, outcome: Outcome) -> None:
        if isinstance(outcome, ChecksFailed):
            accept(self.folder.location, "last")

    def check_rows(self) -> None:
        """No row is there twice, landed or quarantined."""
        rows = [*self.rows(), *self.quarantined()]
        assert len(rows) == len(set(rows)), rows

    def check_mark_is_due(self) -> None:
        """Nor is anything marked while rows of the source are quarantined."""
        apart = self.folder.manifest()["set_apart"]
        assert all(entry.get("is_earlier") for entry in apart if entry["kind"] == "quarantined")
        if not self.discarded():
            super().check_mark_is_due()

    def check_mark(self, written: dict[int, int]) -> None:
        if not self.discarded():
            super().check_mark(written)

    def check_all_is_there(self) -> None:
        """Each row of the source is landed, quarantined or discarded."""
        generation = self.source.generation
        numbers = [n for g, n in [*self.rows(), *self.quarantined()] if g == generation]
        assert sorted([*numbers, *self.discarded()]) == list(range(self.source.count))
        assert self.folder.manifest()["total"] == self.source.count

    def discarded(self) -> list[int]:
        """Return the numbers of the rows of the source that are discarded."""
        apart = self.folder.manifest()["set_apart"]
        gone = [entry for entry in apart if entry["kind"] == "discarded" and not entry.get("is_earlier")]
        return [number for entry in gone for number in range(entry["start_offset"], entry["next_offset"])]

    def quarantined(self) -> list[tuple[int, int]]:
        """Return the rows that are quarantined."""
        return [(row["g"], row["n"]) for row in self.folder.rows_apart()]


def test_every_row_is_landed_quarantined_or_discarded_once(tmp_path: Path) -> None:
    for history in histories(CheckedHistory, functools.partial(Folder.new, local(tmp_path)), HISTORIES):
        history.happen()


def test_harm_is_found_where_leftovers_are_deleted_without_regard_to_the_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Manifest, "quarantined", ())
    places = functools.partial(Folder.new, local(tmp_path))
    assert does_harm(histories(CheckedHistory, places, range(HARMED)))
