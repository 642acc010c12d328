"""The contents of a landing's files: commits, each created once, and the manifest computed from them.

A commit says what it adds, and how far the landing has then read its source. The draft of a commit lists the
parts that an attempt has written so far. Everything else about a landing follows from its commits in order.
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

#: The version of the layout of commits, drafts and manifests.
VERSION = 2
#: Maximum number of runs, and of decisions, that a manifest keeps records of.
MOST_RECORDS = 30

#: The advice for a damaged or missing file.
REMEDY = (
    "put it back as it was, if the storage keeps earlier versions; or give the landing another destination"
)

Kind = Literal["landed", "decided", "exported"]


def now() -> str:
    """Return the current time in UTC, in ISO 8601."""
    return pendulum.now("UTC").isoformat(timespec="milliseconds")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun for a message, such as ``1 part`` or ``1,200 parts``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a landing: the whole history of a task, or one batch of it.

    :ivar host: the service's host; None if it is not known.
    """

    collection_task_id: str
    lotno: str | None = None
    host: str | None = None

    def is_same_as(self, other: Source) -> bool:
        """Return whether both name the same rows, ignoring the letter case of ids and hosts.

        An unknown host equals any host.

        :param other: the other source.
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


#: The ``dag_id`` of runs that the command line starts.
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
        """Return a hex digest that identifies the run in file names."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def __str__(self) -> str:
        mapped = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"run {self.run_id} of {self.dag_id}.{self.task_id}{mapped}"


class PageFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a page of rows, to check later whether the source still has it.

    :ivar offset: the cursor with which the page was read.
    :ivar sha256: hex digest of the rows as compact JSON with sorted keys, one after another.
    """

    offset: int = 0
    rows: int = 0
    sha256: str = hashlib.sha256().hexdigest()


#: The empty profile of a part in a manifest; the real profile is in the commit. ``omit_defaults`` only leaves
#: out this very object.
NO_PROFILE = Profile()


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished file of rows; it never changes, and no other file ever gets its name.

    :ivar name: the name relative to the landing's folder, including the folders of a partition.
    :ivar start_offset: the cursor before its first row.
    :ivar next_offset: the cursor after its last page.
    :ivar columns: how many of the landing's columns it has, from the first; None for all of them.
    :ivar commit: the number of the commit that landed the part; left out in that commit itself.
    :ivar profile: a summary of the values of each column; only in the commit.
    :ivar broke: for a file of single quarantined rows: how many rows broke each rule, by the rule's name.
        Each line of the file is ``{"broke": [<names of rules>], "row": <the row as the service sent it>}``.
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
        """The cursors before and after its rows."""
        return {"start_offset": self.start_offset, "next_offset": self.next_offset}


def missing_part(parts: Iterable[Part], files: Mapping[str, int]) -> Part | None:
    """Return the first part that is missing or has another size; None if all parts are complete.

    :param files: the sizes of the existing files in bytes, by name.
    """
    return next((part for part in parts if files.get(part.name) != part.bytes), None)


class SetApart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows that a run has read, but that are not in the landing: quarantined or discarded.

    :ivar commit: the number of the commit that quarantined the rows and lists their parts.
    :ivar kind: ``quarantined`` while the rows wait for a person's decision, ``discarded`` afterwards.
    :ivar run: the run that read the rows.
    :ivar at: when the rows were quarantined or discarded; ISO 8601 in UTC.
    :ivar checks: the failed checks and the warnings of the run, such as rules that these rows have broken.
    :ivar has_failed: True if these are all rows of a commit whose checks failed. False if they are single
        rows that broke rules about values; the run's other rows have then landed.
    :ivar replaces: whether the landing begins again with these rows if they are accepted: they then replace
        all other rows. Until then, the landing's place in the source is as if they had not been read.
    :ivar is_earlier: whether the landing has begun again since, or the source was reset
        (``on_reset="append"``): ``total`` does not count these rows.
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
    """A person's decision on quarantined rows.

    :ivar commit: the number of the decision's own commit.
    :ivar about: the number of the commit that quarantined the rows; ``run_id`` is the id of their run.
    :ivar by: the decider: a try of a task, or the name of a person.
    :ivar is_accepted: True if the rows were accepted, False if they were discarded.
    """

    commit: int
    about: int
    run_id: str
    by: str
    is_accepted: bool


class MissingInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a collection task, such as words or URLs, that have no row.

    :ivar run: the run whose rows lack these inputs. Later runs that collect only these count as this run.
    :ivar count: the number of missing inputs; ``inputs`` has the first 1,000, or fewer if they are long.
    :ivar of: the number of all inputs.
    """

    run: Run
    count: int
    inputs: tuple[str, ...]
    of: int


