"""The folder of one landing, on any filesystem of fsspec."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    PartsMissing,
    StorageError,
    UnreadableRow,
)
from airflow_provider_webcollect.landing.formats.writing import SingleRow, from_lines
from airflow_provider_webcollect.landing.log.commits import Part
from airflow_provider_webcollect.landing.log.names import (
    PARTITION_PATTERN,
    STAGED,
    commit_name,
    is_marker,
    is_ours,
)
from airflow_provider_webcollect.landing.storage import (
    Disk,
    Exists,
    Memory,
    Storage,
    storage_errors,
    url,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from fsspec import AbstractFileSystem

    from airflow_provider_webcollect.landing.log.commits import Manifest

    PartsAfter = Callable[[int], tuple[Part, ...]]


#: The folder of a Delta Lake table's log.
DELTA_LOG = "_delta_log"
#: The names of files that only tables have, by table format.
_FILES_OF_TABLES = {
    "delta": re.compile(rf"{DELTA_LOG}/.*"),
    "iceberg": re.compile(r"metadata/.*\.metadata\.json"),
}
_PARTITION = re.compile(PARTITION_PATTERN)
#: Bytes of a part that are copied at a time.
_CHUNK_BYTES = 4 * 1024 * 1024
#: Bytes of a file of single rows that are read ahead from an object store: most files are smaller.
_SINGLE_ROWS_AHEAD = 1024 * 1024
#: Bytes after which the system starts to write them to the disk, so that the final sync takes little time.
WRITE_OUT_BYTES = 4 * 1024 * 1024


class PartFile:
    """A part that is being written; counts and digests its bytes. It becomes visible only when finished.

    :param name: the name of the part.
    :param file: the file of the storage to write to.
    :param errors: returns a context manager that explains the storage's errors.
    :ivar bytes: number of bytes written so far.
    """

    def __init__(self, name: str, file: Any, errors: Callable[[], AbstractContextManager[Any]]) -> None:
        self._name = name
        self._file = file
        self._errors = errors
        self._digest = hashlib.sha256()
        self._on_its_way = 0
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        with self._errors():
            self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)
        if self.bytes - self._on_its_way >= WRITE_OUT_BYTES:
            if sys.platform == "linux":
                # only a hint, and only for a file on a disk; the sync reports real errors
                with contextlib.suppress(AttributeError, OSError):
                    # drops data on the disk from the page cache, and starts to write the rest to the disk
                    start, size = self._on_its_way, self.bytes - self._on_its_way
                    os.posix_fadvise(self._file.fileno(), start, size, os.POSIX_FADV_DONTNEED)
            self._on_its_way = self.bytes

    @property
    def sha256(self) -> str:
        """Hex digest of the bytes written so far."""
        return self._digest.hexdigest()

    def part(self, rows: int, **facts: Any) -> Part:
        """Return the part, once all of it has been written.

        :param rows: number of rows in the part.
        :param facts: the part's other fields.
        """
        return Part(name=self._name, rows=rows, bytes=self.bytes, sha256=self.sha256, **facts)


class Folder:
    """The files of a landing, by their names relative to the folder.

    All methods raise :class:`~.landing.errors.StorageError` if the storage fails or denies access.

    :param fs: the filesystem.
    :param root: the folder's path on it; it need not exist. On a disk, links in it are followed, so that each
        place has one name.
    :param public_url: the folder as users name it, if that says more than the path, such as the connection;
        None for its path with the scheme.
    :cvar table_format: the format of the table in the folder; None for a folder with a manifest. A landing
        does not delete files that a commit of a table replaces: older versions, which can still be read,
        have them.
    """

    table_format: str | None = None

    def __init__(self, fs: AbstractFileSystem, root: str, public_url: str | None = None) -> None:
        self.fs = fs
        self._public_url = public_url
        self._storage = _storage_of(fs)
        self.root = os.path.realpath(root) if isinstance(self._storage, Disk) else root.rstrip("/")

    @property
    def url(self) -> str:
        """The folder as shown to users: with its scheme, except on a local disk."""
        return self._public_url or url(self.fs, self.root)

    @property
    def as_argument(self) -> str:
        """The folder as an argument of ``webcollect landing``, quoted for a shell."""
        return shlex.quote(self.url)

    def enclosing(self) -> Folder | None:
        """Return the folder of the landing that this folder is a partition of; None if there is none."""
        outer = posixpath.dirname(self.root)
        if not _PARTITION.fullmatch(posixpath.basename(self.root)):
            return None
        folder = Folder(self.fs, outer)
        try:
            is_landing = (
                folder.read(MANIFEST) is not None
                or folder.read(commit_name(1)) is not None
                or bool(folder.files(STAGED) or folder.files(DELTA_LOG))
            )
        except StorageError as error:
            # without permission to read above this folder, nothing was landed there either
            if not error.permanent:
                raise
            return None
        return folder if is_landing else folder.enclosing()

    def check_partition(self, partition: str | None) -> None:
        """Check that new parts may be written to a partition.

        :param partition: the partition's folders, such as ``dt=2026-01-01``; None for the folder itself.
        :raises FormatChanged: if this is a table that is partitioned by other columns, or that has rules that
            a landing cannot apply to rows.
        """

    def refuse_foreign_files(self) -> None:
        """Raise :class:`DestinationTaken` if the folder of a new landing has files that no landing wrote.

        :raises DestinationUnreadable: if a table has rows of commits that are missing.
        """
        foreign = sorted(name for name in self.files() if not (is_ours(name) or is_marker(name)))
        for table_format, file in _FILES_OF_TABLES.items():
            if any(map(file.fullmatch, foreign)):
                raise DestinationTaken(
                    f"{self.root} is a table that no landing wrote; give the landing a folder of its own, "
                    f"for a table with table_format={table_format!r}"
                )
        if foreign:
            raise DestinationTaken(
                f"{self.root} holds files that no landing wrote ({', '.join(map(repr, foreign[:5]))}); "
                "give the landing a folder of its own"
            )

    def refuse(self, state: Manifest, parts_after: PartsAfter) -> None:
        """Refuse rows that a table would not accept, before they are committed; a folder accepts all rows.

        :param state: the state of the landing with these rows.
        :param parts_after: returns the parts that landed after the commit with the given number.
        """

    def show(self, state: Manifest, parts_after: PartsAfter) -> None:
        """Add the landed rows to a table; a folder needs nothing.

        :param state: the state of the landing.
        :param parts_after: returns the parts that landed after the commit with the given number.
        """

    def set_aside(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        """Return parts to be quarantined, which a table copies to where its own cleaning keeps them."""
        return tuple(parts)

    def copied(self, part: Part, name: str) -> Part:
        """Copy a part, and return the copy.

        :param name: the name of the copy.
        :raises PartsMissing: if the part is absent or damaged; there is no copy then.
        """
        with self.opened(part.name) as file, self.part(name) as copy:
            while chunk := file.read(_CHUNK_BYTES):
                copy.write(chunk)
            if (copy.bytes, copy.sha256) != (part.bytes, part.sha256):
                raise PartsMissing(
                    f"{self.path_of(part.name)} is not what was written; nothing was committed"
                )
        return msgspec.structs.replace(part, name=name)

    def unreferenced(self, names: set[str]) -> set[str]:
        """Return the names of files that no readable version of a table needs.

        :param names: the names of files that the landing itself does not need.
        """
        return names

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it is absent."""
        with self._at(name) as path:
            return self._storage.read(path)

    def create(self, name: str, content: bytes) -> None:
        """Write a small file if it is absent.

        :raises Exists: if the file exists; nothing is written then.
        """
        with self._at(name) as path:
            self._storage.create(path, content)

    def created(self, name: str, content: bytes) -> bool:
        """Create a small file, and return whether it has this content: another process may have created it.

        If the response to the creation is lost, the content of the file shows who created it.
        """
        try:
            self.create(name, content)
        except (Exists, StorageError) as error:
            stored = self.read(name)
            # S3 also refuses a creation during another one, which may then fail: the caller can try again
            if stored is None and not isinstance(error, Exists):
                raise
            return stored == content
        return True

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, or replace it."""
        with self._at(name) as path:
            self._storage.write(path, content)

    def files(self, inside: str = "") -> dict[str, int]:
        """Return the bytes of all files in the folder and its subfolders, by name; empty if it is absent.

        :param inside: the only subfolder to list; empty for the whole folder.
        """
        path = f"{self.root}/{inside}".rstrip("/")
        with storage_errors(self.fs, path):
            sizes = self._storage.files(path)
        start = len(f"{self.root}/".lstrip("/"))
        return {path.lstrip("/")[start:]: size for path, size in sizes.items()}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[PartFile]:
        """Provide a file for a part, or for any file that is written only once.

        It becomes visible as ``name`` when it is complete, or not at all.
        """
        with contextlib.ExitStack() as upload:
            with self._at(name) as path:
                file = upload.enter_context(self._storage.upload(path))
            yield PartFile(name, file, lambda: self._at(name))
            with self._at(name):
                upload.close()

    @contextlib.contextmanager
    def opened(self, name: str, ahead: int | None = None) -> Iterator[BinaryIO]:
        """Open a part for reading.

        :param ahead: number of bytes to read ahead from an object store; None for its filesystem's default
            (50 MB for s3fs).
        :raises PartsMissing: if the part is absent.
        """
        gone = PartsMissing(f"{self.path_of(name)} is not there any more")
        with self._at(name) as path:
            try:
                file = self._storage.open(path, ahead)
            except FileNotFoundError as error:
                raise gone from error
        with file:
            try:
                yield file
            except FileNotFoundError as error:
                # some storages look for the file only at the first read
                raise gone from error

    def single_rows(self, part: Part) -> Iterator[SingleRow]:
        """Yield the rows of a file of single quarantined rows.

        :raises PartsMissing: if the file is absent or damaged.
        """
        digest = hashlib.sha256()

        def lines(file: BinaryIO) -> Iterator[bytes]:
            for line in iter(file.readline, b""):
                digest.update(line)
                yield line

        with contextlib.suppress(UnreadableRow), self.opened(part.name, _SINGLE_ROWS_AHEAD) as file:
            yield from from_lines(lines(file))
        if digest.hexdigest() != part.sha256:
            raise PartsMissing(f"{self.path_of(part.name)} is not what was written")

    def is_linked(self, name: str) -> bool:
        """Return whether a symbolic link in the folder leads to a file, which may then be outside it."""
        return self._storage.is_linked(f"{self.root}/{name}")

    def delete(self, names: Iterable[str]) -> None:
        """Delete files without a condition; absent files are no error."""
        for name in names:
            with self._at(name) as path:
                self._storage.delete(path)

    @contextlib.contextmanager
    def _at(self, name: str) -> Iterator[str]:
        """Provide the path of a file; errors of the storage in the block name this path."""
        path = f"{self.root}/{name}"
        with storage_errors(self.fs, path):
            yield path

    def path_of(self, name: str) -> str:
        """Return the path of a file as shown to users."""
        return url(self.fs, f"{self.root}/{name}")


def _storage_of(fs: AbstractFileSystem) -> Storage:
    """Return the storage operations for ``fs``."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & {"file", "local"}:
        return Disk(fs)
    if "memory" in protocols:
        return Memory(fs)
    from airflow_provider_webcollect.landing.storage.object_stores import S3, Conditional

    # the methods used are checked too, since other filesystems exist for the same stores
    if "s3" in protocols and hasattr(fs, "call_s3"):
        return S3(fs)
    if ("abfs" in protocols and hasattr(fs, "service_client")) or (
        "gs" in protocols and hasattr(fs, "_call")
    ):
        return Conditional(fs)
    return Storage(fs)
