"""JSON lines: rows as they came, or cut to the user's columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec

from airflow_provider_webcollect.landing.formats import compression as compressions
from airflow_provider_webcollect.landing.formats.base import FileFormat, RowWriter
from airflow_provider_webcollect.landing.formats.rows import slices

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats.base import SupportsWrite
    from airflow_provider_webcollect.landing.formats.columns import Columns


@dataclass(frozen=True, kw_only=True)
class JsonLines(FileFormat):
    """One JSON object per line.

    With columns given, a row keeps those of them that it has, in their order, with the values as they came.
    Bytes of values that are no UTF-8 stay as they came too; in the other formats they are U+FFFD.
    """

    name: ClassVar[str] = "jsonl"
    compression: compressions.Compression | None = None
    columns: tuple[str, ...] | None = None

    @property
    def suffix(self) -> str:
        """What the names of parts end with."""
        return ".jsonl" + compressions.SUFFIXES[self.compression]

    def require_extras(self) -> None:
        """Raise :class:`ExtraMissing` if the compression is not installed."""
        compressions.require_extras(self.compression)

    def writer(self, sink: SupportsWrite, columns: Columns) -> RowWriter:
        """Begin a part. Only columns that are fixed matter."""
        return _Writer(compressions.Output(sink, self.compression), columns)


class _Writer(RowWriter):
    def __init__(self, output: compressions.Output, columns: Columns) -> None:
        self._output = output
        self._cut = columns.fixed
        self.columns = columns.names if columns.fixed else ()

    def write(self, rows: Sequence[msgspec.Raw]) -> bool:
        # a row is a single line already
        lines = _cut(rows, self.columns) if self._cut else rows
        self._output.write(b"\n".join([*lines, b""]))
        return True

    def close(self) -> None:
        self._output.close()

    def abandon(self) -> None:
        """Write nothing more."""


def _cut(rows: Sequence[msgspec.Raw], names: Sequence[str]) -> list[msgspec.Raw]:
    """Return the rows with nothing but ``names``, in this order."""
    encode = msgspec.json.Encoder().encode
    return [msgspec.Raw(encode({name: row[name] for name in names if name in row})) for row in slices(rows)]
