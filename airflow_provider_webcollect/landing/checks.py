"""Checks of rows before they are committed: their declaration, the counts they need, their outcomes."""

from __future__ import annotations

import contextlib
import operator
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from msgspec import UNSET

from airflow_provider_webcollect.landing.formats import STRING
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument, escaped, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.profile import Profile

Level = Literal["allow", "warn", "fail"]
OnFailedChecks = Literal["fail", "warn", "quarantine"]
State = Literal["passed", "failed", "warning", "skipped"]
#: How many earlier landings decide what is usual, at most and at least.
MOST_USUAL, LEAST_USUAL = 10, 4
#: How many values of a column ``unique`` compares: beyond these it would take too much memory.
MOST_COMPARED = 1_000_000
_EXAMPLES = 3
#: The most names of columns that an outcome lists.
_NAMED = 10
_SHOWN_CHARACTERS = 60
_SHOWN_NAME = 100
#: Names of columns that nobody takes for something else.
_PLAIN = re.compile(r"[\w.-]{1,60}")
_encode = msgspec.json.Encoder().encode


class RowChecks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of the number of rows.

    :ivar min: the least number.
    :ivar min_of_usual: the least multiple of what is usual; ``max_of_usual`` is the greatest.
    """

    min: int | None = None
    min_of_usual: float | None = None
    max_of_usual: float | None = None


class ColumnChecks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of the values of a column.

    :ivar filled: at least this share of the rows has a value that is not null and not blank, 0 to 1.
    :ivar pattern: a regular expression of RE2 that each such value matches as a whole.
    :ivar unique: no such value is there twice.
    """

    filled: float | None = None
    pattern: str | None = None
    unique: bool = False


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of a run's rows, before they are committed.

    :ivar new_columns: what to do if rows have a column that earlier landings did not have.
    :ivar missing_columns: the same, if no row has a column that all earlier landings had.
    """

    rows: RowChecks = RowChecks()
    columns: Mapping[str, ColumnChecks] = {}
    new_columns: Level = "allow"
    missing_columns: Level = "allow"


class Example(msgspec.Struct, frozen=True):
    """A value that fails a check.

    :ivar offset: the cursor of the page that has it; if an earlier attempt has read it, maybe that of the
        first of several pages.
    """

    value: str
    offset: int

    def __str__(self) -> str:
        return f"{self.value} at offset {self.offset}"


class CheckOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one check.

    :ivar check: its name: ``rows.min``, ``columns.price.filled``, ``missing_columns``.
    :ivar state: ``passed``; ``failed``; ``warning`` if it may not fail a landing; ``skipped`` if there is
        nothing to compare with.
    :ivar expected: what was asked for, in words; ``found`` likewise.
    :ivar examples: some of the values that fail it.
    """

    check: str
    state: State
    expected: str
    found: str
    examples: tuple[Example, ...] = ()

    @property
    def column(self) -> str | None:
        """The column that it is about; None if it is about the rows or all columns."""
        kind, _, rest = self.check.partition(".")
        return rest.rpartition(".")[0] if kind == "columns" else None

    def __str__(self) -> str:
        examples = f" ({', '.join(map(str, self.examples))})" if self.examples else ""
        return f"{self.check}: {self.found}{examples}; expected: {self.expected}"


def make_checks(checks: object, file_format: FileFormat) -> Checks | None:
    """Return the checked declaration; None if there are no checks. Imports nothing heavy.

    :param checks: a dict with any of ``rows`` (``min``, ``min_of_usual``, ``max_of_usual``), ``columns`` (for
        each name ``filled``, ``pattern``, ``unique``), ``new_columns`` and ``missing_columns`` (``allow``,
        ``warn``, ``fail``).
    :param file_format: of the parts.
    :raises InvalidArgument: if a check is wrong, or does not go with the format.
    """
    if checks is None or checks == "":
        return None
    declared = _keys("checks", checks, Checks)
    for name in ("new_columns", "missing_columns"):
        validation.one_of(f"checks[{name!r}]", declared.get(name, "allow"), get_args(Level))
    if file_format.columns is not None and declared.get("new_columns", "allow") != "allow":
        rule = "with `columns` no other column lands, so that none can be new"
        raise InvalidArgument("checks['new_columns']", declared["new_columns"], rule)
    columns = declared.get("columns", {})
    if not isinstance(columns, Mapping):
        raise InvalidArgument("checks['columns']", columns, "it must be a dict of checks by column")
    made = Checks(
        rows=_row_checks(declared.get("rows", {})),
        columns={name: _column_checks(name, column, file_format) for name, column in columns.items()},
        new_columns=declared.get("new_columns", "allow"),
        missing_columns=declared.get("missing_columns", "allow"),
    )
    return None if made == Checks() else made


