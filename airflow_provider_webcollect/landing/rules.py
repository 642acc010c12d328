"""Judging rows: which rows break rules about values, and the outcomes of all checks.

A page is judged column by column, which is cheap if no value is wrong.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from airflow_provider_webcollect.landing.checks import (
    MOST_USUAL,
    NOTHING_WRONG,
    CheckOutcome,
    Checks,
    ColumnChecks,
    Counts,
    Example,
    RowChecks,
    RuleCounts,
    State,
    matchers,
    plain,
    usual_of,
)
from airflow_provider_webcollect.landing.errors import UnreadableRow
from airflow_provider_webcollect.landing.formats import JsonLines, require
from airflow_provider_webcollect.landing.formats.profile import MAX_COLUMNS, percent
from airflow_provider_webcollect.landing.formats.writing import (
    Column,
    Rows,
    SingleRow,
    batches,
    columns_of,
    decode_rows,
    known_columns,
    slices,
)
from airflow_provider_webcollect.service.errors import escaped, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.formats.profile import Profile
    from airflow_provider_webcollect.landing.formats.types import ColumnType

READABLE = "rows.readable"
_EXAMPLES = 3
#: The characters that a plain number and the white space around it can have.
_OF_NUMBERS = "0123456789+-.eE \t\r\n"
#: Python can decode every row with fewer bytes and fewer brackets than these: its numbers cannot have too
#: many digits, and its values cannot be nested too deeply.
_FEW_BYTES, _FEW_BRACKETS = 4300, 400
#: Levels of nesting that a test adds to a row, since a writer decodes the row with more calls on the stack.
_DEEPER = 50
_SHOWN_BYTES = 300
_SHOWN_CHARACTERS = 60
_SHOWN_NAME = 100
#: Maximum number of values that ``unique`` compares; more would use too much memory.
MOST_COMPARED = 1_000_000
#: Maximum number of column names, or of allowed values, that an outcome lists.
_NAMED = 10
#: Column names and allowed values that an outcome can list without quotes.
_PLAIN = re.compile(r"[\w.-]{1,60}")
#: Approximate maximum number of column names that are kept for wrong rows.
_MOST_NAMES = 1000
_encode = msgspec.json.Encoder().encode


class ValueRules:
    """Judges the values of a run's rows.

    Without ``max_wrong``, it counts the wrong values in rows that are being written (:meth:`add`). With
    ``max_wrong``, rows pass through :meth:`split` first, and only the good rows are written.

    :param file_format: the format of the parts.
    :param counts: the counts of earlier attempts.
    :param see_inputs: called with the texts that rows have in the column of inputs; None if inputs are not
        checked.
    :ivar offset: the cursor of the page that is judged next.
    :ivar first: the columns of the rows that checks name.
    :ivar is_split: whether wrong rows are quarantined one by one, because ``max_wrong`` is above 0.
    """

    def __init__(
        self,
        checks: Checks,
        file_format: FileFormat,
        counts: RuleCounts = NOTHING_WRONG,
        see_inputs: Callable[[Sequence[str]], object] | None = None,
    ) -> None:
        self.offset = 0
        types = file_format.column_types
        self._see_inputs = see_inputs
        self._of_inputs = (
            [file_format.source_of(checks.inputs.column)] if checks.inputs and see_inputs else []
        )
        named = map(file_format.source_of, checks.columns)
        self.first = tuple(dict.fromkeys((*named, *self._of_inputs)))
        self.is_split = checks.rows.max_wrong > 0
        self._format = file_format
        self._broken = defaultdict(int, counts.broken)
        self._examples = dict(counts.examples)
        self._names_of_wrong = dict.fromkeys(counts.names)
        self._wrong_rows = counts.wrong_rows
        fails = self.is_split and file_format.on_cast_error == "fail"
        self._columns = [
            _Column(
                name,
                file_format.source_of(name),
                checks.columns.get(name, ColumnChecks()),
                types.get(name),
                fails,
            )
            for name in dict.fromkeys((*checks.columns, *(types if fails else ())))
        ]
        if any(column.is_parsed for column in self._columns):
            require("pyarrow", "parquet", "checking columns that have a type")
        self._checked = self._columns[: len(checks.columns)]
        self._judged = [column for column in self._columns if column.has_rules]
        self._names = [column.source for column in self._judged]
        self._names += self._of_inputs
        self._known = known_columns(self._names, others_dropped=True)

    @property
    def counts(self) -> RuleCounts:
        """The counts of all rows so far, including rows of earlier attempts."""
        names = tuple(self._names_of_wrong)
        return RuleCounts(dict(self._broken), dict(self._examples), names, self._wrong_rows)

    def add(self, names: Sequence[str], columns: Sequence[Sequence[Any]], rows: int) -> None:
        """Inspect rows that are being written, see :class:`~.landing.formats.profile.Inspector`.

        With ``max_wrong``, :meth:`split` has already judged the rows, and only examples of empty values are
        kept here.
        """
        if not self.is_split and self._of_inputs and self._of_inputs[0] in names:
            self._look_at_inputs(columns[names.index(self._of_inputs[0])])
        for column in self._checked if rows else ():
            is_there = column.source in names
            if self.is_split and not column.counts_filled:
                continue
            values = columns[names.index(column.source)] if is_there else (UNSET,)
            texts = _texts(values)
            if column.counts_filled and not all(texts):
                empty = (value for value, text in zip(values, texts, strict=True) if not text)
                self._show(f"columns.{column.name}.filled", empty)
            for rule, wrong in () if self.is_split else column.broken(values, texts):
                self._note(rule, values, wrong if is_there else [*wrong] * rows)

    def split(self, rows: Rows) -> tuple[Rows, list[SingleRow]]:
        """Count the broken rules, and return the good and the wrong rows of a page, each in order."""
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
        """Return the rules that each wrong row breaks, by the index of the row in the batch."""
        broken: dict[int, list[str]] = defaultdict(list)
        unread, columns = self._decoded(batch)
        if self._of_inputs and len(unread) < len(batch):
            self._look_at_inputs(columns[-1])
        read: Sequence[int] = range(len(batch))
        if unread:
            read = sorted({*read} - {*unread})
        for column, values in zip(self._judged, columns, strict=False):
            for rule, wrong in column.broken(values, _texts(values)):
                self._note(rule, values, wrong)
                for index in wrong:
                    broken[read[index]].append(rule)
        for index in unread:
            # a row that cannot be judged does not count as good
            row = batch[index]
            is_taken = isinstance(self._format, JsonLines) and _is_object(row)
            if is_taken and self._format.columns is not None:
                is_taken = _goes_through(slices, row)
            if self._judged or not is_taken:
                broken[index].append(READABLE)
                self._note(READABLE, [bytes(row)[:_SHOWN_BYTES].decode(errors="replace")], [0])
        return broken

    def _look_at_inputs(self, values: Sequence[Any]) -> None:
        if self._see_inputs and any(value is not UNSET for value in values):
            self._see_inputs(_texts(values))

    def _decoded(self, batch: Rows) -> tuple[Sequence[int], Sequence[Column]]:
        """Return the indices of rows that are not objects or cannot be decoded, and the others' columns."""
        long = [index for index, row in enumerate(batch) if len(row) >= 2 * _FEW_BRACKETS]
        unread = [
            index for index in long if _may_be_unreadable(batch[index]) and not _is_readable(batch[index])
        ]
        try:
            return unread, self._columns_of(batch, unread)
        except UnreadableRow:
            # a row is not an object
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
        """Count the rows that break a rule, and keep examples of their values."""
        if wrong:
            self._broken[rule] += len(wrong)
            self._show(rule, (values[index] for index in wrong))

    def _show(self, rule: str, values: Iterable[Any]) -> None:
        """Keep examples of wrong values."""
        noted = self._examples.get(rule, ())
        # consecutive equal values are one example, such as the nulls of a column that no row has
        for value, _ in itertools.groupby(values):
            if len(noted) == _EXAMPLES:
                break
            if (example := Example(_shown(value), self.offset)) not in noted:
                noted = (*noted, example)
        self._examples[rule] = noted


