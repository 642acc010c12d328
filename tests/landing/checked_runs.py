"""Runs that land the rows of a shop in one folder, and check them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.checks import CheckOutcome, make_checks
from airflow_provider_webcollect.landing.commits import Run
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Landed
from tests.landing.pages import serving

if TYPE_CHECKING:
    from tests.landing.conftest import Folder, Landing


def goods(count: int, **values: Any) -> list[dict[str, Any]]:
    """Rows of a shop; a value that is None leaves the column out."""
    made = {"price": "1.50", **values}
    return [
        {
            "url": f"https://shop/{number}",
            **{name: value for name, value in made.items() if value is not None},
        }
        for number in range(count)
    ]


class Runs:
    """Runs that land what is given, each in its turn, in one folder.

    :param options: of all of them.
    """

    def __init__(self, land_job: Landing, folder: Folder, **options: Any) -> None:
        self.folder = folder
        self._options = options
        self.rows: list[dict[str, Any]] = []
        self._land = land_job
        self._number = 0

    def land(self, rows: list[dict[str, Any]], checks: Any = None, **options: Any) -> Landed:
        """Land rows that have been added."""
        self._number += 1
        self.rows += rows
        return self.again(checks, **options)

    def again(self, checks: Any = None, **options: Any) -> Landed:
        """Land what is there in the name of the last run."""
        file_format = options.pop("file_format", make_format())
        fetch = options.pop("fetch", None) or serving(self.rows, 100)
        return self._land(
            "t",
            fetch=fetch,
            run=Run(dag_id="d", task_id="t", run_id=f"run {self._number}"),
            file_format=file_format,
            checks=make_checks(checks, file_format),
            **{"mode": "incremental", "folder": self.folder.destination, **self._options, **options},
        )

    def outcomes(self, rows: list[dict[str, Any]], checks: Any, **options: Any) -> dict[str, CheckOutcome]:
        """Return the outcome of each check by its name."""
        landed = self.land(rows, checks, on_failed_checks="warn", **options)
        return {outcome.check: outcome for outcome in landed.checks}
