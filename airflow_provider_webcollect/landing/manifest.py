"""The files that describe a landing: the manifest, which is the commit, and the progress record before it."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import msgspec
import pendulum

from airflow_provider_webcollect.landing.errors import DestinationUnreadable

#: Version of both files' layout.
VERSION = 1
MANIFEST = "_manifest.json"
PROGRESS = "_progress.json"
#: The pattern of the names that :func:`redshift_manifest_of` returns.
REDSHIFT_MANIFEST_PATTERN = r"_redshift_manifest-[0-9a-f]{16}\.json"
#: The pattern of a folder of a Hive partition.
PARTITION_PATTERN = r"[A-Za-z0-9-][A-Za-z0-9._-]*=[A-Za-z0-9._=-]+"

Mode = Literal["full", "incremental"]

#: The pattern of the names that :func:`part_name` returns.
PART_PATTERN = r"part-\d{5,}-[0-9a-f]{8}\.[a-z0-9.]+"
_PART_PATH = re.compile(rf"(?:{PARTITION_PATTERN}/)*{PART_PATTERN}")
_ATTEMPT_ID = re.compile(r"part-\d{5,}-([0-9a-f]{8})\.")


def new_attempt_id() -> str:
    """Return a random id that makes the part names of one attempt unique."""
    return secrets.token_hex(4)


def part_name(number: int, attempt_id: str, suffix: str) -> str:
    """Return the name of a part.

    :param number: its position in the landing, from 1.
    :param suffix: the format's suffix, with the dot.
    """
    return f"part-{number:05d}-{attempt_id}{suffix}"


def _check_part_names(names: Iterable[str]) -> None:
    """Raise ValueError unless all are names of parts: others could lead out of the folder."""
    for name in names:
        if not _PART_PATH.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a part")


def attempt_id_in(name: str) -> str | None:
    """Return the attempt id in the name of a part or of an incomplete part; None if it has none."""
    found = _ATTEMPT_ID.search(name)
    return found and found[1]


def now() -> str:
    """Return the current time, ISO 8601 in UTC."""
    return pendulum.now("UTC").isoformat(timespec="milliseconds")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is landed: the whole history of a task, or one batch of it."""

    collection_task_id: str
    lotno: str | None = None

    def is_same_as(self, other: Source) -> bool:
        """Return whether both name the same rows; the service's ids have no letter case.

        :param other: what is landed already.
        """
        return (self.collection_task_id.lower(), self.lotno) == (
            other.collection_task_id.lower(),
            other.lotno,
        )

    def __str__(self) -> str:
        batch = f", batch {self.lotno}" if self.lotno else ""
        return f"task {self.collection_task_id}{batch}"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The Airflow run that lands; a retry belongs to the same run."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1


def redshift_manifest_of(run: Run) -> str:
    """Return the name of the run's manifest for Redshift's COPY, which the transfer operator writes."""
    return f"_redshift_manifest-{hashlib.sha256(msgspec.json.encode(run)).hexdigest()[:16]}.json"


class PageFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the last page of a part, to check later whether the source still has it.

    :ivar offset: the cursor with which it was read.
    :ivar sha256: hex digest of the rows as compact JSON with sorted keys, one after another.
    """

    offset: int = 0
    rows: int = 0
    sha256: str = hashlib.sha256().hexdigest()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A finished file of rows.

    :ivar name: relative to the manifest, with the partition's folders if it has any.
    :ivar start_offset: the cursor before its first row.
    :ivar next_offset: the cursor after its last page.
    :ivar run: the run whose commit has added its rows; None before that.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    start_offset: int
    next_offset: int
    page_fingerprint: PageFingerprint = msgspec.field(name="last_page")
    run: Run | None = None


class RecordedPart(Part, frozen=True, kw_only=True):
    """A finished part of a landing that is not committed yet.

    :ivar column_count: number of the landing's columns that it has, from the first; 0 without fixed columns.
    """

    column_count: int = msgspec.field(default=0, name="columns")

    def bare(self) -> Part:
        """Return the part as the manifest lists it."""
        return Part(**{name: getattr(self, name) for name in Part.__struct_fields__})


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The commit: the parts listed here are the landing, whatever other files are beside them.

    :ivar encoding: the options of the file format that have no keys of their own.
    :ivar columns: field names in order; None for JSONL without fixed columns.
    :ivar new_parts: how many of the last parts this run has added; the others are older (incremental). 0 if
        the run has found nothing new.
    :ivar total: rows that the service announced; the same as ``rows``.
    :ivar started_at: ISO 8601, UTC, as is ``finished_at``.
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

    def __post_init__(self) -> None:
        _check_part_names(part.name for part in self.parts)

    def added(self) -> tuple[Part, ...]:
        """Return the parts that the run of this commit has added."""
        return self.parts[len(self.parts) - self.new_parts :]

    def added_by(self, run: Run) -> tuple[Part, ...]:
        """Return the parts that a run has added, even if other runs have landed since.

        :param run: the run.
        """
        return tuple(part for part in self.parts if part.run == run)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The record: the current owner, and what is safely written; a retry continues from here.

    :ivar landing_id: makes the part names of this attempt unique.
    :ivar attempt_ids: those of all attempts since the last commit; the files that they wrote and no manifest
        lists can be deleted after this landing is committed.
    :ivar replaced: names of other files that can be deleted then.
    :ivar encoding: the file format with all its options; a landing that continues must use the same.
    :ivar columns: the columns of all parts, in order.
    :ivar base: the ``landing_id`` of the commit that the folder held when this landing began.
    :ivar continues: whether the parts begin with those of that commit.
    :ivar run: the current or last owner, with ``attempt``. ``owner`` is a random id of its process; empty
        after the lease is released.
    :ivar heartbeat: a number that changes while the owner is alive.
    :ivar commit: the manifest that is being written. Once it is set, the owner or the next landing will write
        it.
    """

    version: int = VERSION
    landing_id: str = msgspec.field(default_factory=new_attempt_id)
    attempt_ids: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    source: Source
    mode: Mode = "full"
    encoding: dict[str, Any] = {}
    columns: tuple[str, ...] = ()
    parts: tuple[RecordedPart, ...] = ()
    base: str | None = None
    continues: bool = False
    started_at: str
    run: Run | None = None
    attempt: int = 0
    owner: str = ""
    heartbeat: int = 0
    commit: Manifest | None = None

    def __post_init__(self) -> None:
        _check_part_names((*(part.name for part in self.parts), *self.replaced))

    @property
    def rows(self) -> int:
        """Number of rows in all finished parts."""
        return sum(part.rows for part in self.parts)

    @property
    def next_offset(self) -> int:
        """The cursor from which to continue."""
        return self.parts[-1].next_offset if self.parts else 0

    @property
    def page_fingerprint(self) -> PageFingerprint:
        """The fingerprint of the last page of the finished parts; without parts, one without rows."""
        return self.parts[-1].page_fingerprint if self.parts else PageFingerprint()

    def with_part(self, part: RecordedPart, columns: tuple[str, ...]) -> Progress:
        """Return the progress after ``part``."""
        return msgspec.structs.replace(self, parts=(*self.parts, part), columns=columns)

    def with_replaced(self, number: int, part: RecordedPart) -> Progress:
        """Return the progress with ``part`` instead of the one at index ``number``."""
        parts = (*self.parts[:number], part, *self.parts[number + 1 :])
        return msgspec.structs.replace(self, parts=parts)


class _Versioned(msgspec.Struct):
    version: int


F = TypeVar("F", Manifest, Progress)


def encode(content: Manifest | Progress) -> bytes:
    """Return the file's content: readable JSON."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2)


def decode_manifest(content: bytes, where: str) -> Manifest:
    """Decode a manifest.

    :param where: the file's path, for the error.
    :raises DestinationUnreadable: if it is not a manifest, or has a newer layout.
    """
    return _decode(content, where, Manifest)


def decode_progress(content: bytes, where: str) -> Progress:
    """Decode a record; ``where`` and the errors are as in :func:`decode_manifest`."""
    return _decode(content, where, Progress)


def decode_found_progress(content: bytes, where: str) -> Progress:
    """Decode the record that a landing has found; an incomplete file gives one without owner and parts.

    The owner of an incomplete file may be dead, or about to complete it. ``where`` and the errors are as in
    :func:`decode_manifest`.
    """
    if is_torn(content):
        return Progress(source=Source(collection_task_id=""), started_at="", owner="unknown")
    return decode_progress(content, where)


def is_torn(content: bytes) -> bool:
    """Return whether a file is not JSON, for example after a kill on a storage without atomic replacement."""
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return False


def _decode(content: bytes, where: str, kind: type[F]) -> F:
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version == VERSION:
            return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "" if kind is Manifest else "; while no landing is at work it can be deleted"
        raise DestinationUnreadable(f"{where} is not readable: {error}{hint}") from error
    raise DestinationUnreadable(f"{where} is of version {version}, this provider knows version {VERSION}")
