"""The folder of one landing on any fsspec filesystem."""

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


#: Where a Delta Lake table has its log.
DELTA_LOG = "_delta_log"
#: Files that tell a table from a folder.
_FILES_OF_TABLES = {
    "delta": re.compile(rf"{DELTA_LOG}/.*"),
    "iceberg": re.compile(r"metadata/.*\.metadata\.json"),
}
_PARTITION = re.compile(PARTITION_PATTERN)
#: Bytes of a part that are copied at a time.
_CHUNK_BYTES = 4 * 1024 * 1024
#: Bytes of a file of single rows that are read ahead from a store: most files are smaller.
_SINGLE_ROWS_AHEAD = 1024 * 1024
#: Bytes after which the disk starts to write them, so that the final sync takes little time.
WRITE_OUT_BYTES = 4 * 1024 * 1024


class PartFile:
    """A part being written; counts and digests its bytes. It becomes visible only when finished.

    :param name: of the part.
    :param errors: returns a context manager that explains the storage's errors.
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
                # only a hint, if there is a disk: errors will show in the sync
                with contextlib.suppress(AttributeError, OSError):
                    # drops written data from the page cache, and for that starts to write the rest
                    start, size = self._on_its_way, self.bytes - self._on_its_way
                    os.posix_fadvise(self._file.fileno(), start, size, os.POSIX_FADV_DONTNEED)
            self._on_its_way = self.bytes

    @property
    def sha256(self) -> str:
        """Hex digest of what has been written so far."""
        return self._digest.hexdigest()

    def part(self, rows: int, **facts: Any) -> Part:
        """Return the part, once all of it has been written.

        :param rows: how many rows it has.
        :param facts: its other fields.
        """
        return Part(name=self._name, rows=rows, bytes=self.bytes, sha256=self.sha256, **facts)


class Folder:
    """The files of a landing, by their names relative to the folder.

    All methods raise :class:`~.landing.errors.StorageError` if the storage fails or denies access.

    :param fs: the filesystem.
    :param root: the folder's path on it; it need not exist. On a disk, links in it are followed, so that each
        place has one name.
    :param public_url: how users name it, if that says more than the path, such as the storage's connection.
    :cvar table_format: of the table that it is; None for a folder with a manifest. The files that a commit of
        a table replaces belong to an older version that can still be read: they are not the landing's to
        delete.
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
        """The folder as a command of ``webcollect landing`` takes it in a shell."""
        return shlex.quote(self.url)

    def enclosing(self) -> Folder | None:
        """Return the folder of the landing whose partition this folder is; None if there is none."""
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
            # without the right to read above this folder, nothing was landed there either
            if not error.permanent:
                raise
            return None
        return folder if is_landing else folder.enclosing()

    def check_partition(self, partition: str | None) -> None:
        """Check that new parts may be in such folders.

        :param partition: the folders, such as ``dt=2026-01-01``; None for the folder itself.
        :raises FormatChanged: if it is a table that is partitioned by other columns.
        """

    def refuse_foreign_files(self) -> None:
        """Raise :class:`DestinationTaken` if files of others are where nothing has landed."""
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
        """Refuse rows that a table would not take, before they are committed; a folder takes all.

        :param state: what has landed with them.
        :param parts_after: returns the parts that were landed after a commit of a number.
        """

    def show(self, state: Manifest, parts_after: PartsAfter) -> None:
        """Give a table the rows that have landed; in a folder they are where they are.

        :param parts_after: returns the parts that were landed after a commit of a number.
        """

    def set_aside(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        """Return parts to be quarantined, where a table's own cleaning does not remove them."""
        return tuple(parts)

    def copied(self, part: Part, name: str) -> Part:
        """Copy a part, and return the copy.

        :param name: of the copy.
        :raises PartsMissing: if it is not what was written; there is no copy then.
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
        """Return the names of files that no older version of a table needs which can still be read.

        :param names: of files that the landing does not need.
        """
        return names

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it is absent."""
        with self._at(name) as path:
            return self._storage.read(path)

    def create(self, name: str, content: bytes) -> None:
        """Write a small file if it is absent.

        :raises Exists: if it is there; nothing was written then.
        """
        with self._at(name) as path:
            self._storage.create(path, content)

    def created(self, name: str, content: bytes) -> bool:
        """Create a small file, and return whether it has this content: another process may have created it.

        If the response is lost, reading the file shows whose it is.
        """
        try:
            self.create(name, content)
        except (Exists, StorageError) as error:
            stored = self.read(name)
            # S3 also refuses it for another request that has failed since: then it can be tried again
            if stored is None and not isinstance(error, Exists):
                raise
            return stored == content
        return True

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, whether it is there or not."""
        with self._at(name) as path:
            self._storage.write(path, content)

    def files(self, inside: str = "") -> dict[str, int]:
        """Return the bytes of all files in the folder and its subfolders, by name; empty if it is absent.

        :param inside: only those in this folder of it.
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

        :param ahead: how many bytes more than are asked for to read at once from a store; None for as many as
            its filesystem does (s3fs 50 MB).
        :raises PartsMissing: if it is absent.
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
                # some storages look for it with the first read alone
                raise gone from error

    def single_rows(self, part: Part) -> Iterator[SingleRow]:
        """Yield the rows of a file of single rows that are quarantined.

        :raises PartsMissing: if it is not there, or is not what was written.
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
        """Return whether a link leads from the folder to a file, so that it may also be elsewhere."""
        return self._storage.is_linked(f"{self.root}/{name}")

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, whatever their versions; absent files are no error."""
        for name in names:
            with self._at(name) as path:
                self._storage.delete(path)

    @contextlib.contextmanager
    def _at(self, name: str) -> Iterator[str]:
        """Provide a file's path; errors of the storage in the block name it."""
        path = f"{self.root}/{name}"
        with storage_errors(self.fs, path):
            yield path

    def path_of(self, name: str) -> str:
        """Return a file as shown to users."""
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
