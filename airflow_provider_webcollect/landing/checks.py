"""Checks of rows before they are committed: their declaration and their outcomes."""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.arguments import Flag, Range
from airflow_provider_webcollect.service.errors import InvalidArgument, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from fractions import Fraction

    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.formats.profile import Profile

D = TypeVar("D", bound=msgspec.Struct)
Level = Literal["allow", "warn", "fail"]
OnFailedChecks = Literal["fail", "warn", "quarantine"]
State = Literal["passed", "failed", "warning", "skipped"]
#: How many earlier landings decide what is usual, at most and at least.
MOST_USUAL, LEAST_USUAL = 10, 4
#: Maximum number of values that ``unique`` compares; more would use too much memory.
MOST_COMPARED = 1_000_000
#: The most names of columns, or allowed values, that an outcome lists.
_NAMED = 10
_SHOWN_CHARACTERS = 60
_SHOWN_NAME = 100
#: Types of columns that hold numbers begin with one of these.
_NUMERIC = ("int", "float", "decimal")
#: Names of columns that nobody takes for something else.
_PLAIN = re.compile(r"[\w.-]{1,60}")
_encode = msgspec.json.Encoder().encode


class Number(msgspec.Struct, frozen=True):
    """A finite number, also one in a text (a template): ``Annotated[float, Number(" 1 or more", low=1)]``.

    :ivar limits: in words.
    :ivar above: the number that it must be above; ``low`` and ``high`` are the least and the greatest.
    """

    limits: str = ""
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf

    def __call__(self, argument: str, value: object) -> float:
        number = math.nan
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            with contextlib.suppress(ValueError, OverflowError):
                number = float(value)
        if not (math.isfinite(number) and self.low <= number <= self.high and number > self.above):
            raise InvalidArgument(argument, value, f"it must be a number{self.limits}")
        return number


_SHARE = Number(" above 0, up to 1", high=1, above=0)


def _allowed(argument: str, values: object) -> tuple[str, ...]:
    """Return the texts of allowed values."""
    listed = arguments.items(argument, values)
    for index, value in enumerate(listed):
        # of what JSON has no number for, the text is null
        if not isinstance(value, str | int | float) or value in (math.inf, -math.inf) or value != value:
            raise InvalidArgument(f"{argument}[{index}]", value, "it must be a text, a number or a boolean")
        if isinstance(value, str):
            arguments.encodable(f"{argument}[{index}]", value)
        elif isinstance(value, int) and not isinstance(value, bool):
            arguments.integer(f"{argument}[{index}]", value)
    texts = (str.__str__(value) if isinstance(value, str) else _encode(value).decode() for value in listed)
    return tuple(dict.fromkeys(texts))


def _pattern(argument: str, pattern: object) -> str:
    import re2

    if not isinstance(pattern, str):
        raise InvalidArgument(argument, pattern, "it must be a regular expression")
    arguments.encodable(argument, pattern)
    try:
        matchers(pattern)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise InvalidArgument(
            argument, pattern, f"it is not a regular expression of RE2: {reason}"
        ) from error
    return pattern


def matchers(pattern: str) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    """Return two functions that match whole texts in UTF-8, in a time that grows with the text alone.

    :return: an exact one, and one that takes a third of the time, but may miss a match.
    """
    import re2

    options = re2.Options()
    # otherwise it writes errors to standard error
    options.log_errors = False
    exact = re2.compile(pattern.encode(), options).fullmatch
    quick = re2.Set.FullMatchSet(options)
    try:
        quick.Add(pattern.encode())
        quick.Compile()
    except re2.error:
        # it takes more memory than the expression alone
        return exact, exact
    return exact, quick.Match


