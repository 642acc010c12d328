"""Removing files that nothing will read again."""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_webcollect.landing.errors import NothingLanded
from airflow_provider_webcollect.landing.location import landing_at
from airflow_provider_webcollect.landing.log.names import is_removable
from airflow_provider_webcollect.landing.storage import storage_errors
from airflow_provider_webcollect.landing.storage.commit_log import CommitLog
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.landing.log.commits import Manifest
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)
#: An age in seconds that no file reaches; it limits ``older_than``.
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

    Such files are parts that no commit lists, incomplete files, files that attempts have staged but not
    committed, files of quarantined rows on which a person has decided, and parts that were replaced when the
    landing began again (``on_reset="full"``, ``if_exists="overwrite"``). No landing removes them itself. It
    is safe to call this function while a landing is running:

    * It removes only files whose names a landing gives, in the folder itself and in partitions
      (``key=value``), and never commits.
    * It keeps the parts of the landing, quarantined rows, and files with which a retry of a run may still
      continue.
    * It keeps replaced parts for the minimum age, for processes that are still reading them.
    * In a table, it keeps the files of older versions: the table's own cleaning removes them (``VACUUM``). A
      file that was replaced so long ago that Delta Lake's log no longer has it (a week, unless the table's
      retention differs) is removed, as ``VACUUM`` would do.
    * It lists the files first, then reads the drafts, and the commits last, so it finds parts that were
      committed meanwhile.
    * The minimum age protects files that are being written.
    * Files behind a link in the folder stay: they may belong to another landing.

    :param landing: the landing's folder or manifest, as for
        :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    :param older_than: minimum time since a file was written, according to the storage: seconds, or a
        ``timedelta``. A day is a good choice. It must be longer than the longest landing task, retries
        included, and longer than the time until a run's parts are loaded.
    :param dry_run: remove nothing, only return the files that would be removed; False by default.
    :return: the files that were removed, or would be, sorted by name; empty if the folder does not exist.
    :raises NothingLanded: if there are files of landings, and no commit or draft shows which of them are
        needed; nothing is removed then.
    :raises DestinationUnreadable: if a commit cannot be read; nothing is removed then.
    :raises InvalidArgument: if an argument is wrong.
    """
    seconds = arguments.seconds("older_than", older_than, may_be_zero=True, may_be_timedelta=True)
    age = datetime.timedelta(seconds=min(seconds, _OLDEST))
    until = datetime.datetime.now(datetime.UTC) - age
    arguments.boolean("dry_run", dry_run)
    folder = landing_at(landing)
    if outer := folder.enclosing():
        raise InvalidArgument(
            "landing", folder.root, f"it is inside the landing at {outer.root}: clean that one"
        )
    files = folder.files()
    removable = {name for name in files if is_removable(name) and not folder.is_linked(name)}
    needed = _needed(folder, until)
    if removable and needed is None:
        raise NothingLanded(
            f"{folder.root} has files of landings, and no commit that says which are needed; nothing was "
            "removed"
        )
    unneeded = {name for name in removable if name.casefold() not in (needed or ())}
    candidates = sorted(folder.unreferenced(unneeded))
    modified = ((name, _modified(folder.fs, f"{folder.root}/{name}")) for name in candidates)
    old = tuple(Leftover(name, files[name], at) for name, at in modified if at and at < until)
    if not dry_run:
        folder.delete(file.name for file in old)
    for file in old:
        log.info("%s %s (%d bytes)", "Would remove" if dry_run else "Removed", file.name, file.bytes)
    return old


def _needed(folder: Folder, until: datetime.datetime) -> set[str] | None:
    """Return the case-folded names of the files that must stay; None if no commit or draft shows which.

    :param until: parts that were replaced after this time may still be read.
    """
    commits = CommitLog(folder)
    # drafts are read before the log: a draft that is committed in between is then found in the log
    drafts = commits.staged()
    state = commits.read()
    needed: set[str] = set()
    for name, draft in drafts.items():
        if draft.may_continue(state):
            needed |= {name, *(part.name for part in draft.written)}
    if state is not None:
        needed.update(part.name for part in state.parts)
        for commit in commits.commits([apart.commit for apart in state.quarantined]):
            needed.update(part.name for part in commit.quarantined)
        needed.update(_replaced(commits, state, until))
    elif not needed:
        return None
    # some file systems and stores ignore letter case
    return {name.casefold() for name in needed}


def _replaced(commits: CommitLog, state: Manifest, until: datetime.datetime) -> Iterator[str]:
    """Yield the names of the parts that were replaced after a time, when the landing began again."""
    number = state.first_commit
    (began,) = commits.commits([number])
    while datetime.datetime.fromisoformat(began.finished_at) >= until and number > 1:
        # go back to the first commit of the parts that were replaced
        for commit in commits.commits(range(number - 1, 0, -1)):
            yield from (part.name for part in commit.parts)
            number, began = commit.number, commit
            if commit.replaces and commit.changes_rows:
                break


def _modified(fs: Any, path: str) -> datetime.datetime | None:
    """Return when a file was written; None if the file no longer exists."""
    with storage_errors(fs, path):
        try:
            modified: datetime.datetime = fs.modified(path)
        except FileNotFoundError:
            return None
    return modified if modified.tzinfo else modified.replace(tzinfo=datetime.UTC)
