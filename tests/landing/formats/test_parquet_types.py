"""Columns with types: how chosen and random texts are read, which become null, and which fail."""

from __future__ import annotations

import contextlib
import datetime
import io
import math
import pickle
import random
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_webcollect.landing.errors import CastFailed
from airflow_provider_webcollect.landing.formats import OnCastError, make_format
from tests.landing.formats.parts import land, page, read_parquet
from tests.simulation.samples import ALL_HISTORIES

DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 13, 5, 1, 250_000)
IN_UTC = MOMENT.replace(tzinfo=datetime.UTC)


def typed(kind: str, *values: Any, on_cast_error: OnCastError = "fail") -> list[Any]:
    chosen = make_format("parquet", column_types={"x": kind}, on_cast_error=on_cast_error)
    (part,) = land(chosen, page(*({"x": value} for value in values)))
    return [row["x"] for row in read_parquet(part)]


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        ("string", ["a", 1, None, ""], ["a", "1", None, ""]),
        ("int64", ["12", -3, " 4 ", 2**63 - 1], [12, -3, 4, 2**63 - 1]),
        ("int32", ["12", 2**31 - 1], [12, 2**31 - 1]),
        ("float64", ["1.5", 2, 1e-3, "\t7\n"], [1.5, 2.0, 0.001, 7.0]),
        ("float32", ["1.5"], [1.5]),
        ("bool", ["true", False, "1", 0, "FALSE"], [True, False, True, False, False]),
        ("date32", ["2024-02-29"], [DAY]),
        ("timestamp", ["2024-02-29T13:05:01.250", "2024-02-29 13:05:01.25"], [MOMENT, MOMENT]),
        ("timestamptz", ["2024-02-29T15:05:01.250+02:00", "2024-02-29 13:05:01.25Z"], [IN_UTC, IN_UTC]),
        ("decimal(10,2)", ["12.5", 3, "-0.01"], [Decimal("12.50"), Decimal("3.00"), Decimal("-0.01")]),
        ("decimal(38, 0)", ["9" * 38], [Decimal("9" * 38)]),
        ("decimal(5,2)", ["1.5e2", "1.500", "0" * 50 + "7", "1" + "0" * 40 + "e-40", "0e-99"], [
            Decimal("150.00"), Decimal("1.50"), Decimal("7.00"), Decimal("1.00"), Decimal("0.00"),
        ]),
        ("decimal(3,3)", [".125", "-0.5", "+5.e-3"], [Decimal("0.125"), Decimal("-0.500"), Decimal("0.005")]),
        ("float64", ["inf", "-Infinity", "1e-400"], [math.inf, -math.inf, 0.0]),
        ("float32", ["+INF", "16777217"], [math.inf, 16777216.0]),
        ("date32", ["0001-01-01", "9999-12-31"], [datetime.date.min, datetime.date.max]),
        ("timestamp", ["0001-01-01", "9999-12-31T23:59:59.999999"], [
            datetime.datetime.min, datetime.datetime.max,
        ]),
    ],
)  # fmt: skip
def test_texts_and_numbers_are_read_as_the_type(kind: str, given: list[Any], read: list[Any]) -> None:
    assert typed(kind, *given) == read


@pytest.mark.parametrize(
    "kind", ["int64", "float64", "bool", "date32", "timestamp", "timestamptz", "decimal(5,1)"]
)
def test_null_absent_and_empty_are_null(kind: str) -> None:
    assert typed(kind, None, "", "  \n") == [None, None, None]


#: Types, each with values that do not fit it.
BAD: list[tuple[Any, ...]] = [
    ("int32", 2**31),
    ("int64", [1], True, {"a": 1}, str(10**40), "1_0"),
    ("float32", "3.4028236e38"),
    ("float64", "1,5", "nan(1)"),
    ("bool", "yes", "2"),
    ("decimal(4,2)", "1.234", "."),
    ("decimal(5,2)", "1e-2147483647", "1e99999999999999999999", "inf", "1_0"),
    ("date32", "2023-02-29", "10000-01-01", "0000-12-31"),
    ("timestamp", "0000-12-31T23:59:59", "2024-02-29T13:05:01.0000001"),
    ("timestamptz", "9999-12-31T23:59:59-00:01", "0001-01-01T00:00:00+00:01"),
]


@pytest.mark.parametrize(("kind", "bad"), [(kind, bad) for kind, *values in BAD for bad in values])
def test_a_value_of_another_type_fails_or_becomes_null_alone(kind: str, bad: Any) -> None:
    good = {"date32": "2024-02-29", "timestamp": "2024-02-29", "timestamptz": "2024-02-29 10:00Z"}
    fine = good.get(kind, "1")
    assert [value is None for value in typed(kind, fine, bad, fine, None, bad, on_cast_error="null")] == [
        False, True, False, True, True,
    ]  # fmt: skip
    with pytest.raises(CastFailed, match=r"`x` is .* in row 2 of the part, which is not of type "):
        typed(kind, fine, bad, fine)


def test_the_error_names_column_value_row_type_and_remedy() -> None:
    chosen = make_format("parquet", column_types={"price": "float64"})
    pages = page(*[{"price": "1"}] * 3), page({"price": "2"}, {"price": "n/a" * 100})
    with pytest.raises(CastFailed) as caught:
        land(chosen, *pages)
    message = str(caught.value)
    assert message.startswith(
        f"`price` is '{('n/a' * 100)[:100]}…' in row 5 of the part, which is not of type float64;"
    )
    assert "on_cast_error='null'" in message
    assert caught.value.permanent
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_all_parts_have_the_types_whatever_their_rows_hold() -> None:
    kinds = {"n": "int64", "d": "decimal(10,2)", "t": "timestamp", "z": "timestamptz"}
    chosen = make_format("parquet", columns=["s", *kinds], column_types=kinds)
    schemas = [pq.read_schema(io.BytesIO(land(chosen, page(row))[0])) for row in ({}, {"n": 1, "s": "x"})]
    assert schemas[0] == schemas[1]
    assert schemas[0].types == [
        pa.string(), pa.int64(), pa.decimal128(10, 2), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    ]  # fmt: skip


