"""Checks of arguments against the contract's limits, before anything is sent.

Each function returns the value in the form that is sent, or raises :class:`InvalidArgument` with the
argument, the value and the rule.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import pendulum

from airflow_provider_webcollect.service.errors import InvalidArgument

W = TypeVar("W", bound=StrEnum)

#: Bounds of the integers that every JSON reader accepts.
LOWEST, HIGHEST = -(2**63), 2**63 - 1
#: An integer in a text; with more characters it is beyond these bounds.
_INTEGER, _MOST_DIGITS = re.compile("-?[0-9]+"), 30


def text(argument: str, value: object) -> str:
    """Return ``value`` without white space around it, if it is a non-empty text.

    Templates easily add a line end. An integer (digits from a template) is accepted too.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(integer(argument, value))
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(argument, value, "it must be a non-empty string")
    return encodable(argument, value.strip())


def encodable(argument: str, value: str) -> str:
    """Return ``value`` if it can be encoded as UTF-8.

    The error shows only the character that cannot be, since the value may be a secret. Subclasses of ``str``
    (from templates or parsers), which encoders refuse, become plain texts.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        rule = f"it must be text without half a character, as there is at position {error.start}"
        bad = value[error.start]
    else:
        return str.__str__(value)
    raise InvalidArgument(argument, bad, rule)


def app_reference(argument: str, value: object) -> str:
    """Return ``value`` if it names a data app: by its id, or as ``namespace/app_name``.

    No part may be ``.`` or ``..``: even percent-encoded, these lead to another path.
    """
    reference = text(argument, value)
    parts = reference.split("/")
    if len(parts) > 2 or not {"", ".", ".."}.isdisjoint(parts):
        rule = "it must be the app's id, or namespace/app_name, with no part that is empty, . or .."
        raise InvalidArgument(argument, value, rule)
    return reference


def integer(argument: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Return ``value`` as an integer within the limits; digits in a text (a template) are accepted too."""
    number = value
    if isinstance(value, str):
        # `int` would also accept the digits of other scripts, and underscores between digits
        digits = value.strip() if _INTEGER.fullmatch(value.strip()) else ""
        number = (int(digits) if len(digits) < _MOST_DIGITS else HIGHEST + 1) if digits else None
    if isinstance(number, int) and not isinstance(number, bool):
        if (LOWEST if low is None else low) <= number <= (HIGHEST if high is None else high):
            return int(number)
        if not LOWEST <= number <= HIGHEST:
            low, high = (LOWEST if low is None else low), (HIGHEST if high is None else high)
    rule = "it must be an integer"
    if low is not None and high is not None:
        rule += f" from {low} to {high}"
    elif low is not None:
        rule += f" of {low} or more"
    raise InvalidArgument(argument, value, rule)


def items(
    argument: str, values: object, *, most: int | None = None, may_be_empty: bool = False
) -> Sequence[Any]:
    """Return ``values`` as a list; any iterable is accepted, except for a mapping or a text."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidArgument(argument, values, "it must be a list")
    listed = list(values)
    if not listed and not may_be_empty:
        raise InvalidArgument(argument, listed, "it must hold at least one entry")
    if most is not None and len(listed) > most:
        raise InvalidArgument(argument, listed, f"it must hold at most {most} entries, not {len(listed)}")
    return listed


def one_of(argument: str, value: object, choices: tuple[str, ...], where: str = "") -> None:
    """Refuse a value that is not one of the choices.

    :param where: appended to the rule, such as "for file_format='csv'".
    """
    if value not in choices:
        raise InvalidArgument(argument, value, f"it must be one of {', '.join(choices)}{where}")


def texts(argument: str, values: object, *, most: int | None = None, may_be_empty: bool = False) -> list[str]:
    """Return ``values`` as a list of non-empty texts."""
    listed = items(argument, values, most=most, may_be_empty=may_be_empty)
    return [text(f"{argument}[{index}]", item) for index, item in enumerate(listed)]


def integers(argument: str, values: object, *, may_be_empty: bool = False) -> list[int]:
    """Return ``values`` as a list of integers."""
    listed = items(argument, values, may_be_empty=may_be_empty)
    return [integer(f"{argument}[{index}]", item) for index, item in enumerate(listed)]


def loop_values(argument: str, values: object) -> list[str]:
    """Return ``values`` as a non-empty list of strings; an empty string is a legal loop value."""
    listed = items(argument, values)
    for index, item in enumerate(listed):
        if not isinstance(item, str):
            raise InvalidArgument(f"{argument}[{index}]", item, "it must be a string")
    return [encodable(f"{argument}[{index}]", item) for index, item in enumerate(listed)]


def word(argument: str, value: object, words: type[W]) -> str:
    """Return ``value`` in the spelling of ``words``, if it is one of them."""
    try:
        return str(words(str(value)))
    except ValueError:
        raise InvalidArgument(argument, value, f"it must be one of {', '.join(words)}") from None


def words(argument: str, values: object, enum: type[W], *, may_be_empty: bool = False) -> list[str]:
    """Return ``values`` as a list, if each of them is one of the known words."""
    listed = items(argument, values, may_be_empty=may_be_empty)
    return [word(f"{argument}[{index}]", item, enum) for index, item in enumerate(listed)]


def seconds(
    argument: str, value: object, *, may_be_zero: bool = False, may_be_timedelta: bool = False
) -> float:
    """Return ``value`` if it is a finite number of seconds.

    :param may_be_timedelta: accept a ``timedelta`` too.
    """
    if may_be_timedelta and isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < math.inf:
        number = float(value)
        if number or may_be_zero:
            return number
    kind = "a number of seconds or a timedelta" if may_be_timedelta else "a number of seconds"
    rule = f"it must be {kind}{', 0 or more' if may_be_zero else ' above 0'}"
    raise InvalidArgument(argument, value, rule)


def boolean(argument: str, value: object, *, may_be_text: bool = False) -> bool:
    """Return ``value`` if it is a boolean.

    :param may_be_text: accept the words in a text (a template) too, in any letter case.
    """
    if may_be_text and isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    if not isinstance(value, bool):
        raise InvalidArgument(argument, value, "it must be True or False")
    return value


def date(argument: str, value: object) -> datetime.date:
    """Return ``value``, a date or ``yyyy-MM-dd``, as a date; a time with a zone becomes its UTC day."""
    rule = "it must be a date, yyyy-MM-dd, in UTC"
    match value:
        case datetime.datetime():
            return value.astimezone(datetime.UTC).date() if value.tzinfo else value.date()
        case datetime.date():
            return value
        case str():
            try:
                return datetime.datetime.strptime(value, "%Y-%m-%d").date()
            except ValueError:
                raise InvalidArgument(argument, value, rule) from None
    raise InvalidArgument(argument, value, rule)


def date_range(start: object, end: object) -> tuple[str, str]:
    """Return an analytics range as ``yyyy-MM-dd`` texts (contract.md, endpoint 2: latest 3 months in UTC)."""
    first, last = date("start", start), date("end", end)
    today = pendulum.now("UTC").date()
    oldest = today.subtract(months=3)
    if last > today:
        raise InvalidArgument("end", end, f"it must not be after the current UTC date, {today}")
    if last < first:
        raise InvalidArgument("end", end, f"it must not be before `start`, {first}")
    if first < oldest:
        raise InvalidArgument("start", start, f"only the latest 3 months can be queried, from {oldest} on")
    return first.isoformat(), last.isoformat()
