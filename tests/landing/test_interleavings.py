"""Two landings that meet in a folder: one is held at each of its operations in turn, while the other runs.

Whatever they do, both end well, commits and manifest have the exact rows, and the next run lands the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import LogContended
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.log.commits import Part
from airflow_provider_webcollect.landing.storage.commit_log import TRIES
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from airflow_provider_webcollect.landing.write.job import Landed
from airflow_provider_webcollect.landing.write.run import run_job
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.endpoints import mark_exported
from airflow_provider_webcollect.service.errors import Stopped
from airflow_provider_webcollect.service.models import DataPage
from airflow_provider_webcollect.service.pages import PageReader
from airflow_provider_webcollect.service.settings import ClientTiming
from airflow_provider_webcollect.service.threads import Stop
from tests.landing.conftest import OTHER_RUN, SERVERS, Folder, Landing
from tests.landing.pages import PAGE, Rows, changed, job, true_rows, unreachable
from tests.simulation.samples import ALL_HISTORIES, chance_of
from tests.simulation.steps import (
    LOST,
    Crash,
    Held,
    Losing,
    kill,
    outcome_of,
    step,
    stepping,
    with_storage,
)
from tests.storages import Storage, local

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    pytest.mark.usefixtures("each_part_is_staged"),
]

#: A landing is held at every n-th operation; on a server, holding it at each would take too long.
STRIDE, STRIDE_ON_SERVERS = (1, 5) if ALL_HISTORIES else (20, 20)
#: Kinds of landing, and their options. If rows have landed before, run r1 has landed ``LANDED_BEFORE`` rows.
KINDS: dict[str, dict[str, Any]] = {
    "retry": {"run": "r1", "mode": "incremental"},
    "retry that marks": {"run": "r1", "mode": "incremental", "marks": True},
    "next": {"mode": "incremental"},
    "next in a partition": {"mode": "incremental", "partition": "dt=2026-01-01"},
    "next that marks": {"mode": "incremental", "marks": True},
    "overwrite": {"mode": "full", "if_exists": "overwrite"},
}
LANDED_BEFORE, ALL = 10, 25


@dataclasses.dataclass(frozen=True)
class State:
    """What the folder holds before the two landings.

    :param landed: number of rows that run r1 has landed.
    :param killed_at: operation at which a first attempt of run a was killed; None if there was no attempt.
    :param kind: kind of that attempt.
    """

    landed: int
    killed_at: tuple[str, str] | None = None
    kind: str = "next"


STATES = {
    "nothing": State(0),
    "a first landing that was killed": State(0, ("create", "00000001.json")),
    "a first commit that nothing shows": State(0, ("write", MANIFEST)),
    "a commit": State(LANDED_BEFORE),
    "a landing that was killed": State(LANDED_BEFORE, ("create", "00000002.json")),
    "an overwriting that was killed": State(LANDED_BEFORE, ("create", "00000002.json"), "overwrite"),
    "a commit that nothing shows": State(LANDED_BEFORE, ("write", MANIFEST)),
    "an overwriting that nothing shows": State(LANDED_BEFORE, ("write", MANIFEST), "overwrite"),
    "a commit that is not marked": State(LANDED_BEFORE, ("create", "00000003.json"), "next that marks"),
}


@dataclasses.dataclass
class Case:
    """Folders in one state, and landings in them."""

    storage: Storage
    state: State

    def __post_init__(self) -> None:
        folder = Folder.new(self.storage)
        if self.state.landed:
            run_job(job(Rows(self.state.landed), folder.destination, "r1", mode="incremental"))
        if self.state.killed_at:
            kill(landing_of(self.state.kind, "a"), folder.destination, self.state.killed_at)
        self._content = folder.contents()
        self._before = folder.committed_rows()

    def new_folder(self) -> Folder:
        folder = Folder.new(self.storage)
        for name, content in self._content.items():
            folder.write(name, content)
        return folder

    def check(self, folder: Folder, *ended: tuple[str, str, object]) -> None:
        """Check that readers get exact rows, the next run lands the rest, and no other files are left.

        :param ended: kind, run and outcome of each landing.
        """
        whole = any(isinstance(outcome, Landed) and kind != "retry" for kind, _, outcome in ended)
        before = [] if whole else [self._before]
        assert folder.committed_rows() in [*before, true_rows(ALL)]
        if all(isinstance(outcome, Landed) for *_, outcome in ended):
            assert folder.rows() == folder.committed_rows()
            assert folder.manifest()["commit"] == len(folder.commits())
        assert folder.rows() in [*before, true_rows(self.state.landed), true_rows(ALL)]
        for kind, run, outcome in ended:
            assert isinstance(outcome, Landed | Crash), outcome
            self.check_retry(folder, kind, run, outcome)
        run_job(job(Rows(ALL + 5), folder.destination, "last", mode="incremental"))
        assert folder.rows() == folder.committed_rows() == true_rows(ALL + 5)
        clean(folder.location, older_than=0)
        assert folder.names() == folder.needed()

    @staticmethod
    def check_retry(folder: Folder, kind: str, run: str, outcome: Landed | Crash) -> None:
        """However the run ended, a retry must report the parts that it has landed and nobody has replaced."""

        def own() -> set[str]:
            name = KINDS[kind].get("run", run)
            commits = [commit for commit in folder.commits() if commit["run"]["run_id"] == name]
            return {part["name"] for commit in commits for part in commit.get("parts", ())}

        if isinstance(outcome, Landed):
            assert {part.name for part in outcome.new} <= own()
        landed = landing_of(kind, run)(folder.destination)
        assert {part.name for part in landed.new} == own() & {part["name"] for part in folder.committed()}

    def interleave(self, first: str, second: str, operation: int, *, kill: bool) -> bool:
        """Hold the first landing before an operation, while the second runs; then let it go on, or kill it.

        :return: False if the first has fewer operations.
        """
        folder = self.new_folder()
        held = Held(landing_of(first, "a"), folder.destination, operation)
        if held.met is None:
            return False
        other = outcome_of(landing_of(second, "b"), folder.destination)
        self.check(folder, (first, "a", held.end(kill=kill)), (second, "b", other))
        return True


def landing_of(kind: str, run: str) -> Callable[[Destination], Landed]:
    """Return a function that lands all rows.

    :param kind: one of :data:`KINDS`; a retry always belongs to run r1.
    """
    options = {"run": run, **KINDS[kind]}
    marks = options.pop("marks", False)

    def land(folder: Destination) -> Landed:
        def mark() -> None:
            step(folder, "mark")
            # a mark covers all rows of the source
            assert Folder(folder.fs, folder.root).committed_rows() == true_rows(ALL)

        return land_all(folder, **options, mark=mark if marks else None)

    return land


def land_all(folder: Destination, run: str, **options: Any) -> Landed:
    """Land all rows."""
    return run_job(job(Rows(ALL), folder, run, **options))


PAIRS = list(itertools.product(KINDS, repeat=2))
#: Storages and states; on a server, all states would take too long.
PLACES = [("disk", state) for state in STATES]
if ALL_HISTORIES:
    PLACES += [(kind, "a commit") for kind in SERVERS]


@pytest.mark.by_day(16)
@pytest.mark.parametrize(("storage", "state"), PLACES, indirect=["storage"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_landings_that_meet_do_each_other_no_harm(
    request: pytest.FixtureRequest,
    storage: Storage,
    state: str,
    first: str,
    second: str,
    record_property: Callable[[str, object], None],
) -> None:
    case, place = Case(storage, STATES[state]), request.node.callspec.params["storage"]
    stride = STRIDE_ON_SERVERS if place in SERVERS else STRIDE
    count = 0
    for operation, is_killed in operations(state, first, second, stride):
        if not case.interleave(first, second, operation, kill=is_killed):
            break
        count += 1
    record_property(f"interleavings on {place}", count)


def operations(state: str, first: str, second: str, stride: int) -> Iterator[tuple[int, bool]]:
    """Yield the operations at which to hold a landing, one in ``stride``, and whether to kill it there."""
    chance = chance_of(f"{state} {first} {second}")
    for operation in itertools.count(chance.randint(1, stride), stride):
        for is_killed in (False, True) if ALL_HISTORIES else (chance.random() < 0.5,):
            yield operation, is_killed


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder that does not exist yet."""
    return Folder.new(local(tmp_path))


