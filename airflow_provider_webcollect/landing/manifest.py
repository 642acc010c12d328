"""The files that describe a landing: the manifest, which is the commit, and the progress file before it."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
import pendulum

from airflow_provider_webcollect.landing.checks import CheckOutcome, Counts
from airflow_provider_webcollect.landing.errors import DestinationUnreadable
from airflow_provider_webcollect.landing.profile import Profile

#: Version of both files' layout.
VERSION = 1
MANIFEST = "_manifest.json"
PROGRESS = "_progress.json"
#: The pattern of the names that :func:`redshift_manifest` returns.
REDSHIFT_MANIFEST_PATTERN = r"_redshift_manifest-[0-9a-f]{16}\.json"
#: The pattern of the names that :func:`replaced_manifest` returns.
REPLACED_PATTERN = r"_manifest-[0-9a-f]{8}\.json"
#: The pattern of a folder of a Hive partition.
PARTITION_PATTERN = r"[A-Za-z0-9-][A-Za-z0-9._-]*=[A-Za-z0-9._=-]+"

Mode = Literal["full", "incremental"]
#: Digits of a run's digest in the entry of a part.
_RUN_DIGITS = 12
#: How many runs a manifest has records of.
MOST_RECORDS = 30

#: The pattern of the names that :func:`part_name` returns.
PART_PATTERN = r"part-\d{5,}-[0-9a-f]{8}\.[a-z0-9.]+"
#: A folder for quarantined rows, named after their run and its attempt.
QUARANTINE_PATTERN = r"_quarantine/[A-Za-z0-9._-]+-[0-9a-f]{8}"
QUARANTINE = re.compile(QUARANTINE_PATTERN)
_PART_PATH = re.compile(rf"(?:{PARTITION_PATTERN}/)*{PART_PATTERN}")
_REPLACED = re.compile(REPLACED_PATTERN)
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


def quarantine_folder(run_id: str, attempt_id: str) -> str:
    """Return the name of the folder for an attempt's quarantined rows."""
    return f"_quarantine/{re.sub('[^A-Za-z0-9._-]', '-', run_id)[:80]}-{attempt_id}"


def attempt_id_in(name: str) -> str | None:
    """Return the attempt id in the name of a part or of an incomplete part; None if it has none."""
    found = _ATTEMPT_ID.search(name)
    return found and found[1]


def now() -> str:
    """Return the current time, ISO 8601 in UTC."""
    return pendulum.now("UTC").isoformat(timespec="milliseconds")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is landed: the whole history of a task, or one batch of it.

    :ivar host: the service's host; None if it is not known.
    """

    collection_task_id: str
    lotno: str | None = None
    host: str | None = None

    def is_same_as(self, other: Source) -> bool:
        """Return whether both name the same rows; the service's ids and hosts have no letter case.

        :param other: what is landed already.
        """
        if self.host and other.host and self.host.lower() != other.host.lower():
            return False
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

    def digest(self) -> str:
        """Return the hex digest that stands for the run where many are named."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def short_digest(self) -> str:
        """Return the first digits of the digest, as parts have them."""
        return self.digest()[:_RUN_DIGITS]

    def __str__(self) -> str:
        mapped = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"run {self.run_id} of {self.dag_id}.{self.task_id}{mapped}"


def counted(number: int, noun: str) -> str:
    """Return a number of things for a message, such as ``1 part`` and ``1,200 parts``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def redshift_manifest(run: Run) -> str:
    """Return the name of the manifest with which Redshift's COPY loads a run's parts."""
    return f"_redshift_manifest-{run.digest()[:16]}.json"


def replaced_manifest(landing_id: str) -> str:
    """Return the name under which a manifest that ``on_reset="full"`` replaces is kept."""
    return f"_manifest-{landing_id}.json"


def is_replaced_manifest(name: str) -> bool:
    """Return whether :func:`replaced_manifest` gives such a name."""
    return bool(_REPLACED.fullmatch(name))


class PageFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the last landed page, to check later whether the source still has it.

    :ivar offset: the cursor with which it was read.
    :ivar sha256: hex digest of the rows as compact JSON with sorted keys, one after another.
    """

    offset: int = 0
    rows: int = 0
    sha256: str = hashlib.sha256().hexdigest()


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished file of rows; it never changes.

    :ivar name: relative to the manifest, with the partition's folders if it has any.
    :ivar start_offset: the cursor before its first row.
    :ivar next_offset: the cursor after its last page.
    :ivar columns: how many of the landing's columns it has, from the first; None for all of them.
    :ivar run: the first digits of the digest of the run that reports its rows; None before the commit.
    :ivar landed_at: when it was committed, ISO 8601 in UTC; None before. It stays if another run reports it.
    :ivar profile: what its rows hold, column by column.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    start_offset: int
    next_offset: int
    columns: int | None = None
    run: str | None = None
    landed_at: str | None = None
    profile: Profile = Profile()

    def of(self, run: Run) -> Part:
        """Return the part as one whose rows a run reports.

        :param run: the run.
        """
        return msgspec.structs.replace(self, run=run.short_digest())


