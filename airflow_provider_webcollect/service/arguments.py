"""Parsing of arguments by their annotations, before anything is sent, with one place for each rule.

An annotation has the rule for a value, and its description for the command line and the documentation::

    page_size: Annotated[int, Range(1, 1000), "rows per request"] = 1000
    task_ids: Annotated[Sequence[str], Length(most=100), "the service's tasks"]
    mode: Literal["full", "incremental"] | None = None

The parser of an annotation is the first callable in its ``Annotated``; without one, the type determines the
parser (:func:`parser_of`). A parser takes the argument's name and its value. It returns the value in the form
that is used, or raises :class:`InvalidArgument` with the argument, its place, the value and the rule.
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from airflow_provider_webcollect.service.errors import InvalidArgument

S = TypeVar("S", bound=msgspec.Struct)
#: A function that takes an argument's name and its value, and returns the value in the form that is used.
Parser: TypeAlias = Callable[[str, Any], Any]

#: Bounds of the integers that every JSON parser accepts.
LOWEST, HIGHEST = -(2**63), 2**63 - 1
#: An integer in a string, and the number of characters from which on it exceeds these bounds.
_INTEGER, _MOST_DIGITS = re.compile("-?[0-9]+"), 30


class Range(msgspec.Struct, frozen=True):
    """The limits of an integer: ``Annotated[int, Range(1, 1000)]``."""

    low: int | None = None
    high: int | None = None

    def __call__(self, argument: str, value: object) -> int:
        return integer(argument, value, self.low, self.high)


class Seconds(msgspec.Struct, frozen=True):
    """A number of seconds: ``Annotated[float, Seconds(may_be_zero=True)]``; see :func:`seconds`."""

    may_be_zero: bool = False
    may_be_timedelta: bool = False

    def __call__(self, argument: str, value: object) -> float:
        return seconds(argument, value, may_be_zero=self.may_be_zero, may_be_timedelta=self.may_be_timedelta)


class Word(msgspec.Struct, frozen=True):
    """A word in any spelling that the enumeration accepts: ``Annotated[str, Word(LoopType)]``."""

    words: type[StrEnum]

    def __call__(self, argument: str, value: object) -> str:
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return str(self.words(value))
        raise InvalidArgument(argument, value, f"it must be one of {', '.join(self.words)}")


class Length(msgspec.Struct, frozen=True):
    """The number of entries of a list: ``Annotated[Sequence[str], Length(most=100)]``."""

    most: int | None = None
    may_be_empty: bool = False


def parse(argument: str, annotation: Any, value: object) -> Any:
    """Return a value in the form that the annotation of its argument asks for.

    :param argument: the argument's name, and the place in it, for the error.
    :raises InvalidArgument: if the value breaks the annotation's rule.
    """
    return parser_of(annotation)(argument, value)


def parse_call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, parsed by the annotations of ``function``; without defaults.

    :raises InvalidArgument: if an argument breaks a rule.
    :raises TypeError: if the function does not take these arguments.
    """
    try:
        given, parsers = _signature(function).bind(*args, **kwargs).arguments, _parsers(function)
    except TypeError as error:
        raise TypeError(f"{function.__qualname__}() {error}") from None
    return {name: parsers[name](name, value) for name, value in given.items()}


def parse_struct(kind: type[S], values: Mapping[str, Any], where: Callable[[str], str] = str) -> S:
    """Return a struct of values that are parsed by the annotations of its fields; defaults are not parsed.

    :param where: returns the name of a field for errors, such as ``"checks['rows'][{!r}]".format``.
    :raises InvalidArgument: if a value breaks a rule, or there is no such field.
    :raises TypeError: if the value of a field without a default is missing.
    """
    parsers = _parsers(kind)
    for name, value in values.items():
        if name not in parsers:
            raise InvalidArgument(
                where(name), value, f"there is no such option; the options are {', '.join(parsers)}"
            )
    return kind(**{name: parsers[name](where(name), value) for name, value in values.items()})


@contextlib.contextmanager
def inside(place: str) -> Iterator[None]:
    """Return a context manager that adds the place of the argument to its errors.

    :param place: the place, such as ``sources[2]``; empty to leave errors unchanged.
    """
    try:
        yield
    except InvalidArgument as error:
        if not place:
            raise
        argument = f"{place}: {error.argument}"
        raise InvalidArgument(argument, None, error.rule, as_text=error.value) from error


