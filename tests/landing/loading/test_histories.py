"""Random histories of loads that are killed or fail instead of any statement or commit.

The landing grows, and is landed again; loads are left out, killed, and repeated in other processes that know
nothing of each other. At the end, the table must have the rows that plain Python computes.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.landing.read.loading import GONE
from tests.landing.loading.databases import Database, Landing, as_rows, latest, products
from tests.landing.loading.loader import FAILED
from tests.simulation.forks import Forks, running
from tests.simulation.samples import chance_of, histories

pytestmark = pytest.mark.at_night
LONGEST = 8
#: More than the statements and commits of most loads.
STATEMENTS = 60
KEYS = 9


@pytest.fixture(scope="module")
def loader() -> Iterator[Forks]:
    """A process that loads in forks of itself."""
    with running("tests.landing.loading.loader") as forks:
        yield forks


class History:
    """Events that happen to a landing and the table that it is loaded into.

    :param number: seed of the history's choices.
    :param disposition: write disposition of the loads, or the ``on_gone`` of merges: ``delete`` or ``mark``.
    :ivar newest: the rows of the newest run.
    """

    def __init__(
        self, number: int, folder: Path, database: Database, loader: Forks, disposition: str
    ) -> None:
        self.chance, self.landing, self.loader = random.Random(f"{number}"), Landing(folder), loader
        self.database = Database(database.kind, database.address)
        self.disposition = disposition
        self.ever: list[dict[str, Any]] = []
        self.newest: list[dict[str, Any]] = []

    def happen(self) -> None:
        """Let random events happen; then two undisturbed loads must succeed."""
        self.grow()
        for _ in range(self.chance.randint(2, LONGEST)):
            self.chance.choice(self.things())()
        self.grow()
        assert self.load() == 0
        self.check()
        assert self.load() == 0
        self.check()

    def things(self) -> list[Callable[[], object]]:
        disturbed = [self.disturbed_load] * 3
        # a plain merge keeps the rows that were loaded before a reset
        return [self.grow, self.grow, *disturbed, *([] if self.disposition == "merge" else [self.reset])]

    def grow(self) -> None:
        count = self.chance.randint(1, 12)
        rows = products(len(self.ever), count, KEYS)
        if self.chance.random() < 0.3:
            rows[-1][f"column_{len(self.ever)}"] = "x"
        self.ever += rows
        self.newest = rows
        self.landing.land(*rows)

    def reset(self) -> None:
        """Land other rows in place of those that were there."""
        rows = products(len(self.ever), self.chance.randint(1, 7), KEYS)
        self.ever += rows
        self.newest = rows
        self.landing.refill(*rows)

    def disturbed_load(self) -> None:
        self.load(self.chance.randint(1, STATEMENTS), kill=self.chance.random() < 0.7)

    def load(self, at: int = 0, *, kill: bool = False) -> int:
        """Load, and return the exit status.

        :param at: number of the statement or commit instead of which the load fails or is killed; 0 for none.
        """
        options = {}
        if self.disposition != "append":
            on_gone = "keep" if self.disposition == "merge" else self.disposition
            options = {"write_disposition": "merge", "primary_key": "url", "on_gone": on_gone}
        status = self.loader.run(self.landing.order(self.database, at=at, kill=kill, **options))
        assert status in {0, -signal.SIGKILL if kill else FAILED}
        return status

    def check(self) -> None:
        rows, newest = as_rows(self.landing.source), latest(self.newest)
        match self.disposition:
            case "merge":
                assert sorted(self.database.rows("url", "n")) == latest(self.landing.source)
            case "delete":
                assert sorted(self.database.rows("url", "n")) == newest
            case "mark":
                held = self.database.rows("url", "n", GONE)
                assert sorted((url, n) for url, n, gone_at in held if gone_at is None) == newest
                # other keys, which the source no longer has, may be left by an earlier load
                assert {url for url, _ in rows} <= {url for url, *_ in held}
                assert len(held) == len({url for url, *_ in held})
            case _:
                assert self.database.rows("url", "n") == rows


@pytest.mark.parametrize("disposition", ["append", "merge", "delete", "mark"])
def test_the_table_has_what_plain_python_makes_of_the_rows(
    database: Database, tmp_path: Path, loader: Forks, disposition: str
) -> None:
    for number in histories(disposition, 20, by_day=2):
        try:
            History(number, tmp_path, database, loader, disposition).happen()
        except AssertionError as error:
            error.add_note(f"WEBCOLLECT_HISTORY={number}")
            raise


@pytest.mark.parametrize(
    ("disposition", "is_reset"),
    [("append", False), ("append", True), ("merge", False), ("delete", False), ("mark", False)],
    ids=["append", "append-after-a-reset", "merge", "delete", "mark"],
)
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "failed"])
def test_a_load_that_ends_at_a_statement_is_repeated(
    database: Database, tmp_path: Path, loader: Forks, disposition: str, is_reset: bool, kill: bool
) -> None:
    ended, step = [], 2 if kill else 4
    begin = chance_of(f"{database.kind} {disposition} {kill}").randint(1, step)
    for at in range(begin, STATEMENTS, step):
        history = History(1, tmp_path, database, loader, disposition)
        history.grow()
        assert history.load() == 0
        history.grow()
        ended.append(history.load(at, kill=kill))
        if is_reset:
            history.reset()
        assert history.load() == 0
        history.check()
        if kill and ended[-1] == 0:
            break
    # dlt itself retries some of the failed statements
    assert ended.count(-signal.SIGKILL) > 10 if kill else FAILED in ended
