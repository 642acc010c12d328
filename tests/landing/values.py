"""Texts as sites write them, what is declared of them, and their values."""

# ruff: noqa: RUF001  # the characters are meant

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any, NamedTuple

WRONG = object()
#: A text that does not fit becomes this where it may.
Kind = str | dict[str, Any]


class Case(NamedTuple):
    """A text of a column, and the value that it has; ``WRONG`` for none, None for an empty text."""

    kind: Kind
    text: str
    value: Any


def decimal(**keys: Any) -> dict[str, Any]:
    return {"type": "decimal(12,2)", **keys}


GERMAN = decimal(decimal=",", thousands=".")
EURO = decimal(decimal=",", thousands=".", currency=True)
DOLLAR = decimal(thousands=",", currency=True)
SWISS = decimal(thousands="'", currency=True)
FRENCH = decimal(decimal=",", thousands=" ")
INDIAN = decimal(locale="en_IN")
KILOMETRES = {"type": "float64", "unit": "km"}
AREA = {"type": "float64", "decimal": ",", "unit": "m²"}
COUNT = {"type": "int64", "thousands": "."}
DAY = {"type": "date32", "format": "%d.%m.%Y"}
SHORT_YEAR = {"type": "date32", "format": "%d/%m/%y"}
GERMAN_DAY = {"type": "date32", "format": "%a, %d. %b %Y", "locale": "de"}
FRENCH_DAY = {"type": "date32", "format": "%d %B %Y", "locale": "fr"}
POLISH_DAY = {"type": "date32", "format": "%d %B %Y", "locale": "pl"}
JAPANESE_DAY = {"type": "date32", "format": "%Y年%m月%d日"}
TIGHT_DAY = {"type": "date32", "format": "%Y%m%d"}
CLOCK = {"type": "timestamp", "format": "%m/%d/%Y %I:%M %p"}
SECONDS = {"type": "timestamp", "format": "%d.%m.%Y %H:%M:%S.%f"}
ZONED = {"type": "timestamptz", "format": "%d.%m.%Y %H:%M %z"}
BERLIN = {"type": "timestamptz", "format": "%d.%m.%Y %H:%M", "timezone": "Europe/Berlin"}
ISO_BERLIN = {"type": "timestamptz", "timezone": "Europe/Berlin"}
NEW_YORK = {"type": "timestamptz", "timezone": "America/New_York"}
STOCK = {"type": "bool", "true": ["ja", "in stock"], "false": ["nein"]}
ONLY_TRUE = {"type": "bool", "true": ["ja"]}
LINK = {"type": "url", "base": "https://shop.example/de/list?page=2"}

UTC = datetime.UTC


def price(text: str) -> Decimal:
    return Decimal(text).quantize(Decimal("0.01"))


def day(year: int, month: int, date: int) -> datetime.date:
    return datetime.date(year, month, date)


