"""The folder of one landing on any fsspec filesystem."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from airflow_provider_webcollect.landing.errors import PartsMissing, StorageError
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    PART_PATTERN,
    PARTITION_PATTERN,
    PROGRESS,
    QUARANTINE_PATTERN,
    REDSHIFT_MANIFEST_PATTERN,
    Manifest,
    Part,
    decode,
    encode,
    is_replaced_manifest,
    missing_part,
    replaced_manifest,
)
from airflow_provider_webcollect.landing.storage import (
    Changed,
    Memory,
    Storage,
    Stored,
    Unconditional,
    knows_no_conditions,
    storage_errors,
    url,
)
from airflow_provider_webcollect.landing.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from fsspec import AbstractFileSystem


#: A part or an incomplete file, in the folder, in partition folders or among quarantined rows; or a manifest
#: for Redshift, or of quarantined rows.
_OURS = re.compile(
    rf"(?:{QUARANTINE_PATTERN}/)?(?:{PARTITION_PATTERN}/)*(?:{PART_PATTERN}|\.tmp-[^/]+)"
    rf"|{REDSHIFT_MANIFEST_PATTERN}|{QUARANTINE_PATTERN}/{MANIFEST}"
)
#: What file systems, Spark, Hadoop and macOS leave in folders.
_MARKER = re.compile(r"(?:[^/]+/)*(?:\.nfs[^/]*|_SUCCESS|[^/]*_\$folder\$|\.[^/]*\.crc|\.DS_Store)")
#: Where a table of Delta Lake has its log.
DELTA_LOG = "_delta_log"
_PARTITION = re.compile(PARTITION_PATTERN)
#: Attempts of a write that is refused although the file has the expected version.
CONFLICTS = 5
#: Bytes after which the disk starts to write them, so that the final sync takes little time.
WRITE_OUT_BYTES = 4 * 1024 * 1024


class PartFile:
    """A part being written; counts and digests its bytes. It becomes visible only when finished.

    :param errors: returns a context manager that explains the storage's errors.
    """

    def __init__(self, file: Any, errors: Callable[[], AbstractContextManager[Any]]) -> None:
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
            _write_out(self._file, self._on_its_way, self.bytes)
            self._on_its_way = self.bytes

    @property
    def sha256(self) -> str:
        """Hex digest of what has been written so far."""
        return self._digest.hexdigest()


class Committed(NamedTuple):
    """A manifest as it was read.

    :ivar version: of it; a commit is made on the condition that it still is the current one.
    """

    manifest: Manifest
    version: str


class Folder:
    """The files of a landing, by their names relative to the folder; the manifest's write is the commit.

    All methods raise :class:`~.landing.errors.StorageError` if the storage fails or denies access.

    :param fs: the filesystem.
    :param root: the folder's path on it; it need not exist.
    :param shown: how users name it, if that says more than the path, such as the connection of the storage.
    :cvar table_format: of the table that it is; None for a folder with a manifest. The files that a commit of
        a table replaces belong to an older version that can still be read: they are not the landing's to
        delete.
    """

    table_format: str | None = None

    def __init__(self, fs: AbstractFileSystem, root: str, shown: str | None = None) -> None:
        self.root = root.rstrip("/")
        self.fs = fs
        self._shown = shown
        self._storage = _storage_of(fs)

    @property
    def url(self) -> str:
        """The folder as shown to users: with its scheme, except on a local disk."""
        return self._shown or url(self.fs, self.root)

    @property
    def as_argument(self) -> str:
        """The folder as a command of ``webcollect landing`` takes it in a shell."""
        return shlex.quote(self.url)

    def inside(self, name: str) -> Folder:
        """Return a folder in this one.

        :param name: its name, relative to this one.
        """
        inside = Folder(self.fs, f"{self.root}/{name}")
        inside._storage = self._storage
        return inside

    def enclosing(self) -> Folder | None:
        """Return the folder of the landing whose partition this folder is; None if there is none."""
        outer = posixpath.dirname(self.root)
        if not _PARTITION.fullmatch(posixpath.basename(self.root)):
            return None
        folder = Folder(self.fs, outer)
        try:
            is_landing = (
                folder.read(MANIFEST) is not None
                or folder.read(PROGRESS) is not None
                or bool(folder.inside(DELTA_LOG).files())
            )
        except StorageError as error:
            # who may not read above this folder cannot land there either
            if not error.permanent:
                raise
            return None
        return folder if is_landing else folder.enclosing()

    def committed(self) -> Committed | None:
        """Return the manifest, or None if nothing was committed.

        :raises DestinationUnreadable: if it is not complete, or of a newer version.
        """
        stored = self.read(MANIFEST)
        return stored and Committed(
            decode(stored.content, f"{self.root}/{MANIFEST}", Manifest), stored.version
        )

    def commit(self, manifest: Manifest, expected: str | None) -> str:
        """Replace the manifest, if it still has the version that was read.

        :param expected: that version; None if there was none.
        :return: the new version.
        :raises Changed: if another landing has committed meanwhile; nothing was written then.
        """
        return self.replace(MANIFEST, encode(manifest), expected)

    def check_partition(self, partition: str | None) -> None:
        """Check that new parts may be in such folders.

        :param partition: the folders, such as ``dt=2026-01-01``; None for the folder itself.
        :raises FormatChanged: if it is a table that is partitioned by other columns.
        """

    def missing(self, manifest: Manifest, files: Mapping[str, int]) -> Part | None:
        """Return the first part of the landing without its file; None if all are there.

        :param files: bytes by name.
        """
        return missing_part(manifest.parts, files)

    def read(self, name: str) -> Stored | None:
        """Return a small file with the version of this content, or None if it is absent."""
        with self._at(name) as path:
            return self._storage.read(path)

    def replace(self, name: str, content: bytes, expected: str | None) -> str:
        """Write a file if it still has the version that was read.

        :param expected: the version that was read; None if the file was absent.
        :return: the new version.
        :raises Changed: if another process has written or removed the file; nothing was written then.
        """
        for _ in range(CONFLICTS):
            try:
                return self._replace(name, content, expected)
            except Changed:
                found = self.read(name)
                # if it is unchanged, this write collided with another one that has failed since
                if (found.version if found else None) != expected:
                    raise
        raise StorageError(f"{self._url(name)} is not replaced, although nobody has changed it")

    def claim(self, name: str, content: bytes, expected: str | None) -> str:
        """Write a file as :meth:`replace` does, and find out whether the storage respects the condition.

        If it does not, later writes are made without conditions.

        :raises Changed: also if it does not: what was read with conditions must be read again.
        """
        try:
            version = self.replace(name, content, expected)
        except StorageError as error:
            if error.__cause__ is None or not knows_no_conditions(error.__cause__):
                raise
            # the store refuses requests that have conditions
            self._storage = Unconditional(self.fs)
            raise Changed(name) from error
        with self._at(name) as path:
            respected = self._storage.tried(path, content, version)
            if respected is None:
                self._storage = Unconditional(self.fs)
                self.fs.pipe_file(path, content)
                raise Changed(name)
        return respected

    def _replace(self, name: str, content: bytes, expected: str | None) -> str:
        try:
            with self._at(name) as path:
                return self._storage.replace(path, content, expected)
        except (Changed, StorageError) as error:
            if getattr(error, "permanent", False):
                raise
            # the write may have succeeded, and only the response been lost
            found = self.read(name)
            if found is None or found.content != content:
                raise
            return found.version

    def remove(self, name: str, expected: str) -> bool:
        """Remove a file if it still has the version that was read.

        :param expected: the version that was read.
        :return: False if the storage has no conditional removal; the file is then unchanged.
        :raises Changed: if the file is absent, or another process has written it.
        """
        with self._at(name) as path:
            return self._storage.remove(path, expected)

    def files(self) -> dict[str, int]:
        """Return the bytes of all files in the folder and its subfolders, by name; empty if it is absent."""
        with storage_errors(self.fs, self.root):
            found = self._storage.files(self.root)
        start = len(f"{self.root}/".lstrip("/"))
        return {path.lstrip("/")[start:]: size for path, size in found.items()}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[PartFile]:
        """Provide a file for a part, or for any file that is written only once.

        It becomes visible as ``name`` when it is complete, or not at all.
        """
        with contextlib.ExitStack() as upload:
            with self._at(name) as path:
                file = upload.enter_context(self._storage.upload(path))
            yield PartFile(file, lambda: self._at(name))
            with self._at(name):
                upload.close()

    def unreferenced(self, names: set[str]) -> set[str]:
        """Return the names of files that no older version needs which can still be read.

        :param names: of files that the manifest does not need.
        """
        return names

    def keep_replaced(self, manifest: Manifest) -> None:
        """Write a manifest that is to be replaced under a name of its own, so that it can be put back."""
        with self.part(replaced_manifest(manifest.landing_id)) as file:
            file.write(encode(manifest))

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a part for reading.

        :raises PartsMissing: if it is absent.
        """
        with self._at(name) as path:
            try:
                file = self._storage.open(path)
            except FileNotFoundError as error:
                raise PartsMissing(f"{self._url(name)} is not there any more") from error
        with file:
            yield file

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

    def _url(self, name: str) -> str:
        return url(self.fs, f"{self.root}/{name}")