class Argument(msgspec.Struct, frozen=True):
    """The declaration of an argument, for the command line and the documentation.

    :ivar kind: the type of the argument's value, or of each of its values if it is a list.
    :ivar choices: the words that are accepted; empty if the argument is not a choice of words.
    :ivar limits: the limits of the value or of the number of values, such as ``1 to 1000``; empty for none.
    :ivar default: the default; ``inspect.Parameter.empty`` if the argument is required.
    :ivar help: the description in the annotation, after the parser.
    """

    kind: Any
    choices: tuple[str, ...]
    limits: str
    is_list: bool
    default: Any
    help: str


@cache
def declared(declaration: Any) -> dict[str, Argument]:
    """Return the declarations of arguments, by name, from a function's signature or a struct's fields."""
    hints = get_type_hints(declaration, include_extras=True)
    arguments = {}
    for name, parameter in _signature(declaration).parameters.items():
        kind, notes, _ = _unfolded(hints[name])
        is_list = get_origin(kind) in _LISTS
        if is_list:
            kind, of_each, _ = _unfolded(get_args(kind)[0])
            notes += of_each
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        limits = help_text = ""
        for note in notes:
            match note:
                case Word(words):
                    choices = tuple(map(str, words))
                case Range(low, high):
                    limits = f"{low} to {high}" if high is not None else f"{low} or more"
                case Seconds(may_be_zero):
                    limits = "0 or more" if may_be_zero else "above 0"
                case Length(int(most)):
                    limits = f"at most {most}"
                case str():
                    help_text = note
        arguments[name] = Argument(kind, choices, limits, is_list, parameter.default, help_text)
    return arguments


_signature = cache(inspect.signature)
_LISTS = (list, Sequence, Iterable)


@cache
def _parsers(declaration: Any) -> dict[str, Parser]:
    """Return the parsers of a function's parameters or a struct's fields, by name."""
    hints = get_type_hints(declaration, include_extras=True)
    hints.pop("return", None)
    return {name: parser_of(annotation) for name, annotation in hints.items()}


def _unfolded(annotation: Any) -> tuple[Any, list[Any], bool]:
    """Return the type of an annotation, the notes of its ``Annotated``, and whether it can be None."""
    if get_origin(annotation) is Annotated:
        kind, notes, may_be_none = _unfolded(annotation.__origin__)
        return kind, [*annotation.__metadata__, *notes], may_be_none
    if get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation):
        kind, notes, _ = _unfolded(next(one for one in get_args(annotation) if one is not NoneType))
        return kind, notes, True
    return annotation, [], False


@cache
def parser_of(annotation: Any) -> Parser:
    """Return the function that parses the values of an annotation.

    It is the first callable in an ``Annotated``. Without one, the type decides: ``str`` accepts a non-empty
    string, ``int`` an integer, ``bool`` a boolean, ``datetime.date`` a date, a ``Literal`` one of its values,
    a ``list`` or ``Sequence`` a list whose entries are parsed by their type, and a struct a dict with its
    fields. With ``| None``, None is also accepted.

    :raises TypeError: if the annotation does not say which values are valid.
    """
    kind, notes, may_be_none = _unfolded(annotation)
    length = next((note for note in notes if isinstance(note, Length)), Length())
    parser = next(filter(callable, notes), None) or _of_type(kind, length)
    if not may_be_none:
        return parser
    return lambda argument, value: None if value is None else parser(argument, value)


def _of_type(kind: Any, length: Length) -> Parser:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return partial(one_of, choices=args)
    if origin in _LISTS:
        each = parser_of(args[0])
        return partial(items, each=each, most=length.most, may_be_empty=length.may_be_empty)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return partial(_entry, kind=kind)
    by_type: dict[Any, Parser] = {str: text, int: integer, bool: boolean, datetime.date: date}
    if kind not in by_type:
        raise TypeError(f"{kind} does not say which values are right")
    return by_type[kind]


def as_given(argument: str, value: Any) -> Any:
    """Return ``value`` unchecked, for an argument whose rule depends on other arguments."""
    return value


def _entry(argument: str, value: object, kind: type[S]) -> S:
    """Return a dict as a struct, if its keys are fields of the struct, with all the required ones."""
    parameters = _signature(kind).parameters
    required = {name for name, field in parameters.items() if field.default is field.empty}
    if not isinstance(value, Mapping) or not required <= {*value} <= {*parameters}:
        optional = "".join(f", optionally {name}" for name in sorted({*parameters} - required))
        rule = f"it must be a dict with {', '.join(sorted(required))}{optional}"
        raise InvalidArgument(argument, value, rule)
    return parse_struct(kind, value, f"{argument}.{{}}".format)