class RunRecord(Counts, frozen=True, kw_only=True, omit_defaults=True):
    """A summary of the rows that a run has landed, with which later runs are compared.

    :ivar commits: the numbers of its commits, including the runs that collected its missing inputs again.
    """

    commits: tuple[int, ...]
    run: Run
    finished_at: str


class Landing(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that commits and manifests share.

    :ivar version: the version of the layout of the files.
    :ivar format: the file format; ``compression`` and ``encoding`` are its options (``encoding`` has, for
        example, ``column_types``).
    :ivar table_format: the format of the table that the landing is; None for a folder.
    :ivar columns: the names of all columns of the parts so far, in order; None for JSON lines without fixed
        columns, or if no column is known yet.
    :ivar next_offset: the service's cursor after the last page, which ``last_page`` identifies.
    :ivar total: the number of rows that the service announced, all of which were read.
    :ivar earlier_rows: the number of the landing's rows that the source no longer has
        (``on_reset="append"``).
    :ivar run: the run whose rows these are.
    :ivar started_at: when the work on the commit began, in an earlier attempt if a retry continued its draft;
        ISO 8601 in UTC.
    :ivar finished_at: when the commit was made; ISO 8601 in UTC.
    :ivar provider_version: the version of the provider that began the commit.
    :ivar checks: the outcomes of the checks of the commit's rows.
    :ivar missing_inputs: the missing inputs of the last run that read rows; None if they are not known or not
        checked.
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
        """All parts that the file lists."""
        return self.parts

    @property
    def has_typed_files(self) -> bool:
        """Whether the parts have typed columns; JSON lines and CSV store texts."""
        return self.format == "parquet"

    @property
    def column_types(self) -> Mapping[str, ColumnType]:
        """The types of columns that have a declared type; all others are strings."""
        try:
            return parse_types("column_types", self.encoding.get("column_types") or {})
        except InvalidArgument as error:
            raise DestinationUnreadable(f"this version cannot read a column's type: {error}") from error

    @property
    def place(self) -> dict[str, Any]:
        """The fields that the next commit takes over: the source, the options and the place in the source."""
        return {name: getattr(self, name) for name in _PLACE}


_PLACE = (
    *("source", "format", "compression", "encoding", "table_format", "columns"),
    *("next_offset", "last_page", "total", "earlier_rows"),
)


class Commit(Landing, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the log, or its draft: the parts that an attempt has written so far, for a retry.

    In a draft, ``total`` counts the source's rows up to the end of the last part.

    :ivar number: 1, 2, 3, … without gaps.
    :ivar kind: ``landed``: rows were read; ``decided``: a person has accepted or discarded quarantined rows;
        ``exported``: the service has confirmed the mark.
    :ivar attempt_id: the random id of the attempt that made the commit, also in the names of the parts that
        it wrote; parts that it resumed or copied have other ids.
    :ivar replaces: whether the landing begins, or begins again, with the source's first row: from now on it
        has only these parts, unless all rows are quarantined. False for the first commit of an incremental
        landing, which has no parts to replace.
    :ivar first_page: where the reading of the parts began: the first page of rows, or the last landed page.
    :ivar parts: the parts that the commit adds to the landing; none if it discards rows.
    :ivar quarantined: the parts with rows that wait for a person's decision.
    :ivar rules: a digest of the rules that judged the rows; ``rule_counts`` are the counts of these rules.
        Both are only in a draft.
    :ivar about: the number of the commit whose quarantined rows are decided on; None for other kinds.
    :ivar by: the decider; empty if nobody is named.
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
        """Number of rows that the commit adds to the landing."""
        return sum(part.rows for part in self.parts)

    @property
    def quarantined_rows(self) -> int:
        """Number of quarantined rows."""
        return sum(part.rows for part in self.quarantined)

    @property
    def written(self) -> tuple[Part, ...]:
        """All parts that the commit lists, added and quarantined."""
        return (*self.parts, *self.quarantined)

    @property
    def waits_to_replace(self) -> bool:
        """Whether all rows are quarantined, and the landing begins again with them if they are accepted."""
        return self.replaces and not self.parts and bool(self.quarantined)

    @property
    def changes_rows(self) -> bool:
        """Whether the commit changes the rows of the landing."""
        return bool(self.parts) or (self.kind == "landed" and not self.quarantined)

    @property
    def read_number(self) -> int:
        """The number of the commit that first had these rows: the one that quarantined them, or this one."""
        return self.number if self.about is None else self.about

    @property
    def added(self) -> tuple[Part, ...]:
        """The parts that the commit adds to the landing, as a manifest lists them."""
        return tuple(
            msgspec.structs.replace(part, commit=self.number, profile=NO_PROFILE) for part in self.parts
        )

    @property
    def failed(self) -> tuple[CheckOutcome, ...]:
        """The failed checks of the commit's rows."""
        return tuple(outcome for outcome in self.checks if outcome.state == "failed")

    @property
    def start(self) -> tuple[bool, int, int]:
        """Whether a draft replaces all rows, its first cursor, and the number of source rows before it."""
        rows = sum(part.rows for part in self.written)
        offset = min((part.start_offset for part in self.written), default=self.next_offset)
        return self.replaces, offset, self.total - rows

    def may_continue(self, state: Manifest | None) -> bool:
        """Return whether a draft may still be continued. Once it may not, it never may again.

        It may, unless another commit has changed the landing's place in the source since. Most decisions and
        marks do not change it.

        :param state: the state of the landing; None if nothing has landed.
        """
        return state is None or self.number > state.place_commit


class Manifest(Landing, frozen=True, kw_only=True):
    """The state of a landing after a commit; ``_manifest.json`` has the state after the last one.

    ``run``, ``started_at``, ``finished_at``, ``provider_version`` and ``checks`` come from the last commit
    that changed the rows.

    :ivar commit: the number of the last commit. ``first_commit`` is the number of the commit with which the
        landing began, or began again; ``rows_commit`` of the last commit that changed the rows;
        ``place_commit`` of the last commit that changed the landing's place in the source.
    :ivar log_id: a random id of the log: in an emptied folder, a new log begins with the same numbers.
    :ivar rows: the number of rows of all parts; ``bytes`` is their size. These rows and the rows set apart
        (except those with ``is_earlier`` or ``replaces``) add up to ``total`` plus ``earlier_rows``.
    :ivar exported_at: when the export was confirmed to the service after the commit; None if it was not.
    :ivar history: the last :data:`MOST_RECORDS` runs that landed rows, the latest last, including runs whose
        parts were replaced since. An older run does not return when a person accepts single rows of it.
    :ivar profile: a summary of the values of all rows.
    :ivar set_apart: the rows that were read but are not in the landing: quarantined or discarded.
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
        """Number of the source's rows, from the first, that are in the landing or set apart."""
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
        """Whether the export still has to be marked; False while rows of the source are quarantined."""
        return self.exported_at is None and all(apart.is_earlier for apart in self.quarantined)

    def record_of(self, run: Run) -> RunRecord | None:
        """Return the record of a run; None if it is not among the last runs that landed rows.

        :param run: the run.
        """
        return next((record for record in self.history if record.run == run), None)


def may_lack_commits(record: RunRecord, state: Manifest) -> bool:
    """Return whether a run may have commits that its record lacks.

    A run that is no longer in the history gets a new record if a person accepts rows of it; that record lacks
    the run's earlier commits.
    """
    if len(state.history) < MOST_RECORDS:
        return False
    first, decided = record.commits[0], [decision.commit for decision in state.decisions]
    return first in decided or (len(decided) >= MOST_RECORDS and first < decided[0])


class _Versioned(msgspec.Struct):
    version: int


F = TypeVar("F", bound=Landing)


def encode(content: Landing) -> bytes:
    """Return the content of a file as JSON, with one line for each part."""
    fields = {"version": VERSION, **msgspec.to_builtins(content)}
    parts = b",\n".join(msgspec.json.encode(part) for part in fields.pop("parts", ()))
    rest = msgspec.json.encode(fields)
    return b'%s,"parts":[\n%s\n]}' % (rest[:-1], parts)


def decode(content: bytes, where: str, kind: type[F]) -> F:
    """Decode a commit, a draft or a manifest.

    :param content: the bytes of the file.
    :param where: the path of the file, for the error.
    :param kind: the class to decode into.
    :raises DestinationUnreadable: if the file is not valid, or has another version of the layout.
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
