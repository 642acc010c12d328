"""The parts that the writers of all formats share: their interface, the columns of a landing, and tables."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from airflow_provider_webcollect.landing.errors import UnreadableRow
from airflow_provider_webcollect.landing.formats.profile import MAX_COLUMNS, Inspector

if TYPE_CHECKING:
    from typing import Self

#: Bytes of JSON that are decoded at a time; a single row may be larger.
BATCH_BYTES = 4 * 1024 * 1024

Row = dict[str, Any]
#: The values of a column, one per row; ``UNSET`` where a row has none.
Column = Sequence[Any]
Rows = Sequence[msgspec.Raw]
#: The rows of a page; can be iterated repeatedly.
Batches = Iterable[Sequence[Row]]
V = TypeVar("V")


def _exact(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


# floats keep their original text
_VALUES = msgspec.json.Decoder(list[Row], float_hook=_exact)
_SLICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def decode_rows(rows: Rows) -> Batches:
    """Decode a page; a number with a fraction or exponent becomes its text as :class:`msgspec.Raw`.

    A page of usual size is decoded at once and kept. A large one is decoded batch by batch whenever it is
    iterated, so that it is never completely in memory.

    :raises UnreadableRow: if a row is not a JSON object, now or during iteration.
    """
    parts = batches(rows)
    return [_decoded(parts[0], _VALUES)] if len(parts) == 1 else _DecodedAgain(parts)


def slices(rows: Rows) -> Iterator[dict[str, msgspec.Raw]]:
    """Yield the rows with their values as raw JSON."""
    for batch in batches(rows):
        yield from _decoded(batch, _SLICES)


def known_columns(names: Sequence[str], *, others_dropped: bool) -> Callable[[Rows], list[Column] | None]:
    """Return a faster decoder for pages with known columns, with the same values as :func:`decode_rows`.

    It takes about 60 % of the time. It returns None for pages that need :func:`decode_rows`: large ones,
    those with other keys, and those that cannot be decoded.

    :param others_dropped: whether rows may have other keys, which are then ignored.
    """
    fields = [f"f{number}" for number in range(len(names))]
    try:
        row = msgspec.defstruct(
            "Row",
            [(field, Any, UNSET) for field in fields],
            rename=dict(zip(fields, names, strict=True)),
            forbid_unknown_fields=not others_dropped,
            gc=False,
        )
    except ValueError:
        # some characters cannot occur in field names
        return lambda rows: None
    decode = msgspec.json.Decoder(list[row], float_hook=_exact).decode  # type: ignore[valid-type]

    def columns(rows: Rows) -> list[Column] | None:
        if _is_large(rows):
            return None
        try:
            decoded = decode(_joined(rows))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return list(zip(*map(msgspec.structs.astuple, decoded), strict=True))

    return columns


def columns_of(batch: Sequence[Row], names: Sequence[str]) -> list[Column]:
    """Return the values of each of the columns, ``UNSET`` where a row has none."""
    return [[row.get(name, UNSET) for row in batch] for name in names]


class _DecodedAgain:
    """A large page, decoded batch by batch whenever it is iterated."""

    def __init__(self, batches: Sequence[Sequence[msgspec.Raw]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[Row]]:
        return (_decoded(batch, _VALUES) for batch in self._batches)


def batches(rows: Rows) -> list[Sequence[msgspec.Raw]]:
    """Return ``rows`` in batches of at most :data:`BATCH_BYTES`, or of one row."""
    if not _is_large(rows):
        return [rows]
    batches = []
    start = size = 0
    for index, row in enumerate(rows):
        if size and size + len(row) > BATCH_BYTES:
            batches.append(rows[start:index])
            start, size = index, 0
        size += len(row)
    return [*batches, rows[start:]]


def _is_large(rows: Rows) -> bool:
    return sum(map(len, rows)) > BATCH_BYTES


def _joined(rows: Rows) -> bytes:
    return b"[" + b",".join(rows) + b"]"


def _decoded(
    batch: Sequence[msgspec.Raw], decoder: msgspec.json.Decoder[list[dict[str, V]]]
) -> list[dict[str, V]]:
    text = _joined(batch)
    try:
        try:
            return decoder.decode(text)
        except UnicodeDecodeError:
            # files are UTF-8, and one invalid character must not prevent the landing of all rows
            return decoder.decode(text.decode(errors="replace"))
    except RecursionError as error:
        raise UnreadableRow(
            "a value of a row is nested too deeply; JSON lines of all columns take it"
        ) from error
    except msgspec.DecodeError as error:
        raise UnreadableRow(
            f"a row cannot be read: {error} (counted in a batch of {len(batch)} rows)"
        ) from error


class SupportsWrite(Protocol):
    """The destination for the bytes of a part. This package never closes it."""

    def write(self, data: bytes, /) -> Any:
        """Write ``data``."""


class Columns:
    """Names of columns in order: the user's own, or every key of the rows in order of first appearance.

    Names are only ever added at the end, so an earlier part's columns are the first ones of these.

    :param names: the names so far.
    :param fixed: whether no names may be added; other keys are then dropped.
    """

    def __init__(self, names: Iterable[str] = (), *, fixed: bool = False) -> None:
        self._names = dict.fromkeys(names)
        self.fixed = fixed

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far."""
        return tuple(self._names)

    def missing(self, page: Batches) -> list[str]:
        """Return the keys of ``page`` that still need a column."""
        if self.fixed:
            return []
        keys = dict.fromkeys(chain.from_iterable(chain.from_iterable(page)))
        return [key for key in keys if key not in self._names]

    def add(self, names: Iterable[str]) -> None:
        """Append columns."""
        self._names.update(dict.fromkeys(names))


