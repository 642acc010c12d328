"""Landings that are tables: the commit log is the same as in a folder, and the table follows it.

After a commit to the log, its parts are added to the table as files, in a commit of the table itself. That
commit stores the number of the last log commit whose rows the table has. If a landing is killed between the
two commits, the next landing adds the parts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    DestinationUnreadable,
    FormatChanged,
    LandingError,
    PartsMissing,
    StorageError,
)
from airflow_provider_webcollect.landing.log.names import commit_name, copy_name, quarantine_name
from airflow_provider_webcollect.landing.storage import have_expired
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.service.errors import InvalidArgument, escaped, quoted
from airflow_provider_webcollect.service.threads import first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_provider_webcollect.landing.log.commits import Manifest, Part
    from airflow_provider_webcollect.landing.storage.folder import PartsAfter

T = TypeVar("T")
_COLORS_AND_QUERIES = re.compile(r"\x1b\[\d+m|\?\S*")
_USERS = re.compile(r"//[^/@\s]*@")
#: The errors of catalogs that deny access, without ``UnauthorizedError``: a token may have expired.
_REFUSALS = {"ForbiddenError", "OAuthError"}
#: The text in an error of pyarrow, through which pyiceberg reads, if access is denied.
_DENIED = "ACCESS_DENIED"
#: Maximum number of tries to write to a table, if others change it meanwhile.
_TRIES = 5
#: The advice for parts that have landed, but vanished before the table had them.
_LAND_AGAIN = (
    "It has landed: put it back, if the storage keeps deleted files; or land all rows again, with "
    "mode='full' and if_exists='overwrite'"
)


class Snapshot(Protocol):
    """A table as it was at one moment.

    :ivar version: the number of the last log commit whose rows the table has; None if no landing wrote to it.
    :ivar partition_columns: the names of the partition columns, in order.
    :ivar columns: the names of all columns.
    """

    version: int | None
    partition_columns: Sequence[str]
    columns: Sequence[str]

    @property
    def demands(self) -> Sequence[str]:
        """The rules for rows besides their types, as text.

        A landing adds whole files, and nothing applies such rules to their rows.
        """

    @property
    def state(self) -> object:
        """An id of the table's state, which every commit to the table changes."""

    @property
    def files(self) -> Mapping[str, int]:
        """The bytes of the files that have the table's rows, by name relative to the folder.

        The name of a file outside the folder is its address.
        """

    @property
    def whole_files(self) -> Collection[str]:
        """The names of the files without deleted rows; a table may record deleted rows beside a file."""

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows.

        :param columns: the names of the columns; None for all, including the partition columns.
        """

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches.

        :param columns: the names of the columns.
        """


def partition_values(folders: str) -> dict[str, str]:
    """Return the values of partition columns in the folders of a part, such as ``dt=2026-01-01/hour=07``."""
    return dict(folder.split("=", 1) for folder in folders.split("/") if "=" in folder)


def schema_of(manifest: Manifest, partition_by: Sequence[str] = ()) -> pa.Schema:
    """Return the schema of a landing: its columns, and then the partition columns, which are strings."""
    import pyarrow as pa

    from airflow_provider_webcollect.landing.formats.values import schema

    columns = schema(manifest.columns or (), manifest.column_types)
    return pa.schema([*columns, *(pa.field(name, pa.string()) for name in partition_by)])


class Lacking(NamedTuple):
    """The parts that a table does not have yet.

    :ivar state: the state of the landing.
    :ivar parts: the missing parts.
    :ivar is_append: True if the parts are added to the table's rows, False if they replace these.
    """

    state: Manifest
    parts: Sequence[Part]
    is_append: bool

    def facts(self) -> dict[str, str]:
        """Return facts about the rows, such as their run, for people who read the table's history."""
        run = self.state.run
        return {
            "webcollect.collection_task_id": self.state.source.collection_task_id,
            "webcollect.run": f"{run.dag_id}.{run.task_id} {run.run_id}",
            "webcollect.rows": str(sum(part.rows for part in self.parts)),
            "webcollect.next_offset": str(self.state.next_offset),
        }


