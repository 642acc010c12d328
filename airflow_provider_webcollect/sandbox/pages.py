"""Pages of rows with an offset cursor."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from airflow_provider_webcollect.sandbox.errors import ServiceError
from airflow_provider_webcollect.sandbox.rows import BLOCK_ROWS, Block, BlockCache, Span, segments

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL_PAGE_ROWS = 200
SMALL_PAGE_BYTES = 4_000_000
LARGE_PAGE_BYTES = 8_000_000
MAX_PAGE_ROWS = 1000


def position(row: int, jump: int) -> int:
    """
    Return the offset of a row.

    The first row has offset 0; after that the offset exceeds the row number by a further ``jump`` in every
    1000 rows. So clients can pass it on but not compute it: with 924 and pages of 100 rows, 0 is followed by
    1024 and 1124.
    """
    return row + jump * (1 + row // BLOCK_ROWS) if row > 0 else 0


def row_at(offset: int, jump: int) -> int:
    """Return the row at an offset, or the next one after it."""
    if offset <= 0:
        return 0
    thousands, rest = divmod(offset - jump, BLOCK_ROWS + jump)
    return max(1, thousands * BLOCK_ROWS + min(rest, BLOCK_ROWS))


def read_page(
    spans: Sequence[Span], offset: int, size: int, jump: int, cache: BlockCache, refuse_large: bool
) -> bytes:
    """
    Return a page, as the JSON of the contract's ``{offset, total, restTotal, data}``.

    It contains ``size`` rows, or fewer if those exceed 4 MB (``size`` up to 200) or 8 MB; at least one.

    :raises ServiceError: ``LimitTraffic``, if ``refuse_large`` is set and the limit would reduce the rows.
    """
    total = sum(span.count for span in spans)
    start = row_at(offset, jump)
    pieces: list[bytes] = []
    count = 0
    capacity = SMALL_PAGE_BYTES if size <= SMALL_PAGE_ROWS else LARGE_PAGE_BYTES
    for block, first, end in segments(spans, start, cache):
        stop = _fitting(block, first, min(end, first + size - count), capacity, at_least=0 if pieces else 1)
        if stop > first:
            pieces.append(block.cut(first, stop))
            count += stop - first
            capacity -= len(pieces[-1]) + 1
        if stop < end or count == size:
            break
    if refuse_large and count < min(size, total - start):
        raise ServiceError("LimitTraffic", "The page is too large. Ask for fewer rows.")
    next_offset = position(start + count, jump) if start < total else max(offset, 0)
    rest = max(0, total - start - count)
    head = b'{"offset":%d,"total":%d,"restTotal":%d,"data":[' % (next_offset, total, rest)
    return b"".join((head, b",".join(pieces), b"]}"))


def _fitting(block: Block, first: int, end: int, capacity: int, at_least: int) -> int:
    if block.size(first, end) <= capacity:
        return end
    limit = block.starts[first] + capacity + 1
    return max(first + at_least, bisect_right(block.starts, limit, first, end) - 1)
