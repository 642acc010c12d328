"""Runs that land the rows of a shop in one folder or table, and check them."""

from __future__ import annotations

from typing import Any

from airflow_provider_webcollect.landing.checks import CheckOutcome, make_checks
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.log.commits import Run
from airflow_provider_webcollect.landing.write.job import Landed
from airflow_provider_webcollect.landing.write.run import run_job
from tests.landing.pages import make_job, serving, through

#: Options of a landing that replaces all landed rows.
OVERWRITE: dict[str, Any] = {"mode": "full", "if_exists": "overwrite"}
#: Checks that fail if rows have no prices.
FILLED: dict[str, Any] = {"columns": {"price": {"filled": 0.95}}}


def goods(count: int, **values: Any) -> list[dict[str, Any]]:
    """Rows of a shop; a value that is None leaves the column out."""
    made = {name: value for name, value in {"price": "1.50", **values}.items() if value is not None}
    return [{"url": f"https://shop/{number}", **made} for number in range(count)]


class Runs:
    """Runs that land the given rows, one after another, in one folder or table.

    :param folder: folder or table, which has a ``destination``.
    :param options: options of every landing.
    """

    def __init__(self, folder: Any, **options: Any) -> None:
        self.folder = folder
        self.options = options
        self.rows: list[dict[str, Any]] = []
        self._number = 0

    def land(self, rows: list[dict[str, Any]], checks: Any = None, **options: Any) -> Landed:
        """Add rows to the source, and land them as the next run."""
        self.rows += rows
        return self.next(checks, **options)

    def next(self, checks: Any = None, **options: Any) -> Landed:
        """Land the rows of the source as the next run."""
        self._number += 1
        return self.again(checks, **options)

    def again(self, checks: Any = None, **options: Any) -> Landed:
        """Land the rows of the source as the last run again."""
        run = Run(dag_id="d", task_id="t", run_id=f"run {self._number}")
        usual = {"mode": "incremental", "folder": self.folder.destination, "run": run}
        options = {**usual, **self.options, **options}
        file_format = options.setdefault("file_format", make_format())
        fetch = options.pop("fetch", None) or serving(self.rows)
        if read := options.pop("read", None):
            fetch = through(read, fetch)
        return run_job(make_job(fetch, checks=make_checks(checks, file_format), **options))

    def outcome(self, rows: list[dict[str, Any]], checks: Any, **options: Any) -> CheckOutcome:
        """Return the outcome of the only check."""
        (outcome,) = self.outcomes(rows, checks, **options).values()
        return outcome

    def outcomes(self, rows: list[dict[str, Any]], checks: Any, **options: Any) -> dict[str, CheckOutcome]:
        """Return the outcome of each check by its name."""
        landed = self.land(rows, checks, on_failed_checks="warn", **options)
        return {outcome.check: outcome for outcome in landed.checks}
