"""Parquet: typed columns, in row groups of bounded size.

All columns are strings unless the user gives them a type; other values become JSON text. A row group ends
with the batch of rows that reaches :data:`ROW_GROUP_BYTES` or :data:`ROW_GROUP_ROWS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from airflow_provider_webcollect.landing.formats.base import FileFormat, RowWriter, SupportsWrite
from airflow_provider_webcollect.landing.formats.casts import STRING, arrow_type, cast
from airflow_provider_webcollect.landing.formats.errors import CastFailed
from airflow_provider_webcollect.landing.formats.extras import require
from airflow_provider_webcollect.landing.formats.table_writer import TableWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_webcollect.landing.formats.columns import Columns
    from airflow_provider_webcollect.landing.formats.rows import Values

ROW_GROUP_ROWS = 100_000
ROW_GROUP_BYTES = 16 * 1024 * 1024
#: Levels for compressions where pyarrow's default is much slower and hardly smaller.
_LEVELS = {"gzip": 4, "zstd": 3}
_SHOWN_CHARACTERS = 100

OnCastError = Literal["fail", "null"]


@dataclass(frozen=True, kw_only=True)
class Parquet(FileFormat):
    """Parquet files.

    :param compression: Parquet's own: ``snappy``, ``zstd``, ``gzip``, or None for no compression.
    :param column_types: names of types by column; other columns are strings.
    :param on_cast_error: whether a value that does not fit its column's type fails the landing, or becomes
        null.
    """

    name: ClassVar[str] = "parquet"
    compression: str | None = "snappy"
    columns: tuple[str, ...] | None = None
    column_types: Mapping[str, str] = field(default_factory=dict)
    on_cast_error: OnCastError = "fail"

    @property
    def suffix(self) -> str:
        """The ending of parts' names."""
        return ".parquet"

    def require_extras(self) -> None:
        """Raise :class:`ExtraMissing` if pyarrow is not installed."""
        require("pyarrow.parquet", "parquet", "file_format='parquet'")

    def writer(self, sink: SupportsWrite, columns: Columns) -> RowWriter:
        """Begin a part."""
        self.require_extras()
        return _Writer(sink, columns, self)

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Return the schema of parts with the columns ``names``."""
        import pyarrow as pa

        return pa.schema([(name, arrow_type(self.column_types.get(name, STRING))) for name in names])


class _Writer(TableWriter):
    """Collects batches until they fill a row group."""

    def __init__(self, sink: SupportsWrite, columns: Columns, wanted: Parquet) -> None:
        super().__init__(columns)
        self._sink = sink
        self._wanted = wanted
        self._file: _File | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._rows = 0

    def abandon(self) -> None:
        """Write nothing more."""
        self._held.clear()
        if self._file is not None:
            self._file.abandon()

    def _head(self) -> None:
        self._file = _File(self._sink, self._wanted.schema(self.columns), self._wanted.compression)

    def _append(self, batch: Sequence[Values]) -> None:
        import pyarrow as pa

        assert self._file is not None
        schema = self._file.schema
        columns = [
            self._typed(column, as_texts(values))
            for column, values in zip(schema, zip(*batch, strict=True), strict=True)
        ]
        self._held.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        self._held_rows += len(batch)
        self._held_bytes += self._held[-1].nbytes
        self._rows += len(batch)
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def _end(self) -> None:
        assert self._file is not None
        self._write_row_group()
        self._file.close()

    def _typed(self, column: pa.Field, texts: pa.Array) -> pa.Array:
        if column.type == texts.type:
            return texts
        values, unread = cast(texts, column.type)
        if self._wanted.on_cast_error == "fail":
            for index in unread:
                raise CastFailed(
                    f"`{column.name}` is {_shown(texts[index].as_py())} in row {self._rows + index + 1} of "
                    f"the part, which is no {self._wanted.column_types[column.name]}; change column_types, "
                    "or set on_cast_error='null' to have null there"
                )
        return values

    def _write_row_group(self) -> None:
        import pyarrow as pa

        assert self._file is not None
        if self._held:
            rows = pa.Table.from_batches(self._held)
            self._held.clear()
            self._held_rows = self._held_bytes = 0
            self._file.write(rows)


class _File:
    """A Parquet file being written."""

    def __init__(self, sink: SupportsWrite, schema: pa.Schema, compression: str | None) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.schema = schema
        self._sink = _Sink(sink)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            schema,
            compression=compression or "none",
            compression_level=_LEVELS.get(compression or ""),
        )

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()

    def abandon(self) -> None:
        """Write nothing more; otherwise the footer would be written when the writer is garbage-collected."""
        self._sink.dropped = True
        with contextlib.suppress(Exception):
            self._writer.close()


class _Sink:
    """Adapts a sink to the interface that pyarrow needs."""

    closed = False

    def __init__(self, sink: SupportsWrite) -> None:
        self._sink = sink
        self.dropped = False

    def write(self, data: bytes) -> None:
        if not self.dropped:
            # copied unless it is bytes already: the sink may keep it while pyarrow reuses its buffer
            self._sink.write(bytes(data))

    def flush(self) -> None:
        """Nothing is buffered here."""


def as_texts(values: Sequence[Any]) -> pa.Array:
    """Return ``values`` as strings; values of other types become JSON."""
    import pyarrow as pa

    try:
        return pa.array(values, pa.string())
    except pa.ArrowTypeError:
        return pa.array(
            [value if value is None or type(value) is str else _json(value) for value in values], pa.string()
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
