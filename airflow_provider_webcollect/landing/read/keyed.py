"""The rows of a landing by a key, such as a product's URL: the latest rows, the changes and all periods.

DuckDB compares the key, the place and a digest of each row, in a file on disk, so that memory does not grow
with the landing. It sees numbers instead of the columns' names, since names may be empty, or differ in letter
case alone, which DuckDB's queries ignore.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import DuckDBPyConnection, DuckDBPyRelation

from airflow_provider_webcollect.landing.formats import chosen_columns
from airflow_provider_webcollect.landing.formats.parquet import lack_key
from airflow_provider_webcollect.landing.formats.reading import ROWS
from airflow_provider_webcollect.landing.temporary import TemporaryFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider_webcollect.landing.formats.reading import PartReader
    from airflow_provider_webcollect.landing.log.commits import Part
    from airflow_provider_webcollect.landing.read.gone import DatedPart

T = TypeVar("T")

#: The memory that DuckDB takes before it writes to disk, and its number of threads: each needs some of it.
_MEMORY, _THREADS = "512MB", 4
_TABLE = "create table keyed as select *, 0 as part, 0::bigint as place, md5_number('') as digest from keys"
#: ``place`` is the position of a row in the landing, and ``part`` the position of its part.
_LATEST = """
    with states as (select max(place) as place, max(part) as part from keyed group by {key})
    select place, landed_at from states join parts using (part) order by place
"""
_CHANGES = """
    with states as (
        select
            max(place) filter (is_before) as former,
            max(place) filter (gone_at is null) as current,
            max(place) as latest,
            max(gone_at) as gone_at
        from keyed join parts using (part) group by {key}
    ), compared as (
        select
            newest.place,
            newest.part,
            gone_at,
            case
                when former.place is null then if(current is null, null, 'new')
                when current is null then 'gone'
                when newest.digest <> former.digest then 'changed'
            end as change
        from states
        join keyed as newest on newest.place = coalesce(current, latest)
        left join keyed as former on former.place = states.former
    )
    select place, change, if(change = 'gone', compared.gone_at, landed_at) as landed_at
    from compared join parts using (part) where change is not null order by place
"""
_COUNTS = "select change, count(*) as keys from ({changes}) group by change"
_HISTORY = """
    with compared as (
        select *, lag(digest) over (partition by {key} order by place) as former from keyed
    )
    select
        place,
        landed_at as valid_from,
        lead(landed_at) over (partition by {key} order by place) as valid_to
    from compared join parts using (part) where digest is distinct from former order by place
