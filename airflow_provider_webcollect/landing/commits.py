"""The log of a landing: commits, each a file that is created once, and the fold that makes a manifest of
them.

A commit says what it adds, and where the landing stands in its source afterwards. All else that is to be
known of a landing follows from its commits in their order. Nothing here reads or writes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
import pendulum

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.checks import CheckOutcome, Counts
from airflow_provider_webcollect.landing.errors import DestinationUnreadable
from airflow_provider_webcollect.landing.names import check_part_names, new_attempt_id
from airflow_provider_webcollect.landing.profile import Profile, sum_of

#: Version of the layout of all files.
VERSION = 1
#: How many runs a manifest has records of.
MOST_RECORDS = 30
#: Digits of the digest of a run in the name of a file.
RUN_DIGITS = 12

#: What to do about a file that has been damaged or has vanished.
REMEDY = (
    "put it back as it was, if the storage keeps earlier versions; or give the landing another destination"
)

Mode = Literal["full", "incremental"]
Kind = Literal["landed", "quarantined", "accepted", "discarded", "restored", "exported"]


def now() -> str:
    """Return the current time, ISO 8601 in UTC."""
    return pendulum.now("UTC").isoformat(timespec="milliseconds")


def counted(number: int, noun: str) -> str:
    """Return a number of things for a message, such as ``1 part`` and ``1,200 parts``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


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


class Cursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a landing stands in its source.

    :ivar next_offset: the service's cursor after the last page, which ``last_page`` identifies.
    :ivar total: rows that the service announced.
    :ivar earlier_rows: how many of the landing's rows the source has no more (``on_reset="append"``).
    """

    next_offset: int = 0
    last_page: PageFingerprint = PageFingerprint()
    total: int = 0
    earlier_rows: int = 0


#: That of a part whose profile its commit has.
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
    """Rows of the source that the landing has skipped: quarantined or discarded.

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
    """What a run has landed, kept to compare later runs with.

    :ivar commits: their numbers.
    """

    commits: tuple[int, ...]
    run: Run
    finished_at: str


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the log.

    :ivar number: 1, 2, 3, … without gaps.
    :ivar kind: ``landed``; ``quarantined``, the rows wait for a decision; ``accepted`` or ``discarded``, it
        was made; ``restored``, an earlier state is put back; ``exported``, the service has confirmed the
        mark.
    :ivar run: whose rows these are, or that has marked them.
    :ivar attempt_id: of the attempt that has made it, random.
    :ivar at: when; ``started_at`` is when the attempt began. ISO 8601 in UTC.
    :ivar replaces: whether the landing begins again: from now on it has these parts alone.
    :ivar encoding: the file format with all its options.
    :ivar table_format: of the table that the landing is; None for a folder.
    :ivar columns: of all parts so far, in order; empty for JSON lines without fixed columns.
    :ivar parts: that it adds, sets apart, or leaves out; of accepted rows those that were set apart.
    :ivar cursor: where the landing stands in its source from now on.
    :ivar checks: what became of the checks of the rows.
    :ivar about: the commit that it accepts or discards, or whose state it puts back.
    :ivar set_apart: of the state that it puts back.
    """

    version: int = VERSION
    number: int
    kind: Kind
    source: Source
    run: Run
    attempt_id: str
    started_at: str
    at: str
    provider_version: str
    replaces: bool = False
    encoding: dict[str, Any] = {}
    table_format: str | None = None
    columns: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    cursor: Cursor = Cursor()
    checks: tuple[CheckOutcome, ...] = ()
    about: int | None = None
    set_apart: tuple[SetApart, ...] = ()

    def __post_init__(self) -> None:
        check_part_names(part.name for part in self.parts)

    @property
    def rows(self) -> int:
        """Number of rows of its parts."""
        return sum(part.rows for part in self.parts)

    @property
    def changes_rows(self) -> bool:
        """Whether the landing has other rows since."""
        return self.kind in ("landed", "accepted", "restored")

    @property
    def added(self) -> tuple[Part, ...]:
        """The parts that it gives the landing, as a manifest has them; none if it sets rows apart."""
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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the commits up to a number make of a landing; ``_manifest.json`` is that of the last commit.

    :ivar commit: the number of the last commit; ``first_commit`` is the one with which the landing began, or
        has begun again.
    :ivar log_id: of the log, random: a folder that was emptied begins another, with the same numbers.
    :ivar rows: of all parts, as ``bytes``.
    :ivar encoding: the options of the file format that have no keys of their own.
    :ivar table_format: of the table that it is; None for a folder.
    :ivar columns: field names in order; None for JSON lines without fixed columns.
    :ivar next_offset: see :class:`Cursor`, as for ``last_page``, ``total`` and ``earlier_rows``.
    :ivar run: the run that has landed rows last; ``started_at``, ``finished_at`` and ``checks`` are of its
        commit.
    :ivar exported_at: when the export was confirmed to the service after the commit; None if it was not.
    :ivar history: the last :data:`MOST_RECORDS` runs that have landed rows, the latest last; also those whose
        parts were replaced since.
    :ivar set_apart: rows of the source that are not in the landing, although it goes on behind them: ``rows``
        and these are ``total`` and ``earlier_rows``.
    :ivar profile: what all rows hold.
    :ivar replaced: the parts of the landing before it began again: readers may still be at them, and it can
        be put back.
    :ivar rows_commit: the number of the last commit that has changed the rows.
    :ivar part_count: how many parts there are; ``parts`` has fewer in a table, which knows its own files.
    """

    version: int = VERSION
    commit: int
    first_commit: int
    log_id: str
    source: Source
    rows: int = 0
    bytes: int = 0
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
    exported_at: str | None = None
    provider_version: str
    checks: tuple[CheckOutcome, ...] = ()
    history: tuple[RunRecord, ...] = ()
    set_apart: tuple[SetApart, ...] = ()
    profile: Profile = Profile()
    replaced: tuple[str, ...] = ()
    rows_commit: int = 0
    part_count: int = 0
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        check_part_names(part.name for part in self.parts)

    @property
    def source_rows(self) -> int:
        """Number of the source's first rows that are in the landing or set apart."""
        apart = sum(each.rows for each in self.set_apart if not each.is_earlier)
        return self.rows - self.earlier_rows + apart

    @property
    def quarantined(self) -> tuple[SetApart, ...]:
        """The rows that wait for a person's decision."""
        return tuple(each for each in self.set_apart if each.kind == "quarantined")

    @property
    def lacks_mark(self) -> bool:
        """Whether the export is still to be marked; not while rows of the source are quarantined."""
        return self.exported_at is None and all(each.is_earlier for each in self.quarantined)

    @property
    def cursor(self) -> Cursor:
        """Where the landing stands in its source."""
        return Cursor(
            next_offset=self.next_offset,
            last_page=self.last_page,
            total=self.total,
            earlier_rows=self.earlier_rows,
        )

    @property
    def file_format(self) -> dict[str, Any]:
        """The file format with all its options, as a commit has it."""
        return {**self.encoding, "file_format": self.format, "compression": self.compression}

    def record_of(self, run: Run) -> RunRecord | None:
        """Return the record of a run, if it is among the last that have landed rows."""
        return next((record for record in self.history if record.run == run), None)

    def columns_of(self, part: Part) -> tuple[str, ...]:
        """Return the columns that a part has, in order; empty for JSON lines without fixed columns.

        :param part: one of :attr:`parts`.
        """
        return (self.columns or ())[: part.columns]


