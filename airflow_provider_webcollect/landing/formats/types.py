"""Declared types of columns, which say how a site's texts are read. Nothing heavy is imported.

Texts are parsed in :mod:`~airflow_provider_webcollect.landing.formats.values`.
"""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple
from urllib.parse import urldefrag, urlsplit

import msgspec

from airflow_provider_webcollect.landing.formats import require
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.arguments import Flag
from airflow_provider_webcollect.service.errors import InvalidArgument

STRING, URL = "string", "url"
#: The names of types, besides ``decimal(precision,scale)``, with the pyarrow functions that make them.
TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    STRING: ("string", ()),
    "bool": ("bool_", ()),
    "int32": ("int32", ()),
    "int64": ("int64", ()),
    "float32": ("float32", ()),
    "float64": ("float64", ()),
    "date32": ("date32", ()),
    "timestamp": ("timestamp", ("us",)),
    "timestamptz": ("timestamp", ("us", "UTC")),
    URL: ("string", ()),
}
#: How names of time zones begin that only some readers of the time zone database know.
_OTHER_ZONES = ("posix", "right/", "Factory", "localtime")
_CONTROLS = re.compile(r"[\x00-\x20\x7f]")
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
_MAX_PRECISION = 38
_TYPE_RULE = (
    f"it must be one of {', '.join(TYPES)}, decimal(precision,scale) with precision <= {_MAX_PRECISION}"
)
_NUMBERS, _TIMES = ("int", "float", "decimal"), ("date", "timestamp")
#: The types to which each key applies, by the beginning of their names, and what errors call these types.
#: Other keys apply to all types.
_KEYS = {
    **dict.fromkeys(("decimal", "thousands", "currency", "unit"), (_NUMBERS, "numbers")),
    "format": (_TIMES, "dates and times"),
    "locale": ((*_NUMBERS, *_TIMES), "numbers, dates and times"),
    "timezone": (("timestamptz",), "timestamptz"),
    **dict.fromkeys(("true", "false"), (("bool",), "bool")),
    "base": ((URL,), URL),
}
#: A blank of any script, in regular expressions of RE2.
BLANK = r"[\s\p{Z}]"
_SIGNS = {"": "", "+": "", "-": "-", "\u2212": "-"}
#: Characters that count as the same separator.
_BLANKS = " \u00a0\u2007\u2009\u202f\u3000"
_LIKE = {"'": "'\u2019", "\u2019": "'\u2019", **dict.fromkeys(_BLANKS, _BLANKS)}


