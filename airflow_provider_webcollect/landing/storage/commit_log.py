"""The commit log of a landing: reads it, appends commits, and publishes the state in the manifest."""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
from concurrent.futures import wait
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.errors import DestinationUnreadable, LogContended
from airflow_provider_webcollect.landing.log.commits import (
    MOST_RECORDS,
    REMEDY,
    Commit,
    F,
    Manifest,
    decode,
    encode,
    may_lack_commits,
)
from airflow_provider_webcollect.landing.log.fold import Contradiction, fold
from airflow_provider_webcollect.landing.log.names import (
    COMMITS,
    STAGED,
    commit_name,
    last_commit,
    staged_name,
)
from airflow_provider_webcollect.service.spans import span
from airflow_provider_webcollect.service.threads import in_background

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_provider_webcollect.landing.log.commits import Part, Run
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)
#: Maximum number of tries to commit, if other landings commit meanwhile.
TRIES = 10
#: Maximum number of commits that are read at a time.
_AT_ONCE = 16


class Conflict(Exception):
    """Another landing has made the commit with this number: the log must be read again."""


@contextlib.contextmanager
def suppress_conflict(folder: Folder) -> Iterator[None]:
    """Suppress the :class:`Conflict` of a block that reads the log and commits, so that it can be repeated.

    The caller repeats the block up to :data:`TRIES` times, and then raises the error of :func:`contended`.
    """
    try:
        yield
    except Conflict:
        log.warning(
            "Another landing has committed to %s meanwhile, so this one begins again; run one landing at "
            "a time to avoid that (in a DAG, `max_active_runs=1`).",
            folder.root,
        )


def contended(folder: Folder) -> LogContended:
    """Return the error for a landing that cannot commit because others keep committing first."""
    return LogContended(f"other landings keep committing to {folder.url}; try again")


