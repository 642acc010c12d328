"""A landing that gets rows day by day."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import fsspec
import time_machine

from airflow_provider_webcollect.landing.commits import Run
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.reader import LandedData, read_landing
from tests.landing.checked_runs import Runs
from tests.landing.conftest import Folder
from tests.landing.pages import serving


def day(number: int) -> datetime.datetime:
    """Return the time at which everything of a day is landed."""
    return datetime.datetime(2026, 1, number, 12, tzinfo=datetime.UTC)


def run_of(number: int) -> Run:
    return Run(dag_id="d", task_id="t", run_id=f"day {number}")


class Shop(Runs):
    """A landing that gets the rows of a day after those of the days before.

    :param folder: None for one in memory.
    :param options: of the format of its parts.
    """

    def __init__(self, folder: Folder | None = None, **options: Any) -> None:
        folder = folder or Folder(fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}")
        super().__init__(folder, file_format=make_format(**options), on_reset="append", max_part_bytes=1)

    def land(self, number: int, rows: list[Any], *, reset: bool = False, **options: Any) -> LandedData:
        """Land the rows of a day, in parts of two rows.

        :param reset: whether the source has lost the rows of the days before.
        :param options: of this landing, such as a partition.
        """
        if reset:
            self.rows.clear()
        self.rows += rows
        with time_machine.travel(day(number), tick=False):
            self.again(run=run_of(number), fetch=serving(self.rows, 2), **options)
        return self.landed

    @property
    def landed(self) -> LandedData:
        return read_landing(self.folder.location)


def offer(url: str | None, price: str | None = "1.00") -> dict[str, Any]:
    return {"url": url, "price": price}
