"""Texts as sites write them, the types declared for them, and their values."""

# ruff: noqa: RUF001  # the characters are meant

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any, NamedTuple

#: The value of a text that does not fit its type.
WRONG = object()
#: The type declared for a column.
Kind = str | dict[str, Any]


class Case(NamedTuple):
    """The type of a column, a text in it, and its value; ``WRONG`` for no value, None for an empty text."""

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
HOUR = {"type": "timestamp", "format": "%m/%d/%Y %I%p"}
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


#: A type, a value, and texts that have this value in a column of the type.
_NUMBERS: list[tuple[Any, ...]] = [
    # without a declaration
    ("decimal(12,2)", price("22.90"), "22.90"),
    ("decimal(12,2)", WRONG, "1.234", "22,90", "22,90 €"),
    ("float64", 1.234, "1.234"),
    ("float64", -12.0, "-12"),
    ("float64", "NaN", "NaN"),
    ("float64", WRONG, "1,234", "\u221212"),
    ("int64", WRONG, "1.234", "１２"),
    # marks
    (GERMAN, price("1299"), "1.299,00", "\u00a01.299,00\u2009"),
    (GERMAN, price("1234"), "1.234"),
    (GERMAN, price("1299.50"), "1299,5", "１.２９９,５０"),
    (GERMAN, price("1234567.89"), "1.234.567,89"),
    (GERMAN, price("0.99"), "0,99"),
    (GERMAN, price("-1299"), "-1.299,00", "\u22121.299,00"),
    (GERMAN, price("1.50"), "+1,50"),
    (GERMAN, None, "", " \u00a0\n"),
    (GERMAN, price("9999999999.99"), "9999999999,99"),
    (GERMAN, WRONG, "22.90", "1,234.50", "12.34", "0.123", "1.2.3", "1.234.56", "1234.567", "1,2,3", "1,"),
    (GERMAN, WRONG, ",5", "1,234", "22,90 €", "--1", "- 1", "1-", "\u20131", "(1,50)", "1e3", "NaN"),
    (GERMAN, WRONG, "10000000000,00"),
    (decimal(decimal=","), price("1299"), "1299,00"),
    (decimal(decimal=","), WRONG, "1.299,00", "12.5"),
    (decimal(thousands=","), price("1299"), "1,299.00"),
    (decimal(thousands=","), WRONG, "1,29", "12,34,567.89"),
    (decimal(decimal="٫"), price("3.14"), "٣٫١٤"),
    (decimal(locale="ar_EG"), price("3.14"), "٣٫١٤"),
    (decimal(locale="ar_EG"), price("1234.5"), "١٬٢٣٤٫٥"),
    (decimal(locale="de"), price("1234.5"), "1.234,5"),
    (decimal(locale="de_CH"), price("1234.5"), "1’234.50"),
    (decimal(locale="fr"), price("1234.5"), "1\u202f234,50", "1 234,50"),
    (decimal(locale="de", thousands="'"), price("1234.5"), "1'234,50"),
    (FRENCH, price("1234.5"), "1 234,5", "1\u00a0234,5", "1\u2009234,5", "1\u3000234,5"),
    (FRENCH, WRONG, "1  234,5", "1 23,5"),
    (INDIAN, price("1234567.89"), "12,34,567.89"),
    (INDIAN, price("1234.5"), "1,234.5"),
    (INDIAN, WRONG, "1,234,567", "12,34.5"),
    (COUNT, 1234, "1.234"),
    (COUNT, -5, "-5"),
    (COUNT, 2**63 - 1, "9.223.372.036.854.775.807"),
    (COUNT, WRONG, "1.23", "9.223.372.036.854.775.808"),
    ({"type": "int32", "thousands": ","}, WRONG, "2,147,483,648"),
    ({"type": "int64", "decimal": ","}, WRONG, "12,00"),
    ({"type": "float64", "decimal": ","}, 0.1, "0,1"),
    ({"type": "float64", "decimal": ","}, 3.0, "٣"),
    ({"type": "float64", "decimal": ","}, WRONG, "1" + "0" * 400, "1e400"),
    # currencies
    (EURO, price("22.90"), "€ 22,90", "22,90 €", "22,90€", "EUR 22,90", "ab 22,90 €"),
    (EURO, price("22.90"), "ab\u00a022,90\u00a0€", "22,90 € inkl. MwSt."),
    (EURO, price("1299"), "1.299,– €", "1.299,-", "1.299,-- €"),
    (EURO, price("-22.90"), "-22,90 €", "-€22,90", "€ -22,90", "€\u221222,90"),
    (EURO, price("22"), "22"),
    (EURO, price("1.50"), "1,5 Mio. €"),
    (EURO, WRONG, "-€-22,90", "22,90 € 19,90 €", "22,90–25,90 €", "3 für 2 €", "22,90 (€)", "22,90 € / kg"),
    (EURO, WRONG, "22,90 €*", "€", "gratis", "22.90 €", "T-Shirt 22,90 €", "UVP-22,90 €", "€ - 22,90"),
    (EURO, WRONG, "Sonderpreis: 22,90 €"),
    (DOLLAR, price("22.90"), "22.90 USD"),
    (DOLLAR, price("1299"), "$1,299.00", "US$ 1,299"),
    (DOLLAR, price("500"), "Rs. 500"),
    # a leading point is a decimal mark after a currency sign, but not after a word
    (DOLLAR, WRONG, "1.299,00 $", "$.99", "US$.99"),
    (decimal(currency=True), price("50"), "Rs.50"),
    (SWISS, price("1299"), "CHF 1'299.–"),
    (SWISS, price("1299.50"), "CHF 1’299.50"),
    (SWISS, price("22.90"), "Fr. 22.90"),
    (decimal(currency=True), price("22.90"), "د.إ. 22.90", "₹ 22.90"),
    # units
    (KILOMETRES, 12.0, "12 km", "km 12", "12\u00a0km"),
    (KILOMETRES, 12.5, "12.5km"),
    (KILOMETRES, WRONG, "12", "12 m", "12 km/h", "12 km 5 km", "km"),
    (AREA, 64.5, "64,5 m²"),
    (AREA, WRONG, "64,5 m2"),
    ({"type": "float64", "unit": "l/100 km"}, 5.6, "5.6 l/100 km"),
]
_TIMES: list[tuple[Any, ...]] = [
    (DAY, day(2026, 8, 3), "03.08.2026", "3.8.2026", "０３.０８.２０２６"),
    (DAY, day(2028, 2, 29), "29.02.2028"),
    (DAY, None, ""),
    (DAY, WRONG, "29.02.2026", "31.04.2026", "00.04.2026", "12.13.2026", "2026-08-03", "03.08.26"),
    (DAY, WRONG, "03.08.2026 10:00", "am 03.08.2026"),
    (SHORT_YEAR, day(2026, 4, 3), "03/04/26"),
    (SHORT_YEAR, day(2068, 4, 3), "03/04/68"),
    (SHORT_YEAR, day(1969, 4, 3), "03/04/69"),
    (SHORT_YEAR, WRONG, "03/04/2026"),
    (GERMAN_DAY, day(2026, 8, 3), "Mo., 3. Aug. 2026", "Mo, 3. Aug 2026", "Montag, 3. August 2026"),
    (GERMAN_DAY, day(2026, 8, 3), "Mo.,\u00a03.\u00a0Aug. 2026"),
    (GERMAN_DAY, day(2026, 3, 3), "mo., 03. märz 2026", "Mo., 3. MÄRZ 2026"),
    (GERMAN_DAY, WRONG, "Mon., 3. Aug. 2026", "Mo., 3. May 2026"),
    (FRENCH_DAY, day(2026, 8, 3), "3 août 2026"),
    (FRENCH_DAY, day(2026, 2, 3), "3 févr. 2026"),
    (FRENCH_DAY, WRONG, "3 August 2026"),
    (POLISH_DAY, day(2026, 8, 3), "3 sierpnia 2026", "3 sierpień 2026"),
    (JAPANESE_DAY, day(2026, 8, 3), "2026年8月3日", "２０２６年８月３日"),
    (TIGHT_DAY, day(2026, 8, 3), "20260803"),
    (TIGHT_DAY, WRONG, "2026083"),
    (CLOCK, datetime.datetime(2026, 8, 3, 13, 5), "08/03/2026 01:05 PM"),
    (CLOCK, datetime.datetime(2026, 8, 3, 0, 5), "8/3/2026 12:05 a.m."),
    (CLOCK, datetime.datetime(2026, 8, 3, 12, 5), "8/3/2026 12:05 pm"),
    (CLOCK, WRONG, "8/3/2026 13:05 pm", "8/3/2026 00:05 am", "8/3/2026 01:05"),
    (HOUR, datetime.datetime(2026, 8, 3, 15), "8/3/2026 3pm", "08/03/2026 03PM"),
    (SECONDS, datetime.datetime(2026, 8, 3, 10, 11, 12, 500000), "03.08.2026 10:11:12.5"),
    (SECONDS, datetime.datetime(2026, 8, 3, 10, 11, 12, 1), "03.08.2026 10:11:12.000001"),
    (SECONDS, WRONG, "03.08.2026 24:00:00.0"),
    (ZONED, datetime.datetime(2026, 8, 3, 8, tzinfo=UTC), "03.08.2026 10:00 +0200"),
    (ZONED, datetime.datetime(2026, 8, 3, 10, tzinfo=UTC), "03.08.2026 10:00 Z"),
    (ZONED, datetime.datetime(2026, 8, 3, 15, 30, tzinfo=UTC), "03.08.2026 10:00 -05:30"),
    (ZONED, WRONG, "03.08.2026 10:00"),
    (BERLIN, datetime.datetime(2026, 8, 3, 8, tzinfo=UTC), "03.08.2026 10:00"),
    (BERLIN, datetime.datetime(2026, 1, 3, 9, tzinfo=UTC), "03.01.2026 10:00"),
    (BERLIN, datetime.datetime(2026, 10, 25, 2, 30, tzinfo=UTC), "25.10.2026 03:30"),
    (BERLIN, datetime.datetime(2040, 7, 1, 10, tzinfo=UTC), "01.07.2040 12:00"),
    (BERLIN, WRONG, "25.10.2026 02:30", "29.03.2026 02:30", "25.03.2040 02:30"),
    (ISO_BERLIN, datetime.datetime(2026, 8, 3, 8, tzinfo=UTC), "2026-08-03 10:00"),
    (ISO_BERLIN, datetime.datetime(2026, 8, 3, 10, tzinfo=UTC), "2026-08-03T10:00:00+00:00"),
    (ISO_BERLIN, datetime.datetime(2026, 8, 3, 10, tzinfo=UTC), "2026-08-03T10:00Z"),
    (ISO_BERLIN, datetime.datetime(2026, 8, 2, 22, tzinfo=UTC), "2026-08-03"),
    (ISO_BERLIN, WRONG, "0001-01-01T00:00:00"),
    (NEW_YORK, datetime.datetime(9999, 12, 31, 17, tzinfo=UTC), "9999-12-31T12:00"),
    (NEW_YORK, WRONG, "9999-12-31T23:59"),
    ("timestamptz", WRONG, "2026-08-03T10:00"),
    ("date32", day(2026, 8, 3), "2026-08-03"),
    ("date32", WRONG, "03.08.2026"),
]
_OTHERS: list[tuple[Any, ...]] = [
    ("bool", True, "true"),
    ("bool", WRONG, "ja"),
    (STOCK, True, "ja", " Ja\n", "In Stock", "in\u00a0 stock"),
    (STOCK, False, "NEIN"),
    (STOCK, None, ""),
    (STOCK, WRONG, "true", "vielleicht"),
    ({"type": "bool", "true": ["διαθέσιμος"]}, True, "ΔΙΑΘΈΣΙΜΟΣ"),
    (ONLY_TRUE, True, "ja"),
    (ONLY_TRUE, WRONG, "nein"),
    (LINK, "https://shop.example/p/17?ref=x", "/p/17?ref=x"),
    (LINK, "https://shop.example/17", "/p/../17", "../17"),
    (LINK, "https://shop.example/de/17", "17"),
    (LINK, "https://shop.example/de/list?page=3", "?page=3"),
    (LINK, "https://shop.example/de/list?page=2", "#top"),
    (LINK, "https://shop.example/p/17", "/p/17#reviews"),
    (LINK, "https://cdn.example/a.png", "//cdn.example/a.png"),
    (LINK, "https://other.example/p", "https://other.example/p#x"),
    (LINK, "HTTP://other.example", "HTTP://other.example"),
    (LINK, "https://shop.example/p/ä", "/p/ä"),
    (LINK, None, ""),
    (LINK, WRONG, "mailto:a@b.example", "javascript:void(0)", "/p/a b", "http://[", "a\nb"),
    (LINK, WRONG, "//a\tb.example", "///x", "\x01/p", "https://"),
    ("url", "https://shop.example/p", "https://shop.example/p"),
    ("url", WRONG, "/p/17"),
    ("string", " as it is ", " as it is "),
]
CASES = [Case(kind, text, value) for kind, value, *texts in _NUMBERS + _TIMES + _OTHERS for text in texts]
NAMES = [f"c{number}" for number in range(len(CASES))]
ROW = {name: case.text for name, case in zip(NAMES, CASES, strict=True)}
TYPES = {name: case.kind for name, case in zip(NAMES, CASES, strict=True)}
OPTIONS: dict[str, Any] = {"column_types": TYPES, "on_cast_error": "null"}


def as_expected(values: dict[str, Any], *, types: bool = True) -> None:
    """Check the values of the cases; a text that does not fit must have become null."""
    for name, case in zip(NAMES, CASES, strict=True):
        value = values[name]
        if case.value == "NaN":
            assert math.isnan(value)
            continue
        expected = None if case.value is WRONG else case.value
        assert value == expected, (case, value)
        assert not types or value is None or type(value) is type(expected), case
