"""When a final state counts as the end of this run: each cell of the table in docs/reference/waiting.md."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pendulum
import pytest

from airflow_provider_webcollect.service.models import TaskStatus
from airflow_provider_webcollect.waiting.conditions import Outcome, TaskStates
from airflow_provider_webcollect.waiting.runs import Baseline, LastRun, follow
from tests.simulation.samples import ALL_HISTORIES, SEED
from tests.waiting.conftest import Clock, PolledWait, shown

DOCS = Path(__file__).parents[2] / "docs/reference/waiting.md"
ACTIVE_COLUMN, UNCHANGED_COLUMN = "an active state was seen since the start", "none was seen"
#: The status before the start, and the times in the final status for each row of the table.
BEFORE = shown("Finished", began=10, ended=20, executed_times=3)
ROWS: dict[str, dict[str, Any]] = {
    "a later end than the one from before the start": {"began": 30, "ended": 40},
    "no end, or nothing to compare it with": {"began": 30},
    "the end from before the start": {"began": 10, "ended": 20},
    "an end before its own start": {"began": 30, "ended": 20},
}
STATUS_DELAY, LONGEST = 90, 600
UNCHANGED_FOR = (0, STATUS_DELAY - 1, STATUS_DELAY, LONGEST - 1, LONGEST)
#: The count is only a hint: services may count a run when it starts or when it ends.
COUNTS = {3: "same", 4: "counted", None: "none"}


def table() -> dict[str, dict[str, int]]:
    """Return the table: for each row and column, after how many seconds the state counts."""
    lines = [re.split(r"\s*\|\s*", line.strip("| ")) for line in DOCS.read_text().splitlines()]
    start = next(number for number, line in enumerate(lines) if UNCHANGED_COLUMN in line)
    cells = itertools.takewhile(lambda line: len(line) == 3, lines[start + 2 :])
    seconds = {"counts": 0, "counts after `status_delay`": STATUS_DELAY, f"counts after {LONGEST} s": LONGEST}
    return {
        row: {ACTIVE_COLUMN: seconds[active], UNCHANGED_COLUMN: seconds[unchanged_for]}
        for row, active, unchanged_for in cells
    }


STATES = {"Finished": Outcome.DONE, "Stopped": Outcome.FAILED}


def each_cell(counts: Mapping[Any, str]) -> pytest.MarkDecorator:
    """Parametrize with each cell of the table and each time; by day, each with one state and one count."""
    chance = random.Random(SEED)
    cases = [
        pytest.param(
            row, column, unchanged_for, state, count, id=f"{row}-{column}-{unchanged_for}-{state}-{name}"
        )
        for row, column, unchanged_for in itertools.product(
            ROWS, (ACTIVE_COLUMN, UNCHANGED_COLUMN), UNCHANGED_FOR
        )
        for state, (count, name) in drawn([*itertools.product(STATES, counts.items())], chance)
    ]
    return pytest.mark.parametrize(("row", "column", "unchanged_for", "state", "count"), cases)


def drawn(cases: list[Any], chance: random.Random) -> list[Any]:
    return cases if ALL_HISTORIES else [chance.choice(cases)]


def after_start(before: TaskStatus | None, **arguments: Any) -> TaskStates:
    """Return the condition of a sensor with ``after``, for a run started when ``before`` was shown."""
    return TaskStates(task_ids=("a",), after={"a": Baseline.of(before)}, missing_timeout=10_000, **arguments)


def test_the_docs_have_a_line_for_each_kind_of_evidence() -> None:
    assert set(table()) == set(ROWS)


@each_cell(COUNTS)
def test_a_wait_after_a_start_ends_as_the_table_says(
    clock: Clock, row: str, column: str, unchanged_for: int, state: str, count: int | None
) -> None:
    wait = PolledWait(clock, after_start(BEFORE))
    started = 0.0
    if column == ACTIVE_COLUMN:
        started = 5000.0
        assert wait.outcome(started, shown("Extracting", began=30)) is None
    counts = unchanged_for >= table()[row][column]
    assert wait.outcome(started + unchanged_for, shown(state, executed_times=count, **ROWS[row])) == (
        STATES[state] if counts else None
    )


@each_cell({(4, 4): "starts", (3, 3): "lags", (3, 4): "ends", (None, None): "none"})
def test_the_event_of_a_finished_run_comes_as_the_table_says(
    row: str, column: str, unchanged_for: int, state: str, count: tuple[int | None, int | None]
) -> None:
    active_count, last_count = count
    last = shown(state, executed_times=last_count, **ROWS[row])
    last_run, _ = follow(None, "a", BEFORE, ["Finished", "Stopped"])
    if column == ACTIVE_COLUMN:
        active = shown("Extracting", began=30, executed_times=active_count)
        last_run, ended = follow(last_run, "a", active, ["Finished", "Stopped"])
        assert ended is None
    # another final state than before is a sign of a run too, unless the response lacks the count
    is_sign = (
        column == ACTIVE_COLUMN or last_run.is_before(LastRun.of(last)) or (state == "Stopped" and last_count)
    )
    _, ended = follow(last_run, "a", last, ["Finished", "Stopped"], unchanged_for)
    assert (ended is not None) == bool(is_sign and unchanged_for >= table()[row][column])


class TestTheNextRun:
    """With ``after="now"``, nothing was started: a sign of another run must come first, however late."""

    @pytest.fixture
    def wait(self, clock: Clock) -> PolledWait:
        condition = msgspec.structs.replace(after_start(BEFORE), was_started=False)
        return PolledWait(clock, condition)

    def test_the_run_before_does_not_count_however_long_it_is_shown(self, wait: PolledWait) -> None:
        for now in (0, 100, 1e6):
            assert wait.outcome(now, BEFORE) is None

    @pytest.mark.parametrize("count", [4, 0, 1], ids=["later", "from 0 again", "from 1 again"])
    def test_another_count_alone_counts_after_the_status_delay(self, wait: PolledWait, count: int) -> None:
        other = shown("Finished", began=10, ended=20, executed_times=count)
        assert [wait.outcome(now, other) for now in (1000, 1089, 1090)] == [None, None, Outcome.DONE]

    @pytest.mark.parametrize("times", [{}, {"began": 30}, {"began": 30, "ended": 40}], ids=len)
    def test_the_first_run_counts_without_a_count(self, clock: Clock, times: dict[str, Any]) -> None:
        never_ran = shown("Unexecuted")
        wait = PolledWait(clock, msgspec.structs.replace(after_start(never_ran), was_started=False))
        first = shown("Finished", **times)
        ends = [wait.outcome(now, status) for now, status in ((0, never_ran), (1000, first), (1090, first))]
        assert ends[0] is None
        assert ends[-1] is Outcome.DONE


class TestOddOrders:
    """Responses of several servers need not come in order."""

    def test_an_old_response_does_not_end_the_wait_of_an_active_run(self, clock: Clock) -> None:
        wait = PolledWait(clock, after_start(BEFORE))
        for now in range(0, 7200, 60):
            status = BEFORE if now % 180 == 0 else shown("Extracting", began=30, executed_times=4)
            assert wait.outcome(now, status) is None
        assert wait.outcome(7200, shown("Finished", began=30, ended=40, executed_times=4)) is Outcome.DONE

    def test_a_task_that_never_ran_ends_with_its_first_run(self, clock: Clock) -> None:
        for before in (None, shown("Unexecuted", executed_times=0)):
            wait = PolledWait(clock, after_start(before))
            assert wait.outcome(1, shown("Finished", began=30, ended=40, executed_times=1)) is Outcome.DONE

    @pytest.mark.parametrize("ended", [None, 5], ids=["no end", "the end of the run before it"])
    def test_a_run_that_ended_before_the_start_is_not_it(self, ended: int | None, clock: Clock) -> None:
        # the status shows the run as active, the sub-tasks do not
        active = Baseline.of(shown("Extracting", began=10, ended=ended))
        ending = msgspec.structs.replace(active, running=False)
        wait = PolledWait(clock, msgspec.structs.replace(after_start(BEFORE), after={"a": ending}))
        assert wait.outcome(1, shown("Finished", began=10, ended=20)) is None
        assert wait.outcome(2, shown("Finished", began=30, ended=40)) is Outcome.DONE

    def test_a_status_with_old_times_is_not_the_end_of_a_joined_run(self, clock: Clock) -> None:
        wait = PolledWait(clock, after_start(shown("Waiting", began=1, ended=5, executed_times=3)))
        assert wait.outcome(1, shown("Finished", began=1, ended=5, executed_times=2)) is None
        assert wait.outcome(2, shown("Finished", began=10, ended=20, executed_times=3)) is Outcome.DONE

    def test_the_zone_of_the_connection_does_not_make_another_run(self, clock: Clock) -> None:
        began, ended = (pendulum.datetime(2026, 1, 1, 0, minute, tz="Asia/Shanghai") for minute in (10, 20))
        wait = PolledWait(clock, after_start(BEFORE))
        moved = msgspec.structs.replace(BEFORE, start_execute_time=began, end_execute_time=ended)
        assert wait.outcome(1, moved) is None


class TestAnOutdatedResponse:
    """A response about the run before, shown while this run goes on, does not end a wait for this run."""

    def test_of_an_active_run_is_none_of_the_run_that_is_waited_for(self, clock: Clock) -> None:
        before = shown("Finished", executed_times=3)
        wait = PolledWait(clock, after_start(before, target_states=("Extracting",)))
        assert wait.outcome(0, shown("Waiting", executed_times=5)) is None
        assert wait.outcome(60, shown("Extracting", executed_times=4)) is None
        assert wait.outcome(120, shown("Extracting", executed_times=5)) is Outcome.DONE

    def test_is_none_if_its_run_began_later(self, clock: Clock) -> None:
        wait = PolledWait(clock, after_start(BEFORE))
        assert wait.outcome(1, shown("Extracting", began=30, executed_times=4)) is None
        assert wait.outcome(2, shown("Extracting", began=50, executed_times=1)) is None
        assert wait.outcome(3, shown("Finished", began=50, ended=60, executed_times=1)) is Outcome.DONE

    def test_is_none_once_it_stays(self, clock: Clock) -> None:
        wait = PolledWait(clock, after_start(BEFORE))
        assert wait.outcome(0, shown("Extracting", executed_times=4)) is None
        ends = [wait.outcome(now, shown("Finished", executed_times=1)) for now in (1, LONGEST - 1, LONGEST)]
        assert ends == [None, None, Outcome.DONE]
