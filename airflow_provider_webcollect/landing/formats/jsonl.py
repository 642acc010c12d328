"""JSON lines: unchanged rows, or rows reduced to the user's columns."""

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

    If columns are given, each row keeps only these, in their order, with unchanged values. Bytes that are not
    valid UTF-8 also stay unchanged; in the other formats they become U+FFFD.
    """

    name: ClassVar[str] = "jsonl"
    compression: compressions.Compression | None = None
    columns: tuple[str, ...] | None = None

    @property
    def suffix(self) -> str:
        """The ending of parts' names."""
        return ".jsonl" + compressions.SUFFIXES[self.compression]

    def require_extras(self) -> None:
        """Raise :class:`ExtraMissing` if the compression is not installed."""
        compressions.require_extras(self.compression)

    def writer(self, sink: SupportsWrite, columns: Columns) -> RowWriter:
        """Begin a part. Only fixed columns have an effect."""
        return _Writer(compressions.Output(sink, self.compression), columns)


class _Writer(RowWriter):
    def __init__(self, output: compressions.Output, columns: Columns) -> None:
        self._output = output
        self._cut = columns.fixed
        self.columns = columns.names if columns.fixed else ()

    def write(self, rows: Sequence[msgspec.Raw]) -> bool:
        # each row is already a single line
        lines = _cut(rows, self.columns) if self._cut else rows
        self._output.write(b"\n".join([*lines, b""]))
        return True

    def close(self) -> None:
        self._output.close()

    def abandon(self) -> None:
        """Write nothing more."""


def _cut(rows: Sequence[msgspec.Raw], names: Sequence[str]) -> list[msgspec.Raw]:
    """Return the rows with only ``names``, in this order."""
    encode = msgspec.json.Encoder().encode
    return [msgspec.Raw(encode({name: row[name] for name in names if name in row})) for row in slices(rows)]
