"""Types of Parquet columns, and texts read as them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

STRING = "string"
#: The names of types, beside ``decimal(precision,scale)``, as pyarrow's functions know them.
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
RULE = (
    f"it must be one of {', '.join(_FACTORIES)}, decimal(precision,scale) with precision <= {_MAX_PRECISION}"
)


def is_type(name: object) -> bool:
    """Return whether ``name`` is the name of a type."""
    if not isinstance(name, str):
        return False
    return name in _FACTORIES or _decimal(name) is not None


def arrow_type(name: str) -> pa.DataType:
    """Return the type called ``name``."""
    import pyarrow as pa

    if decimal := _decimal(name):
        return pa.decimal128(*decimal)
    factory, arguments = _FACTORIES[name]
    return getattr(pa, factory)(*arguments)


def cast(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Iterator[int]]:
    """Read ``texts`` as ``kind``; white space around a text does not count, and an empty text is null.

    :return: the values, null where a text cannot be read, and where these are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(texts)
    readable = pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)
    values = pa.concat_arrays(_runs(readable, kind))
    unread = pc.and_(pc.is_null(values), pc.is_valid(readable))
    return values, (index for index, bad in enumerate(unread.to_pylist()) if bad)


def _runs(texts: pa.Array, kind: pa.DataType) -> list[pa.Array]:
    """Return ``texts`` as ``kind`` in runs; one with a bad text is halved until that stands alone."""
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