def _storage_of(fs: AbstractFileSystem) -> Storage:
    """Return the storage operations for ``fs``."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & {"file", "local"}:
        return Disk()
    if "memory" in protocols:
        return Memory(fs)
    from airflow_provider_webcollect.landing.storage.object_stores import S3, Azure, GoogleCloudStorage

    # the methods used are checked too, since other filesystems exist for the same stores
    if "s3" in protocols and hasattr(fs, "call_s3"):
        return S3(fs)
    if "abfs" in protocols and hasattr(fs, "service_client"):
        return Azure(fs)
    if "gs" in protocols and hasattr(fs, "_call"):
        return GoogleCloudStorage(fs)
    return Unconditional(fs)


def is_ours(name: str) -> bool:
    """Return whether a landing uses such a name, at the top or in partition folders."""
    return name in {MANIFEST, PROGRESS} or is_replaced_manifest(name) or bool(_OURS.fullmatch(name))


def is_marker(name: str) -> bool:
    """Return whether a file says nothing of rows: other tools leave such files in any folder."""
    return name.endswith("/") or bool(_MARKER.fullmatch(name))


def _write_out(file: Any, start: int, end: int) -> None:
    """Let the disk start to write a range of the file in the background, if there is a disk."""
    if sys.platform == "linux":
        # only a hint: errors will show in the sync
        with contextlib.suppress(AttributeError, OSError):
            # drops written data from the page cache, and for that starts to write the rest
            os.posix_fadvise(file.fileno(), start, end - start, os.POSIX_FADV_DONTNEED)
