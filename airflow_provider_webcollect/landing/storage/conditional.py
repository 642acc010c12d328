"""What a landing asks of a storage."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, BinaryIO, NamedTuple, Protocol


class Stored(NamedTuple):
    """A small file as it was read.

    :param content: all of it.
    :param version: what this very content has to be replaced or removed with; each storage has its own form.
    """

    content: bytes
    version: str


class Changed(Exception):
    """The file is not the one that was expected: another has written or removed it."""


class Storage(Protocol):
    """The operations on files by their full path; errors are those of the filesystem."""

    def try_out(self, folder: str) -> bool:
        """Find out whether files can be written to the folder, and leave nothing behind.

        :return: whether the storage respects the conditions of :meth:`replace`.
        """

    def read(self, path: str) -> Stored | None:
        """Return a small file, or None if it is absent."""

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it is of the expected version, None: if it is absent; return the new version.

        :raises Changed: if it is not.
        """

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it is of the expected version.

        :return: False if the storage cannot remove on a condition; the file then is as it was.
        :raises Changed: if it is of another version, or absent.
        """

    def files(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files in the folder and below by path; none if the folder is absent."""

    def upload(self, path: str) -> AbstractContextManager[Any]:
        """Give a file that becomes visible at ``path`` at the end, whole, or is dropped on an error."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""

    def delete(self, path: str) -> None:
        """Remove a file, whatever its version; an absent one is fine."""
