"""The last landed page, read again: counts alone do not show a source that was emptied and refilled."""

from __future__ import annotations

import hashlib
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.errors import SourceReset
from airflow_provider_webcollect.landing.manifest import LastPage
from airflow_provider_webcollect.service.api.nesting import is_deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_provider_webcollect.landing.manifest import Progress
    from airflow_provider_webcollect.service.api.records import DataPage

log = logging.getLogger(__name__)
#: Times that the last page is read before counts that do not fit are believed.
LOOKS = 4
#: Seconds between two of them.
LOOK_INTERVAL = 1.0


def last_page(offset: int, rows: Sequence[msgspec.Raw]) -> LastPage:
    """Return what will tell whether the page at ``offset`` is still the same."""
    return LastPage(offset=offset, rows=len(rows), sha256=digest_rows(rows))


def what_follows(
    progress: Progress, read: Callable[[], Iterator[DataPage]]
) -> tuple[DataPage, Iterator[DataPage]]:
    """Return what comes after the rows that were landed: the rest of the page where they end, and the others.

    A service that counts the total and the rest of a page at two moments, while rows come, tells of more or
    fewer rows before the page than there are. So where the rows are the same but the counts say otherwise,
    the page is read a few times.

    :param read: gives the pages from ``progress.last_page`` on.
    :raises SourceReset: if the pages do not begin with the last page that was landed.
    """
    for look in range(LOOKS):
        if look:
            time.sleep(LOOK_INTERVAL)
        pages = read()
        page, rows, follows = _last_page_again(progress, pages)
        if digest_rows(rows[: progress.last_page.rows]) != progress.last_page.sha256:
            break
        if follows:
            return msgspec.structs.replace(page, rows=rows[progress.last_page.rows :]), pages
        if page.total < progress.rows:
            break
        log.info("%s: the counts do not fit the rows: %d rows in all.", progress.source, page.total)
    raise SourceReset(
        f"{progress.source} has {page.total} rows now, {progress.rows} were landed; it does not go on "
        "where these end: it was emptied, or rows were taken away or changed"
    )


def _last_page_again(
    progress: Progress, pages: Iterator[DataPage]
) -> tuple[DataPage, list[msgspec.Raw], bool]:
    """Read as many rows as the last page had.

    :return: the page where they end, the rows, and whether the counts say that they follow the others.
    """
    last = progress.last_page
    rows: list[msgspec.Raw] = []
    follows = True
    for page in pages:
        before = page.total - page.rest_total - len(page.rows)
        follows = follows and before == progress.rows - last.rows + len(rows)
        rows += page.rows
        if len(rows) >= last.rows:
            break
    return page, rows, follows


def digest_rows(rows: Sequence[msgspec.Raw]) -> str:
    """Digest what the rows say, however their JSON is laid out, unless it is too deep to be decoded."""
    digest = hashlib.sha256()
    encode = msgspec.json.Encoder(order="sorted").encode
    decode = msgspec.json.Decoder().decode
    for row in rows:
        try:
            # not by whether decoding fails: that depends on who calls
            digest.update(row if is_deep(bytes(row)) else encode(decode(row)))
        except (msgspec.MsgspecError, ValueError):
            # a number too long to be read, or a broken character: neither shall keep all rows from landing
            digest.update(row)
    return digest.hexdigest()