class Contradiction(Exception):
    """A commit does not follow from those before it; the text says how.

    :ivar number: of the commit, as its place in the log is.
    """

    number = 0


def fold(state: Manifest | None, commits: Iterable[Commit]) -> Manifest | None:
    """Return what commits make of a landing.

    :param state: what those before them have made; None for nothing.
    :raises Contradiction: if one does not follow from those before it.
    """
    number = 0 if state is None else state.commit
    try:
        for commit in commits:
            number += 1
            state = _after(state, commit, number)
        if state is not None:
            twice = [name for name, count in Counter(part.name for part in state.parts).items() if count > 1]
            _require(not twice, f"{twice[:1]} has landed twice")
    except Contradiction as contradiction:
        contradiction.number = number
        raise
    return state


def alone(commit: Commit) -> Manifest:
    """Return what a commit has set apart as a landing of its own."""
    landed = msgspec.structs.replace(commit, kind="landed")
    place = {**msgspec.structs.asdict(commit.cursor), "total": commit.rows, "earlier_rows": 0}
    state = _with_parts(_begun(None, landed), landed)
    return msgspec.structs.replace(state, columns=commit.columns or None, **place)


def _after(state: Manifest | None, commit: Commit, number: int) -> Manifest:
    _require(commit.number == number, f"it is commit {commit.number} in the place of {number}")
    if state is None or commit.replaces:
        _require(
            commit.kind in ("landed", "quarantined", "discarded", "restored"), "nothing was landed before it"
        )
        return _moved(_begun(state, commit), commit)
    _require(
        state.source.is_same_as(commit.source), f"it is of {commit.source}, and the landing of {state.source}"
    )
    if commit.kind == "exported":
        return msgspec.structs.replace(state, commit=number, exported_at=commit.at)
    if commit.about is not None:
        return _decided(state, commit)
    return _moved(state, commit)


