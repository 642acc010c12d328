"""The interface between a landing and a file format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_provider_webcollect.landing.formats.columns import Columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    import msgspec


class SupportsWrite(Protocol):
    """The destination for the bytes of a part. This package never closes it."""

    def write(self, data: bytes, /) -> Any:
        """Write ``data``."""


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


class FileFormat(ABC):
    """The checked options of a format.

    :cvar name: ``jsonl``, ``csv`` or ``parquet``.
    :ivar compression: None for no compression.
    :ivar columns: the columns given by the user; None for all keys of the rows.
    """

    name: ClassVar[str]
    compression: str | None
    columns: tuple[str, ...] | None

    @property
    @abstractmethod
    def suffix(self) -> str:
        """The ending of parts' names: ``.jsonl.gz``, ``.parquet``."""

    @abstractmethod
    def require_extras(self) -> None:
        """Check that everything the format needs is installed.

        :raises ExtraMissing: naming the extra to install.
        """

    @abstractmethod
    def writer(self, sink: SupportsWrite, columns: Columns) -> RowWriter:
        """Begin a part.

        :param columns: the landing's columns so far; the part's first page may add to them.
        """

    def columns_after(self, known: Sequence[str] = ()) -> Columns:
        """Return the columns with which a landing continues.

        :param known: the columns of its finished parts.
        """
        return Columns(known) if self.columns is None else Columns(self.columns, fixed=True)
