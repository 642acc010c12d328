"""The rows that runs collect, as encoded JSON: made up from a seed, or from the user's own table.

Rows come in blocks of :data:`BLOCK_ROWS`. A block is bytes plus the position of each row, so that a page is
a few slices of blocks, and serving it needs no work per row.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import random
from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BLOCK_ROWS = 1000
DEFAULT_FIELDS = ("id", "keyword", "title", "price", "seller", "city", "url", "comment")

# Prime, so that the variants do not repeat in step with page sizes.
_VARIANTS = 997
_WORDS = (
    "Laptop 14″ 16 GB",
    "Кофе в зёрнах",
    "ワイヤレスイヤホン",
    "便携式充电器",
    'Monitor 27" IPS',
    "Café moulu «Élégance»",
    "Trekking-Rucksack größer",
    "سماعات رأس",
    "Running shoes, men's",
    "🎧 Studio headphones",
    "Path C:\\temp\\new",
    "Two\nlines\tand a tab",
)
_COMMENTS = (
    "Arrived on time, well packed; would buy again.",
    'She said "it\'s fine", and it was.',
    "Nicht ganz wie beschrieben, trotzdem zufrieden. ★★★★☆",
    "价格合适,质量不错,物流很快,下次还会再来。",
    "a,b;c|d / 100% <b>bold</b> &amp; \\n not a newline",
    "",
)
_SELLERS = ("Nordwind GmbH", "O'Neil & Sons", "株式会社さくら", "Ünal Ticaret", "Data, Inc.")
_CITIES = ("København", "São Paulo", "北京", "New York, NY", "Łódź", None)
_CHOICES: dict[int, Sequence[str | None]] = {2: _SELLERS, 3: _CITIES, 5: _COMMENTS}


@dataclass(frozen=True)
class Block:
    """Consecutive rows joined by commas.

    :param starts: position of each row in ``body``, and the position where one more row would start.
    """

    body: bytes
    starts: Sequence[int]

    def cut(self, first: int, end: int) -> bytes:
        """Return the rows from ``first`` up to, but not including, ``end``, joined by commas."""
        return self.body[self.starts[first] : self.starts[end] - 1]


@dataclass(frozen=True, eq=False)
class GivenRows:
    """The user's own rows, repeated endlessly."""

    rows: Sequence[bytes]

    def make(self, numbers: range) -> list[bytes]:
        """Return the rows with these numbers."""
        return [self.rows[i % len(self.rows)] for i in numbers]


