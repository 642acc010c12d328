"""What the service says of a read's size, held against itself, so that no read goes on for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_webcollect.landing.errors import RowsMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.landing.manifest import Source
    from airflow_provider_webcollect.service.api.records import DataPage

#: Pages in a row after which no fewer rows are left than before: such a read has no end.
ENDLESS_PAGES = 1000


def counted(pages: Iterator[DataPage], rows: int, source: Source) -> Iterator[DataPage]:
    """Yield ``pages`` while their counts agree.

    :param rows: how many rows come before the first page.
    :raises RowsMissing: if the total shrinks, if there are more rows than announced and still some are left,
        or if what is left does not become less.
    """
    total = 0
    least: int | None = None
    pages_since = 0
    for page in pages:
        rows += len(page.rows)
        if page.total < total:
            raise rows_missing(source, f"announced {total} rows, and then {page.total}")
        total = page.total
        if page.rest_total > 0 and rows > total:
            raise rows_missing(source, f"announced {total} rows, {rows} came, and more are said to be left")
        if least is None or page.rest_total < least:
            least, pages_since = page.rest_total, 0
        else:
            pages_since += 1
        if pages_since >= ENDLESS_PAGES:
            raise rows_missing(source, f"has had {least} rows or more left for {ENDLESS_PAGES} pages")
        yield page


def rows_missing(source: Source, what: str) -> RowsMissing:
    """Return the error for counts that contradict each other."""
    return RowsMissing(
        f"{source}: the service {what}; nothing was committed, and the next try reads all of it anew"
    )
