"""Removing files that nothing will read, and putting back a landing that was replaced."""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_provider_webcollect.landing.commits import Manifest, missing_part
from airflow_provider_webcollect.landing.errors import LogContended, NothingLanded, PartsMissing
from airflow_provider_webcollect.landing.fold import fold, following
from airflow_provider_webcollect.landing.log import CommitLog, Conflict
from airflow_provider_webcollect.landing.names import is_removable, redshift_manifest
from airflow_provider_webcollect.landing.options import landing_at
from airflow_provider_webcollect.landing.storage import storage_errors
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)
#: Seconds: no file is older.
_OLDEST = 1e9


class Leftover(NamedTuple):
    """A file that no landing needs.

    :ivar name: relative to the landing's folder.
    :ivar modified: when it was written, according to the storage.
    """

    name: str
    bytes: int
    modified: datetime.datetime


def clean(
    landing: Any,
    *,
    older_than: float | datetime.timedelta,
    dry_run: bool = False,
) -> tuple[Leftover, ...]:
    """Remove a folder's old files that no landing needs.

    These are parts that no commit lists, incomplete files, what attempts have staged and not committed, the
    manifests for Redshift's COPY of all runs except the last one that has landed rows, and the parts of a
    landing that has begun again since (``on_reset="full"``, ``if_exists="overwrite"``). They remain if a
    process was killed, or another landing has committed before it. It is safe to call this while a landing
    is running:

    * It removes only files with such names, in the folder itself and in partitions (``key=value``), and no
      commit.
    * It keeps the parts of the landing, rows that are quarantined, and staged rows that wait for a decision.
    * In a table, it keeps the files of its older versions: those go by the table's own means (``VACUUM``). A
      file that was replaced so long ago that the log of Delta Lake does not say so any more (a week, unless
      the table's retention differs) is removed as ``VACUUM`` would.
    * It lists the files first, then reads what is staged, and the log last: a part that is committed
      meanwhile is found there.
    * The minimum age protects what is being written.

    :param landing: its folder or manifest, as for
        :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    :param older_than: minimum time since a file was written, according to the storage: seconds, or a
        ``timedelta``. A day is a good choice. It must be longer than the longest task of a landing, retries
        included, and longer than it takes until a run's parts are loaded.
    :param dry_run: remove nothing, only return what would be removed.
    :return: the files that were removed, or would be, sorted by name; empty if the folder does not exist.
    :raises NothingLanded: if there are such files, but nothing has landed, which would show which of them are
        needed; nothing is removed then.
    :raises DestinationUnreadable: if a commit cannot be read; nothing is removed then.
    :raises InvalidArgument: if an argument is wrong.
    """
    seconds = validation.seconds("older_than", older_than, may_be_zero=True, may_be_timedelta=True)
    age = datetime.timedelta(seconds=min(seconds, _OLDEST))
    until = datetime.datetime.now(datetime.UTC) - age
    validation.boolean("dry_run", dry_run)
    folder = landing_at(landing)
    if outer := folder.enclosing():
        raise InvalidArgument(
            "landing", folder.root, f"it is inside the landing at {outer.root}: clean that one"
        )
    files = folder.files()
    removable = {name for name in files if is_removable(name)}
    needed = _needed(folder, until)
    if removable and needed is None:
        raise NothingLanded(
            f"{folder.root} has files of landings, and no commit that says which are needed; nothing was "
            "removed"
        )
    candidates = sorted(folder.unreferenced(removable - (needed or set())))
    modified = ((name, _modified(folder.fs, f"{folder.root}/{name}")) for name in candidates)
    old = tuple(Leftover(name, files[name], at) for name, at in modified if at and at < until)
    if not dry_run:
        folder.delete(file.name for file in old)
    for file in old:
        log.info("%s %s (%d bytes)", "Would remove" if dry_run else "Removed", file.name, file.bytes)
    return old


