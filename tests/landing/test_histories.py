"""Random histories of runs that land one source in one folder or table, of decisions, and of cleaning.

Attempts are held before any storage operation, and continue there while others work, or are killed; responses
get lost; marks and reports fail after the commit; the source grows and is emptied, and some of its rows fail
their checks; tasks and people decide on these rows, concurrently and repeatedly. Whatever happens, each row
of the source is landed, quarantined or discarded exactly once; each part is reported by one run; nobody is
stuck; and consumers that remember the last commit they have loaded get each row once.

Harm that is found is noted by its kind, and the history goes on: wrong code may do several kinds of harm.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import (
    ChecksFailed,
    DestinationUnreadable,
    LogContended,
    NothingLanded,
    NothingToReview,
    PartsMissing,
    RowsMissing,
    SourceReset,
    StorageError,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.storage import Exists
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from airflow_provider_webcollect.landing.write.job import Landed
from airflow_provider_webcollect.landing.write.run import run_job
from tests.landing import decisions
from tests.landing.conftest import Folder
from tests.landing.decisions import Ledger, Row, Target, Verdict, repeated
from tests.landing.pages import Rows, job
from tests.landing.tables import Table, same, tables_in
from tests.simulation.samples import histories
from tests.simulation.steps import (
    LOST,
    Crash,
    Held,
    Losing,
    Stepping,
    Unconditional,
    Work,
    outcome_of,
    step,
    with_storage,
)
from tests.storages import local

pytestmark = [
    pytest.mark.usefixtures("long_reads", "each_part_is_staged"),
    # a warning of pyiceberg, where an overwrite replaces no rows
    pytest.mark.filterwarnings("ignore:Delete operation did not match any records"),
]

#: Numbers of histories for each kind of destination: in all, and by day.
COUNTS = {"folder": (5000, 40), "delta": (2000, 4), "iceberg": (2000, 4)}
#: Each kind in a process of its own: at night, each takes up to half an hour.
KINDS = [pytest.param(kind, marks=pytest.mark.xdist_group(f"histories, {kind}")) for kind in COUNTS]
#: The number of a history that loses rows, for each kind, if existing files can be created again. Once
#: landings have other steps and it loses none, up to MOST are searched, which takes time: one in thirty does.
LOSING, MOST = 10, 300
LOSSES = {
    "a row is lost",
    "a row is there twice",
    "a file that has landed is gone",
    "a consumer by since lacks rows",
    "readers find other rows",
    "what has landed cannot be read",
}
#: Exceptions with which an attempt may end.
ENDS = (
    *(Crash, ConnectionError, Exists, StorageError, LogContended, RowsMissing, SourceReset),
    *(ChecksFailed, NothingToReview, NothingLanded, PartsMissing),
)
#: Maximum number of undisturbed attempts until one must succeed.
TRIES = 5
#: Unix time of the first event, long ago; each event takes a second.
DAWN = 1_600_000_000


class Site(Rows):
    """A source that grows, and that is emptied and filled with other rows.

    :ivar bad: the numbers of the rows with an empty ``ok``.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.generation = 0
        self.bad: set[int] = set()

    def reset(self, count: int) -> None:
        self.generation += 1
        self.count = count
        self.bad.clear()

    def rows(self) -> list[Row]:
        """Return generation and number of each row."""
        return [(self.generation, number) for number in range(self.count)]

    def encoded(self, number: int) -> bytes:
        return b'{"g":%d,"n":%d,"ok":"%s"}' % (self.generation, number, b"" if number in self.bad else b"yes")


@dataclass
class Trace:
    """The names of the files that attempts have uploaded and deleted."""

    uploaded: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)


class Watched(Stepping):
    """The storage of a folder, with a trace of what an attempt does there."""

    def __init__(self, place: Destination, trace: Trace) -> None:
        super().__init__(place._storage)
        self._begin = len(f"{place.root}/")
        self._traces = {"upload": trace.uploaded, "delete": trace.deleted}

    def done(self, operation: str, path: str) -> None:
        if operation in self._traces:
            self._traces[operation].append(path[self._begin :])