def missing_part(parts: Iterable[Part], files: Mapping[str, int]) -> Part | None:
    """Return the first part that is missing or has another size; None if all are there.

    :param files: bytes by name.
    """
    return next((part for part in parts if files.get(part.name) != part.bytes), None)


class RunRecord(Counts, frozen=True, kw_only=True, omit_defaults=True):
    """What a run has committed, kept to compare later runs with."""

    run: Run
    finished_at: str


class SetApart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows of the source that a landing goes on behind, although they are not in it.

    :ivar kind: ``quarantined`` if they are a landing of their own in ``folder``; ``discarded`` if a person
        has left them out.
    :ivar run: that has read them.
    :ivar start_offset: the cursor before the first row; ``next_offset`` is the one after the last.
    :ivar finished_at: when they were set apart or discarded.
    :ivar folder: relative to the manifest; None for discarded rows.
    :ivar checks: that they have failed.
    :ivar is_earlier: whether the landing has since begun again with the first row of a source that was reset
        (``on_reset="append"``): the total does not count them.
    """

    kind: Literal["quarantined", "discarded"]
    run: Run
    rows: int
    start_offset: int
    next_offset: int
    finished_at: str
    folder: str | None = None
    checks: tuple[CheckOutcome, ...] = ()
    is_earlier: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The commit: the parts listed here are the landing, whatever other files are beside them.

    :ivar landing_id: the id of the attempt that has committed.
    :ivar encoding: the options of the file format that have no keys of their own.
    :ivar columns: field names in order; None for JSONL without fixed columns.
    :ivar new_parts: how many of the last parts no run had reported before this commit.
    :ivar next_offset: the cursor after the last page; ``last_page`` identifies that page.
    :ivar total: rows that the service announced.
    :ivar earlier_rows: how many of the rows the source has no more (``on_reset="append"``).
    :ivar set_apart: rows of the source that are not in the landing, although it goes on behind them: ``rows``
        and these are ``total`` and ``earlier_rows``.
    :ivar run: the run that has committed last; its rows are those of :meth:`new`.
    :ivar started_at: ISO 8601, UTC, as is ``finished_at``.
    :ivar exported_at: when the export was confirmed to the service after the commit; None if it was not.
    :ivar checks: what became of the checks of the run's rows, before this commit.
    :ivar history: the last :data:`MOST_RECORDS` runs that have committed rows, the latest last; also those
        whose parts were replaced since.
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
    new_parts: int
    next_offset: int
    last_page: PageFingerprint
    total: int
    earlier_rows: int = 0
    run: Run
    started_at: str
    finished_at: str
    exported_at: str | None = None
    provider_version: str
    checks: tuple[CheckOutcome, ...] = ()
    history: tuple[RunRecord, ...] = ()
    set_apart: tuple[SetApart, ...] = ()
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        _check_part_names(part.name for part in self.parts)
        for each in self.set_apart:
            if each.folder is not None and not QUARANTINE.fullmatch(each.folder):
                raise ValueError(f"{each.folder!r} is not the name of a folder for quarantined rows")

    @property
    def source_rows(self) -> int:
        """Number of the source's first rows that are in the landing or set apart."""
        apart = sum(each.rows for each in self.set_apart if not each.is_earlier)
        return self.rows - self.earlier_rows + apart

    @property
    def lacks_mark(self) -> bool:
        """Whether the export is still to be marked; not while rows of the source are quarantined."""
        return self.exported_at is None and all(each.is_earlier for each in self.quarantined)

    @property
    def quarantined(self) -> tuple[SetApart, ...]:
        """The rows that wait for a person's decision."""
        return tuple(each for each in self.set_apart if each.kind == "quarantined")

    def without_needed(self, names: Iterable[str]) -> set[str]:
        """Return the names of files that are neither parts of the landing nor quarantined rows.

        :param names: of files in the landing's folder.
        """
        parts = {part.name for part in self.parts}
        folders = tuple(f"{each.folder}/" for each in self.quarantined)
        return {name for name in names if name not in parts and not name.startswith(folders)}

    def new(self, run: Run | None = None) -> tuple[Part, ...]:
        """Return the parts whose rows a run reports, even if other runs have landed since.

        :param run: None for the run that has committed last.
        """
        digits = (run or self.run).short_digest()
        return tuple(part for part in self.parts if part.run == digits)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress file: the current owner, and what it has written since the commit it began with.

    :ivar landing_id: makes the part names of this attempt unique; the manifest that it commits has it too.
    :ivar attempt_ids: those of all attempts since the progress file was last absent. If the manifest's is
        among them, the report of that commit may not have ended.
    :ivar encoding: the file format with all its options; a landing that continues must use the same.
    :ivar columns: the columns of all parts, in order.
    :ivar table_format: of the table that the landing is or will be; None for a folder.
    :ivar base: the ``landing_id`` of the manifest that the folder held when this landing began.
    :ivar continues: whether the parts follow those of that manifest.
    :ivar rows_before: rows of the source before the parts; ``parts_before`` is the number of parts, and
        ``offset_before`` the cursor.
    :ivar earlier_rows: rows that were landed and that the source has no more.
    :ivar first_page: where the reading of the parts began: the first page of rows, or the last landed one;
        None without parts.
    :ivar last_page: the last page before the cursor.
    :ivar run: the current or last owner, with ``attempt``. ``owner`` is a random id of its process; empty
        after the lease is released.
    :ivar heartbeat: a number that changes while the owner is alive.
    :ivar refused: the checks that the parts' rows have failed, which are all that there were: a person
        decides what becomes of them. Empty while rows are read.
    """

    version: int = VERSION
    landing_id: str = msgspec.field(default_factory=new_attempt_id)
    attempt_ids: tuple[str, ...] = ()
    source: Source
    mode: Mode = "full"
    encoding: dict[str, Any] = {}
    columns: tuple[str, ...] = ()
    table_format: str | None = None
    base: str | None = None
    continues: bool = False
    rows_before: int = 0
    parts_before: int = 0
    offset_before: int = 0
    earlier_rows: int = 0
    first_page: PageFingerprint | None = None
    last_page: PageFingerprint = PageFingerprint()
    started_at: str
    run: Run | None = None
    attempt: int = 0
    owner: str = ""
    heartbeat: int = 0
    refused: tuple[CheckOutcome, ...] = ()
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        _check_part_names(part.name for part in self.parts)

    @property
    def rows(self) -> int:
        """Number of the source's rows that are landed or in finished parts."""
        return self.rows_before + sum(part.rows for part in self.parts)

    @property
    def next_offset(self) -> int:
        """The cursor from which to continue."""
        return self.parts[-1].next_offset if self.parts else self.offset_before

    def with_part(
        self,
        part: Part,
        columns: tuple[str, ...],
        first_page: PageFingerprint | None,
        last_page: PageFingerprint,
    ) -> Progress:
        """Return the progress after ``part``."""
        return msgspec.structs.replace(
            self, parts=(*self.parts, part), columns=columns, first_page=first_page, last_page=last_page
        )