def _needed(folder: Folder, until: datetime.datetime) -> set[str] | None:
    """Return the names of the files that must stay; None if no commit says which.

    :param until: what was replaced later can still be put back.
    """
    commits = CommitLog(folder)
    # before the log: what is committed in between is found there
    drafts = commits.staged()
    state = commits.read()
    needed = set()
    for name, draft in drafts.items():
        if draft.follows(state):
            needed |= {name, *(part.name for part in draft.parts)}
    if state is None:
        return needed or None
    needed.update(part.name for part in state.parts)
    needed.add(redshift_manifest(state.run.digest()))
    for commit in commits.commits([apart.commit for apart in state.quarantined]):
        needed.update(part.name for part in commit.parts)
    if state.replaced:
        (began,) = commits.commits([state.first_commit])
        if datetime.datetime.fromisoformat(began.finished_at) >= until:
            needed.update(state.replaced)
    return needed


def replaced_landing(landing: Any) -> Manifest | None:
    """Return what a landing had before it began again, if its parts are kept; see :func:`restore`.

    :param landing: as for :func:`clean`.
    :raises DestinationUnreadable: if a commit cannot be read.
    :raises InvalidArgument: if it is a table.
    """
    commits = CommitLog(_restorable(landing))
    return _before(commits, commits.read())


def _restorable(landing: Any) -> Folder:
    """Return the folder of a landing that keeps what it replaces.

    :raises InvalidArgument: if it is a table.
    """
    folder = landing_at(landing)
    if folder.table_format is not None:
        rule = "a table keeps its own versions, and puts them back itself"
        raise InvalidArgument("landing", folder.url, rule)
    return folder


def _before(commits: CommitLog, state: Manifest | None) -> Manifest | None:
    """Return what had landed before a landing has begun again; None if that is not kept."""
    return fold(None, commits.commits(range(1, state.first_commit))) if state and state.replaced else None


def restore(landing: Any) -> Manifest:
    """Put back what a landing replaced when it began again; a second call puts the newer one back.

    The next incremental run finds that the source does not continue from there; with ``on_reset="append"`` it
    adds the source's rows. Its parts keep the numbers of the commits that have landed them: loads that have
    them need not load them again.

    :param landing: as for :func:`clean`.
    :return: what has landed now.
    :raises NothingLanded: if there is no such landing; nothing is changed then.
    :raises PartsMissing: if not all of its parts are there; nothing is changed then.
    :raises LogContended: if another landing has committed meanwhile.
    :raises InvalidArgument: if it is a table.
    """
    folder = _restorable(landing)
    commits = CommitLog(folder)
    state = commits.read()
    before = _before(commits, state)
    if before is None:
        raise NothingLanded(f"{folder.root} has no landing that was replaced; nothing was changed")
    if missing := missing_part(before.parts, folder.files()):
        raise PartsMissing(f"{missing.name} is not at {folder.root} any more; nothing was changed")
    profiles = {
        part.name: part.profile
        for commit in commits.commits(range(before.first_commit, before.commit + 1))
        for part in commit.parts
    }
    parts = tuple(msgspec.structs.replace(part, profile=profiles[part.name]) for part in before.parts)
    put_back = following(
        state,
        "restored",
        before.run,
        replaces=True,
        parts=parts,
        checks=before.checks,
        about=before.commit,
        set_apart=before.set_apart,
        **before.place,
    )
    try:
        return commits.publish(commits.append(state, put_back))
    except Conflict as error:
        # not tried again: another landing may have been put back
        raise LogContended(f"another landing has committed to {folder.root}; try again") from error


def _modified(fs: Any, path: str) -> datetime.datetime | None:
    """Return when a file was written; None if a landing has removed it since."""
    with storage_errors(fs, path):
        try:
            modified: datetime.datetime = fs.modified(path)
        except FileNotFoundError:
            return None
    return modified if modified.tzinfo else modified.replace(tzinfo=datetime.UTC)