def test_a_page_of_nothing_but_bad_values_is_read() -> None:
    assert typed("int64", *["x"] * 1000, on_cast_error="null") == [None] * 1000


#: Seeds of the random texts, each of which is read as Python reads it, or not at all.
SEEDS = range(3 if ALL_HISTORIES else 1)
COUNT = 3000


def digits(chance: random.Random, most: int) -> str:
    return "".join(chance.choice("0123456789") for _ in range(chance.randint(0, most)))


def number(chance: random.Random, most: int) -> str:
    text = chance.choice(["", "-", "+"]) + chance.choice(["", "0", "000"]) + digits(chance, most)
    if chance.random() < 0.5:
        text += "." + digits(chance, chance.choice([2, 10, 40])) + "0" * chance.choice([0, 0, 3, 45])
    if chance.random() < 0.3:
        text += chance.choice("eE") + chance.choice(["", "+", "-"]) + digits(chance, 3)
    return text or "0"


def numeric(chance: random.Random) -> str:
    """Return a text that some readers take for a number."""
    if chance.random() < 0.5:
        return number(chance, chance.choice([3, 10, 38, 40, 60]))
    edge = chance.choice([2**31, 2**32, 2**63, 2**64, 2**128]) + chance.randint(-2, 2)
    exponent = chance.choice([37, 38, 39, 307, 308, 309, -46, -324])
    return chance.choice(
        [
            chance.choice(["", "-", "+", "0x", "0X", "-0x", "0b", "0o"]) + (digits(chance, 22) or "0"),
            chance.choice(["", "-"]) + str(edge),
            hex(chance.getrandbits(chance.choice([32, 64]))),
            f"{chance.randint(0, 9)}{chance.choice(['.0', 'e1', ',0', 'L'])}",
            repr(struct.unpack("d", chance.randbytes(8))[0]),
            chance.choice(["", "-", "+"]) + chance.choice(["inf", "Infinity", "NAN", "nan", "0x1p3"]),
            f"{chance.uniform(1, 9)}e{exponent}",
        ]
    )


def timely(chance: random.Random) -> str:
    """Return a text in the form of a date, or of a time with or without a zone, which may not exist."""
    year = chance.choice([1, 4, 1582, 1900, 1970, 2024, 9999])
    text = f"{year:04d}-{chance.randint(0, 13):02d}-{chance.randint(0, 32):02d}"
    if chance.random() < 0.7:
        text += f"{chance.choice('T ')}{chance.randint(0, 23):02d}:{chance.randint(0, 60):02d}"
        if chance.random() < 0.8:
            text += f":{chance.randint(0, 60):02d}" + chance.choice(["", f".{chance.randint(0, 10**8)}"])
        zone = f"{chance.choice('+-')}{chance.randint(0, 24):02d}:{chance.randint(0, 59):02d}"
        text += chance.choice(["", "Z", zone])
    return text


def exact(text: str, precision: int, scale: int) -> Fraction | None:
    value = Fraction(text)
    units = value * 10**scale
    return value if units.denominator == 1 and abs(units) < 10**precision else None


def whole(text: str, bits: int) -> int | None:
    value = int(text) if re.fullmatch("-?[0-9]+", text) else 2**bits
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def nearest(text: str, bits: int) -> float | None:
    """Return the float nearest to a text; None if the number is out of range."""
    value = float(text)
    near = value if bits == 64 else struct.unpack("f", struct.pack("f", value))[0]
    return None if math.isinf(near) and "n" not in text.lower() else near


def time_of(text: str, pattern: str) -> datetime.datetime:
    # Python would cut off what is finer than a microsecond
    return datetime.datetime.fromisoformat(text if re.fullmatch(pattern, text) else "")


DATE, TIME = r"[-\d]{10}", r"[T ][\d:]+(\.\d{1,6})?"
PRECISIONS = [(38, 0), (38, 10), (38, 38), (30, 10), (19, 18), (10, 2), (5, 5), (1, 0)]
#: How Python reads texts of each type: it raises an error, or returns None, for texts that do not fit.
REFERENCES: dict[str, Callable[[str], Any]] = {
    **{f"decimal({of},{scale})": partial(exact, precision=of, scale=scale) for of, scale in PRECISIONS},
    **{f"int{bits}": partial(whole, bits=bits) for bits in (32, 64)},
    **{f"float{bits}": partial(nearest, bits=bits) for bits in (32, 64)},
    "date32": lambda text: time_of(text, DATE).date(),
    "timestamp": partial(time_of, pattern=f"{DATE}({TIME})?"),
    "timestamptz": lambda text: time_of(text, rf"{DATE}{TIME}(Z|[+-][\d:]+)").astimezone(datetime.UTC),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", REFERENCES)
def test_a_text_is_read_as_python_reads_it_or_unread(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    make = timely if kind.startswith(("date", "time")) else numeric
    texts = [make(chance) for _ in range(COUNT)]
    for text, value in zip(texts, typed(kind, *texts, on_cast_error="null"), strict=True):
        expected = None
        with contextlib.suppress(ValueError, OverflowError):
            expected = REFERENCES[kind](text)
        are_no_numbers = value != value and expected != expected
        assert value == expected or are_no_numbers, text
