"""Checking that the columns of a warehouse's table hold the values of a landing unchanged.

A warehouse converts values to the type of their column, usually without an error: it rounds, truncates or
pads them, or reads a time without a zone in the session's zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: A column of a table as dlt describes it: ``data_type``, ``nullable`` and, for some types, ``precision``,
#: ``scale`` and ``timezone``. Also ``db_type``, the warehouse's own name of the type, and ``length``, the
#: maximum length of a text.
Column = Mapping[str, Any]

#: The text types of several warehouses. dlt also treats each type that it does not know as text.
_TEXT = re.compile(r"(?:\w+\()*(?:character varying|string|text|varchar)(?:\(\w+\))?\)*", re.IGNORECASE)
#: Warehouses where a timestamp may have a lower precision, and a text a maximum length; dlt reads neither.
_WITH_SIZES = ("postgres", "redshift", "snowflake")
_SIZES = """
    select column_name, datetime_precision, character_maximum_length from information_schema.columns
    where lower(table_schema) = %s and lower(table_name) = %s
"""
_MICROSECONDS = 6
_LARGEST_SCALE = 1000
#: The bits of integer types of several warehouses that hold less than 64 bits.
_BITS = {"TINYINT": 8, "INT8": 8, "SMALLINT": 16, "INT16": 16, "INTEGER": 32, "INT": 32, "INT32": 32}
#: Maximum number of characters of a value that an error shows.
_SHOWN_CHARACTERS = 100


def table_columns(client: Any, dataset: str, table: str) -> Mapping[str, Column]:
    """Return the columns of a table, by their names in lower case; none if the table does not exist.

    :param client: dlt's client for the warehouse, connected.
    """
    described = client.type_mapper.from_destination_type
    client.type_mapper.from_destination_type = lambda name, *sizes: {
        **described(name, *sizes),
        "db_type": name,
    }
    _, columns = client.get_storage_table(table)
    by_name: dict[str, dict[str, Any]] = {name.lower(): dict(column) for name, column in columns.items()}
    if by_name and client.capabilities.sqlglot_dialect in _WITH_SIZES:
        for name, precision, length in client.sql_client.execute_sql(_SIZES, dataset, table):
            sizes = {"precision": precision, "length": length}
            by_name[name.lower()] |= {size: value for size, value in sizes.items() if value is not None}
    for column in by_name.values():
        if column.get("scale", 0) > _LARGEST_SCALE:
            # PostgreSQL shows a negative scale as its eleven bits
            column["scale"] -= 2**11
    return by_name


def misfit(client: Any, column: Column, values: pa.ChunkedArray) -> str | None:
    """Return why a column does not hold some values unchanged; None if it holds all of them.

    :param client: dlt's client for the warehouse.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from dlt.common.libs.pyarrow import get_column_type_from_py_arrow

    kind = values.type
    given: Column = get_column_type_from_py_arrow(kind)
    if given and not _holds(client, column, given):
        return f"is of the type {_type_name(column)}, which does not hold the values of the landing, {kind}"
    wrong = [] if column.get("nullable", True) else [pc.is_null(values)]
    if pa.types.is_string(kind) and "length" in column:
        wrong.append(pc.greater(pc.utf8_length(values), column["length"]))
    if limits := _limits(column, kind):
        wrong += [pc.less(values, pa.scalar(limits[0])), pc.greater(values, pa.scalar(limits[1]))]
    for mask in wrong:
        if (index := pc.index(mask, True).as_py()) >= 0:
            value = values[index].as_py()
            example = "null" if value is None else repr(str(value)[:_SHOWN_CHARACTERS])
            return f"is of the type {_type_name(column)}, which does not hold {example}"
    return None


def _limits(column: Column, kind: pa.DataType) -> tuple[Any, Any] | None:
    """Return the least and the greatest number that a column holds; None if it holds all of the type.

    :param kind: the type of the values.
    """
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        whole_digits, scale = kind.precision - kind.scale, kind.scale
    elif pa.types.is_integer(kind):
        whole_digits, scale = len(str(2 ** (kind.bit_width - 1))), 0
    else:
        return None
    if bits := _BITS.get(_without_sizes(column["db_type"])):
        return None if bits >= kind.bit_width else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if column["data_type"] == "bigint" or "precision" not in column:
        return None
    if (held_digits := column["precision"] - column.get("scale", 0)) >= whole_digits:
        return None
    greatest = Decimal((0, (9,) * (held_digits + scale), -scale))
    return -greatest, greatest


def _holds(client: Any, held: Column, given: Column) -> bool:
    """Return whether a column's type holds values unchanged; single values may still be too large for it.

    :param held: the column of the table.
    :param given: the column of the values.
    """
    match held["data_type"], given["data_type"]:
        case "text", _:
            return _TEXT.fullmatch(held["db_type"]) is not None
        case "decimal" | "wei", "decimal" | "bigint":
            return "scale" not in held or bool(held["scale"] >= given.get("scale", 0))
        case "timestamp", "timestamp":
            made: str = client.type_mapper.to_destination_type({"name": "", **given}, {"name": ""})
            has_zone = bool(given.get("timezone", True))
            is_same = _without_sizes(held["db_type"]) == _without_sizes(made)
            is_exact = bool(held.get("precision", _MICROSECONDS) >= _MICROSECONDS)
            return is_same and is_exact and bool(held.get("timezone", has_zone)) is has_zone
        case kinds:
            return bool(kinds[0] == kinds[1])


def _without_sizes(name: str) -> str:
    """Return a type's name in upper case, without its sizes and without ClickHouse's ``Nullable``."""
    return re.sub(r"\s*\(.*\)", "", re.sub(r"Nullable\((.*)\)", r"\1", name)).upper()


def _type_name(column: Column) -> str:
    sizes_of = {"decimal": ("precision", "scale"), "timestamp": ("precision",), "text": ("length",)}
    size_names = sizes_of.get(column["data_type"], ())
    sizes = ", ".join(str(column[size]) for size in size_names if size in column)
    name = _without_sizes(column["db_type"]).lower()
    name = f"{name}({sizes})" if sizes else name
    return name if column.get("nullable", True) else f"{name} not null"
