"""Parsing the texts of columns: one parser for all formats, readers and checks. It imports pyarrow.

Texts are first rewritten, as declared, in the plain form of their type: ``1.299,00 €`` as ``1299.00``,
``3. Aug. 2026`` as ``2026-08-03``. The plain texts are then cast. Both steps work on whole columns; only rare
texts are parsed one by one.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any
from urllib.parse import urljoin, urlsplit
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from airflow_provider_webcollect.landing.errors import CastFailed
from airflow_provider_webcollect.landing.formats.types import (
    STRING,
    TYPES,
    URL,
    ColumnType,
    date_format,
    decimal_type,
    folded,
    number_format,
    sign_of,
)
from airflow_provider_webcollect.landing.formats.writing import FORMULA_STARTS

_SHOWN_CHARACTERS = 100
#: Number of texts at the beginning of a column that show whether its texts repeat.
_FIRST = 1000
_NULL = pa.scalar(None, pa.string())
#: Begins the text of a JSON number or boolean; a site's own text that means a value does not contain it.
MARK = "\0"
_SANITIZED = "^'([" + "".join(rf"\x{{{ord(letter):x}}}" for letter in sorted(FORMULA_STARTS)) + "])"
_LOST = re.compile(r"[\x00-\x20\x7f]|^//(/|$)")
_HTTP = re.compile("https?:", re.IGNORECASE)
_ABSOLUTE = r"^(?i:https?)://([^\s\p{Z}/?#\[\]]+|\[[0-9a-fA-F:.]+\](:[0-9]*)?)([/?][^\s\p{Z}]*)?$"
#: A path from the root of a site, without segments such as `..`.
_ROOTED = r"^/([^/.?#\s\p{Z}][^/?#\s\p{Z}]*/?)*([?][^\s\p{Z}]*)?$"
#: Years of two digits are in the 20th century from this one on, otherwise in the 21st, as in `strptime`.
_FIRST_YEAR = "69"
#: The hour of the day, by the hour of a 12-hour clock and the first letter of AM or PM: ``00`` for ``12a``.
_HOURS = {
    f"{hour:02}{half}": f"{hour % 12 + late:02}"
    for hour in range(1, 13)
    for half, late in (("a", 0), ("p", 12))
}


class Values:
    """Parses the texts of a landing's columns.

    :param types: the types by column; other columns are strings.
    :param on_cast_error: ``fail``, or ``null`` to have null in place of a value that does not fit.
    :param is_sanitized: whether the texts are from CSV that was written with ``sanitize_formulas``; False by
        default.
    :ivar marks: the prefix that callers put before the texts of JSON numbers and booleans, which are not
        written as declared, by the column that has the texts; empty if all texts are in plain form.
    :ivar misfits: the number of rows whose texts did not fit, by the column that has the texts.
    """

    def __init__(
        self, types: Mapping[str, ColumnType], on_cast_error: str, *, is_sanitized: bool = False
    ) -> None:
        self._types = types
        self._is_sanitized = is_sanitized
        self._fails = on_cast_error == "fail"
        self._rows = 0
        is_plain = all(kind.is_plain for kind in types.values())
        sources = (kind.from_ or name for name, kind in types.items())
        self.marks = {} if is_plain else dict.fromkeys(sources, MARK)
        self.misfits: Counter[str] = Counter()

    def arrays(self, texts: Mapping[str, pa.Array]) -> list[pa.Array]:
        """Return the next rows of a part, as one array for each column.

        :param texts: the texts of each column, in order; null in columns that are made of others.
        :raises CastFailed: if a value does not fit the type of its column, and may not become null; or if the
            rows have a column with the name of a column that is made of another.
        """
        rows = max(map(len, texts.values()), default=0)
        misfits: dict[str, set[int]] = {}
        arrays = [self._of(name, texts, rows, misfits) for name in texts]
        self.misfits.update({source: len(indexes) for source, indexes in misfits.items()})
        self._rows += rows
        return arrays

    def _of(
        self, name: str, texts: Mapping[str, pa.Array], rows: int, misfits: dict[str, set[int]]
    ) -> pa.Array:
        kind = self._types.get(name)
        if kind is None:
            return _unmarked(texts[name]) if name in self.marks else texts[name]
        source = kind.from_ or name
        if kind.from_ is not None and texts[name].null_count < rows:
            raise CastFailed(
                f"the rows have a column `{name}`, which `column_types` makes of `{source}`: give it another "
                "name there"
            )
        read = texts.get(source, pa.nulls(rows, pa.string()))
        if self._is_sanitized and kind.type != STRING:
            read = unsanitized(read)
        values, unread = parse(read, kind)
        misfits.setdefault(source, set()).update(unread)
        if unread and self._fails:
            text = texts[source][unread[0]].as_py().removeprefix(self.marks.get(source, ""))
            row = self._rows + unread[0] + 1
            if len(text) > _SHOWN_CHARACTERS:
                text = f"{text[:_SHOWN_CHARACTERS]}…"
            kind_name = kind.declared if kind.declared == kind.type else msgspec.json.encode(kind).decode()
            raise CastFailed(
                f"`{source}` is {text!r} in row {row} of the part, which is not of type {kind_name}; change "
                "column_types, or set on_cast_error='null' to have null there"
            )
        return values


def as_texts(values: Sequence[Any], mark: str = "") -> pa.Array:
    """Return ``values`` as strings; ``UNSET`` becomes null, values of other types become JSON.

    :param mark: the prefix for the texts of numbers and booleans; none by default.
    """
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        present = [None if value is UNSET else value for value in values]
        encode = msgspec.json.Encoder().encode
        texts = [
            value
            if value is None or type(value) is str
            else f"{'' if isinstance(value, dict | list) else mark}{encode(value).decode()}"
            for value in present
        ]
        return pa.array(texts, pa.string())


def unsanitized(texts: pa.Array) -> pa.Array:
    """Return texts from CSV as they were before ``sanitize_formulas`` changed them."""
    return pc.replace_substring_regex(texts, _SANITIZED, r"\1")


def _unmarked(texts: pa.Array) -> pa.Array:
    is_marked = pc.starts_with(texts, MARK)
    if not pc.any(is_marked).as_py():
        return texts
    return pc.if_else(is_marked, pc.utf8_slice_codeunits(texts, len(MARK)), texts)


def schema(names: Sequence[str], types: Mapping[str, ColumnType]) -> pa.Schema:
    """Return the Arrow schema of columns.

    :param types: the types by column; other columns are strings.
    """
    return pa.schema([(name, arrow_type(types[name].type if name in types else STRING)) for name in names])


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type for a type's name in ``column_types``."""
    if decimal := decimal_type(name):
        return pa.decimal128(*decimal)
    factory, arguments = TYPES[name]
    return getattr(pa, factory)(*arguments)


