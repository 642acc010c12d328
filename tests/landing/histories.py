"""What may happen to a folder that runs land in: attempts that are held, go on, end or die; lost answers."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import MANIFEST
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.service.models import DataPage
from tests.landing.conftest import Folder
from tests.landing.interleaving import LOST, Held, Land, Losing, Outcome, outcome_of, with_storage
from tests.landing.pages import PAGE, finish, job

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from airflow_provider_webcollect.landing.storage.folder import Folder as Destination


def does_harm(histories: Iterable[History]) -> bool:
    """Return whether one of the histories does harm."""
    for history in histories:
        try:
            history.happen()
        except (AssertionError, FileNotFoundError):
            return True
    return False


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
    :param longest: how many things happen at most.
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
    longest: int = 16

    def happen(self) -> None:
        """Let all of it happen; whatever is found, nothing is left held."""
        try:
            self._happen()
        finally:
            for held in self.held:
                held.end(kill=True)

    def _happen(self) -> None:
        """Let runs land whom nothing disturbs, then some things happen, and at the end a run succeed."""
        for number in range(self.chance.randint(0, 3)):
            self.source.count += self.chance.randint(1, 12)
            outcome_of(self.landing(f"first {number}", 1, disturbed=False), self.folder.destination)
        for _ in range(self.chance.randint(4, self.longest)):
            self.chance.choice(self.things())()
            self.check_rows()
        while self.held:
            self.held.pop(self.chance.randrange(len(self.held))).end(kill=self.chance.random() < 0.5)
        self.source.count += 1
        for attempt in itertools.count(1):
            outcome = outcome_of(self.landing("last", attempt, disturbed=False), self.folder.destination)
            if isinstance(outcome, Landed):
                break
            assert attempt < 5, outcome
            self.after_failure(outcome)
        self.check_rows()
        self.check_all_is_there()
        self.check_reports()

    def things(self) -> list[Callable[[], None]]:
        """Return what can happen next."""
        return [self.begin, self.begin, self.go_on, self.go_on, self.grow]

    def options(self) -> dict[str, Any]:
        """Return the options of all runs."""
        return {"mode": "incremental", "on_reset": self.on_reset}

    def after_failure(self, outcome: Outcome) -> None:
        """Do what the last run needs to succeed."""

    def check_all_is_there(self) -> None:
        """All rows of the source are landed."""
        assert self.rows()[-self.source.count :] == self.source.rows()

    def begin(self) -> None:
        """Begin the next attempt of a run, or a run."""
        run = self.chance.choice([*self.attempts, f"run {len(self.attempts)}"])
        self.attempts[run] = attempt = self.attempts.get(run, 0) + 1
        self.hold(self.landing(run, attempt, disturbed=True))

    def hold(self, work: Land, most: int = 40) -> None:
        """Let something begin, and hold it at some operation.

        :param most: how many operations it comes to, about.
        """
        held = Held(work, self.folder.destination, self.chance.randint(1, most), self.ignored)
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

            options = {**self.options(), "mark": mark if marks else None}
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
            finish(landed)
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
        """Each part that is landed is reported by one run, and by no other; what is reported stays landed."""
        parts = [part["name"] for part in self.folder.manifest()["parts"]]
        reported = [name for names in self.reported.values() for name in names]
        if self.on_reset == "full":  # what was reported may be replaced
            reported = [name for name in reported if name in parts]
        assert sorted(reported) == sorted(parts)
