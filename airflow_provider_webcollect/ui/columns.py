"""The columns of a landing: in which share of each run's rows they were filled, and their failed checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.profile import MAX_COLUMNS
from airflow_provider_webcollect.ui.landings import not_passed, runs_of, shortened

if TYPE_CHECKING:
    import datetime
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from airflow_provider_webcollect.assets import LandedSource
    from airflow_provider_webcollect.ui.landings import Run, SeriesKey

#: How many columns of a landing are told.
MOST_COLUMNS = 50


@dataclass
class _Column:
    """A column of the rows of one collection task; each list has an entry for each run.

    :ivar rows: None if nothing of the collection task has landed.
    :ivar shares: None if it is not known.
    :ivar checks: what it has not passed, by the index of the run.
    """

    collection_task_id: str
    name: str
    rows: list[int | None] = field(default_factory=list)
    shares: list[float | None] = field(default_factory=list)
    checks: dict[int, str] = field(default_factory=dict)

    def weight(self) -> tuple[bool, float]:
        """Return how much it is worth to be seen."""
        known = [share for share in self.shares if share is not None]
        return bool(self.checks), max(known) - min(known) if known else 0.0


def read_columns(session: Session, key: SeriesKey, now: datetime.datetime) -> dict[str, Any]:
    """Return the latest runs of a landing and its columns: those with failed checks, then those that have
    changed most.

    :param session: of Airflow's database.
    :param key: of the landing's series.
    """
    runs = runs_of(session, key)
    columns = sorted(_columns(runs), key=_Column.weight, reverse=True)
    return {
        "read_at": now.isoformat(),
        "left_out": max(0, len(columns) - MOST_COLUMNS),
        "runs": [{"ended_at": run.ended_at.isoformat(), "state": run.state} for run in runs],
        "columns": [vars(column) for column in columns[:MOST_COLUMNS]],
    }


def _columns(runs: Sequence[Run]) -> list[_Column]:
    """Return the columns that any of the runs had, those of the newest first."""
    sources = [
        {source.collection_task_id: source for source in run.event.sources()} if run.event else {}
        for run in runs
    ]
    checks = [{task_id: _checks(source) for task_id, source in each.items()} for each in sources]
    found: dict[tuple[str, str], _Column] = {}
    for of_run, checks_of_run in zip(reversed(sources), reversed(checks), strict=True):
        for task_id, source in of_run.items():
            for name in (*source.filled, *checks_of_run[task_id]):
                found.setdefault((task_id, name), _Column(task_id, name))
    for (task_id, name), column in found.items():
        for index, of_run in enumerate(sources):
            source = of_run.get(task_id)
            column.rows.append(source and source.rows)
            column.shares.append(source and _share(source, name))
            if source and name in checks[index][task_id]:
                column.checks[index] = shortened(checks[index][task_id][name])
    return list(found.values())


def _checks(source: LandedSource) -> dict[str, str]:
    """Return the checks that a source has not passed, by column."""
    found: dict[str, list[str]] = {}
    for outcome in not_passed(source):
        if outcome.column:
            found.setdefault(outcome.column, []).append(str(outcome))
    return {name: "; ".join(texts) for name, texts in found.items()}


def _share(source: LandedSource, name: str) -> float | None:
    if not source.rows or not source.filled:
        return None
    # where columns were left out, it may be one of them
    return source.filled.get(name, 0.0 if len(source.filled) < MAX_COLUMNS else None)
