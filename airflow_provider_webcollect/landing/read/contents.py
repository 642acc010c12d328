"""Reading landed rows: parts by commit and run, and rows as dicts, tables and profiles.

The commits are read once, so later commits are not visible. A landing that begins again (``overwrite``) keeps
the parts that it replaces until it begins again once more, so that readers can finish. Reading parts that no
longer exist raises :class:`~airflow_provider_webcollect.landing.errors.LandingReplaced`.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import functools
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.checks import Number
from airflow_provider_webcollect.landing.errors import (
    CastFailed,
    DestinationUnreadable,
    LandingDamaged,
    LandingReplaced,
    NoColumns,
    PartsMissing,
    UnreadableRow,
)
from airflow_provider_webcollect.landing.formats import chosen_columns, require
from airflow_provider_webcollect.landing.formats.profile import Profile, sum_of
from airflow_provider_webcollect.landing.formats.reading import (
    FIRST_BYTES,
    PartReader,
    SingleRows,
    part_reader,
)
from airflow_provider_webcollect.landing.formats.types import made_of
from airflow_provider_webcollect.landing.formats.writing import Columns
from airflow_provider_webcollect.landing.log.commits import MOST_RECORDS, counted, may_lack_commits
from airflow_provider_webcollect.landing.options import LoadOptions
from airflow_provider_webcollect.landing.read.gone import DatedPart, dated_parts, times_of
from airflow_provider_webcollect.landing.read.gone import whole_runs as whole_runs_of
from airflow_provider_webcollect.landing.storage.commit_log import CommitLog
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pandas
    import polars
    import pyarrow as pa
    from dlt.extract import DltResource
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from airflow_provider_webcollect.landing.formats.types import ColumnType, ProposedType
    from airflow_provider_webcollect.landing.formats.writing import Row
    from airflow_provider_webcollect.landing.log.commits import Commit, Manifest, Part, Run
    from airflow_provider_webcollect.landing.options import OnMissingKey, WriteDisposition
    from airflow_provider_webcollect.landing.read.keyed import KeyedRows
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)

#: Number of runs that are named if an unknown run id is requested.
_SHOWN_RUNS = 5


class RunProfile(NamedTuple):
    """The contents of one run's rows, column by column.

    :ivar finished_at: when the run committed the rows, as ISO 8601 in UTC; the time of the last commit if
        there are several.
    :ivar rows: the number of rows.
    """

    run_id: str
    finished_at: str
    rows: int
    profile: Profile


class LandedData:
    """The rows of a landing, for pandas, polars, DuckDB, dlt or your own code.

    It is created by :func:`~.landing.reader.read_landing`, and shows the rows that had landed by then. In all
    methods, ``new_only`` and ``since`` restrict reading to some parts, and exclude each other:

    * ``new_only``: with the id of a run (``new_only=run_id``), only the parts that the run has landed, in any
      of its tasks; none if it has found nothing new. A landing does not know a run without new rows, so then
      a warning in the log names the runs that it knows. With True, only the parts of the last run that has
      landed rows. To find the parts of a run that is not among the last thirty, all commits are read.
    * ``since``: the number of a commit, 0 for the beginning; only the parts of later commits. A loader that
      stores the manifest's ``commit`` with the loaded rows, and passes it next time, misses no part. If the
      landing has begun again since (``first_commit`` is later), these are all of its parts.
      :class:`.InvalidArgument` is raised for a number that the landing does not have: it belongs to an
      earlier landing at the same place.

    :ivar manifest: the state after the commits, as in ``_manifest.json``.
    :ivar column_types: the types of columns, for tables; other columns are strings.
    :ivar uri: the URI of the folder.
    :ivar fs: fsspec's filesystem of the storage, with which other tools can read :meth:`uris`.
    """

    def __init__(self, folder: Folder, manifest: Manifest, *, raw: bool = False) -> None:
        self.manifest = manifest
        is_text = raw and not manifest.has_typed_files
        self.column_types: Mapping[str, ColumnType] = {} if is_text else manifest.column_types
        self.fs = folder.fs
        self.uri: str = folder.fs.unstrip_protocol(folder.root)
        self._folder = folder
        self._log = CommitLog(folder)
        self._where = f"{self.uri}/{MANIFEST}"

    @property
    def identity(self) -> str:
        """A unique name of the landing: the URI, and an account or endpoint that is not in the URI."""
        place = getattr(self.fs, "account_name", None) or getattr(self.fs, "endpoint_url", None)
        return f"{self.uri} at {place}" if place else self.uri

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns of the rows as a table; for JSON lines without fixed columns, the counted columns."""
        columns = Columns(made=made_of(self.column_types))
        columns.add(self.manifest.columns or self.manifest.profile.columns)
        return columns.names

    def __repr__(self) -> str:
        parts = counted(self.manifest.part_count, "part")
        return f"<LandedData {self.uri}: {self.manifest.rows} rows in {parts}>"

    def parts(self, new_only: bool | str = False, *, since: int | None = None) -> Sequence[Part]:
        """Return the parts, in the order of their rows.

        :param new_only: only the parts of a run, see above.
        :param since: only the parts of later commits, see above.
        """
        numbers = self._chosen(new_only, since)
        return self._all_parts if numbers is None else self._parts_of(numbers)

    def uris(self, new_only: bool | str = False, *, since: int | None = None) -> list[str]:
        """Return the URIs of the parts, in the order of their rows: ``s3://bucket/prices/part-….jsonl``.

        The scheme is fsspec's first one for the storage: ``s3``, ``gs``, ``abfs``, ``file``.

        :param new_only: only the parts of a run, see above.
        :param since: only the parts of later commits, see above.
        """
        return [f"{self.uri}/{part.name}" for part in self.parts(new_only, since=since)]

    def verify(self) -> None:
        """Read all parts and compare them with the manifest: presence, bytes, SHA-256 and number of rows.

        Parts are read one after another, a few megabytes at a time. Parts with a wrong size are not read.
        Quarantined rows are verified too: landed, quarantined and discarded rows together are all rows of the
        source.

        :raises LandingDamaged: if parts differ from the manifest; ``problems`` lists all differences.
        :raises LandingReplaced: if another landing has deleted parts of this one meanwhile.
        """
        parts = (*self._all_parts, *self._quarantined_parts())
        self._raise(self._problems(parts, self._folder.files()))

    def profile(self, new_only: bool | str = False, *, since: int | None = None) -> Profile:
        """Return the contents of the rows by column, as counted when they were landed; no part is read.

        The profile of all rows is in the manifest; for fewer rows, their commits are read.

        :param new_only: only the parts of a run, see above.
        :param since: only the parts of later commits, see above.
        """
        numbers = self._chosen(new_only, since)
        if numbers is None:
            return self.manifest.profile
        return sum_of(part.profile for commit in self._commits(numbers) for part in commit.parts)

    def profiles(self) -> list[RunProfile]:
        """Return the contents of each run's rows, in the order in which the runs have landed.

        All commits of the landing are read, and no part.
        """
        commits_of: dict[Run, list[Commit]] = {}
        for commit in self._commits(self._numbers):
            commits_of.setdefault(commit.run, []).append(commit)
        return [
            RunProfile(
                run.run_id,
                commits[-1].finished_at,
                sum(commit.rows for commit in commits),
                sum_of(part.profile for commit in commits for part in commit.parts),
            )
            for run, commits in commits_of.items()
        ]

    def commits(self, since: int) -> Iterator[Commit]:
        """Yield, in order, the commits that have landed parts: of the last thirty runs, and all later ones.

        :param since: the number of a commit; all later commits are yielded.
        """
        recent = {number for record in self.manifest.history for number in record.commits}
        yield from self._commits({number for number in self._numbers if number > since} | recent)

    def iter_rows(self, new_only: bool | str = False, *, since: int | None = None) -> Iterator[Row]:
        """Yield the rows as dicts, in order, without loading whole parts into memory.

        Values of JSON lines are as the service sent them, and numbers that Python does not have (``1e400``,
        an integer of more than 4,300 digits) are texts; values of CSV are strings or None, and values of
        Parquet have their column's type. In JSON lines a row has only its own keys. In CSV, null is read as
        an empty string in parts that have a single column.

        :param new_only: only the parts of a run, see above.
        :param since: only the parts of later commits, see above.
        :raises LandingDamaged: if a part is missing or differs from the manifest; some of its rows may
            already have been yielded. Only :meth:`verify` detects every change of a part.
        :raises LandingReplaced: if another landing has deleted parts of this one meanwhile.
        :raises UnreadableRow: naming part and row, if Python cannot read a row of JSON lines: it is nested
            too deeply (some hundred levels).
        :raises ExtraMissing: if the format or compression needs a package that is not installed.
        """
        for part in self.parts(new_only, since=since):
            yield from self._rows(part)

    def first_rows(self, count: int) -> list[Row]:
        """Return the first rows of the last run that has landed rows.

        Little more than these rows is read: of JSON lines and CSV, 64 KB at first; of Parquet, a row group of
        at most 16 MB before compression.

        :param count: maximum number of rows.
        :raises LandingDamaged: if a part is missing; other errors as in :meth:`iter_rows`.
        """
        parts = self.parts(new_only=True)
        rows = (row for part in parts for row in self._rows(part, FIRST_BYTES))
        return list(itertools.islice(rows, count))

    def reasons(self) -> Iterator[list[str]]:
        """Yield, for each row in the order of :meth:`iter_rows`, the names of the rules that it has broken.

        The names, such as ``columns.price.pattern``, are known for rows that are quarantined one by one
        (``checks["rows"]["max_wrong"]``). For other rows the list is empty: for landed rows, and for rows
        that are quarantined because their run has failed its checks.

        :raises PartsMissing: if a file of quarantined rows is missing, or is not what was written.
        """
        for part in self.parts():
            if part.broke:
                yield from ([*single.broke] for single in self._folder.single_rows(part))
            else:
                yield from ([] for _ in range(part.rows))

    def propose_types(self, share: float = 1.0) -> list[ProposedType]:
        """Return types that ``column_types`` may declare for the texts of each column.

        A type is proposed if the texts fit it in exactly one reading. If there are several, for example if
        each date may be 3 April or 4 March, or 1.234 may have thousands or decimals, the readings are
        returned instead. Numbers with leading zeros stay texts, and bases of URLs are not guessed. All rows
        are read, some megabytes at a time.

        :param share: the minimum share of the texts that must fit, 0.5 to 1; 1 by default.
        :return: an entry for each column of texts, in order; columns that have a type in their files are left
            out.
        :raises InvalidArgument: if ``share`` is not a number from 0.5 to 1.
        :raises ExtraMissing: if pyarrow or Babel (the extras ``parquet`` and ``locale``) is not installed;
            other errors as in :meth:`iter_rows`.
        """
        least = Number(" from 0.5 to 1", low=0.5, high=1)("share", share)
        require("pyarrow", "parquet", "proposing types")
        require("babel", "locale", "proposing types")
        from airflow_provider_webcollect.landing.read.proposals import propose

        source = self if self.manifest.has_typed_files else LandedData(self._folder, self.manifest, raw=True)
        tables = (table for part in source.parts() for table in source.tables_of(part))
        return propose(tables, least, bool(self.manifest.encoding.get("sanitize_formulas")))

    def to_arrow(self, new_only: bool | str = False, *, since: int | None = None) -> pa.Table:
        """Return the rows as one Arrow table, which must fit into memory.

        The columns are the manifest's, in its order, or, if it has none (JSON lines), all keys in order of
        appearance. They have the types of ``column_types``; other columns are strings, and values that are
        not texts (numbers, lists) become their JSON text. Missing values are null. Without parts, the table
        has the columns and no rows.

        :param new_only: only the parts of a run, see above.
        :param since: only the parts of later commits, see above.
        :raises CastFailed: naming part and row, if a text of JSON lines or CSV does not fit its type, unless
            ``on_cast_error`` is ``null``.
        :raises LandingDamaged: in the same cases as :meth:`iter_rows`, which also lists the other errors.
        :raises ExtraMissing: if pyarrow (the extra ``parquet``) is not installed.
        """
        parts = self.parts(new_only, since=since)
        require("pyarrow", "parquet", "a table of Arrow")
        table = self._reader.joined(table for part in parts for table in self.tables_of(part))
        # if no part of JSON lines was read, the table has the columns of the whole landing
        return table if table.num_columns else self._reader.schema_of(self.table_columns).empty_table()

    def to_duckdb(
        self,
        connection: DuckDBPyConnection | None = None,
        new_only: bool | str = False,
        *,
        since: int | None = None,
    ) -> DuckDBPyRelation:
        """Return the rows as a DuckDB relation over the table of :meth:`to_arrow`.

        For table formats, the relation of all rows also has the partition columns.

        Examples: ``landed.to_duckdb().filter("city = 'Paris'")``;
        ``landed.to_duckdb().query("prices", "select count(*) from prices")``.

        :param connection: where the relation is created, to join it with tables there; None for a new
            connection, which shows times in UTC.
        :param new_only: only the parts of a run, see above.
        :param since: only the parts of later commits, see above.
        :raises ExtraMissing: if duckdb or pyarrow (the extra ``duckdb``) is not installed; other errors as in
            :meth:`iter_rows`.
        :raises NoColumns: if neither rows nor ``columns`` of the landing name a column.
        """
        require("duckdb", "duckdb", "a relation of DuckDB")
        from airflow_provider_webcollect.landing.read.keyed import in_duckdb

        return in_duckdb(self._for_duckdb(new_only, since), connection)

    def _for_duckdb(self, new_only: bool | str, since: int | None) -> pa.Table:
        table = self.to_arrow(new_only, since=since)
        if not table.column_names:
            raise NoColumns(
                f"the rows of {self.uri} have no columns yet, and DuckDB has no table without columns: query "
                "them again when rows have landed"
            )
        return table

    def to_pandas(self, new_only: bool | str = False, *, since: int | None = None) -> pandas.DataFrame:
        """Return the rows as a data frame of pandas, with the columns of :meth:`to_arrow`.

        Columns of ``int64`` become columns of the pandas type ``Int64``, which holds nulls. The pandas type
        ``int64`` does not: with nulls, its numbers would become floats, which do not hold large integers.

        :param new_only: only the parts of a run, see above.
        :param since: only the parts of later commits, see above.
        :raises ExtraMissing: if pandas or pyarrow (the extra ``parquet``) is not installed; other errors as
            in :meth:`iter_rows`.
        """
        require("pandas", None, "a data frame of pandas")
        table = self.to_arrow(new_only, since=since)
        import pandas
        import pyarrow as pa

        return table.to_pandas(types_mapper={pa.int64(): pandas.Int64Dtype()}.get)

    def to_polars(self, new_only: bool | str = False, *, since: int | None = None) -> polars.DataFrame:
        """Return the rows as a data frame of polars, with the columns of :meth:`to_arrow`.

        :param new_only: only the parts of a run, see above.
        :param since: only the parts of later commits, see above.
        :raises ExtraMissing: if polars or pyarrow (the extra ``parquet``) is not installed; other errors as
            in :meth:`iter_rows`.
        """
        require("polars", None, "a data frame of polars")
        import polars

        table = self.to_arrow(new_only, since=since)
        # from a whole table, polars would rename a column whose name is empty
        return polars.DataFrame({name: polars.from_arrow(table[name]) for name in table.column_names})

    def latest(
        self, key: str | Sequence[str], connection: DuckDBPyConnection | None = None
    ) -> DuckDBPyRelation:
        """Return the newest row of each key, as a DuckDB relation in the order of the landing.

        The newest row is the last one in the landing. Rows with null or a blank text in a column of the key
        are left out. The relation has the columns of :meth:`to_duckdb` and ``landed_at``, the time when the
        row was committed. If the landing already has a column of that name, in any letter case, the added one
        is called ``landed_at_1``.

        All rows are read, and the returned rows a second time; the returned rows must fit into memory. DuckDB
        takes another 512 MB of memory and, for each row, about 40 bytes and the key in the temporary folder.

        :param key: a column, or several that together identify what a row is about.
        :param connection: where the relation is created; None for a new connection, which shows times in UTC.
        :raises InvalidArgument: if ``key`` names no column, or one that the landing does not have. For JSON
            lines without any row, no column is known, and the relation has the columns of the key.
        :raises ExtraMissing: if duckdb or pyarrow (the extra ``duckdb``) is not installed; other errors as in
            :meth:`iter_rows`.
        """
        return self._keyed(self._dated_parts(), key).latest(connection)

    def changes(
        self,
        key: str | Sequence[str],
        since: int | datetime.datetime | str,
        connection: DuckDBPyConnection | None = None,
        compare: str | Sequence[str] | None = None,
        whole_runs: bool = False,
    ) -> DuckDBPyRelation:
        """Return the changes since a moment: the newest row of each key that is new or has other values.

        The former values of a key are in its last row that was committed by that moment. The relation has the
        columns of :meth:`latest` and, before ``landed_at``, ``change``, which is ``new`` or ``changed``. A
        key whose values have changed and changed back is left out. Arguments and errors that are not
        described here are as in :meth:`latest`.

        With ``whole_runs``, ``change`` may also be ``gone``, for example for products that a site no longer
        offers. At that moment, a gone key had a row in the newest whole run or in later rows; now, it has
        none in the newest whole run or in later rows. The returned row is the key's last one, and
        ``landed_at`` is when the first whole run without the key was committed. A key that is back is
        ``new``. Rows from before the newest whole run do not count.

        A run is whole if all its rows have landed. A run is not whole while rows of it are quarantined, or
        more inputs are missing than its check accepts; once some of its rows were discarded; or if checks
        have failed with ``on_failed_checks="warn"``. Accepted rows count as passed. A run that was
        interrupted, or found nothing new, has landed nothing. Rows that ``overwrite`` or ``on_reset="full"``
        has replaced are not known any more: then all keys are new.

        :param key: a column, or several that together identify what a row is about.
        :param since: the moment: the number of a commit, 0 for the beginning; or a time with a zone, also as
            ISO 8601 text; or the id of a run, for the moment before its first rows, so that the run's own
            rows count as changes. If the run has found nothing new, no row is returned.
        :param connection: where the relation is created; None for a new connection, which shows times in UTC.
        :param compare: the columns that count as values; None for all. Leave out columns that differ in every
            row, such as the time of the collection.
        :param whole_runs: whether each run of the landing has collected everything, in one or more
            collections; False by default. The landing cannot know that: land once a collection has finished,
            and let ``checks`` refuse runs with too few rows.
        :raises InvalidArgument: also if ``since`` is a commit that the landing does not have, or a time
            without a zone, or ``compare`` names a column that the landing does not have.
        """
        is_whole = arguments.boolean("whole_runs", whole_runs)
        return self._keyed(self._dated_parts(since, is_whole), key, compare).changes(connection)

    def count_changes(self, key: str | Sequence[str], run_id: str) -> dict[str, int] | None:
        """Return how many keys are new, changed or gone in a run, compared with the whole run before it.

        This is for landings where each run collects everything. The rows of two runs are read.

        :param key: a column, or several that together identify what a row is about.
        :param run_id: the id of the run.
        :return: the numbers of keys that are ``new``, ``changed`` and ``gone``; all are new in the first
            whole run. None if the run is not whole, see :meth:`changes`, or is not among the last thirty that
            have landed rows.
        :raises InvalidArgument: if ``key`` names no column, or one that the landing does not have.
        :raises ExtraMissing: if duckdb or pyarrow (the extra ``duckdb``) is not installed; other errors as in
            :meth:`iter_rows`.
        """
        runs = whole_runs_of(list(self.commits(self.manifest.commit)), self.manifest.set_apart)
        index = next((index for index, run in enumerate(runs) if run.run_id == run_id), None)
        if index is None:
            return None
        run = runs[index]
        before = runs[index - 1].parts if index else ()
        parts = [DatedPart(part, run.ended_at, is_before=True, gone_at=run.ended_at) for part in before]
        parts += [DatedPart(part, run.ended_at, is_before=False, gone_at=None) for part in run.parts]
        return self._keyed(parts, key).counts()

    def history(
        self,
        key: str | Sequence[str],
        connection: DuckDBPyConnection | None = None,
        compare: str | Sequence[str] | None = None,
    ) -> DuckDBPyRelation:
        """Return a row for each period in which a key had the same values.

        Consecutive rows of a key with equal values are one period, represented by the first of them. The
        relation has the columns of :meth:`to_duckdb`, ``valid_from``, the time when that row was committed,
        and ``valid_to``, the time when the first row of the next period was committed; null for the current
        period. If both were committed at once, these times are equal. Periods are in the order of the
        landing. Errors are as in :meth:`latest`, and for ``compare`` as in :meth:`changes`.

        :param key: a column, or several that together identify what a row is about.
        :param connection: where the relation is created; None for a new connection, which shows times in UTC.
        :param compare: the columns that count as values; None for all.
        """
        return self._keyed(self._dated_parts(), key, compare).history(connection)

    def tables_of(self, part: Part) -> Iterator[pa.Table]:
        """Yield the rows of a part as Arrow tables, some megabytes at a time, typed as in :meth:`to_arrow`.

        A table has the columns that are known so far. It may have another column, without values, whose name
        begins with a zero byte.

        :param part: one of :meth:`parts`.
        :raises LandingDamaged: in the same cases as :meth:`iter_rows`, which also lists the other errors.
        """
        require("pyarrow", "parquet", "a table of Arrow")
        count = 0
        try:
            with self._opened(part) as file:
                for table in self._reader_of(part).tables(file):
                    count += table.num_rows
                    yield table
        except CastFailed as error:
            raise CastFailed(f"{self.uri}/{part.name}: {error}") from error
        except (UnreadableRow, RecursionError) as error:
            # reading row by row finds the row to name in the error
            deque(self._rows(part), maxlen=0)
            raise UnreadableRow(f"a row of {self.uri}/{part.name} cannot be read: {error}") from error
        self._compare(part, count)

    def to_dlt(
        self,
        primary_key: str | Sequence[str] | None = None,
        write_disposition: WriteDisposition | None = None,
        name: str | None = None,
        *,
        since: int | None = None,
        on_missing_key: OnMissingKey = "fail",
    ) -> DltResource:
        """Return a resource for a dlt pipeline, which loads the parts that its destination does not have yet.

        Example: ``pipeline.run(read_landing("s3://bucket/prices").to_dlt())``. dlt keeps the number of the
        last loaded commit in the state of the resource. The write dispositions and their requirements are
        explained in :mod:`airflow_provider_webcollect.landing.read.loading`. There is no ``on_gone``: a
        resource changes only rows with keys that it yields.

        :param primary_key: the columns of the key, for ``merge``.
        :param write_disposition: ``append``, ``merge``, ``replace`` or ``scd2``; None for ``merge`` with a
            key, and ``append`` without.
        :param name: name of the resource and its table; None for the last segment of the landing's path.
        :param since: only the parts of later commits, see above.
        :param on_missing_key: for ``merge``, what to do if rows have no value in a column of the key:
            ``fail`` (default) loads nothing; ``skip`` leaves these rows out.
        :raises InvalidArgument: if key and write disposition contradict each other, or the landing lacks a
            column of the key.
        :raises ExtraMissing: if dlt or pyarrow (the extra ``dlt``) is not installed.
        """
        from airflow_provider_webcollect.landing.read.loading import NewParts

        disposition = write_disposition or ("merge" if primary_key else "append")
        options = LoadOptions.parse(
            {
                "write_disposition": disposition,
                "primary_key": primary_key,
                "on_missing_key": on_missing_key,
            }
        )
        first = 0 if since is None else self._checked(since)
        return NewParts(self, options, first).resource(name or self.uri.rpartition("/")[2], by_row=True)

    def _chosen(self, new_only: bool | str, since: int | None) -> Collection[int] | None:
        """Return the numbers of the commits whose parts are requested; None for all commits."""
        # an empty id is the id of a run without rows
        is_of_run = bool(new_only) or isinstance(new_only, str)
        if since is None:
            run_id = new_only if isinstance(new_only, str) else self.manifest.run.run_id
            return self._of_run(run_id) if is_of_run else None
        if is_of_run:
            raise InvalidArgument("since", since, "it cannot be given with `new_only`")
        return range(self._checked(since) + 1, self.manifest.commit + 1)

    def _checked(self, since: int) -> int:
        """Return the number of a commit that the landing has; 0 for none."""
        number, last = arguments.integer("since", since, 0), self.manifest.commit
        if number > last:
            raise InvalidArgument(
                "since",
                number,
                f"the last commit of {self.uri} is {last}; if the landing has begun again, read all rows",
            )
        return number

    def _of_run(self, run_id: str) -> Collection[int]:
        """Return the numbers of a run's commits."""
        records = [record for record in self.manifest.history if record.run.run_id == run_id]
        numbers = {number for record in records for number in record.commits}
        is_old = not records and len(self.manifest.history) >= MOST_RECORDS
        if is_old or any(may_lack_commits(record, self.manifest) for record in records):
            numbers = {
                commit.number for commit in self._commits(self._numbers) if commit.run.run_id == run_id
            }
        if not numbers:
            self._warn_of_run(run_id)
        return numbers

    def _warn_of_run(self, run_id: str) -> None:
        log.warning(
            "No rows of the run %s are in %s. The run has found nothing new, or its id is wrong. The last "
            "runs that have landed: %s",
            run_id,
            self.uri,
            ", ".join(record.run.run_id for record in self.manifest.history[-_SHOWN_RUNS:]),
        )

    @property
    def _all_parts(self) -> tuple[Part, ...]:
        return self.manifest.parts

    def _parts_of(self, numbers: Collection[int]) -> tuple[Part, ...]:
        """Return the parts that commits have landed."""
        return tuple(part for part in self._all_parts if part.commit in numbers)

    @property
    def _numbers(self) -> Collection[int]:
        """The numbers of the commits that have landed the parts."""
        return {part.commit for part in self._all_parts if part.commit is not None}

    def _commits(self, numbers: Collection[int]) -> Iterator[Commit]:
        """Yield the commits among these numbers that have landed parts, in order."""
        yield from self._log.commits(sorted(number for number in self._numbers if number in numbers))

    def _keyed(self, parts: Iterable[DatedPart], key: object, compare: object = None) -> KeyedRows:
        for package in ("duckdb", "pyarrow"):
            require(package, "duckdb", "a relation of DuckDB")
        from airflow_provider_webcollect.landing.read.keyed import KeyedRows

        columns = self.table_columns
        # check the names before anything is read; for JSON lines, not all columns may be known yet
        chosen_columns(key, compare, columns if self.manifest.columns else None)
        return KeyedRows(self.tables_of, self._reader, list(parts), key, compare, columns)

    def _dated_parts(
        self, moment: int | datetime.datetime | str = 0, is_whole: bool = False
    ) -> Iterator[DatedPart]:
        """Yield the parts, and whether their keys were there at a moment, and are there now.

        :param moment: as ``since`` of :meth:`changes`.
        :param is_whole: whether only rows since the last whole run count, so that keys can be gone.
        """
        commits = list(self._commits(self._numbers))
        count = self._count_at(moment, commits)
        runs = whole_runs_of(commits, self.manifest.set_apart) if is_whole else ()
        yield from dated_parts(commits, runs, count)

    def _count_at(self, moment: int | datetime.datetime | str, commits: Sequence[Commit]) -> int:
        """Return the number of commits up to a moment, which is given as ``since`` of :meth:`changes`."""
        if isinstance(moment, int) and not isinstance(moment, bool):
            number = self._checked(moment)
            return sum(commit.number <= number for commit in commits)
        ids = [commit.run.run_id for commit in commits]
        if isinstance(moment, str) and moment in ids:
            # the id of a run, even if it could be read as a time
            return ids.index(moment)
        time = _time_or_run(moment)
        if isinstance(time, datetime.datetime):
            return bisect.bisect_right(times_of(commits), time)
        self._warn_of_run(time)
        return len(commits)

    def _quarantined_parts(self) -> Iterator[Part]:
        for apart in self.manifest.quarantined:
            for commit in self._log.commits([apart.commit]):
                yield from commit.quarantined

    @functools.cached_property
    def _reader(self) -> PartReader:
        manifest = self.manifest
        reader = part_reader(
            manifest.format,
            manifest.compression,
            manifest.columns or (),
            self.column_types,
            manifest.encoding.get("on_cast_error", "fail"),
            bool(manifest.encoding.get("sanitize_formulas")),
        )
        if reader is None:
            raise DestinationUnreadable(
                f"{self.uri} is of the format {manifest.format!r}, which this version cannot read"
            )
        return reader

    def _reader_of(self, part: Part) -> PartReader:
        return SingleRows() if part.broke else self._reader

    def _rows(self, part: Part, ahead: int | None = None) -> Iterator[Row]:
        count = 0
        try:
            with self._opened(part, ahead) as file:
                for row in self._reader_of(part).rows(file):
                    count += 1
                    yield row
        except UnreadableRow as error:
            raise UnreadableRow(f"row {count + 1} of {self.uri}/{part.name}: {error}") from error
        self._compare(part, count)

    @contextlib.contextmanager
    def _opened(self, part: Part, ahead: int | None = None) -> Iterator[BinaryIO]:
        """Open a part; after an error in the block, raise the error for damage if the part has changed."""
        try:
            with self._folder.opened(part.name, ahead) as file:
                yield file
        except Exception as error:
            self._raise(self._problems([part], self._folder.files()), error)
            raise

    def _compare(self, part: Part, rows: int) -> None:
        """Raise the error for damage unless all rows of a part were read."""
        if rows != part.rows:
            problems = self._problems([part], self._folder.files())
            self._raise(problems or [f"{part.name} has {rows} rows instead of {part.rows}"])

    def _problems(self, parts: Iterable[Part], sizes: Mapping[str, int]) -> list[str]:
        """Return the differences between parts and their entries in the commits.

        :param sizes: the sizes of the existing files in bytes, by name.
        """
        problems = ((part.name, self._problem(part, sizes.get(part.name))) for part in parts)
        return [f"{name} {problem}" for name, problem in problems if problem]

    def _problem(self, part: Part, size: int | None) -> str | None:
        if size is None:
            return "is missing"
        if size != part.bytes:
            return f"has {size} bytes instead of {part.bytes}"
        try:
            with self._folder.opened(part.name) as file:
                rows = self._reader_of(part).count(file, part.sha256)
        except PartsMissing:  # it was deleted since the files were listed
            return "is missing"
        if rows is None:
            return f"does not have the SHA-256 {part.sha256}"
        return None if rows == part.rows else f"has {rows} rows instead of {part.rows}"

    def _raise(self, problems: Sequence[str], cause: Exception | None = None) -> None:
        """Raise the error for damaged parts, if there are problems."""
        if not problems:
            return
        state = self._log.read()
        if state is not None and self._has_parts(state):
            waiting = {apart.commit for apart in state.quarantined}
            if all(apart.commit in waiting for apart in self.manifest.quarantined):
                raise LandingDamaged(self._where, problems) from cause
        raise LandingReplaced(
            f"{self._where} has changed since it was read, and {problems[0]}; read it again"
        ) from cause

    def _has_parts(self, state: Manifest) -> bool:
        """Return whether the current state of the landing still has all of the parts."""
        names = {part.name for part in state.parts}
        return all(part.name in names for part in self._all_parts)


def _time_or_run(since: object) -> datetime.datetime | str:
    """Return a time with a zone, which may be given as ISO 8601 text, or the id of a run."""
    moment = since
    if isinstance(since, str):
        with contextlib.suppress(ValueError):
            moment = datetime.datetime.fromisoformat(since.strip())
    is_time = isinstance(moment, datetime.datetime) and moment.utcoffset() is not None
    if is_time or (isinstance(moment, str) and moment.strip()):
        return cast("datetime.datetime | str", moment)
    rule = "it must be the number of a commit, a time with a zone, or the id of a run"
    raise InvalidArgument("since", since, rule)
