"""The contents of a landing's files: commits, each created once, and the manifest that they make.

A commit says what it adds, and where the landing stands in its source afterwards; what an attempt has written
so far is the draft of one. Everything else about a landing follows from its commits in their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
import pendulum

from airflow_provider_webcollect.landing.checks import CheckOutcome, Counts
from airflow_provider_webcollect.landing.errors import DestinationUnreadable
from airflow_provider_webcollect.landing.names import check_part_names
from airflow_provider_webcollect.landing.profile import Profile

#: Version of the layout of all files.
VERSION = 1
#: How many runs a manifest has records of.
MOST_RECORDS = 30

#: The advice for a file that was damaged or has vanished.
REMEDY = (
    "put it back as it was, if the storage keeps earlier versions; or give the landing another destination"
)

Kind = Literal["landed", "quarantined", "accepted", "discarded", "restored", "exported"]


def now() -> str:
    """Return the current time, ISO 8601 in UTC."""
    return pendulum.now("UTC").isoformat(timespec="milliseconds")


def counted(number: int, noun: str) -> str:
    """Return a number of things for a message, such as ``1 part`` and ``1,200 parts``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a landing: the whole history of a task, or one batch of it.

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
        """Return the hex digest that stands for the run in names of files."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def __str__(self) -> str:
        mapped = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"run {self.run_id} of {self.dag_id}.{self.task_id}{mapped}"


class PageFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the last landed page, to check later whether the source still has it.

    :ivar offset: the cursor with which it was read.
    :ivar sha256: hex digest of the rows as compact JSON with sorted keys, one after another.
    """

    offset: int = 0
    rows: int = 0
    sha256: str = hashlib.sha256().hexdigest()


#: That of a part whose profile its commit has; defaults are left out only if they are the same object.
NO_PROFILE = Profile()


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished file of rows; it never changes.

    :ivar name: relative to the landing's folder, with the partition's folders if it has any.
    :ivar start_offset: the cursor before its first row.
    :ivar next_offset: the cursor after its last page.
    :ivar columns: how many of the landing's columns it has, from the first; None for all of them.
    :ivar commit: the number of the commit that has landed it; in that commit itself it is left out.
    :ivar profile: what its rows hold, column by column; only in the commit.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    start_offset: int
    next_offset: int
    columns: int | None = None
    commit: int | None = None
    profile: Profile = NO_PROFILE


def missing_part(parts: Iterable[Part], files: Mapping[str, int]) -> Part | None:
    """Return the first part that is missing or has another size; None if all are there.

    :param files: bytes by name.
    """
    return next((part for part in parts if files.get(part.name) != part.bytes), None)


class SetApart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Source rows the landing has skipped: quarantined or discarded.

    :ivar commit: the number of the commit that has set them apart, and has their parts.
    :ivar kind: ``quarantined`` while they wait for a person's decision.
    :ivar run: that has read them.
    :ivar start_offset: the cursor before the first row; ``next_offset`` is the one after the last.
    :ivar at: when they were set apart or discarded.
    :ivar checks: that they have failed.
    :ivar is_earlier: whether the source was reset since (``on_reset="append"``): the total does not count
        them.
    """

    commit: int
    kind: Literal["quarantined", "discarded"]
    run: Run
    rows: int
    start_offset: int
    next_offset: int
    at: str
    checks: tuple[CheckOutcome, ...] = ()
    is_earlier: bool = False


class RunRecord(Counts, frozen=True, kw_only=True, omit_defaults=True):
    """The rows that a run has landed, with which later runs are compared.

    :ivar commits: their numbers.
    """

    commits: tuple[int, ...]
    run: Run
    finished_at: str


class Landing(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that commits and manifests share.

    :ivar format: the file format, with its ``compression``; ``encoding`` has its other options.
    :ivar table_format: of the table that the landing is; None for a folder.
    :ivar columns: field names of all parts so far, in order; None for JSON lines without fixed columns.
    :ivar next_offset: the service's cursor after the last page, which ``last_page`` identifies.
    :ivar total: rows that the service announced.
    :ivar earlier_rows: how many of the landing's rows the source no longer has (``on_reset="append"``).
    :ivar run: whose rows these are.
    :ivar started_at: when the attempt began that has made the commit at ``finished_at``; ISO 8601 in UTC.
    :ivar checks: the outcomes of the checks of the commit's rows.
    :ivar set_apart: source rows the landing has skipped: quarantined or discarded.
    """

    version: int = VERSION
    source: Source
    format: str
    compression: str | None = None
    encoding: dict[str, Any] = {}
    table_format: str | None = None
    columns: tuple[str, ...] | None = None
    next_offset: int = 0
    last_page: PageFingerprint = PageFingerprint()
    total: int = 0
    earlier_rows: int = 0
    run: Run
    started_at: str
    finished_at: str
    provider_version: str
    checks: tuple[CheckOutcome, ...] = ()
    set_apart: tuple[SetApart, ...] = ()
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        check_part_names(part.name for part in self.parts)

    @property
    def place(self) -> dict[str, Any]:
        """What is landed, how, and up to where: what each commit says that the next one follows."""
        return {name: getattr(self, name) for name in _PLACE}


_PLACE = (
    *("source", "format", "compression", "encoding", "table_format", "columns"),
    *("next_offset", "last_page", "total", "earlier_rows"),
)