@dataclass
class Decider:
    """An Airflow task or a person that decides once, in any number of attempts."""

    name: str
    verdict: Verdict
    target: Target
    trace: Trace = field(default_factory=Trace)


@dataclass
class History:
    """Events that happen to a folder.

    :param unconditional: whether the storage lets existing files be created again.
    :ivar on_reset: option of the runs; the source is emptied unless it is ``fail``.
    :ivar harm: a description of the first harm of each kind.
    :ivar held: the attempts that are held, with the moment at which each began.
    :ivar trace: trace of all landings.
    :ivar files: the rows of each part that has ever existed, landed or quarantined, by the part's name.
    :ivar reported: the names of the parts that each run has reported, in all its attempts.
    :ivar loaded: the names of the parts that consumers have loaded: one by the manifest, one with ``since``.
    :ivar loaded_commit: the last commit that each consumer has loaded.
    """

    folder: Folder
    chance: random.Random
    unconditional: bool = False
    source: Site = field(default_factory=Site)
    harm: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    deciders: list[Decider] = field(default_factory=list)
    held: dict[Held, int] = field(default_factory=dict)
    files: dict[str, list[Row]] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    reported: dict[str, set[str]] = field(default_factory=dict)
    loaded: dict[str, list[str]] = field(default_factory=lambda: {"manifest": [], "since": []})
    loaded_commit: dict[str, int] = field(default_factory=lambda: {"manifest": 0, "since": 0})
    moment: int = 0
    names: set[str] = field(default_factory=set)
    on_reset: str = field(init=False)
    weights: list[int] = field(init=False)
    bad_share: float = field(init=False)

    #: Approximate number of operations in an attempt.
    OPERATIONS = 40
    FORMAT = make_format()

    def __post_init__(self) -> None:
        self.on_reset = self.chance.choice(["fail", "append", "full", "full"])
        # histories differ in kind: what is rare in one is frequent in another
        self.weights = [self.chance.choice([1, 2, 5]) for _ in self.things()]
        self.bad_share = self.chance.choice([0.1, 0.5, 1])
        self.checks = decisions.make_checks_of(self.chance, self.FORMAT)

    def happen(self) -> None:
        """Run the whole history; whatever it finds, no attempt is left held."""
        try:
            self._happen()
        except (DestinationUnreadable, FileNotFoundError) as error:
            self.found("what has landed cannot be read", repr(error))
        finally:
            for held in self.held:
                held.end(kill=True)

    def _happen(self) -> None:
        """Land undisturbed runs, then let random events happen; finally, decisions and a run must succeed."""
        for number in range(self.chance.randint(0, 3)):
            self.grow()
            self.undisturbed(self.landing(f"first {number}", 1, disturbed=False))
            self.check()
        for _ in range(self.chance.randint(4, 40)):
            self.chance.choices(self.things(), self.weights)[0]()
            self.check()
        while self.held:
            self.end(self.taken()[0], kill=self.chance.random() < 0.5)
            self.check()
        if self.come_to_the_end():
            self.check()
            self.check_end()

    def come_to_the_end(self) -> bool:
        """Decide on all quarantined rows, and land all that is left; return whether both succeed."""
        self.source.count += 1
        if not self.decide_all(self.chance.choice(["accept", "discard"])):
            return False
        for attempt in range(1, TRIES + 1):
            outcome = self.undisturbed(self.landing("last", attempt, disturbed=False))
            self.check()
            if isinstance(outcome, Landed) and not decisions.listed(self.folder):
                return True
            if not self.decide_all("accept"):
                return False
        return self.found("a run is stuck", repr(outcome))

    def decide_all(self, verdict: Verdict) -> bool:
        """Decide on all quarantined rows; return whether that succeeds."""
        for number in itertools.count():
            if not (waiting := decisions.listed(self.folder)):
                return True
            decider = Decider(f"{verdict} at last {len(self.deciders)}", verdict, waiting[0])
            self.deciders.append(decider)
            outcome = self.undisturbed(self.decision(decider, disturbed=False))
            self.check()
            if isinstance(outcome, BaseException) or number == 50:
                return self.found("a decision is stuck", repr(outcome))
        return True

    def found(self, kind: str, what: object) -> bool:
        """Note harm, and return False."""
        self.harm.setdefault(kind, f"{what} at moment {self.moment}")
        return False

    # What can happen.

    def things(self) -> list[Callable[[], None]]:
        """Return the events that can happen next."""
        return [self.begin, self.begin, self.go_on, self.go_on, self.grow, self.load, self.decide, self.tidy]

    def begin(self) -> None:
        """Begin the next attempt of a run, or a new run."""
        run = self.chance.choice([*self.attempts, f"run {len(self.attempts)}"])
        self.attempts[run] = attempt = self.attempts.get(run, 0) + 1
        self.hold(self.landing(run, attempt, disturbed=True), self.OPERATIONS)

    def decide(self) -> None:
        """Begin a decision, or the next attempt of one; others may decide on the same rows."""
        waiting = decisions.listed(self.folder)
        if self.deciders and self.chance.random() < 0.5:
            decider = self.chance.choice(self.deciders[-3:])
        elif not waiting:
            self.begin()
            return
        else:
            target = self.chance.choice(waiting)
            match self.chance.choice(["shown", "run", "any"]):
                case "run":
                    target = Target(target.run_id, None)
                case "any":
                    target = Target(None, None)
            verdict: Verdict = self.chance.choice(["accept", "discard"])
            decider = Decider(f"decider {len(self.deciders)}", verdict, target)
            self.deciders.append(decider)
        self.hold(self.decision(decider, disturbed=True), self.OPERATIONS // 2)

    def tidy(self) -> None:
        """Begin to remove unneeded files that are older than all attempts that are held."""
        began = min(self.held.values(), default=self.moment)
        age = time.time() - DAWN - began - 0.5
        self.hold(lambda place: clean(place, older_than=age), self.OPERATIONS // 2)

    def go_on(self) -> None:
        """Let a held attempt go on to another operation or to its end, or kill it."""
        if not self.held:
            self.begin()
            return
        held, began = self.taken()
        match self.chance.choice(["on", "end", "kill"]):
            case "on":
                held.go_on(self.chance.randint(1, 20))
                self.keep(held, began)
            case "end":
                self.end(held)
            case "kill":
                self.end(held, kill=True)

    def grow(self) -> None:
        before = self.source.count
        if self.on_reset != "fail" and self.chance.random() < 0.5:
            self.source.reset(self.chance.randint(0, 12))
            before = 0
        else:
            self.source.count += self.chance.randint(1, 12)
        share = self.chance.choice([0, self.bad_share, self.bad_share])
        added = range(before, self.source.count)
        self.source.bad.update(number for number in added if self.chance.random() < share)

    def load(self) -> None:
        """Load what has landed since the last load, both by the manifest and with ``since``."""
        if MANIFEST not in self.folder.names():
            return
        manifest, since = self.folder.manifest(), self.loaded_commit
        new = [part["name"] for part in manifest["parts"] if part["commit"] > since["manifest"]]
        self.loaded["manifest"] += new
        since["manifest"] = max(since["manifest"], manifest["commit"])
        try:
            landing = read_landing(self.folder.location)
        except NothingLanded:
            # a table may not have been written yet
            return
        if landing.manifest.commit > since["since"]:
            self.loaded["since"] += [part.name for part in landing.parts(since=since["since"])]
            since["since"] = landing.manifest.commit

    # How it happens.

    def hold(self, work: Work, most: int) -> None:
        """Begin an attempt, and hold it at a random operation.

        :param most: the last operation at which to hold it: about as many as it has.
        """
        place = self.folder.destination
        if self.unconditional:
            place = with_storage(place, Unconditional(place._storage))
        self.keep(Held(work, place, self.chance.randint(1, most)), self.moment)

    def keep(self, held: Held, began: int) -> None:
        """Keep an attempt that is held, or see how it has ended."""
        if held.met:
            self.held[held] = began
        else:
            self.end(held)

    def taken(self) -> tuple[Held, int]:
        """Remove a random held attempt, and return it with the moment at which it began."""
        held = self.chance.choice([*self.held])
        return held, self.held.pop(held)

    def end(self, held: Held, *, kill: bool = False) -> None:
        """Let an attempt go on to its end, or kill it."""
        self.ended(held.end(kill=kill))

    def undisturbed(self, work: Work) -> object:
        return self.ended(outcome_of(work, self.folder.destination))

    def ended(self, outcome: object) -> object:
        """Note an unexpected end as harm, and return the outcome."""
        if isinstance(outcome, BaseException) and not isinstance(outcome, ENDS):
            self.found(type(outcome).__name__, outcome)
        return outcome

    def options(self, run: str) -> dict[str, Any]:
        """Return the options of a run, in all its attempts."""
        if run not in self.runs:
            full = run != "last" and self.chance.random() < 0.15
            mode = {"mode": "full", "if_exists": "overwrite"} if full else {"mode": "incremental"}
            failed = self.chance.choice(["fail", "quarantine", "quarantine", "warn"])
            self.runs[run] = {**mode, "on_failed_checks": failed}
        own = {"on_reset": self.on_reset, "checks": self.checks, "file_format": self.FORMAT}
        return {**own, **self.runs[run]}

    def landing(self, run: str, attempt: int, *, disturbed: bool) -> Work:
        """Return an attempt that lands and reports; if it is disturbed, some of its steps may fail."""
        fails = functools.partial(self.happens, disturbed)
        lost = self.chance.randint(1, 8) if fails(0.2) else 0
        marks, mark_fails, report_fails = fails(0.4), fails(0.3), fails(0.2)
        error = self.chance.choice(list(LOST))
        options = self.options(run)

        def work(place: Destination) -> Landed:
            def mark() -> None:
                self.check_mark()
                # others may commit while the request is under way
                step(place, "mark")
                if mark_fails:
                    raise ConnectionError

            losing = Losing(Watched(place, self.trace), lost, error)
            marking = {"mark": mark if marks else None}
            landed = run_job(job(self.source, with_storage(place, losing), run, **options, **marking))
            step(place, "report")
            if report_fails:
                raise ConnectionError
            self.reported.setdefault(run, set()).update(part.name for part in landed.new)
            return landed

        return work

    def happens(self, disturbed: bool, likelihood: float) -> bool:
        return disturbed and self.chance.random() < likelihood

    def decision(self, decider: Decider, *, disturbed: bool) -> Work:
        """Return an attempt to decide; if it is disturbed, the response to a change may be lost."""
        lost = self.chance.randint(1, 6) if self.happens(disturbed, 0.2) else 0
        failure = self.chance.choice(list(LOST))

        def work(place: Destination) -> Any:
            before = self.decided_by(decider)
            losing = with_storage(place, Losing(Watched(place, decider.trace), lost, failure))
            try:
                about = decisions.decide(losing, decider.verdict, decider.target, decider.name)
            except NothingToReview as error:
                if before:
                    self.found("a decision that is taken is not known to its decider", error)
                raise
            known = [commit.get("about") for commit in self.decided_by(decider)]
            if about not in known:
                self.found("a decider hears of another decision", f"{about}, not {known}")

        return work

    def decided_by(self, decider: Decider) -> list[dict[str, Any]]:
        """Return the commits that a decider has made."""
        return [commit for commit in self.folder.commits() if commit.get("by") == decider.name]

    # What must hold.

    def check(self) -> None:
        """Let a moment pass, and check the folder if any file has changed."""
        self.moment += 1
        if not self.has_changed():
            return
        ledger = Ledger(self.folder.commits())
        for contradiction in ledger.amiss:
            self.found("a commit contradicts others", contradiction)
        self.check_files(ledger)
        self.check_rows(ledger)
        self.check_waiting(ledger)
        self.check_decisions(ledger)
        self.check_deletions(ledger)
        self.check_loads(ledger)

    def check_files(self, ledger: Ledger) -> None:
        """Every landed or quarantined part exists and is whole, and no name is used for two files."""
        traces = (self.trace, *(decider.trace for decider in self.deciders))
        if twice := repeated(name for trace in traces for name in trace.uploaded):
            self.found("a name was used again", twice)
        for name in self.folder.parts() - self.files.keys() - ledger.needed():
            # it may be discarded and deleted before the next check
            self.files[name] = decisions.rows_in(name, self.folder.read(name))
        for name in ledger.needed():
            part = ledger.parts[name]
            try:
                content = self.folder.read(name)
            except FileNotFoundError:
                waits = name not in {landed for _, landed in ledger.landed}
                self.found(f"a file that {'waits' if waits else 'has landed'} is gone", name)
                continue
            if len(content) != part["bytes"] or hashlib.sha256(content).hexdigest() != part["sha256"]:
                self.found("a file is not what was written", name)
                continue
            rows = decisions.rows_in(name, content)
            if len(rows) != part["rows"] or self.files.setdefault(name, rows) != rows:
                self.found("a file has other rows", name)

    def check_rows(self, ledger: Ledger) -> None:
        """Within a reading of the source, each row is landed, quarantined or discarded, once."""
        names = [*ledger.landed, *ledger.names_waiting(), *ledger.discarded]
        rows = [(reading, row) for reading, name in names for row in self.files.get(name, ())]
        if twice := repeated(rows):
            self.found("a row is there twice", twice)
        present = sorted({row for reading, row in rows if reading == ledger.reading})
        if present != [
            (generation, number) for number, (generation, _) in enumerate(present[:1] * len(present))
        ]:
            self.found("a row is lost", present)
        for before, after in ledger.decided.values():
            if after and sorted(self.rows_of(before)) != sorted(self.rows_of(after)):
                self.found("other rows were accepted than have waited", (before, after))

    def check_waiting(self, ledger: Ledger) -> None:
        """Quarantined rows, and no others, are listed until a decision."""
        listed = {rows.commit for rows in decisions.listed(self.folder)} - {None}
        if gone := ledger.waiting.keys() - listed:
            self.found("rows that wait are not listed", gone)
        if listed - ledger.waiting.keys():
            self.found("rows are listed that do not wait", listed)

    def check_decisions(self, ledger: Ledger) -> None:
        """Each decider has decided at most once."""
        for decider in self.deciders:
            own = self.decided_by(decider)
            if len(own) > 1:
                self.found("a decider has decided twice", [commit["number"] for commit in own])

    def check_deletions(self, ledger: Ledger) -> None:
        """A landing deletes no file that a commit names; a decision deletes only what it has discarded."""
        if gone := ledger.parts.keys() & {*self.trace.deleted}:
            self.found("a landing has deleted a file of a commit", gone)
        for decider in self.deciders:
            discarded = {
                name
                for commit in self.decided_by(decider)
                if not commit.get("parts")
                for name in ledger.decided[commit["about"]][0]
            }
            if gone := (ledger.parts.keys() & {*decider.trace.deleted}) - discarded:
                self.found("a decision has deleted a file of a commit", gone)

    def check_loads(self, ledger: Ledger) -> None:
        """Consumers have got no row twice."""
        for consumer, names in self.loaded.items():
            loaded = [
                (ledger.reading_of.get(name), row) for name in names for row in self.files.get(name, ())
            ]
            if twice := repeated(names) or repeated(loaded):
                self.found(f"a consumer by {consumer} has got rows twice", twice)

    def check_mark(self) -> None:
        """At a mark, each row of the source is landed or discarded, and none is quarantined."""
        self.check_files(ledger := Ledger(self.folder.commits()))
        done = [name for reading, name in (*ledger.landed, *ledger.discarded) if reading == ledger.reading]
        if missing := {*self.source.rows()} - {*self.rows_of(done)}:
            self.found("a mark comes before rows", missing)

    def check_end(self) -> None:
        """Readers and consumers get all rows, and after cleaning no other files are left."""
        ledger = Ledger(self.folder.commits())
        done = [name for reading, name in (*ledger.landed, *ledger.discarded) if reading == ledger.reading]
        if sorted(self.rows_of(done)) != self.source.rows():
            self.found("not all rows have landed", done)
        self.load()
        self.check_loads(ledger)
        landed = [name for _, name in ledger.landed]
        for consumer, names in self.loaded.items():
            if lacking := {*landed} - {*names}:
                self.found(f"a consumer by {consumer} lacks rows", lacking)
        if twice := repeated(name for names in self.reported.values() for name in names):
            self.found("two runs report a part", twice)
        self.check_readers(self.rows_of(landed))
        clean(self.folder.location, older_than=0)
        self.check_files(ledger)
        self.check_nothing_is_left(ledger)

    def check_readers(self, expected: list[Row]) -> None:
        """Readers find the rows that have landed."""
        rows = [(row["g"], row["n"]) for row in self.folder.rows()]
        if rows != expected or [(row["g"], row["n"]) for row in self.folder.landed().iter_rows()] != expected:
            self.found("readers find other rows", rows)

    def check_nothing_is_left(self, ledger: Ledger) -> None:
        """Exactly the needed files exist."""
        names = {name for name in self.folder.names() if not name.startswith("_commits/")}
        if names != ledger.needed() | {MANIFEST}:
            self.found("other files are left than are needed", names ^ (ledger.needed() | {MANIFEST}))

    def rows_of(self, names: Iterable[str]) -> list[Row]:
        """Return the rows of parts."""
        return [row for name in names for row in self.files.get(name, ())]

    def has_changed(self) -> bool:
        """Return whether files were added, deleted or written since the last check; date the written ones."""
        names, before = self.folder.names(), self.names
        # a table's library removes old entries of its log
        paths = [Path(self.folder.root, name) for name in names if not name.startswith("_delta_log/")]
        written = [path for path in paths if path.stat().st_mtime > DAWN + 1e6]
        for path in written:
            os.utime(path, (DAWN + self.moment,) * 2)
        self.names = names
        return bool(written) or names != before


class TableHistory(History):
    """Events that happen to a table, which others also compact."""

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
        """No file is left in our own folders; data files of older versions belong to the table."""
        own = {name for name in self.folder.names() if name.startswith(("_staged/", "_quarantine/"))}
        if left := own - ledger.needed():
            self.found("other files are left than are needed", left)


def harms(
    folder: Path, kind: str, numbers: Iterable[int], *, unconditional: bool = False
) -> Iterator[dict[str, str]]:
    """Run histories in new folders or tables, and yield the harm that each one finds."""
    places = functools.partial(Folder.new, local(folder)) if kind == "folder" else tables_in(folder, kind)
    history_of = History if kind == "folder" else TableHistory
    for number in numbers:
        history = history_of(places(), random.Random(f"{number}"), unconditional)
        history.happen()
        yield history.harm


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_landed_or_waits_or_was_discarded_once(tmp_path: Path, kind: str) -> None:
    every, by_day = COUNTS[kind]
    numbers = histories(kind, every, by_day=by_day)
    for number, harm in zip(numbers, harms(tmp_path, kind, numbers), strict=True):
        assert not harm, f"WEBCOLLECT_HISTORY={number}"


@pytest.mark.parametrize("kind", KINDS)
def test_without_conditional_create_rows_are_lost(tmp_path: Path, kind: str) -> None:
    harmed = harms(tmp_path, kind, [LOSING, *range(MOST)], unconditional=True)
    assert any(not harm.keys().isdisjoint(LOSSES) for harm in harmed)
