"""Working on one item while the next is being fetched."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_END = object()


def read_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield ``items``, fetching one ahead in a thread; an error of theirs is raised in its place."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="webcollect-read")
    try:
        coming = thread.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, items, _END)
            yield item  # type: ignore[misc]  # it is not the end
    finally:
        # whoever stops early does not wait for a page that nobody wants any more
        thread.shutdown(wait=False, cancel_futures=True)
