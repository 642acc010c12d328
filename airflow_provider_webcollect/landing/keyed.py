"""The rows of a landing by a key, such as a product's URL: the latest ones, what has changed, all periods.

DuckDB compares the rows, but sees numbers instead of the columns' names: these may be empty, or differ in
letter case alone, which no query can tell apart.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

#: In the order of the landing, ``place`` counts the rows.
_LATEST = """
    select max(place) as place, arg_max(landed_at, place) as landed_at
    from landing group by {key} order by place
"""
_CHANGES = """
    with states as (
        from landing where place in (select max(place) from landing group by {key}, place < $before)
    ), compared as (
        select *, lag(place) over states_of_key as earlier, lag({values}) over states_of_key as former
        from states window states_of_key as (partition by {key} order by place)
    )
    select place, case when earlier is null then 'new' else 'changed' end as change, landed_at
    from compared where place >= $before and {values} is distinct from former order by place
"""
_HISTORY = """
    with compared as (
        select *, lag({values}) over (partition by {key} order by place) as former from landing
    )
    select
        place,
        landed_at as valid_from,
        lead(landed_at) over (partition by {key} order by place) as valid_to
    from compared where {values} is distinct from former order by place
"""


def chosen_columns(
    key: object, compare: object, columns: Sequence[str] | None, argument: str = "key"
) -> tuple[list[str], list[str] | None]:
    """Return the columns of a key, and those that are compared, as lists; None for all of them.

    :param columns: those of the landing; None if they are not known.
    :param argument: which has the key.
    :raises InvalidArgument: if an argument names none, one twice, or one that is not there.
    """
    return _names(argument, key, columns), None if compare is None else _names("compare", compare, columns)


def _names(argument: str, names: object, columns: Sequence[str] | None) -> list[str]:
    if isinstance(names, str):
        _check_name(argument, names, columns)
        return [names]
    listed = list(validation.items(argument, names))
    for index, name in enumerate(listed):
        _check_name(f"{argument}[{index}]", name, columns)
        if name in listed[:index]:
            raise InvalidArgument(f"{argument}[{index}]", name, "every column can be named once")
    return listed


def _check_name(argument: str, name: object, columns: Sequence[str] | None) -> None:
    if not isinstance(name, str):
        raise InvalidArgument(argument, name, "it must be the name of a column")
    if columns is not None:
        validation.one_of(argument, name, tuple(columns), ", the columns of the landing")


def time_or_run(argument: str, value: object) -> datetime.datetime | str:
    """Return a time with a zone, which may be given as ISO 8601 text, or the id of a run."""
    found = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            found = datetime.datetime.fromisoformat(value.strip())
    is_time = isinstance(found, datetime.datetime) and found.utcoffset() is not None
    if is_time or (isinstance(found, str) and found.strip()):
        return cast("datetime.datetime | str", found)
    raise InvalidArgument(argument, value, "it must be a time with a zone, or the id of a run")


def lack_key(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """Return which rows have null or a blank text in a column of a key, or lack the column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lacking = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for name in key:
        column = rows[name] if name in rows.column_names else pa.nulls(rows.num_rows)
        empty = column.is_null()
        if pa.types.is_string(column.type):
            empty = pc.or_kleene(empty, pc.equal(pc.utf8_trim_whitespace(column), ""))
        lacking = pc.or_(lacking, empty)
    return lacking


class KeyedRows:
    """Rows that have a value in each column of a key.

    :param rows: all rows of a landing, in its order; those without such a value are left out.
    :param landed_at: when each of them has landed.
    :param key: a column or several.
    :param compare: the columns whose values are compared; None for all.
    :raises InvalidArgument: as :func:`chosen_columns`. Of rows without any key, no column is known.
    """

    def __init__(self, rows: pa.Table, landed_at: pa.ChunkedArray, key: object, compare: object) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        names, compared = chosen_columns(key, compare, rows.column_names or None)
        if not rows.column_names:
            nothing = pa.nulls(len(landed_at), pa.string())
            rows = pa.table(dict.fromkeys((*names, *(compared or ())), nothing))
        self._names = rows.column_names
        numbers = {name: f"c{number}" for number, name in enumerate(self._names)}
        self._key = ", ".join(numbers[name] for name in names)
        self._values = f"row({', '.join(numbers[name] for name in compared or self._names)})"
        places = pa.array(range(rows.num_rows), pa.int64())
        numbered = rows.rename_columns(list(numbers.values()))
        numbered = numbered.append_column("place", places).append_column("landed_at", landed_at)
        lacking = lack_key(numbered, [numbers[name] for name in names])
        # a filter copies the rows
        self._rows = numbered.filter(pc.invert(lacking)) if pc.any(lacking).as_py() else numbered

    def latest(self) -> pa.Table:
        """Return the last row of each key, with ``landed_at``."""
        return self._chosen(_LATEST)

    def changes(self, before: int) -> pa.Table:
        """Return the last row of each key that was not so before, with ``change`` and ``landed_at``.

        :param before: how many of the landing's rows there were before.
        """
        return self._chosen(_CHANGES, before=before)

    def history(self) -> pa.Table:
        """Return the first of consecutive rows of a key with the same values, with their period."""
        return self._chosen(_HISTORY)

    def _chosen(self, query: str, **parameters: Any) -> pa.Table:
        """Return the rows whose places a query gives, with its other columns."""
        import duckdb
        import pyarrow.compute as pc

        with duckdb.connect() as connection:
            connection.register("landing", self._rows)
            sql = query.format(key=self._key, values=self._values)
            found = connection.sql(sql, params=parameters).to_arrow_table()
        # unlike `take`, `filter` has no limit to the characters of a column
        chosen = self._rows.filter(pc.is_in(self._rows["place"], found["place"]))
        table = chosen.drop_columns(["place", "landed_at"]).rename_columns(self._names)
        for name in found.column_names[1:]:
            table = table.append_column(name, found[name])
        return table


def in_duckdb(rows: pa.Table, connection: DuckDBPyConnection | None) -> DuckDBPyRelation:
    """Return a relation of rows.

    :param connection: None for a new one, which shows times in UTC.
    """
    import duckdb

    if connection is None:
        connection = duckdb.connect()
        connection.execute("set TimeZone = 'UTC'")
    return connection.from_arrow(rows)