class LosingCommit(Losing):
    """A storage that loses the response to a commit."""

    def done(self, operation: str, path: str) -> None:
        if "/_commits/" in path:
            super().done(operation, path)


def names(parts: Iterable[Part]) -> list[str]:
    """Return the names of parts."""
    return [part.name for part in parts]


class TestRunsThatMeet:
    """What runs report as landed, whatever others land between their attempts."""

    def test_the_log_says_how_to_avoid_reading_in_vain(
        self, folder: Folder, caplog: pytest.LogCaptureFixture
    ) -> None:
        late = Held(landing_of("next", "r1"), folder.destination, ("create", "00000001.json"))
        early = landing_of("next", "r2")(folder.destination)
        landed = late.end()
        assert isinstance(landed, Landed)
        assert (landed.new, landed.committed) == ((), ())
        assert names(early.new) == names(early.manifest.parts)
        assert "Another landing has committed to" in caplog.text
        assert "`max_active_runs=1`" in caplog.text

    def test_a_landing_that_is_always_overtaken_fails_for_now(self, folder: Folder) -> None:
        rows, others = Rows(PAGE), itertools.count(1)

        def overtake(operation: str, path: str) -> None:
            if operation == "create":
                run_job(job(rows, folder.destination, f"other {next(others)}", mode="incremental"))
                rows.count += PAGE

        with pytest.raises(LogContended, match="other landings keep committing to") as error:
            run_job(job(rows, stepping(folder.destination, overtake), "r1", mode="incremental"))
        assert not error.value.permanent
        assert folder.rows() == true_rows(rows.count - PAGE)
        assert next(others) == TRIES + 1

    @pytest.mark.parametrize("count", [ALL, ALL + 5], ids=["nothing new", "more rows"])
    def test_a_run_that_fails_after_its_commit_keeps_its_rows(self, folder: Folder, count: int) -> None:
        with pytest.raises(ConnectionError):
            run_job(job(Rows(ALL), folder.destination, "r1", mode="incremental", mark=unreachable))
        options: dict[str, Any] = {"mode": "incremental", "mark": lambda: None}
        second = run_job(job(Rows(count), folder.destination, "r2", **options))
        assert sum(part.rows for part in second.new) == count - ALL
        retry = run_job(job(Rows(count), folder.destination, "r1", **options))
        assert (sum(part.rows for part in retry.new), retry.committed) == (ALL, ())

    def test_pages_read_ahead_are_dropped_after_another_commit(self, folder: Folder) -> None:
        rows, ahead = Rows(LANDED_BEFORE + 2), dict[int, DataPage]()

        def land(place: Destination) -> Landed:
            slow = job(rows, place, "r1", mode="incremental", on_reset="full")
            read = lambda offset: ahead.setdefault(offset, rows.fetch(offset))  # noqa: E731
            return run_job(changed(slow, fetch=read, on_replan=ahead.clear))

        run_job(job(Rows(PAGE), folder.destination, "r0", mode="incremental"))
        held = Held(land, folder.destination, ("create", "00000002.json"))
        assert held.met
        # the last page that this run lands is one that the other has already read
        rows.count = LANDED_BEFORE + PAGE
        run_job(job(rows, folder.destination, "r2", mode="incremental"))
        late = held.end()
        assert isinstance(late, Landed)
        assert late.new == ()
        assert folder.rows() == true_rows(LANDED_BEFORE + PAGE)

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("kill", [True, False], ids=["killed", "given up"])
    @pytest.mark.parametrize("options", [{}, {"mark": lambda: None}], ids=["", "marks"])
    def test_a_retry_beside_its_first_attempt_counts_rows_once(
        self, tmp_path: Path, options: dict[str, Any], kill: bool
    ) -> None:
        for operation in itertools.count(1):
            committed: list[Landed] = []
            own = {**options, "on_commit": committed.append}
            destination = Folder.new(local(tmp_path)).destination
            held = Held(functools.partial(land_all, run="r1", **own), destination, operation)
            if not held.met:
                break
            landed = land_all(destination, "r1", **own)
            held.end(kill=kill)
            assert names(landed.new) == names(landed.manifest.parts)
            counted = sum(part.rows for landed in committed for part in landed.committed)
            assert counted == ALL
        assert operation > 15

    @pytest.mark.parametrize("error", LOST)
    def test_a_commit_whose_answer_gets_lost_counts(self, folder: Folder, error: str) -> None:
        losing = LosingCommit(folder.destination._storage, 1, error)
        landed = landing_of("next that marks", "a")(with_storage(folder.destination, losing))
        assert losing.left <= 0
        assert sum(part.rows for part in landed.committed) == ALL
        assert [commit["kind"] for commit in folder.commits()] == ["landed", "exported"]

    @pytest.mark.parametrize("form", ["{}//landing", "{}/./landing", "{}/landing/"])
    def test_a_folder_may_be_spelt_in_any_way(self, tmp_path: Path, form: str) -> None:
        fs = local(tmp_path).fs
        for run in ("r1", "r2"):
            run_job(job(Rows(ALL), Destination(fs, form.format(tmp_path)), run, mode="incremental"))
        assert Folder(fs, f"{tmp_path}/landing").rows() == true_rows(ALL)