_NUMBERS: list[tuple[Kind, str, Any]] = [
    # without a declaration
    ("decimal(12,2)", "22.90", price("22.90")),
    ("decimal(12,2)", "1.234", WRONG),
    ("float64", "1.234", 1.234),
    ("float64", "1,234", WRONG),
    ("int64", "1.234", WRONG),
    ("decimal(12,2)", "22,90", WRONG),
    ("decimal(12,2)", "22,90 €", WRONG),
    ("float64", "-12", -12.0),
    ("float64", "\u221212", WRONG),
    ("int64", "１２", WRONG),
    ("float64", "NaN", "NaN"),
    # marks
    (GERMAN, "1.299,00", price("1299")),
    (GERMAN, "1.234", price("1234")),
    (GERMAN, "1299,5", price("1299.50")),
    (GERMAN, "1.234.567,89", price("1234567.89")),
    (GERMAN, "0,99", price("0.99")),
    (GERMAN, "22.90", WRONG),
    (GERMAN, "1,234.50", WRONG),
    (GERMAN, "12.34", WRONG),
    (GERMAN, "0.123", WRONG),
    (GERMAN, "1.2.3", WRONG),
    (GERMAN, "1.234.56", WRONG),
    (GERMAN, "1234.567", WRONG),
    (GERMAN, "1,2,3", WRONG),
    (GERMAN, "1,", WRONG),
    (GERMAN, ",5", WRONG),
    (GERMAN, "1,234", WRONG),
    (GERMAN, "22,90 €", WRONG),
    (GERMAN, "-1.299,00", price("-1299")),
    (GERMAN, "\u22121.299,00", price("-1299")),
    (GERMAN, "+1,50", price("1.50")),
    (GERMAN, "--1", WRONG),
    (GERMAN, "- 1", WRONG),
    (GERMAN, "1-", WRONG),
    (GERMAN, "\u20131", WRONG),
    (GERMAN, "(1,50)", WRONG),
    (GERMAN, "1e3", WRONG),
    (GERMAN, "NaN", WRONG),
    (GERMAN, "", None),
    (GERMAN, " \u00a0\n", None),
    (GERMAN, "\u00a01.299,00\u2009", price("1299")),
    (GERMAN, "１.２９９,５０", price("1299.50")),
    (GERMAN, "9999999999,99", price("9999999999.99")),
    (GERMAN, "10000000000,00", WRONG),
    (decimal(decimal=","), "1299,00", price("1299")),
    (decimal(decimal=","), "1.299,00", WRONG),
    (decimal(decimal=","), "12.5", WRONG),
    (decimal(thousands=","), "1,299.00", price("1299")),
    (decimal(thousands=","), "1,29", WRONG),
    (decimal(decimal="٫"), "٣٫١٤", price("3.14")),
    (decimal(locale="ar_EG"), "٣٫١٤", price("3.14")),
    (decimal(locale="ar_EG"), "١٬٢٣٤٫٥", price("1234.5")),
    (decimal(locale="de"), "1.234,5", price("1234.5")),
    (decimal(locale="de_CH"), "1’234.50", price("1234.5")),
    (decimal(locale="fr"), "1\u202f234,50", price("1234.5")),
    (decimal(locale="fr"), "1 234,50", price("1234.5")),
    (decimal(locale="de", thousands="'"), "1'234,50", price("1234.5")),
    (FRENCH, "1 234,5", price("1234.5")),
    (FRENCH, "1\u00a0234,5", price("1234.5")),
    (FRENCH, "1\u2009234,5", price("1234.5")),
    (FRENCH, "1\u3000234,5", price("1234.5")),
    (FRENCH, "1  234,5", WRONG),
    (FRENCH, "1 23,5", WRONG),
    (INDIAN, "12,34,567.89", price("1234567.89")),
    (INDIAN, "1,234.5", price("1234.5")),
    (INDIAN, "1,234,567", WRONG),
    (INDIAN, "12,34.5", WRONG),
    (decimal(thousands=","), "12,34,567.89", WRONG),
    (COUNT, "1.234", 1234),
    (COUNT, "1.23", WRONG),
    (COUNT, "-5", -5),
    (COUNT, "9.223.372.036.854.775.807", 2**63 - 1),
    (COUNT, "9.223.372.036.854.775.808", WRONG),
    ({"type": "int32", "thousands": ","}, "2,147,483,648", WRONG),
    ({"type": "int64", "decimal": ","}, "12,00", WRONG),
    ({"type": "float64", "decimal": ","}, "0,1", 0.1),
    ({"type": "float64", "decimal": ","}, "1" + "0" * 400, WRONG),
    ({"type": "float64", "decimal": ","}, "1e400", WRONG),
    ({"type": "float64", "decimal": ","}, "٣", 3.0),
    # currencies
    (EURO, "€ 22,90", price("22.90")),
    (EURO, "22,90 €", price("22.90")),
    (EURO, "22,90€", price("22.90")),
    (EURO, "EUR 22,90", price("22.90")),
    (EURO, "ab 22,90 €", price("22.90")),
    (EURO, "ab\u00a022,90\u00a0€", price("22.90")),
    (EURO, "22,90 € inkl. MwSt.", price("22.90")),
    (EURO, "1.299,– €", price("1299")),
    (EURO, "1.299,-", price("1299")),
    (EURO, "1.299,-- €", price("1299")),
    (EURO, "-22,90 €", price("-22.90")),
    (EURO, "-€22,90", price("-22.90")),
    (EURO, "€ -22,90", price("-22.90")),
    (EURO, "€\u221222,90", price("-22.90")),
    (EURO, "-€-22,90", WRONG),
    (EURO, "22", price("22")),
    (EURO, "22,90 € 19,90 €", WRONG),
    (EURO, "22,90–25,90 €", WRONG),
    (EURO, "3 für 2 €", WRONG),
    (EURO, "22,90 (€)", WRONG),
    (EURO, "22,90 € / kg", WRONG),
    (EURO, "22,90 €*", WRONG),
    (EURO, "€", WRONG),
    (EURO, "gratis", WRONG),
    (EURO, "22.90 €", WRONG),
    (EURO, "1,5 Mio. €", price("1.50")),
    (EURO, "T-Shirt 22,90 €", WRONG),
    (EURO, "UVP-22,90 €", WRONG),
    (EURO, "€ - 22,90", WRONG),
    (EURO, "Sonderpreis: 22,90 €", WRONG),
    (DOLLAR, "22.90 USD", price("22.90")),
    (DOLLAR, "$1,299.00", price("1299")),
    (DOLLAR, "US$ 1,299", price("1299")),
    (DOLLAR, "Rs. 500", price("500")),
    (DOLLAR, "1.299,00 $", WRONG),
    (SWISS, "CHF 1'299.–", price("1299")),
    (SWISS, "CHF 1’299.50", price("1299.50")),
    (SWISS, "Fr. 22.90", price("22.90")),
    (decimal(currency=True), "د.إ. 22.90", price("22.90")),
    (decimal(currency=True), "₹ 22.90", price("22.90")),
    # units
    (KILOMETRES, "12 km", 12.0),
    (KILOMETRES, "12.5km", 12.5),
    (KILOMETRES, "km 12", 12.0),
    (KILOMETRES, "12\u00a0km", 12.0),
    (KILOMETRES, "12", WRONG),
    (KILOMETRES, "12 m", WRONG),
    (KILOMETRES, "12 km/h", WRONG),
    (KILOMETRES, "12 km 5 km", WRONG),
    (KILOMETRES, "km", WRONG),
    (AREA, "64,5 m²", 64.5),
    (AREA, "64,5 m2", WRONG),
    ({"type": "float64", "unit": "l/100 km"}, "5.6 l/100 km", 5.6),
]
_TIMES: list[tuple[Kind, str, Any]] = [
    (DAY, "03.08.2026", day(2026, 8, 3)),
    (DAY, "3.8.2026", day(2026, 8, 3)),
    (DAY, "29.02.2028", day(2028, 2, 29)),
    (DAY, "29.02.2026", WRONG),
    (DAY, "31.04.2026", WRONG),
    (DAY, "00.04.2026", WRONG),
    (DAY, "12.13.2026", WRONG),
    (DAY, "2026-08-03", WRONG),
    (DAY, "03.08.26", WRONG),
    (DAY, "03.08.2026 10:00", WRONG),
    (DAY, "am 03.08.2026", WRONG),
    (DAY, "０３.０８.２０２６", day(2026, 8, 3)),
    (DAY, "", None),
    (SHORT_YEAR, "03/04/26", day(2026, 4, 3)),
    (SHORT_YEAR, "03/04/68", day(2068, 4, 3)),
    (SHORT_YEAR, "03/04/69", day(1969, 4, 3)),
    (SHORT_YEAR, "03/04/2026", WRONG),
    (GERMAN_DAY, "Mo., 3. Aug. 2026", day(2026, 8, 3)),
    (GERMAN_DAY, "Mo, 3. Aug 2026", day(2026, 8, 3)),
    (GERMAN_DAY, "Montag, 3. August 2026", day(2026, 8, 3)),
    (GERMAN_DAY, "mo., 03. märz 2026", day(2026, 3, 3)),
    (GERMAN_DAY, "Mo., 3. MÄRZ 2026", day(2026, 3, 3)),
    (GERMAN_DAY, "Mo.,\u00a03.\u00a0Aug. 2026", day(2026, 8, 3)),
    (GERMAN_DAY, "Mon., 3. Aug. 2026", WRONG),
    (GERMAN_DAY, "Mo., 3. May 2026", WRONG),
    (FRENCH_DAY, "3 août 2026", day(2026, 8, 3)),
    (FRENCH_DAY, "3 févr. 2026", day(2026, 2, 3)),
    (FRENCH_DAY, "3 August 2026", WRONG),
    (POLISH_DAY, "3 sierpnia 2026", day(2026, 8, 3)),
    (POLISH_DAY, "3 sierpień 2026", day(2026, 8, 3)),
    (JAPANESE_DAY, "2026年8月3日", day(2026, 8, 3)),
    (JAPANESE_DAY, "２０２６年８月３日", day(2026, 8, 3)),
    (TIGHT_DAY, "20260803", day(2026, 8, 3)),
    (TIGHT_DAY, "2026083", WRONG),
    (CLOCK, "08/03/2026 01:05 PM", datetime.datetime(2026, 8, 3, 13, 5)),
    (CLOCK, "8/3/2026 12:05 a.m.", datetime.datetime(2026, 8, 3, 0, 5)),
    (CLOCK, "8/3/2026 12:05 pm", datetime.datetime(2026, 8, 3, 12, 5)),
    (CLOCK, "8/3/2026 13:05 pm", WRONG),
    (CLOCK, "8/3/2026 00:05 am", WRONG),
    (CLOCK, "8/3/2026 01:05", WRONG),
    (SECONDS, "03.08.2026 10:11:12.5", datetime.datetime(2026, 8, 3, 10, 11, 12, 500000)),
    (SECONDS, "03.08.2026 10:11:12.000001", datetime.datetime(2026, 8, 3, 10, 11, 12, 1)),
    (SECONDS, "03.08.2026 24:00:00.0", WRONG),
    (ZONED, "03.08.2026 10:00 +0200", datetime.datetime(2026, 8, 3, 8, tzinfo=UTC)),
    (ZONED, "03.08.2026 10:00 Z", datetime.datetime(2026, 8, 3, 10, tzinfo=UTC)),
    (ZONED, "03.08.2026 10:00 -05:30", datetime.datetime(2026, 8, 3, 15, 30, tzinfo=UTC)),
    (ZONED, "03.08.2026 10:00", WRONG),
    (BERLIN, "03.08.2026 10:00", datetime.datetime(2026, 8, 3, 8, tzinfo=UTC)),
    (BERLIN, "03.01.2026 10:00", datetime.datetime(2026, 1, 3, 9, tzinfo=UTC)),
    (BERLIN, "25.10.2026 02:30", WRONG),
    (BERLIN, "29.03.2026 02:30", WRONG),
    (BERLIN, "25.10.2026 03:30", datetime.datetime(2026, 10, 25, 2, 30, tzinfo=UTC)),
    (ISO_BERLIN, "2026-08-03 10:00", datetime.datetime(2026, 8, 3, 8, tzinfo=UTC)),
    (ISO_BERLIN, "2026-08-03T10:00:00+00:00", datetime.datetime(2026, 8, 3, 10, tzinfo=UTC)),
    (ISO_BERLIN, "2026-08-03T10:00Z", datetime.datetime(2026, 8, 3, 10, tzinfo=UTC)),
    (BERLIN, "01.07.2040 12:00", datetime.datetime(2040, 7, 1, 10, tzinfo=UTC)),
    (BERLIN, "25.03.2040 02:30", WRONG),
    (ISO_BERLIN, "0001-01-01T00:00:00", WRONG),
    (NEW_YORK, "9999-12-31T23:59", WRONG),
    (NEW_YORK, "9999-12-31T12:00", datetime.datetime(9999, 12, 31, 17, tzinfo=UTC)),
    (ISO_BERLIN, "2026-08-03", datetime.datetime(2026, 8, 2, 22, tzinfo=UTC)),
    ("timestamptz", "2026-08-03T10:00", WRONG),
    ("date32", "2026-08-03", day(2026, 8, 3)),
    ("date32", "03.08.2026", WRONG),
]
_OTHERS: list[tuple[Kind, str, Any]] = [
    ("bool", "true", True),
    ("bool", "ja", WRONG),
    (STOCK, "ja", True),
    (STOCK, " Ja\n", True),
    (STOCK, "In Stock", True),
    (STOCK, "NEIN", False),
    (STOCK, "in\u00a0 stock", True),
    ({"type": "bool", "true": ["διαθέσιμος"]}, "ΔΙΑΘΈΣΙΜΟΣ", True),
    (STOCK, "true", WRONG),
    (STOCK, "vielleicht", WRONG),
    (STOCK, "", None),
    (ONLY_TRUE, "ja", True),
    (ONLY_TRUE, "nein", WRONG),
    (LINK, "/p/17?ref=x", "https://shop.example/p/17?ref=x"),
    (LINK, "/p/../17", "https://shop.example/17"),
    (LINK, "17", "https://shop.example/de/17"),
    (LINK, "../17", "https://shop.example/17"),
    (LINK, "?page=3", "https://shop.example/de/list?page=3"),
    (LINK, "#top", "https://shop.example/de/list?page=2"),
    (LINK, "/p/17#reviews", "https://shop.example/p/17"),
    (LINK, "//cdn.example/a.png", "https://cdn.example/a.png"),
    (LINK, "https://other.example/p#x", "https://other.example/p"),
    (LINK, "HTTP://other.example", "HTTP://other.example"),
    (LINK, "/p/ä", "https://shop.example/p/ä"),
    (LINK, "mailto:a@b.example", WRONG),
    (LINK, "javascript:void(0)", WRONG),
    (LINK, "/p/a b", WRONG),
    (LINK, "http://[", WRONG),
    (LINK, "a\nb", WRONG),
    (LINK, "//a\tb.example", WRONG),
    (LINK, "///x", WRONG),
    (LINK, "\x01/p", WRONG),
    (LINK, "https://", WRONG),
    (LINK, "", None),
    ("url", "https://shop.example/p", "https://shop.example/p"),
    ("url", "/p/17", WRONG),
    ("string", " as it is ", " as it is "),
]
CASES = [Case(*case) for case in (*_NUMBERS, *_TIMES, *_OTHERS)]
NAMES = [f"c{number}" for number in range(len(CASES))]
ROW = {name: case.text for name, case in zip(NAMES, CASES, strict=True)}
TYPES = {name: case.kind for name, case in zip(NAMES, CASES, strict=True)}
OPTIONS: dict[str, Any] = {"column_types": TYPES, "on_cast_error": "null"}


def as_expected(values: dict[str, Any], *, types: bool = True) -> None:
    """Check the values of the cases, of which those that are wrong are null."""
    for name, case in zip(NAMES, CASES, strict=True):
        value = values[name]
        if case.value == "NaN":
            assert math.isnan(value)
            continue
        expected = None if case.value is WRONG else case.value
        assert value == expected, (case, value)
        assert not types or value is None or type(value) is type(expected), case
