"""Landings that are tables: the table's own commit stands where the manifest's write stands in a folder.

Besides the parts, which are the table's data files, a folder in the table has a small file for each commit,
the rest of the manifest: `_landing/<number>-<random id>.json`. It is written before the commit, and the
table's commit says which one counts. Each has what its commit has added, and names those before it, so that
a run costs what is new; every :data:`WHOLE_EVERY` commits one has all of it, and those before it go.
"""

from __future__ import annotations

import logging
import re
import secrets
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    DestinationUnreadable,
    FormatChanged,
    LandingError,
    StorageError,
)
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    MOST_RECORDS,
    VERSION,
    Manifest,
    Part,
    RunRecord,
    decode,
)
from airflow_provider_webcollect.landing.storage import Changed
from airflow_provider_webcollect.landing.storage.folder import Committed, Folder, is_ours
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.pauses import first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from fsspec import AbstractFileSystem

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Where the files of commits are. Names that begin with `_` are none of the table's data for any reader.
FILES = "_landing"
#: Every how many commits one of the files has all of the manifest.
WHOLE_EVERY = 20
#: How often a manifest is read again because later commits have removed a file of it meanwhile.
_TRIES = 5
_FILE = re.compile(rf"{FILES}/(?:\.tmp-)?(\d+)-[0-9a-f]{{8}}\.json(?:-[0-9a-f]+)?")
_COLORS_AND_QUERIES = re.compile(r"\x1b\[\d+m|\?\S*")
#: Bits of a version that are random; those above count the commits.
_ID_BITS = 32


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit has changed in the manifest.

    :ivar before: the names of the files with the rest, from one that has all of it on, the oldest first.
    :ivar kept_parts: how many of the first parts before it stay.
    :ivar manifest: with the parts, and the records of runs, that are new.
    """

    version: int = VERSION
    before: tuple[str, ...] = ()
    kept_parts: int = 0
    manifest: Manifest

    @classmethod
    def between(cls, old: Manifest, new: Manifest, before: tuple[str, ...]) -> Difference:
        """Return what makes the new manifest of the old one.

        :param before: the names of the files that have the old one.
        """
        kept = next(
            (
                index
                for index, (one, other) in enumerate(zip(old.parts, new.parts, strict=False))
                if one != other
            ),
            min(len(old.parts), len(new.parts)),
        )
        records = tuple(record for record in new.history if record not in old.history)
        own = msgspec.structs.replace(new, parts=new.parts[kept:], history=records)
        return cls(before=before, kept_parts=kept, manifest=own)


def whole(differences: Sequence[Difference]) -> Manifest:
    """Return the manifest that the differences make, the oldest first."""
    parts: tuple[Part, ...] = ()
    history: tuple[RunRecord, ...] = ()
    for each in differences:
        parts = parts[: each.kept_parts] + each.manifest.parts
        runs = {record.run for record in each.manifest.history}
        history = (*(record for record in history if record.run not in runs), *each.manifest.history)
    return msgspec.structs.replace(differences[-1].manifest, parts=parts, history=history[-MOST_RECORDS:])


def version_after(expected: str | None) -> int:
    """Return the version of a commit: it grows with each one, and no two attempts at one have the same.

    :param expected: the version before it.
    """
    number = (int(expected) >> _ID_BITS) + 1 if expected else 1
    return (number << _ID_BITS) | secrets.randbits(_ID_BITS)


def file_of(version: int) -> str:
    """Return the name of the file of a commit."""
    return f"{FILES}/{version >> _ID_BITS:08d}-{version & ((1 << _ID_BITS) - 1):08x}.json"


class Snapshot(Protocol):
    """A table as it was at one moment.

    :ivar version: of the last commit of a landing; None if there was none.
    :ivar partition_columns: their names, in order.
    """

    version: int | None
    partition_columns: Sequence[str]

    @property
    def state(self) -> object:
        """What no other state of the table has, whoever has committed."""

    @property
    def files(self) -> Mapping[str, int]:
        """The bytes of the files that have its rows, by their names relative to the folder.

        Those elsewhere have their addresses as names.
        """

    @property
    def whole_files(self) -> Collection[str]:
        """The names of those of whose rows none is deleted: tables may note deleted rows beside a file."""

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return some columns of the rows, or all, with those of the partitions."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the rows."""


def partition_values(folders: str) -> dict[str, str]:
    """Return the values of partition columns in the folders of a part, such as ``dt=2026-01-01/hour=07``."""
    return dict(folder.split("=", 1) for folder in folders.split("/") if "=" in folder)