def _keys(argument: str, value: object, kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return a dict whose keys are fields of a declaration."""
    names = kind.__struct_fields__
    if not isinstance(value, Mapping):
        raise InvalidArgument(argument, value, f"it must be a dict; its keys can be {', '.join(names)}")
    if unknown := [key for key in value if key not in names]:
        raise InvalidArgument(argument, unknown[0], f"its keys can be {', '.join(names)}")
    return value


def _row_checks(value: object) -> RowChecks:
    declared = _keys("checks['rows']", value, RowChecks)
    least, most = (
        _number(f"checks['rows'][{name!r}]", declared.get(name), low, high)
        for name, low, high in (("min_of_usual", 0.0, 1.0), ("max_of_usual", 1.0, None))
    )
    rows = declared.get("min")
    return RowChecks(
        min=None if rows is None else validation.integer("checks['rows']['min']", rows, 1),
        min_of_usual=least,
        max_of_usual=most,
    )


def _column_checks(name: object, value: object, file_format: FileFormat) -> ColumnChecks:
    argument = f"checks['columns'][{name!r}]"
    if not isinstance(name, str):
        raise InvalidArgument("checks['columns']", name, "columns are named by strings")
    validation.encodable("checks['columns']", name)
    if file_format.columns is not None and name not in file_format.columns:
        raise InvalidArgument("checks['columns']", name, "it must be one of `columns`")
    declared = _keys(argument, value, ColumnChecks)
    kind = getattr(file_format, "column_types", {}).get(name, STRING)
    checks = ColumnChecks(
        filled=_number(f"{argument}['filled']", declared.get("filled"), 0.0, 1.0),
        pattern=_pattern(f"{argument}['pattern']", declared.get("pattern")),
        unique=validation.boolean(f"{argument}['unique']", declared.get("unique", False), may_be_text=True),
    )
    for check in ("pattern", "unique"):
        if getattr(checks, check) and kind != STRING:
            # a part that is read back after an interruption has other texts for the same values
            rule = f"column_types makes it {kind}, and this is a check of texts"
            raise InvalidArgument(f"{argument}[{check!r}]", declared[check], rule)
    return checks


def _pattern(argument: str, pattern: object) -> str | None:
    if pattern is None:
        return None
    import re2

    if not isinstance(pattern, str):
        raise InvalidArgument(argument, pattern, "it must be a regular expression")
    validation.encodable(argument, pattern)
    try:
        _matcher(pattern)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise InvalidArgument(
            argument, pattern, f"it is not a regular expression of RE2: {reason}"
        ) from error
    return pattern


def _matcher(pattern: str) -> Callable[[str], Any]:
    """Return a function that matches whole texts, in a time that grows with the text alone."""
    import re2

    options = re2.Options()
    # otherwise it writes errors to standard error
    options.log_errors = False
    # of texts it would also count the characters
    matches = re2.compile(pattern.encode(), options).fullmatch
    return lambda text: matches(text.encode())


def _number(argument: str, value: object, low: float, high: float | None) -> float | None:
    """Return a number above 0 within the limits; one in a text (a template) is accepted too."""
    if value is None:
        return None
    number = 0.0
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
    limits = f"{low:g} or more" if high is None else f"above {low:g}, up to {high:g}"
    if not number or not low <= number <= (sys.float_info.max if high is None else high):
        raise InvalidArgument(argument, value, f"it must be a number {limits}")
    return number


class Counts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rows of an earlier landing, and the columns that they had.

    :ivar filled: by column, in how many of its rows it is filled; only columns that one of them has.
    :ivar is_cut: whether there were more columns, which are not counted.
    """

    rows: int
    filled: dict[str, int]
    is_cut: bool = False


class ValueCounter:
    """Counts the values that fail the checks of columns, while rows are written.

    :param checks: what is checked.
    :ivar offset: the cursor with which the rows are read that come next.
    """

    def __init__(self, checks: Checks) -> None:
        self.offset = 0
        self.columns = {name: _Values(column_checks) for name, column_checks in checks.columns.items()}

    @property
    def first(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.columns)

    @property
    def needs_values(self) -> bool:
        """Whether checks need more than the profile of rows."""
        return any(column.checks.pattern or column.checks.unique for column in self.columns.values())

    def add(self, names: Sequence[str], columns: Sequence[Sequence[Any]], rows: int) -> None:
        """Count rows, see :class:`~.landing.profile.Inspector`."""
        for name, values in self.columns.items():
            if name in names:
                values.add(columns[names.index(name)], self.offset)
            elif rows:
                values.note("filled", UNSET, self.offset)


class _Values:
    """The values of one column.

    :ivar wrong: how many fail each check, and ``examples`` the first of them.
    """

    def __init__(self, checks: ColumnChecks) -> None:
        self.checks = checks
        self.wrong: Counter[str] = Counter()
        self.examples: dict[str, tuple[Example, ...]] = {}
        self.seen: set[int] = set()
        self._matches = _matcher(checks.pattern) if checks.pattern else None

    def add(self, values: Sequence[Any], offset: int) -> None:
        for value in values:
            text = value if type(value) is str else _text(value)
            if not text or text.isspace():
                self.note("filled", value, offset)
                continue
            if self._matches and not self._matches(text):
                self.note("pattern", value, offset)
            if self.checks.unique:
                self._compare(text, offset)

    def note(self, check: str, value: Any, offset: int) -> None:
        """Count a value that fails a check."""
        self.wrong[check] += 1
        noted = self.examples.get(check, ())
        if len(noted) < _EXAMPLES and (example := Example(_shown(value), offset)) not in noted:
            self.examples[check] = (*noted, example)

    def _compare(self, text: str, offset: int) -> None:
        # eight bytes instead of the text; two texts of a million share a number once in forty million runs
        number = hash(text)
        if number in self.seen:
            self.note("unique", text, offset)
        elif len(self.seen) < MOST_COMPARED:
            self.seen.add(number)


def _text(value: Any) -> str:
    """Return a value that is no text as JSON; empty for one that does not fill a column."""
    if value is None or value is UNSET or value == [] or value == {}:
        return ""
    return _encode(value).decode()


def _shown(value: Any) -> str:
    if value is UNSET:
        return "missing"
    return _quoted(value) if type(value) is str else escaped(_cut(_encode(value).decode()))


def _quoted(text: str) -> str:
    """Return a text of a site in quotes, which are closed even if it is cut."""
    more = "…" if len(text) > _SHOWN_CHARACTERS else ""
    return quoted(text[:_SHOWN_CHARACTERS]) + more


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def evaluate(
    checks: Checks,
    rows: int,
    profile: Profile,
    values: ValueCounter,
    history: Sequence[Counts],
    rows_before: int = 0,
) -> tuple[CheckOutcome, ...]:
    """Return the outcome of each check. Without rows, only their number is checked.

    :param rows: of the run.
    :param profile: of these rows.
    :param values: of these rows.
    :param history: the landings before this one, the latest last.
    :param rows_before: rows of the run that were checked before: only their number counts.
    """
    outcomes = [*_of_rows(checks.rows, rows_before + rows, history[-MOST_USUAL:])]
    if rows:
        for name, counted in values.columns.items():
            outcomes += _of_column(name, rows - profile.unread, profile, counted)
        outcomes += _of_names(checks, profile, history[-MOST_USUAL:])
    return tuple(outcomes)


def _outcome(
    check: str, passed: bool, expected: str, observed: str, examples: tuple[Example, ...] = ()
) -> CheckOutcome:
    state: State = "passed" if passed else "failed"
    return CheckOutcome(check, state, expected, observed, () if passed else examples)


def _of_rows(checks: RowChecks, rows: int, history: Sequence[Counts]) -> list[CheckOutcome]:
    observed, outcomes = "1 row" if rows == 1 else f"{rows:,} rows", []
    if checks.min is not None:
        outcomes.append(_outcome("rows.min", rows >= checks.min, f"at least {checks.min:,}", observed))
    # both take long to import, and parsing a DAG needs neither
    from fractions import Fraction
    from statistics import median

    counts = [record.rows for record in history]
    usual = median(counts or [0])
    for name, share, words, holds in (
        ("min_of_usual", checks.min_of_usual, "at least", operator.ge),
        ("max_of_usual", checks.max_of_usual, "at most", operator.le),
    ):
        if share is None:
            continue
        if len(counts) < LEAST_USUAL:
            too_few = f"{observed}, and {len(counts)} landings before this one"
            expected = f"{words} {share:g} times as many as usual"
            outcomes.append(CheckOutcome(f"rows.{name}", "skipped", expected, too_few))
            continue
        listed = ", ".join(f"{count:,}" for count in counts)
        expected = f"{words} {share:g} times {usual:,g}, the median of the last landings ({listed})"
        # exact: 0.55 times 100 is 55
        bound = Fraction(str(share)) * Fraction(usual)
        outcomes.append(_outcome(f"rows.{name}", holds(rows, bound), expected, observed))
    return outcomes


def _of_column(name: str, rows: int, profile: Profile, values: _Values) -> list[CheckOutcome]:
    from airflow_provider_webcollect.landing.profile import MAX_COLUMNS, percent

    checks, counts = values.checks, profile.columns.get(name)
    unread = f", without {profile.unread:,} that cannot be decoded" if profile.unread else ""
    outcomes: list[CheckOutcome] = []

    def add(check: str, passed: bool, expected: str, observed: str) -> None:
        examples = values.examples.get(check, ())
        outcomes.append(
            _outcome(f"columns.{name[:_SHOWN_NAME]}.{check}", passed, expected, observed, examples)
        )

    if counts is None:
        expected = "a column of this name"
        if profile.is_cut or not rows:
            why = f"only the first {MAX_COLUMNS} columns were counted" if rows else f"no row{unread}"
            return [CheckOutcome(f"columns.{name[:_SHOWN_NAME]}.present", "skipped", expected, why)]
        add("present", False, expected, f"no row has it{unread}")
        return outcomes
    if checks.filled is not None:
        share = counts.filled / rows
        observed = f"filled in {percent(share)} of {rows:,} rows{unread}"
        expected = f"filled in at least {percent(checks.filled)} of the rows"
        add("filled", share >= checks.filled, expected, observed)
    if checks.pattern is not None:
        wrong = values.wrong["pattern"]
        observed = f"{wrong:,} of {counts.filled:,} values do not match"
        add("pattern", not wrong, f"each value matches {_cut(checks.pattern)}", observed)
    if checks.unique:
        wrong = values.wrong["unique"]
        of = f"the first {MOST_COMPARED:,}" if len(values.seen) >= MOST_COMPARED else f"{counts.filled:,}"
        add("unique", not wrong, "no value twice", f"{wrong:,} of {of} values were there before")
    return outcomes


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name if _PLAIN.fullmatch(name) else _quoted(name) for name in names[:_NAMED]) + more


def _of_names(checks: Checks, profile: Profile, history: Sequence[Counts]) -> list[CheckOutcome]:
    from airflow_provider_webcollect.landing.profile import MAX_COLUMNS

    earlier = [set(record.filled) for record in history]
    here, ever = set(profile.columns), set().union(*earlier)
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