def _begun(state: Manifest | None, commit: Commit) -> Manifest:
    """Return the state of a landing that begins, or begins again, without rows.

    :param state: what it replaces.
    """
    encoding = dict(commit.encoding)
    return Manifest(
        commit=commit.number,
        first_commit=commit.number,
        log_id=commit.attempt_id if state is None else state.log_id,
        source=commit.source,
        format=encoding.pop("file_format"),
        compression=encoding.pop("compression"),
        encoding=encoding,
        table_format=commit.table_format,
        run=commit.run,
        started_at=commit.started_at,
        finished_at=commit.at,
        provider_version=commit.provider_version,
        history=() if state is None else state.history,
        # a table keeps its own versions
        replaced=()
        if state is None or commit.table_format is not None
        else tuple(part.name for part in state.parts),
        set_apart=commit.set_apart,
    )


def _moved(state: Manifest, commit: Commit) -> Manifest:
    """Return the state once rows have been landed or set apart, and the place in the source has changed."""
    cursor = commit.cursor
    apart = tuple(msgspec.structs.replace(each, is_earlier=True) for each in state.set_apart)
    moved = msgspec.structs.replace(
        state,
        columns=commit.columns or None,
        set_apart=apart if _is_reset(state, commit) else state.set_apart,
        **msgspec.structs.asdict(cursor),
    )
    moved = (
        _with_parts(moved, commit) if commit.kind in ("landed", "restored") else _with_apart(moved, commit)
    )
    rows = moved.source_rows
    _require(
        rows == cursor.total, f"it makes {rows} of the source's rows, and says that there are {cursor.total}"
    )
    return moved


def _is_reset(state: Manifest, commit: Commit) -> bool:
    """Return whether a commit has the rows of a source that was filled again (``on_reset="append"``)."""
    if commit.kind == "restored":
        return False
    is_reset = state.source_rows > 0 and bool(commit.parts) and commit.parts[0].start_offset == 0
    earlier, said = state.rows if is_reset else state.earlier_rows, commit.cursor.earlier_rows
    _require(said == earlier, f"{earlier} rows are not the source's any more, and it says {said}")
    return is_reset


def _decided(state: Manifest, commit: Commit) -> Manifest:
    """Return the state once a person has decided on rows that were set apart."""
    waiting = [each for each in state.quarantined if each.commit == commit.about]
    _require(bool(waiting), f"it decides on commit {commit.about}, of which no rows wait")
    apart = waiting[0]
    if commit.kind == "discarded":
        discarded = msgspec.structs.replace(apart, kind="discarded", at=commit.at)
        others = tuple(discarded if each is apart else each for each in state.set_apart)
        return msgspec.structs.replace(state, commit=commit.number, set_apart=others)
    _require(commit.rows == apart.rows, f"it has {commit.rows} rows of {apart.rows} that were set apart")
    earlier = state.earlier_rows + (apart.rows if apart.is_earlier else 0)
    others = tuple(each for each in state.set_apart if each is not apart)
    return _with_parts(msgspec.structs.replace(state, set_apart=others, earlier_rows=earlier), commit)


def _with_parts(state: Manifest, commit: Commit) -> Manifest:
    """Return the state with the parts of a commit."""
    profile = sum_of(part.profile for part in commit.parts)
    return msgspec.structs.replace(
        state,
        commit=commit.number,
        source=commit.source,
        rows=state.rows + commit.rows,
        bytes=state.bytes + sum(part.bytes for part in commit.parts),
        rows_commit=commit.number,
        run=commit.run,
        started_at=commit.started_at,
        finished_at=commit.at,
        provider_version=commit.provider_version,
        checks=commit.checks,
        exported_at=None,
        history=state.history if commit.kind == "restored" else _with_record(state.history, commit, profile),
        profile=sum_of((state.profile, profile)),
        part_count=state.part_count + len(commit.parts),
        parts=(*state.parts, *commit.added),
    )


def _with_apart(state: Manifest, commit: Commit) -> Manifest:
    """Return the state with the rows of a commit set apart."""
    _require(bool(commit.parts), f"it is {commit.kind}, and has no rows")
    apart = SetApart(
        commit=commit.number,
        kind="discarded" if commit.kind == "discarded" else "quarantined",
        run=commit.run,
        rows=commit.rows,
        start_offset=commit.parts[0].start_offset,
        next_offset=commit.parts[-1].next_offset,
        at=commit.at,
        checks=commit.failed,
    )
    return msgspec.structs.replace(
        state, commit=commit.number, exported_at=None, set_apart=(*state.set_apart, apart)
    )


