"""Reading landed rows with the manifest alone, without the service and without Airflow.

The manifest is read once, so later commits are not visible. If a later commit removes parts (``overwrite``),
reading them raises :class:`~airflow_provider_webcollect.landing.errors.LandingReplaced`.
"""

from __future__ import annotations

import bisect
import datetime
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_provider_webcollect.landing.errors import (
    DestinationUnreadable,
    ExtraMissing,
    LandingDamaged,
    LandingReplaced,
    NothingLanded,
    PartsMissing,
    RowsRewritten,
    UnreadableRow,
)
from airflow_provider_webcollect.landing.formats import require
from airflow_provider_webcollect.landing.formats.base import Row
from airflow_provider_webcollect.landing.formats.reading import PartReader, part_reader
from airflow_provider_webcollect.landing.keyed import KeyedRows, chosen_columns, in_duckdb, time_or_run
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    Manifest,
    Part,
    Run,
    SetApart,
    counted,
)
from airflow_provider_webcollect.landing.options import landing_at, make_load_options
from airflow_provider_webcollect.landing.profile import Profile, sum_of
from airflow_provider_webcollect.landing.storage.folder import Committed, Folder
from airflow_provider_webcollect.landing.tables.table import TableFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pandas
    import polars
    import pyarrow as pa
    from dlt.extract import DltResource
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from airflow_provider_webcollect.landing.options import WriteDisposition
    from airflow_provider_webcollect.landing.tables.table import Snapshot


def read_landing(path: Any, storage_options: Mapping[str, Any] | None = None) -> LandedData:
    """Read a landing's manifest.

    :param path: the landing's folder or its ``_manifest.json``: an absolute local path, a URL that fsspec
        supports (``s3://bucket/prices``), or an object with ``fs`` and ``path``, such as Airflow's
        ``ObjectStoragePath``; or a table of pyiceberg.
    :param storage_options: fsspec's options for the URL's filesystem, such as credentials.
    :raises NothingLanded: if there is no manifest.
    :raises DestinationUnreadable: if the manifest is incomplete, has a newer layout, or contradicts itself.
    :raises ExtraMissing: if the package for the URL's storage is not installed.
    :raises InvalidArgument: if ``path`` is not an absolute path, or not a URL that fsspec supports.
    """
    folder = landing_at(path, storage_options)
    if isinstance(folder, TableFolder):
        if (found := folder.read_table()) is None:
            raise NothingLanded(
                f"no landing has written to the table {folder.url} yet, or the path is another"
            )
        table, committed = found
        return LandedTable(folder, _checked(committed, folder), table)
    return _read(folder)


def _read(folder: Folder) -> LandedData:
    committed = folder.committed()
    if committed is None:
        where = f"{folder.fs.unstrip_protocol(folder.root)}/{MANIFEST}"
        raise NothingLanded(f"there is no {where}: nothing has landed there yet, or the path is another")
    return LandedData(folder, _checked(committed, folder))


def _checked(committed: Committed, folder: Folder) -> Manifest:
    if wrong := _contradiction(committed.manifest):
        raise DestinationUnreadable(f"the manifest of {folder.url} contradicts itself: {wrong}")
    return committed.manifest


class RunProfile(NamedTuple):
    """What the rows of one run hold.

    :ivar run_id: None for a run of long ago.
    :ivar finished_at: when it has committed, ISO 8601 in UTC; None where ``run_id`` is.
    """

    run_id: str | None
    finished_at: str | None
    rows: int
    profile: Profile


