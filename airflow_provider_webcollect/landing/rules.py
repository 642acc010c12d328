"""Rules about values: which rows break them, and how many.

A page is judged column by column, which costs little where nothing is wrong.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from airflow_provider_webcollect.landing import checks as checking
from airflow_provider_webcollect.landing.checks import (
    NOTHING_WRONG,
    Checks,
    ColumnChecks,
    Example,
    RuleCounts,
    cut,
    matchers,
    shown,
)
from airflow_provider_webcollect.landing.errors import UnreadableRow
from airflow_provider_webcollect.landing.formats import STRING, JsonLines
from airflow_provider_webcollect.landing.formats.base import (
    Column,
    Rows,
    batches,
    columns_of,
    decode_rows,
    known_columns,
    slices,
)
from airflow_provider_webcollect.landing.formats.single_rows import SingleRow
from airflow_provider_webcollect.service.errors import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.landing.formats import FileFormat

READABLE = "rows.readable"
_EXAMPLES = 3
#: All characters of a plain number and of the white space around it.
_OF_NUMBERS = "0123456789+-.eE \t\r\n"
#: Python reads every row of fewer bytes and brackets: numbers have fewer digits, values are nested less.
_FEW_BYTES, _FEW_BRACKETS = 4300, 400
#: Levels that a value is nested deeper for a test, since a writer decodes it with more calls on the stack.
_DEEPER = 50
_SHOWN_BYTES = 300
#: How many names of columns of wrong rows are kept, about.
_MOST_NAMES = 1000
_encode = msgspec.json.Encoder().encode


class ValueRules:
    """Judges the values of a run's rows.

    Without ``max_wrong`` it counts what is wrong in rows that are written (:meth:`add`). With it, rows go
    through :meth:`split` first, and only those that it returns as good are written.

    :param file_format: of the parts.
    :param counts: of earlier attempts.
    :ivar offset: the cursor with which the rows are read that come next.
    :ivar first: the columns that checks name.
    :ivar is_split: whether wrong rows are set apart one by one: ``max_wrong`` is above 0.
    """

    def __init__(self, checks: Checks, file_format: FileFormat, counts: RuleCounts = NOTHING_WRONG) -> None:
        self.offset = 0
        self.first = tuple(checks.columns)
        self.is_split = checks.rows.max_wrong > 0
        self._format = file_format
        self._broken = defaultdict(int, counts.broken)
        self._examples = dict(counts.examples)
        self._names_of_wrong = dict.fromkeys(counts.names)
        self._wrong_rows = counts.wrong_rows
        fails = self.is_split and getattr(file_format, "on_cast_error", "null") == "fail"
        kinds = getattr(file_format, "column_types", {}) if fails else {}
        self._columns = {
            name: _Column(name, checks.columns.get(name, ColumnChecks()), kinds.get(name, STRING))
            for name in dict.fromkeys((*checks.columns, *kinds))
        }
        self._judged = [column for column in self._columns.values() if column.has_rules]
        self._names = [column.name for column in self._judged]
        self._known = known_columns(self._names, others_dropped=True)

    @property
    def counts(self) -> RuleCounts:
        """What was found so far."""
        names = tuple(self._names_of_wrong)
        return RuleCounts(dict(self._broken), dict(self._examples), names, self._wrong_rows)

    def add(self, names: Sequence[str], columns: Sequence[Sequence[Any]], rows: int) -> None:
        """Look at rows that are written, see :class:`~.landing.formats.profile.Inspector`.

        With ``max_wrong``, which has judged them before, only examples of empty values are kept.
        """
        for name in self.first if rows else ():
            column, is_there = self._columns[name], name in names
            if self.is_split and not column.counts_filled:
                continue
            values = columns[names.index(name)] if is_there else (UNSET,)
            texts = _texts(values)
            if column.counts_filled and not all(texts):
                empty = (value for value, text in zip(values, texts, strict=True) if not text)
                self._show(f"columns.{name}.filled", empty)
            for rule, wrong in () if self.is_split else column.broken(values, texts):
                self._note(rule, values, wrong if is_there else [*wrong] * rows)

    def split(self, rows: Rows) -> tuple[Rows, list[SingleRow]]:
        """Count what is wrong, and return the good and the wrong rows of a page, both in order."""
        good: list[msgspec.Raw] = []
        wrong: list[SingleRow] = []
        for batch in batches(rows):
            broken = self._broken_by(batch)
            for index, row in enumerate(batch) if broken else ():
                if index in broken:
                    wrong.append(SingleRow(tuple(broken[index]), row))
                else:
                    good.append(row)
            if not broken:
                good += batch
        self._wrong_rows += len(wrong)
        readable = [single.row for single in wrong if READABLE not in single.broke]
        for values in slices(readable):
            if len(self._names_of_wrong) < _MOST_NAMES:
                self._names_of_wrong.update(dict.fromkeys(values))
        return good, wrong

    def _broken_by(self, batch: Rows) -> dict[int, list[str]]:
        """Return the rules that rows break, by the index of the row."""
        broken: dict[int, list[str]] = defaultdict(list)
        unread, columns = self._decoded(batch)
        read: Sequence[int] = range(len(batch))
        if unread:
            read = sorted({*read} - {*unread})
        for column, values in zip(self._judged, columns, strict=False):
            for rule, wrong in column.broken(values, _texts(values)):
                self._note(rule, values, wrong)
                for index in wrong:
                    broken[read[index]].append(rule)
        for index in unread:
            # what cannot be judged has not been found right
            if self._judged or not _takes(self._format, batch[index]):
                broken[index].append(READABLE)
                self._note(READABLE, [bytes(batch[index])[:_SHOWN_BYTES].decode(errors="replace")], [0])
        return broken

    def _decoded(self, batch: Rows) -> tuple[Sequence[int], Sequence[Column]]:
        """Return the indices of rows that Python cannot decode, and the columns of the others."""
        unread = [
            index
            for index, row in enumerate(batch)
            if len(row) >= 2 * _FEW_BRACKETS and _may_be_unreadable(row) and not _is_readable(row)
        ]
        try:
            return unread, self._columns_of(batch, unread)
        except UnreadableRow:
            # one is no object
            unread = [index for index, row in enumerate(batch) if not _is_readable(row)]
        return unread, self._columns_of(batch, unread)

    def _columns_of(self, batch: Rows, unread: Sequence[int]) -> Sequence[Column]:
        if unread:
            without = set(unread)
            batch = [row for index, row in enumerate(batch) if index not in without]
        if (columns := self._known(batch)) is not None:
            return columns
        (rows,) = decode_rows(batch)
        return columns_of(rows, self._names)

    def _note(self, rule: str, values: Sequence[Any], wrong: Sequence[int]) -> None:
        """Count rows that break a rule."""
        if wrong:
            self._broken[rule] += len(wrong)
            self._show(rule, (values[index] for index in wrong))

    def _show(self, rule: str, values: Iterable[Any]) -> None:
        """Keep examples of wrong values."""
        noted = self._examples.get(rule, ())
        # a column that no row has is one example
        for value, _ in itertools.groupby(values):
            if len(noted) == _EXAMPLES:
                break
            if (example := Example(_shown(value), self.offset)) not in noted:
                noted = (*noted, example)
        self._examples[rule] = noted


class _Column:
    """The rules about the values of one column.

    :param kind: the type that values must fit, by its name; ``string`` for any.
    :ivar has_rules: whether there are any.
    :ivar counts_filled: whether there are checks of the share of rows that have a value.
    """

    def __init__(self, name: str, checks: ColumnChecks, kind: str) -> None:
        self.name = name
        self.counts_filled = checks.filled is not None or checks.filled_of_usual is not None
        by_row = msgspec.structs.replace(checks, filled=None, filled_of_usual=None)
        self.has_rules = kind != STRING or by_row != ColumnChecks()
        self._checks = checks
        self._kind = kind
        self._matchers = None if checks.pattern is None else matchers(checks.pattern)
        self._bounds: dict[str, Callable[[float], bool]] = {}
        if checks.min is not None:
            self._bounds["min"] = checks.min.__le__
        if checks.max is not None:
            self._bounds["max"] = checks.max.__ge__
        self._allowed = None if checks.values is None else frozenset(checks.values)
        self._seen: set[int] = set()

    def broken(self, values: Sequence[Any], texts: Sequence[str]) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield rules and, for each, the indices of the values that break it.

        :param texts: of the values, see :func:`_texts`.
        """
        prefix = f"columns.{self.name}."
        filled: Sequence[int] = range(len(texts))
        if not all(texts):
            if self._checks.required:
                yield f"{prefix}required", [index for index in filled if not texts[index]]
            filled = [index for index in filled if texts[index]]
            texts = [texts[index] for index in filled]
        for check, wrong in self._broken_by_texts(texts):
            yield prefix + check, [filled[index] for index in wrong]
        if self._kind != STRING:
            yield f"{prefix}type", _uncast(values, self._kind)

    def _broken_by_texts(self, texts: Sequence[str]) -> Iterator[tuple[str, Sequence[int]]]:
        if self._matchers is not None:
            exact, quick = self._matchers
            encoded = list(map(str.encode, texts))
            yield "pattern", () if all(map(quick, encoded)) else _failing(exact, encoded)
        if self._bounds:
            numbers = _numbers(texts)
            for check, holds in self._bounds.items():
                yield check, _failing(holds, numbers)
        if self._allowed is not None:
            yield "values", _failing(self._allowed.__contains__, texts)
        if self._checks.unique:
            yield "unique", self._repeated(texts)

    def _repeated(self, texts: Sequence[str]) -> Sequence[int]:
        """Return which texts were there before, and remember the others."""
        repeated = []
        for index, text in enumerate(texts):
            # eight bytes instead of the text: two of a million share a number once in forty million runs
            number = hash(text)
            if number in self._seen:
                repeated.append(index)
            elif len(self._seen) < checking.MOST_COMPARED:
                self._seen.add(number)
        return repeated


