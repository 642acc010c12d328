"""Removing files that nothing will read, and putting back a landing that was replaced."""

from __future__ import annotations

import datetime
import functools
import logging
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_provider_webcollect.landing.errors import DestinationBusy, NothingLanded, PartsMissing
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    PART_PATTERN,
    PARTITION_PATTERN,
    PROGRESS,
    QUARANTINE,
    QUARANTINE_PATTERN,
    REDSHIFT_MANIFEST_PATTERN,
    REPLACED_PATTERN,
    Manifest,
    Progress,
    Run,
    attempt_id_in,
    decode,
    is_replaced_manifest,
    missing_part,
    new_attempt_id,
    now,
    redshift_manifest,
)
from airflow_provider_webcollect.landing.options import landing_at
from airflow_provider_webcollect.landing.storage import Changed, storage_errors
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)

#: A part or an incomplete file on a disk, in the folder or in partition folders (no lock files); or a
#: manifest for Redshift, or one that was replaced.
_REMOVABLE = re.compile(
    rf"(?:{QUARANTINE_PATTERN}/)?(?:{PARTITION_PATTERN}/)*"
    rf"(?:{PART_PATTERN}|\.tmp-(?:{PART_PATTERN}|_[a-z_]+(?:-[0-9a-f]+)?\.json)-[0-9a-f]{{8}})"
    rf"|{REDSHIFT_MANIFEST_PATTERN}|{REPLACED_PATTERN}|{QUARANTINE_PATTERN}/{MANIFEST}"
)
#: Seconds after which nobody writes a manifest or progress file any more that is incomplete on a disk.
_WRITING = 60.0


class Leftover(NamedTuple):
    """A file that no landing needs.

    :ivar name: relative to the landing's folder.
    :ivar modified: when it was written, according to the storage.
    """

    name: str
    bytes: int
    modified: datetime.datetime


def clean(
    path: Any,
    *,
    older_than: float | datetime.timedelta,
    dry_run: bool = False,
) -> tuple[Leftover, ...]:
    """Remove a folder's old files that no landing needs.

    These are parts, incomplete files, the manifests for Redshift's COPY of all runs except the last one that
    has committed, and what ``on_reset="full"`` has replaced, with its parts. A landing removes
    leftovers itself; they remain if a process was killed, or did not yet know that another had taken over. It
    is safe to call this while a landing is running:

    * It removes only files with the names of parts and of incomplete files, in the folder itself and in
      partitions (``key=value``), but not in a subfolder that has its own landing. In the folder itself, it
      also removes manifests for Redshift, except those of the last run that has committed, and replaced
      manifests.
    * It keeps the files that the manifest lists, rows that are quarantined, those that a younger replaced
      manifest lists, those that the progress file ``_progress.json`` lists, and those whose names contain the
      id of an attempt in the progress file: an attempt is in the progress file before it writes its first
      file, so its unlisted part is known by its name. Manifests and progress files that are being written on
      a disk stay for a minute, whatever the age.
    * In a table, it keeps the files of its older versions: those go by the table's own means (``VACUUM``). A
      file that was replaced so long ago that the log of Delta Lake does not say so any more (a week, unless
      the table's retention is another) is removed as ``VACUUM`` would.
    * It lists the files first, then reads the progress file, and then the manifest. So a file that is written
      later is not considered, and a landing that commits and then removes its progress file is found in the
      manifest.
    * The minimum age protects files that are written meanwhile, even on storages without conditional writes,
      where two landings may run at once.

    :param path: the landing's folder or manifest, as for
        :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    :param older_than: minimum time since a file was written, according to the storage: seconds, or a
        ``timedelta``. A day is a good choice. It must be longer than the longest task of a landing, and
        longer than it takes until a run's parts are loaded, retries included.
    :param dry_run: remove nothing, only return what would be removed.
    :return: the files that were removed, or would be, sorted by name; empty if the folder does not exist.
    :raises NothingLanded: if there are such files, but neither a manifest nor a progress file that shows
        which of them are needed; nothing is removed then.
    :raises DestinationUnreadable: if the manifest or the progress file is incomplete or has a newer layout;
        nothing is removed then.
    :raises InvalidArgument: if an argument is wrong.
    """
    until = _moment_before_now(age_in_seconds(older_than))
    validation.boolean("dry_run", dry_run)
    folder = landing_at(path)
    if outer := folder.enclosing():
        raise InvalidArgument(
            "path", folder.root, f"it is inside the landing at {outer.root}: clean that one"
        )
    files = folder.files()
    modified = functools.cache(lambda name: _modified(folder.fs, f"{folder.root}/{name}"))
    kept = [name for name in files if is_replaced_manifest(name) and modified(name) >= until]
    needed = _Needed.read(folder, kept)
    unneeded = {name for name in _removable(files) if not needed.includes(name)}
    candidates = sorted(folder.unreferenced(unneeded))
    if candidates and needed.unknown:
        raise NothingLanded(
            f"{folder.fs.unstrip_protocol(folder.root)} has parts, but neither {MANIFEST} nor {PROGRESS}, "
            "which would tell whether they are needed; nothing was removed"
        )
    written = min(until, _moment_before_now(_WRITING))
    old = tuple(
        Leftover(name, files[name], modified(name))
        for name in candidates
        if modified(name) < (written if posixpath.basename(name).startswith(".tmp-_") else until)
    )
    if not dry_run:
        folder.delete(file.name for file in old)
    for file in old:
        log.info("%s %s (%d bytes)", "Would remove" if dry_run else "Removed", file.name, file.bytes)
    return old