def parse(texts: pa.Array, kind: ColumnType) -> tuple[pa.Array, Sequence[int]]:
    """Return the values of texts; surrounding white space is ignored, and an empty text is null.

    A text whose value the type cannot hold exactly is not read; only floats are rounded. For some such texts,
    pyarrow would return another value, or crash.

    :return: the values, with null where a text cannot be read, and the indices of these texts.
    """
    if kind.type == STRING:
        return _unmarked(texts), ()
    trimmed = pc.utf8_trim_whitespace(texts)
    filled = pc.if_else(pc.equal(trimmed, ""), _NULL, trimmed)
    first = filled[:_FIRST]
    if len(first.unique()) * 2 < len(first):
        # texts of sites often repeat: each is then parsed once
        encoded = filled.dictionary_encode()
        values = _cast(_plain(encoded.dictionary, kind), kind).take(encoded.indices)
    else:
        values = _cast(_plain(filled, kind), kind)
    unread = pc.and_(pc.is_null(values), pc.is_valid(filled))
    return values, pc.indices_nonzero(unread).to_pylist()


def _plain(texts: pa.Array, kind: ColumnType) -> pa.Array:
    """Return texts in the plain form of the type, with null for texts that do not fit the declaration."""
    if kind.is_plain and kind.type != URL:
        return _unmarked(texts)
    if kind.type == URL:
        plain = _urls(texts, kind.base)
    elif kind.true:
        plain = _looked_up(texts, {**dict.fromkeys(kind.true, "true"), **dict.fromkeys(kind.false, "false")})
    elif kind.format is not None:
        plain = _of_any_digits(_dates, texts, kind)
    elif kind.is_number:
        plain = _of_any_digits(_numbers, texts, kind)
    else:
        # a time in a declared zone is written in plain form
        plain = texts
    # JSON numbers and booleans have a single reading, whatever the declaration
    is_marked = pc.starts_with(texts, MARK)
    return pc.if_else(is_marked, _unmarked(texts), plain) if pc.any(is_marked).as_py() else plain


def _of_any_digits(
    rewrite: Callable[[pa.Array, ColumnType], pa.Array], texts: pa.Array, kind: ColumnType
) -> pa.Array:
    """Return rewritten texts; digits of other scripts are first replaced by ASCII digits."""
    plain = rewrite(texts, kind)
    others = pc.and_(pc.is_null(plain), pc.invert(pc.fill_null(pc.string_is_ascii(texts), True)))
    if not pc.any(others).as_py():
        return plain
    translated = [text.translate(_digits()) for text in texts.filter(others).to_pylist()]
    return pc.replace_with_mask(plain, others, rewrite(pa.array(translated, pa.string()), kind))


