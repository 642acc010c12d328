"""Checks of rows before they are committed: their declarations and outcomes.

Rows are judged in :mod:`~airflow_provider_webcollect.landing.rules`, which is imported only to land rows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from airflow_provider_webcollect.landing.formats import require
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.arguments import Flag, Range
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from airflow_provider_webcollect.landing.formats import FileFormat

D = TypeVar("D", bound=msgspec.Struct)
Level = Literal["allow", "warn", "fail"]
OnFailedChecks = Literal["fail", "warn", "quarantine"]
State = Literal["passed", "failed", "warning", "skipped"]
Match = Literal["text", "url"]
#: The name of the check of inputs.
INPUTS = "inputs"
N = TypeVar("N", float, "Fraction")
#: Maximum and minimum number of earlier landings from which the usual value is computed.
MOST_USUAL, LEAST_USUAL = 10, 4
_encode = msgspec.json.Encoder().encode


class Number(msgspec.Struct, frozen=True):
    """A finite number, or a text with one: ``Annotated[float, Number(" 1 or more", low=1)]``.

    :ivar limits: the limits as text, with a leading blank, for errors.
    :ivar low: the lowest allowed value; no limit by default.
    :ivar high: the highest allowed value; no limit by default.
    :ivar above: the number that the value must exceed; no limit by default.
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
        # JSON has no numbers for infinity and NaN, and writes null
        if not isinstance(value, str | int | float) or value in (math.inf, -math.inf) or value != value:
            raise InvalidArgument(f"{argument}[{index}]", value, "it must be a text, a number or a boolean")
        if isinstance(value, str):
            arguments.encodable(f"{argument}[{index}]", value)
        elif isinstance(value, int) and not isinstance(value, bool):
            arguments.integer(f"{argument}[{index}]", value)
    texts = (str.__str__(value) if isinstance(value, str) else _encode(value).decode() for value in listed)
    return tuple(dict.fromkeys(texts))


def _pattern(argument: str, pattern: object) -> str:
    require("re2", "patterns", argument)
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
    """Return two functions that match whole texts in UTF-8, in time linear in the length of the text.

    :return: an exact function, and one that takes a third of the time but may miss a match.
    """
    import re2

    options = re2.Options()
    # otherwise RE2 writes errors to standard error
    options.log_errors = False
    exact = re2.compile(pattern.encode(), options).fullmatch
    quick = re2.Set.FullMatchSet(options)
    try:
        quick.Add(pattern.encode())
        quick.Compile()
    except re2.error:
        # the set needs more memory than the expression alone, and exceeds the limit
        return exact, exact
    return exact, quick.Match


class RowChecks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of the number of rows.

    The usual number of rows is the median of the last ten landings by other runs. With fewer than four of
    them, checks that compare with it are skipped.

    :ivar min: the minimum number of rows. With ``max_wrong``, only rows that break no rule about values count
        for ``min``, ``min_of_usual`` and ``max_of_usual``.
    :ivar min_of_usual: the minimum multiple of the usual number; ``max_of_usual`` is the maximum.
    :ivar max_wrong: the maximum share of the rows that may break rules about values, 0 to 1; 0 by default.
        Above 0, such rows are quarantined one by one, and the others land.
    """

    min: Annotated[int | None, Range(1)] = None
    min_of_usual: Annotated[float | None, _SHARE] = None
    max_of_usual: Annotated[float | None, Number(" 1 or more", low=1)] = None
    max_wrong: Annotated[float, Number(" from 0 to 1", low=0, high=1)] = 0.0


class ColumnChecks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of the values of a column.

    A row has a value in the column unless it is null, blank text, or an empty list or object. ``required``,
    ``pattern``, ``min``, ``max``, ``values`` and ``unique`` are rules about values, which single rows can
    break. Except for ``required``, they apply only to values, as the service sent them.

    :ivar required: each row has a value.
    :ivar pattern: a `regular expression of RE2 <https://github.com/google/re2/wiki/Syntax>`__ that each value
        matches as a whole; for a value that is not a text, its JSON. It needs the extra ``patterns``, also
        where DAG files are parsed.
    :ivar min: each value is a number of at least ``min``; ``max`` is the maximum. A text counts as a number
        if it is written as one (``-1.5``, ``2e3``), or, in a column with a type, if it fits the type. Numbers
        are compared as 64-bit floats.
    :ivar values: the allowed values, as texts; a value that is not a text is compared by its JSON.
    :ivar unique: no value occurs twice in the run; of equal values, only the first is right. Only the first
        million different values are compared.
    :ivar filled: the minimum share of the rows that have a value, above 0, up to 1.
    :ivar filled_of_usual: the minimum multiple of the usual share, above 0, up to 1. The usual share is the
        median of the last ten landings by other runs; with fewer than four of them, the check is skipped.
    """

    required: Flag = False
    pattern: Annotated[str | None, _pattern] = None
    min: Annotated[float | None, Number()] = None
    max: Annotated[float | None, Number()] = None
    values: Annotated[tuple[str, ...] | None, _allowed] = None
    unique: Flag = False
    filled: Annotated[float | None, _SHARE] = None
    filled_of_usual: Annotated[float | None, _SHARE] = None


