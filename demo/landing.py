"""Verification that the landed rows equal the service's rows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect import read_landing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MANIFEST = "_manifest.json"


class LandingProblem(RuntimeError):
    """The landed rows are not the expected ones."""


@dataclass(frozen=True)
class Landed:
    """The contents of a destination, with every row checked."""

    manifest: Path
    parts: int
    rows: int
    bytes: int


def prove(destination: Path, expected: Sequence[dict[str, Any]]) -> Landed:
    """Compare a committed destination of JSONL parts with the expected rows, in their order.

    :raises LandingProblem: naming the first difference
    """
    manifest = destination / MANIFEST
    if not manifest.is_file():
        raise LandingProblem(f"There is no {manifest}: nothing was committed")
    content = json.loads(manifest.read_bytes())
    if content["rows"] != len(expected):
        raise LandingProblem(f"The manifest says {content['rows']} rows, the service has {len(expected)}")
    parts = [_read_part(destination / part["name"], part) for part in content["parts"]]
    for number, (row, wanted) in enumerate(zip(_rows(parts), expected, strict=True), 1):
        if row != wanted:
            raise LandingProblem(f"Row {number} landed as {row}, the service has {wanted}")
    return Landed(manifest, len(parts), len(expected), sum(map(len, parts)))


def query(destination: Path) -> str:
    """Return the result of a DuckDB query on the landed rows, as a table."""
    offers = read_landing(destination).to_duckdb()
    cities = offers.aggregate(
        "city, count(*) as offers, min(try_cast(price as decimal(12, 2))) as cheapest", "city"
    )
    return str(cities.order("offers desc, city").limit(3))


def _read_part(path: Path, entry: dict[str, Any]) -> bytes:
    data = path.read_bytes()
    facts = {"bytes": len(data), "rows": data.count(b"\n"), "sha256": hashlib.sha256(data).hexdigest()}
    for what, value in facts.items():
        if entry[what] != value:
            raise LandingProblem(f"{path}: {what} is {value}, the manifest says {entry[what]}")
    return data


def _rows(parts: list[bytes]) -> Iterator[dict[str, Any]]:
    # Not splitlines(): rows may contain other line separators, such as U+2028.
    return (json.loads(line) for data in parts for line in data.split(b"\n") if line)