@dataclass(frozen=True, eq=False)
class MadeUpRows:
    """Rows generated from a seed.

    The first field is unique in the task, the second is the loop item that yielded the row.

    :param seed: determines the values of the other fields.
    :param lotno: batch number; part of the first field.
    :param items: loop items of the run.
    :param rows_per_item: number of rows per loop item.
    """

    seed: str
    lotno: str
    fields: tuple[str, ...]
    items: tuple[str, ...]
    rows_per_item: int
    row_bytes: int

    def make(self, numbers: range) -> list[bytes]:
        """Return the rows with these numbers."""
        names = [msgspec.json.encode(name) for name in self.fields]
        head = b"{" + names[0] + b':"' + self.lotno.encode() + b"-"
        middles = [b'"']
        if len(names) > 1:
            items = self.items or ("",)
            middles = [b'",' + names[1] + b":" + msgspec.json.encode(item) for item in items]
        tails = _tails(self.seed, self.fields, self.row_bytes)
        per_item, of_items = self.rows_per_item, len(middles)
        return [
            b"%b%d%b%b" % (head, i, middles[i // per_item % of_items], tails[i % _VARIANTS]) for i in numbers
        ]


#: The value of the setting ``data`` that makes runs collect :class:`Products`.
PRODUCTS = "products"


@dataclass(frozen=True, eq=False)
class Products:
    """A shop's products as one run finds them; the first field is a product's number.

    In each run, the first product of the run before is gone, a new one comes last, and a quarter of the
    prices have changed. In every third run, the first row has neither a number nor a URL.

    :param seed: determines the products.
    :param run: number of the run.
    :param items: loop items of the run, each of which yields some of the products.
    """

    seed: str
    run: int
    fields: tuple[str, ...]
    items: tuple[str, ...]
    row_bytes: int

    def make(self, numbers: range) -> list[bytes]:
        """Return the rows with these numbers."""
        first = self.run + random.Random(self.seed).randrange(10**9)
        return [self._row(first + i, has_key=i > 0 or self.run % 3 > 0) for i in numbers]

    def _row(self, product: int, has_key: bool) -> bytes:
        chance = random.Random(product)
        values = [_value(chance, number) for number in range(len(self.fields) - 2)]
        moved = (product + self.run) // 4 * 2 % 5
        values[1::6] = [f"{float(price or 0) + moved:.2f}" for price in values[1::6]]
        values[4::6] = [f"https://shop.example/p/{product}" if has_key else ""] * len(values[4::6])
        first = str(product) if has_key else ""
        item = self.items[product % len(self.items)] if self.items else ""
        record = dict(zip(self.fields, (first, item, *values), strict=False))
        _pad(record, self.row_bytes)
        return msgspec.json.encode(record)


Rows: TypeAlias = GivenRows | MadeUpRows | Products

_CHANGED_VALUES: dict[str, object] = {
    "empty": "",
    "null": None,
    "number": 12.5,
    "boolean": True,
    "list": ["first", "second"],
}
#: The possible changes of a column, other than a new name.
CHANGES = (*_CHANGED_VALUES, "missing")


@dataclass(frozen=True)
class Change:
    """A change of one column from one row on; rows without the column stay as they are.

    :param from_row: number of the first changed row.
    :param to: one of :data:`CHANGES`; ``None`` if the column is renamed.
    :param renamed: the column's new name, with which it keeps its values and its place; ``None`` if the
        values change.
    """

    column: str
    from_row: int
    to: str | None
    renamed: str | None

    def apply(self, row: dict[str, object]) -> dict[str, object]:
        """Return a row as it is after the change."""
        if self.column not in row:
            return row
        if self.renamed is not None:
            return {self.renamed if name == self.column else name: value for name, value in row.items()}
        if self.to in _CHANGED_VALUES:
            return row | {self.column: _CHANGED_VALUES[self.to]}
        return {name: value for name, value in row.items() if name != self.column}


@dataclass(frozen=True)
class Span:
    """The first ``count`` rows of a batch.

    :param changes: changes of these rows, in the order in which they apply.
    """

    rows: Rows
    count: int
    changes: tuple[Change, ...] = ()

    def block(self, number: int, count: int) -> Block:
        """Return the first ``count`` rows of block ``number``, which starts at ``number * BLOCK_ROWS``."""
        first = number * BLOCK_ROWS
        rows = self.rows.make(range(first, first + count))
        if self.changes:
            rows = [self._changed(first + i, row) for i, row in enumerate(rows)]
        starts = itertools.accumulate((len(row) + 1 for row in rows), initial=0)
        return Block(b",".join(rows), array("Q", starts))

    def _changed(self, number: int, encoded: bytes) -> bytes:
        changes = [change for change in self.changes if change.from_row <= number]
        if not changes:
            return encoded
        row = msgspec.json.decode(encoded, type=dict[str, object])
        for change in changes:
            row = change.apply(row)
        return msgspec.json.encode(row)


@lru_cache(maxsize=64)
def _tails(seed: str, fields: tuple[str, ...], row_bytes: int) -> list[bytes]:
    chance, tails = random.Random(seed), []
    for _ in range(_VARIANTS):
        record = {name: _value(chance, number) for number, name in enumerate(fields[2:])}
        _pad(record, row_bytes - 60)
        tails.append((b"," if record else b"") + msgspec.json.encode(record)[1:])
    return tails


def _pad(record: dict[str, str | None], size: int) -> None:
    """Lengthen the last value, so that the encoded record has about ``size`` bytes."""
    padding = size - len(msgspec.json.encode(record))
    if record and padding > 0:
        filler = _COMMENTS[0] * (padding // len(_COMMENTS[0]) + 1)
        name, value = record.popitem()
        record[name] = f"{value or ''}{filler[:padding]}"


def _value(chance: random.Random, number: int) -> str | None:
    match number % 6:
        case 0:
            return f"{chance.choice(_WORDS)} {chance.randrange(1000)}"
        case 1:
            return f"{chance.randrange(1, 200_000) / 100:.2f}"
        case 4:
            return f"https://shop.example/p/{chance.randrange(10**9)}?ref=list&q=%C3%A9"
    return chance.choice(_CHOICES[number % 6])


def read_table(data: str | None) -> list[bytes]:
    """Return the encoded rows of a CSV file with a header line, or of a file with one JSON object per line.

    :param data: the setting ``data``; unless it is the path of the user's own table, there are no rows.
    :raises ValueError: the file has no rows, or an invalid one.
    """
    if data in (None, PRODUCTS):
        return []
    path = Path(data)
    try:
        rows = _rows_of_csv(path) if path.suffix.lower() == ".csv" else _rows_of_json(path)
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not rows:
        raise ValueError(f"{path} has no rows")
    return [msgspec.json.encode(row) for row in rows]


def _rows_of_csv(path: Path) -> list[dict[str, object]]:
    # a value, such as the text of a web page, may exceed the default limit of 128 kB
    csv.field_size_limit(max(csv.field_size_limit(), 64 * 1024 * 1024))
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines)
        # a spreadsheet may have empty columns at the end
        names = [name for name in reader.fieldnames or () if name]
        rows: list[dict[str, object]] = list(reader)
    if len(set(names)) < len(names):
        raise ValueError("the header has a name twice")
    if any(None in row for row in rows):
        raise ValueError("a row has more values than the header has names")
    return rows


def _rows_of_json(path: Path) -> list[dict[str, object]]:
    rows = []
    for number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(msgspec.json.decode(line, type=dict[str, object]))
            except msgspec.DecodeError as error:
                raise ValueError(f"line {number}: {error}") from error
    return rows


CACHE_BYTES = 128_000_000


class BlockCache:
    """The most recently used blocks, up to ``max_bytes`` in total."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._blocks: OrderedDict[tuple[object, ...], Block] = OrderedDict()

    def get(self, span: Span, number: int, count: int) -> Block:
        """Return :meth:`Span.block`, and make the block only if it is not in the cache."""
        # The key has no row count of the batch: as the batch grows, its full blocks stay the same.
        key = (span.rows, span.changes, number, count)
        block = self._blocks.pop(key, None)
        if block is None:
            block = span.block(number, count)
            self._bytes += len(block.body)
        self._blocks[key] = block
        while self._bytes > self._max_bytes and len(self._blocks) > 1:
            self._bytes -= len(self._blocks.popitem(last=False)[1].body)
        return block


def segments(spans: Iterable[Span], start: int, cache: BlockCache) -> Iterator[tuple[Block, int, int]]:
    """Yield the rows of all spans in order from row ``start`` on.

    Each ``(block, first, end)`` stands for the rows of a block that :meth:`Block.cut` returns.
    """
    for span in spans:
        row = max(start, 0)
        while row < span.count:
            number, first = divmod(row, BLOCK_ROWS)
            end = min(BLOCK_ROWS, first + span.count - row)
            yield cache.get(span, number, end), first, end
            row += end - first
        start -= span.count


SMALL_PAGE_ROWS = 200
SMALL_PAGE_BYTES = 4_000_000
LARGE_PAGE_BYTES = 8_000_000
MAX_PAGE_ROWS = 1000
OFFSET_JUMP = 924


def position(row: int) -> int:
    """Return the offset of a row.

    The first row has offset 0. The offset of a later row exceeds its number by 924, and by 924 more for every
    1000 rows. So clients can pass an offset on but not compute it: with pages of 100 rows, offset 0 is
    followed by 1024 and 1124.
    """
    return row + OFFSET_JUMP * (1 + row // BLOCK_ROWS) if row > 0 else 0


def row_at(offset: int) -> int:
    """Return the row at an offset; if no row has the offset, the next row."""
    if offset <= 0:
        return 0
    thousands, rest = divmod(offset - OFFSET_JUMP, BLOCK_ROWS + OFFSET_JUMP)
    return max(1, thousands * BLOCK_ROWS + min(rest, BLOCK_ROWS))


def read_page(spans: Sequence[Span], offset: int, size: int, cache: BlockCache) -> bytes:
    """Return a page, as the JSON of the contract's ``{offset, total, restTotal, data}``.

    The page has ``size`` rows, or fewer if the rows end or exceed 4 MB (``size`` up to 200) or 8 MB; if any
    row is left, it has at least one.
    """
    total = sum(span.count for span in spans)
    start = row_at(offset)
    pieces: list[bytes] = []
    count = 0
    capacity = SMALL_PAGE_BYTES if size <= SMALL_PAGE_ROWS else LARGE_PAGE_BYTES
    for block, first, end in segments(spans, start, cache):
        limit = block.starts[first] + capacity + 1
        fitting = bisect_right(block.starts, limit, first, min(end, first + size - count) + 1) - 1
        stop = fitting if pieces else max(fitting, first + 1)
        if stop > first:
            pieces.append(block.cut(first, stop))
            count += stop - first
            capacity -= len(pieces[-1]) + 1
        if stop < end or count == size:
            break
    next_offset = position(start + count) if start < total else max(offset, 0)
    rest = max(0, total - start - count)
    head = b'{"offset":%d,"total":%d,"restTotal":%d,"data":[' % (next_offset, total, rest)
    return b"".join((head, b",".join(pieces), b"]}"))
