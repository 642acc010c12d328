"""Random histories of loads that are killed, or fail, in the place of any statement or commit.

The landing grows, and is landed again; loads are left out, killed, and repeated in other processes that know
nothing of each other. At the end the table has what plain Python makes of the rows.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_webcollect.landing.read.loading import GONE
from tests.landing.loading.databases import Database, Landing, as_rows, latest, products
from tests.landing.loading.loader import FAILED
from tests.simulation.forks import Forks, running

pytestmark = pytest.mark.at_night
HISTORIES, LONGEST = 50, 8
#: More than the statements and commits of most loads.
STATEMENTS = 60
KEYS = 9


@pytest.fixture(scope="module")
def loader() -> Iterator[Forks]:
    """A process that loads in forks of itself."""
    with running("tests.landing.loading.loader") as forks:
        yield forks


class History:
    """What happens to a landing and the table that it is loaded into.

    :param disposition: that of the load; or, for ``merge``, its ``on_gone``: ``delete`` or ``mark``.
    :ivar newest: the rows of the newest run.
    :ivar ended: how often loads have ended as they did.
    """

    def __init__(
        self, chance: random.Random, landing: Landing, database: Database, loader: Any, disposition: str
    ) -> None:
        self.chance, self.landing, self.database, self.loader = chance, landing, database, loader
        self.disposition = disposition
        self.ever: list[dict[str, Any]] = []
        self.newest: list[dict[str, Any]] = []
        self.ended: Counter[int] = Counter()

    def happen(self) -> None:
        """Let some things happen, and then a load succeed that nothing disturbs."""
        self.grow()
        for _ in range(self.chance.randint(2, LONGEST)):
            self.chance.choice(self.things())()
        self.grow()
        assert self.load(0) == 0
        self.check()
        assert self.load(0) == 0
        self.check()

    def things(self) -> list[Callable[[], object]]:
        disturbed = [self.disturbed_load] * 3
        # by keys, what a load before the end of the source has left stays
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
        self.load(self.chance.randint(1, STATEMENTS))

    def load(self, at: int) -> int:
        """Load, and return how that ended."""
        options = {}
        if self.disposition != "append":
            on_gone = "keep" if self.disposition == "merge" else self.disposition
            options = {"write_disposition": "merge", "primary_key": "url", "on_gone": on_gone}
        order = self.landing.order(self.database, at=at, kill=self.chance.random() < 0.7, **options)
        status = self.loader.run(order)
        assert status in {0, -signal.SIGKILL, FAILED}
        self.ended[status] += 1
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
                # what is not in the source any more, only a load before may have left
                assert {url for url, _ in rows} <= {url for url, *_ in held}
                assert len(held) == len({url for url, *_ in held})
            case _:
                assert self.database.rows("url", "n") == rows


@pytest.mark.parametrize("disposition", ["append", "merge", "delete", "mark"])
def test_the_table_has_what_plain_python_makes_of_the_rows(
    database: Database, tmp_path: Path, loader: Forks, disposition: str
) -> None:
    ended: Counter[int] = Counter()
    for seed in range(HISTORIES):
        own = Database(database.kind, database.address)
        history = History(random.Random(f"{seed}"), Landing(tmp_path), own, loader, disposition)
        history.happen()
        ended += history.ended
    assert {0, -signal.SIGKILL, FAILED} <= ended.keys()


@pytest.mark.parametrize(
    ("disposition", "is_reset"),
    [("append", False), ("append", True), ("merge", False), ("delete", False), ("mark", False)],
    ids=["append", "append-after-a-reset", "merge", "delete", "mark"],
)
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "failed"])
def test_a_load_that_ends_at_any_statement_is_repeated(
    database: Database, tmp_path: Path, loader: Forks, disposition: str, is_reset: bool, kill: bool
) -> None:
    # dlt itself repeats some of what has failed
    for at in range(1, STATEMENTS, 1 if kill else 3):
        own = Database(database.kind, database.address)
        history = History(random.Random("1"), Landing(tmp_path), own, loader, disposition)
        history.grow()
        assert history.load(0) == 0
        history.grow()
        history.chance = Mock(spec=random.Random, **{"random.return_value": 0.0 if kill else 1.0})
        status = history.load(at)
        if is_reset:
            history.chance = random.Random("2")
            history.reset()
        assert history.load(0) == 0
        history.check()
        if kill and status == 0:
            break
    assert at > 20