class CommitLog:
    """The commits of a landing.

    :param folder: the folder of the landing.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        #: The number of the last commit in the manifest, as far as this object knows; 0 for no manifest.
        self._published = 0

    def read(self) -> Manifest | None:
        """Return the state of the landing; None if nothing has landed.

        :raises DestinationUnreadable: if a commit cannot be read, is missing, or contradicts earlier ones.
        """
        state = self.checkpoint()
        if state is None:
            # only a listing says how many commits there must be
            state = self._folded(None, self.commits(range(1, 1 + last_commit(self._folder.files(COMMITS)))))
        return self.newer(state)

    def checkpoint(self) -> Manifest | None:
        """Return the manifest, which may lack the latest commits; None if it is absent or torn.

        :raises DestinationUnreadable: if the manifest cannot be read.
        """
        content = self._folder.read(MANIFEST)
        if content is None:
            return None
        manifest = self._unless_torn(content, MANIFEST, Manifest)
        if manifest is None:
            log.warning("%s is not complete; the commits are read instead.", self._folder.path_of(MANIFEST))
            return None
        self._published = manifest.commit
        return manifest

    def newer(self, state: Manifest | None) -> Manifest | None:
        """Return the current state of the landing.

        :param state: an earlier state, after which the log is read; None to read all of it.
        """
        after = 0 if state is None else state.commit
        size = 1
        while True:
            commits = self._read(range(after + 1, after + 1 + size))
            state = self._folded(state, commits)
            if len(commits) < size:
                return state
            after += size
            size = min(2 * size, _AT_ONCE)

    def up_to(self, version: int, state: Manifest | None) -> Manifest | None:
        """Return the state whose rows a table has, from the number of the last commit in the table.

        Later commits are included as long as they change no rows.

        :param version: the number of that commit; 0 for none.
        :param state: a known state, usually an earlier one; None for no state.
        """
        if state is not None and state.rows_commit > version:
            # somebody has restored an older version of the table
            state = None
        number = 0 if state is None else state.commit
        if number < version:
            state, number = self._folded(state, self.commits(range(number + 1, version + 1))), version
        while (commits := self._read(range(number + 1, number + 2))) and not commits[0].changes_rows:
            state, number = self._folded(state, commits), number + 1
        return state

    def commits(self, numbers: Sequence[int]) -> Iterator[Commit]:
        """Yield the commits with these numbers.

        :param numbers: the numbers, in the order in which the commits are yielded.
        :raises DestinationUnreadable: if a commit cannot be read, or is missing.
        """
        for begin in range(0, len(numbers), _AT_ONCE):
            wanted = numbers[begin : begin + _AT_ONCE]
            commits = self._read(wanted)
            if len(commits) < len(wanted):
                raise self._missing(wanted[len(commits)])
            yield from commits

    def table_format(self) -> str | None:
        """Return the table format that the landing has, or will have; None for a folder."""
        first = self.checkpoint() or next(iter(self._read([1]) or self.staged().values()), None)
        return first.table_format if first else None

    def append(self, state: Manifest | None, commit: Commit) -> Manifest:
        """Append a commit, and return the state after it.

        :param state: the state that the commit follows; None for the first commit.
        :raises Conflict: if another commit has that number; nothing is appended then.
        """
        facts = {
            "webcollect.commit.number": commit.number,
            "webcollect.commit.kind": commit.kind,
            "webcollect.rows": commit.rows,
            "webcollect.parts": len(commit.parts),
        }
        with span("commit", facts):
            after = self._folded(state, [commit])
            assert after is not None
            # quarantined single rows have no typed columns yet, and rows that wait to replace all others may
            # never land
            are_typed = any(not part.broke for part in commit.quarantined) and not commit.waits_to_replace
            if commit.changes_rows or are_typed:
                self._folder.refuse(after, functools.partial(self.parts_after, after))
            name = commit_name(commit.number)
            if not self._folder.created(name, encode(commit)):
                raise Conflict(name)
        return after

    @span("publish", {})
    def publish(self, state: Manifest) -> Manifest:
        """Publish the state to readers, and return the latest state, since others may have committed.

        :param state: a state of the log; later commits are published too.
        """
        while True:
            self._folder.show(state, functools.partial(self.parts_after, state))
            if state.commit > self._published:
                # a table knows its files, and the cost of a commit must not grow with their number
                listed = state if state.table_format is None else msgspec.structs.replace(state, parts=())
                self._folder.write(MANIFEST, encode(listed))
                self._published = state.commit
            # the next commit may have been published before this one
            latest = self.newer(state)
            assert latest is not None
            if latest.commit == state.commit:
                return state
            state = latest

    def parts_after(self, state: Manifest, number: int) -> tuple[Part, ...]:
        """Return the parts that landed after a commit, even if the manifest does not list them.

        :param state: the state of the landing.
        :param number: the number of the commit.
        """
        numbers = range(max(number + 1, state.first_commit), min(self._published, state.rows_commit) + 1)
        earlier = [part for commit in self.commits(numbers) for part in commit.added]
        later = [part for part in state.parts if (part.commit or 0) > max(number, self._published)]
        return (*earlier, *later)

    def commits_of(
        self, state: Manifest, run: Run, began: datetime.datetime | None = None
    ) -> tuple[Commit, ...]:
        """Return the commits that have a run's rows (landed, quarantined or accepted), in order.

        The manifest knows the commits of the latest runs. For a run that may be older, the whole log is read.

        :param state: the state of the landing.
        :param run: the run.
        :param began: when the run began; None if that is not known.
        """
        history = state.history
        # a run that collected missing inputs again is in the record of an earlier run of the same DAG run
        records = [record for record in history if record.run.is_beside(run)]
        numbers = {number for record in records for number in record.commits}
        numbers.update(apart.commit for apart in state.set_apart if apart.run == run)
        earlier: list[Commit] = []
        has_record = any(record.run == run and not may_lack_commits(record, state) for record in records)
        if not has_record and len(history) >= MOST_RECORDS:
            oldest = datetime.datetime.fromisoformat(history[0].finished_at)
            if began is None or began <= oldest:
                every = self.commits(range(1, state.commit + 1))
                earlier = [commit for commit in every if commit.run == run and commit.written]
        numbers.difference_update(commit.number for commit in earlier)
        return (*earlier, *(commit for commit in self.commits(sorted(numbers)) if commit.run == run))

    def decision_by(self, state: Manifest, by: str, run_id: str | None, about: int | None) -> Commit | None:
        """Return the commit of a decider's last decision; None if there is none.

        :param state: the state of the landing.
        :param by: the decider.
        :param run_id: the id of the run whose rows were decided on; None for any run.
        :param about: the number of the commit that quarantined the rows; None for any commit.
        """
        for decision in reversed(state.decisions):
            is_meant = run_id in (None, decision.run_id) and about in (None, decision.about)
            if decision.by == by and is_meant:
                return next(self.commits([decision.commit]))
        if len(state.decisions) < MOST_RECORDS or any(apart.commit == about for apart in state.quarantined):
            return None
        mine = [
            commit
            for commit in self.commits(range(1, state.decisions[0].commit))
            if commit.by == by and run_id in (None, commit.run.run_id) and about in (None, commit.about)
        ]
        return mine[-1] if mine else None

    def staged(self, run: Run | None = None) -> dict[str, Commit]:
        """Return the stored drafts by file name; torn files are left out.

        :param run: the run whose drafts are returned; None for all runs.
        """
        beginning = f"{STAGED}/" if run is None else staged_name(run.digest(), "")[: -len(".json")]
        names = [name for name in sorted(self._folder.files(STAGED)) if name.startswith(beginning)]
        drafts = {}
        for name in names:
            content = self._folder.read(name)
            if content is not None and (draft := self._unless_torn(content, name, Commit)):
                drafts[name] = draft
        return drafts

    def _folded(self, state: Manifest | None, commits: Iterable[Commit]) -> Manifest | None:
        try:
            return fold(state, commits)
        except Contradiction as contradiction:
            where = self._folder.path_of(commit_name(contradiction.number))
            raise DestinationUnreadable(
                f"{where} contradicts the commits before it: {contradiction}; {REMEDY}"
            ) from contradiction

    def _read(self, numbers: Sequence[int]) -> list[Commit]:
        """Return the commits with these numbers, up to the first absent one."""
        names = [commit_name(number) for number in numbers]
        if len(names) == 1:
            contents = [self._folder.read(names[0])]
        else:
            reading = [
                in_background(functools.partial(self._folder.read, name), "webcollect-log") for name in names
            ]
            wait(reading)
            contents = [future.result() for future in reading]
        count = _whole(contents)
        if any(contents[count:]):
            # the absent commit may have been created after it was looked for, and before the later ones
            contents[count:] = map(self._folder.read, names[count:])
            count = _whole(contents)
            if any(contents[count:]):
                raise self._missing(numbers[count])
        return [
            decode(content or b"", self._folder.path_of(name), Commit)
            for name, content in zip(names[:count], contents, strict=False)
        ]

    def _unless_torn(self, content: bytes, name: str, kind: type[F]) -> F | None:
        """Decode a file that may be overwritten in place.

        :return: None if the file is torn, as after a kill on a storage that does not replace files whole.
        """
        try:
            return decode(content, self._folder.path_of(name), kind)
        except DestinationUnreadable:
            # only after an error, since a manifest can be long
            try:
                msgspec.json.decode(content)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
            except RecursionError:
                # a write that was cut off does not cause this
                pass
            raise

    def _missing(self, number: int) -> DestinationUnreadable:
        return DestinationUnreadable(
            f"{self._folder.path_of(commit_name(number))} is missing: what has landed is unknown; {REMEDY}"
        )


def _whole(contents: Sequence[bytes | None]) -> int:
    """Return the number of contents before the first None, which stands for an absent file."""
    return next((index for index, content in enumerate(contents) if content is None), len(contents))
