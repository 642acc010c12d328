"""The parts of a landing: read, and compared with what its manifest says of them."""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING

from airflow_provider_webcollect.landing.errors import (
    DestinationUnreadable,
    ExtraMissing,
    PartsMissing,
    UnreadableRow,
)
from airflow_provider_webcollect.landing.formats import require
from airflow_provider_webcollect.landing.formats.reading import PartReader, part_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_provider_webcollect.landing.commits import Manifest, Part
    from airflow_provider_webcollect.landing.formats.base import Row
    from airflow_provider_webcollect.landing.storage.folder import Folder


class Parts:
    """Reads parts.

    :param folder: that has them.
    :param manifest: which says how they are written.
    :param uri: of the folder.
    :param damage: returns the error to raise for parts that differ from the manifest, given how they do.
    """

    def __init__(
        self, folder: Folder, manifest: Manifest, uri: str, damage: Callable[[Sequence[str]], Exception]
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._uri = uri
        self._damage = damage

    def rows(self, part: Part) -> Iterator[Row]:
        """Yield the rows of a part."""
        reader, count = self._reader, 0
        try:
            with self._folder.opened(part.name) as file:
                for row in reader.rows(file):
                    count += 1
                    yield row
        except Exception as error:
            self._raise_if_damaged(part, error)
            if isinstance(error, UnreadableRow):
                raise UnreadableRow(f"row {count + 1} of {self._uri}/{part.name}: {error}") from error
            raise
        self._compare(part, count)

    def tables(self, part: Part) -> Iterator[pa.Table]:
        """Yield the rows of a part as tables of Arrow, some megabytes at a time."""
        require("pyarrow", "parquet", "a table of Arrow")
        reader, count = self._reader, 0
        try:
            with self._folder.opened(part.name) as file:
                for table in reader.tables(file):
                    count += table.num_rows
                    yield table
        except (UnreadableRow, RecursionError) as error:
            # reading row by row finds the row to name in the error
            deque(self.rows(part), maxlen=0)
            raise UnreadableRow(f"a row of {self._uri}/{part.name} cannot be read: {error}") from error
        except Exception as error:
            self._raise_if_damaged(part, error)
            raise
        self._compare(part, count)

    def table(self, parts: Iterable[Part]) -> pa.Table:
        """Return the rows of parts as one table of Arrow."""
        require("pyarrow", "parquet", "a table of Arrow")
        import pyarrow as pa

        table = self._reader.joined(table for part in parts for table in self.tables(part))
        # columns of JSON lines, without any: those that others of the landing have
        names = () if table.num_columns else self._manifest.profile.columns
        return pa.table({name: pa.array([], pa.string()) for name in names}) if names else table

    def problems(self, parts: Iterable[Part], sizes: Mapping[str, int]) -> list[str]:
        """Return how parts differ from the manifest: presence, bytes, SHA-256 and number of rows.

        :param sizes: bytes of the files that are there, by name. Parts with a wrong size are not read.
        """
        return [
            f"{part.name} {problem}"
            for part in parts
            if (problem := self._problem(part, sizes.get(part.name)))
        ]

    @functools.cached_property
    def _reader(self) -> PartReader:
        manifest = self._manifest
        types = manifest.encoding.get("column_types") or {}
        reader = part_reader(manifest.format, manifest.compression, manifest.columns or (), types)
        if reader is None:
            raise DestinationUnreadable(
                f"{self._uri} is of the format {manifest.format!r}, which this version cannot read"
            )
        return reader

    def _compare(self, part: Part, rows: int) -> None:
        if rows != part.rows:
            problem = self._found_problem(part) or f"has {rows} rows instead of {part.rows}"
            raise self._damage([f"{part.name} {problem}"])

    def _raise_if_damaged(self, part: Part, error: Exception) -> None:
        """Raise the error for damage if the part differs from the manifest, which explains ``error``."""
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
                rows = self._reader.count(file, part.sha256)
        except PartsMissing:  # it was deleted since the files were listed
            return "is missing"
        if rows is None:
            return f"does not have the SHA-256 {part.sha256}"
        return None if rows == part.rows else f"has {rows} rows instead of {part.rows}"
