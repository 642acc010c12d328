"""Keys that are gone: a whole run without them has landed since their last rows."""

from __future__ import annotations

import datetime
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_webcollect.landing.checks import INPUTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_provider_webcollect.landing.checks import State
    from airflow_provider_webcollect.landing.log.commits import Commit, Part, SetApart


class WholeRun(NamedTuple):
    """A run whose rows have all landed and passed their checks, see :func:`whole_runs`.

    :ivar parts: the parts that the run has landed, in order.
    :ivar first: the ``read_number`` of the run's first rows; rows that were read since have this number or a
        greater one.
    :ivar ended_at: when the run's last rows were committed.
    """

    run_id: str
    parts: tuple[Part, ...]
    first: int
    ended_at: datetime.datetime


class DatedPart(NamedTuple):
    """A part, with times for its keys, see :func:`dated_parts`.

    :ivar landed_at: when the part was committed.
    :ivar is_before: whether keys with rows in the part were there at the moment.
    :ivar gone_at: when a key of the part, without rows in later parts, was first missing; None if it is there
        now.
    """

    part: Part
    landed_at: datetime.datetime
    is_before: bool
    gone_at: datetime.datetime | None


def times_of(commits: Iterable[Commit]) -> list[datetime.datetime]:
    """Return the times of commits, which never decrease, even if the clocks of hosts differ."""
    times = (datetime.datetime.fromisoformat(commit.finished_at) for commit in commits)
    return list(itertools.accumulate(times, max))


def whole_runs(commits: Sequence[Commit], set_apart: Iterable[SetApart]) -> list[WholeRun]:
    """Return the whole runs, in the order in which they read the source.

    A key that is missing from a whole run is gone. In a whole run, all rows have landed, and have passed
    their checks or been accepted by a person. A run is not whole if rows of it are quarantined or were
    discarded, if its checks have failed with ``warn``, or if it lacks too many inputs. As for ``new_only``, a
    run is everything that has landed under one run id, in any tasks.

    :param commits: the commits that have landed rows, in order, with all commits of each run.
    :param set_apart: the quarantined and the discarded rows of the landing.
    """
    runs: dict[str, list[Commit]] = {}
    ended_at: dict[str, datetime.datetime] = {}
    for commit, time in zip(commits, times_of(commits), strict=True):
        runs.setdefault(commit.run.run_id, []).append(commit)
        ended_at[commit.run.run_id] = time
    for apart in set_apart:
        runs.pop(apart.run.run_id, None)
    whole = [
        WholeRun(
            run_id,
            tuple(part for commit in landed for part in commit.parts),
            min(commit.read_number for commit in landed),
            ended_at[run_id],
        )
        for run_id, landed in runs.items()
        if _have_passed([commit for commit in landed if commit.kind == "landed"])
    ]
    return sorted(whole, key=lambda run: run.first)


def _have_passed(commits: Iterable[Commit]) -> bool:
    """Return whether a run has passed its checks; its last check of inputs is about all of its inputs."""
    latest: dict[object, State] = {}
    for commit in commits:
        for outcome in commit.checks:
            key = outcome.check if outcome.check == INPUTS else (commit.number, outcome.check)
            latest[key] = outcome.state
    return "failed" not in latest.values() and latest.get(INPUTS) != "warning"


