"""All pages of a source: what is slow to appear is waited for, what is added meanwhile is read too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.records import DataPage

#: Seconds between two looks at a source that still shows no rows.
SETTLE_INTERVAL = 2.0


def all_pages(
    read: Callable[[int], Iterator[DataPage]],
    offset: int,
    rows: int,
    *,
    settle: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[DataPage]:
    """Yield the pages from ``offset`` to the end.

    Right after a task shows Finished it may still show no rows (field notes, Reading data), so a source that
    is empty is looked at again for ``settle`` seconds. A total that has
    grown beyond what came is read up to.

    :param read: gives the pages from an offset to the end that is seen then.
    :param rows: how many rows come before ``offset``.
    """
    while True:
        came = 0
        for page in read(offset):
            if not page.rows and page.total < max(rows + came, 1) and settle > 0:
                # not the truth yet, so nobody shall count with it
                break
            yield page
            came += len(page.rows)
            offset = page.offset
        rows += came
        if not came and page.total < max(rows, 1) and settle > 0:
            pause = min(settle, SETTLE_INTERVAL)
            settle -= pause
            sleep(pause)
        elif not came or rows >= page.total:
            return