def table_error(table: str, error: Exception) -> StorageError:
    """Return an error of a table library as an error that names the table.

    Queries and users in addresses are left out, since they may be signatures or passwords.
    """
    reason = _text_of(error)
    is_denied = isinstance(error, PermissionError) or type(error).__name__ in _REFUSALS or _DENIED in reason
    if is_denied and not have_expired(error):
        return StorageError(
            f"Access to the table {table} is denied; a landing lists, reads, writes and deletes files "
            f"there. ({reason})",
            permanent=True,
        )
    return StorageError(f"The table {table} cannot be read or written: {type(error).__name__}: {reason}")


def catalog_error(conn_id: str, address: str | None, error: Exception) -> StorageError:
    """Return an error of a catalog as an error that names the catalog.

    :param conn_id: the Airflow connection of the catalog.
    :param address: the catalog's URL, of which user, password and query are left out; None if it has none.
    """
    where = f" at {_USERS.sub('//', address).partition('?')[0]}" if address else ""
    return StorageError(
        f"The catalog{where} of the connection {conn_id!r} has failed: "
        f"{type(error).__name__}: {_text_of(error)}"
    )


def _text_of(error: Exception) -> str:
    """Return the text of a library's error in one line, without possible secrets in addresses."""
    return _USERS.sub("//", " ".join(_COLORS_AND_QUERIES.sub("", str(error)).split()))


def _version_of(snapshot: Snapshot | None) -> int:
    """Return the number of the last log commit whose rows a table has; 0 if no landing wrote to it."""
    return (snapshot and snapshot.version) or 0


