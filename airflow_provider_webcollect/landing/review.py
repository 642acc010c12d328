"""Rows that have failed their checks: set apart by the landing, accepted or discarded by a person.

They are staged (finished parts that no commit lists) or quarantined (parts that a commit sets apart). In each
case one commit decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_provider_webcollect.landing.commits import (
    Commit,
    Run,
    commit_of,
    counted,
    following,
    missing_part,
)
from airflow_provider_webcollect.landing.errors import LogContended, NothingToReview, PartsMissing
from airflow_provider_webcollect.landing.log import CommitLog, Conflict
from airflow_provider_webcollect.landing.options import landing_at
from airflow_provider_webcollect.landing.plan import can_be_set_apart

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.commits import Manifest, Part
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)
#: How often a decision is made again because another landing has committed meanwhile.
_TRIES = 5


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


def in_review(path: Any) -> tuple[InReview, ...]:
    """Return the rows of a landing that wait for a decision, the staged ones first.

    :param path: the landing's folder or manifest, as for
        :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    """
    return _Found(landing_at(path)).waiting


def accept(path: Any, run_id: str | None = None) -> InReview:
    """Commit rows that have failed their checks to the landing, each once.

    The export is not marked; the next run marks it if it is to.

    :param path: as for :func:`in_review`.
    :param run_id: the Airflow run that has read them; None if there are those of one run only.
    :return: what was accepted.
    :raises NothingToReview: if no such rows wait for a decision.
    :raises PartsMissing: if parts of these rows are missing; nothing is committed then.
    :raises LogContended: if other landings have committed again and again meanwhile.
    """
    return _decide(landing_at(path), run_id, _Found.accept)


def discard(path: Any, run_id: str) -> InReview:
    """Leave out rows that have failed their checks for good; the landing counts them and goes on behind them.

    Staged rows of a landing that begins with the first row (``mode="full"``, or after a reset) are only
    dropped: the next run reads the source again.

    :param path: as for :func:`in_review`.
    :param run_id: the Airflow run that has read them.
    :return: what was discarded.
    :raises NothingToReview: if no such rows wait for a decision.
    :raises LogContended: as for :func:`accept`.
    """
    return _decide(landing_at(path), run_id, _Found.discard)


def quarantine(path: Any, run_id: str | None = None) -> InReview:
    """Set staged rows apart, as the run would have with ``on_failed_checks="quarantine"``.

    :param path: as for :func:`in_review`.
    :param run_id: as for :func:`accept`.
    :return: what was set apart.
    :raises NothingToReview: if they are quarantined already, or a landing would begin with them.
    :raises LogContended: as for :func:`accept`.
    """
    return _decide(landing_at(path), run_id, _Found.quarantine)


def _decide(folder: Folder, run_id: str | None, decide: Callable[[_Found, InReview], None]) -> InReview:
    """Carry out a decision; again on what there is by then, if another landing has committed meanwhile."""
    for _ in range(_TRIES):
        found = _Found(folder)
        chosen = found.choose(run_id)
        try:
            decide(found, chosen)
        except Conflict:
            run_id = chosen.run.run_id
        else:
            return chosen
    raise LogContended(f"other landings keep committing to {folder.url}; try again")


class _Found:
    """What has landed, and the rows that wait.

    :ivar waiting: the rows, the staged ones first.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._log = CommitLog(folder)
        self._state = self._log.read()
        number = self._state.commit if self._state else 0
        # those of an earlier commit were read again by later runs
        self._staged = {
            each.run: (name, each)
            for name, each in self._log.staged().items()
            if each.refused and each.base == number
        }
        staged = [
            InReview("staged", run, each.part_rows, None, _failed(each.refused))
            for run, (_, each) in self._staged.items()
        ]
        quarantined = [
            InReview("quarantined", each.run, each.rows, each.commit, each.checks)
            for each in (self._state.quarantined if self._state else ())
        ]
        self.waiting = (*staged, *quarantined)

    def choose(self, run_id: str | None) -> InReview:
        """Return the rows of a run; None for the only one whose rows wait."""
        of_run = [each for each in self.waiting if run_id in (None, each.run.run_id)]
        # a run that was cleared may have failed its checks twice: those staged have to be decided on first
        if of_run and (run_id is not None or len(of_run) == 1):
            return of_run[0]
        listed = ", ".join(map(str, self.waiting))
        if of_run:
            raise NothingToReview(f"name one of the runs whose rows wait at {self._folder.url}: {listed}")
        whose = "no rows wait" if run_id is None else f"no rows of {run_id} wait"
        raise NothingToReview(f"{whose} for a decision at {self._folder.url}; there are {listed or 'none'}")

    def accept(self, chosen: InReview) -> None:
        if chosen.commit is None:
            _, staged = self._staged[chosen.run]
            self._refuse_missing(staged.parts)
            self._append(commit_of("landed", staged, staged.rows, staged.refused))
            self._end(chosen.run)
            return
        state, apart = self._quarantined(chosen.commit)
        self._refuse_missing(apart.parts)
        parts = self._folder.brought_back(apart.parts)
        self._append(
            following(state, "accepted", apart.run, parts=parts, checks=apart.checks, about=apart.number)
        )
        self._folder.delete(part.name for part in apart.parts if part not in parts)

    def discard(self, chosen: InReview) -> None:
        if chosen.commit is None:
            _, staged = self._staged[chosen.run]
            if can_be_set_apart(staged):
                # columns that only they have are none of the landing's
                columns = (self._state.columns or ()) if self._state else ()
                left_out = msgspec.structs.replace(staged, columns=columns)
                self._append(commit_of("discarded", left_out, staged.rows, staged.refused))
                self._folder.delete(part.name for part in staged.parts)
            self._end(chosen.run)
            return
        state, apart = self._quarantined(chosen.commit)
        self._append(following(state, "discarded", apart.run, about=apart.number))
        self._folder.delete(part.name for part in apart.parts)

    def quarantine(self, chosen: InReview) -> None:
        _, staged = self._staged.get(chosen.run, ("", None))
        if chosen.commit is not None or staged is None or not can_be_set_apart(staged):
            raise NothingToReview(f"{chosen} at {self._folder.url} cannot be quarantined")
        aside = msgspec.structs.replace(staged, parts=self._folder.set_aside(staged.parts))
        self._append(commit_of("quarantined", aside, staged.rows, staged.refused))
        self._folder.delete(part.name for part in staged.parts if part not in aside.parts)
        self._end(chosen.run)

    def _refuse_missing(self, parts: Iterable[Part]) -> None:
        if missing := missing_part(parts, self._folder.files()):
            raise PartsMissing(f"{missing.name} is not at {self._folder.url} any more; nothing was committed")

    def _quarantined(self, number: int) -> tuple[Manifest, Commit]:
        assert self._state is not None
        return self._state, next(self._log.commits(number, number))

    def _append(self, commit: Commit) -> None:
        self._log.publish(self._log.append(self._state, commit))

    def _end(self, run: Run) -> None:
        name, _ = self._staged[run]
        self._folder.delete([name])


def _failed(outcomes: tuple[CheckOutcome, ...]) -> tuple[CheckOutcome, ...]:
    return tuple(outcome for outcome in outcomes if outcome.state == "failed")
