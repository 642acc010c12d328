"""Making few parts of many small ones: the rows, their order and what is known of them stay.

The new parts are written first; one compare-and-swap of the manifest then puts them in the place of others,
which stay as files for those who read them. No lease is taken: a landing at work that loses to a compaction
reads the folder again and goes on with what it has staged.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import posixpath
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from airflow_provider_webcollect.landing.cleaning import age_in_seconds, moment_before_now
from airflow_provider_webcollect.landing.errors import (
    DestinationBusy,
    LandingDamaged,
    NothingLanded,
    PartsMissing,
)
from airflow_provider_webcollect.landing.formats.merging import merge
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    Manifest,
    Part,
    counted,
    new_attempt_id,
    renamed_part,
)
from airflow_provider_webcollect.landing.options import MAX_PART_BYTES, landing_at
from airflow_provider_webcollect.landing.profile import sum_of
from airflow_provider_webcollect.landing.storage import Changed
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.storage.folder import Committed, Folder

log = logging.getLogger(__name__)
#: Bytes of a part that are copied at a time.
_CHUNK_BYTES = 4 * 1024 * 1024
#: How often it is decided again what to merge because the folder has changed meanwhile.
_TRIES = 5


class Merged(NamedTuple):
    """Parts that were merged, or would be.

    :ivar name: of the part that they have become; None if nothing was written.
    :ivar first: the name of the first of them; ``last``: of the last one.
    :ivar parts: how many they were.
    :ivar bytes: of the new part; of all of them, if nothing was written.
    """

    name: str | None
    first: str
    last: str
    parts: int
    rows: int
    bytes: int


class Compacted(NamedTuple):
    """What a compaction has done, or would do.

    :ivar parts_before: how many parts the landing had; ``parts_after``: how many it has now.
    :ivar merged: an entry for each new part, in the order of their rows.
    """

    parts_before: int
    parts_after: int
    merged: tuple[Merged, ...]

    @property
    def rows(self) -> int:
        """Number of rows that were written again."""
        return sum(each.rows for each in self.merged)

    @property
    def bytes(self) -> int:
        """Bytes of the new parts."""
        return sum(each.bytes for each in self.merged)


def compact(
    path: Any,
    *,
    older_than: float | timedelta,
    max_part_bytes: int | str = MAX_PART_BYTES,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    storage_conn_id: str | None = None,
) -> Compacted:
    """Merge small parts of a landing that follow one another, in one commit.

    Merged are parts in the same folder of a partition, with the same columns, that were committed longer ago
    than ``older_than``; the parts of the last commit stay, since its run may not have reported them yet. All
    rows stay, in their order and with their values. It is safe to call this while a landing is running (on a
    storage without conditional writes, do it while none is).

    The files that were merged stay for who has read the manifest before;
    :func:`~.landing.cleaning.clean` removes them, once the new part is as old as it asks for. In a table,
    they go by the table's own means. Files of a compaction that was killed go by ``clean`` too.

    No run reports a merged part again, also not one that is cleared. ``read_landing`` still reads the rows of
    a run alone, but has no file and no profile that are of these alone, unless the part has no others.

    A part is read to a temporary file on this machine, and compared with the manifest, before its rows are
    written: that takes at most ``max_part_bytes`` of disk. Memory does not grow with the parts: some 20 MB,
    with Parquet some 100 MB.

    :param path: the landing's folder or manifest, as for
        :func:`~airflow_provider_webcollect.landing.reader.read_landing`.
    :param older_than: minimum time since a part was committed: seconds, or a ``timedelta``. It must be longer
        than it takes until a run's parts are loaded, retries included. A week is a good choice.
    :param max_part_bytes: how many bytes the parts have at most that become one, about the size of the new
        one; by default 128 MiB.
    :param dry_run: write nothing, only return what would be merged.
    :param storage_options: fsspec's options for the URL's filesystem, such as credentials.
    :param storage_conn_id: the Airflow connection of the storage, instead of options.
    :return: how many parts there were and are, and what has become one.
    :raises NothingLanded: if there is no landing.
    :raises PartsMissing: if a part to merge is missing; nothing is committed then.
    :raises LandingDamaged: if a part to merge is not what was written; nothing is committed then.
    :raises DestinationBusy: if landings keep committing meanwhile; a later call goes well.
    :raises DestinationUnreadable: if the manifest is incomplete or has a newer layout.
    :raises ExtraMissing: if the format or compression needs a package that is not installed.
    :raises StorageError: if the storage cannot be read or written.
    :raises InvalidArgument: if an argument is wrong.
    """
    until = moment_before_now(age_in_seconds(older_than))
    target = validation.integer("max_part_bytes", max_part_bytes, 1)
    validation.boolean("dry_run", dry_run)
    folder = landing_at(path, storage_options, storage_conn_id)
    if outer := folder.enclosing():
        raise InvalidArgument(
            "path", folder.root, f"it is inside the landing at {outer.root}: compact that one"
        )
    compaction = Compaction(folder, until, target)
    return compaction.planned() if dry_run else compaction.run()


class Compaction:
    """A compaction of one folder, see :func:`compact`.

    :param until: parts that were committed later stay.
    :param max_part_bytes: how many bytes the parts have at most that become one.
    """

    def __init__(self, folder: Folder, until: datetime, max_part_bytes: int) -> None:
        if not folder.takes_merged_parts:
            rule = "pyiceberg replaces no files of a table: what runs SQL on it can compact it"
            raise InvalidArgument("path", folder.url, rule)
        self._folder = folder
        self._until = until
        self._max_part_bytes = max_part_bytes
        # parts never change, so that what was written for a commit that was refused serves the next one
        self._written: dict[str, tuple[tuple[Part, ...], Part]] = {}

    def planned(self) -> Compacted:
        """Return what would be merged now."""
        manifest = self._committed().manifest
        merged = tuple(_merged(group) for group in self._groups(manifest))
        before = len(manifest.parts)
        return Compacted(before, before - sum(each.parts - 1 for each in merged), merged)

    def run(self) -> Compacted:
        """Merge what can be merged."""
        for _ in range(_TRIES):
            manifest, version = self._committed()
            groups = self._groups(manifest)
            try:
                return self._done(self._commit(manifest, version, groups))
            except Changed:
                log.info("A landing has written to %s; it is read again.", self._folder.url)
            except (PartsMissing, LandingDamaged):
                # others may have replaced the parts meanwhile, and deleted them
                if self._groups(self._committed().manifest) == groups:
                    raise
        raise DestinationBusy(f"landings keep writing to {self._folder.url}; nothing was merged")

    def _committed(self) -> Committed:
        committed = self._folder.committed()
        if committed is None:
            raise NothingLanded(f"nothing has landed at {self._folder.url} yet, or the path is another")
        return committed

    def _groups(self, manifest: Manifest) -> list[tuple[Part, ...]]:
        """Return the parts that are to be merged, in groups that become one."""
        rewritten = self._folder.rewritten(manifest)

        def place(part: Part) -> tuple[str, int | None] | None:
            """Return what parts have in common that may become one; None if a part stays."""
            is_old = datetime.fromisoformat(str(part.landed_at)) <= self._until
            if part.name in rewritten or not is_old or part.bytes >= self._max_part_bytes:
                return None
            return posixpath.dirname(part.name), part.columns

        reported = manifest.parts[: len(manifest.parts) - manifest.new_parts]
        runs = (list(parts) for where, parts in itertools.groupby(reported, place) if where)
        return [group for run in runs for group in self._filled(run) if len(group) > 1]

    def _filled(self, parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
        """Yield groups of parts, each as large as it may be."""
        group: list[Part] = []
        size = 0
        for part in parts:
            if size + part.bytes > self._max_part_bytes:
                yield tuple(group)
                group, size = [], 0
            group.append(part)
            size += part.bytes
        yield tuple(group)

    def _commit(self, manifest: Manifest, version: str, groups: Sequence[tuple[Part, ...]]) -> Manifest:
        """Put merged parts in the place of groups, and return the manifest with them."""
        if not groups:
            return manifest
        merged = {group[0].name: self._merged(manifest, group) for group in groups}
        others = {part.name for group in groups for part in group[1:]}
        parts = tuple(merged.get(part.name, part) for part in manifest.parts if part.name not in others)
        # the id stays: a landing at work goes on from this commit, as it would from the one before
        compacted = msgspec.structs.replace(manifest, parts=parts, bytes=sum(part.bytes for part in parts))
        self._folder.commit(compacted, version)
        return compacted

    def _merged(self, manifest: Manifest, group: tuple[Part, ...]) -> Part:
        """Return what parts have become, once it is written."""
        written = self._written.get(group[0].name)
        if written is None or written[0] != group:
            written = self._written[group[0].name] = group, self._merge(manifest, group)
        return written[1]

    def _merge(self, manifest: Manifest, group: tuple[Part, ...]) -> Part:
        """Write the rows of parts as one part."""
        name = renamed_part(group[0].name, new_attempt_id())
        log.info("%s from %s on become %s.", counted(len(group), "part"), group[0].name, name)
        with self._folder.part(name) as file:
            merge(manifest.format, manifest.compression, self._copies(group), file)
        return Part(
            name=name,
            rows=sum(part.rows for part in group),
            bytes=file.bytes,
            sha256=file.sha256,
            start_offset=group[0].start_offset,
            next_offset=group[-1].next_offset,
            columns=group[0].columns,
            landed_at=max(str(part.landed_at) for part in group),
            profile=sum_of(part.profile for part in group),
            segments=tuple(segment for part in group for segment in part.as_landed()),
            replaces=tuple(part.name for part in group if part.segments),
        )

    def _copies(self, parts: Sequence[Part]) -> Iterator[BinaryIO]:
        """Yield copies of the parts, each there until the next one is."""
        for part in parts:
            with tempfile.TemporaryFile() as copy:
                self._copy(part, copy)
                yield copy

    def _copy(self, part: Part, copy: BinaryIO) -> None:
        """Copy a part, to be read from its beginning.

        :raises LandingDamaged: if the part is not what was written.
        """
        digest = hashlib.sha256()
        with self._folder.opened(part.name) as file:
            while chunk := file.read(_CHUNK_BYTES):
                copy.write(chunk)
                digest.update(chunk)
        if (copy.tell(), digest.hexdigest()) != (part.bytes, part.sha256):
            problem = f"{part.name} does not have the {part.bytes} bytes with the SHA-256 {part.sha256}"
            raise LandingDamaged(f"{self._folder.url}/{MANIFEST}", [problem])
        copy.seek(0)

    def _done(self, manifest: Manifest) -> Compacted:
        """Return what was done.

        :param manifest: as it is now. A commit of which the answer was lost may be in it, and no more to do.
        """
        written = {part.name: (group, part) for group, part in self._written.values()}
        merged = tuple(_merged(*written[part.name]) for part in manifest.parts if part.name in written)
        after = len(manifest.parts)
        return Compacted(after + sum(each.parts - 1 for each in merged), after, merged)


def _merged(group: Sequence[Part], part: Part | None = None) -> Merged:
    return Merged(
        name=part.name if part else None,
        first=group[0].name,
        last=group[-1].name,
        parts=len(group),
        rows=sum(each.rows for each in group),
        bytes=part.bytes if part else sum(each.bytes for each in group),
    )