@functools.cache
def _digits() -> dict[int, str]:
    """Return the ASCII digit for each digit of other scripts, as a table for ``str.translate``."""
    codes = (code for code in range(128, 0x20000) if chr(code).isdecimal())
    return {code: str(unicodedata.decimal(chr(code))) for code in codes}


def _numbers(texts: pa.Array, kind: ColumnType) -> pa.Array:
    if (unit := kind.unit) is not None:
        after = pc.utf8_slice_codeunits(texts, 0, -len(unit))
        before = pc.if_else(pc.starts_with(texts, unit), pc.utf8_slice_codeunits(texts, len(unit)), _NULL)
        texts = pc.if_else(pc.ends_with(texts, unit), after, before)
    pattern, between, decimal = number_format(kind)
    before = pc.struct_field(pc.extract_regex(texts, "^(?P<before>[^0-9]*)"), "before")
    after = pc.replace_substring_regex(texts, "(?s)^.*[0-9]", "")
    # many numbers have the same text around them: each such text is parsed once
    around = pc.binary_join_element_wise(before, after, "\0").dictionary_encode()
    signs = [sign_of(kind, *text.split("\0", 1)) for text in around.dictionary.to_pylist()]
    sign = pa.array(signs, pa.string()).take(around.indices)
    number = pc.utf8_trim(texts, "".join({*"".join(around.dictionary.to_pylist())} - {*"0123456789"}))
    number = pc.if_else(pc.match_substring_regex(number, pattern), number, _NULL)
    for mark in between:
        number = pc.replace_substring(number, mark, "")
    return pc.binary_join_element_wise(sign, pc.replace_substring(number, decimal, "."), "")


def _dates(texts: pa.Array, kind: ColumnType) -> pa.Array:
    """Return dates and times in ISO 8601."""
    pattern, months, groups = date_format(kind)
    found = pc.extract_regex(texts, pattern)

    def digits(name: str) -> Any:
        if name not in groups:
            return "00"
        return pc.utf8_lpad(pc.struct_field(found, name), 2, "0")

    if "y" in groups:
        short = digits("y")
        century = pc.if_else(pc.greater_equal(short, _FIRST_YEAR), "19", "20")
        year = pc.binary_join_element_wise(century, short, "")
    else:
        year = pc.struct_field(found, "Y")
    month = digits("m")
    if "b" in groups:
        numbers = {name: f"{number:02}" for name, number in months.items()}
        month = _looked_up(pc.struct_field(found, "b"), numbers)
    date = pc.binary_join_element_wise(year, month, digits("d"), "-")
    if kind.type == "date32":
        return date
    hour = digits("H")
    if "p" in groups:
        half = pc.utf8_slice_codeunits(pc.utf8_lower(pc.struct_field(found, "p")), 0, 1)
        hour = _looked_up(pc.binary_join_element_wise(digits("I"), half, ""), _HOURS)
    time = pc.binary_join_element_wise(hour, digits("M"), digits("S"), ":")
    if "f" in groups:
        time = pc.binary_join_element_wise(time, pc.struct_field(found, "f"), ".")
    zone = pc.utf8_upper(pc.struct_field(found, "z")) if "z" in groups else ""
    return pc.binary_join_element_wise(pc.binary_join_element_wise(date, time, "T"), zone, "")


def _looked_up(texts: pa.Array, table: Mapping[str, str]) -> pa.Array:
    """Return the value of each word, :func:`folded`, in a table; null for words that the table lacks."""
    encoded = texts.dictionary_encode()
    found = [table.get(folded(text)) for text in encoded.dictionary.to_pylist()]
    return pa.array(found, pa.string()).take(encoded.indices)


