"""Writing parts, and rewriting those that were begun before all columns were known."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from airflow_provider_webcollect.landing.last_page import last_page
from airflow_provider_webcollect.landing.manifest import RecordedPart, new_id
from airflow_provider_webcollect.landing.write_behind import write_behind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import msgspec

    from airflow_provider_webcollect.landing.claim import Claim
    from airflow_provider_webcollect.landing.engine import Landing
    from airflow_provider_webcollect.landing.formats import Columns
    from airflow_provider_webcollect.service.api.records import DataPage


def write_parts(landing: Landing, claim: Claim, columns: Columns, pages: Iterator[DataPage]) -> int | None:
    """Write ``pages`` as parts, each recorded when it is finished.

    :return: the total that the service announced last; None without any page.
    """
    total = None
    page = next(pages, None)
    while page is not None:
        total = page.total
        if page.rows:
            page, total = _write_part(landing, claim, columns, itertools.chain((page,), pages))
        else:
            page = None
        page = page or next(pages, None)
    return total


def _write_part(
    landing: Landing, claim: Claim, columns: Columns, pages: Iterator[DataPage]
) -> tuple[DataPage | None, int]:
    """Write the next part.

    :return: the page that was read but belongs to the part after it, if there is one, and the total.
    """
    before = claim.progress
    name = _name(len(before.parts), before.landing_id, landing)
    rows = total = 0
    offset = before.next_offset
    last: tuple[int, Sequence[msgspec.Raw]] = (offset, ())
    left_over = None
    with (
        landing.destination.part(name) as file,
        write_behind(file) as behind,
        landing.file_format.writer(behind, columns) as writer,
    ):
        for page in pages:
            if not writer.write(page.rows):
                left_over = page
                break
            rows += len(page.rows)
            last = (offset, page.rows) if page.rows else last
            offset, total = page.offset, page.total
            landing.advanced(before.rows + rows, total)
            claim.check()
            if behind.bytes >= landing.max_part_bytes:
                break
    part = RecordedPart(
        name=name,
        rows=rows,
        bytes=file.bytes,
        sha256=file.sha256,
        start_offset=before.next_offset,
        next_offset=offset,
        last_page=last_page(*last),
        columns=len(writer.columns),
    )
    claim.record(claim.progress.with_part(part, columns.names))
    return left_over, total


def widen_parts(landing: Landing, claim: Claim, columns: Columns) -> None:
    """Rewrite the parts that lack columns, each under a new name: the old ones may be committed."""
    for number, part in enumerate(claim.progress.parts):
        if part.columns < len(columns.names):
            claim.record(claim.progress.with_replaced(number, _widened(landing, number, part, columns)))


def _widened(landing: Landing, number: int, part: RecordedPart, columns: Columns) -> RecordedPart:
    name = _name(number, new_id(), landing)
    with landing.destination.opened(part.name) as source, landing.destination.part(name) as file:
        landing.file_format.widen(source, file, columns.names[: part.columns], columns.names)
    return RecordedPart(
        name=name,
        rows=part.rows,
        bytes=file.bytes,
        sha256=file.sha256,
        start_offset=part.start_offset,
        next_offset=part.next_offset,
        last_page=part.last_page,
        columns=len(columns.names),
    )


def _name(number: int, landing_id: str, landing: Landing) -> str:
    return f"part-{number + 1:05d}-{landing_id}{landing.file_format.suffix}"
