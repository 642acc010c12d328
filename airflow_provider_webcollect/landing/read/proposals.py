"""Proposing types for the columns of a landing: types that the texts fit in exactly one reading.

Texts are read once. Each type that may fit is tried on all texts, and dropped once too few texts fit it.
Memory does not grow with the rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_webcollect.landing.formats.types import (
    STRING,
    ColumnType,
    ProposedType,
    column_type,
    names_of,
)
from airflow_provider_webcollect.landing.formats.values import arrow_type, parse, unsanitized

_WORDS = ("true false", "yes no", "ja nein", "oui non", "sí no", "si no", "sim não", "ja nee", "tak nie")
_MARKS = ((".", None), (",", None), (".", ","), (",", "."), (",", " "), (".", " "), (".", "'"))
_LOCALES = ("en", "de", "fr", "es", "it", "nl", "pt", "pl", "sv", "da", "cs")
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d")
_SHORT_DAYS = ("%d.%m.%y", "%y.%m.%d", "%d/%m/%y", "%m/%d/%y", "%y/%m/%d", "%d-%m-%y", "%y-%m-%d")
_NAMED_DAYS = ("%d. %b %Y", "%d %b %Y", "%b %d, %Y", "%d de %b de %Y", "%d-%b-%Y")
_CLOCKS = (" %H:%M", " %H:%M:%S", ", %H:%M", " %I:%M %p")
_CURRENCIES = "AED|AUD|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HUF|INR|JPY|NOK|PLN|RON|SEK|USD|Fr|kr|zł|Kč|Ft|lei"
_OTHER = r"[^\p{L}\p{Sc}]*"
#: An amount of money: a number and one currency, perhaps after a word for `from`. Texts with other words, for
#: example one for millions, do not match, since the words would be dropped.
_MONEY = rf"^((?i:ab|from|desde|dès|od|vanaf)\s+)?{_OTHER}(({_CURRENCIES})\.?|[A-Z]{{0,2}}\p{{Sc}}){_OTHER}$"
#: A number with leading zeros or a plus sign, which is a code or a telephone number. Zeros after a separator
#: or a blank may begin a group of thousands.
_CODE = r"(^\s*|[^\p{Nd}\s\p{Z}.,'\x{2019}][\s\p{Z}]*)[0\x{ff10}\x{0660}\x{06f0}]\p{Nd}|^\s*[+]"
_UNIT = r"^[-+]?[0-9][0-9., ]*(?P<unit>\s*[^0-9\s\p{Z}.,'+-][^0-9]*)$"
#: Words after a number that are not units: they multiply the number, or make it a time.
_NO_UNITS = {"am", "pm", "mio", "mln", "mrd", "tsd", "tys", "bn"}
#: Texts with an exponent may be ids, unless they have a fraction or a negative exponent.
_EXACT, _FLOAT = "^[^eE]*$", "^[^eE]*$|[.]|[eE]-"
#: A date with a year of two digits must have two digits in all parts: other texts may be versions.
_SHORT = r"^\s*[0-9]{2}[-./][0-9]{2}[-./][0-9]{2}"
#: Minimum precision of a proposed decimal, and the type with which numbers are tried.
_DIGITS, _TRIED = 18, "decimal(38,9)"
#: From this number of texts on, a type is dropped if less than this share of them fits.
_MANY, _LEAST = 1000, 0.5
_SHOWN = 3
#: Number of texts at the beginning of a column that decide which languages and times are tried.
_FIRST = 50


def propose(tables: Iterable[pa.Table], share: float, is_sanitized: bool = False) -> list[ProposedType]:
    """Return the proposed types of the columns of texts.

    :param tables: the rows; columns that are not strings are left out.
    :param share: the minimum share of the texts that must fit, 0 to 1.
    :param is_sanitized: whether the texts are from CSV that was written with ``sanitize_formulas``; False by
        default.
    """
    columns: dict[str, _Texts] = {}
    for table in tables:
        for field in table.schema:
            if pa.types.is_string(field.type):
                texts = table[field.name].combine_chunks()
                columns.setdefault(field.name, _Texts()).add(unsanitized(texts) if is_sanitized else texts)
    return [texts.proposed(name, share) for name, texts in columns.items()]


class _Candidate:
    """A type that is tried, and the number of texts that fit it."""

    def __init__(self, kind: ColumnType, needed: str, may_be_text: bool) -> None:
        self.kind, self._needed, self.may_be_text = kind, needed, may_be_text
        self.fits = self.decimals = self.whole = 0
        self.seen: set[Any] = set()
        self.misfits: tuple[str, ...] = ()
        self.others: set[_Candidate] = set()
        self.read = pa.nulls(0)

    def add(self, texts: pa.Array, counts: pa.Array) -> None:
        values, _ = parse(texts, self.kind)
        if self._needed:
            values = pc.if_else(pc.match_substring_regex(texts, self._needed), values, None)
        is_right = pc.is_valid(values)
        self.fits += pc.sum(pc.if_else(is_right, counts, 0)).as_py() or 0
        if len(self.misfits) < _SHOWN:
            self.misfits = (*self.misfits, *texts.filter(pc.invert(is_right)).to_pylist())[:_SHOWN]
        if self.kind.type == _TRIED:
            ends = rf"{re.escape(self.kind.marks[0])}(?P<decimals>\p{{Nd}}*)\P{{Nd}}*$"
            decimals = pc.struct_field(pc.extract_regex(texts.filter(is_right), ends), "decimals")
            self.decimals = max(self.decimals, pc.max(pc.utf8_length(decimals)).as_py() or 0)
            self.whole = max(self.whole, len(str(int(pc.max(pc.abs(values)).as_py() or 0))))
        if self.kind.type == "bool":
            self.seen.update(pc.unique(values.drop_null()).to_pylist())
        self.read = values.cast(arrow_type(_TRIED)) if self.kind.type == "int64" else values

    @property
    def declared(self) -> str | dict[str, Any]:
        declared = self.kind.declared
        if self.kind.type != _TRIED:
            return declared
        name = f"decimal({min(38, max(_DIGITS, self.whole + self.decimals))},{self.decimals})"
        return {**declared, "type": name} if isinstance(declared, dict) else name


class _Texts:
    """The texts of a column."""

    def __init__(self) -> None:
        self._count = 0
        self._candidates: list[_Candidate] = []
        self._are_codes = False

    def add(self, texts: pa.Array) -> None:
        filled = texts.filter(pc.not_equal(pc.utf8_trim_whitespace(texts), ""))
        if not len(filled):
            return
        counted = filled.value_counts()
        values, counts = counted.field("values"), counted.field("counts")
        self._candidates = self._candidates if self._count else list(_candidates(values))
        self._count += len(filled)
        self._are_codes |= pc.any(pc.match_substring_regex(values, _CODE)).as_py()
        for candidate in self._candidates:
            candidate.add(values, counts)
        if self._count >= _MANY:
            self._candidates = [one for one in self._candidates if one.fits >= self._count * _LEAST]
        fitting = [one for one in self._candidates if one.fits]
        for one, other in itertools.combinations(fitting, 2):
            is_alike = one.read.type == other.read.type
            if is_alike and pc.any(pc.not_equal(one.read, other.read)).as_py():
                one.others.add(other)

    def proposed(self, name: str, share: float) -> ProposedType:
        fitting = [
            one
            for one in self._candidates
            if one.fits and one.fits >= self._count * share
            if not (self._are_codes and one.kind.is_number) and len(one.seen) != 1
        ]
        if not fitting:
            return ProposedType(name, None, (), self._count, 0.0, ())
        best = max(fitting, key=lambda one: one.fits)
        others = [one for one in fitting if one in best.others or best in one.others][:1]
        readings = tuple(one.declared for one in (best, *others)) if others else ()
        if best.may_be_text and not others:
            readings = (best.declared, STRING)
        found = self._count, best.fits / self._count, best.misfits
        return ProposedType(name, None if readings else best.declared, readings, *found)


def _candidates(texts: pa.Array) -> Iterator[_Candidate]:
    """Yield the types to try, the narrower ones first.

    :param texts: the first texts of a column.
    """
    for words in _WORDS:
        true, false = words.split()
        yield _candidate({"type": "bool", "true": [true], "false": [false]})
    around: list[tuple[dict[str, Any], str]] = [({}, _EXACT), ({"currency": True}, _MONEY)]
    units = pc.unique(pc.struct_field(pc.extract_regex(texts, _UNIT), "unit")).to_pylist()
    if len(units) == 1 and (unit := units[0]) is not None:
        word = unit.strip()
        # a single letter right after a number may mean thousands, or be part of a code
        if word.lower().rstrip(".") not in _NO_UNITS and (len(unit) > 1 or not unit.isalpha()):
            around.append(({"unit": word}, ""))
    lengths = pc.min_max(pc.utf8_length(texts))
    have_one_length = lengths["min"] == lengths["max"] and len(texts) > 1
    for more, needed in around:
        for kind in ("int64", _TRIED):
            for decimal, thousands in _MARKS:
                marks = {"decimal": None if decimal == "." else decimal, "thousands": thousands}
                # telephone numbers and ids are written in groups, too
                may_be_text = bool(thousands) and not more and have_one_length
                yield _candidate({"type": kind, **marks, **more}, needed, may_be_text)
    yield _candidate({"type": "float64"}, _FLOAT)
    for kind in ("date32", "timestamp", "timestamptz", "url"):
        yield _candidate({"type": kind})
    for keys in _dated(texts[:_FIRST].to_pylist()):
        yield _candidate(keys, _SHORT if "%y" in keys["format"] else "")


def _dated(texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield types of dates and times whose formats the texts may have."""
    sample = "\n".join(texts).lower()
    formats: list[dict[str, str]] = [{"format": form} for form in (*_DAYS, *_SHORT_DAYS)]
    for locale in _LOCALES:
        if any(name in sample for name in names_of(locale, "months")):
            before = (
                ("", "%a, ", "%a ") if any(name in sample for name in names_of(locale, "days")) else ("",)
            )
            formats += [{"format": day + form, "locale": locale} for day in before for form in _NAMED_DAYS]
    for keys in formats if any(map(str.isdecimal, sample)) else ():
        yield {"type": "date32", **keys}
        for clock in _CLOCKS if ":" in sample else ():
            yield {"type": "timestamp", **keys, "format": keys["format"] + clock}


def _candidate(declared: dict[str, Any], needed: str = "", may_be_text: bool = False) -> _Candidate:
    return _Candidate(column_type("column_types", declared), needed, may_be_text)