def dated_parts(
    commits: Sequence[Commit], runs: Iterable[WholeRun] = (), count: int = 0
) -> Iterator[DatedPart]:
    """Yield the parts of commits, and whether their keys were there at a moment, and are there now.

    Parts from before the last run that was whole at the moment are left out.

    :param commits: the commits that have landed rows, in order.
    :param runs: the whole runs among them; without any, no key is gone.
    :param count: the number of commits, from the first, that had been made by the moment.
    """
    last = commits[count - 1].number if count else 0
    # runs with rows that were read before the moment, and committed after it
    late = {commit.run.run_id for commit in commits[count:] if commit.read_number <= last}
    begins = {run.first: run for run in runs}
    gone_at: dict[int, datetime.datetime | None] = {}
    time: datetime.datetime | None = None
    # begin with the rows that were read last
    for number in sorted({commit.read_number for commit in commits}, reverse=True):
        gone_at[number] = time
        if run := begins.get(number):
            # a run that a person accepted late may have read the source before other runs
            time = min(run.ended_at, time or run.ended_at)
            if run.first <= last and run.run_id not in late:
                break
    for index, (commit, landed_at) in enumerate(zip(commits, times_of(commits), strict=True)):
        if commit.read_number in gone_at:
            for part in commit.parts:
                yield DatedPart(part, landed_at, index < count, gone_at[commit.read_number])


class Gone:
    """Which rows of a loaded table have keys that are gone.

    :param commits: the commits that have landed rows, in order: all since the last whole run that a load has
        seen, and all other commits of the same runs. Parts of other commits are older.
    :param set_apart: the quarantined and the discarded rows of the landing.
    :ivar first: keys of rows with this ``read_number`` or a greater one are there; 0 if no run is whole.
    :ivar outdated: the numbers of commits whose rows were read before a whole run, and accepted by a person
        after it.
    """

    def __init__(self, commits: Sequence[Commit], set_apart: Iterable[SetApart]) -> None:
        runs = whole_runs(commits, set_apart)
        firsts = {run.first for run in runs}
        self.first = max(firsts, default=0)
        later = ((commit.number, range(commit.read_number + 1, commit.number)) for commit in commits)
        self.outdated = {number for number, numbers in later if not firsts.isdisjoint(numbers)}
        self._times = {dated.part.name: dated.gone_at for dated in dated_parts(commits, runs)}
        self._time_of_others = min((run.ended_at for run in runs), default=None)

    def at(self, part: str) -> datetime.datetime | None:
        """Return when the keys of a part were first missing from a whole run; None if they are there.

        :param part: the name of the part.
        """
        return self._times.get(part, self._time_of_others)

    def settle(self, client: Any, table: str, landing: str, columns: Sequence[str], mark: str | None) -> None:
        """Delete a table's rows whose keys are gone, or mark them with the time.

        Rows that are marked, but whose keys are there again, lose their mark.

        :param client: dlt's client for the warehouse, connected.
        :param landing: the value that rows of the landing have in the first of ``columns``.
        :param columns: the names of the columns with the landing and with the part.
        :param mark: the name of the column for the time; None to delete the rows.
        """
        sql = client.sql_client
        name = sql.make_qualified_table_name(table)
        landing_column, part_column = map(sql.escape_column_name, columns)
        time_column = sql.escape_column_name(mark) if mark else "null"
        of_landing = f"from {name} where {landing_column} = %s"
        held = sql.execute_sql(f"select distinct {part_column}, {time_column} {of_landing}", landing)
        wrong: dict[datetime.datetime | None, list[str]] = {}
        for part, time in held:
            at = self.at(part)
            is_marked_before = time is not None and part not in self._times
            if not is_marked_before and at != (time and time.replace(tzinfo=time.tzinfo or datetime.UTC)):
                wrong.setdefault(at, []).append(part)
        for at, parts in wrong.items():
            of_parts = f"and {part_column} in ({', '.join(['%s'] * len(parts))})"
            if mark is None:
                sql.execute_sql(f"delete {of_landing} {of_parts}", landing, *parts)
                continue
            is_clickhouse = client.capabilities.sqlglot_dialect == "clickhouse"
            update = f"alter table {name} update" if is_clickhouse else f"update {name} set"
            value, values = ("null", ()) if at is None else ("%s", (at,))
            where = f"where {landing_column} = %s {of_parts}"
            sql.execute_sql(f"{update} {time_column} = {value} {where}", *values, landing, *parts)