class InspectedRows:
    """Decodes rows that are written undecoded, for an inspector of their values.

    :param columns: the names of the columns if they are fixed: others are not inspected. Otherwise they are
        those of the rows, of which the first :data:`~.landing.formats.profile.MAX_COLUMNS` stay known.
    """

    def __init__(self, inspector: Inspector, columns: Columns) -> None:
        self._inspector = inspector
        self._fixed = columns.fixed
        # whether there are more columns than those that stay known
        self._is_cut = False
        self._names = columns.names if columns.fixed else inspector.first
        self._known = self._decoder()

    def add(self, rows: Rows) -> None:
        """Pass the rows on; those that cannot be decoded are left out."""
        if decoded := self._known(rows):
            self._inspector.add(self._names, decoded, len(rows))
            return
        for batch in batches(rows):
            self._add_unknown(list(_readable(batch)))

    def _add_unknown(self, batch: Sequence[Row]) -> None:
        names = self._names
        if not self._fixed:
            names = tuple(dict.fromkeys(chain(names, chain.from_iterable(batch))))
        if batch:
            self._inspector.add(names, columns_of(batch, names), len(batch))
        if names != self._names:
            most = max(MAX_COLUMNS, len(self._inspector.first))
            self._names, self._is_cut = names[:most], len(names) > most
            self._known = self._decoder()

    def _decoder(self) -> Callable[[Rows], list[Column] | None]:
        return known_columns(self._names, others_dropped=self._fixed or self._is_cut)


def _readable(batch: Rows) -> Iterator[Row]:
    """Yield the rows that can be decoded."""
    try:
        yield from _decoded(batch, _VALUES)
    except UnreadableRow:
        for row in batch:
            with contextlib.suppress(UnreadableRow):
                yield from _decoded([row], _VALUES)


class RowWriter(ABC):
    """Encodes one part.

    As a context manager it ends the part, or drops the unfinished part on an error.

    :ivar columns: the part's columns, as far as known; empty for JSON lines without fixed columns.
    """

    columns: tuple[str, ...] = ()

    @abstractmethod
    def write(self, rows: Sequence[msgspec.Raw]) -> bool:
        """Append a page of rows, all of them or none.

        :param rows: raw JSON objects.
        :return: False if the rows have a key that this part has no column for: then nothing was written, and
            the page belongs to the next part. The first page of a part is always written.
        :raises UnreadableRow: if a row is not a JSON object.
        :raises CastFailed: if a value does not fit its column's type, and ``on_cast_error`` is ``fail``.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is still buffered: the compressor's trailer, the last row group and the footer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:
            self.close()


class TableWriter(RowWriter):
    """Encodes a part with the landing's columns as known after the part's first page."""

    def __init__(self, columns: Columns, inspector: Inspector | None = None) -> None:
        self._landing = columns
        self._inspector = inspector
        self._begun = False
        self._known: Callable[[Rows], list[Column] | None] = lambda rows: None

    def write(self, rows: Rows) -> bool:
        if not rows:
            return True
        if decoded := self._known(rows):
            self._add(decoded, len(rows))
            return True
        page = decode_rows(rows)
        if missing := self._landing.missing(page):
            if self._begun:
                return False
            self._landing.add(missing)
        if not self._landing.names:
            raise UnreadableRow(
                "no row of the first page has any field, so there are no columns to write; "
                "name the columns, or write JSON lines"
            )
        self._begin()
        for batch in page:
            self._add(columns_of(batch, self.columns), len(batch))
        return True

    def close(self) -> None:
        self._begin()
        self._end()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.columns = self._landing.names
            self._known = known_columns(self.columns, others_dropped=self._landing.fixed)
            self._head()

    def _add(self, columns: Sequence[Column], rows: int) -> None:
        self._append(columns, rows)
        if self._inspector is not None:
            self._inspector.add(self.columns, columns, rows)

    @abstractmethod
    def _head(self) -> None:
        """Write what comes before the rows; the columns are known by now."""

    @abstractmethod
    def _append(self, columns: Sequence[Column], rows: int) -> None:
        """Write rows.

        :param columns: the values of each of the part's columns.
        :param rows: how many rows.
        """

    @abstractmethod
    def _end(self) -> None:
        """Write what comes after the rows."""