class TableFolder(Folder):
    """The folder of a landing that is a table.

    A subclass for a table format implements :meth:`snapshot`, :meth:`_refuse`, :meth:`_write` and
    :meth:`unreferenced`.
    """

    _partition_names: Sequence[str] = ()
    _known: Snapshot | None = None
    _is_known = False
    #: The number of the last commit whose rows this object has written to the table.
    _written_commit = 0

    def snapshot(self) -> Snapshot | None:
        """Return the table as it is now; None if there is none."""
        raise NotImplementedError

    def _refuse(self, snapshot: Any, lacking: Lacking) -> None:
        """Refuse parts that the table would not accept; for the parameters, see :meth:`_write`.

        :raises FormatChanged: if their columns, types or partition do not fit the table, or they replace rows
            of a table that does not allow it.
        :raises NoColumns: if there is no table, and no row yet that names its columns.
        """
        raise NotImplementedError

    def _write(self, snapshot: Any, lacking: Lacking) -> None:
        """Add the missing parts to the table.

        :param snapshot: the table, in this format's class, on which the commit is based; None for no table.
        :param lacking: the missing parts.
        :raises StorageError: if others have written to the table meanwhile; the parts are not added then.
        :raises PartsMissing: if a part is absent.
        """
        raise NotImplementedError

    def refuse_foreign_files(self) -> None:
        # the table was read before the log, which should therefore have all commits of the table
        snapshot = self._last()
        if snapshot is None:
            super().refuse_foreign_files()
        elif snapshot.version is not None:
            raise DestinationUnreadable(
                f"the table {self.url} has the rows of commits up to {snapshot.version}, but "
                f"{self.path_of(commit_name(1))} and the commits after it are missing: put them back, if "
                "the storage keeps deleted files; or give the landing another destination"
            )
        elif snapshot.files:
            raise DestinationTaken(
                f"{self.url} is a table with rows that no landing has written; give the landing a table of "
                "its own"
            )

    def refuse(self, state: Manifest, parts_after: PartsAfter) -> None:
        snapshot = self._last()
        lacking = self._lacking(snapshot, state, parts_after)
        self._refuse(snapshot, lacking)
        self._require(lacking.parts, "Nothing was committed; the next attempt reads the rows again")

    def show(self, state: Manifest, parts_after: PartsAfter) -> None:
        if self._written_commit >= state.rows_commit:
            return
        for _ in range(_TRIES):
            snapshot = self._last()
            if _version_of(snapshot) >= state.rows_commit:
                return
            lacking = self._lacking(snapshot, state, parts_after)
            self._is_known = False
            try:
                self._write(snapshot, lacking)
            except StorageError:
                now = self._last()
                # if it has changed, this write may have succeeded without a response, or others have written
                if (now and now.state) == (snapshot and snapshot.state):
                    raise
            else:
                self._written_commit = state.rows_commit
                return
        raise StorageError(
            f"other programs keep writing to the table {self.url}; the next attempt adds the landed rows"
        )

    def _lacking(self, snapshot: Snapshot | None, state: Manifest, parts_after: PartsAfter) -> Lacking:
        self._refuse_demands(snapshot)
        version = _version_of(snapshot)
        return Lacking(state, parts_after(version), version == 0 or version >= state.first_commit)

    def _refuse_demands(self, snapshot: Snapshot | None) -> None:
        """Raise :class:`FormatChanged` if a table has rules for its rows that nothing would apply."""
        if snapshot is not None and snapshot.demands:
            raise FormatChanged(
                f"the table {self.url} has {'; '.join(map(escaped, snapshot.demands))}. A landing adds whole "
                "files, and nothing applies such rules to their rows. Remove them from the table (`checks` "
                "of the landing can replace a rule), or give the landing another destination"
            )

    def _last(self) -> Snapshot | None:
        """Return the table as it was last read; a write that is based on an outdated table fails."""
        if not self._is_known:
            self._known, self._is_known = self.snapshot(), True
        return self._known

    def _require(self, parts: Iterable[Part], remedy: str = _LAND_AGAIN) -> None:
        """Raise :class:`PartsMissing` if a part is absent.

        :param remedy: the advice for the error; the default is for parts that have landed.
        """
        for part in parts:
            try:
                with self.opened(part.name):
                    pass
            except PartsMissing as error:
                raise PartsMissing(
                    f"{error}, and the table {self.url} does not have it yet: something has removed it, such "
                    f"as VACUUM with a short retention. {remedy}"
                ) from error

    def set_aside(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        return tuple(self.copied(part, quarantine_name(copy_name(part.name))) for part in parts)

    def check_partition(self, partition: str | None) -> None:
        # a new landing begins: the rows that an earlier one wrote may have been removed from the table
        self._written_commit = 0
        self._partition_names = tuple(partition_values(partition or ""))
        snapshot = self._last()
        self._refuse_demands(snapshot)
        if snapshot is not None:
            self._compare_partition(snapshot.partition_columns, partition or "")

    def _compare_partition(self, columns: Sequence[str], folders: str) -> None:
        """Raise :class:`FormatChanged` unless a partition's folders fit the table.

        :param columns: the names of the table's partition columns, in order.
        :param folders: the folders of parts, such as ``dt=2026-01-01``; empty for none.
        """
        names = list(partition_values(folders))
        if names != list(columns):
            raise FormatChanged(
                f"the table {self.url} is partitioned by {', '.join(columns) or 'nothing'}, and `partition` "
                f"says {', '.join(names) or 'nothing'}; use the same columns, discard what is staged with "
                "others, or give the landing another destination"
            )

    def _refuse_names(
        self, snapshot: Snapshot | None, state: Manifest, partition_by: Sequence[str] = ()
    ) -> None:
        """Raise :class:`FormatChanged` if readers of the table would confuse a column with another."""
        # `columns` need not name a column that is made of another one: it comes with that one
        made = {name for name, kind in state.column_types.items() if kind.from_ is not None}
        names = {name.lower(): name for name in (*partition_by, *(snapshot.columns if snapshot else ()))}
        landable, wrong = [], []
        for name in state.columns or ():
            if "\0" in name:
                wrong.append(f"the column {quoted(name)} has a NUL, where readers of tables end its name")
            elif (other := names.get(name.lower(), name)) != name or other in partition_by:
                both = f"{'partition' if other in partition_by else 'columns'} `{escaped(other)}`"
                wrong.append(f"the {both} and `{escaped(name)}` would be one: tables ignore letter case")
            else:
                names[name.lower()] = name
                landable.append(name)
        if wrong:
            raise FormatChanged(
                f"rows do not fit the table {self.url}: {wrong[0]}; land only the others: "
                f"columns={quoted([name for name in landable if name not in made])}"
            )

    def call(self, what: str, work: Callable[[], T]) -> T:
        """Call the table library, and convert its errors into errors that name the table.

        The library runs in a thread, since no signal, such as a task's timeout, is handled within some of its
        calls.

        :param what: the purpose, for the name of the thread: ``read``, ``list`` or ``commit``.
        :param work: calls the library.
        """
        done = in_background(work, f"webcollect-table-{what}")
        first_done([done])
        try:
            return done.result()
        except (LandingError, InvalidArgument):
            raise
        except Exception as error:
            raise table_error(self.url, error) from None
