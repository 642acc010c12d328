"""All pages of a source."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.service.api.records import DataPage
    from airflow_provider_webcollect.service.client.paging import PageReader


def read_to_end(reader: PageReader, offset: int = 0) -> Iterator[DataPage]:
    """Yield the pages from ``offset`` on, each read at the offset that the one before returned."""
    left = 1
    while left > 0:
        page = reader.read(offset)
        yield page
        offset, left = page.offset, page.rest_total
