"""What may happen to a folder that runs land in: attempts that are held, go on, end or die; lost answers."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import LogContended, RowsMissing, SourceReset, StorageError
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.names import MANIFEST
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.storage import Exists
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from tests.landing.conftest import Crash, Folder
from tests.landing.interleaving import LOST, Held, Land, Losing, Outcome, outcome_of, with_storage
from tests.landing.pages import Rows, job

T = TypeVar("T", bound="History")


def histories(kind: type[T], places: Callable[[], Any], seeds: Iterable[Any], **options: Any) -> Iterator[T]:
    """Yield histories that have not begun.

    :param places: makes folders or tables that are not there yet.
    """
    for seed in seeds:
        chance = random.Random(f"{seed}")
        yield kind(places(), chance, chance.choice(kind.RESETS), **options)


def does_harm(histories: Iterable[History]) -> bool:
    """Return whether one of the histories does harm."""
    for history in histories:
        try:
            history.happen()
        except (AssertionError, FileNotFoundError):
            return True
    return False


class Generations(Rows):
    """A source that grows, and that is emptied and filled with other rows."""

    def __init__(self) -> None:
        super().__init__(0)
        self.generation = 0

    def reset(self, count: int) -> None:
        self.generation += 1
        self.count = count

    def rows(self) -> list[tuple[int, int]]:
        """Return generation and number of each row."""
        return [(self.generation, number) for number in range(self.count)]

    def encoded(self, number: int) -> bytes:
        return b'{"g":%d,"n":%d}' % (self.generation, number)


@dataclass
class History:
    """What happens to a folder.

    :param on_reset: of the runs, one of :attr:`RESETS`; the source is emptied unless it is ``fail``.
    :param unconditional: whether the storage creates files that are there.
    :param longest: how many things happen at most.
    :ivar reported: the names of the parts that each run has reported, in whichever attempts.
    :ivar loaded: the names of the parts that a consumer has loaded, who remembers the commit that it has come
        to.
    """

    #: How an attempt may end, besides with its result.
    ENDS: ClassVar[tuple[type[BaseException], ...]] = (
        *(Crash, ConnectionError, Exists, StorageError),
        *(LogContended, RowsMissing, SourceReset),
    )

    RESETS: ClassVar[list[str]] = ["fail", "fail", "append", "full"]

    folder: Folder
    chance: random.Random
    on_reset: str
    unconditional: bool = False
    source: Generations = field(default_factory=Generations)
    attempts: dict[str, int] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    reported: dict[str, set[str]] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    loaded_commit: int = 0
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
            self.end(self.held.pop(self.chance.randrange(len(self.held))), kill=self.chance.random() < 0.5)
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
        self.check_nothing_is_left()

    def things(self) -> list[Callable[[], None]]:
        """Return what can happen next."""
        return [self.begin, self.begin, self.go_on, self.go_on, self.grow, self.load]

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
        at = self.chance.randint(1, most)
        self.keep(Held(work, self.folder.destination, at, unconditional=self.unconditional))

    def keep(self, held: Held) -> None:
        """Keep what is held; see how it has ended otherwise."""
        if held.met:
            self.held.append(held)
        else:
            self.end(held)

    def end(self, held: Held, *, kill: bool = False) -> None:
        """Let an attempt go on to its end, or kill it."""
        outcome = held.end(kill=kill)
        if isinstance(outcome, BaseException) and not isinstance(outcome, self.ENDS):
            raise outcome

    def go_on(self) -> None:
        """Let an attempt go on that is held: to another operation, to its end; or kill it."""
        if not self.held:
            return
        held = self.held.pop(self.chance.randrange(len(self.held)))
        match self.chance.choice(["on", "end", "kill"]):
            case "on":
                held.go_on(self.chance.randint(1, 20))
                self.keep(held)
            case "end":
                self.end(held)
            case "kill":
                self.end(held, kill=True)

    def grow(self) -> None:
        if self.on_reset != "fail" and self.chance.random() < 0.5:
            self.source.reset(self.chance.randint(0, 12))
        else:
            self.source.count += self.chance.randint(1, 12)

    def load(self) -> None:
        """Load what has landed since the last time, as the manifest says it."""
        if MANIFEST not in self.folder.names():
            return
        manifest = self.folder.manifest()
        self.loaded += [part["name"] for part in manifest["parts"] if part["commit"] > self.loaded_commit]
        self.loaded_commit = max(self.loaded_commit, manifest["commit"])

    def landing(self, run: str, attempt: int, *, disturbed: bool) -> Any:
        """Return an attempt that lands and reports; if it is disturbed, steps of it may fail."""
        fails = functools.partial(self.happens, disturbed)
        lost = self.chance.randint(1, 8) if fails(0.2) else 0
        marks, mark_fails, report_fails = fails(0.4), fails(0.3), fails(0.2)
        error = LOST[self.chance.choice(list(LOST))]
        written: dict[int, int] = {}

        def work(place: Destination) -> Landed:
            def step(operation: str) -> None:
                getattr(place._storage, "step", lambda *_: None)(operation, f"/{operation}")

            def mark() -> None:
                # others may commit while the request is under way
                self.check_mark_is_due()
                step("mark")
                if mark_fails:
                    raise ConnectionError
                self.check_mark(written)

            options = {
                **self.options(),
                "mark": mark if marks else None,
                "on_progress": lambda rows, total: written.update({self.source.generation: rows}),
            }
            losing = Losing(place._storage, lost, lambda: None, error)
            landed = run_job(job(self.source, with_storage(place, losing), run, **options))
            step("report")
            if report_fails:
                raise ConnectionError
            self.reported.setdefault(run, set()).update(part.name for part in landed.new)
            return landed

        return work

    def happens(self, disturbed: bool, likelihood: float) -> bool:
        return disturbed and self.chance.random() < likelihood

    def rows(self) -> list[tuple[int, int]]:
        """Return what a reader gets."""
        return [(row["g"], row["n"]) for row in self.folder.rows()]

    def check_rows(self) -> None:
        """The rows of each generation are its first ones, once and in order."""
        rows = self.rows()
        generations = [list(group) for _, group in itertools.groupby(rows, lambda row: row[0])]
        assert all(group == [(group[0][0], n) for n in range(len(group))] for group in generations), rows
        numbers = [group[0][0] for group in generations]
        assert numbers == sorted(set(numbers))
        assert self.on_reset == "append" or len(numbers) <= 1

    def check_mark_is_due(self) -> None:
        """The first row that the source has now has landed: the source was not filled again since."""
        landed = self.committed_rows()
        assert {*self.source.rows()[:1]} <= landed, f"other rows than {landed} are marked"

    def check_mark(self, written: dict[int, int]) -> None:
        """Of the rows that are marked, those that the run has written are committed, or replaced by now.

        :param written: how many rows of each generation.
        """
        landed = self.committed_rows()
        latest = max((generation for generation, _ in landed), default=0)
        missing = {(latest, number) for number in range(written.get(latest, 0))} - landed
        assert not missing, f"{missing} are marked, and not committed"

    def committed_rows(self) -> set[tuple[int, int]]:
        """Return generation and number of the rows that the commits list."""
        return {(int(row["g"]), int(row["n"])) for row in self.folder.committed_rows()}

    def check_reports(self) -> None:
        """No two runs report the same part, and a consumer has got each by its own memory, once."""
        parts = [part["name"] for part in self.folder.manifest()["parts"]]
        reported = [name for names in self.reported.values() for name in names]
        assert len(set(reported)) == len(reported)
        self.load()
        assert len(set(self.loaded)) == len(self.loaded)
        assert {*parts} <= {*self.loaded}
        if self.on_reset != "full":
            assert {*reported} | {*self.loaded} <= {*parts}

    def check_nothing_is_left(self) -> None:
        """The manifest says what the commits say, and of all other files none stays."""
        assert self.folder.rows() == self.folder.committed_rows()
        clean(self.folder.location, older_than=0)
        assert self.folder.names() == self.folder.needed()