def decimal_type(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type; None if the name is not one of a decimal type."""
    match = _DECIMAL.fullmatch(name)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    return (precision, scale) if 1 <= precision <= _MAX_PRECISION and scale <= precision else None


def _type_name(argument: str, name: object) -> str:
    if not isinstance(name, str) or not (name in TYPES or decimal_type(name)):
        raise InvalidArgument(argument, name, _TYPE_RULE)
    return name


def _mark(argument: str, mark: object) -> str:
    if not isinstance(mark, str) or len(mark) != 1 or mark.isalnum() or mark in "+-\u2212":
        raise InvalidArgument(argument, mark, "it must be a single character: no digit, letter or sign")
    return arguments.encodable(argument, mark)


def _locale(argument: str, name: object) -> str:
    require("babel", "locale", argument)
    from babel import Locale, UnknownLocaleError

    text = arguments.text(argument, name)
    try:
        return str(Locale.parse(text.replace("-", "_")))
    except (ValueError, UnknownLocaleError) as error:
        raise InvalidArgument(argument, name, "it must be a locale, such as de_CH") from error


def _timezone(argument: str, name: object) -> str:
    from zoneinfo import ZoneInfo

    text = arguments.text(argument, name)
    with contextlib.suppress(KeyError, OSError, ValueError):
        key = ZoneInfo(text).key
        if not key.startswith(_OTHER_ZONES):
            return key
    raise InvalidArgument(argument, name, "it must be a time zone, such as Europe/Berlin")


def _source(argument: str, name: object) -> str:
    if name == "":
        raise InvalidArgument(argument, name, "it must be the name of a column")
    return arguments.encodable(argument, name)


def _words(argument: str, words: object) -> tuple[str, ...]:
    return tuple(map(folded, arguments.texts(argument, words)))


def folded(text: str) -> str:
    """Return a word for comparison: without letter case, and with single blanks for white space."""
    return " ".join(text.casefold().split())


def _base(argument: str, url: object) -> str:
    text = arguments.text(argument, url)
    rule = "it must be a URL with http or https and a host, without a user and password"
    if "@" in text:
        # it may have a password
        raise InvalidArgument(argument, None, rule, as_text="a URL with @")
    with contextlib.suppress(ValueError):
        if (
            urlsplit(text).scheme in ("http", "https")
            and urlsplit(text).hostname
            and not _CONTROLS.search(text)
        ):
            return urldefrag(text).url
    raise InvalidArgument(argument, url, rule)


class ColumnType(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the texts of a column mean.

    :ivar from_: The column whose texts are parsed, and which stays as it is; None if the texts are in the
        column itself.
    """

    type: Annotated[str, _type_name, "The name of the type."]
    from_: Annotated[str | None, _source, "The column that has the texts; it stays as it is."] = (
        msgspec.field(default=None, name="from")
    )
    decimal: Annotated[str | None, _mark, "The decimal separator; by default a full stop."] = None
    thousands: Annotated[str | None, _mark, "The separator between groups of digits; by default none."] = None
    currency: Annotated[
        Flag, "Drop letters and currency signs around the number, and a dash in the place of its decimals."
    ] = False
    unit: Annotated[str | None, "A text before or after the number, which must be there and is dropped."] = (
        None
    )
    format: Annotated[str | None, "Of dates and times, with the directives of strptime."] = None
    locale: Annotated[str | None, _locale, "Its number separators, or its names of months and days."] = None
    timezone: Annotated[str | None, _timezone, "The time zone of times without one."] = None
    true: Annotated[Sequence[str], _words, "Words that mean true, in any letter case; others are wrong."] = ()
    false: Annotated[Sequence[str], _words, "Words that mean false."] = ()
    base: Annotated[str | None, _base, "The URL from which relative ones are resolved."] = None

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
        return self.type.startswith(_NUMBERS)

    @property
    def is_plain(self) -> bool:
        """Whether texts are written in the plain form of the type, without any key of the declaration."""
        return msgspec.structs.replace(self, from_=None) == ColumnType(type=self.type)

    @property
    def declared(self) -> str | dict[str, Any]:
        """The declaration as JSON: the name of the type, or a dict."""
        keys: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return self.type if len(keys) == 1 else keys

    @property
    def marks(self) -> tuple[str, str | None, tuple[int, int]]:
        """The decimal separator, the separator of groups, and the sizes of the last and of other groups."""
        decimal, thousands, sizes = self.decimal, self.thousands, (3, 3)
        if self.locale:
            from babel import Locale, numbers

            system: Any = {"locale": self.locale, "numbering_system": "default"}
            decimal = decimal or numbers.get_decimal_symbol(**system)
            thousands = thousands or numbers.get_group_symbol(**system)
            sizes = Locale.parse(self.locale).decimal_formats[None].grouping
        return decimal or ".", thousands, sizes


class ProposedType(NamedTuple):
    """What the texts of a column may mean.

    :ivar type: the declaration for ``column_types``; None if no type fits, or several readings do.
    :ivar readings: the types that fit, but give different values; empty unless there are several.
    :ivar values: the number of texts that are not blank.
    :ivar share: the share of these texts that fit, 0 to 1.
    :ivar misfits: up to three texts that do not fit.
    """

    column: str
    type: str | dict[str, Any] | None
    readings: tuple[str | dict[str, Any], ...]
    values: int
    share: float
    misfits: tuple[str, ...]


def column_type(argument: str, value: object) -> ColumnType:
    """Return the type of a column from a name, or from a dict with a name and a description of the texts.

    :raises InvalidArgument: if the value has another form, or a key breaks a rule.
    """
    if not isinstance(value, Mapping):
        return ColumnType(type=_type_name(argument, value))

    def where(name: str) -> str:
        return f"{argument}[{name.rstrip('_')!r}]"

    names = ColumnType.__struct_encode_fields__
    for name in value:
        if name not in names:
            raise InvalidArgument(argument, name, f"its keys can be {', '.join(names)}")
    fields = {f"{name}_" if name == "from" else name: given for name, given in value.items()}
    given = {name: item for name, item in fields.items() if item is not None and item != []}
    if "type" not in given:
        raise InvalidArgument(argument, value, "it must have the key `type`")
    kind = arguments.parse_struct(ColumnType, given, where)
    for name, (types, words) in _KEYS.items():
        if getattr(kind, name) and not kind.type.startswith(types):
            raise InvalidArgument(where(name), value[name], f"it is for {words}, and not for {kind.type}")
    _check_texts(kind, where)
    return kind


def _check_texts(kind: ColumnType, where: Callable[[str], str]) -> None:
    """Refuse a declaration that no text could fit, or that some texts could fit in two ways."""
    if kind.is_number:
        decimal, thousands, _ = kind.marks
        # a decimal separator need not be declared for integers, which have no decimals
        has_decimals = kind.decimal or kind.locale or not kind.type.startswith("int")
        if thousands is not None and has_decimals and decimal in _LIKE.get(thousands, thousands):
            rule = f"it must differ from the decimal separator, which is {decimal!r}"
            raise InvalidArgument(where("thousands"), kind.thousands, rule)
    if kind.false and (not kind.true or {*kind.true} & {*kind.false}):
        raise InvalidArgument(where("false"), kind.false, "it needs `true`, which must have other words")
    if kind.format is not None:
        date_format(kind, where("format"))
    elif kind.locale and not kind.is_number:
        raise InvalidArgument(where("locale"), kind.locale, "it needs a `format`")


def parse_types(argument: str, types: object) -> Mapping[str, ColumnType]:
    """Return types by column from their declarations, names or dicts.

    :raises InvalidArgument: if one is wrong.
    """
    if not isinstance(types, Mapping):
        raise InvalidArgument(argument, types, "it must be a dict of types by column")
    parsed: dict[str, ColumnType] = {}
    for name, value in types.items():
        if not isinstance(name, str):
            raise InvalidArgument(argument, name, "columns are named by strings")
        arguments.encodable(argument, name)
        place = f"{argument}[{name!r}]"
        parsed[name] = value if isinstance(value, ColumnType) else column_type(place, value)
    for name, kind in parsed.items():
        source = kind.from_
        if source is not None and (source == name or (source in parsed and parsed[source].from_)):
            rule = "it must be a column of the rows, and no column that is made of another one"
            raise InvalidArgument(f"{argument}[{name!r}]['from']", source, rule)
    return parsed


def made_of(types: Mapping[str, ColumnType]) -> dict[str, list[str]]:
    """Return the derived columns, by the column that each is made of."""
    made: dict[str, list[str]] = {}
    for name, kind in types.items():
        if kind.from_ is not None:
            made.setdefault(kind.from_, []).append(name)
    return made


class NumberFormat(NamedTuple):
    """How a number is read, from its first digit to its last.

    :ivar pattern: a regular expression of RE2.
    :ivar between: the characters that may separate groups of digits; empty for no groups.
    :ivar decimal: the decimal separator.
    """

    pattern: str
    between: str
    decimal: str


def number_format(kind: ColumnType) -> NumberFormat:
    """Return how the numbers of a column are read."""
    decimal, thousands, (last, others) = kind.marks
    between, whole, fraction = "", "[0-9]+", f"(?:{re.escape(decimal)}[0-9]+)?"
    if thousands is not None:
        between = _LIKE.get(thousands, thousands)
        mark = f"[{re.escape(between)}]"
        # if the first group is 0, the digits after the separator are decimals
        groups = f"[1-9][0-9]{{0,{others - 1}}}(?:{mark}[0-9]{{{others}}})*{mark}[0-9]{{{last}}}"
        whole = f"{groups}|{whole}"
    if decimal == thousands:
        # both separators can be the same only for integers, which have no decimals
        fraction = ""
    return NumberFormat(f"^(?:{whole}){fraction}$", between, decimal)


def sign_of(kind: ColumnType, before: str, after: str) -> str | None:
    """Return the sign of a number for the texts around it; None if they do not fit the declaration.

    :param before: the text before its first digit.
    :param after: the text after its last digit.
    """
    for index, letter in enumerate(before):
        # a hyphen within a word, as in `T-Shirt 5`, is not a sign, and neither is a dash between blanks
        is_inside = index and not (
            before[index - 1].isspace() or unicodedata.category(before[index - 1]) == "Sc"
        )
        if letter in _SIGNS and (is_inside or before[index + 1 : index + 2].isspace()):
            return None
    if kind.currency:
        if before.endswith(".") and unicodedata.category(before[-2:-1] or " ") == "Sc":
            # the full stop is the decimal separator, as in `$.99`
            return None
        cents = re.match(f"{re.escape(kind.marks[0])}[-\u2013\u2014]+", after)
        before, after = _without_words(before), _without_words(after[cents.end() :] if cents else after)
    return None if after.strip() else _SIGNS.get(before.strip())


def _without_words(text: str) -> str:
    """Return a text without letters, currency signs, and full stops at the ends of words."""
    kept, is_word = list[str](), False
    for letter in text:
        category = unicodedata.category(letter)
        if category[0] in "LM" or category == "Sc":
            is_word = True
        elif is_word and letter == ".":
            is_word = False
        else:
            kept.append(letter)
            is_word = False
    return "".join(kept)


class DateFormat(NamedTuple):
    """How a date or time is read.

    :ivar pattern: a regular expression of RE2, with a group for each directive except names of days; the
        group for names of months is ``b``.
    :ivar months: the names of months, :func:`folded`, with their numbers.
    :ivar groups: the directives of the format, with ``b`` for both directives of names of months.
    """

    pattern: str
    months: Mapping[str, int]
    groups: frozenset[str]


_DIGIT_BESIDE = re.compile(r"[0-9]%[A-Za-z]|%[A-Za-z][0-9]")
_TOKEN = re.compile(r"%(.?)|\s+|[^%\s]+", re.DOTALL)
_DIRECTIVES = {
    **dict.fromkeys("mdHIMS", "[0-9]{1,2}"),
    "Y": "[0-9]{4}",
    "y": "[0-9]{2}",
    "f": "[0-9]{1,6}",
    "p": r"[ap]\.?m\.?",
    "z": "z|[+-][0-9]{2}:?[0-9]{2}",
}
_NAMED = {"a": "days", "A": "days", "b": "months", "B": "months"}
#: The parts that a date must have exactly once, by the directives for them.
_DATE = {"Yy": "year", "mbB": "month", "d": "day"}


@functools.cache
def date_format(kind: ColumnType, argument: str = "format") -> DateFormat:
    """Return how dates and times in the ``format`` of a type are read.

    :param kind: the type.
    :param argument: the name of the argument with the format, for errors.
    :raises InvalidArgument: if the format lacks a part of the date, or has a part that cannot be read.
    """
    if _DIGIT_BESIDE.search(kind.format or ""):
        raise InvalidArgument(argument, kind.format, "it must not have a digit next to a directive")
    tokens = list(_TOKEN.finditer(kind.format or ""))
    letters = [token[1] for token in tokens]
    if rule := _broken_rule(kind, [letter for letter in letters if letter is not None]):
        raise InvalidArgument(argument, kind.format, rule)
    months: dict[str, int] = {}
    pattern = ""
    for index, (token, letter) in enumerate(zip(tokens, letters, strict=True)):
        if letter is None:
            pattern += f"{BLANK}+" if token[0].isspace() else re.escape(token[0])
        elif letter == "%":
            pattern += "%"
        elif letter in _NAMED:
            names = names_of(kind.locale or "", _NAMED[letter])
            listed = "|".join(sorted(map(_name_pattern, names), key=len, reverse=True))
            group = "?:"
            if _NAMED[letter] == "months":
                months, group = names, "?P<b>"
            pattern += f"({group}{listed})\\.?"
        else:
            # numbers with nothing between them must have all their digits
            beside = {*letters[max(0, index - 1) : index], *letters[index + 1 : index + 2]}
            least = "2" if beside & {*_DIRECTIVES} - {"p", "z"} else "1,2"
            pattern += f"(?P<{letter}>{_DIRECTIVES[letter].replace('1,2', least)})"
    groups = ("b" if letter == "B" else letter for letter in letters if letter)
    return DateFormat(f"(?i)^{pattern}$", months, frozenset(groups))


def _broken_rule(kind: ColumnType, letters: list[str]) -> str:
    """Return the rule that the directives of a format break; an empty text if they break none."""
    for letter in letters:
        if letter in _NAMED and kind.locale is None:
            return f"%{letter} needs a `locale`"
        if letter not in (*_DIRECTIVES, *_NAMED, "%"):
            return f"%{letter} is none of {', '.join(f'%{name}' for name in (*_DIRECTIVES, *_NAMED, '%'))}"
    for ways, part in _DATE.items():
        if sum(map(letters.count, ways)) != 1:
            return f"it must have one {part}"
    time = [letter for letter in letters if letter in "HIMSfpz"]
    if len({*time}) < len(time) or {"H", "I"} <= {*time} or ("I" in time) != ("p" in time):
        return "it must have each part once, and %I with %p"
    if kind.type == "date32" and time:
        return "a date32 has no time"
    if ("z" in time or kind.timezone is not None) != (kind.type == "timestamptz"):
        return "a timestamptz, and no other type, needs %z or a `timezone`"
    return ""


@functools.cache
def names_of(locale: str, of_what: str) -> dict[str, int]:
    """Return the names of months or days, :func:`folded` and without a full stop, with their numbers.

    :param of_what: ``months`` or ``days``.
    """
    from babel import Locale

    forms = getattr(Locale.parse(locale), of_what).values()
    return {
        folded(name.rstrip(".")): number
        for form in forms
        for width in ("wide", "abbreviated")
        for number, name in form.get(width, {}).items()
    }


def _name_pattern(name: str) -> str:
    return f"{BLANK}+".join(map(re.escape, name.split()))