class _Column:
    """The rules about the values of one column.

    :param source: the column of the rows that has its values.
    :param kind: the declared type; None if the column has none.
    :param fails: whether a value that does not fit the type is wrong.
    :ivar has_rules: whether the column has rules about values.
    :ivar is_parsed: whether one of these rules needs values parsed as the declared type.
    :ivar counts_filled: whether a check limits the share of rows that have a value.
    """

    def __init__(
        self, name: str, source: str, checks: ColumnChecks, kind: ColumnType | None, fails: bool
    ) -> None:
        self.name = name
        self.source = source
        self.counts_filled = checks.filled is not None or checks.filled_of_usual is not None
        by_row = msgspec.structs.replace(checks, filled=None, filled_of_usual=None)
        self._fits = kind if fails else None
        self.has_rules = self._fits is not None or by_row != ColumnChecks()
        self._checks = checks
        self._kind = kind
        self._matchers = None if checks.pattern is None else matchers(checks.pattern)
        self._bounds: dict[str, Callable[[float], bool]] = {}
        if checks.min is not None:
            self._bounds["min"] = checks.min.__le__
        if checks.max is not None:
            self._bounds["max"] = checks.max.__ge__
        self.is_parsed = self._fits is not None or bool(self._bounds and kind)
        self._allowed = None if checks.values is None else frozenset(checks.values)
        self._seen: set[int] = set()

    def broken(self, values: Sequence[Any], texts: Sequence[str]) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield each rule with the indices of the values that break it.

        :param texts: the texts of the values, see :func:`_texts`.
        """
        prefix = f"columns.{self.name}."
        filled: Sequence[int] = range(len(texts))
        if not all(texts):
            if self._checks.required:
                yield f"{prefix}required", [index for index in filled if not texts[index]]
            filled = [index for index in filled if texts[index]]
            texts = [texts[index] for index in filled]
        there = values if len(filled) == len(values) else [values[index] for index in filled]
        for check, wrong in self._broken_by_filled(there, texts):
            yield prefix + check, [filled[index] for index in wrong]
        if self._fits is not None:
            from airflow_provider_webcollect.landing.formats.values import MARK, as_texts, parse

            yield f"{prefix}type", parse(as_texts(values, MARK), self._fits)[1]

    def _broken_by_filled(
        self, values: Sequence[Any], texts: Sequence[str]
    ) -> Iterator[tuple[str, Sequence[int]]]:
        if self._matchers is not None:
            exact, quick = self._matchers
            encoded = list(map(str.encode, texts))
            yield "pattern", () if all(map(quick, encoded)) else _failing(exact, encoded)
        if self._bounds:
            numbers = _plain_numbers(texts) if self._kind is None else _typed_numbers(values, self._kind)
            for check, holds in self._bounds.items():
                yield check, _failing(holds, numbers)
        if self._allowed is not None:
            yield "values", _failing(self._allowed.__contains__, texts)
        if self._checks.unique:
            yield "unique", self._repeated(texts)

    def _repeated(self, texts: Sequence[str]) -> Sequence[int]:
        """Return the indices of texts that have occurred before, and remember the other texts."""
        repeated = []
        for index, text in enumerate(texts):
            # the hash takes eight bytes, the text may take many more; among a million texts, two have the
            # same hash in about one of forty million runs
            number = hash(text)
            if number in self._seen:
                repeated.append(index)
            elif len(self._seen) < MOST_COMPARED:
                self._seen.add(number)
        return repeated


def _failing(holds: Callable[[Any], Any], values: Sequence[Any]) -> Sequence[int]:
    """Return the indices of the values for which a condition does not hold."""
    if all(map(holds, values)):
        return ()
    return [index for index, value in enumerate(values) if not holds(value)]


def _texts(values: Sequence[Any]) -> Sequence[str]:
    """Return the text of each value: JSON if it is not a text; empty if the row has no value."""
    try:
        if not any(map(str.isspace, values)):
            return values
    except TypeError:
        # not all values are texts
        pass
    texts = [value if type(value) is str else _text(value) for value in values]
    return ["" if text.isspace() else text for text in texts]


def _text(value: Any) -> str:
    if value is None or value is UNSET or value == [] or value == {}:
        return ""
    return _encode(value).decode()


def _typed_numbers(values: Sequence[Any], kind: ColumnType) -> Sequence[float]:
    """Return values as numbers of a type, with NaN for values that do not fit."""
    from airflow_provider_webcollect.landing.formats.values import MARK, as_texts, parse

    numbers = parse(as_texts(values, MARK), kind)[0].to_pylist()
    return [math.nan if number is None else float(number) for number in numbers]


def _plain_numbers(texts: Sequence[str]) -> Sequence[float]:
    """Return texts as numbers, with NaN for texts that are not plain numbers."""
    if not "".join(texts).strip(_OF_NUMBERS):
        with suppress(ValueError):
            return list(map(float, texts))
    numbers = [math.nan] * len(texts)
    for index, text in enumerate(texts):
        # `float` would also accept `1_000`, `inf` and the digits of other scripts
        if not text.strip(_OF_NUMBERS):
            with suppress(ValueError):
                numbers[index] = float(text)
    return numbers


def _may_be_unreadable(row: msgspec.Raw) -> bool:
    text = bytes(row)
    return len(text) >= _FEW_BYTES or text.count(b"[") + text.count(b"{") >= _FEW_BRACKETS


def _is_readable(row: msgspec.Raw) -> bool:
    """Return whether a row is an object that Python can decode."""
    return _is_object(row) and _goes_through(decode_rows, row)


def _is_object(row: msgspec.Raw) -> bool:
    return bytes(row).lstrip().startswith(b"{")


def _goes_through(decode: Callable[[Rows], Iterable[Any]], row: msgspec.Raw) -> bool:
    """Return whether a row can be decoded, even with more calls on the stack than here."""
    deeper = b"".join([b'{"":', b"[" * _DEEPER, row, b"]" * _DEEPER, b"}"])
    with suppress(UnreadableRow):
        return bool(list(decode([msgspec.Raw(deeper)])))
    return False


def _shown(value: Any) -> str:
    """Return a site's value for a message; a text is in quotes, which are closed even if it is cut."""
    if value is UNSET:
        return "missing"
    if type(value) is not str:
        return escaped(_cut(_encode(value).decode()))
    more = "…" if len(value) > _SHOWN_CHARACTERS else ""
    return quoted(value[:_SHOWN_CHARACTERS]) + more


