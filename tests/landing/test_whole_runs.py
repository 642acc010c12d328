"""What is gone: keys that whole runs have had and the newest one has not."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import time_machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.landing.reader import LandedData
from airflow_provider_webcollect.landing.write import review
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.conftest import ALL_HISTORIES
from tests.landing.checked_runs import OVERWRITE
from tests.landing.pages import serving
from tests.landing.tables import tables_in
from tests.landing.test_keyed_rows import Shop, day, dicts, offer, run_of

#: More rows than any run has.
FAILING = {"rows": {"min": 100}}


class Days(Shop):
    """A shop each of whose days has a run that collects everything."""

    def collect(self, number: int, urls: str, price: str = "1.00", **options: Any) -> LandedData:
        """Land an offer for each letter; without options they pass their checks."""
        self.rows += [offer(url, price) for url in urls]
        with time_machine.travel(day(number), tick=False):
            self.again(run=run_of(number), fetch=serving(self.rows, 2), **options)
        return self.folder.landed()

    def read_on(self, number: int, urls: str, of: int, **options: Any) -> None:
        """Let the run of another day land rows that have come before it marks."""
        self.rows += map(offer, urls)
        with time_machine.travel(day(number), tick=False):
            self.again(run=run_of(of), fetch=serving(self.rows, 2), mark=lambda: None, **options)

    def decide(self, number: int, decision: str, of: int) -> None:
        """Accept or discard the rows of the run of another day."""
        with time_machine.travel(day(number), tick=False):
            getattr(review, decision)(self.folder.location, run_of(of).run_id)


QUARANTINED = {"checks": FAILING, "on_failed_checks": "quarantine"}
WARNED = {"checks": FAILING, "on_failed_checks": "warn"}


def told(landed: LandedData, since: Any) -> list[tuple[Any, ...]]:
    """Return of each change the URL, the price, the change and the day."""
    changes = landed.changes("url", since, whole_runs=True).fetchall()
    return [(*row[:3], row[3].day) for row in changes]


@pytest.fixture
def days() -> Days:
    """On the first day there are a, b and c."""
    days = Days()
    days.collect(1, "abc")
    return days


class TestWhatIsGone:
    def test_a_key_that_the_newest_run_lacks_is_gone_with_its_last_row(self, days: Days) -> None:
        landed = days.collect(2, "bd", "2.00")
        assert told(landed, day(1)) == [
            ("a", "1.00", "gone", 2),
            ("c", "1.00", "gone", 2),
            ("b", "2.00", "changed", 2),
            ("d", "2.00", "new", 2),
        ]
        assert told(landed, "day 2") == told(landed, day(1))
        assert [row["change"] for row in dicts(landed.changes("url", day(1)))] == ["changed", "new"]

    def test_a_key_that_is_back_is_new(self, days: Days) -> None:
        days.collect(2, "bc")
        landed = days.collect(3, "abc")
        assert told(landed, day(2)) == [("a", "1.00", "new", 3)]
        assert told(landed, day(1)) == []

    def test_before_the_first_run_nothing_is_gone(self, days: Days) -> None:
        landed = days.collect(2, "a")
        assert told(landed, day(1) - datetime.timedelta(1)) == [("a", "1.00", "new", 2)]

    def test_columns_of_earlier_rows_stay(self) -> None:
        days = Days()
        days.land(1, [offer("a") | {"seller": "x"}])
        days.collect(2, "a")
        assert days.collect(3, "b").changes("url", day(2), whole_runs=True).columns == [
            *("url", "price", "seller", "change", "landed_at")
        ]

    def test_whole_runs_is_true_or_false(self, days: Days) -> None:
        with pytest.raises(InvalidArgument, match="`whole_runs` is 'yes'"):
            days.folder.landed().changes("url", day(1), whole_runs="yes")  # type: ignore[arg-type]


class TestRunsThatAreNotWhole:
    def test_one_that_finds_nothing_new_makes_nothing_gone(self, days: Days) -> None:
        assert told(days.collect(2, ""), day(1)) == []
        assert told(days.collect(3, "ab"), day(2)) == [("c", "1.00", "gone", 3)]

    def test_one_that_has_failed_its_checks_adds_and_changes_alone(self, days: Days) -> None:
        landed = days.collect(2, "bd", "2.00", **WARNED)
        assert told(landed, day(1)) == [("b", "2.00", "changed", 2), ("d", "2.00", "new", 2)]
        # the next one tells what is gone, of its rows too
        landed = days.collect(3, "ab")
        assert told(landed, day(2)) == [
            *(("c", "1.00", "gone", 3), ("d", "2.00", "gone", 3), ("b", "1.00", "changed", 3))
        ]

    @pytest.mark.parametrize("then", ["", "discard", "accept"])
    def test_of_a_quarantined_one_something_is_gone_once_it_is_accepted(self, days: Days, then: str) -> None:
        assert told(days.collect(2, "b", **QUARANTINED), day(1)) == []
        if then:
            days.decide(3, then, of=2)
        landed = days.folder.landed()
        gone = [("a", "1.00", "gone", 3), ("c", "1.00", "gone", 3)]
        assert told(landed, day(1)) == (gone if then == "accept" else [])

    def test_one_of_which_some_rows_are_quarantined_makes_nothing_gone(self, days: Days) -> None:
        days.collect(2, "b")
        days.read_on(3, "ac", of=2, **QUARANTINED)
        assert days.folder.landed().manifest.quarantined
        assert told(days.folder.landed(), day(1)) == []

    def test_late_rows_of_a_run_belong_to_it(self, days: Days) -> None:
        days.collect(2, "ab")
        days.read_on(3, "c", of=2)
        landed = days.folder.landed()
        assert told(landed, day(1)) == []
        assert told(landed, day(2)) == [("c", "1.00", "new", 3)]


class TestTables:
    @pytest.mark.parametrize("kind", ["delta", "iceberg"])
    def test_they_tell_the_same(self, tmp_path: Path, kind: str) -> None:
        days = Days(tables_in(tmp_path, kind)(), file_format="parquet")
        days.collect(1, "abc")
        days.collect(2, "b", **WARNED)
        assert told(days.collect(3, "bd"), day(1)) == [
            *(("a", "1.00", "gone", 3), ("c", "1.00", "gone", 3), ("d", "1.00", "new", 3))
        ]


class Row(NamedTuple):
    """A row that has landed.

    :ivar read: the day of its run.
    """

    read: int
    day: int
    url: str
    price: str


Offers = list[tuple[str, str]]


class History:
    """Days of a shop, and by plain Python what is to be told of them.

    :ivar rows: in the order of the landing.
    :ivar whole: the days on which whole runs have landed, by those of the runs.
    """

    def __init__(self) -> None:
        self.days = Days()
        self.rows: list[Row] = []
        self.whole: dict[int, int] = {}
        self.waiting: dict[int, Offers] = {}

    def run(self, number: int, how: str, offers: Offers) -> None:
        """Land what a run has collected."""
        options: dict[str, Any] = {"warned": WARNED, "quarantined": QUARANTINED}.get(how, {})
        if how == "from an emptied source":
            self.days.rows.clear()
        self.days.rows += [offer(*each) for each in offers]
        if how == "overwriting":
            options = OVERWRITE
            offers = [(row["url"], row["price"]) for row in self.days.rows]
            self.rows, self.whole, self.waiting = [], {}, {}
        self.days.collect(number, "", **options)
        if how == "quarantined":
            self.waiting[number] = offers
        else:
            self._land(number, number, offers, is_whole=how != "warned")

    def decide(self, number: int, decision: str, of: int) -> None:
        """Accept or discard what is quarantined of a run."""
        self.days.decide(number, decision, of)
        offers = self.waiting.pop(of)
        if decision == "accept":
            self._land(number, of, offers, is_whole=True)

    def _land(self, number: int, read: int, offers: Offers, *, is_whole: bool) -> None:
        self.rows += [Row(read, number, *each) for each in offers]
        if is_whole:
            self.whole[read] = number

    def told(self, since: int) -> list[tuple[Any, ...]]:
        """Return what is to be told of the days after one."""
        rows = [row for row in self.rows if row.url.strip()]

        def there(first: int, until: int) -> dict[str, Row]:
            return {row.url: row for row in rows if row.read >= first and row.day <= until}

        first = max((read for read, number in self.whole.items() if number <= since), default=0)
        before, now = there(first, since), there(max(self.whole, default=0), LAST)
        latest = there(first, LAST)
        changes = [(row, "new", row.day) for url, row in now.items() if url not in before]
        changes += [
            (row, "changed", row.day)
            for url, row in now.items()
            if url in before and row.price != before[url].price
        ]
        for url in before.keys() - now.keys():
            read = max(row.read for row in rows if row.url == url)
            at = min(number for run, number in self.whole.items() if run > read)
            changes.append((latest[url], "gone", at))
        places = {id(row): place for place, row in enumerate(self.rows)}
        changes.sort(key=lambda change: places[id(change[0])])
        return [(row.url, row.price, change, number) for row, change, number in changes]


LAST = 7
KINDS = ["whole", "whole", "warned", "quarantined", "from an emptied source", "overwriting"]
OFFERS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", " "]), st.sampled_from("12")), min_size=1, max_size=4
)


@settings(
    max_examples=500 if ALL_HISTORIES else 15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.data())
def test_changes_of_whole_runs_are_what_plain_python_finds(data: st.DataObject) -> None:
    history = History()
    for number in range(1, LAST + 1):
        if history.waiting and data.draw(st.booleans()):
            decision = data.draw(st.sampled_from(["accept", "discard"]))
            history.decide(number, decision, data.draw(st.sampled_from(sorted(history.waiting))))
        else:
            history.run(number, data.draw(st.sampled_from(KINDS)), data.draw(OFFERS))
    landed = history.days.folder.landed()
    for since in range(1, LAST + 1):
        assert told(landed, day(since)) == history.told(since), since