class Commit(Landing, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the log, or the draft of one: what an attempt has written so far, for a retry of its run.

    In a draft, ``total`` counts the source's rows up to the end of its last part. A draft whose checks have
    failed waits for a person's decision.

    :ivar number: 1, 2, 3, … without gaps.
    :ivar kind: ``landed``; ``quarantined``, the rows wait for a decision; ``accepted`` or ``discarded``, it
        was made; ``restored``, an earlier state is put back; ``exported``, the service has confirmed the
        mark.
    :ivar attempt_id: of the attempt that has made it, random; in the names of its parts.
    :ivar replaces: whether the landing begins, or begins again, with the first row: from now on it has these
        parts alone. False for the first commit of an incremental landing, which has none to replace.
    :ivar first_page: where the reading of the parts began: the first page of rows, or the last landed one.
    :ivar parts: those that it adds, sets apart, or leaves out; if it accepts rows, those of the rows.
    :ivar about: the commit that it accepts or discards, or whose state it puts back, with ``set_apart``; None
        for rows that were staged.
    """

    number: int
    kind: Kind
    attempt_id: str
    replaces: bool = False
    first_page: PageFingerprint | None = None
    about: int | None = None

    @property
    def rows(self) -> int:
        """Number of rows of its parts."""
        return sum(part.rows for part in self.parts)

    @property
    def changes_rows(self) -> bool:
        """Whether it changes the rows of the landing."""
        return self.kind in ("landed", "accepted", "restored")

    @property
    def read_number(self) -> int:
        """The number of the commit that first had its rows: the one that set them apart, or its own."""
        return self.number if self.about is None else self.about

    @property
    def added(self) -> tuple[Part, ...]:
        """The parts that it adds to the landing, as a manifest has them; none if it sets rows apart."""
        if not self.changes_rows:
            return ()
        # those that are put back have numbers of their own
        return tuple(
            msgspec.structs.replace(part, commit=part.commit or self.number, profile=NO_PROFILE)
            for part in self.parts
        )

    @property
    def failed(self) -> tuple[CheckOutcome, ...]:
        """The checks that its rows have failed."""
        return tuple(outcome for outcome in self.checks if outcome.state == "failed")

    def follows(self, state: Manifest | None) -> bool:
        """Return whether it is the next commit after what has landed; if a draft is not, it never will be.

        :param state: what has landed; None for nothing.
        """
        return self.number == (0 if state is None else state.commit) + 1

    def with_part(
        self, part: Part, columns: tuple[str, ...], first_page: PageFingerprint, last_page: PageFingerprint
    ) -> Commit:
        """Return a draft after another part.

        :param part: the part.
        :param columns: of all parts.
        :param first_page: with which the reading of all parts began.
        :param last_page: with which it has ended so far.
        """
        return msgspec.structs.replace(
            self,
            parts=(*self.parts, part),
            columns=columns or None,
            next_offset=part.next_offset,
            total=self.total + part.rows,
            first_page=first_page,
            last_page=last_page,
        )


class Manifest(Landing, frozen=True, kw_only=True):
    """The state of a landing after a commit; ``_manifest.json`` has that after the last one.

    ``run``, ``started_at``, ``finished_at`` and ``checks`` are of the last commit of rows.

    :ivar commit: the number of the last commit; ``first_commit`` is the one with which the landing began, or
        has begun again, ``rows_commit`` the last that has changed the rows.
    :ivar log_id: a random id of the log: in an emptied folder, another log begins with the same numbers.
    :ivar rows: of all parts, as ``bytes``. These and the rows that were set apart are ``total`` and
        ``earlier_rows``.
    :ivar exported_at: when the export was confirmed to the service after the commit; None if it was not.
    :ivar history: the last :data:`MOST_RECORDS` runs that have landed rows, the latest last; also those whose
        parts were replaced since.
    :ivar profile: what all rows hold.
    :ivar replaced: the parts of the landing before it began again: programs may still read them, and they can
        be put back.
    :ivar part_count: how many parts there are; ``parts`` has fewer in a table, which knows its own files.
    """

    commit: int
    first_commit: int
    log_id: str
    rows: int = 0
    bytes: int = 0
    exported_at: str | None = None
    history: tuple[RunRecord, ...] = ()
    profile: Profile = Profile()
    replaced: tuple[str, ...] = ()
    rows_commit: int = 0
    part_count: int = 0

    @property
    def source_rows(self) -> int:
        """Number of the source's first rows that are in the landing or set apart."""
        apart = sum(skipped.rows for skipped in self.set_apart if not skipped.is_earlier)
        return self.rows - self.earlier_rows + apart

    @property
    def quarantined(self) -> tuple[SetApart, ...]:
        """The rows that wait for a person's decision."""
        return tuple(apart for apart in self.set_apart if apart.kind == "quarantined")

    @property
    def lacks_mark(self) -> bool:
        """Whether the export still has to be marked; not while rows of the source are quarantined."""
        return self.exported_at is None and all(apart.is_earlier for apart in self.quarantined)

    def record_of(self, run: Run) -> RunRecord | None:
        """Return the record of a run; None if it is not among the last that have landed rows.

        :param run: the run.
        """
        return next((record for record in self.history if record.run == run), None)


class _Versioned(msgspec.Struct):
    version: int


F = TypeVar("F", bound=Landing)


def encode(content: Landing) -> bytes:
    """Return a file's content: JSON with a line for each part."""
    fields = {"version": VERSION, **msgspec.to_builtins(content)}
    parts = b",\n".join(msgspec.json.encode(part) for part in fields.pop("parts", ()))
    rest = msgspec.json.encode(fields)
    return b'%s,"parts":[\n%s\n]}' % (rest[:-1], parts)


def decode(content: bytes, where: str, kind: type[F]) -> F:
    """Decode a file of a landing.

    :param where: its path, for the error.
    :raises DestinationUnreadable: if it is not of the kind, or has a newer layout.
    """
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version == VERSION:
            return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DestinationUnreadable(f"{where} is not readable: {error}; {REMEDY}") from error
    raise DestinationUnreadable(
        f"{where} is of version {version}, this provider knows version {VERSION}: upgrade it"
    )
