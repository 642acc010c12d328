"""The contents of rows, counted column by column while the rows are written, and kept with each part."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: Maximum number of columns of a part that are counted: those that appear first.
MAX_COLUMNS = 200


class ColumnProfile(msgspec.Struct, frozen=True, array_like=True):
    """Counts of the values in one column, as the service sent them, whatever the format of the part.

    In files, it is a list of these numbers, in this order.

    :ivar present: the number of rows that have the column, even if it is null.
    :ivar filled: the number of rows whose value is neither null nor blank text nor an empty list or object.
    :ivar numbers: the number of rows with a JSON number; a text of digits is a text.
    :ivar booleans: the number of rows with ``true`` or ``false``.
    :ivar lists: the number of rows with a list, empty or not.
    :ivar shortest: the length in characters of the shortest text that is not blank; None if there is none.
    :ivar longest: the length in characters of the longest such text; None if there is none.
    :ivar misfits: the number of values that became null in a Parquet part, because they do not fit the type
        that ``column_types`` declares.
    """

    present: int = 0
    filled: int = 0
    numbers: int = 0
    booleans: int = 0
    lists: int = 0
    shortest: int | None = None
    longest: int | None = None
    misfits: int = 0

    @classmethod
    def of(cls, values: Sequence[Any]) -> ColumnProfile:
        """Count the values of a column.

        :param values: decoded JSON; ``UNSET`` where a row lacks the column.
        """
        try:
            return cls(len(values), len(values)) + cls._without_blank_texts(values)
        except TypeError:
            # not all values are texts
            kinds = Counter(map(type, values))
        present = len(values) - kinds[type(UNSET)]
        empty = values.count([]) if kinds[list] else 0
        empty += values.count({}) if kinds[dict] else 0
        others = cls(
            present=present,
            filled=present - kinds[type(None)] - empty,
            numbers=kinds[int] + kinds[float] + kinds[msgspec.Raw],
            booleans=kinds[bool],
            lists=kinds[list],
        )
        texts = [value for value in values if type(value) is str] if kinds[str] else ()
        return others + cls._without_blank_texts(texts)

    @classmethod
    def _without_blank_texts(cls, texts: Sequence[str]) -> ColumnProfile:
        """Return the lengths of texts, and, as a negative number of filled rows, how many texts are blank.

        :raises TypeError: if a value is not a text.
        """
        # `isspace` refuses values that are not texts; `len` would not, since lists and objects have lengths
        blank = list(filter(str.isspace, texts))
        filled, lengths = texts, set(map(len, texts))
        if blank or 0 in lengths:
            filled = [text for text in texts if text and not text.isspace()]
            lengths = set(map(len, filled))
        shortest, longest = min(lengths, default=None), max(lengths, default=None)
        return cls(filled=len(filled) - len(texts), shortest=shortest, longest=longest)

    def __add__(self, other: ColumnProfile) -> ColumnProfile:
        """Return the profile of the rows of both."""
        return ColumnProfile(
            present=self.present + other.present,
            filled=self.filled + other.filled,
            numbers=self.numbers + other.numbers,
            booleans=self.booleans + other.booleans,
            lists=self.lists + other.lists,
            shortest=_of_both(min, self.shortest, other.shortest),
            longest=_of_both(max, self.longest, other.longest),
            misfits=self.misfits + other.misfits,
        )


def _of_both(chosen: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else chosen(one, other)


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contents of rows, as counts for each column.

    :ivar columns: the counts by column: first the columns that checks name, then the others in order of
        appearance.
    :ivar unread: the number of rows that no column counts, because Python cannot decode them: they are nested
        too deeply, or have a number that Python does not have. Only JSON lines accept such rows.
    :ivar is_cut: whether there were more than :data:`MAX_COLUMNS` columns, and only the first are counted.
    """

    columns: dict[str, ColumnProfile] = {}
    unread: int = 0
    is_cut: bool = False


def sum_of(profiles: Iterable[Profile]) -> Profile:
    """Return the profile of the rows of all given profiles."""
    columns: dict[str, ColumnProfile] = {}
    unread, is_cut = 0, False
    for profile in profiles:
        unread, is_cut = unread + profile.unread, is_cut or profile.is_cut
        _add(columns, profile.columns)
    return Profile(columns, unread, is_cut)


def _add(columns: dict[str, ColumnProfile], others: dict[str, ColumnProfile]) -> None:
    for name, counts in others.items():
        columns[name] = columns[name] + counts if name in columns else counts


def percent(share: float) -> str:
    """Return a share, 0 to 1, as a percentage, rounded down so that only 1 gives 100 %."""
    return f"{int(round(share * 1000, 6)) / 10:g} %"


class Inspector(Protocol):
    """Inspects the values of rows while the rows are written."""

    @property
    def first(self) -> tuple[str, ...]:
        """The names of columns that it needs, however many others there are."""

    def add(self, names: Sequence[str], columns: Sequence[Sequence[Any]], rows: int, /) -> object:
        """Inspect rows.

        :param names: the names of the columns.
        :param columns: the values of each column; ``UNSET`` where a row lacks the column.
        :param rows: the number of rows.
        """


class Profiler:
    """Counts the values in the rows of one part, in memory that does not grow with the rows.

    :param other: another inspector that receives the same rows; None for none.
    """

    def __init__(self, other: Inspector | None = None) -> None:
        self.first = () if other is None else other.first
        self._other = other
        self._columns = {name: ColumnProfile() for name in self.first}
        self._rows = 0
        self._is_cut = False

    def add(self, names: Sequence[str], columns: Sequence[Sequence[Any]], rows: int) -> None:
        self._rows += rows
        for name, values in zip(names, columns, strict=True):
            if name in self._columns or len(self._columns) < MAX_COLUMNS:
                _add(self._columns, {name: ColumnProfile.of(values)})
            else:
                self._is_cut = True
        if self._other is not None:
            self._other.add(names, columns, rows)

    def profile(self, rows: int, misfits: Mapping[str, int] = MappingProxyType({})) -> Profile:
        """Return the counts.

        :param rows: the number of the part's rows, including those that could not be decoded.
        :param misfits: the number of values that became null, by column.
        """
        columns = {name: counts for name, counts in self._columns.items() if counts.present}
        for name in columns.keys() & misfits.keys():
            columns[name] += ColumnProfile(misfits=misfits[name])
        return Profile(columns, rows - self._rows, self._is_cut)