class RowChecks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of the number of rows.

    :ivar min: the least number. Of these three, only rows count that break no rule about values, if there is
        ``max_wrong``.
    :ivar min_of_usual: the least multiple of what is usual; ``max_of_usual`` is the greatest.
    :ivar max_wrong: the largest share of the rows that may break rules about values, 0 to 1. Above 0, such
        rows are quarantined one by one, and the others land.
    """

    min: Annotated[int | None, Range(1)] = None
    min_of_usual: Annotated[float | None, _SHARE] = None
    max_of_usual: Annotated[float | None, Number(" 1 or more", low=1)] = None
    max_wrong: Annotated[float, Number(" from 0 to 1", low=0, high=1)] = 0.0


class ColumnChecks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of the values of a column.

    A value is there if it is not null, not blank text, and not an empty list or object. The first six are
    rules about values, which single rows break. All of them but ``required`` are about values that are there.

    :ivar required: each row has a value.
    :ivar pattern: a regular expression of RE2 that each value matches as a whole.
    :ivar min: each value is a number, also one in a text, and at least this one; ``max`` is the greatest.
        Numbers are compared as 64-bit floats.
    :ivar values: the allowed values, as texts; of a value that is no text, its JSON is compared.
    :ivar unique: no value is there twice; the first of two is right.
    :ivar filled: at least this share of the rows has a value, 0 to 1.
    :ivar filled_of_usual: the least multiple of the share that is usual.
    """

    required: Flag = False
    pattern: Annotated[str | None, _pattern] = None
    min: Annotated[float | None, Number()] = None
    max: Annotated[float | None, Number()] = None
    values: Annotated[tuple[str, ...] | None, _allowed] = None
    unique: Flag = False
    filled: Annotated[float | None, _SHARE] = None
    filled_of_usual: Annotated[float | None, _SHARE] = None


def _row_checks(argument: str, value: object) -> RowChecks:
    return _declared(argument, value, RowChecks)


def _columns_checks(argument: str, columns: object) -> dict[str, ColumnChecks]:
    if not isinstance(columns, Mapping):
        raise InvalidArgument(argument, columns, "it must be a dict of checks by column")
    made = {}
    for name, value in columns.items():
        if not isinstance(name, str):
            raise InvalidArgument(argument, name, "columns are named by strings")
        arguments.encodable(argument, name)
        column = made[name] = _declared(f"{argument}[{name!r}]", value, ColumnChecks)
        if column.min is not None and column.max is not None and column.min > column.max:
            rule = f"it must be at most `max`, {_plain(column.max)}"
            raise InvalidArgument(f"{argument}[{name!r}]['min']", value["min"], rule)
    return made


def _declared(argument: str, value: Any, kind: type[D]) -> D:
    """Return a dict as a declaration; a check of rows or of a column that is None is not declared."""
    names = kind.__struct_fields__
    if not isinstance(value, Mapping):
        raise InvalidArgument(argument, value, f"it must be a dict; its keys can be {', '.join(names)}")
    if unknown := [key for key in value if key not in names]:
        raise InvalidArgument(argument, unknown[0], f"its keys can be {', '.join(names)}")
    if kind is not Checks:
        value = {name: given for name, given in value.items() if given is not None}
    return arguments.parse_struct(kind, value, lambda name: f"{argument}[{name!r}]")


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of a run's rows, before they are committed.

    :ivar new_columns: what to do if rows have a column that earlier landings did not have.
    :ivar missing_columns: the same, if no row has a column that all earlier landings had.
    """

    rows: Annotated[RowChecks, _row_checks] = RowChecks()
    columns: Annotated[Mapping[str, ColumnChecks], _columns_checks] = {}
    new_columns: Level = "allow"
    missing_columns: Level = "allow"

    @property
    def is_resumable(self) -> bool:
        """Whether a retry may continue: which values there were before, for ``unique``, is not kept."""
        return not any(column.unique for column in self.columns.values())


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
    :ivar state: ``passed``; ``failed``; ``warning`` if it alone does not fail a landing; ``skipped`` if there
        is nothing to compare with.
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


class RuleCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many rows have broken each rule about values. The draft of a commit keeps it for a retry.

    :ivar broken: the number of these rows by the name of the rule: ``columns.price.pattern``.
    :ivar examples: some of the wrong values, at most three, by the name of the rule; of ``filled`` too.
    :ivar names: the columns that wrong rows have, about a thousand at most.
    :ivar wrong_rows: rows that have broken at least one rule; only :meth:`ValueRules.split` counts them.
    """

    broken: dict[str, int] = {}
    examples: dict[str, tuple[Example, ...]] = {}
    names: tuple[str, ...] = ()
    wrong_rows: int = 0


