"""Decisions on quarantined rows, and the state of all rows according to the commits alone.

For the random histories: most of what they know of the API of decisions and of the JSON of commits is here.
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
#: A row: the generation of the source, and the row's number within it.
Row = tuple[int, int]
Verdict = Literal["accept", "discard"]


class Target(NamedTuple):
    """Quarantined rows to decide on: of a run, of a commit, or, if both are None, of any."""

    run_id: str | None
    commit: int | None


def listed(folder: Folder) -> list[Target]:
    """Return the quarantined rows that a person is shown."""
    return [Target(rows.run.run_id, rows.commit) for rows in review.in_review(folder.destination)]


def decide(place: Destination, verdict: Verdict, target: Target, by: str) -> int:
    """Decide on rows, and return the number of the commit that has quarantined them.

    :param by: who decides.
    """
    decided = (review.accept if verdict == "accept" else review.discard)(place, *target, by=by)
    return decided.commit


def make_checks_of(chance: random.Random, file_format: FileFormat) -> Checks | None:
    """Return checks that fail for an empty ``ok``: for single rows, or for all rows of a run."""
    declared = {"columns": {"ok": {"required": True}}, "rows": {"max_wrong": chance.choice([0, 0.5, 1])}}
    return make_checks(declared, file_format)


def rows_in(name: str, content: bytes) -> list[Row]:
    """Return the rows of a part, landed or quarantined."""
    if name.endswith(".rows.jsonl"):
        rows = [json.loads(line)["row"] for line in content.splitlines()]
    else:
        rows = read_part(name, content)
    return [(int(row["g"]), int(row["n"])) for row in rows]


@dataclass
class Ledger:
    """The state that commits describe, without the package: each row is landed, quarantined or discarded.

    A reading of the source begins with the source's first row; the number of a reading
    is the number of its first commit.

    :ivar landed: the reading and the name of each landed part, in order.
    :ivar discarded: the reading and the name of each discarded part.
    :ivar waiting: the quarantined parts, by the number of their commit.
    :ivar reading: the current reading of the landing.
    :ivar readings: the reading of each commit.
    :ivar decided: for each commit that was decided on, the names of its parts before and after the decision.
    :ivar amiss: contradictions between the commits.
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
            # quarantined rows that would replace all others change nothing until they are accepted
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
                # rows that the landing cannot hold stay quarantined
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
        """Yield the reading and the name of each quarantined part."""
        for number, parts in self.waiting.items():
            yield from ((self.readings[number], name) for name in names_of(parts))

    def needed(self) -> set[str]:
        """Return the names of the parts that must exist."""
        return {name for _, name in (*self.landed, *self.names_waiting())}


def names_of(parts: Iterable[Part]) -> list[str]:
    return [part["name"] for part in parts]


def repeated(items: Iterable[Any]) -> list[Any]:
    """Return the items that occur more than once."""
    return [item for item, count in Counter(items).items() if count > 1]
