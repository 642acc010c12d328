"""Reading landed rows from the commits alone, without the service and without Airflow."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from airflow_provider_webcollect.landing.errors import (
    DestinationUnreadable,
    NothingLanded,
    NothingToReview,
    RowsRewritten,
)
from airflow_provider_webcollect.landing.formats.types import ProposedType
from airflow_provider_webcollect.landing.location import landing_at
from airflow_provider_webcollect.landing.log.fold import as_landing
from airflow_provider_webcollect.landing.read.contents import LandedData, RunProfile
from airflow_provider_webcollect.landing.storage.commit_log import CommitLog
from airflow_provider_webcollect.landing.tables.table import TableFolder
from airflow_provider_webcollect.service import arguments

if TYPE_CHECKING:
    import datetime
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import pyarrow as pa

    from airflow_provider_webcollect.landing.formats.writing import Row
    from airflow_provider_webcollect.landing.log.commits import Commit, Manifest, Part
    from airflow_provider_webcollect.landing.read.gone import DatedPart
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.landing.tables.table import Snapshot

__all__ = ["LandedData", "LandedTable", "ProposedType", "QuarantinedData", "RunProfile", "read_landing"]


def read_landing(
    landing: Any,
    storage_options: Mapping[str, Any] | None = None,
    *,
    quarantined: int | None = None,
    raw: bool = False,
) -> LandedData:
    """Open a landing to read exactly the rows that it has committed.

    Only the manifest and the commits after it are read, no rows yet.

    :param landing: the landing's folder or its ``_manifest.json``: an absolute local path, a URL that fsspec
        supports (``s3://bucket/prices``), or an object with ``fs`` and ``path``, such as Airflow's
        ``ObjectStoragePath``; or a pyiceberg table.
    :param storage_options: fsspec's options for the URL's filesystem, such as credentials.
    :param quarantined: the number of a commit with quarantined rows, to read only these; the manifest's
        ``quarantined`` lists the numbers. None (default) for the landed rows.
    :param raw: whether to ignore ``column_types``, so that tables from JSON lines and CSV have the original
        texts; False by default. Parquet files and table formats are written typed.
    :raises NothingLanded: if nothing has landed there yet.
    :raises NothingToReview: if the commit ``quarantined`` has no quarantined rows.
    :raises DestinationUnreadable: if the manifest or a commit is incomplete, missing, has a newer layout, or
        contradicts itself or others.
    :raises ExtraMissing: if the package for the URL's storage is not installed.
    :raises InvalidArgument: if ``landing`` is neither an absolute path nor a URL that fsspec supports.
    """
    folder = landing_at(landing, storage_options)
    if quarantined is not None:
        return _quarantined(folder, arguments.integer("quarantined", quarantined, 1))
    if isinstance(folder, TableFolder):
        return _table(folder)
    manifest = _state(folder)
    for name in ("rows", "bytes"):
        # somebody may have changed the file
        whole, summed = getattr(manifest, name), sum(getattr(part, name) for part in manifest.parts)
        if whole != summed:
            raise DestinationUnreadable(
                f"the manifest of {folder.url} contradicts itself: it has {whole} {name}, and its parts have "
                f"{summed}"
            )
    return LandedData(folder, manifest, raw=raw)


def _state(folder: Folder) -> Manifest:
    state = CommitLog(folder).read()
    if state is None:
        raise NothingLanded(f"nothing has landed at {folder.url} yet; check the path")
    return state


def _table(folder: TableFolder) -> LandedData:
    commits = CommitLog(folder)
    # the manifest is read before the table: a landing writes it once the table has the rows
    checkpoint = commits.checkpoint()
    if (snapshot := folder.snapshot()) is not None:
        if (state := commits.up_to(snapshot.version or 0, checkpoint)) is not None:
            return LandedTable(folder, state, snapshot)
    # the first commit that changes rows creates the table: until then, all rows are quarantined or discarded
    elif (state := commits.read()) is not None and not state.rows_commit:
        return LandedData(folder, state)
    raise NothingLanded(f"no landing has written to the table {folder.url} yet; check its name")


def _quarantined(folder: Folder, number: int) -> QuarantinedData:
    numbers = [apart.commit for apart in _state(folder).quarantined]
    if number not in numbers:
        raise NothingToReview(
            f"no rows of commit {number} are quarantined at {folder.url}; commits with quarantined rows: "
            f"{', '.join(map(str, numbers)) or 'none'}"
        )
    (commit,) = CommitLog(folder).commits([number])
    return QuarantinedData(folder, as_landing(commit))


class QuarantinedData(LandedData):
    """The rows that a commit has quarantined, as a landing of their own; created by :func:`read_landing`."""

    def tables_of(self, part: Part) -> Iterator[pa.Table]:
        import pyarrow as pa

        has_single_rows = any(part.broke for part in self._all_parts)
        for table in super().tables_of(part):
            if has_single_rows and not part.broke:
                # single rows have no types, so the other rows of the same commit are read as texts, too
                table = table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
            yield table

    def _commits(self, numbers: Collection[int]) -> Iterator[Commit]:
        for commit in super()._commits(numbers):
            yield msgspec.structs.replace(commit, parts=commit.quarantined)

    def _has_parts(self, state: Manifest) -> bool:
        return any(apart.commit == self.manifest.commit for apart in state.quarantined)


class LandedTable(LandedData):
    """A landing in a table, as it was when it was opened; created by :func:`read_landing`.

    Other programs may rewrite the table's files, for example to compact them or to delete rows, and may add
    rows. Then all rows are read from the table, in its own order. Reads that need the parts as they were
    landed, such as the rows of one run or of some commits, or rows in order, then raise
    :class:`.RowsRewritten`.

    :ivar manifest: as for a folder, but without ``parts``: :meth:`parts` reads them from the commits.
    """

    _folder: TableFolder

    def __init__(self, folder: TableFolder, manifest: Manifest, snapshot: Snapshot) -> None:
        super().__init__(folder, msgspec.structs.replace(manifest, parts=()))
        self._where = self.uri
        self._snapshot = snapshot

    @functools.cached_property
    def _all_parts(self) -> tuple[Part, ...]:
        return self._parts_of(self._numbers)

    def uris(self, new_only: bool | str = False, *, since: int | None = None) -> list[str]:
        """Return the URIs of the table's files, or of the parts of a run or of commits."""
        if self._is_read_by_table(new_only, since):
            # the name of a file outside the folder is its whole URI
            return [name if "://" in name else f"{self.uri}/{name}" for name in self._files]
        self._refuse_rewritten(self.parts(new_only, since=since))
        return super().uris(new_only, since=since)

    def iter_rows(self, new_only: bool | str = False, *, since: int | None = None) -> Iterator[Row]:
        if not self._is_read_by_table(new_only, since):
            yield from super().iter_rows(new_only, since=since)
            return
        batches = self._snapshot.batches(self.manifest.columns or ())
        while (batch := self._folder.call("read", lambda: next(batches, None))) is not None:
            yield from batch.to_pylist()

    def first_rows(self, count: int) -> list[Row]:
        try:
            return super().first_rows(count)
        except RowsRewritten:
            return list(itertools.islice(self.iter_rows(), count))

    def to_arrow(self, new_only: bool | str = False, *, since: int | None = None) -> pa.Table:
        if not self._is_read_by_table(new_only, since):
            return super().to_arrow(new_only, since=since)
        return self._folder.call("read", lambda: self._snapshot.to_arrow(self.manifest.columns or ()))

    def verify(self) -> None:
        """Compare the table's parts with the commits; for files of other programs, check only the size.

        :raises LandingDamaged: listing all differences.
        """
        sizes, files = self._folder.files(), self._files
        in_table = [part for part in self._all_parts if part.name in files]
        problems = self._problems((*in_table, *self._quarantined_parts()), sizes)
        parts = {part.name for part in self._all_parts}
        problems += [
            f"{name} is missing or not {size} bytes long"
            for name, size in files.items()
            if name not in parts and "://" not in name and sizes.get(name) != size
        ]
        self._raise(problems)

    def _for_duckdb(self, new_only: bool | str, since: int | None) -> pa.Table:
        if self._chosen(new_only, since) is not None:
            return super()._for_duckdb(new_only, since)
        # not a relation over the dataset, which could hang: pyarrow's `Scanner.to_reader` holds Python's lock
        # while it waits for files that another thread opens in Python
        return self._folder.call("read", self._snapshot.to_arrow)

    @property
    def _numbers(self) -> Collection[int]:
        return range(self.manifest.first_commit, self.manifest.rows_commit + 1)

    def _commits(self, numbers: Collection[int]) -> Iterator[Commit]:
        yield from (commit for commit in super()._commits(numbers) if commit.changes_rows)

    def _parts_of(self, numbers: Collection[int]) -> tuple[Part, ...]:
        return tuple(part for commit in self._commits(numbers) for part in commit.added)

    @contextlib.contextmanager
    def _opened(self, part: Part, ahead: int | None = None) -> Iterator[BinaryIO]:
        self._refuse_rewritten([part])
        with super()._opened(part, ahead) as file:
            yield file

    def _refuse_rewritten(self, parts: Iterable[Part]) -> None:
        if gone := next((part for part in parts if part.name not in self._whole_files), None):
            raise RowsRewritten(
                f"another program changed {gone.name} of the table {self.uri}; read all rows of the table "
                "instead, which have no order"
            )

    def _dated_parts(
        self, moment: int | datetime.datetime | str = 0, is_whole: bool = False
    ) -> Iterator[DatedPart]:
        # the order of the parts decides which row of a key is the latest
        self._refuse_rewritten(self._all_parts)
        if self._is_rewritten():
            raise RowsRewritten(
                f"the table {self.uri} has rows of others, whose place among the landed rows is not known"
            )
        yield from super()._dated_parts(moment, is_whole)

    def _has_parts(self, state: Manifest) -> bool:
        now = self._folder.snapshot()
        return now is not None and now.files.keys() == self._snapshot.files.keys()

    def _is_read_by_table(self, new_only: bool | str, since: int | None) -> bool:
        """Return whether all rows are requested, and others have rewritten some of them."""
        return self._chosen(new_only, since) is None and self._is_rewritten()

    def _is_rewritten(self) -> bool:
        names = {part.name for part in self._all_parts}
        return names != self._files.keys() or not names.issubset(self._whole_files)

    @functools.cached_property
    def _files(self) -> Mapping[str, int]:
        return self._folder.call("read", lambda: self._snapshot.files)

    @functools.cached_property
    def _whole_files(self) -> Collection[str]:
        return self._folder.call("read", lambda: self._snapshot.whole_files)