def _failing(holds: Callable[[Any], Any], values: Sequence[Any]) -> Sequence[int]:
    """Return the indices of the values for which something does not hold."""
    if all(map(holds, values)):
        return ()
    return [index for index, value in enumerate(values) if not holds(value)]


def _texts(values: Sequence[Any]) -> Sequence[str]:
    """Return the text of each value: JSON for one that is no text; empty if no value is there."""
    try:
        if not any(map(str.isspace, values)):
            return values
    except TypeError:
        # one is no text
        pass
    texts = [value if type(value) is str else _text(value) for value in values]
    return ["" if text.isspace() else text for text in texts]


def _text(value: Any) -> str:
    if value is None or value is UNSET or value == [] or value == {}:
        return ""
    return _encode(value).decode()


def _numbers(texts: Sequence[str]) -> Sequence[float]:
    """Return texts as numbers: NaN for those that are no plain number."""
    if not "".join(texts).strip(_OF_NUMBERS):
        with suppress(ValueError):
            return list(map(float, texts))
    return list(map(_number, texts))


def _number(text: str) -> float:
    # `float` also reads `1_000`, `inf` and the digits of other scripts
    with suppress(ValueError):
        return math.nan if text.strip(_OF_NUMBERS) else float(text)
    return math.nan


def _uncast(values: Sequence[Any], kind: str) -> Sequence[int]:
    """Return the indices of values that do not fit a type."""
    from airflow_provider_webcollect.landing.formats.parquet import arrow_type, as_texts, cast

    return list(cast(as_texts(values), arrow_type(kind))[1])


