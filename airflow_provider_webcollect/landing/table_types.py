"""Whether the columns of a warehouse's table hold the values of a landing as they are.

A warehouse converts what it is given to the type that a column has, most often without an error: it rounds,
cuts off, pads, or takes a time without a zone for one of the session's zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: A column of a table as dlt describes it: ``data_type`` and, for some types, ``precision``, ``scale`` and
#: ``timezone``; and ``db_type``, the warehouse's own name.
Column = Mapping[str, Any]

#: Types of texts, in several warehouses. dlt takes each type that it does not know for a text.
_TEXT = re.compile(r"(?:\w+\()*(?:character varying|string|text|varchar)(?:\(\w+\))?\)*", re.IGNORECASE)
#: Warehouses where a timestamp may have fewer digits, which are not in its name.
_WITH_TIMESTAMP_PRECISION = ("postgres", "redshift", "snowflake")
_TIMESTAMP_PRECISION = """
    select column_name, datetime_precision from information_schema.columns
    where lower(table_schema) = %s and lower(table_name) = %s
"""
_MICROSECONDS = 6


def columns_of(client: Any, dataset: str, table: str) -> Mapping[str, Column]:
    """Return the columns of a table, by their names in small letters; none if there is no such table.

    :param client: dlt's of the warehouse, connected.
    """
    described = client.type_mapper.from_destination_type
    client.type_mapper.from_destination_type = lambda name, *sizes: {
        **described(name, *sizes),
        "db_type": name,
    }
    _, columns = client.get_storage_table(table)
    found: dict[str, dict[str, Any]] = {name.lower(): dict(column) for name, column in columns.items()}
    if found and client.capabilities.sqlglot_dialect in _WITH_TIMESTAMP_PRECISION:
        for name, precision in client.sql_client.execute_sql(_TIMESTAMP_PRECISION, dataset, table):
            if precision is not None:
                found[name.lower()]["precision"] = precision
    return found


def difference(client: Any, column: Column, kind: pa.DataType) -> str | None:
    """Return how a column's type differs from the values that it is to hold; None if it holds them all.

    :param client: dlt's of the warehouse.
    """
    from dlt.common.libs.pyarrow import get_column_type_from_py_arrow

    given: Column = get_column_type_from_py_arrow(kind)
    if not given or _holds(client, column, given):
        return None
    return f"is of the type {_type_name(column)}, which does not hold the values of the landing, {kind}"


def _holds(client: Any, held: Column, given: Column) -> bool:
    """Return whether a column holds all values as they are, or the warehouse refuses some aloud."""
    match held["data_type"], given["data_type"]:
        case "text", _:
            return _TEXT.fullmatch(held["db_type"]) is not None
        case "decimal" | "wei", "decimal" | "bigint":
            # numbers that are too large are refused
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
    """Return a type's name without precision, and without ClickHouse's mark of those that hold null."""
    return re.sub(r"\s*\(.*\)", "", re.sub(r"Nullable\((.*)\)", r"\1", name)).upper()


def _type_name(column: Column) -> str:
    shown = {"decimal": ("precision", "scale"), "timestamp": ("precision",)}.get(column["data_type"], ())
    sizes = ", ".join(str(column[size]) for size in shown if size in column)
    name = _without_sizes(column["db_type"]).lower()
    return f"{name}({sizes})" if sizes else name