class _Versioned(msgspec.Struct):
    version: int


F = TypeVar("F", bound=msgspec.Struct)
_MENDING: dict[type[msgspec.Struct], str] = {
    Manifest: (
        "; put back an older version of the file, if the storage keeps those, or delete it to land all rows "
        "again beside the old parts"
    ),
    Progress: "; while no landing is at work it can be deleted",
}


def encode(content: Manifest | Progress) -> bytes:
    """Return the file's content: JSON with a line for each key and for each part."""
    fields = msgspec.structs.asdict(content)
    parts = b",\n    ".join(msgspec.json.encode(part) for part in fields.pop("parts"))
    lines = [
        b"%s: %s" % (msgspec.json.encode(name), msgspec.json.encode(value)) for name, value in fields.items()
    ]
    lines.append(b'"parts": [\n    %s\n  ]' % parts if parts else b'"parts": []')
    return b"{\n  " + b",\n  ".join(lines) + b"\n}"


def is_torn(content: bytes) -> bool:
    """Return whether a file is not JSON, for example after a kill on a storage without atomic replacement."""
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return False


def decode(content: bytes, where: str, kind: type[F]) -> F:
    """Decode a file of a landing that has a ``version``.

    :param where: its path, for the error.
    :raises DestinationUnreadable: if it is not of the kind, or has a newer layout.
    """
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version == VERSION:
            return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = _MENDING.get(kind, "")
        raise DestinationUnreadable(f"{where} is not readable: {error}{hint}") from error
    raise DestinationUnreadable(f"{where} is of version {version}, this provider knows version {VERSION}")