def _may_be_unreadable(row: msgspec.Raw) -> bool:
    text = bytes(row)
    return len(text) >= _FEW_BYTES or text.count(b"[") + text.count(b"{") >= _FEW_BRACKETS


def _is_readable(row: msgspec.Raw) -> bool:
    """Return whether a row is an object that Python can decode."""
    return _is_object(row) and _goes_through(decode_rows, row)


def _takes(file_format: FileFormat, row: msgspec.Raw) -> bool:
    """Return whether a format takes a row that Python cannot decode."""
    if not isinstance(file_format, JsonLines) or not _is_object(row):
        return False
    return file_format.columns is None or _goes_through(slices, row)


def _is_object(row: msgspec.Raw) -> bool:
    return bytes(row).lstrip().startswith(b"{")


def _goes_through(decode: Callable[[Rows], Iterable[Any]], row: msgspec.Raw) -> bool:
    """Return whether a row can be decoded, even with more calls on the stack than here."""
    deeper = b"".join([b'{"":', b"[" * _DEEPER, row, b"]" * _DEEPER, b"}"])
    with suppress(UnreadableRow):
        return bool(list(decode([msgspec.Raw(deeper)])))
    return False


def _shown(value: Any) -> str:
    if value is UNSET:
        return "missing"
    return shown(value) if type(value) is str else escaped(cut(_encode(value).decode()))
