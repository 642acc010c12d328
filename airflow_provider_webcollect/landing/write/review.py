"""Decisions on quarantined rows: a person accepts or discards them, by one commit.

Who decides is named, so that a decision whose response was lost is not taken a second time, on other rows.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from airflow_provider_webcollect.landing.errors import NothingToReview
from airflow_provider_webcollect.landing.location import landing_at
from airflow_provider_webcollect.landing.log.commits import counted
from airflow_provider_webcollect.landing.log.fold import following, quarantined_by
from airflow_provider_webcollect.landing.read.quarantine import brought_back
from airflow_provider_webcollect.landing.storage.commit_log import TRIES, CommitLog, contended, unless_beaten
from airflow_provider_webcollect.service.errors import escaped

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.log.commits import Commit, Manifest, SetApart
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)
Choice = Literal["accept", "discard"]


def in_review(landing: Any) -> tuple[SetApart, ...]:
    """Return the rows of a landing that wait for a decision, by the commits that have quarantined them.

    :param landing: its folder or manifest, as for
        :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    :raises DestinationUnreadable: if a commit cannot be read.
    """
    state = CommitLog(landing_at(landing)).read()
    return state.quarantined if state else ()


def waiting(landing: Any, commit: int | None = None) -> SetApart:
    """Return the rows that a commit has quarantined, if they wait for a decision.

    :param landing: as for :func:`in_review`.
    :param commit: its number; None for the only one.
    :raises NothingToReview: if they do not wait, or those of several commits do. It says who has decided, if
        that is known.
    :raises DestinationUnreadable: as for :func:`in_review`.
    """
    folder = landing_at(landing)
    return _chosen(folder, CommitLog(folder).read(), None, commit)


def accept(landing: Any, run_id: str | None = None, commit: int | None = None, by: str = "") -> SetApart:
    """Land quarantined rows as they are, each once, after all others.

    Single rows that the landing cannot hold, since they do not fit the types of its columns or its format, go
    on waiting; the commit of the decision has quarantined them then.

    Rows with which the landing would have begun again take the place of all that has landed. The export is
    not marked; the next run with ``mark_exported`` marks it.

    :param landing: as for :func:`in_review`.
    :param run_id: the Airflow run that has read them; None for any.
    :param commit: the number of the commit that has quarantined them; None if it is the only one of the run.
    :param by: who decides. A second call by the same, about the same run and commit as far as they are named,
        changes nothing, and returns what the first has accepted. Empty for nobody: then each call decides.
    :return: what was accepted.
    :raises NothingToReview: if no such rows wait for a decision, or those of several commits do.
    :raises PartsMissing: if a file of these rows is missing or damaged; nothing is committed then.
    :raises FormatChanged: if the landing has begun again since, in another format or with other columns.
    :raises UnreadableRow: if the landing can hold none of the rows; nothing is committed then.
    :raises LogContended: if other landings have committed again and again meanwhile.
    """
    return _decide(landing_at(landing), "accept", run_id, commit, by)


def discard(landing: Any, run_id: str | None = None, commit: int | None = None, by: str = "") -> SetApart:
    """Delete quarantined rows; the landing skips them, and counts them as discarded.

    Rows with which the landing would have begun again are only dropped: the next run reads the source again.

    :param landing: as for :func:`in_review`.
    :param run_id: as for :func:`accept`, like ``commit`` and ``by``.
    :param commit: likewise.
    :param by: likewise.
    :return: what was discarded.
    :raises NothingToReview: as for :func:`accept`.
    :raises LogContended: likewise.
    """
    return _decide(landing_at(landing), "discard", run_id, commit, by)


def _decide(folder: Folder, choice: Choice, run_id: str | None, number: int | None, by: str) -> SetApart:
    commits = CommitLog(folder)
    for _ in range(TRIES):
        with unless_beaten(folder):
            state = commits.read()
            if by and state and (earlier := commits.decision_by(state, by, run_id, number)):
                commits.publish(state)
                return _decided_before(commits, earlier, choice)
            apart = _chosen(folder, state, run_id, number)
            assert state is not None
            # by the next try, other rows may wait too
            number = apart.commit
            (read,) = commits.commits([number])
            made = _accepted(folder, state, read) if choice == "accept" else {}
            decision = following(state, "decided", read.run, about=number, by=by, **made)
            commits.publish(commits.append(state, decision))
            if choice == "discard":
                with contextlib.suppress(Exception):
                    # what is left is removed by `clean`
                    folder.delete(part.name for part in read.quarantined)
            return replace(apart, rows=decision.rows or apart.rows)
    raise contended(folder)


def _chosen(folder: Folder, state: Manifest | None, run_id: str | None, number: int | None) -> SetApart:
    """Return the rows that are named, or the only ones that wait.

    :raises NothingToReview: if there are none, or several.
    """
    quarantined = state.quarantined if state else ()
    chosen = [
        apart
        for apart in quarantined
        if run_id in (None, apart.run.run_id) and number in (None, apart.commit)
    ]
    if len(chosen) == 1:
        return chosen[0]
    listed = ", ".join(map(str, quarantined)) or "none"
    if chosen:
        raise NothingToReview(f"name the commit whose rows are meant at {folder.url}: {listed}")
    for decision in reversed(state.decisions if state else ()):
        if decision.about == number:
            verb = "accepted" if decision.is_accepted else "discarded"
            who = f" by {escaped(decision.by)}" if decision.by else ""
            raise NothingToReview(f"the rows of commit {number} at {folder.url} were {verb} already{who}")
    named = [f"commit {number}"] * (number is not None) + [f"run {run_id}"] * (run_id is not None)
    which = f" of {' and '.join(named)}" if named else ""
    raise NothingToReview(f"no rows{which} wait for a decision at {folder.url}; there are {listed}")


def _decided_before(commits: CommitLog, earlier: Commit, choice: Choice) -> SetApart:
    """Return what the same decider has decided on before.

    :raises NothingToReview: if the decision was the other one.
    """
    assert earlier.about is not None
    (read,) = commits.commits([earlier.about])
    if (choice == "accept") != bool(earlier.parts):
        verb = "accepted" if earlier.parts else "discarded"
        raise NothingToReview(f"{escaped(earlier.by)} has {verb} the rows of commit {read.number} already")
    return replace(quarantined_by(read), rows=earlier.rows or read.quarantined_rows)


def _accepted(folder: Folder, state: Manifest, read: Commit) -> dict[str, Any]:
    """Return the fields of the commit that accepts rows."""
    landing = read if read.waits_to_replace else state
    back = brought_back(folder, read, landing)
    if back.left:
        rows = counted(sum(part.rows for part in back.left), "row")
        log.warning("%s of commit %d cannot land: still quarantined.", rows, read.number)
    names = back.columns.names if back.columns.fixed or landing.format != "jsonl" else None
    return {
        **landing.place,
        "columns": names,
        "parts": back.parts,
        "quarantined": back.left,
        "checks": read.checks,
        "replaces": read.waits_to_replace,
    }
