"""A folder on any fsspec filesystem that holds one landing."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import posixpath
import re
import secrets
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    DestinationUnreadable,
    PartsMissing,
)
from airflow_provider_webcollect.landing.manifest import MANIFEST, PROGRESS, VERSION, Manifest, Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from fsspec import AbstractFileSystem

    from airflow_provider_webcollect.landing.manifest import Part

P = TypeVar("P", bound="Part")
F = TypeVar("F", Manifest, Progress)


class _Versioned(msgspec.Struct):
    version: int


_PART = re.compile(r"part-\d{5,}-[0-9a-f]{8}\.[a-z0-9.]+")
_HIDDEN = re.compile(r"\.tmp-.+")
#: Bytes that are sent to an object store at a time.
BLOCK_BYTES = 8 * 1024 * 1024
#: Bytes after which a disk is told to begin with them, so that the sync in the end has little to wait for.
WRITE_OUT_BYTES = 4 * 1024 * 1024


class PartFile:
    """A part being written: counts and digests what passes. It becomes visible only when finished."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._on_its_way = 0
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)
        if self.bytes - self._on_its_way >= WRITE_OUT_BYTES:
            _write_out(self._file, self._on_its_way, self.bytes)
            self._on_its_way = self.bytes

    @property
    def sha256(self) -> str:
        """Hex digest of what was written so far."""
        return self._digest.hexdigest()


class Destination:
    """The files of a landing, by what they mean.

    :param fs: the filesystem.
    :param root: the folder's path on it.
    """

    def __init__(self, fs: AbstractFileSystem, root: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        # elsewhere a file is only there once it is complete; here, and in memory, from its first byte
        self._shows_unfinished = not {"file", "local", "memory"}.isdisjoint(protocols)

    def manifest(self) -> Manifest | None:
        """Return the commit, if there is one."""
        return self._read(MANIFEST, Manifest)

    def progress(self) -> Progress | None:
        """Return what an unfinished landing has written, if there is one."""
        return self._read(PROGRESS, Progress)

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest; from now on it is what readers see."""
        self._write(MANIFEST, manifest)

    def record(self, progress: Progress) -> None:
        """Write the progress."""
        self._write(PROGRESS, progress)

    def intact(self, parts: Sequence[P]) -> tuple[P, ...]:
        """Return the parts up to the first that is not there any more, or not as long as it was."""
        sizes = {name: entry["size"] for name, entry in self._entries().items()}
        return tuple(itertools.takewhile(lambda part: sizes.get(part.name) == part.bytes, parts))

    def refuse_foreign_files(self) -> None:
        """Raise :class:`DestinationTaken` if the folder holds anything that no landing wrote."""
        foreign = [name for name in self._entries() if not _is_ours(name)]
        if foreign:
            raise DestinationTaken(
                f"{self._root} holds files that no landing wrote ({', '.join(sorted(foreign)[:5])}); "
                "give the landing a folder of its own"
            )

    def tidy(self, manifest: Manifest) -> None:
        """Remove what the commit made needless: progress, parts of other landings, half-written files.

        :raises PartsMissing: if a part of the commit is not there.
        """
        kept = {MANIFEST, *(part.name for part in manifest.parts)}
        found = self._entries()
        if missing := sorted(kept - found.keys()):
            raise PartsMissing(
                f"{', '.join(missing)} has vanished; does anything else write to {self._root}?"
            )
        for name in found:
            if name not in kept and _is_ours(name):
                # another try of the same run may be tidying up too
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(self._path(name))

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[PartFile]:
        """Give a file to write a part to; it becomes visible as ``name`` at the end, or not at all."""
        with self._renamed(name) if self._shows_unfinished else self._published(name) as file:
            yield PartFile(file)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a part for reading."""
        with self._fs.open(self._path(name), "rb") as file:
            yield file

    def _read(self, name: str, kind: type[F]) -> F | None:
        # what another process has written since the last listing counts too
        self._fs.invalidate_cache(self._root)
        try:
            text = self._fs.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        try:
            version = msgspec.json.decode(text, type=_Versioned).version
            if version == VERSION:
                return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DestinationUnreadable(f"{self._path(name)} is not readable: {error}") from error
        raise DestinationUnreadable(
            f"{self._path(name)} is of version {version}, this provider writes version {VERSION}"
        )

    def _write(self, name: str, content: Manifest | Progress) -> None:
        text = msgspec.json.format(msgspec.json.encode(content), indent=2)
        if self._shows_unfinished:
            with self._renamed(name) as file:
                file.write(text)
        else:
            # one request, which replaces the old content at once or not at all
            self._fs.pipe_file(self._path(name), text)

    @contextlib.contextmanager
    def _renamed(self, name: str) -> Iterator[Any]:
        """Give a file that replaces ``name`` in one step at the end, or is dropped on an error."""
        # a rename is atomic, and beside the target it never crosses a disk
        self._fs.makedirs(self._root, exist_ok=True)
        hidden = self._path(f".tmp-{name}-{secrets.token_hex(4)}")
        try:
            with self._fs.open(hidden, "wb") as file:
                yield file
                _sync(file)
            self._rename(hidden, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.rm_file(hidden)
            raise

    def _rename(self, hidden: str, name: str) -> None:
        try:
            self._fs.mv(hidden, self._path(name))
        except FileNotFoundError as error:
            raise PartsMissing(
                f"{name} was removed while it was being written; does anything else write to {self._root}?"
            ) from error

    @contextlib.contextmanager
    def _published(self, name: str) -> Iterator[Any]:
        """Give an upload that becomes ``name`` at the end, or is aborted on an error."""
        file = self._fs.open(self._path(name), "wb", autocommit=False, block_size=BLOCK_BYTES)
        try:
            yield file
            file.close()
            file.commit()
        except BaseException:
            # without this, the file object would publish what it has when it is collected; there are stores
            # (adlfs) where closing publishes in any case, so it is never closed
            file.closed = True
            with contextlib.suppress(Exception):
                file.discard()
            raise

    def _entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what the folder holds, by name."""
        self._fs.invalidate_cache(self._root)
        try:
            found = self._fs.ls(self._root, detail=True)
        except FileNotFoundError:
            return {}
        paths = {str(entry["name"]).rstrip("/"): entry for entry in found}
        # some stores list the folder itself
        return {
            posixpath.basename(path): entry
            for path, entry in paths.items()
            if path.lstrip("/") != self._root.lstrip("/")
        }

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _is_ours(name: str) -> bool:
    return name in {MANIFEST, PROGRESS} or bool(_PART.fullmatch(name) or _HIDDEN.fullmatch(name))


def _write_out(file: Any, start: int, end: int) -> None:
    """Have the disk begin with a range of the file, where there is a disk; nothing waits for it."""
    if sys.platform == "linux":
        # a hint and no more: what goes wrong with it, goes wrong with the sync
        with contextlib.suppress(AttributeError, OSError):
            # drops from memory what is on the disk, and first has the rest brought there
            os.posix_fadvise(file.fileno(), start, end - start, os.POSIX_FADV_DONTNEED)


def _sync(file: Any) -> None:
    """Bring a file to the disk, where there is one, before its new name says that it is complete."""
    file.flush()
    with contextlib.suppress(io.UnsupportedOperation):
        os.fsync(file.fileno())
