"""Removing the files that interrupted landings have left, and that nothing will ever read."""

from __future__ import annotations

import datetime
import logging
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_webcollect.landing.errors import NothingLanded
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    PART_PATTERN,
    PARTITION_PATTERN,
    PROGRESS,
    REDSHIFT_MANIFEST_PATTERN,
    attempt_id_in,
    decode_manifest,
    decode_progress,
    redshift_manifest_of,
)
from airflow_provider_webcollect.landing.reader import locate
from airflow_provider_webcollect.landing.storage.errors import storage_errors
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.service.api import validation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

log = logging.getLogger(__name__)

#: A part, or a half-written file of a disk, in the folder or in those of a partition; no lock file. And what
#: was written for Redshift.
_REMOVABLE = re.compile(
    rf"(?:{PARTITION_PATTERN}/)*"
    rf"(?:{PART_PATTERN}|\.tmp-(?:{PART_PATTERN}|_[a-z_]+\.json)-[0-9a-f]{{8}}|\.tmp-probe(?:-[0-9a-f]{{8}})?)"
    rf"|{REDSHIFT_MANIFEST_PATTERN}"
)


class Leftover(NamedTuple):
    """A file that no landing needs.

    :ivar name: relative to the landing's folder.
    :ivar modified: when it was written, as the storage says.
    """

    name: str
    bytes: int
    modified: datetime.datetime


def clean(
    path: Any,
    *,
    older_than: float | datetime.timedelta,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Leftover, ...]:
    """Remove the files of a folder that no landing needs and that are old enough: parts, half-written ones,
    and the manifests for Redshift's COPY of all runs but the last that has committed.

    A landing removes such files itself. What may stay is what a process wrote that was killed, or that did
    not know yet that another had taken over. It is safe beside a landing at work:

    * only files with the names of parts and of half-written files are removed, in the folder itself and in
      partitions (``key=value``), but not in a folder below that has its own landing; and, in the folder
      itself, manifests for Redshift, except that of the last run that has committed;
    * kept is what the manifest lists, what the record ``_progress.json`` lists as finished or is committing,
      and whatever bears the id of an attempt that the record names: an attempt is in the record before it
      writes its first file, so its unrecorded part is known by its name;
    * the files are listed first, then the record is read, and then the manifest: a file that comes later is
      not considered, and a landing that commits and then removes its record is found in the manifest;
    * the age protects files that are written while this runs, also on storages that cannot replace files on
      a condition, where two landings may meet.

    :param path: the landing's folder or manifest, as for
        :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    :param older_than: how long ago a file must have been written, as the storage says: seconds, or a
        ``timedelta``. A day is a good choice; in any case longer than the longest task of a landing, and
        than it takes until a run's manifest for Redshift is loaded, retries included.
    :param dry_run: remove nothing, only return what would be removed.
    :param storage_options: what fsspec is to make the URL's filesystem with, such as credentials.
    :return: what was removed, or would be, by name. Nothing if the folder is absent.
    :raises NothingLanded: if there are such files, but neither a manifest nor a record that would tell which
        of them are needed; nothing is removed then.
    :raises DestinationUnreadable: if the manifest or the record is torn or of a newer layout; nothing is
        removed then.
    :raises InvalidArgument: if an argument is wrong.
    """
    until = _moment_before_now(age_in_seconds(older_than))
    validation.boolean("dry_run", dry_run)
    fs, root = locate(path, storage_options)
    folder = Folder(fs, root)
    files = folder.files()
    needed = _Needed.read(folder)
    candidates = [name for name in _removable(files) if not needed.includes(name)]
    if candidates and needed.unknown:
        raise NothingLanded(
            f"{fs.unstrip_protocol(folder.root)} has parts, but neither {MANIFEST} nor {PROGRESS}, which "
            "would tell whether they are needed; nothing was removed"
        )
    found = [Leftover(name, files[name], _modified(fs, f"{folder.root}/{name}")) for name in candidates]
    old = tuple(file for file in found if file.modified < until)
    if not dry_run:
        folder.delete(file.name for file in old)
    for file in old:
        log.info("%s %s (%d bytes)", "Would remove" if dry_run else "Removed", file.name, file.bytes)
    return old


class _Needed(NamedTuple):
    """What must stay.

    :ivar names: of files.
    :ivar ids: of attempts whose files may be recorded yet.
    :ivar unknown: whether there is neither manifest nor record.
    """

    names: frozenset[str]
    ids: frozenset[str]
    unknown: bool

    @classmethod
    def read(cls, folder: Folder) -> _Needed:
        # in this order: a landing that ends in between first writes the manifest and then removes the record
        stored_record, stored_manifest = folder.read(PROGRESS), folder.read(MANIFEST)
        names: set[str] = set()
        ids: set[str] = set()
        if stored_record is not None:
            record = decode_progress(stored_record.content, f"{folder.root}/{PROGRESS}")
            committing = record.commit.parts if record.commit else ()
            names.update(part.name for part in (*record.parts, *committing))
            ids.update((record.landing_id, *record.attempt_ids))
        if stored_manifest is not None:
            manifest = decode_manifest(stored_manifest.content, f"{folder.root}/{MANIFEST}")
            names.update(part.name for part in manifest.parts)
            names.add(redshift_manifest_of(manifest.run))
        unknown = stored_record is None and stored_manifest is None
        return cls(frozenset(names), frozenset(ids), unknown)

    def includes(self, name: str) -> bool:
        return name in self.names or attempt_id_in(posixpath.basename(name)) in self.ids


def _removable(files: Iterable[str]) -> Iterator[str]:
    """Yield the names that landings give, without those of landings in folders below."""
    names = sorted(files)
    others = {
        posixpath.dirname(name) for name in names if posixpath.basename(name) in {MANIFEST, PROGRESS}
    } - {""}
    for name in names:
        if _REMOVABLE.fullmatch(name) and not any(name.startswith(f"{other}/") for other in others):
            yield name


def _modified(fs: Any, path: str) -> datetime.datetime:
    with storage_errors(fs, path):
        try:
            modified: datetime.datetime = fs.modified(path)
        except FileNotFoundError:
            # its landing was faster
            return datetime.datetime.max.replace(tzinfo=datetime.UTC)
    return modified if modified.tzinfo else modified.replace(tzinfo=datetime.UTC)


def age_in_seconds(older_than: object) -> float:
    """Return the checked age; raise :class:`InvalidArgument` if it is none."""
    seconds = older_than.total_seconds() if isinstance(older_than, datetime.timedelta) else older_than
    return validation.seconds("older_than", seconds, may_be_zero=True)


def _moment_before_now(seconds: float) -> datetime.datetime:
    try:
        return datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    except OverflowError:
        return datetime.datetime.min.replace(tzinfo=datetime.UTC)