class _Needed(NamedTuple):
    """The files that must stay.

    :ivar names: names of files.
    :ivar ids: ids of attempts whose files may still be recorded.
    :ivar quarantined: folders of rows that wait for a decision.
    :ivar run: that has committed last.
    :ivar unknown: whether there is neither manifest nor progress file.
    """

    names: frozenset[str]
    ids: frozenset[str]
    quarantined: frozenset[str | None]
    run: Run | None
    unknown: bool

    @classmethod
    def read(cls, folder: Folder, replaced: Iterable[str]) -> _Needed:
        # in this order: a landing that ends meanwhile writes the manifest before it removes the progress file
        stored_progress, committed = folder.read(PROGRESS), folder.committed()
        manifest = committed and committed.manifest
        names: set[str] = set()
        ids: set[str] = set()
        if stored_progress is not None:
            progress = decode(stored_progress.content, f"{folder.root}/{PROGRESS}", Progress)
            names.update(part.name for part in progress.parts)
            ids.update((progress.landing_id, *progress.attempt_ids))
        names.update(part.name for part in (manifest.parts if manifest else ()))
        quarantined = {each.folder for each in manifest.quarantined} if manifest else set()
        for name in replaced:
            if (kept := _manifest_at(folder, name)) is not None:
                names.update((name, *(part.name for part in kept.parts)))
                quarantined.update(each.folder for each in kept.quarantined)
        unknown = stored_progress is None and manifest is None
        run = manifest.run if manifest else None
        return cls(frozenset(names), frozenset(ids), frozenset(quarantined), run, unknown)

    def includes(self, name: str) -> bool:
        if apart := QUARANTINE.match(name):
            return apart[0] in self.quarantined or apart[0][-8:] in self.ids
        return (
            name in self.names
            or attempt_id_in(posixpath.basename(name)) in self.ids
            or (self.run is not None and name == redshift_manifest(self.run))
        )


class Replaced(NamedTuple):
    """A landing that ``on_reset="full"`` has replaced.

    :ivar name: of its manifest, relative to the landing's folder.
    """

    name: str
    manifest: Manifest


def replaced_landings(path: Any) -> tuple[Replaced, ...]:
    """Return the landings in a folder that ``on_reset="full"`` has replaced, the latest first.

    They stay until :func:`clean` removes them.

    :param path: as for :func:`clean`.
    :raises DestinationUnreadable: if one of their manifests cannot be read.
    :raises InvalidArgument: if it is a table.
    """
    folder = _restorable(path)
    committed = folder.committed()
    return _replaced(folder, folder.files(), committed and committed.manifest)


def _restorable(path: Any) -> Folder:
    """Return the folder of a landing that keeps what it replaces.

    :raises InvalidArgument: if it is a table.
    """
    folder = landing_at(path)
    if folder.table_format is not None:
        raise InvalidArgument("path", folder.url, "a table keeps its own versions, and puts them back itself")
    return folder


def _manifest_at(folder: Folder, name: str) -> Manifest | None:
    stored = folder.read(name)
    return stored and decode(stored.content, f"{folder.root}/{name}", Manifest)