def _cut(text: str) -> str:
    """Return a text, cut if it is too long for a message."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def evaluate(
    checks: Checks,
    rows: int,
    profile: Profile,
    counts: RuleCounts,
    history: Sequence[Counts],
    before: Counts | None = None,
    source_of: Callable[[str], str] = str,
) -> tuple[CheckOutcome, ...]:
    """Return the outcome of each check. Without rows, only their number is checked.

    :param rows: the number of the run's rows, including those that broke rules about values.
    :param profile: the profile of the rows that would land; with ``max_wrong``, the rows that broke no rule.
    :param counts: the counts of broken rules, for all rows.
    :param history: the counts of earlier landings, the latest last.
    :param before: the counts of the run's rows that were checked earlier; checks of the number of rows and of
        shares include these rows. None for none.
    :param source_of: returns the column of the rows that has the texts of a column; by default the column
        itself.
    """
    recent = history[-MOST_USUAL:]
    before = before or Counts(rows=0, filled={})
    outcomes = [*_of_rows(checks.rows, before.rows + rows - counts.wrong_rows, recent)]
    if rows:
        outcomes += _of_wrong_rows(checks.rows, rows, counts)
        for name in checks.columns:
            outcomes += _of_column(name, source_of(name), checks, rows, profile, counts, recent, before)
        outcomes += _of_names(checks, {*profile.columns, *counts.names, *before.filled}, profile, recent)
    return tuple(outcomes)


def _outcome(
    check: str,
    passed: bool,
    expected: str,
    observed: str,
    examples: tuple[Example, ...] = (),
    otherwise: State = "failed",
) -> CheckOutcome:
    return CheckOutcome(
        check, "passed" if passed else otherwise, expected, observed, () if passed else examples
    )


def _exact(number: float) -> Fraction:
    """Return a declared number exactly as it was written, so that 0.55 times 100 is 55."""
    return Fraction(str(number))


def _of_rows(checks: RowChecks, rows: int, history: Sequence[Counts]) -> Iterator[CheckOutcome]:
    observed, past = "1 row" if rows == 1 else f"{rows:,} rows", [_exact(record.rows) for record in history]
    if checks.min is not None:
        yield _outcome("rows.min", rows >= checks.min, f"at least {checks.min:,}", observed)
    for name, multiple, words, holds in (
        ("min_of_usual", checks.min_of_usual, "at least", operator.ge),
        ("max_of_usual", checks.max_of_usual, "at most", operator.le),
    ):
        if multiple is not None:
            compared = f"{words} {multiple:g} times", _exact(multiple), holds, "{:,.12g}".format
            yield _beside_usual(f"rows.{name}", _exact(rows), observed, past, *compared)


def _beside_usual(
    check: str,
    value: Fraction,
    observed: str,
    past: Sequence[Fraction],
    words: str,
    multiple: Fraction,
    holds: Callable[[Any, Any], bool],
    show: Callable[[float], str],
    examples: tuple[Example, ...] = (),
) -> CheckOutcome:
    """Return the outcome of a comparison with a multiple of the median of earlier landings."""
    if (usual := usual_of(past)) is None:
        observed += f"; too few earlier landings: {len(past)}"
        return CheckOutcome(check, "skipped", f"{words} the usual", observed)
    listed = ", ".join(show(float(number)) for number in past)
    expected = f"{words} {show(float(usual))}, the median of the last landings ({listed})"
    return _outcome(check, holds(value, multiple * usual), expected, observed, examples)


def _of_wrong_rows(checks: RowChecks, rows: int, counts: RuleCounts) -> Iterator[CheckOutcome]:
    """Yield the outcomes for ``max_wrong``: the share of wrong rows, and why rows could not be written."""
    if not checks.max_wrong:
        return
    passed = counts.wrong_rows <= _exact(checks.max_wrong) * rows
    observed = f"{counts.wrong_rows:,} of {rows:,} rows break rules about values"
    yield _outcome("rows.max_wrong", passed, f"at most {checks.max_wrong * 100:g} % of the rows", observed)
    for rule, wrong in counts.broken.items():
        kind, _, rest = rule.partition(".")
        name, _, check = rest.rpartition(".")
        examples, observed = counts.examples.get(rule, ()), f"{wrong:,} of {rows:,} rows"
        if kind == "rows":
            observed += " cannot be read"
            yield CheckOutcome(rule, "warning", "each row can be read", observed, examples)
        elif check == "type":
            observed += " have a value of another type"
            expected = "each value fits the type of the column"
            yield CheckOutcome(_named(name, check), "warning", expected, observed, examples)


def _named(name: str, check: str) -> str:
    """Return the name of a column's check for a message, with a long column name cut."""
    return f"columns.{name[:_SHOWN_NAME]}.{check}"


