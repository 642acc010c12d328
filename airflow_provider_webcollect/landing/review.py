"""Rows that have failed their checks: set apart by the landing, accepted or discarded by a person.

They are staged (in the draft of a commit) or quarantined (a commit sets them apart). In each case one commit
decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from airflow_provider_webcollect.landing.commits import Commit, Manifest, Run, counted, missing_part, now
from airflow_provider_webcollect.landing.errors import NothingToReview, PartsMissing
from airflow_provider_webcollect.landing.fold import following
from airflow_provider_webcollect.landing.log import TRIES, CommitLog, contended, unless_beaten
from airflow_provider_webcollect.landing.options import landing_at

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.storage.folder import Folder

#: Returns the commit that decides on rows, given where they are, what has landed, and the commit of the rows,
#: of which they are quarantined, or its draft, in which they are staged.
Decide = Callable[["Folder", Manifest | None, Commit], Commit]


class InReview(NamedTuple):
    """Rows that wait for a person's decision.

    :ivar state: ``staged`` or ``quarantined``.
    :ivar commit: the number of the commit that has quarantined them; None for staged ones.
    :ivar checks: that they have failed.
    """

    state: str
    run: Run
    rows: int
    commit: int | None
    checks: tuple[CheckOutcome, ...]

    def __str__(self) -> str:
        return f"{counted(self.rows, 'row')} of {self.run.run_id} ({self.state})"


def in_review(landing: Any) -> tuple[InReview, ...]:
    """Return the rows of a landing that wait for a decision, the staged ones first.

    :param landing: its folder or manifest, as for
        :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    """
    return _Waiting(landing_at(landing)).waiting


def accept(landing: Any, run_id: str | None = None, commit: int | None = None) -> InReview:
    """Land rows that have failed their checks as they are, each once.

    The export is not marked; the next run with ``mark_exported`` marks it.

    :param landing: as for :func:`in_review`.
    :param run_id: the Airflow run that has read them; None if the rows of only one run wait.
    :param commit: the number of the commit that has quarantined them; None for any rows of the run.
    :return: what was accepted.
    :raises NothingToReview: if no such rows wait for a decision.
    :raises PartsMissing: if parts of these rows are missing; nothing is committed then.
    :raises LogContended: if other landings have committed again and again meanwhile.
    """
    return _decide(landing_at(landing), run_id, _accepted, commit)


def discard(landing: Any, run_id: str, commit: int | None = None) -> InReview:
    """Delete rows that have failed their checks; the landing skips them, and counts them as discarded.

    Staged rows of a landing that begins with the first row (``mode="full"``, or after a reset) are only
    dropped: the next run reads the source again.

    :param landing: as for :func:`in_review`.
    :param run_id: the Airflow run that has read them.
    :param commit: as for :func:`accept`.
    :return: what was discarded.
    :raises NothingToReview: if no such rows wait for a decision.
    :raises LogContended: as for :func:`accept`.
    """
    return _decide(landing_at(landing), run_id, _discarded, commit)


def quarantine(landing: Any, run_id: str | None = None) -> InReview:
    """Set staged rows apart, as the run would have with ``on_failed_checks="quarantine"``.

    :param landing: as for :func:`in_review`.
    :param run_id: as for :func:`accept`.
    :return: what was set apart.
    :raises NothingToReview: if they are quarantined already, or a landing would begin with them.
    :raises LogContended: as for :func:`accept`.
    """
    return _decide(landing_at(landing), run_id, _quarantined)


def _decide(folder: Folder, run_id: str | None, decide: Decide, number: int | None = None) -> InReview:
    """Carry out a decision on the rows of a run; None for the only one whose rows wait.

    :param number: of the commit that has quarantined them; None for whichever of them.
    """
    for _ in range(TRIES):
        waiting_rows = _Waiting(folder)
        chosen = waiting_rows.choose(run_id, number)
        # by the next try, other rows may wait too
        run_id = chosen.run.run_id
        with unless_beaten(folder):
            name, read = waiting_rows.commit_of(chosen)
            commit = replace(decide(folder, waiting_rows.state, read), finished_at=now())
            is_discarded = commit.kind == "discarded"
            if not (is_discarded and commit.replaces):
                waiting_rows.log.publish(waiting_rows.log.append(waiting_rows.state, commit))
                kept_parts = () if is_discarded else commit.parts
                folder.delete(part.name for part in read.parts if part not in kept_parts)
            folder.delete(name)
            return chosen
    raise contended(folder)


def _accepted(folder: Folder, state: Manifest | None, read: Commit) -> Commit:
    if missing := missing_part(read.parts, folder.files()):
        raise PartsMissing(f"{missing.name} is not at {folder.url} any more; nothing was committed")
    if read.kind == "landed":
        return replace(read, kind="accepted")
    parts = folder.brought_back(read.parts)
    return following(state, "accepted", read.run, parts=parts, checks=read.checks, about=read.number)


def _discarded(folder: Folder, state: Manifest | None, read: Commit) -> Commit:
    if read.kind == "landed":
        return replace(read, kind="discarded")
    return following(state, "discarded", read.run, about=read.number)


def _quarantined(folder: Folder, state: Manifest | None, read: Commit) -> Commit:
    if read.kind != "landed" or read.replaces:
        kind = "staged" if read.kind == "landed" else read.kind
        rows = f"{counted(read.rows, 'row')} of {read.run.run_id} ({kind})"
        raise NothingToReview(f"{rows} at {folder.url} cannot be quarantined")
    return replace(read, kind="quarantined", parts=folder.set_aside(read.parts))


class _Waiting:
    """The state of a landing, and its rows that wait for a decision.

    :ivar waiting: the rows, the staged ones first.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.log = CommitLog(folder)
        self.state = state = self.log.read()
        # those of an earlier commit were read again by later runs
        self._drafts = {
            draft.run: (name, draft)
            for name, draft in self.log.staged().items()
            if draft.failed and draft.follows(state)
        }
        staged = [draft for _, draft in self._drafts.values()]
        quarantined = state.quarantined if state else ()
        self.waiting = (
            *(InReview("staged", draft.run, draft.rows, None, draft.failed) for draft in staged),
            *(
                InReview("quarantined", apart.run, apart.rows, apart.commit, apart.checks)
                for apart in quarantined
            ),
        )

    def choose(self, run_id: str | None, number: int | None) -> InReview:
        """Return the rows of a run; None for the only one whose rows wait.

        :param number: of the commit that has quarantined them; None for whichever of them.
        """
        of_run = [
            rows
            for rows in self.waiting
            if run_id in (None, rows.run.run_id) and number in (None, rows.commit)
        ]
        # a run that was cleared may have failed its checks twice: those staged have to be decided on first
        if of_run and (run_id is not None or len(of_run) == 1):
            return of_run[0]
        listed = ", ".join(map(str, self.waiting))
        if of_run:
            raise NothingToReview(f"name one of the runs whose rows wait at {self._folder.url}: {listed}")
        whose = "no rows wait" if run_id is None else f"no rows of {run_id} wait"
        raise NothingToReview(f"{whose} for a decision at {self._folder.url}; there are {listed or 'none'}")

    def commit_of(self, chosen: InReview) -> tuple[list[str], Commit]:
        """Return the commit that has the rows, or the draft that has them with its file."""
        if chosen.commit is not None:
            return [], next(self.log.commits([chosen.commit]))
        name, draft = self._drafts[chosen.run]
        return [name], draft
