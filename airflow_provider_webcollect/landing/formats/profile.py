"""The contents of rows, column by column: counted while they are written, and kept with each part."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: How many columns of a part are counted, those that appear first.
MAX_COLUMNS = 200


class ColumnProfile(msgspec.Struct, frozen=True, array_like=True):
    """Counts of the values in one column, as the service sent them, in every format of the part.

    In files it is the list of these numbers.

    :ivar present: rows that have the column, even if it is null.
    :ivar filled: rows whose value is neither null nor a blank text nor an empty list or object.
    :ivar numbers: rows with a JSON number; a text of digits is a text.
    :ivar booleans: rows with ``true`` or ``false``.
    :ivar lists: rows with a list, empty or not.
    :ivar shortest: characters of the shortest text that is not blank; None if there is none.
    :ivar longest: characters of the longest one.
    :ivar misfits: values that became null in a part of Parquet, since they do not fit the type that
        ``column_types`` has for their text.
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
            # not all are texts
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
        """Return the lengths of texts, and how many fewer are filled since they are blank.

        :raises TypeError: if one is no text.
        """
        # all are looked at: other values have lengths, too
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

    :ivar columns: by name: those that checks name, and the others in order of appearance.
    :ivar unread: rows that are in no column's counts, since Python cannot decode them: they are nested too
        deeply, or have a number that it does not have. Only JSON lines take such rows.
    :ivar is_cut: whether there were more columns than the first :data:`MAX_COLUMNS`, which alone are counted.
    """

    columns: dict[str, ColumnProfile] = {}
    unread: int = 0
    is_cut: bool = False


def sum_of(profiles: Iterable[Profile]) -> Profile:
    """Return the profile of the rows of all."""
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
    """Return a share of 1 as text; 100 % only if it is all of them."""
    return f"{int(round(share * 1000, 6)) / 10:g} %"


class Inspector(Protocol):
    """Looks at the values of rows while they are written."""

    @property
    def first(self) -> tuple[str, ...]:
        """The names of columns that it needs, however many others there are."""

    def add(self, names: Sequence[str], columns: Sequence[Sequence[Any]], rows: int, /) -> object:
        """Look at rows.

        :param names: of the columns.
        :param columns: the values of each column; ``UNSET`` where a row lacks it.
        :param rows: how many rows.
        """


class Profiler:
    """Counts the rows of one part.

    The memory it takes does not grow with the rows.

    :param other: another inspector that gets the same rows.
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

        :param rows: how many rows the part has, also those that could not be decoded.
        :param misfits: how many values became null, by column.
        """
        columns = {name: counts for name, counts in self._columns.items() if counts.present}
        for name in columns.keys() & misfits.keys():
            columns[name] += ColumnProfile(misfits=misfits[name])
        return Profile(columns, rows - self._rows, self._is_cut)