def _with_record(history: tuple[RunRecord, ...], commit: Commit, profile: Profile) -> tuple[RunRecord, ...]:
    """Return the records of the last runs with that of a commit's run, which may have landed rows before."""
    others = [record for record in history if record.run != commit.run]
    own = [] if commit.replaces else [record for record in history if record.run == commit.run]
    filled = Counter({name: counts.filled for name, counts in profile.columns.items()})
    for earlier in own:
        filled.update(earlier.filled)
    record = RunRecord(
        commits=(*(number for earlier in own for number in earlier.commits), commit.number),
        run=commit.run,
        finished_at=commit.at,
        rows=commit.rows + sum(earlier.rows for earlier in own),
        filled=dict(filled),
        is_cut=profile.is_cut or any(earlier.is_cut for earlier in own),
    )
    return (*others, record)[-MOST_RECORDS:]


def _require(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise Contradiction(otherwise)


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt has written since the commit that it began with, for a retry of its run.

    :ivar attempt_id: makes the names of its parts unique.
    :ivar base: the number of that commit; 0 for none.
    :ivar continues: whether the parts follow those of that commit; else they take their place.
    :ivar encoding: the file format with all its options; a landing that continues must use the same.
    :ivar table_format: of the table that the landing is or will be; None for a folder.
    :ivar columns: the columns of all parts, in order.
    :ivar rows_before: rows of the source before the parts; ``offset_before`` is the cursor there, and
        ``parts_before`` the number of the landing's parts.
    :ivar earlier_rows: rows that were landed and that the source has no more.
    :ivar first_page: where the reading of the parts began: the first page of rows, or the last landed one;
        None without parts.
    :ivar last_page: the last page before the cursor.
    :ivar refused: the outcome of the checks of the rows, some of which failed: a person decides what becomes
        of them. Empty while rows are read.
    """

    version: int = VERSION
    attempt_id: str
    source: Source
    run: Run
    mode: Mode = "full"
    encoding: dict[str, Any] = {}
    table_format: str | None = None
    columns: tuple[str, ...] = ()
    base: int = 0
    continues: bool = False
    rows_before: int = 0
    parts_before: int = 0
    offset_before: int = 0
    earlier_rows: int = 0
    first_page: PageFingerprint | None = None
    last_page: PageFingerprint = PageFingerprint()
    started_at: str
    refused: tuple[CheckOutcome, ...] = ()
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        check_part_names(part.name for part in self.parts)

    @property
    def part_rows(self) -> int:
        """Number of rows of the parts."""
        return sum(part.rows for part in self.parts)

    @property
    def rows(self) -> int:
        """Number of the source's rows that are landed or in finished parts."""
        return self.rows_before + self.part_rows

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
    ) -> Staged:
        """Return it after ``part``."""
        return msgspec.structs.replace(
            self, parts=(*self.parts, part), columns=columns, first_page=first_page, last_page=last_page
        )


def commit_of(
    kind: Kind, staged: Staged, total: int, checks: tuple[CheckOutcome, ...] = (), about: int | None = None
) -> Commit:
    """Return the commit of what an attempt has written.

    :param total: rows that the service announced.
    :param checks: what became of the checks of the rows.
    """
    return Commit(
        number=staged.base + 1,
        kind=kind,
        source=staged.source,
        run=staged.run,
        attempt_id=staged.attempt_id,
        started_at=staged.started_at,
        at=now(),
        provider_version=airflow_provider_webcollect.__version__,
        replaces=staged.base > 0 and not staged.continues,
        encoding=staged.encoding,
        table_format=staged.table_format,
        columns=staged.columns,
        parts=staged.parts,
        cursor=Cursor(
            next_offset=staged.next_offset,
            last_page=staged.last_page,
            total=total,
            earlier_rows=staged.earlier_rows,
        ),
        checks=checks,
        about=about,
    )


def following(state: Manifest, kind: Kind, run: Run, **fields: Any) -> Commit:
    """Return a commit that leaves a landing where it stands in its source.

    :param state: what it follows.
    :param fields: what it says of its parts, and where the landing stands otherwise.
    """
    at = now()
    place = {
        "encoding": state.file_format,
        "table_format": state.table_format,
        "columns": state.columns or (),
        "cursor": state.cursor,
    }
    return Commit(
        number=state.commit + 1,
        kind=kind,
        source=state.source,
        run=run,
        attempt_id=new_attempt_id(),
        started_at=at,
        at=at,
        provider_version=airflow_provider_webcollect.__version__,
        **{**place, **fields},
    )


class _Versioned(msgspec.Struct):
    version: int


F = TypeVar("F", bound=msgspec.Struct)


def encode(content: Commit | Manifest | Staged) -> bytes:
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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DestinationUnreadable(f"{where} is not readable: {error}; {REMEDY}") from error
    raise DestinationUnreadable(
        f"{where} is of version {version}, this provider knows version {VERSION}: upgrade it"
    )
