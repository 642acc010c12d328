"""Random texts in columns with types: what is read is what Python reads, or nothing."""

from __future__ import annotations

import contextlib
import datetime
import math
import random
import re
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest

from airflow_provider_webcollect.landing.formats import make_format
from tests.conftest import ALL_HISTORIES
from tests.landing.formats.parts import land, page, read_parquet

SEEDS = range(3 if ALL_HISTORIES else 1)
COUNT = 3000

Maker = Callable[[random.Random], str]


def read_as(kind: str, texts: Sequence[str]) -> list[Any]:
    chosen = make_format("parquet", column_types={"x": kind}, on_cast_error="null")
    (part,) = land(chosen, page(*({"x": text} for text in texts)))
    return [row["x"] for row in read_parquet(part)]


def digits(chance: random.Random, most: int) -> str:
    return "".join(chance.choice("0123456789") for _ in range(chance.randint(0, most)))


def number(chance: random.Random, most: int) -> str:
    text = chance.choice(["", "-", "+"]) + chance.choice(["", "0", "000"]) + digits(chance, most)
    if chance.random() < 0.5:
        text += "." + digits(chance, chance.choice([2, 10, 40])) + "0" * chance.choice([0, 0, 3, 45])
    if chance.random() < 0.3:
        text += chance.choice("eE") + chance.choice(["", "+", "-"]) + digits(chance, 3)
    return text


def fraction(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except ValueError:
        return None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("precision", "scale"), [(38, 0), (38, 10), (38, 38), (30, 10), (19, 18), (10, 2), (5, 5), (1, 0)]
)
def test_decimals_are_exact_or_unread(precision: int, scale: int, seed: int) -> None:
    chance = random.Random(seed)
    texts = [number(chance, chance.choice([3, 10, 38, 40, 60])) or "0" for _ in range(COUNT)]
    for text, value in zip(texts, read_as(f"decimal({precision},{scale})", texts), strict=True):
        exact = fraction(text)
        units = exact * 10**scale if exact is not None else Fraction(1, 2)
        fits = units.denominator == 1 and abs(units) < 10**precision
        assert (value if value is None else Fraction(value)) == (exact if fits else None), text


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bits", [32, 64])
def test_integers_are_exact_or_unread(bits: int, seed: int) -> None:
    chance = random.Random(seed)
    edges = [2**31, 2**32, 2**63, 2**64, 2**128]
    texts = [
        chance.choice(
            [
                chance.choice(["", "-", "+", "0x", "0X", "-0x", "0b", "0o"]) + (digits(chance, 22) or "0"),
                str(chance.choice([1, -1]) * (chance.choice(edges) + chance.randint(-2, 2))),
                hex(chance.getrandbits(bits)),
                f"{chance.randint(0, 9)}{chance.choice(['.0', 'e1', '_0', ',0', 'L'])}",
            ]
        )
        for _ in range(COUNT)
    ]
    for text, value in zip(texts, read_as(f"int{bits}", texts), strict=True):
        exact = int(text) if re.fullmatch("-?[0-9]+", text) else None
        fits = exact is not None and -(2 ** (bits - 1)) <= exact < 2 ** (bits - 1)
        assert value == (exact if fits else None), text


def nearest(text: str, bits: int) -> float | None:
    """The float next to a text, None if it is beyond all of them."""
    try:
        value = float(text)
        near = value if bits == 64 else struct.unpack("f", struct.pack("f", value))[0]
    except (ValueError, OverflowError):
        return None
    return None if math.isinf(near) and "n" not in text.lower() else near


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bits", [32, 64])
def test_floats_are_the_nearest_or_unread(bits: int, seed: int) -> None:
    chance = random.Random(seed)
    texts = [
        chance.choice(
            [
                number(chance, 60) or "0",
                repr(struct.unpack("d", chance.randbytes(8))[0]),
                chance.choice(["", "-", "+"]) + chance.choice(["inf", "Infinity", "NAN", "nan", "0x1p3"]),
                f"{chance.uniform(1, 9)}e{chance.choice([37, 38, 39, 307, 308, 309, -46, -324])}",
            ]
        )
        for _ in range(COUNT)
    ]
    for text, value in zip(texts, read_as(f"float{bits}", texts), strict=True):
        assert repr(value).lstrip("-") == repr(nearest(text, bits)).lstrip("-"), text
        assert value is None or math.isnan(value) or (value < 0) == (text[0] == "-" and value != 0)


def day(chance: random.Random) -> str:
    year = chance.choice([0, 1, 4, 1582, 1900, 1970, 2024, 9999])
    return f"{year:04d}-{chance.randint(0, 13):02d}-{chance.randint(0, 32):02d}"


def moment(chance: random.Random) -> str:
    return f"{day(chance)}{chance.choice('T ')}{chance.randint(0, 23):02d}:{chance.randint(0, 60):02d}" + (
        f":{chance.randint(0, 60):02d}" + chance.choice(["", f".{chance.randint(0, 10**8)}"])
    )


def zoned(chance: random.Random) -> str:
    zone = chance.choice(
        ["Z", f"{chance.choice('+-')}{chance.randint(0, 24):02d}:{chance.randint(0, 59):02d}"]
    )
    return moment(chance) + zone


def in_utc(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("kind", "right", "wrong", "reference"),
    [
        ("date32", [day], [moment, zoned], datetime.date.fromisoformat),
        ("timestamp", [day, moment], [zoned], datetime.datetime.fromisoformat),
        ("timestamptz", [zoned], [day, moment], in_utc),
    ],
)
def test_times_are_those_of_the_text_or_unread(
    kind: str, right: list[Maker], wrong: list[Maker], reference: Callable[[str], datetime.date], seed: int
) -> None:
    chance = random.Random(seed)
    makers = [chance.choice(right if chance.random() < 0.9 else wrong) for _ in range(COUNT)]
    texts = [make(chance) for make in makers]
    for make, text, value in zip(makers, texts, read_as(kind, texts), strict=True):
        # Python cuts what is finer than a microsecond
        expected = None
        if make in right and not re.search(r"\.[0-9]{7}", text):
            with contextlib.suppress(ValueError, OverflowError):
                expected = reference(text)
        assert value == expected, text