# A landing whose task has ended: held at each of its operations in turn, stopped, and let go on.


@pytest.fixture
def land(land_job: Landing, connect: Callable[..., Client], sandbox: Sandbox) -> Landing:
    """Lands a task with 300 rows, in three parts and with a mark."""
    # so that no page is under way when a landing is stopped, however slow the machine is
    client = connect(timing=ClientTiming(slow_response=math.inf))
    task = sandbox.control.add_task(lots=[300])["task_id"]

    def land(place: Destination, stop: Stop | None = None, **options: Any) -> Landed:
        stoppable = Client(client.context, stop=stop or Stop())
        usual = {
            "fetch": PageReader(stoppable, task, size=100).read,
            "mark": lambda: stoppable.send(mark_exported(task)),
            "stop": stoppable.stop,
            "max_part_bytes": 1,
            "mode": "incremental",
        }
        return land_job(task, folder=place, **usual | options)

    return land


#: What exists before: nothing, rows of another run, or an attempt that was killed at an operation.
BEFORE: dict[str, tuple[str, str] | None] = {
    "nothing": None,
    "a commit": None,
    "a landing that was killed": ("create", "00000001.json"),
    "a commit that nothing shows": ("write", MANIFEST),
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_stopped_landing_commits_nothing_and_its_retry_lands(
    land: Landing, sandbox: Sandbox, tmp_path: Path, before: str
) -> None:
    ends = []
    for operation in itertools.count(1):
        folder = Folder.new(local(tmp_path))
        if before == "a commit":
            land(folder.destination, run=OTHER_RUN, mark=None)
        if killed_at := BEFORE[before]:
            kill(land, folder.destination, killed_at)
            staged = [part for record in folder.staged() for part in record["parts"]]
            assert len(staged) == (3 if killed_at[0] == "create" else 0)
        stop = Stop()
        held = Held(functools.partial(land, stop=stop), folder.destination, operation)
        if held.met is None:
            break
        committed, sent = folder.commits(), len(sandbox.control.requests())
        stop.set()
        ends.append(held.end())
        assert len(sandbox.control.requests()) == sent
        # a commit that is under way cannot be recalled
        if held.met[0] != "create":
            assert folder.commits() == committed
        assert land(folder.destination).manifest.exported_at
        assert len(folder.rows()) == 300
    # after the last commit, only the manifest is written and files are deleted
    kinds = [kind for kind, _ in itertools.groupby(ends, type)]
    assert kinds == [Stopped, Landed]


def test_a_landing_stopped_right_before_its_commit_makes_none(land: Landing, folder: Folder) -> None:
    stop, checks = Stop(), make_checks({"rows": {"min": 1}}, make_format())
    with pytest.raises(Stopped):
        land(folder.destination, stop, mark=None, checks=checks, on_checks=lambda outcomes: stop.set())
    assert folder.commits() == []