def schema_of(manifest: Manifest, partition_by: Sequence[str] = ()) -> pa.Schema:
    """Return the columns of a landing, and those of its partitions, which are texts."""
    import pyarrow as pa

    from airflow_provider_webcollect.landing.formats.parquet import schema

    columns = schema(manifest.columns or (), manifest.encoding.get("column_types") or {})
    return pa.schema([*columns, *(pa.field(name, pa.string()) for name in partition_by)])


def facts_of(manifest: Manifest, added: Iterable[Part]) -> dict[str, str]:
    """Return what a table's history says of a commit, for people: whose rows these are, and how many.

    :param added: the parts that are new.
    """
    run = manifest.run
    return {
        "webcollect.collection_task_id": manifest.source.collection_task_id,
        "webcollect.run": f"{run.dag_id}.{run.task_id} {run.run_id}",
        "webcollect.rows": str(sum(part.rows for part in added)),
        "webcollect.next_offset": str(manifest.next_offset),
    }


def listed(names: Sequence[str]) -> str:
    """Return names of columns for a message."""
    return ", ".join(names) or "nothing"


def table_error(table: str, error: Exception, *, is_denied: bool) -> StorageError:
    """Return an error of a table's library as one that names the table.

    The text may have addresses with signatures, which stay out.

    :param is_denied: whether it says that somebody may not do something.
    """
    said = " ".join(_COLORS_AND_QUERIES.sub("", str(error)).split())
    if is_denied:
        return StorageError(
            f"Access to the table {table} is denied; a landing lists, reads, writes and deletes files "
            f"there. ({said})",
            permanent=True,
        )
    return StorageError(f"The table {table} cannot be read or written: {type(error).__name__}: {said}")