class InputChecks(msgspec.Struct, frozen=True, kw_only=True):
    """A check that each input of the task, such as a word or a URL of its loop, has a row.

    :ivar column: the column that has, in each row, the input for which the row was collected.
    :ivar missing: the maximum share of the inputs that may have no row, 0 to 1; 0 by default.
    :ivar action_id: the id of the loop; only needed if several loops of the task have a list.
    :ivar match: how inputs are compared. ``text`` (default) ignores letter case and blanks at the ends.
        ``url`` ignores blanks at the ends, the scheme and its usual port, the letter case of the host, a
        trailing slash, the fragment, the order of the query, and differences in percent-encoding.
    :ivar on_missing: ``fail`` (default); or ``warn``, with which missing inputs alone do not fail the
        landing, whatever ``on_failed_checks`` is.
    """

    column: Annotated[str, arguments.encodable]
    missing: Annotated[float, Number(" from 0 to 1", low=0, high=1)] = 0.0
    action_id: Annotated[str | None, arguments.text] = None
    match: Match = "text"
    on_missing: Literal["fail", "warn"] = "fail"


def _row_checks(argument: str, value: object) -> RowChecks:
    return _declared(argument, value, RowChecks)


def _input_checks(argument: str, value: Any) -> InputChecks:
    if isinstance(value, Mapping) and value.get("column") is None:
        rule = "it must be the column of the rows that has the inputs"
        raise InvalidArgument(f"{argument}['column']", None, rule)
    return _declared(argument, value, InputChecks)


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
            rule = f"it must be at most `max`, {plain(column.max)}"
            raise InvalidArgument(f"{argument}[{name!r}]['min']", value["min"], rule)
    return made


def _declared(argument: str, value: Any, kind: type[D]) -> D:
    """Return the declaration that a dict describes; checks that are None are left out."""
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

    :ivar new_columns: ``allow``, ``warn`` or ``fail`` if rows have a column that earlier landings did not
        have.
    :ivar missing_columns: ``allow``, ``warn`` or ``fail`` if no row has a column that all earlier landings
        had.
    :ivar inputs: whether each input of the task has a row; None for no such check.
    """

    rows: Annotated[RowChecks, _row_checks] = RowChecks()
    columns: Annotated[Mapping[str, ColumnChecks], _columns_checks] = {}
    new_columns: Level = "allow"
    missing_columns: Level = "allow"
    inputs: Annotated[InputChecks | None, _input_checks] = None

    @property
    def is_resumable(self) -> bool:
        """Whether a retry may continue: false if checks need the values that an earlier attempt has read."""
        return self.inputs is None and not any(column.unique for column in self.columns.values())


class Example(msgspec.Struct, frozen=True):
    """A value that fails a check.

    :ivar value: the value for messages: a text in quotes, other values as JSON, shortened if it is long.
    :ivar offset: the cursor of the page with the value; if an earlier attempt has read it, perhaps the cursor
        of the first of several pages, one of which has the value.
    """

    value: str
    offset: int

    def __str__(self) -> str:
        return f"{self.value} at offset {self.offset}"


class CheckOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one check.

    :ivar check: the name of the check: ``rows.min``, ``columns.price.filled``, ``missing_columns``.
    :ivar state: ``passed``; ``failed``; ``warning`` if the result alone does not fail a landing; ``skipped``
        if the check could not be made, for example because there is nothing to compare with.
    :ivar expected: the requirement as text; ``found`` is the finding as text.
    :ivar examples: some of the values that fail the check.
    """

    check: str
    state: State
    expected: str
    found: str
    examples: tuple[Example, ...] = ()

    @property
    def column(self) -> str | None:
        """The column that the check is about; None if it is about the rows or all columns."""
        kind, _, rest = self.check.partition(".")
        return rest.rpartition(".")[0] if kind == "columns" else None

    def __str__(self) -> str:
        examples = f" ({', '.join(map(str, self.examples))})" if self.examples else ""
        return f"{self.check}: {self.found}{examples}; expected: {self.expected}"


class RuleCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many rows have broken each rule about values; the draft of a commit keeps these counts for a retry.

    :ivar broken: the number of rows that break a rule, by the name of the rule: ``columns.price.pattern``.
    :ivar examples: at most three of the wrong values, by the name of the rule or of the check ``filled``.
    :ivar names: the names of the columns that wrong rows have, about a thousand at most.
    :ivar wrong_rows: the number of rows that break at least one rule; 0 unless ``max_wrong`` is above 0.
    """

    broken: dict[str, int] = {}
    examples: dict[str, tuple[Example, ...]] = {}
    names: tuple[str, ...] = ()
    wrong_rows: int = 0


NOTHING_WRONG = RuleCounts()


def make_checks(checks: Any, file_format: FileFormat) -> Checks | None:
    """Return the parsed declaration, without importing anything heavy; None if there are no checks.

    :param checks: a dict with any of ``rows`` (``min``, ``min_of_usual``, ``max_of_usual``, ``max_wrong``),
        ``columns`` (for each name ``required``, ``pattern``, ``min``, ``max``, ``values``, ``unique``,
        ``filled``, ``filled_of_usual``), ``new_columns`` and ``missing_columns`` (``allow``, ``warn``,
        ``fail``), and ``inputs`` (``column``, ``missing``, ``action_id``, ``match``, ``on_missing``).
    :param file_format: the format of the parts.
    :raises InvalidArgument: if a check is wrong, or does not apply to the format.
    :raises ExtraMissing: if there is a pattern, and RE2 (the extra ``patterns``) is not installed.
    """
    if checks is None or checks == "":
        return None
    made = _declared("checks", checks, Checks)
    if file_format.columns is not None:
        if made.new_columns != "allow":
            rule = "it must be 'allow', since no column can be new where `columns` are set"
            raise InvalidArgument("checks['new_columns']", made.new_columns, rule)
        named = [("checks['columns']", name) for name in made.columns]
        if made.inputs:
            named.append(("checks['inputs']['column']", made.inputs.column))
        for argument, name in named:
            if file_format.source_of(name) not in file_format.columns:
                raise InvalidArgument(argument, name, "it must be one of `columns`")
    for name, column in made.columns.items():
        for check in ("min", "max"):
            kind = file_format.column_types.get(name)
            if getattr(column, check) is not None and kind and not kind.is_number:
                rule = f"column_types makes the column {kind.type}, which is not a number"
                given = checks["columns"][name][check]
                raise InvalidArgument(f"checks['columns'][{name!r}][{check!r}]", given, rule)
    return None if made == Checks() else made


class Counts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rows of an earlier landing, and the columns that they had.

    :ivar rows: the number of rows.
    :ivar filled: the number of rows in which a column is filled, by column; only columns that a row has.
    :ivar is_cut: whether the rows had further columns, which are not counted.
    """

    rows: int
    filled: dict[str, int]
    is_cut: bool = False


def plain(number: float) -> str:
    """Return a declared number as text, without ``.0`` for a whole number."""
    return str(number).removesuffix(".0")


def usual_of(past: Sequence[N]) -> N | None:
    """Return the median of the last numbers; None if there are too few for a usual value."""
    # the module takes long to import, and parsing a DAG does not need it
    from statistics import median

    recent = past[-MOST_USUAL:]
    return median(recent) if len(recent) >= LEAST_USUAL else None
