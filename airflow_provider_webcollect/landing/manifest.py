"""What a landing writes about itself: the manifest, which is the commit, and the progress until then."""

from __future__ import annotations

import secrets
from typing import Literal

import msgspec

#: Version of both files' layout.
VERSION = 1
MANIFEST = "_manifest.json"
PROGRESS = "_progress.json"

FileFormat = Literal["jsonl"]


def _new_id() -> str:
    return secrets.token_hex(4)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is landed: the whole history of a task, or one batch of it."""

    collection_task_id: str
    lotno: str | None = None

    def __str__(self) -> str:
        batch = f", batch {self.lotno}" if self.lotno else ""
        return f"task {self.collection_task_id}{batch}"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The Airflow run that lands; a retry is the same run."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A finished file of rows.

    :ivar name: relative to the manifest.
    :ivar start_offset: the cursor with which its first page was read.
    :ivar next_offset: the cursor after its last page.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    start_offset: int
    next_offset: int


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What an unfinished landing has safely written; a retry goes on from here.

    :ivar landing_id: distinguishes the part names of this try from those of others.
    """

    version: int = VERSION
    landing_id: str = msgspec.field(default_factory=_new_id)
    source: Source
    format: FileFormat = "jsonl"
    compression: str | None = None
    parts: tuple[Part, ...] = ()
    started_at: str

    @property
    def rows(self) -> int:
        """Rows in all finished parts."""
        return sum(part.rows for part in self.parts)

    @property
    def next_offset(self) -> int:
        """The cursor to go on with."""
        return self.parts[-1].next_offset if self.parts else 0

    def resumed(self, parts: tuple[Part, ...]) -> Progress:
        """Return the progress to go on with after ``parts``.

        What comes next has names of its own: a try that Airflow has given up may still be writing.
        """
        return msgspec.structs.replace(self, landing_id=_new_id(), parts=parts)

    def with_part(self, part: Part) -> Progress:
        """Return the progress after ``part``."""
        return msgspec.structs.replace(self, parts=(*self.parts, part))


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The commit: the parts listed here are the landing, whatever else lies beside them.

    :ivar columns: field names in order; None for JSONL, whose rows name their own.
    :ivar total: rows that the service announced; the same as ``rows``.
    :ivar started_at: and ``finished_at``: ISO 8601, UTC.
    """

    version: int = VERSION
    landing_id: str
    source: Source
    rows: int
    bytes: int
    format: FileFormat
    compression: str | None = None
    columns: tuple[str, ...] | None = None
    parts: tuple[Part, ...]
    next_offset: int
    total: int
    run: Run
    started_at: str
    finished_at: str
    provider_version: str
