"""Reading the single rows that are quarantined, and writing quarantined rows as rows of the landing."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from airflow_provider_webcollect.landing.checks import Checks, RowChecks
from airflow_provider_webcollect.landing.errors import FormatChanged, PartsMissing, UnreadableRow
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.formats.profile import Profiler
from airflow_provider_webcollect.landing.formats.single_rows import SUFFIX, SingleRow, as_lines, from_lines
from airflow_provider_webcollect.landing.log.commits import counted
from airflow_provider_webcollect.landing.log.names import copy_name, data_name
from airflow_provider_webcollect.landing.rules import ValueRules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.formats.base import Columns
    from airflow_provider_webcollect.landing.log.commits import Commit, Landing, Part
    from airflow_provider_webcollect.landing.storage.folder import Folder

#: Bytes of a file of single rows that are read ahead from a store: most files are smaller.
_AHEAD = 1024 * 1024


def read_single_rows(folder: Folder, part: Part) -> Iterator[SingleRow]:
    """Yield the rows of a file.

    :raises PartsMissing: if it is not there, or is not what was written.
    """
    digest = hashlib.sha256()

    def lines(file: BinaryIO) -> Iterator[bytes]:
        for line in iter(file.readline, b""):
            digest.update(line)
            yield line

    with contextlib.suppress(UnreadableRow), folder.opened(part.name, _AHEAD) as file:
        yield from from_lines(lines(file))
    if digest.hexdigest() != part.sha256:
        raise PartsMissing(f"{folder.path_of(part.name)} is not what was written")


def format_of(landing: Landing) -> FileFormat:
    """Return the format in which a landing is written."""
    name: Any = landing.format
    compression: Any = landing.compression or "none"
    return make_format(name, compression, **landing.encoding)


class BroughtBack(NamedTuple):
    """Quarantined rows that were written as rows of the landing.

    :ivar parts: their parts, under new names.
    :ivar left: files of the single rows that the landing cannot hold.
    :ivar columns: the landing's columns with theirs.
    """

    parts: tuple[Part, ...]
    left: tuple[Part, ...]
    columns: Columns


def brought_back(folder: Folder, read: Commit, landing: Landing) -> BroughtBack:
    """Write quarantined rows as rows of the landing.

    :param read: the commit that has quarantined them.
    :param landing: the format in which single rows are written, and its columns so far.
    :raises PartsMissing: if a file is not what was written; nothing was committed then.
    :raises FormatChanged: if the landing has begun again since, in another format or with other columns.
    :raises UnreadableRow: if the landing can hold none of the rows, as their types or its format say.
    """
    file_format = format_of(landing)
    columns = file_format.columns_after(landing.columns or ())
    whole = [part for part in read.quarantined if not part.broke]
    if not all(_is_alike(part, read, landing) for part in whole):
        raise FormatChanged(
            f"the landing at {folder.url} has begun again since commit {read.number}, in another format "
            "or with other columns, so the rows of that commit cannot be added; read them with "
            f"quarantined={read.number}, or discard them"
        )
    sorted_rows = {part.name: _sorted(folder, part, file_format) for part in read.quarantined if part.broke}
    left_rows = [row for _, left in sorted_rows.values() for row in left]
    if not whole and not any(good for good, _ in sorted_rows.values()):
        raise UnreadableRow(
            f"{counted(len(left_rows), 'row')} of commit {read.number} at {folder.url} cannot land: the "
            f"first has broken {', '.join(left_rows[0].broke)}. Nothing was changed; discard them"
        )
    parts, left = [], []
    for part in read.quarantined:
        if not part.broke:
            parts.append(folder.copied(part, data_name(part.name)))
            continue
        good, wrong = sorted_rows[part.name]
        if good:
            parts.append(_written(folder, part, good, file_format, columns))
        if wrong:
            left.append(_set_aside(folder, part, wrong))
    return BroughtBack(tuple(parts), tuple(left), columns)


def _sorted(
    folder: Folder, part: Part, file_format: FileFormat
) -> tuple[Sequence[msgspec.Raw], list[SingleRow]]:
    """Return the rows of a file that a format and its types can hold, and the others."""
    singles = list(read_single_rows(folder, part))
    reasons = {id(single.row): single.broke for single in singles}
    rules = ValueRules(Checks(rows=RowChecks(max_wrong=1.0)), file_format)
    good, wrong = rules.split([single.row for single in singles])
    return good, [SingleRow(list(dict.fromkeys((*reasons[id(row)], *broke))), row) for broke, row in wrong]


def _set_aside(folder: Folder, part: Part, rows: Sequence[SingleRow]) -> Part:
    """Write rows that go on waiting to a file of their own."""
    name = copy_name(part.name)
    with folder.part(name) as file:
        file.write(as_lines(rows))
    broke = Counter(rule for row in rows for rule in row.broke)
    return msgspec.structs.replace(
        part, name=name, rows=len(rows), bytes=file.bytes, sha256=file.sha256, broke=dict(broke)
    )


def _is_alike(part: Part, read: Commit, landing: Landing) -> bool:
    """Return whether a part of quarantined rows can be one of the landing as it is."""
    # later runs may name more columns
    one, other = (
        (
            each.format,
            each.compression,
            {**each.encoding, "columns": None},
            (each.columns or ())[: part.columns],
        )
        for each in (read, landing)
    )
    return one == other


def _written(
    folder: Folder, part: Part, rows: Sequence[msgspec.Raw], file_format: FileFormat, columns: Columns
) -> Part:
    profiler, name = Profiler(), data_name(part.name.removesuffix(SUFFIX) + file_format.suffix)
    with folder.part(name) as file, file_format.writer(file, columns, profiler) as writer:
        writer.write(rows)
    return msgspec.structs.replace(
        part,
        name=name,
        rows=len(rows),
        bytes=file.bytes,
        sha256=file.sha256,
        columns=None if columns.fixed else len(writer.columns) or None,
        profile=profiler.profile(len(rows)),
        broke={},
    )
