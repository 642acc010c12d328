"""The contents of a landing's files: commits, each created once, and the manifest that they make.

A commit says what it adds, and how far the landing has then read its source; the draft of a commit has the
parts that an attempt has written so far. Everything else about a landing follows from its commits in their
order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
import pendulum

from airflow_provider_webcollect.landing.checks import NOTHING_WRONG, CheckOutcome, Counts, RuleCounts
from airflow_provider_webcollect.landing.errors import DestinationUnreadable
from airflow_provider_webcollect.landing.formats.profile import Profile
from airflow_provider_webcollect.landing.formats.types import ColumnType, parse_types
from airflow_provider_webcollect.landing.log.names import check_part_names
from airflow_provider_webcollect.service.errors import InvalidArgument

#: Version of the layout of all files.
VERSION = 2
#: Maximum number of runs, and of decisions, of which a manifest has records.
MOST_RECORDS = 30

#: The advice for a file that was damaged or has vanished.
REMEDY = (
    "put it back as it was, if the storage keeps earlier versions; or give the landing another destination"
)

Kind = Literal["landed", "decided", "exported"]


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


#: The id of the DAG of runs that are commands.
COMMAND = "webcollect"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The Airflow run that lands; a retry belongs to the same run."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1

    def is_beside(self, other: Run) -> bool:
        """Return whether both belong to the same DAG run.

        :param other: the other run.
        """
        return (self.dag_id, self.run_id) == (other.dag_id, other.run_id)

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


#: The profile of a part whose profile is in its commit; defaults are left out only if they are the same
#: object.
NO_PROFILE = Profile()


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished file of rows; it never changes, and no other file ever gets its name.

    :ivar name: relative to the landing's folder, with the partition's folders if it has any.
    :ivar start_offset: the cursor before its first row.
    :ivar next_offset: the cursor after its last page.
    :ivar columns: how many of the landing's columns it has, from the first; None for all of them.
    :ivar commit: the number of the commit that has landed it; in that commit itself it is left out.
    :ivar profile: the contents of its rows, column by column; only in the commit.
    :ivar broke: for a file of rows that are quarantined one by one: the number of rows that have broken each
        rule, by its name. Each line is ``{"broke": [<names of rules>], "row": <the row as the service sent
        it>}``.
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
    broke: dict[str, int] = {}

    @property
    def place(self) -> dict[str, int]:
        """The position of its rows in the source."""
        return {"start_offset": self.start_offset, "next_offset": self.next_offset}


def missing_part(parts: Iterable[Part], files: Mapping[str, int]) -> Part | None:
    """Return the first part that is missing or has another size; None if all parts are complete.

    :param files: bytes by name.
    """
    return next((part for part in parts if files.get(part.name) != part.bytes), None)


class SetApart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows that a run has read, and that are not in the landing: quarantined or discarded.

    :ivar commit: the number of the commit that has quarantined them, and has their parts.
    :ivar kind: ``quarantined`` while they wait for a person's decision.
    :ivar run: that has read them.
    :ivar at: when they were quarantined or discarded.
    :ivar checks: the checks that rows of the run have failed, and the rules about values that these rows have
        broken.
    :ivar has_failed: whether they are all rows of the run, which has failed its checks; if not, they are
        single rows that have broken rules about values, and the run's other rows have landed.
    :ivar replaces: whether the landing would begin again with them: if they are accepted, they replace all
        other rows. Until then, the landing's place in the source is as if they had not been read.
    :ivar is_earlier: whether the landing has begun again since, or the source was reset (
        ``on_reset="append"``): the total does not count them.
    """

    commit: int
    kind: Literal["quarantined", "discarded"]
    run: Run
    rows: int
    at: str
    checks: tuple[CheckOutcome, ...] = ()
    has_failed: bool = False
    replaces: bool = False
    is_earlier: bool = False

    def __str__(self) -> str:
        return f"{counted(self.rows, 'row')} of {self.run.run_id} (commit {self.commit})"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A person's decision on rows that were quarantined.

    :ivar commit: the number of the commit that has made it.
    :ivar about: the number of the commit whose rows were quarantined; ``run_id`` is the id of their run.
    :ivar by: who has decided: a task's try, or the name of a person.
    :ivar is_accepted: whether the rows have landed; if not, they are discarded.
    """

    commit: int
    about: int
    run_id: str
    by: str
    is_accepted: bool


class MissingInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a task, such as words or URLs, that have no row.

    :ivar run: whose rows lack them; later runs that collect only these again count for this one.
    :ivar count: their number; ``inputs`` has the first 1,000 of them, or fewer if they are long.
    :ivar of: the number of all inputs.
    """

    run: Run
    count: int
    inputs: tuple[str, ...]
    of: int