NOTHING_WRONG = RuleCounts()


def make_checks(checks: Any, file_format: FileFormat) -> Checks | None:
    """Return the checked declaration; None if there are no checks. Imports nothing heavy.

    :param checks: a dict with any of ``rows`` (``min``, ``min_of_usual``, ``max_of_usual``, ``max_wrong``),
        ``columns`` (for each name ``required``, ``pattern``, ``min``, ``max``, ``values``, ``unique``,
        ``filled``, ``filled_of_usual``), ``new_columns`` and ``missing_columns`` (``allow``, ``warn``,
        ``fail``).
    :param file_format: of the parts.
    :raises InvalidArgument: if a check is wrong, or does not go with the format.
    """
    if checks is None or checks == "":
        return None
    made = _declared("checks", checks, Checks)
    if file_format.columns is not None:
        if made.new_columns != "allow":
            rule = "with `columns` no other column lands, so that none can be new"
            raise InvalidArgument("checks['new_columns']", made.new_columns, rule)
        for name in made.columns:
            if name not in file_format.columns:
                raise InvalidArgument("checks['columns']", name, "it must be one of `columns`")
    types = getattr(file_format, "column_types", {})
    for name, column in made.columns.items():
        for check in ("min", "max"):
            kind = types.get(name)
            if getattr(column, check) is not None and kind and not kind.startswith(_NUMERIC):
                rule = f"column_types makes the column {kind}, which is not a number"
                given = checks["columns"][name][check]
                raise InvalidArgument(f"checks['columns'][{name!r}][{check!r}]", given, rule)
    return None if made == Checks() else made


class Counts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rows of an earlier landing, and the columns that they had.

    :ivar filled: by column, in how many of its rows it is filled; only columns that one of them has.
    :ivar is_cut: whether there were more columns, which are not counted.
    """

    rows: int
    filled: dict[str, int]
    is_cut: bool = False


def shown(value: str) -> str:
    """Return a text of a site in quotes, which are closed even if it is cut."""
    more = "…" if len(value) > _SHOWN_CHARACTERS else ""
    return quoted(value[:_SHOWN_CHARACTERS]) + more


def cut(text: str) -> str:
    """Return a text that is not too long for a message."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _plain(number: float) -> str:
    return str(number).removesuffix(".0")


def evaluate(
    checks: Checks,
    rows: int,
    profile: Profile,
    counts: RuleCounts,
    history: Sequence[Counts],
    rows_before: int = 0,
) -> tuple[CheckOutcome, ...]:
    """Return the outcome of each check. Without rows, only their number is checked.

    :param rows: of the run, also those that broke rules about values.
    :param profile: of the rows that would land: with ``max_wrong``, those that broke no rule.
    :param counts: of all rows.
    :param history: the landings before this one, the latest last.
    :param rows_before: rows of the run that were checked before: only their number counts.
    """
    recent = history[-MOST_USUAL:]
    outcomes = [*_of_rows(checks.rows, rows_before + rows - counts.wrong_rows, recent)]
    if rows:
        outcomes += _of_wrong_rows(checks.rows, rows, counts)
        for name in checks.columns:
            outcomes += _of_column(name, checks, rows, profile, counts, recent)
        outcomes += _of_names(checks, profile, counts, recent)
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
    """Return a declared number as it was written: 0.55 times 100 is 55."""
    # it takes long to import, and parsing a DAG does not need it
    from fractions import Fraction

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
    from statistics import median

    if len(past) < LEAST_USUAL:
        observed += f", and {len(past)} landings before this one"
        return CheckOutcome(check, "skipped", f"{words} the usual", observed)
    usual, listed = median(past), ", ".join(show(float(number)) for number in past)
    expected = f"{words} {show(float(usual))}, the median of the last landings ({listed})"
    return _outcome(check, holds(value, multiple * usual), expected, observed, examples)


