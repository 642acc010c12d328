"""Random histories of the runs that land one source in one folder, and of what they report.

Their attempts are stopped before any operation of the storage, go on while others run, or are killed there;
answers get lost; marks and reports fail after the commit; the source grows and is emptied. Whatever happens,
a reader finds the source's rows, each once and in order, and every part is reported by one run.
"""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_webcollect.landing import copy
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import MANIFEST, PROGRESS
from airflow_provider_webcollect.landing.plan import FolderState
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.service.models import DataPage
from tests.conftest import ALL_HISTORIES
from tests.landing.conftest import Folder
from tests.landing.interleaving import LOST, Held, Losing, outcome_of, with_storage
from tests.landing.pages import PAGE, job
from tests.landing.storages import local

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from airflow_provider_webcollect.landing.storage.folder import Folder as Destination

HISTORIES = 5000 if ALL_HISTORIES else 150
#: The number of histories in which a harm must be found once a safeguard is left out.
HARMED = 400


class Generations:
    """A source that grows, and that is emptied and filled with other rows."""

    def __init__(self) -> None:
        self.generation = 0
        self.count = 0

    def reset(self, count: int) -> None:
        self.generation += 1
        self.count = count

    def rows(self) -> list[tuple[int, int]]:
        """Return generation and number of each row."""
        return [(self.generation, number) for number in range(self.count)]

    def fetch(self, offset: int) -> DataPage:
        rows = [msgspec.Raw(b'{"g":%d,"n":%d}' % row) for row in self.rows()[offset : offset + PAGE]]
        end = min(offset + PAGE, self.count)
        return DataPage(offset=end, total=self.count, rest_total=self.count - end, rows=rows)


