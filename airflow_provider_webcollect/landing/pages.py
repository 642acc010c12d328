"""All pages of a source: what is slow to appear is waited for, what is added meanwhile is read too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.api.records import DataPage

#: Seconds between two looks at a source that may not show all of its rows yet.
SETTLE_INTERVAL = 2.0


def late_pages(
    pages: Callable[[int, int], Iterator[DataPage]],
    offset: int,
    rows: int,
    *,
    settle: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[DataPage]:
    """Yield the pages of what appears after ``offset`` within ``settle`` seconds.

    While older batches are shown, those of a run that has just finished may still be missing, and nothing
    tells that they will come.

    :param pages: gives the pages from an offset, before which there are so many rows, to the end.
    :param rows: how many rows come before ``offset``.
    """
    for pause in _pauses(settle):
        sleep(pause)
        for page in pages(offset, rows):
            yield page
            rows += len(page.rows)
            offset = page.offset


def _pauses(settle: float) -> Iterator[float]:
    while settle > 0:
        pause = min(settle, SETTLE_INTERVAL)
        settle -= pause
        yield pause


def all_pages(
    read: Callable[[int], Iterator[DataPage]],
    offset: int,
    rows: int,
    *,
    settle: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[DataPage]:
    """Yield the pages from ``offset`` to the end.

    Right after a task shows Finished it may still show no rows (assumptions.md, Reading data), so a source
    that is empty is looked at again for ``settle`` seconds. A total that has grown beyond what came is read
    up to.

    :param read: gives the pages from an offset to the end that is seen then.
    :param rows: how many rows come before ``offset``.
    """
    pauses = _pauses(settle)
    pause = next(pauses, None)
    while True:
        came = 0
        for page in read(offset):
            if not page.rows and page.total < max(rows + came, 1) and pause is not None:
                # not the truth yet, so nobody shall count with it
                break
            yield page
            came += len(page.rows)
            offset = page.offset
        rows += came
        if not came and page.total < max(rows, 1) and pause is not None:
            sleep(pause)
            pause = next(pauses, None)
        elif not came or rows >= page.total:
            return