def _of_wrong_rows(checks: RowChecks, rows: int, counts: RuleCounts) -> Iterator[CheckOutcome]:
    """Yield what ``max_wrong`` says of single rows: how many are wrong, and which could not be written."""
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
            observed += " have another value"
            expected = "each value fits the type of the column"
            yield CheckOutcome(_named(name, check), "warning", expected, observed, examples)


def _named(name: str, check: str) -> str:
    """Return the name of a check for a message, where names of columns are cut."""
    return f"columns.{name[:_SHOWN_NAME]}.{check}"


def _of_column(
    name: str, checks: Checks, rows: int, profile: Profile, counts: RuleCounts, history: Sequence[Counts]
) -> Iterator[CheckOutcome]:
    column, held, judged = checks.columns[name], profile.columns.get(name), rows - profile.unread
    reasons = {"that break rules": counts.wrong_rows, "that cannot be decoded": profile.unread}
    without = "".join(f", without {count:,} {reason}" for reason, count in reasons.items() if count)
    if held is not None:
        empty = counts.examples.get(f"columns.{name}.filled", ())
        yield from _of_shares(name, column, held.filled, judged - counts.wrong_rows, without, empty, history)
    elif not (column.required and judged) and name not in counts.names:
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

    :param rows: those that would land and were decoded; ``without`` names the others.
    """
    from airflow_provider_webcollect.landing.formats.profile import MAX_COLUMNS

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
    history: Sequence[Counts],
) -> Iterator[CheckOutcome]:
    """Yield what is found of the share of the rows in which a column is filled."""
    from fractions import Fraction

    from airflow_provider_webcollect.landing.formats.profile import percent

    share = Fraction(filled, rows)
    observed = f"filled in {percent(filled / rows)} of {rows:,} rows{without}"
    if (least := column.filled) is not None:
        expected = f"filled in at least {percent(least)} of the rows"
        yield _outcome(_named(name, "filled"), share >= _exact(least), expected, observed, examples)
    if (least := column.filled_of_usual) is not None:
        # in a landing of very many columns, it is not known whether a column was filled
        known = [past for past in history if past.rows and (name in past.filled or not past.is_cut)]
        shares = [Fraction(past.filled.get(name, 0), past.rows) for past in known]
        compared = f"filled in at least {least:g} times", _exact(least), operator.ge, percent
        yield _beside_usual(_named(name, "filled_of_usual"), share, observed, shares, *compared, examples)


def _value_rules(column: ColumnChecks) -> Iterator[tuple[str, str, str]]:
    """Yield the rules about values: the name, what is expected, and what wrong values or rows do."""
    if column.required:
        yield "required", "a value in each row", "have no value"
    if column.pattern is not None:
        yield "pattern", f"each value matches {cut(column.pattern)}", "do not match"
    if column.min is not None:
        low = _plain(column.min)
        yield "min", f"each value is a number of at least {low}", f"are below {low} or no number"
    if column.max is not None:
        high = _plain(column.max)
        yield "max", f"each value is a number of at most {high}", f"are above {high} or no number"
    if column.values is not None:
        yield "values", f"each value is one of {_listed(column.values)}", "are none of these"
    if column.unique:
        yield "unique", "no value twice", "were there before"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name if _PLAIN.fullmatch(name) else shown(name) for name in names[:_NAMED]) + more


def _of_names(
    checks: Checks, profile: Profile, counts: RuleCounts, history: Sequence[Counts]
) -> list[CheckOutcome]:
    from airflow_provider_webcollect.landing.formats.profile import MAX_COLUMNS

    earlier = [set(record.filled) for record in history]
    here, ever = {*profile.columns, *counts.names}, set().union(*earlier)
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
