"""The common base of CSV and Parquet: all rows of a part have the columns defined at its beginning."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from airflow_provider_webcollect.landing.formats.base import RowWriter
from airflow_provider_webcollect.landing.formats.errors import UnreadableRow
from airflow_provider_webcollect.landing.formats.rows import known_rows, records, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_webcollect.landing.formats.columns import Columns
    from airflow_provider_webcollect.landing.formats.rows import Rows, Values


class TableWriter(RowWriter):
    """Encodes a part with the landing's columns as known after the part's first page."""

    def __init__(self, columns: Columns) -> None:
        self._landing = columns
        self._begun = False
        self._known: Callable[[Rows], list[Values] | None] = lambda rows: None

    def write(self, rows: Rows) -> bool:
        """Append a page, see :meth:`RowWriter.write`."""
        if not rows:
            return True
        if known := self._known(rows):
            self._append(known)
            return True
        page = records(rows)
        if missing := self._landing.missing(page):
            if self._begun:
                return False
            self._landing.add(missing)
        if not self._landing.names:
            raise UnreadableRow(
                "no row of the first page has any field, so there are no columns to write; "
                "name the columns, or write JSON lines"
            )
        self._begin()
        for batch in page:
            self._append(table(batch, self.columns))
        return True

    def close(self) -> None:
        """End the part, see :meth:`RowWriter.close`."""
        self._begin()
        self._end()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.columns = self._landing.names
            self._known = known_rows(self.columns, others_dropped=self._landing.fixed)
            self._head()

    @abstractmethod
    def _head(self) -> None:
        """Write what comes before the rows; the columns are known by now."""

    @abstractmethod
    def _append(self, batch: Sequence[Values]) -> None:
        """Write the rows, given as values of the part's columns."""

    @abstractmethod
    def _end(self) -> None:
        """Write what comes after the rows."""