def _of_column(
    name: str,
    source: str,
    checks: Checks,
    rows: int,
    profile: Profile,
    counts: RuleCounts,
    history: Sequence[Counts],
    before: Counts,
) -> Iterator[CheckOutcome]:
    """Yield the outcomes for a column.

    :param source: the column of the rows that has its texts.
    """
    column, held, judged = checks.columns[name], profile.columns.get(source), rows - profile.unread
    reasons = {"that break rules": counts.wrong_rows, "that cannot be decoded": profile.unread}
    without = "".join(f", without {count:,} {reason}" for reason, count in reasons.items() if count)
    if held is not None:
        empty = counts.examples.get(f"columns.{name}.filled", ())
        past = [
            # in a landing with too many columns to count, an uncounted column may have been filled
            Fraction(record.filled.get(source, 0), record.rows)
            for record in history
            if record.rows and (source in record.filled or not record.is_cut)
        ]
        filled = held.filled + before.filled.get(source, 0)
        known = judged - counts.wrong_rows + before.rows
        yield from _of_shares(name, column, filled, known, without, empty, past)
    elif not (column.required and judged) and source not in counts.names:
        yield _present(name, column, profile, judged - counts.wrong_rows, without)
    otherwise: State = "warning" if checks.rows.max_wrong else "failed"
    for check, expected, does in _value_rules(column) if judged else ():
        wrong, filled = counts.broken.get(f"columns.{name}.{check}", 0), held.filled if held else 0
        if held is None and not wrong and check != "required":
            continue
        of = f"the values in {judged:,} rows" if checks.rows.max_wrong else f"{filled:,} values"
        if check == "required":
            of = f"{judged:,} rows"
        elif check == "unique" and filled - wrong >= MOST_COMPARED:
            of = f"the first {MOST_COMPARED:,} values"
        examples = counts.examples.get(f"columns.{name}.{check}", ())
        observed = f"{wrong:,} of {of} {does}"
        yield _outcome(_named(name, check), not wrong, expected, observed, examples, otherwise)