@dataclass
class History:
    """What happens to a folder.

    :param on_reset: of the runs; the source is emptied unless it is ``fail``.
    :param ignored: operations and names of files whose conditions the storage ignores.
    :ivar reported: the names of the parts that each run has reported, in whichever attempts.
    """

    folder: Folder
    chance: random.Random
    on_reset: str
    ignored: Collection[tuple[str, str]] = ()
    source: Generations = field(default_factory=Generations)
    attempts: dict[str, int] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    reported: dict[str, set[str]] = field(default_factory=dict)

    def happen(self) -> None:
        """Let some things happen, and then a run succeed whom nothing disturbs."""
        for _ in range(self.chance.randint(4, 16)):
            self.chance.choice([self.begin, self.begin, self.go_on, self.go_on, self.grow])()
            self.check_rows()
        while self.held:
            self.held.pop(self.chance.randrange(len(self.held))).end(kill=self.chance.random() < 0.5)
        self.source.count += 1
        for attempt in itertools.count(1):
            outcome = outcome_of(self.landing("last", attempt, disturbed=False), self.folder.destination)
            if isinstance(outcome, Landed):
                break
            assert attempt < 5, outcome
        self.check_rows()
        assert self.rows()[-self.source.count :] == self.source.rows()
        self.check_reports()

    def begin(self) -> None:
        """Begin the next attempt of a run, or a run."""
        run = self.chance.choice([*self.attempts, f"run {len(self.attempts)}"])
        self.attempts[run] = attempt = self.attempts.get(run, 0) + 1
        work = self.landing(run, attempt, disturbed=True)
        held = Held(work, self.folder.destination, self.chance.randint(1, 40), self.ignored)
        if held.met:
            self.held.append(held)

    def go_on(self) -> None:
        """Let an attempt go on that is held: to another operation, to its end; or kill it."""
        if not self.held:
            return
        held = self.held.pop(self.chance.randrange(len(self.held)))
        match self.chance.choice(["on", "end", "kill"]):
            case "on":
                held.go_on(self.chance.randint(1, 20))
                if held.met:
                    self.held.append(held)
            case "end":
                held.end()
            case "kill":
                held.end(kill=True)

    def grow(self) -> None:
        if self.on_reset != "fail" and self.chance.random() < 0.5:
            self.source.reset(self.chance.randint(0, 12))
        else:
            self.source.count += self.chance.randint(1, 12)

    def landing(self, run: str, attempt: int, *, disturbed: bool) -> Any:
        """Return an attempt that lands and reports; if it is disturbed, steps of it may fail."""
        fails = functools.partial(self.happens, disturbed)
        lost = self.chance.randint(1, 8) if fails(0.2) else 0
        marks, mark_fails, report_fails = fails(0.4), fails(0.3), fails(0.2)
        error = LOST[self.chance.choice(list(LOST))]

        def work(place: Destination) -> Landed:
            def step(operation: str) -> None:
                getattr(place._storage, "step", lambda *_: None)(operation, f"/{operation}")

            def mark() -> None:
                step("mark")
                if mark_fails:
                    raise ConnectionError

            options: dict[str, Any] = {"mode": "incremental", "on_reset": self.on_reset}
            options["mark"] = mark if marks else None
            losing = Losing(place._storage, lost, lambda: None, error)
            landed = run_job(
                job(self.source, with_storage(place, losing), run, attempt=attempt, **options),
                finish=False,
            )
            step("report")
            # whoever is killed before it hears that its report has ended has ended it: Airflow does not know
            losing.at = 0
            if report_fails:
                raise ConnectionError
            landed.finish()
            self.reported.setdefault(run, set()).update(part.name for part in landed.new)
            return landed

        return work

    def happens(self, disturbed: bool, likelihood: float) -> bool:
        return disturbed and self.chance.random() < likelihood

    def rows(self) -> list[tuple[int, int]]:
        """Return what a reader gets."""
        if MANIFEST not in self.folder.names():
            return []
        return [(row["g"], row["n"]) for row in self.folder.rows()]

    def check_rows(self) -> None:
        """The rows of each generation are its first ones, once and in order."""
        rows = self.rows()
        generations = [list(group) for _, group in itertools.groupby(rows, lambda row: row[0])]
        assert all(group == [(group[0][0], n) for n in range(len(group))] for group in generations), rows
        numbers = [group[0][0] for group in generations]
        assert numbers == sorted(set(numbers))
        assert self.on_reset == "append" or len(numbers) <= 1

    def check_reports(self) -> None:
        """Each part that is landed is reported by one run, and by no other."""
        parts = [part["name"] for part in self.folder.manifest()["parts"]]
        reported = [name for names in self.reported.values() for name in names if name in parts]
        assert sorted(reported) == sorted(parts)


def histories(tmp_path: Path, count: int, **options: Any) -> Iterator[History]:
    """Yield histories that have not begun."""
    storage = local(tmp_path)
    for seed in range(count):
        chance = random.Random(f"{seed}")
        on_reset = chance.choice(["fail", "fail", "append", "full"])
        yield History(Folder(storage.fs, storage.new_folder()), chance, on_reset, **options)


@pytest.fixture(autouse=True)
def long_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read takes long: attempts are held for a long time."""
    monkeypatch.setattr(copy, "LONG_READ", 0.0)


@pytest.mark.timeout(1800)
def test_every_row_is_landed_once_and_every_part_is_reported_by_one_run(tmp_path: Path) -> None:
    for history in histories(tmp_path, HISTORIES):
        history.happen()


def does_harm(tmp_path: Path, **options: Any) -> bool:
    """Return whether a history does harm."""
    for history in histories(tmp_path, HARMED, **options):
        try:
            history.happen()
        except (AssertionError, FileNotFoundError):
            return True
    return False


@pytest.mark.parametrize("ignored", [("replace", MANIFEST), ("remove", PROGRESS)], ids=" of ".join)
def test_harm_is_found_where_a_condition_is_left_out(tmp_path: Path, ignored: tuple[str, str]) -> None:
    assert does_harm(tmp_path, ignored=[ignored])


def test_harm_is_found_where_no_run_takes_over_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderState, "is_unreported", False)
    assert does_harm(tmp_path)