def _urls(texts: pa.Array, base: str | None) -> pa.Array:
    if pc.any(pc.match_substring(texts, "#")).as_py():
        texts = pc.replace_substring_regex(texts, "(?s)#.*$", "")
    if base is None:
        return _absolute(texts)
    root = "{0.scheme}://{0.netloc}".format(urlsplit(base))
    is_rooted = pc.match_substring_regex(texts, _ROOTED)
    others = pc.fill_null(pc.invert(is_rooted), False)
    urls = pc.binary_join_element_wise(root, texts, "")
    if not pc.any(others).as_py():
        return urls
    rest = texts.filter(others).dictionary_encode()
    joined = pa.array([_joined(base, text) for text in rest.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(urls, others, _absolute(joined).take(rest.indices))


def _absolute(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(texts, _ABSOLUTE), texts, _NULL)


def _joined(base: str, url: str) -> str | None:
    # `urljoin` would drop some characters, and put the host of the base in place of a missing one
    if _LOST.search(url):
        return None
    with contextlib.suppress(ValueError):
        return url if _HTTP.match(url) else urljoin(base, url)
    return None


_INTEGER = "^-?[0-9]+$"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = "(?i)^[+-]?(inf|infinity|nan)$"
_LATE = datetime.datetime(2037, 1, 1)
_ZONE = "[tT ][0-9:.]+([zZ]|[+-][0-9]{2}(:?[0-9]{2})?)$"


def _cast(texts: pa.Array, kind: ColumnType) -> pa.Array:
    """Return plain texts as values of a type, with null for texts that do not fit."""
    to = arrow_type(kind.type)
    if kind.timezone is None:
        return _exactly(texts, to)
    has_zone = pc.match_substring_regex(texts, _ZONE)
    local = _exactly(pc.if_else(has_zone, _NULL, texts), pa.timestamp("us"))
    # a time that a clock change skips or repeats has two readings
    first, second = (
        pc.assume_timezone(local, kind.timezone, ambiguous=which, nonexistent=which).cast(to)
        for which in ("earliest", "latest")
    )
    wrong = pc.or_kleene(pc.not_equal(first, second), _misread(first, texts))
    placed = pc.if_else(wrong, pa.scalar(None, to), first)
    # pyarrow does not know the clock changes after 2037
    is_late = pc.fill_null(pc.greater_equal(local, pa.scalar(_LATE, local.type)), False)
    if pc.any(is_late).as_py():
        zone = ZoneInfo(kind.timezone)
        late = [_placed(moment, zone) for moment in local.filter(is_late).to_pylist()]
        placed = pc.replace_with_mask(placed, is_late, pa.array(late, to))
    return pc.if_else(has_zone, _exactly(pc.if_else(has_zone, texts, _NULL), to), placed)


def _placed(moment: datetime.datetime, zone: ZoneInfo) -> datetime.datetime | None:
    """Return, in UTC, a time in a zone; None if a clock change skips or repeats it."""
    with contextlib.suppress(OverflowError):
        first, second = (moment.replace(tzinfo=zone, fold=fold).astimezone(datetime.UTC) for fold in (0, 1))
        return first if first == second else None
    return None


def _exactly(texts: pa.Array, to: pa.DataType) -> pa.Array:
    values = pa.concat_arrays(_runs(_castable(texts, to), to))
    if (wrong := _misread(values, texts)) is not None:
        values = pc.if_else(wrong, pa.scalar(None, to), values)
    return values


def _castable(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``texts`` with null in place of texts that pyarrow would misread."""
    if pa.types.is_integer(kind):
        # pyarrow accepts 0x10, and reads 0xFFFFFFFF as -1
        return pc.if_else(pc.match_substring_regex(texts, _INTEGER), texts, pa.scalar(None, pa.string()))
    return _plain_decimals(texts, kind) if pa.types.is_decimal(kind) else texts


def _plain_decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``texts`` in plain digits that ``kind`` can hold, with null for texts that need more digits.

    From other texts, pyarrow computes values modulo 2**128, reads 1e-39 as 0, and accesses invalid memory at
    1e-2147483647.
    """
    plain = rf"^[+-]?0*[0-9]{{0,{kind.precision - kind.scale}}}(\.[0-9]{{0,{kind.scale}}})?$"
    others = pc.invert(pc.match_substring_regex(texts, plain))
    if not pc.any(others).as_py():
        return texts
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-kind.scale)
    rewritten = []
    for text in texts.filter(others).to_pylist():
        digits = None
        if _NUMBER.fullmatch(text):
            with contextlib.suppress(Inexact, InvalidOperation):
                digits = f"{context.create_decimal(text).quantize(unit, context=context):f}"
        rewritten.append(digits)
    return pc.replace_with_mask(texts, others, pa.array(rewritten, pa.string()))


def _misread(values: pa.Array, texts: pa.Array) -> pa.Array | None:
    """Return which values differ from their text; None if there are none."""
    if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values)).as_py():
        # pyarrow returns infinity for 1e400, too
        spelled = pc.match_substring_regex(texts, _NOT_FINITE)
        return pc.invert(pc.or_(pc.is_finite(values), spelled))
    if pa.types.is_temporal(values.type):
        # only years that SQL and Python support are right: many readers fail on files with other years
        first, last = (
            pa.scalar(moment, values.type) for moment in (datetime.datetime.min, datetime.datetime.max)
        )
        return pc.or_(pc.less(values, first), pc.greater(values, last))
    return None


def _runs(texts: pa.Array, kind: pa.DataType) -> list[pa.Array]:
    """Cast ``texts`` in runs; a run with a bad text is halved until that text is alone."""
    try:
        return [texts.cast(kind)]
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return [pa.nulls(1, kind)]
    half = len(texts) // 2
    return [*_runs(texts[:half], kind), *_runs(texts[half:], kind)]
