"""Parquet: typed columns, in row groups of bounded size. It is imported late, since it imports pyarrow.

All columns are strings unless the user gives them a type; other values become JSON text. A row group ends
with the batch of rows that reaches :data:`ROW_GROUP_BYTES` or :data:`ROW_GROUP_ROWS`, or that may fill the
part.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import UNSET

from airflow_provider_webcollect.landing.errors import CastFailed
from airflow_provider_webcollect.landing.formats import STRING, TYPES, Parquet, decimal_type
from airflow_provider_webcollect.landing.formats.writing import (
    Column,
    Columns,
    SupportsWrite,
    TableWriter,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.landing.formats.profile import Inspector


ROW_GROUP_ROWS = 100_000
ROW_GROUP_BYTES = 16 * 1024 * 1024
#: Levels for compressions where pyarrow's default is much slower and hardly smaller.
_LEVELS = {"gzip": 4, "zstd": 3}
_SHOWN_CHARACTERS = 100


class ParquetWriter(TableWriter):
    """Writes rows in their columns' types."""

    def __init__(
        self, sink: SupportsWrite, columns: Columns, wanted: Parquet, inspector: Inspector | None = None
    ) -> None:
        super().__init__(columns, inspector)
        self._sink = _Sink(sink)
        self._wanted = wanted
        self._file: pq.ParquetWriter | None = None
        self._rows = 0
        # batches that do not fill a row group yet
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
        assert self._file is not None
        schema = self._file.schema
        arrays = [
            self._typed(column, as_texts(values)) for column, values in zip(schema, columns, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        self._rows += rows
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
            self._file.write_table(rows, row_group_size=max(1, rows.num_rows))

    def _typed(self, column: pa.Field, texts: pa.Array) -> pa.Array:
        if column.type == texts.type:
            return texts
        values, unread = cast(texts, column.type)
        if self._wanted.on_cast_error == "fail":
            for index in unread:
                text = texts[index].as_py()
                if len(text) > _SHOWN_CHARACTERS:
                    text = f"{text[:_SHOWN_CHARACTERS]}…"
                raise CastFailed(
                    f"`{column.name}` is {text!r} in row {self._rows + index + 1} of "
                    f"the part, which is no {self._wanted.column_types[column.name]}; change column_types, "
                    "or set on_cast_error='null' to have null there"
                )
        return values


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
    """Return ``values`` as strings; ``UNSET`` becomes null, values of other types become JSON."""
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        present = [None if value is UNSET else value for value in values]
        encode = msgspec.json.Encoder().encode
        texts = [
            value if value is None or type(value) is str else encode(value).decode() for value in present
        ]
        return pa.array(texts, pa.string())


def lack_key(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """Return which rows have null or a blank text in a column of a key, or lack the column."""
    lacking = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for name in key:
        column = rows[name] if name in rows.column_names else pa.nulls(rows.num_rows)
        empty = column.is_null()
        if pa.types.is_string(column.type):
            empty = pc.or_kleene(empty, pc.equal(pc.utf8_trim_whitespace(column), ""))
        lacking = pc.or_(lacking, empty)
    return lacking


_INTEGER = "^-?[0-9]+$"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = "(?i)^[+-]?(inf|infinity|nan)$"


def schema(names: Sequence[str], types: Mapping[str, str]) -> pa.Schema:
    """Return the schema of parts with these columns.

    :param types: names of types by column; other columns are strings.
    """
    return pa.schema([(name, arrow_type(types.get(name, STRING))) for name in names])


def arrow_type(name: str) -> pa.DataType:
    """Return the type with this name."""
    if decimal := decimal_type(name):
        return pa.decimal128(*decimal)
    factory, arguments = TYPES[name]
    return getattr(pa, factory)(*arguments)


def cast(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Iterator[int]]:
    """Cast ``texts`` to ``kind``; surrounding white space is ignored, and an empty text is null.

    A text whose value the type cannot hold exactly is not cast; only floats are rounded. For some such texts,
    pyarrow would return another value, or crash.

    :return: the values, with null where a text cannot be cast, and the indices of these.
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    filled = pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)
    values = pa.concat_arrays(_runs(_castable(filled, kind), kind))
    if (wrong := _misread(values, filled)) is not None:
        values = pc.if_else(wrong, pa.scalar(None, kind), values)
    unread = pc.and_(pc.is_null(values), pc.is_valid(filled))
    return values, (index for index, bad in enumerate(unread.to_pylist()) if bad)


def _castable(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``texts`` with null in place of those that pyarrow would misread."""
    if pa.types.is_integer(kind):
        # pyarrow accepts 0x10, and reads 0xFFFFFFFF as -1
        return pc.if_else(pc.match_substring_regex(texts, _INTEGER), texts, pa.scalar(None, pa.string()))
    return _plain_decimals(texts, kind) if pa.types.is_decimal(kind) else texts


def _plain_decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``texts`` in plain digits that ``kind`` can hold, with null for those that need more.

    Beyond that pyarrow computes modulo 2**128, reads 1e-39 as 0, and accesses invalid memory at
    1e-2147483647.
    """
    plain = rf"^[+-]?0*[0-9]{{0,{kind.precision - kind.scale}}}(\.[0-9]{{0,{kind.scale}}})?$"
    others = pc.invert(pc.match_substring_regex(texts, plain))
    if not pc.any(others).as_py():
        return texts
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-kind.scale)
    rewritten = []
    for text in texts.filter(others).to_pylist():
        digits = None
        if _NUMBER.fullmatch(text):
            with contextlib.suppress(Inexact, InvalidOperation):
                digits = f"{context.create_decimal(text).quantize(unit, context=context):f}"
        rewritten.append(digits)
    return pc.replace_with_mask(texts, others, pa.array(rewritten, pa.string()))


def _misread(values: pa.Array, texts: pa.Array) -> pa.Array | None:
    """Return which values differ from their text; None if there are none."""
    if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values)).as_py():
        # pyarrow returns infinity also for 1e400
        spelled = pc.match_substring_regex(texts, _NOT_FINITE)
        return pc.invert(pc.or_(pc.is_finite(values), spelled))
    if pa.types.is_temporal(values.type):
        # only the years that SQL and Python support: many readers fail on files with others
        first, last = (
            pa.scalar(moment, values.type) for moment in (datetime.datetime.min, datetime.datetime.max)
        )
        return pc.or_(pc.less(values, first), pc.greater(values, last))
    return None


def _runs(texts: pa.Array, kind: pa.DataType) -> list[pa.Array]:
    """Cast ``texts`` in runs; a run with a bad text is halved until that text is alone."""
    try:
        return [texts.cast(kind)]
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return [pa.nulls(1, kind)]
    half = len(texts) // 2
    return [*_runs(texts[:half], kind), *_runs(texts[half:], kind)]
