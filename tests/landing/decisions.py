"""Decisions on rows that have failed their checks, and what the commits alone say of all rows.

All that knows the API of decisions, and the JSON of commits, is here.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from airflow_provider_webcollect.landing.checks import Checks, make_checks
from airflow_provider_webcollect.landing.formats import FileFormat
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from airflow_provider_webcollect.landing.write import review
from tests.landing.formats.parts import read_part

if TYPE_CHECKING:
    from tests.landing.conftest import Folder

Part = dict[str, Any]
#: The generation of a row's source, and its number in it.
Row = tuple[int, int]
Verdict = Literal["accept", "discard"]


class Target(NamedTuple):
    """Rows to decide on, by their run, by their commit, or whichever wait."""

    run_id: str | None
    commit: int | None


def listed(folder: Folder) -> list[Target]:
    """Return the rows that a person is shown to decide on."""
    return [Target(rows.run.run_id, rows.commit) for rows in review.in_review(folder.destination)]


def decide(place: Destination, verdict: Verdict, target: Target, by: str) -> int:
    """Decide on rows, and return the number of the commit that has quarantined them.

    :param by: who decides.
    """
    decided = (review.accept if verdict == "accept" else review.discard)(place, *target, by=by)
    return decided.commit


def make_checks_of(chance: random.Random, file_format: FileFormat) -> Checks | None:
    """Return checks that rows with an empty ``ok`` fail, each by itself or all of a run."""
    declared = {"columns": {"ok": {"required": True}}, "rows": {"max_wrong": chance.choice([0, 0.5, 1])}}
    return make_checks(declared, file_format)


def rows_in(name: str, content: bytes) -> list[Row]:
    """Return the rows of a file of rows, landed or quarantined."""
    if name.endswith(".rows.jsonl"):
        rows = [json.loads(line)["row"] for line in content.splitlines()]
    else:
        rows = read_part(name, content)
    return [(int(row["g"]), int(row["n"])) for row in rows]


@dataclass
class Ledger:
    """What commits say, folded without the package: each row is landed, waits, or was discarded.

    Rows of the source belong to a reading of it, which begins with its first row, and has the number of the
    commit that begins it.

    :ivar landed: the reading and the name of each part that is landed, in order; ``discarded`` likewise.
    :ivar waiting: the parts that wait for a decision, by the number of their commit.
    :ivar reading: in which the landing stands, and ``readings`` those of each commit.
    :ivar decided: about which commits decisions were, each with the names of its rows before and after.
    :ivar amiss: what contradicts itself.
    """

    commits: list[dict[str, Any]]
    landed: list[tuple[int, str]] = field(default_factory=list)
    discarded: list[tuple[int, str]] = field(default_factory=list)
    waiting: dict[int, list[Part]] = field(default_factory=dict)
    decided: dict[int, tuple[list[str], list[str]]] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    reading: int = 0
    readings: dict[int, int] = field(default_factory=dict)
    reading_of: dict[str, int] = field(default_factory=dict)
    amiss: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, commit in enumerate(self.commits, 1):
            if commit["number"] != number:
                self.amiss.append(f"commit {commit['number']} in the place of {number}")
            if commit["kind"] != "exported":
                self._add(number, commit)

    def _add(self, number: int, commit: dict[str, Any]) -> None:
        landed, waiting = commit.get("parts", []), commit.get("quarantined", [])
        about, replaces = commit.get("about"), commit.get("replaces", False)
        parts = [*landed, *waiting]
        self.parts.update({part["name"]: part for part in parts})
        if about is None:
            begins = replaces or not self.reading or any(part["start_offset"] == 0 for part in parts)
            reading = number if begins else self.reading
            self.readings[number] = reading
            # rows that would take the place of all others change nothing while they wait
            is_begun = bool(landed or not replaces or not parts)
            if waiting:
                self.waiting[number] = waiting
        else:
            reading, is_begun = self.readings.get(about, 0), replaces
            waited = [part["name"] for part in self.waiting.pop(about, [])]
            if not waited:
                self.amiss.append(f"commit {number} decides on {about}, of which nothing waits")
            self.decided[about] = waited, names_of(landed)
            if waiting:
                # what the landing cannot hold waits on
                self.waiting[number], self.readings[number] = waiting, reading
            if not landed:
                self.discarded += [(reading, name) for name in waited]
        if is_begun:
            self.reading = reading
        if replaces and is_begun:
            self.landed = []
        self.landed += [(reading, name) for name in names_of(landed)]
        self.reading_of.update(dict.fromkeys(names_of(parts), reading))

    def names_waiting(self) -> Iterator[tuple[int, str]]:
        """Yield the reading and the name of each part that waits."""
        for number, parts in self.waiting.items():
            yield from ((self.readings[number], name) for name in names_of(parts))

    def needed(self) -> set[str]:
        """Return the names of the parts that must be there."""
        return {name for _, name in (*self.landed, *self.names_waiting())}


def names_of(parts: Iterable[Part]) -> list[str]:
    return [part["name"] for part in parts]


def repeated(items: Iterable[Any]) -> list[Any]:
    """Return what is there more than once."""
    return [item for item, count in Counter(items).items() if count > 1]