"""


class KeyedRows:
    """Rows that have a value in each column of a key.

    All parts are read to find the rows to return, and then the parts with these rows are read again.

    :param tables_of: yields the rows of a part.
    :param reader: the reader for the parts' format.
    :param parts: the parts with the rows, in the order of the landing.
    :param key: a column or several.
    :param compare: the columns whose values are compared; None for all.
    :param columns: the columns of the landing, whether the parts have them or not.
    :raises InvalidArgument: as :func:`chosen_columns`; methods also raise it for columns that no row has. If
        no column is known at all, every name is accepted.
    """

    def __init__(
        self,
        tables_of: Callable[[Part], Iterator[pa.Table]],
        reader: PartReader,
        parts: Sequence[DatedPart],
        key: object,
        compare: object,
        columns: Iterable[str],
    ) -> None:
        self._tables_of = tables_of
        self._reader = reader
        self._parts = parts
        self._asked = (key, compare)
        self._key, self._compared = chosen_columns(key, compare, None)
        self._columns = columns
        # the schema of all columns in order of appearance, which also gives their numbers
        self._schema = reader.schema()

    def latest(self, connection: DuckDBPyConnection | None) -> DuckDBPyRelation:
        """Return the last row of each key, with ``landed_at``."""
        return in_duckdb(self._rows(_LATEST), connection)

    def changes(self, connection: DuckDBPyConnection | None) -> DuckDBPyRelation:
        """Return a row of each key that is new, changed or gone, with ``change`` and ``landed_at``.

        It is the last row that is there now. For a key that is gone, it is the key's last row of all, with
        ``gone_at`` as ``landed_at``.
        """
        return in_duckdb(self._rows(_CHANGES), connection)

    def counts(self) -> dict[str, int]:
        """Return the numbers of keys that are ``new``, ``changed`` and ``gone``."""
        answer = self._answer(_COUNTS.format(changes=_CHANGES))
        counts = zip(answer["change"].to_pylist(), answer["keys"].to_pylist(), strict=True)
        return {"new": 0, "changed": 0, "gone": 0, **dict(counts)}

    def history(self, connection: DuckDBPyConnection | None) -> DuckDBPyRelation:
        """Return the first of consecutive rows of a key with the same values, with their period."""
        return in_duckdb(self._rows(_HISTORY), connection)

    def _rows(self, query: str) -> pa.Table:
        """Return the rows at the places that a query returns, with the query's other columns."""
        answer = self._answer(query)
        chosen = self._chosen(answer["place"])
        table = self._reader.joined(itertools.chain([self._schema.empty_table()], chosen))
        for name in answer.column_names[1:]:
            table = table.append_column(name, answer[name])
        return table

    def _chosen(self, places: pa.ChunkedArray) -> Iterator[pa.Table]:
        """Yield the rows at these places."""
        begin = place = 0

        def end_of(rows: int) -> int:
            """Return how many of the places are before the end of the next rows."""
            return bisect.bisect_left(places, place + rows, begin, key=lambda scalar: scalar.as_py())

        for part in (dated.part for dated in self._parts):
            if end_of(part.rows) == begin:
                place += part.rows
                continue
            for table in self._tables_of(part):
                end = end_of(table.num_rows)
                numbers = pa.array(range(place, place + table.num_rows), pa.int64())
                # unlike `take`, `filter` does not limit the number of characters in a column
                yield table.filter(pc.is_in(numbers, places[begin:end]))
                begin, place = end, place + table.num_rows

    def _answer(self, query: str) -> pa.Table:
        """Return the result of a query of DuckDB.

        :param query: SQL for the tables ``keyed`` and ``parts``, with ``{key}`` for the columns of the key.
        """
        key = ", ".join(f"k{number}" for number in range(len(self._key)))
        with (
            contextlib.closing(TemporaryFolder("keyed")) as folder,
            duckdb.connect(
                folder.path / "rows.duckdb",
                config={"memory_limit": _MEMORY, "threads": _THREADS, "preserve_insertion_order": False},
            ) as connection,
        ):
            self._fill(connection)
            answer = _interruptible(
                connection, lambda: connection.sql(query.format(key=key)).to_arrow_table()
            )
        self._add_columns(self._columns)
        if not len(self._schema):
            self._add_columns((*self._key, *(self._compared or ())))
        chosen_columns(*self._asked, self._schema.names)
        return answer

    def _fill(self, connection: DuckDBPyConnection) -> None:
        """Create the table ``parts``, and the table ``keyed`` with key, place and digest of each row."""
        time = pa.timestamp("us", "UTC")
        types = {"part": pa.int64(), "landed_at": time, "is_before": pa.bool_(), "gone_at": time}
        parts = [{**dated._asdict(), "part": number} for number, dated in enumerate(self._parts)]
        connection.register("parts", pa.Table.from_pylist(parts, pa.schema(types)))
        kinds = self._reader.schema_of(self._key).types
        keys = pa.schema([(f"k{number}", kind) for number, kind in enumerate(kinds)])
        connection.register("keys", keys.empty_table())
        connection.execute(_TABLE)
        connection.begin()
        place = 0
        for number, dated in enumerate(self._parts):
            for table in self._tables_of(dated.part):
                self._add_columns(table.column_names)
                if table.num_rows and set(self._key).issubset(table.column_names):
                    self._insert(connection, table, number, place)
                place += table.num_rows
        connection.commit()

    def _insert(self, connection: DuckDBPyConnection, table: pa.Table, part: int, place: int) -> None:
        """Add rows to ``keyed``.

        :param part: the number of the part that has the rows.
        :param place: the place of the first row.
        """
        compared = self._compared or [name for name in table.column_names if name != ROWS]
        numbers = {
            name: self._schema.get_field_index(name)
            for name in table.column_names
            if name in compared or name in self._key
        }
        columns = {f"c{number}": table[name] for name, number in numbers.items()}
        columns["place"] = pa.array(range(place, place + table.num_rows), pa.int64())
        rows = pa.table(columns).filter(pc.invert(lack_key(table, self._key)))
        key = ", ".join(f"c{numbers[name]}" for name in self._key)
        # sorted by number below, since parts of JSON lines may have the columns in another order
        types = {numbers[name]: table[name].type for name in compared if name in numbers}
        digested = ""
        for number, kind in sorted(types.items()):
            # different values give different texts, and null is left out: a row without the column has the
            # same digest as a row with null in it. Adding 0 makes minus zero equal to zero
            text = f"(c{number}{' + 0' if pa.types.is_floating(kind) else ''})::varchar"
            digested += f"'{number}:' || strlen({text}) || ':' || {text}, "
        # unlike a query of a registered table, a relation does not keep rows until the transaction ends
        selected = f"{key}, {part}, place, md5_number(concat({digested}''))"
        _interruptible(connection, lambda: connection.from_arrow(rows).project(selected).insert_into("keyed"))

    def _add_columns(self, names: Iterable[str]) -> None:
        for name in names:
            if name != ROWS and self._schema.get_field_index(name) < 0:
                self._schema = self._schema.append(self._reader.schema_of([name]).field(0))


def _interruptible(connection: DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Return the result of work in DuckDB, which Ctrl-C and Airflow's timeouts can interrupt.

    In the main thread, DuckDB would raise its own error instead of the error of the signal handler.
    """
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(work)
        try:
            return future.result()
        finally:
            while not future.done():
                # repeatedly, since an interrupt before the query begins is lost
                connection.interrupt()
                wait([future], timeout=0.1)


def in_duckdb(rows: pa.Table, connection: DuckDBPyConnection | None) -> DuckDBPyRelation:
    """Return a DuckDB relation of rows.

    :param connection: where the relation is created; None for a new connection, which shows times in UTC.
    """
    if connection is None:
        connection = duckdb.connect()
        connection.execute("set TimeZone = 'UTC'")
    return connection.from_arrow(rows)
