"""The interface between a landing and a storage."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, BinaryIO, NamedTuple, Protocol


class Stored(NamedTuple):
    """A small file as it was read.

    :param content: the whole content.
    :param version: identifies this content when it is replaced or removed; its form depends on the storage.
    """

    content: bytes
    version: str


class Changed(Exception):
    """The file does not have the expected version: another process has written or removed it."""


class Storage(Protocol):
    """The operations on files by their full path; they raise the filesystem's errors."""

    def read(self, path: str) -> Stored | None:
        """Return a small file, or None if it is absent."""

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        """Write the file if it has the expected version (None: if it is absent), and return the new version.

        :raises Changed: if it has another version.
        """

    def tried(self, path: str, content: bytes, version: str) -> str | None:
        """Try out on a file that was just written whether the storage respects conditions.

        :return: the file's version; None if it does not, the content may be another then.
        """

    def remove(self, path: str, expected: str) -> bool:
        """Remove the file if it has the expected version.

        :return: False if the storage has no conditional removal; the file is then unchanged.
        :raises Changed: if it has another version, or is absent.
        """

    def files(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files in the folder and its subfolders by path; empty if it is absent."""

    def upload(self, path: str) -> AbstractContextManager[Any]:
        """Provide a file that becomes visible at ``path`` when it is complete, or is dropped on an error."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""

    def delete(self, path: str) -> None:
        """Remove a file, whatever its version; an absent file is no error."""