class LandedData:
    """A landing as described by its manifest; created by :func:`read_landing`.

    In all methods, ``new_only`` restricts reading to the parts whose rows a run reports: given its id
    (``new_only=run_id``), those of this run, none if it has found nothing new; given True, those of the last
    run that has found something new. All parts of a ``full`` landing are of one run.

    :ivar manifest: the landing's manifest.
    :ivar uri: the folder.
    :ivar fs: fsspec's filesystem of the storage, with which other tools can read :meth:`uris`.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self.manifest = manifest
        self.fs = folder.fs
        self.uri: str = folder.fs.unstrip_protocol(folder.root)
        self._folder = folder

    @property
    def identity(self) -> str:
        """What tells it from all other landings: its URI, and the account or endpoint that is not in it."""
        place = getattr(self.fs, "account_name", None) or getattr(self.fs, "endpoint_url", None)
        return f"{self.uri} at {place}" if place else self.uri

    def __repr__(self) -> str:
        parts = counted(len(self.manifest.parts), "part")
        return f"<LandedData {self.uri}: {self.manifest.rows} rows in {parts}>"

    def uris(self, new_only: bool | str = False) -> list[str]:
        """Return the URIs of the parts, in the order of their rows: ``s3://bucket/prices/part-….jsonl``.

        The scheme is fsspec's first one for the storage: ``s3``, ``gs``, ``abfs``, ``file``.

        :param new_only: only the parts of a run, see above.
        """
        return [f"{self.uri}/{part.name}" for part in self._readable(new_only)]

    def verify(self) -> None:
        """Read all parts and compare them with the manifest: presence, bytes, SHA-256 and number of rows.

        Parts are read one after another, a few megabytes at a time. Parts with a wrong size are not read.
        Quarantined rows are verified too: landed, quarantined and discarded rows are all of the source's.

        :raises LandingDamaged: listing all differences.
        :raises LandingReplaced: if another landing has replaced this one meanwhile.
        """
        problems = self._problems(self.manifest.parts, self._folder.files())
        for apart in self.manifest.quarantined:
            problems += self._quarantine_problems(apart)
        if problems:
            raise self._damage(problems)

    def profile(self, new_only: bool | str = False) -> Profile:
        """Return what the rows hold, column by column; nothing but the manifest is read.

        :param new_only: only the parts of a run, see above.
        """
        return sum_of(part.profile for part in self._parts(new_only))

    def profiles(self) -> list[RunProfile]:
        """Return what the rows of each run hold, in the order in which the runs have landed.

        Nothing but the manifest is read. The names and times of runs are known of the last thirty.
        """
        known = {record.run.short_digest(): record for record in self.manifest.history}
        of_runs: dict[str | None, list[Part]] = {}
        for part in self.manifest.parts:
            of_runs.setdefault(part.run, []).append(part)
        found = []
        for digest, parts in of_runs.items():
            record = known.get(digest or "")
            run_id, finished_at = (record.run.run_id, record.finished_at) if record else (None, None)
            rows, profile = sum(part.rows for part in parts), sum_of(part.profile for part in parts)
            found.append(RunProfile(run_id, finished_at, rows, profile))
        return found

    def iter_rows(self, new_only: bool | str = False) -> Iterator[Row]:
        """Yield the rows as dicts, in order, without loading whole parts into memory.

        Values of JSON lines are as the service sent them, and numbers that Python does not have (``1e400``,
        an integer of more than 4,300 digits) are texts; those of CSV are strings or None, and those of
        Parquet have their column's type. In JSON lines a row has only its own keys. In CSV, null is read as
        an empty string in parts that have a single column.

        :param new_only: only the parts of a run, see above.
        :raises LandingDamaged: if a part is missing or differs from the manifest; some of its rows may
            already have been yielded. Only :meth:`verify` shows whether a part still is what was written.
        :raises LandingReplaced: if another landing has replaced this one meanwhile.
        :raises UnreadableRow: naming part and row, if Python cannot read a row of JSON lines: it is nested
            too deeply (some hundred levels).
        :raises ExtraMissing: if the format or compression needs a package that is not installed.
        """
        reader = self._reader()
        for part in self._readable(new_only):
            yield from self._rows(reader, part)

    def to_arrow(self, new_only: bool | str = False) -> pa.Table:
        """Return the rows as one Arrow table, which must fit into memory.

        The columns are the manifest's, in its order, or, if it has none (JSON lines), all keys in order of
        appearance. Parquet columns have the types they were landed with. All columns of JSON lines and CSV
        are strings, as are those of Parquet without ``column_types``; other values (numbers, lists) become
        their JSON text. Missing values are null. Without parts, the table has the columns and no rows.

        :param new_only: only the parts of a run, see above.
        :raises LandingDamaged: in the same cases as :meth:`iter_rows`, which also lists the other errors.
        :raises ExtraMissing: if pyarrow (the extra ``parquet``) is not installed.
        """
        require("pyarrow", "parquet", "a table of Arrow")
        reader = self._reader()
        parts = self._readable(new_only)
        return reader.joined(table for part in parts for table in self._tables_of(reader, part))

    def to_duckdb(
        self, connection: DuckDBPyConnection | None = None, new_only: bool | str = False
    ) -> DuckDBPyRelation:
        """Return the rows as a DuckDB relation over the table of :meth:`to_arrow`.

        ``landed.to_duckdb().filter("city = 'Paris'")``, ``.query("prices", "select count(*) from prices")``.

        :param connection: where the relation is created, to join it with tables there; None for a new
            connection, which shows times in UTC.
        :param new_only: only the parts of a run, see above.
        :raises ExtraMissing: if duckdb or pyarrow (the extra ``duckdb``) is not installed; other errors as in
            :meth:`iter_rows`.
        """
        require("duckdb", "duckdb", "a relation of DuckDB")
        return in_duckdb(self.to_arrow(new_only), connection)

    def to_pandas(self, new_only: bool | str = False) -> pandas.DataFrame:
        """Return the rows as a data frame of pandas, with the columns of :meth:`to_arrow`.

        :param new_only: only the parts of a run, see above.
        :raises ExtraMissing: if pandas or pyarrow (the extra ``parquet``) is not installed; other errors as
            in :meth:`iter_rows`.
        """
        require("pandas", None, "a data frame of pandas")
        return self.to_arrow(new_only).to_pandas()

    def to_polars(self, new_only: bool | str = False) -> polars.DataFrame:
        """Return the rows as a data frame of polars, with the columns of :meth:`to_arrow`.

        :param new_only: only the parts of a run, see above.
        :raises ExtraMissing: if polars or pyarrow (the extra ``parquet``) is not installed; other errors as
            in :meth:`iter_rows`.
        """
        require("polars", None, "a data frame of polars")
        import polars

        return polars.DataFrame(self.to_arrow(new_only))

    def latest(
        self, key: str | Sequence[str], connection: DuckDBPyConnection | None = None
    ) -> DuckDBPyRelation:
        """Return the newest row of each key, as a DuckDB relation in the order of the landing.

        The newest row is the last one in the landing. Rows whose key is null in a column are left out. To the
        columns of :meth:`to_duckdb`, ``landed_at`` is added: when the row was committed. In relations of
        DuckDB, letter case does not tell columns apart: if the landing has a column of that name, the added
        one is called ``landed_at_1``. All rows are read, and must fit into memory, as in :meth:`to_arrow`.

        :param key: a column, or several that together identify what a row is about.
        :param connection: where the relation is created; None for a new connection, which shows times in UTC.
        :raises InvalidArgument: if ``key`` names no column, or one that the landing does not have. In JSON
            lines without any row no column is known, and the relation has those of the key.
        :raises ExtraMissing: if duckdb or pyarrow (the extra ``duckdb``) is not installed; other errors as in
            :meth:`iter_rows`.
        """
        return in_duckdb(self._keyed(key).latest(), connection)

    def changes(
        self,
        key: str | Sequence[str],
        since: datetime.datetime | str,
        connection: DuckDBPyConnection | None = None,
        compare: str | Sequence[str] | None = None,
    ) -> DuckDBPyRelation:
        """Return the newest row of each key that is new, or has other values than it had at a moment.

        What a key had is its last row in the parts that were committed until then. To the columns of
        :meth:`latest`, ``change`` is added before ``landed_at``: ``new`` or ``changed``. A key whose values
        have changed and changed back is left out. Arguments and errors that are not described here are as in
        :meth:`latest`.

        :param key: a column, or several that together identify what a row is about.
        :param since: the moment: a time with a zone, also as ISO 8601 text; or the id of a run, for the
            moment before its first rows, so that what the run has landed counts. If the run has found nothing
            new, nothing is returned.
        :param connection: where the relation is created; None for a new connection, which shows times in UTC.
        :param compare: the columns that count as values; None for all. Leave out the ones that differ from
            row to row, such as the time of the collection.
        :raises InvalidArgument: also if ``since`` is a time without a zone, or ``compare`` names a column
            that the landing does not have.
        """
        moment = time_or_run("since", since)
        return in_duckdb(self._keyed(key, compare).changes(self._rows_before(moment)), connection)

    def history(
        self,
        key: str | Sequence[str],
        connection: DuckDBPyConnection | None = None,
        compare: str | Sequence[str] | None = None,
    ) -> DuckDBPyRelation:
        """Return a row for each period in which a key had the same values.

        Consecutive rows of a key with equal values are one period, for which the first of them stands. To the
        columns of :meth:`to_duckdb`, ``valid_from`` is added, when that row was committed, and ``valid_to``,
        when the first row of the next period was; null for the current one. If both were committed at once,
        these times are equal. Periods are in the order of the landing. Errors are those of :meth:`latest`,
        and of :meth:`changes` for ``compare``.

        :param key: a column, or several that together identify what a row is about.
        :param connection: where the relation is created; None for a new connection, which shows times in UTC.
        :param compare: the columns that count as values; None for all.
        """
        return in_duckdb(self._keyed(key, compare).history(), connection)

    def tables_of(self, part: Part) -> Iterator[pa.Table]:
        """Yield the rows of a part as Arrow tables, some megabytes at a time, typed as in :meth:`to_arrow`.

        A table has the columns that are known so far, and may have one without a value whose name begins
        with a zero byte.

        :param part: one of the manifest's.
        :raises LandingDamaged: in the same cases as :meth:`iter_rows`, which also lists the other errors.
        """
        require("pyarrow", "parquet", "a table of Arrow")
        yield from self._tables_of(self._reader(), part)

    def to_dlt(
        self,
        primary_key: str | Sequence[str] | None = None,
        write_disposition: WriteDisposition | None = None,
        name: str | None = None,
    ) -> DltResource:
        """Return the parts that a destination does not have yet as a resource for a pipeline of dlt.

        ``pipeline.run(read_landing("s3://bucket/prices").to_dlt())``. Which parts are loaded is kept in dlt's
        state of the resource. See :mod:`airflow_provider_webcollect.landing.loading` for what each write
        disposition does and needs.

        :param primary_key: the columns of the key, for ``merge``.
        :param write_disposition: ``append``, ``merge``, ``replace`` or ``scd2``; None for ``merge`` with a
            key, and ``append`` without.
        :param name: of the resource and its table; None for the last segment of the landing's path.
        :raises InvalidArgument: if key and write disposition do not go together.
        :raises ExtraMissing: if dlt or pyarrow (the extra ``dlt``) is not installed.
        """
        from airflow_provider_webcollect.landing.loading import NewParts

        options = make_load_options(write_disposition or ("merge" if primary_key else "append"), primary_key)
        return NewParts(self, options).resource(name or self.uri.rpartition("/")[2], by_row=True)

    def _keyed(self, key: object, compare: object = None) -> KeyedRows:
        require("duckdb", "duckdb", "a relation of DuckDB")
        chosen_columns(key, compare, self.manifest.columns)  # before anything is read
        return KeyedRows(self.to_arrow(), self._landed_at(), key, compare)

    def _landed_at(self) -> pa.ChunkedArray:
        """Return when each row was committed."""
        import pyarrow as pa

        kind = pa.timestamp("us", "UTC")
        times = zip(self.manifest.parts, self._part_times(), strict=True)
        return pa.chunked_array([pa.repeat(pa.scalar(time, kind), part.rows) for part, time in times], kind)

    def _part_times(self) -> list[datetime.datetime]:
        """Return when each was committed; none before an earlier one, whatever the hosts' clocks say."""
        times = [datetime.datetime.fromisoformat(str(part.landed_at)) for part in self.manifest.parts]
        return list(itertools.accumulate(times, max))

    def _rows_before(self, moment: datetime.datetime | str) -> int:
        """Return how many rows there were at a time, or before the first rows of a run."""
        parts = self.manifest.parts
        if isinstance(moment, str):
            digits = self._run(moment).short_digest()
            count = next((index for index, part in enumerate(parts) if part.run == digits), len(parts))
        else:
            count = bisect.bisect_right(self._part_times(), moment)
        return sum(part.rows for part in parts[:count])

    def _quarantine_problems(self, apart: SetApart) -> list[str]:
        assert apart.folder is not None
        inside = self._folder.inside(apart.folder)
        try:
            landed = _read(inside)
            if landed.manifest.rows != apart.rows:
                return [f"{apart.folder} has {landed.manifest.rows} rows instead of {apart.rows}"]
            landed.verify()
        except NothingLanded:
            return [f"{apart.folder}/{MANIFEST} is missing"]
        except LandingDamaged as damage:
            return [f"{apart.folder}/{problem}" for problem in damage.problems]
        return []

    def _problems(self, parts: Iterable[Part], sizes: Mapping[str, int]) -> list[str]:
        """Return how parts differ from the manifest.

        :param sizes: bytes of the files that are there, by name.
        """
        return [
            f"{part.name} {problem}"
            for part in parts
            if (problem := self._problem(part, sizes.get(part.name)))
        ]

    def _parts(self, new_only: bool | str) -> Sequence[Part]:
        return self.manifest.new(self._run(new_only)) if _is_of_run(new_only) else self.manifest.parts

    def _readable(self, new_only: bool | str) -> Sequence[Part]:
        """Return the parts whose files are to be read."""
        return self._parts(new_only)

    def _run(self, new_only: bool | str) -> Run:
        run = self.manifest.run
        return msgspec.structs.replace(run, run_id=new_only) if isinstance(new_only, str) else run

    def _reader(self) -> PartReader:
        manifest = self.manifest
        types = manifest.encoding.get("column_types") or {}
        reader = part_reader(manifest.format, manifest.compression, manifest.columns or (), types)
        if reader is None:
            raise DestinationUnreadable(
                f"{self.uri} is of the format {manifest.format!r}, which this version cannot read"
            )
        return reader

    def _rows(self, reader: PartReader, part: Part) -> Iterator[Row]:
        count = 0
        try:
            with self._folder.opened(part.name) as file:
                for row in reader.rows(file):
                    count += 1
                    yield row
        except Exception as error:
            self._raise_if_damaged(part, error)
            if isinstance(error, UnreadableRow):
                raise UnreadableRow(f"row {count + 1} of {self.uri}/{part.name}: {error}") from error
            raise
        self._compare(part, count)

    def _tables_of(self, reader: PartReader, part: Part) -> Iterator[pa.Table]:
        count = 0
        try:
            with self._folder.opened(part.name) as file:
                for table in reader.tables(file):
                    count += table.num_rows
                    yield table
        except (UnreadableRow, RecursionError) as error:
            # reading row by row finds the row to name in the error
            deque(self._rows(reader, part), maxlen=0)
            raise UnreadableRow(f"a row of {self.uri}/{part.name} cannot be read: {error}") from error
        except Exception as error:
            self._raise_if_damaged(part, error)
            raise
        self._compare(part, count)

    def _compare(self, part: Part, rows: int) -> None:
        if rows != part.rows:
            problem = self._found_problem(part) or f"has {rows} rows instead of {part.rows}"
            raise self._damage([f"{part.name} {problem}"])

    def _raise_if_damaged(self, part: Part, error: Exception) -> None:
        """Raise :class:`LandingDamaged` if the part differs from the manifest, which explains the error."""
        if isinstance(error, ExtraMissing):
            return
        if problem := self._found_problem(part):
            raise self._damage([f"{part.name} {problem}"]) from error

    def _found_problem(self, part: Part) -> str | None:
        return self._problem(part, self._folder.files().get(part.name))

    def _problem(self, part: Part, size: int | None) -> str | None:
        """Return how a part differs from the manifest; None if it does not.

        :param size: size of its file; None if there is no file.
        """
        if size is None:
            return "is missing"
        if size != part.bytes:
            return f"has {size} bytes instead of {part.bytes}"
        try:
            with self._folder.opened(part.name) as file:
                rows = self._reader().count(file, part.sha256)
        except PartsMissing:  # it was deleted since the files were listed
            return "is missing"
        if rows is None:
            return f"does not have the SHA-256 {part.sha256}"
        return None if rows == part.rows else f"has {rows} rows instead of {part.rows}"

    def _damage(self, problems: Sequence[str]) -> LandingDamaged | LandingReplaced:
        where = f"{self.uri}/{MANIFEST}"
        committed = self._folder.committed()
        if committed is None or committed.manifest.parts != self.manifest.parts:
            return LandingReplaced(
                f"{where} was replaced since it was read, and {problems[0]}; read it again"
            )
        return LandingDamaged(where, problems)


