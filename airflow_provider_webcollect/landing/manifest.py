"""What a landing writes about itself: the manifest, which is the commit, and the progress until then."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Literal

import msgspec

#: Version of both files' layout.
VERSION = 1
MANIFEST = "_manifest.json"
PROGRESS = "_progress.json"

Mode = Literal["full", "incremental"]


def new_id() -> str:
    """Return what distinguishes the names of one landing's parts from those of all others."""
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


class LastPage(msgspec.Struct, frozen=True, kw_only=True):
    """The last page that was read for a part, to see later whether the source still has it.

    :ivar offset: the cursor with which it was read.
    :ivar sha256: hex digest of the rows as compact JSON with sorted keys, one after another.
    """

    offset: int = 0
    rows: int = 0
    sha256: str = hashlib.sha256().hexdigest()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A finished file of rows.

    :ivar name: relative to the manifest.
    :ivar start_offset: the cursor before its first row.
    :ivar next_offset: the cursor after its last page.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    start_offset: int
    next_offset: int
    last_page: LastPage


class RecordedPart(Part, frozen=True, kw_only=True):
    """A finished part of a landing that is not committed yet.

    :ivar columns: it has the first so many columns of the landing; 0 where rows name their own.
    """

    columns: int = 0

    def bare(self) -> Part:
        """Return what the manifest says of it."""
        return Part(**{name: getattr(self, name) for name in Part.__struct_fields__})


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What an unfinished landing has safely written; a retry goes on from here.

    :ivar landing_id: distinguishes the part names of this try from those of others.
    :ivar encoding: the file format with all its options: what goes on must write the same.
    :ivar columns: of all parts, in order.
    :ivar base: the ``landing_id`` of the commit that stood at the destination when this began.
    :ivar continues: whether the parts begin with those of that commit.
    :ivar run: who is landing, ``owner`` being the try, and ``touched_at`` (ISO 8601, UTC) its latest sign of
        life; None once it has given up.
    :ivar turn: the so many-th try that is landing; the latest one wins.
    """

    version: int = VERSION
    landing_id: str = msgspec.field(default_factory=new_id)
    source: Source
    mode: Mode = "full"
    encoding: dict[str, Any] = {}
    columns: tuple[str, ...] = ()
    parts: tuple[RecordedPart, ...] = ()
    base: str | None = None
    continues: bool = False
    started_at: str
    run: Run | None = None
    owner: str = ""
    turn: int = 0
    touched_at: str | None = None

    @property
    def rows(self) -> int:
        """Rows in all finished parts."""
        return sum(part.rows for part in self.parts)

    @property
    def next_offset(self) -> int:
        """The cursor to go on with."""
        return self.parts[-1].next_offset if self.parts else 0

    @property
    def last_page(self) -> LastPage:
        """The last page of the finished parts; without parts, one without rows."""
        return self.parts[-1].last_page if self.parts else LastPage()

    def resumed(self, parts: tuple[RecordedPart, ...]) -> Progress:
        """Return the progress to go on with after ``parts``.

        What comes next has names of its own: a try that Airflow has given up may still be writing.
        """
        return msgspec.structs.replace(self, landing_id=new_id(), parts=parts)

    def with_part(self, part: RecordedPart, columns: tuple[str, ...]) -> Progress:
        """Return the progress after ``part``."""
        return msgspec.structs.replace(self, parts=(*self.parts, part), columns=columns)

    def with_replaced(self, number: int, part: RecordedPart) -> Progress:
        """Return the progress with ``part`` instead of the one at index ``number``."""
        parts = (*self.parts[:number], part, *self.parts[number + 1 :])
        return msgspec.structs.replace(self, parts=parts)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The commit: the parts listed here are the landing, whatever else lies beside them.

    :ivar encoding: the file format with all its options, as far as they are not in keys of their own.
    :ivar columns: field names in order; None for JSONL whose rows name their own.
    :ivar new_parts: how many of the last parts this run has added; the others are older (incremental).
    :ivar total: rows that the service announced; the same as ``rows``.
    :ivar started_at: and ``finished_at``: ISO 8601, UTC.
    :ivar exported_at: when the export was confirmed to the service after the commit; None if it was not.
    """

    version: int = VERSION
    landing_id: str
    source: Source
    rows: int
    bytes: int
    format: str
    compression: str | None = None
    encoding: dict[str, Any] = {}
    columns: tuple[str, ...] | None = None
    parts: tuple[Part, ...]
    new_parts: int
    next_offset: int
    total: int
    run: Run
    started_at: str
    finished_at: str
    exported_at: str | None = None
    provider_version: str

    def added(self) -> tuple[Part, ...]:
        """Return the parts that the run of this commit has added."""
        return self.parts[len(self.parts) - self.new_parts :]
