"""The rows of a loaded table whose keys are gone: a whole run has landed since, without them."""

from __future__ import annotations

import bisect
import datetime
import itertools
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.fold import whole_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider_webcollect.landing.commits import Commit, SetApart


class Gone:
    """Decides by whole runs (:func:`~.landing.fold.whole_runs`) whether the keys of a part are gone.

    :param commits: that have landed rows: all since the last whole run that a load has seen, and all of the
        runs of these. Other parts are older.
    :param set_apart: the rows that the landing has skipped.
    :ivar first: keys of rows that this commit and later ones have read are there; 0 if no run is whole.
    """

    def __init__(self, commits: Iterable[Commit], set_apart: Iterable[SetApart]) -> None:
        commits = list(commits)
        self._commits = {part.name: commit for commit in commits for part in commit.parts}
        runs = whole_runs(commits, set_apart)
        self._firsts = [run.first for run in runs]
        self.first = self._firsts[-1] if runs else 0
        ended = (max(commit.finished_at for commit in run.commits) for run in reversed(runs))
        self._times = [datetime.datetime.fromisoformat(time) for time in itertools.accumulate(ended, min)]

    def at(self, part: str) -> datetime.datetime | None:
        """Return when the keys were first missing in a whole run; None if they are there."""
        commit = self._commits.get(part)
        later = len(self._firsts) - bisect.bisect_right(self._firsts, commit.read_number if commit else 0)
        return self._times[later - 1] if later else None

    def is_outdated(self, part: str) -> bool:
        """Return whether a person has accepted its rows after a whole run that has read the source later."""
        commit = self._commits[part]
        index = bisect.bisect_right(self._firsts, commit.read_number)
        return index < len(self._firsts) and self._firsts[index] < commit.number

    def settle(self, client: Any, table: str, landing: str, columns: Sequence[str], mark: str | None) -> None:
        """Delete the rows of keys that are gone, or mark them with the time, by what the table has.

        :param client: dlt's of the warehouse, connected.
        :param landing: whose rows these are.
        :param columns: those of the landing and of the part.
        :param mark: the column of the time; None to delete.
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
            is_marked_before = time is not None and part not in self._commits
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
