"""What the writers of all formats share: their interface, the columns of a landing, and tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_webcollect.landing.errors import UnreadableRow
from airflow_provider_webcollect.landing.formats.rows import known_rows, records, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    import msgspec

    from airflow_provider_webcollect.landing.formats.rows import Batches, Rows, Values


class SupportsWrite(Protocol):
    """The destination for the bytes of a part. This package never closes it."""

    def write(self, data: bytes, /) -> Any:
        """Write ``data``."""


class Columns:
    """Names of columns in order: the user's own, or every key of the rows in order of first appearance.

    Names are only ever added at the end, so an earlier part's columns are the first ones of these.

    :param names: the names so far.
    :param fixed: whether no names may be added; other keys are then dropped.
    """

    def __init__(self, names: Iterable[str] = (), *, fixed: bool = False) -> None:
        self._names = dict.fromkeys(names)
        self.fixed = fixed

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far."""
        return tuple(self._names)

    def missing(self, page: Batches) -> list[str]:
        """Return the keys of ``page`` that still need a column."""
        if self.fixed:
            return []
        keys = dict.fromkeys(chain.from_iterable(chain.from_iterable(page)))
        return [key for key in keys if key not in self._names]

    def add(self, names: Iterable[str]) -> None:
        """Append columns."""
        self._names.update(dict.fromkeys(names))


class RowWriter(ABC):
    """Encodes one part.

    As a context manager it ends the part, or drops the unfinished part on an error.

    :ivar columns: the part's columns, as far as known; empty for JSON lines without fixed columns.
    """

    columns: tuple[str, ...] = ()

    @abstractmethod
    def write(self, rows: Sequence[msgspec.Raw]) -> bool:
        """Append a page of rows, all of them or none.

        :param rows: raw JSON objects.
        :return: False if the rows have a key that this part has no column for: then nothing was written, and
            the page belongs to the next part. The first page of a part is always written.
        :raises UnreadableRow: if a row is not a JSON object.
        :raises CastFailed: if a value does not fit its column's type, and ``on_cast_error`` is ``fail``.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is still buffered: the compressor's trailer, the last row group and the footer."""

    @abstractmethod
    def abandon(self) -> None:
        """Discard what is still buffered. Has no effect after :meth:`close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        try:
            if error_type is None:
                self.close()
        finally:
            self.abandon()


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
