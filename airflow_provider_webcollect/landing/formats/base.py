"""What a landing needs from a file format."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_provider_webcollect.landing.formats.columns import Columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO, Self

    import msgspec


class SupportsWrite(Protocol):
    """Where the bytes of a part go. It is never closed here."""

    def write(self, data: bytes, /) -> Any:
        """Take ``data``."""


class RowWriter(ABC):
    """One part being encoded.

    As a context manager it ends the part, or drops what is unfinished when an error passes.

    :ivar columns: the part's columns, as far as known; none for JSON lines whose rows name their own.
    """

    columns: tuple[str, ...] = ()

    @abstractmethod
    def write(self, rows: Sequence[msgspec.Raw]) -> bool:
        """Append a page of rows, all of them or none.

        :param rows: raw JSON objects.
        :return: False if the rows bring a key that this part has no column for: then nothing was written,
            and the page belongs to the next part. The first page of a part is always taken.
        :raises UnreadableRow: if a row is no JSON object.
        :raises CastFailed: if a value cannot be read as its column's type, and that is to fail.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is still held back: the compressor's trailer, the last row group and the footer."""

    @abstractmethod
    def abandon(self) -> None:
        """Write nothing more, whatever is held back. After :meth:`close` it does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        try:
            if error_type is None:
                self.close()
        finally:
            self.abandon()


class FileFormat(ABC):
    """The user's options, checked.

    :cvar name: ``jsonl``, ``csv`` or ``parquet``.
    :ivar compression: None for none.
    :ivar columns: the user's own columns; None for all keys of the rows.
    """

    name: ClassVar[str]
    compression: str | None
    columns: tuple[str, ...] | None

    @property
    @abstractmethod
    def suffix(self) -> str:
        """What the names of parts end with: ``.jsonl.gz``, ``.parquet``."""

    @abstractmethod
    def require_extras(self) -> None:
        """Do nothing if everything that the format needs is installed.

        :raises ExtraMissing: naming the extra to install.
        """

    @abstractmethod
    def writer(self, sink: SupportsWrite, columns: Columns) -> RowWriter:
        """Begin a part.

        :param columns: the landing's columns so far; the part's first page may add to them.
        """

    def widen(self, source: BinaryIO, sink: SupportsWrite, old: Sequence[str], new: Sequence[str]) -> None:
        """Rewrite a finished part so that its rows have the columns ``new``, null in the added ones.

        Needs as little memory as writing does, and leaves the values as they are.

        :param source: the finished part, opened for reading; Parquet seeks in it.
        :param old: the part's columns: the first of ``new``.
        :param new: all columns of the landing.
        """
        # where rows name their own columns, more of them change nothing
        shutil.copyfileobj(source, sink)

    def columns_after(self, known: Sequence[str] = ()) -> Columns:
        """Return the columns for a landing to go on with.

        :param known: those that its finished parts have led to.
        """
        return Columns(known) if self.columns is None else Columns(self.columns, fixed=True)


def added(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many names ``new`` has after ``old``.

    :raises ValueError: if it does not begin with it.
    """
    if list(new[: len(old)]) != list(old):
        raise ValueError(f"a part with the columns {list(old)} cannot be widened to {list(new)}")
    return len(new) - len(old)