def _replaced(folder: Folder, files: Iterable[str], current: Manifest | None) -> tuple[Replaced, ...]:
    # a landing that could not commit may have kept what it would have replaced
    there = _contents(current) if current else set()
    found = [
        Replaced(name, manifest)
        for name in filter(is_replaced_manifest, files)
        if (manifest := _manifest_at(folder, name)) and not there.issuperset(_contents(manifest))
    ]
    return tuple(sorted(found, key=lambda each: each.manifest.finished_at, reverse=True))


def _contents(manifest: Manifest) -> set[str | None]:
    """Return the names of a landing's parts, and of its folders of quarantined rows."""
    return {part.name for part in manifest.parts} | {each.folder for each in manifest.quarantined}


def restore(
    path: Any,
    name: str | None = None,
) -> Manifest:
    """Put back a landing that ``on_reset="full"`` has replaced; the one that is there is kept in its place.

    A landing that is at work meanwhile reads the folder again before it commits (on a storage without
    conditional writes, do this while none is). The next incremental run finds that the source does not go on
    from there; with ``on_reset="append"`` it adds the source's rows. No run reports the parts that are put
    back, also not those of a run whose report had not ended when they were replaced: load what is missing.

    :param path: as for :func:`clean`.
    :param name: of the replaced manifest (:func:`replaced_landings`); None for the latest.
    :return: the manifest that is there now.
    :raises NothingLanded: if there is no such landing, or it has no manifest to replace.
    :raises PartsMissing: if not all of its parts are there; nothing is changed then.
    :raises DestinationBusy: if another landing has committed meanwhile.
    :raises InvalidArgument: if it is a table.
    """
    folder = _restorable(path)
    committed = folder.committed()
    current = committed and committed.manifest
    files = folder.files()
    chosen = next((each for each in _replaced(folder, files, current) if name in (None, each.name)), None)
    if chosen is None or committed is None or current is None:
        what = "manifest" if chosen else "replaced landing" if name is None else f"replaced landing {name}"
        raise NothingLanded(f"{folder.root} has no {what}; nothing was changed")
    if missing := missing_part(chosen.manifest.parts, files):
        raise PartsMissing(f"{missing.name} is not at {folder.root} any more; nothing was changed")
    for each in chosen.manifest.quarantined:
        if f"{each.folder}/{MANIFEST}" not in files:
            raise PartsMissing(f"{each.folder} is not at {folder.root} any more; nothing was changed")
    folder.keep_replaced(current)
    # another id, so that no older landing takes it for the manifest that it has begun with
    restored = msgspec.structs.replace(chosen.manifest, landing_id=new_attempt_id(), finished_at=now())
    try:
        folder.commit(restored, committed.version)
    except Changed as error:
        raise DestinationBusy(f"another landing has committed to {folder.root}; try again") from error
    folder.delete([chosen.name])
    return restored


def _removable(files: Iterable[str]) -> Iterator[str]:
    """Yield the names that landings use, without those of landings in subfolders but for quarantined rows."""
    names = sorted(files)
    others = {
        posixpath.dirname(name)
        for name in names
        if posixpath.basename(name) in {MANIFEST, PROGRESS} and not QUARANTINE.match(name)
    } - {""}
    for name in names:
        if _REMOVABLE.fullmatch(name) and not any(name.startswith(f"{other}/") for other in others):
            yield name


def _modified(fs: Any, path: str) -> datetime.datetime:
    with storage_errors(fs, path):
        try:
            modified: datetime.datetime = fs.modified(path)
        except FileNotFoundError:
            # a landing has already removed it
            return datetime.datetime.max.replace(tzinfo=datetime.UTC)
    return modified if modified.tzinfo else modified.replace(tzinfo=datetime.UTC)


def age_in_seconds(older_than: object) -> float:
    """Return the checked age in seconds; raise :class:`InvalidArgument` if it is invalid."""
    seconds = older_than.total_seconds() if isinstance(older_than, datetime.timedelta) else older_than
    return validation.seconds("older_than", seconds, may_be_zero=True)


def _moment_before_now(seconds: float) -> datetime.datetime:
    """Return the time a number of seconds ago."""
    try:
        return datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    except OverflowError:
        return datetime.datetime.min.replace(tzinfo=datetime.UTC)
