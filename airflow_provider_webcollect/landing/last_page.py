"""The last landed page, read again: counts alone do not show a source that was emptied and refilled."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.errors import SourceReset
from airflow_provider_webcollect.landing.manifest import LastPage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider_webcollect.landing.manifest import Progress
    from airflow_provider_webcollect.service.records import DataPage


def last_page(offset: int, rows: Sequence[msgspec.Raw]) -> LastPage:
    """Return what will tell whether the page at ``offset`` is still the same."""
    return LastPage(offset=offset, rows=len(rows), sha256=_digest(rows))


def what_follows(progress: Progress, pages: Iterator[DataPage]) -> DataPage:
    """Return what comes after the rows that were landed, as the rest of the page on which they end.

    :param pages: from ``progress.last_page`` on; as many are taken as its rows need.
    :raises SourceReset: if the pages do not begin with the last page that was landed.
    """
    last = progress.last_page
    rows: list[msgspec.Raw] = []
    for page in pages:
        follows = page.total - page.rest_total - len(page.rows) == progress.rows - last.rows + len(rows)
        rows += page.rows
        if not follows or len(rows) >= last.rows:
            break
    if not follows or len(rows) < last.rows or _digest(rows[: last.rows]) != last.sha256:
        raise SourceReset(
            f"{progress.source} has {page.total} rows now, {progress.rows} were landed; it does not go on "
            "where these end: it was emptied, or rows were taken away or changed"
        )
    return msgspec.structs.replace(page, rows=rows[last.rows :])


def _digest(rows: Sequence[msgspec.Raw]) -> str:
    """Digest what the rows say, however their JSON is laid out."""
    digest = hashlib.sha256()
    encode = msgspec.json.Encoder(order="sorted").encode
    decode = msgspec.json.Decoder().decode
    for row in rows:
        try:
            digest.update(encode(decode(row)))
        except (msgspec.MsgspecError, ValueError):
            # a number too long to be read, or a broken character: neither shall keep all rows from landing
            digest.update(row)
    return digest.hexdigest()