def _present(name: str, column: ColumnChecks, profile: Profile, rows: int, without: str) -> CheckOutcome:
    """Return the outcome for a column that no row has.

    :param rows: the number of rows that would land and were decoded.
    :param without: a text for the outcome about the other rows.
    """
    check, expected = _named(name, "required" if column.required else "present"), "a column of this name"
    if not rows:
        return CheckOutcome(check, "skipped", expected, f"no row{without}")
    if profile.is_cut:
        why = f"only the first {MAX_COLUMNS} columns were counted"
        return CheckOutcome(check, "skipped", expected, why)
    return _outcome(check, False, expected, f"no row has it{without}")


def _of_shares(
    name: str,
    column: ColumnChecks,
    filled: int,
    rows: int,
    without: str,
    examples: tuple[Example, ...],
    past: Sequence[Fraction],
) -> Iterator[CheckOutcome]:
    """Yield the outcomes of checks of the share of the rows in which a column is filled.

    :param past: the shares of earlier landings.
    """
    share = Fraction(filled, rows)
    observed = f"filled in {percent(filled / rows)} of {rows:,} rows{without}"
    if (least := column.filled) is not None:
        expected = f"filled in at least {percent(least)} of the rows"
        yield _outcome(_named(name, "filled"), share >= _exact(least), expected, observed, examples)
    if (least := column.filled_of_usual) is not None:
        compared = f"filled in at least {least:g} times", _exact(least), operator.ge, percent
        yield _beside_usual(_named(name, "filled_of_usual"), share, observed, past, *compared, examples)