class LandedTable(LandedData):
    """A landing that is a table, as it was when it was read; created by :func:`read_landing`.

    Others may rewrite the table's files, for example to compact them, or to delete rows, or add rows. All
    rows are read from the table then, in its own order. What needs the parts as they were landed raises
    :class:`.RowsRewritten`: the rows of one run, and the order of rows.
    """

    _folder: TableFolder

    def __init__(self, folder: TableFolder, manifest: Manifest, snapshot: Snapshot) -> None:
        super().__init__(folder, manifest)
        self._snapshot = snapshot

    def uris(self, new_only: bool | str = False) -> list[str]:
        """Return the URIs of the table's files, or of a run's parts.

        :param new_only: as for a folder.
        :raises RowsRewritten: if others have rewritten these parts.
        """
        if _is_of_run(new_only) or not self._is_rewritten():
            return super().uris(new_only)
        # a file that is elsewhere is named by its address
        return [name if "://" in name else f"{self.uri}/{name}" for name in self._files()]

    def iter_rows(self, new_only: bool | str = False) -> Iterator[Row]:
        if _is_of_run(new_only) or not self._is_rewritten():
            yield from super().iter_rows(new_only)
            return
        batches = self._snapshot.batches(self._columns())
        while (batch := self._folder.call("read", lambda: next(batches, None))) is not None:
            yield from batch.to_pylist()

    def to_arrow(self, new_only: bool | str = False) -> pa.Table:
        if _is_of_run(new_only) or not self._is_rewritten():
            return super().to_arrow(new_only)
        return self._folder.call("read", lambda: self._snapshot.to_arrow(self._columns()))

    def verify(self) -> None:
        """Compare the table's parts with the manifest; of files that others have written, check the size.

        :raises LandingDamaged: listing all differences.
        """
        sizes, files = self._folder.all_files(), self._files()
        problems = self._problems((part for part in self.manifest.parts if part.name in files), sizes)
        parts = {part.name for part in self.manifest.parts}
        problems += [
            f"{name} is missing or not {size} bytes long"
            for name, size in files.items()
            if name not in parts and "://" not in name and sizes.get(name) != size
        ]
        for apart in self.manifest.quarantined:
            problems += self._quarantine_problems(apart)
        if problems:
            raise self._damage(problems)

    def to_duckdb(
        self, connection: DuckDBPyConnection | None = None, new_only: bool | str = False
    ) -> DuckDBPyRelation:
        """Return the rows as a DuckDB relation, as for a folder.

        It has the columns of the partition too, unlike the rows of one run.

        :param connection: as for a folder.
        :param new_only: as for a folder.
        """
        if _is_of_run(new_only):
            return super().to_duckdb(connection, new_only)
        require("duckdb", "duckdb", "a relation of DuckDB")
        # not over the dataset: for DuckDB, pyarrow's `Scanner.to_reader` waits, with Python's lock, for files
        # that a thread opens by Python, which can then wait forever
        return in_duckdb(self._folder.call("read", self._snapshot.to_arrow), connection)

    def tables_of(self, part: Part) -> Iterator[pa.Table]:
        """Yield the rows of a part as for a folder.

        :raises RowsRewritten: if others have rewritten it.
        """
        self._refuse_rewritten([part])
        yield from super().tables_of(part)

    def _readable(self, new_only: bool | str) -> Sequence[Part]:
        parts = super()._readable(new_only)
        self._refuse_rewritten(parts)
        return parts

    def _refuse_rewritten(self, parts: Iterable[Part]) -> None:
        whole = self._folder.call("read", lambda: self._snapshot.whole_files)
        if gone := next((part for part in parts if part.name not in whole), None):
            raise RowsRewritten(
                f"others have rewritten {gone.name} of the table {self.uri}, or deleted rows of it: its rows "
                "can be read with all others alone, and not in their order"
            )

    def _keyed(self, key: object, compare: object = None) -> KeyedRows:
        # which row of a key is the latest, their order tells
        self._refuse_rewritten(self.manifest.parts)
        if self._is_rewritten():
            raise RowsRewritten(
                f"the table {self.uri} has rows of others, whose place among those that have landed is not "
                "known"
            )
        return super()._keyed(key, compare)

    def _damage(self, problems: Sequence[str]) -> LandingDamaged | LandingReplaced:
        now = self._folder.snapshot()
        if now is None or now.files.keys() != self._snapshot.files.keys():
            return LandingReplaced(
                f"the table {self.uri} has changed since it was read, and {problems[0]}; read it again"
            )
        return LandingDamaged(self.uri, problems)

    def _is_rewritten(self) -> bool:
        names = {part.name for part in self.manifest.parts}
        whole = self._folder.call("read", lambda: self._snapshot.whole_files)
        return names != self._files().keys() or not names.issubset(whole)

    def _files(self) -> Mapping[str, int]:
        return self._folder.call("read", lambda: self._snapshot.files)

    def _columns(self) -> list[str]:
        return list(self.manifest.columns or ())


def _is_of_run(new_only: bool | str) -> bool:
    """Return whether the rows of a run are asked for; an empty id is that of a run without rows."""
    return bool(new_only) or isinstance(new_only, str)


def _contradiction(manifest: Manifest) -> str | None:
    """Return how a manifest contradicts itself; None if it does not."""
    parts = manifest.parts
    for name in ("rows", "bytes"):
        whole, summed = getattr(manifest, name), sum(getattr(part, name) for part in parts)
        if whole != summed:
            return f"it has {whole} {name}, and its parts {summed}"
    if manifest.source_rows != manifest.total:
        return (
            f"it has {manifest.source_rows} of the source's rows, with those that were set apart, and the "
            f"source {manifest.total}"
        )
    if not 0 <= manifest.new_parts <= len(parts):
        return f"{manifest.new_parts} of its {len(parts)} parts are new"
    if len({part.name for part in parts}) < len(parts):
        return "it lists a part twice"
    return None
