"""The log of a table of Delta Lake: its end is copied to this machine, where the table's library works.

On an object store the library would ask for each entry several times, and for a checkpoint a dozen times.
Here each file is read once, and what the library has written becomes an entry of the table's log if there is
none of its number, as Delta Lake demands.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.errors import StorageError
from airflow_provider_webcollect.landing.storage.folder import DELTA_LOG
from airflow_provider_webcollect.landing.temporary import TemporaryFolder

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)
#: Names the last checkpoint, if it is there.
_HINT = f"{DELTA_LOG}/_last_checkpoint"
_NUMBERED = re.compile(rf"{DELTA_LOG}/(\d{{20}})\..+")
_SIDECAR = re.compile(rf"{DELTA_LOG}/_sidecars/[^/]+")


class _Checkpoint(msgspec.Struct):
    """The file that names the last checkpoint.

    :ivar parts: in how many files it is, if not in one.
    """

    version: int
    parts: int | None = None
    v2Checkpoint: msgspec.Raw | None = None  # noqa: N815  # as it is in the file


def _entry(number: int) -> str:
    return f"{DELTA_LOG}/{number:020}.json"


class DeltaLog:
    """The end of a table's log, from its last checkpoint on, as it was when it was copied.

    :param folder: of the table.
    :ivar is_empty: whether there is no table.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._copied = TemporaryFolder("delta")
        self._contents: dict[str, bytes] = {}
        self._copy_log()
        self.is_empty = not self._contents

    @property
    def uri(self) -> str:
        """The address of the copy for the library."""
        return self._copied.path.as_uri()

    def publish(self) -> bool:
        """Add the entries that the library has written to the table's log, and checkpoints after them.

        :return: False if others have written such an entry.
        """
        files = [file for file in (self._copied.path / DELTA_LOG).glob("*") if file.is_file()]
        contents = {f"{DELTA_LOG}/{file.name}": file.read_bytes() for file in files}
        written = {
            name: content
            for name, content in contents.items()
            if (name == _HINT or _NUMBERED.fullmatch(name)) and content != self._contents.get(name)
        }
        entries = sorted(name for name in written if name.endswith(".json"))
        if not all(self._folder.created(name, written[name]) for name in entries):
            return False
        # the file that names the checkpoint comes last
        for name in sorted(written.keys() - entries, key=lambda name: name == _HINT):
            try:
                self._folder.write(name, written[name])
            except StorageError as error:
                # it only spares readers the entries before it
                log.warning("%s was not written: %s", self._folder.path_of(name), error)
        return True

    def _copy_log(self) -> None:
        number = 0
        if (hint := self._copy(_HINT)) is not None:
            checkpoint = msgspec.json.decode(hint, type=_Checkpoint)
            number = checkpoint.version + 1
            if checkpoint.parts is not None or checkpoint.v2Checkpoint is not None:
                self._copy_listed(checkpoint.version)
            elif self._copy(f"{DELTA_LOG}/{checkpoint.version:020}.checkpoint.parquet") is None:
                self._copy_listed(0)
        first = number
        while self._copy(_entry(number)) is not None:
            number += 1
        if number == first > 0:
            # the library also looks for the entry of the checkpoint, if there is no later one
            self._copy(_entry(first - 1))
        if not self._contents:
            # it may begin with a checkpoint that nothing names
            self._copy_listed(0)

    def _copy_listed(self, first: int) -> None:
        """Copy all files of the log from a number on."""
        for name in self._folder.files(DELTA_LOG):
            numbered = _NUMBERED.fullmatch(name)
            if (numbered and int(numbered[1]) >= first) or _SIDECAR.fullmatch(name):
                self._copy(name)

    def _copy(self, name: str) -> bytes | None:
        """Copy a file, and return its content; None if it is absent."""
        if name in self._contents:
            return self._contents[name]
        content = self._folder.read(name)
        if content is not None:
            copied = self._copied.path / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(content)
            self._contents[name] = content
        return content