def _value_rules(column: ColumnChecks) -> Iterator[tuple[str, str, str]]:
    """Yield the rules about values, each with its name, its requirement and what wrong values or rows do."""
    if column.required:
        yield "required", "a value in each row", "have no value"
    if column.pattern is not None:
        yield "pattern", f"each value matches {_cut(column.pattern)}", "do not match"
    if column.min is not None:
        low = plain(column.min)
        yield "min", f"each value is a number of at least {low}", f"are below {low} or no number"
    if column.max is not None:
        high = plain(column.max)
        yield "max", f"each value is a number of at most {high}", f"are above {high} or no number"
    if column.values is not None:
        yield "values", f"each value is one of {_listed(column.values)}", "are not allowed"
    if column.unique:
        yield "unique", "no duplicates", "are duplicates"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name if _PLAIN.fullmatch(name) else _shown(name) for name in names[:_NAMED]) + more


def _of_names(
    checks: Checks, here: set[str], profile: Profile, history: Sequence[Counts]
) -> list[CheckOutcome]:
    """Return the outcomes of the checks for new and missing columns.

    :param here: the names of the columns that rows of the run have.
    """
    earlier = [set(record.filled) for record in history]
    ever = set[str]().union(*earlier)
    always = set.intersection(*earlier) if earlier else set()
    outcomes = []
    for name, level, names, expected in (
        ("new_columns", checks.new_columns, here - ever, "only columns that the last landings had"),
        ("missing_columns", checks.missing_columns, always - here, "the columns that all last landings had"),
    ):
        if level == "allow":
            continue
        if not earlier or profile.is_cut or any(record.is_cut for record in history):
            why = f"more than {MAX_COLUMNS} columns" if earlier else "no landing before this one"
            outcomes.append(CheckOutcome(name, "skipped", expected, why))
        elif not names:
            outcomes.append(CheckOutcome(name, "passed", expected, "no other"))
        else:
            state: State = "failed" if level == "fail" else "warning"
            outcomes.append(CheckOutcome(name, state, expected, _listed(sorted(names))))
    return outcomes