class RunRecord(Counts, frozen=True, kw_only=True, omit_defaults=True):
    """The rows that a run has landed, with which later runs are compared.

    :ivar commits: the numbers of its commits, including runs that have collected its missing inputs again.
    """

    commits: tuple[int, ...]
    run: Run
    finished_at: str


class Landing(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that commits and manifests share.

    :ivar version: of the layout of the files.
    :ivar format: the file format, with its ``compression``; ``encoding`` has its other options, such as
        ``column_types``.
    :ivar table_format: of the table that the landing is; None for a folder.
    :ivar columns: field names of all parts so far, in order; None for JSON lines without fixed columns.
    :ivar next_offset: the service's cursor after the last page, which ``last_page`` identifies.
    :ivar total: rows that the service announced.
    :ivar earlier_rows: the number of the landing's rows that the source no longer has
        (``on_reset="append"``).
    :ivar run: whose rows these are.
    :ivar started_at: when the attempt began that has made the commit at ``finished_at``; ISO 8601 in UTC.
    :ivar provider_version: the version of the provider that has made the commit.
    :ivar checks: the outcomes of the checks of the commit's rows.
    :ivar missing_inputs: the missing inputs of the last run that has read rows; None if they are not known,
        or not checked.
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
    missing_inputs: MissingInputs | None = None
    parts: tuple[Part, ...] = ()

    @property
    def written(self) -> tuple[Part, ...]:
        """All parts that it names."""
        return self.parts

    @property
    def has_typed_files(self) -> bool:
        """Whether its files have typed columns; JSON lines and CSV have texts."""
        return self.format == "parquet"

    @property
    def column_types(self) -> Mapping[str, ColumnType]:
        """The types of columns whose texts are not strings."""
        try:
            return parse_types("column_types", self.encoding.get("column_types") or {})
        except InvalidArgument as error:
            raise DestinationUnreadable(f"this version cannot read a column's type: {error}") from error

    @property
    def place(self) -> dict[str, Any]:
        """The source, the options and the place in the source, with which the next commit continues."""
        return {name: getattr(self, name) for name in _PLACE}


_PLACE = (
    *("source", "format", "compression", "encoding", "table_format", "columns"),
    *("next_offset", "last_page", "total", "earlier_rows"),
)


class Commit(Landing, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the log, or the draft of one: what an attempt has written so far, for a retry of its run.

    In a draft, ``total`` counts the source's rows up to the end of its last part.

    :ivar number: 1, 2, 3, … without gaps.
    :ivar kind: ``landed``; ``decided``, a person has accepted or discarded quarantined rows; ``exported``,
        the service has confirmed the mark.
    :ivar attempt_id: of the attempt that has made it, random; in the names of its parts.
    :ivar replaces: whether the landing begins, or begins again, with the first row: from now on it has only
        these parts, unless all rows are quarantined. False for the first commit of an incremental landing,
        which has no parts to replace.
    :ivar first_page: where the reading of the parts began: the first page of rows, or the last landed one.
    :ivar parts: those that it adds to the landing; none if it discards rows.
    :ivar quarantined: parts of rows that wait for a person's decision.
    :ivar rules: the digest of the rules by which its rows were judged; ``rule_counts`` are their counts. Both
        only in a draft.
    :ivar about: the number of the commit on whose quarantined rows it decides; None for other kinds.
    :ivar by: who has decided; empty if nobody is named.
    """

    number: int
    kind: Kind
    attempt_id: str
    replaces: bool = False
    first_page: PageFingerprint | None = None
    quarantined: tuple[Part, ...] = ()
    rules: str = ""
    rule_counts: RuleCounts = NOTHING_WRONG
    about: int | None = None
    by: str = ""

    @property
    def rows(self) -> int:
        """Number of rows that it adds to the landing."""
        return sum(part.rows for part in self.parts)

    @property
    def quarantined_rows(self) -> int:
        """Number of quarantined rows."""
        return sum(part.rows for part in self.quarantined)

    @property
    def written(self) -> tuple[Part, ...]:
        """All parts that it names, added and quarantined ones."""
        return (*self.parts, *self.quarantined)

    @property
    def waits_to_replace(self) -> bool:
        """Whether all of its rows are quarantined, and the landing would begin again with them."""
        return self.replaces and not self.parts and bool(self.quarantined)

    @property
    def changes_rows(self) -> bool:
        """Whether it changes the rows of the landing."""
        return bool(self.parts) or (self.kind == "landed" and not self.quarantined)

    @property
    def read_number(self) -> int:
        """The number of the commit that first had its rows: the one that quarantined them, or its own."""
        return self.number if self.about is None else self.about

    @property
    def added(self) -> tuple[Part, ...]:
        """The parts that it adds to the landing, as a manifest has them."""
        return tuple(
            msgspec.structs.replace(part, commit=self.number, profile=NO_PROFILE) for part in self.parts
        )

    @property
    def failed(self) -> tuple[CheckOutcome, ...]:
        """The checks that its rows have failed."""
        return tuple(outcome for outcome in self.checks if outcome.state == "failed")

    @property
    def start(self) -> tuple[bool, int, int]:
        """Whether a draft replaces, the cursor with which it begins, and how many source rows precede it."""
        rows = sum(part.rows for part in self.written)
        offset = min((part.start_offset for part in self.written), default=self.next_offset)
        return self.replaces, offset, self.total - rows

    def may_continue(self, state: Manifest | None) -> bool:
        """Return whether a draft may still be continued; if it may not, it never will be.

        It may, unless others have changed the landing's place in its source since. Most decisions and marks
        do not.

        :param state: what has landed; None for nothing.
        """
        return state is None or self.number > state.place_commit


class Manifest(Landing, frozen=True, kw_only=True):
    """The state of a landing after a commit; ``_manifest.json`` has the state after the last one.

    ``run``, ``started_at``, ``finished_at`` and ``checks`` are of the last commit of rows.

    :ivar commit: the number of the last commit; ``first_commit`` is the one with which the landing began, or
        has begun again, ``rows_commit`` the last that has changed the rows, ``place_commit`` the last that
        has changed where it stands in its source.
    :ivar log_id: a random id of the log: in an emptied folder, another log begins with the same numbers.
    :ivar rows: the number of rows of all parts; ``bytes`` is their size. These rows and the rows that were
        set apart add up to ``total`` and ``earlier_rows``.
    :ivar exported_at: when the export was confirmed to the service after the commit; None if it was not.
    :ivar history: the last :data:`MOST_RECORDS` runs that have landed rows, the latest last; also those whose
        parts were replaced since. An older run does not return when a person accepts single rows of it.
    :ivar profile: what all rows hold.
    :ivar set_apart: rows that were read but are not in the landing: quarantined or discarded.
    :ivar decisions: the last :data:`MOST_RECORDS` decisions, the latest last.
    :ivar part_count: the number of parts; ``parts`` has fewer for a table, which knows its own files.
    """

    commit: int
    first_commit: int
    log_id: str
    rows: int = 0
    bytes: int = 0
    exported_at: str | None = None
    history: tuple[RunRecord, ...] = ()
    profile: Profile = Profile()
    set_apart: tuple[SetApart, ...] = ()
    decisions: tuple[Decision, ...] = ()
    rows_commit: int = 0
    place_commit: int = 0
    part_count: int = 0

    @property
    def source_rows(self) -> int:
        """Number of the source's first rows that are in the landing or set apart."""
        apart = sum(
            skipped.rows for skipped in self.set_apart if not (skipped.is_earlier or skipped.replaces)
        )
        return self.rows - self.earlier_rows + apart

    @property
    def quarantined(self) -> tuple[SetApart, ...]:
        """The quarantined rows, which wait for a person's decision."""
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


def may_lack_commits(record: RunRecord, state: Manifest) -> bool:
    """Return whether a run may have commits that its record lacks.

    A run that is no longer among the last may get a new record when a person accepts rows of it.
    """
    if len(state.history) < MOST_RECORDS:
        return False
    first, decided = record.commits[0], [decision.commit for decision in state.decisions]
    return first in decided or (len(decided) >= MOST_RECORDS and first < decided[0])


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
    :raises DestinationUnreadable: if the file is of another kind, or has another layout.
    """
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version == VERSION:
            decoded = msgspec.json.decode(content, type=kind)
            check_part_names(part.name for part in decoded.written)
            return decoded
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DestinationUnreadable(f"{where} is not readable: {error}; {REMEDY}") from error
    way = "upgrade it" if version > VERSION else "give the landing another destination"
    raise DestinationUnreadable(
        f"{where} is of version {version}, this provider knows version {VERSION}: {way}"
    )