class TableFolder(Folder):
    """The folder of a landing that is a table.

    A table format gives :meth:`snapshot`, :meth:`_write`, :meth:`is_denied` and :meth:`unreferenced`.
    """

    def __init__(self, fs: AbstractFileSystem, root: str, shown: str | None = None) -> None:
        super().__init__(fs, root, shown)
        self._is_there = False
        self._partition_names: Sequence[str] = ()
        # files of commits never change
        self._read_already: dict[str, Difference] = {}

    def snapshot(self) -> Snapshot | None:
        """Return the table as it is now; None if there is none."""
        raise NotImplementedError

    def _write(
        self, snapshot: Any, manifest: Manifest, added: Sequence[Part], version: int, *, is_append: bool
    ) -> None:
        """Add parts to the table, or put them in the place of all rows, in one commit.

        :param snapshot: of this format: the table, through which the commit is made; None if there is none.
        :param version: of this commit.
        :raises Changed: if others have committed; nothing was changed then.
        :raises FormatChanged: if the rows do not fit the table.
        """
        raise NotImplementedError

    @staticmethod
    def is_denied(error: Exception) -> bool:
        """Return whether the library says so that somebody may not do something."""
        raise NotImplementedError

    def committed(self) -> Committed | None:
        found = self.read_table()
        return found and found[1]

    def read_table(self) -> tuple[Snapshot, Committed] | None:
        """Return the table, and the manifest of its rows; None if nothing was committed."""
        for _ in range(_TRIES):
            snapshot = self.snapshot()
            self._is_there = snapshot is not None
            if snapshot is None or snapshot.version is None:
                self._refuse_others(snapshot)
                return None
            try:
                manifest = whole(self._differences(snapshot.version))
            except Changed as error:
                # the file is not needed any more, if others have committed meanwhile
                gone = error
                continue
            return snapshot, Committed(manifest, str(snapshot.version))
        raise DestinationUnreadable(
            f"{self.url}/{gone} is missing, which has a part of the manifest: something has removed files "
            "that the table does not know. Put them back, if the storage keeps them, or land elsewhere"
        )

    def _refuse_others(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None and snapshot.files:
            raise DestinationTaken(
                f"{self.url} is a table with rows that no landing has written; give the landing a table of "
                "its own"
            )
        if snapshot is None and self.read(MANIFEST) is not None:
            raise DestinationTaken(
                f"{self.url} holds a landing that is no table ({MANIFEST}); give the table a destination of "
                "its own"
            )

    def check_partition(self, partition: str | None) -> None:
        self._partition_names = tuple(partition_values(partition or ""))
        snapshot = self.snapshot()
        if snapshot is not None:
            self._compare_partition(snapshot, partition or "")

    def _compare_partition(self, snapshot: Snapshot, folders: str) -> None:
        """Raise :class:`FormatChanged` unless parts in some folders fit the table."""
        names = list(partition_values(folders))
        if names != list(snapshot.partition_columns):
            raise FormatChanged(
                f"the table {self.url} is partitioned by {listed(snapshot.partition_columns)}, and "
                f"`partition` says {listed(names)}; use the same columns, or give the landing another "
                "destination"
            )

    def commit(self, manifest: Manifest, expected: str | None) -> str:
        version = version_after(expected)
        before: Sequence[Difference] = () if expected is None else self._differences(int(expected))
        old = whole(before) if before else None
        difference = self._difference(manifest, old, expected, before)
        with self.part(file_of(version)) as file:
            file.write(msgspec.json.encode(difference))
        self._commit_to_table(manifest, old, expected, version)
        self._read_already[file_of(version)] = difference
        if before and not difference.before:
            self._delete_files_before(version)
        return str(version)

    def _commit_to_table(
        self, manifest: Manifest, before: Manifest | None, expected: str | None, version: int
    ) -> None:
        """Make the rows of the manifest those of the table.

        :param before: the manifest that it replaces.
        :param expected: the version of that one.
        :param version: of this commit.
        :raises Changed: if the table has another version; nothing was changed then.
        :raises FormatChanged: if the rows do not fit the table.
        """
        snapshot = self.snapshot()
        if (snapshot and snapshot.version) != (expected and int(expected)):
            raise Changed(self.url)
        known = {part.name for part in before.parts} if before else set()
        is_append = known.issubset(part.name for part in manifest.parts)
        added = [part for part in manifest.parts if not (is_append and part.name in known)]
        try:
            self.call("commit", lambda: self._write(snapshot, manifest, added, version, is_append=is_append))
        except StorageError:
            now = self.snapshot()
            if now is not None and now.version == version:
                # only the answer was lost
                return
            if (now and now.state) != (snapshot and snapshot.state):
                raise Changed(self.url) from None
            raise

    def _difference(
        self, manifest: Manifest, old: Manifest | None, expected: str | None, before: Sequence[Difference]
    ) -> Difference:
        if old is None or expected is None or len(before) >= WHOLE_EVERY:
            return Difference(manifest=manifest)
        names = (*before[-1].before, file_of(int(expected)))
        return Difference.between(old, manifest, names)

    def _delete_files_before(self, version: int) -> None:
        """Remove the files of earlier commits: one that has all of the manifest counts now."""
        oldest = version >> _ID_BITS
        try:
            self.delete(
                name
                for name in self.all_files()
                if (found := _FILE.fullmatch(name)) and int(found[1]) < oldest
            )
        except StorageError as error:
            # the rows are committed; the next such commit removes them
            log.warning("Files of earlier commits stay at %s: %s", self.url, error)

    def missing(self, manifest: Manifest, files: Mapping[str, int]) -> Part | None:
        """Return None: which files have a table's rows is the table's own affair."""
        return None

    def all_files(self) -> dict[str, int]:
        """Return the bytes of all files in the folder, by name, whoever has written them."""
        return super().files()

    def files(self) -> dict[str, int]:
        """Return the bytes of the files that landings use, by name; without a table, of all files."""
        return {
            name: size
            for name, size in self.all_files().items()
            if not name.startswith(f"{FILES}/") and (not self._is_there or is_ours(name))
        }

    def _differences(self, version: int) -> tuple[Difference, ...]:
        last = self._difference_in(file_of(version))
        return (*map(self._difference_in, last.before), last)

    def _difference_in(self, name: str) -> Difference:
        if name not in self._read_already:
            stored = self.read(name)
            if stored is None:
                raise Changed(name)
            self._read_already[name] = decode(stored.content, f"{self.url}/{name}", Difference)
        return self._read_already[name]

    def _refuse_twins(self, columns: Iterable[str]) -> None:
        """Raise :class:`FormatChanged` if names are the same, or differ in letter case alone."""
        names: dict[str, str] = {}
        for name in columns:
            if (lowered := name.lower()) in names:
                raise FormatChanged(
                    f"the columns `{names[lowered]}` and `{name}` would be one for the table {self.url}, "
                    "which knows no letter case; name those to land with `columns`, or another `partition`"
                )
            names[lowered] = name

    def call(self, what: str, work: Callable[[], T]) -> T:
        """Let the library do something, and raise its errors as ones that name the table.

        It works in a thread: within some of it no signal is handled, such as a task's timeout.

        :param what: ``read``, ``list`` or ``commit``.
        """
        done = in_background(work, f"webcollect-table-{what}")
        first_done([done])
        try:
            return done.result()
        except (LandingError, Changed, InvalidArgument):
            raise
        except Exception as error:
            raise table_error(self.url, error, is_denied=self.is_denied(error)) from None