def text(argument: str, value: object) -> str:
    """Return ``value`` without the white space around it, if it is a non-empty string.

    Templates easily add a line end. An integer is also accepted, since a template may render to digits.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(integer(argument, value))
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(argument, value, "it must be a non-empty string")
    return encodable(argument, value.strip())


def encodable(argument: str, value: object) -> str:
    """Return ``value`` unchanged, if it is a string that can be encoded as UTF-8; it may be empty.

    The error shows only the invalid character and its position, since the value may be a secret. Instances of
    subclasses of ``str`` (from templates or parsers), which encoders refuse, become plain strings.
    """
    if not isinstance(value, str):
        raise InvalidArgument(argument, value, "it must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        rule = f"it must not contain a lone surrogate; there is one at position {error.start}"
        bad = value[error.start]
    else:
        return str.__str__(value)
    raise InvalidArgument(argument, bad, rule)


def integer(argument: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Return ``value`` as an integer within the limits; a string of digits, as from a template, is accepted.

    :param low: the lowest valid integer; None for the lowest one that JSON parsers accept.
    :param high: the highest valid integer; None for the highest one that JSON parsers accept.
    """
    number = value
    if isinstance(value, str):
        # `int` would also accept digits of other scripts, and underscores between digits
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
    argument: str,
    values: object,
    each: Parser | None = None,
    *,
    most: int | None = None,
    may_be_empty: bool = False,
) -> list[Any]:
    """Return ``values`` as a list; any iterable is accepted, except for a mapping or a string.

    :param each: parses each entry; None for entries as they are.
    :param most: maximum number of entries; None for no limit.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidArgument(argument, values, "it must be a list")
    listed = list(values)
    if not listed and not may_be_empty:
        raise InvalidArgument(argument, listed, "it must hold at least one entry")
    if most is not None and len(listed) > most:
        raise InvalidArgument(argument, listed, f"it must hold at most {most} entries, not {len(listed)}")
    return [each(f"{argument}[{index}]", item) for index, item in enumerate(listed)] if each else listed


def decoded(value: Any) -> Any:
    """Return a JSON text decoded: templates render to text, unless the DAG renders native objects.

    Any other value is returned unchanged, as is text that is not JSON.
    """
    if isinstance(value, str):
        try:
            # not a subclass of `str`, which the decoder refuses
            return msgspec.json.decode(str.__str__(value))
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return value
    return value


def texts(argument: str, values: object, *, most: int | None = None, may_be_empty: bool = False) -> list[str]:
    """Return ``values`` as a list of non-empty strings."""
    return items(argument, values, text, most=most, may_be_empty=may_be_empty)


def one_of(argument: str, value: object, choices: tuple[str, ...], where: str = "") -> Any:
    """Return ``value`` if it is one of the choices.

    :param where: text that is appended to the rule, such as " for file_format='csv'".
    """
    if value not in choices:
        raise InvalidArgument(argument, value, f"it must be one of {', '.join(choices)}{where}")
    return value


def seconds(
    argument: str, value: object, *, may_be_zero: bool = False, may_be_timedelta: bool = False
) -> float:
    """Return ``value`` if it is a finite number of seconds.

    :param may_be_zero: whether 0 is accepted.
    :param may_be_timedelta: whether a ``timedelta`` is also accepted.
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


def share(argument: str, value: object) -> float:
    """Return ``value`` if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidArgument(argument, value, "it must be a share from 0 to 1")
    return value


def boolean(argument: str, value: object, *, may_be_text: bool = False) -> bool:
    """Return ``value`` if it is a boolean.

    :param may_be_text: whether the words "true" and "false" are also accepted, in any letter case.
    """
    if may_be_text and isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    if not isinstance(value, bool):
        raise InvalidArgument(argument, value, "it must be True or False")
    return value


def date(argument: str, value: object) -> datetime.date:
    """Return ``value``, a date or ``yyyy-MM-dd``, as a date; a time with a zone becomes its day in UTC."""
    with contextlib.suppress(ValueError, OverflowError):
        match value:
            case datetime.datetime():
                return value.astimezone(datetime.UTC).date() if value.tzinfo else value.date()
            case datetime.date():
                return value
            case str():
                return datetime.datetime.strptime(value, "%Y-%m-%d").date()
    raise InvalidArgument(argument, value, "it must be a date, yyyy-MM-dd, in UTC")


#: A string that is used unchanged, and may be empty.
AnyText: TypeAlias = Annotated[str, encodable]
#: A boolean, or the word for it, to which a template may render.
Flag: TypeAlias = Annotated[bool, partial(boolean, may_be_text=True)]
