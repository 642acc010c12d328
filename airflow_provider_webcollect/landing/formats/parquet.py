"""Parquet: typed columns, in row groups of bounded size. Import this module late: it imports pyarrow.

All columns are strings unless the user gives them a type; other values become JSON text. A row group ends
with the batch of rows that reaches :data:`ROW_GROUP_BYTES` of texts or :data:`ROW_GROUP_ROWS`, or that may
fill the part. Texts are parsed only when their row group ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_webcollect.landing.formats import Parquet
from airflow_provider_webcollect.landing.formats.values import Values, as_texts, schema
from airflow_provider_webcollect.landing.formats.writing import (
    Column,
    Columns,
    SupportsWrite,
    TableWriter,
)

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats.profile import Inspector


ROW_GROUP_ROWS = 100_000
ROW_GROUP_BYTES = 16 * 1024 * 1024
#: Levels for compressions where pyarrow's default is much slower and hardly smaller.
_LEVELS = {"gzip": 4, "zstd": 3}


class ParquetWriter(TableWriter):
    """Writes rows with the types of their columns."""

    def __init__(
        self, sink: SupportsWrite, columns: Columns, wanted: Parquet, inspector: Inspector | None = None
    ) -> None:
        super().__init__(columns, inspector)
        self._sink = _Sink(sink)
        self._wanted = wanted
        self._file: pq.ParquetWriter | None = None
        self._values = Values(wanted.column_types, wanted.on_cast_error)
        self.misfits = self._values.misfits
        # batches of texts that do not fill a row group yet
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            # otherwise the footer would be written when the file is garbage-collected
            self._held.clear()
            self._sink.dropped = True
            with contextlib.suppress(Exception):
                if self._file is not None:
                    self._file.close()

    def _head(self) -> None:
        compression = self._wanted.compression or "none"
        self._file = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            schema(self.columns, self._wanted.column_types),
            compression=compression,
            compression_level=_LEVELS.get(compression),
        )

    def _append(self, columns: Sequence[Column], rows: int) -> None:
        marks = (self._values.marks.get(name, "") for name in self.columns)
        texts = list(map(as_texts, columns, marks))
        batch = pa.RecordBatch.from_arrays(texts, names=self.columns)
        self._held.append(batch)
        self._held_rows += rows
        self.held_bytes += batch.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self.held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def _end(self) -> None:
        assert self._file is not None
        self.flush()
        self._file.close()

    def flush(self) -> None:
        if self._held and self._file is not None:
            rows = pa.Table.from_batches(self._held)
            self._held.clear()
            self._held_rows = self.held_bytes = 0
            if self._wanted.column_types:
                # many rows are parsed at once: for a few texts, pyarrow's overhead would be most of the time
                columns = rows.combine_chunks().columns
                texts = {name: column.chunk(0) for name, column in zip(self.columns, columns, strict=True)}
                rows = pa.Table.from_arrays(self._values.arrays(texts), schema=self._file.schema)
            self._file.write_table(rows, row_group_size=max(1, rows.num_rows))


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


def lack_key(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """Return, for each row, whether it has null or blank text in a column of a key, or lacks the column."""
    lacking = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for name in key:
        column = rows[name] if name in rows.column_names else pa.nulls(rows.num_rows)
        empty = column.is_null()
        if pa.types.is_string(column.type):
            empty = pc.or_kleene(empty, pc.equal(pc.utf8_trim_whitespace(column), ""))
        lacking = pc.or_(lacking, empty)
    return lacking
