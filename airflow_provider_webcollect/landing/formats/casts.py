"""Types of Parquet columns, and casts from strings to them."""

from __future__ import annotations

import datetime
import re
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

STRING = "string"
#: The names of types, besides ``decimal(precision,scale)``, with the pyarrow functions that make them.
_FACTORIES: dict[str, tuple[str, tuple[str, ...]]] = {
    STRING: ("string", ()),
    "bool": ("bool_", ()),
    "int32": ("int32", ()),
    "int64": ("int64", ()),
    "float32": ("float32", ()),
    "float64": ("float64", ()),
    "date32": ("date32", ()),
    "timestamp": ("timestamp", ("us",)),
    "timestamptz": ("timestamp", ("us", "UTC")),
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
_MAX_PRECISION = 38
_INTEGER = "^-?[0-9]+$"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = "(?i)^[+-]?(inf|infinity|nan)$"
RULE = (
    f"it must be one of {', '.join(_FACTORIES)}, decimal(precision,scale) with precision <= {_MAX_PRECISION}"
)


def is_type(name: object) -> bool:
    """Return whether ``name`` is the name of a type."""
    if not isinstance(name, str):
        return False
    return name in _FACTORIES or _decimal(name) is not None


def arrow_type(name: str) -> pa.DataType:
    """Return the type with this name."""
    import pyarrow as pa

    if decimal := _decimal(name):
        return pa.decimal128(*decimal)
    factory, arguments = _FACTORIES[name]
    return getattr(pa, factory)(*arguments)


def cast(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Iterator[int]]:
    """Cast ``texts`` to ``kind``; surrounding white space is ignored, and an empty text is null.

    A text whose value the type cannot hold exactly is not cast; only floats are rounded. For some such texts,
    pyarrow would return another value, or crash.

    :return: the values, with null where a text cannot be cast, and the indices of these.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(texts)
    given = pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)
    values = pa.concat_arrays(_runs(_castable(given, kind), kind))
    if (wrong := _misread(values, given)) is not None:
        values = pc.if_else(wrong, pa.scalar(None, kind), values)
    unread = pc.and_(pc.is_null(values), pc.is_valid(given))
    return values, (index for index, bad in enumerate(unread.to_pylist()) if bad)


def _castable(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``texts`` with null in place of those that pyarrow would misread."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(kind):
        # pyarrow accepts 0x10, and reads 0xFFFFFFFF as -1
        return pc.if_else(pc.match_substring_regex(texts, _INTEGER), texts, pa.scalar(None, pa.string()))
    return _plain_decimals(texts, kind) if pa.types.is_decimal(kind) else texts


def _plain_decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``texts`` in plain digits that ``kind`` can hold, with null for those that need more.

    Beyond that pyarrow computes modulo 2**128, reads 1e-39 as 0, and accesses invalid memory at
    1e-2147483647.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = rf"^[+-]?0*[0-9]{{0,{kind.precision - kind.scale}}}(\.[0-9]{{0,{kind.scale}}})?$"
    others = pc.invert(pc.match_substring_regex(texts, plain))
    if not pc.any(others).as_py():
        return texts
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-kind.scale)
    rewritten = [_plain_decimal(text, unit, context) for text in texts.filter(others).to_pylist()]
    return pc.replace_with_mask(texts, others, pa.array(rewritten, pa.string()))


def _plain_decimal(text: str, unit: Decimal, context: Context) -> str | None:
    """Return ``text`` as a multiple of ``unit`` without exponent; None if that is impossible."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return f"{context.create_decimal(text).quantize(unit, context=context):f}"
    except (Inexact, InvalidOperation):
        return None


def _misread(values: pa.Array, texts: pa.Array) -> pa.Array | None:
    """Return which values differ from their text; None if there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa

    try:
        return [texts.cast(kind)]
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return [pa.nulls(1, kind)]
    half = len(texts) // 2
    return [*_runs(texts[:half], kind), *_runs(texts[half:], kind)]


def _decimal(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type."""
    found = _DECIMAL.fullmatch(name)
    if found is None:
        return None
    precision, scale = int(found[1]), int(found[2])
    return (precision, scale) if 1 <= precision <= _MAX_PRECISION and scale <= precision else None
