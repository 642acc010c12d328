"""The rows of a landing by a key: the latest ones, what has changed or is gone since, and all periods."""

from __future__ import annotations

import datetime
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import duckdb
import fsspec
import pyarrow as pa
import pytest
import time_machine
from duckdb import DuckDBPyRelation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.log.commits import Part, Run
from airflow_provider_webcollect.landing.reader import LandedData
from airflow_provider_webcollect.landing.write import review
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.interruption import Signalled, signalled_when
from tests.landing.checked_runs import OVERWRITE, Runs
from tests.landing.conftest import Folder
from tests.landing.pages import nothing, serving
from tests.landing.tables import tables_in
from tests.simulation.samples import ALL_HISTORIES

FORMATS = ["jsonl", "csv", "parquet"]
#: What a column of a type may hold, as the service sends it.
TYPED = {
    "string": ["", "a", "A", "ä\x00", "null", None],
    "decimal(9,2)": ["1.50", "1.5", "-0", "0", None],
    "timestamptz": ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "2026-01-02T00:00:00Z", None],
    "bool": ["true", "false", None],
}


def day(number: int) -> datetime.datetime:
    """Return the time at which all rows of a day land."""
    return datetime.datetime(2026, 1, number, 12, tzinfo=datetime.UTC)


def run_of(number: int) -> Run:
    return Run(dag_id="d", task_id="t", run_id=f"day {number}")


class Shop:
    """A landing to which each day adds rows.

    :param folder: its folder; None for one in memory.
    :param options: options of the format of its parts.
    """

    def __init__(self, folder: Folder | None = None, **options: Any) -> None:
        self.folder = folder or Folder(fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}")
        chosen = {"file_format": make_format(**options), "on_reset": "append", "max_part_bytes": 1}
        self.runs = Runs(self.folder, **chosen)
        self.rows = self.runs.rows

    def land(self, number: int, rows: list[Any], of: int | None = None, **options: Any) -> LandedData:
        """Land the rows of a day, in parts of two rows, and read the landing.

        :param of: the day whose run lands them; None for the same day.
        """
        self.rows += rows
        with time_machine.travel(day(number), tick=False):
            self.runs.again(run=run_of(of or number), fetch=serving(self.rows, 2), **options)
        return self.folder.landed()

    def changes(self, since: Any, **options: Any) -> list[dict[str, Any]]:
        """Return the changes, with the URL as the key."""
        return dicts(self.folder.landed().changes("url", since, **options))

    def history(self, **options: Any) -> list[dict[str, Any]]:
        """Return all periods, with the URL as the key."""
        return dicts(self.folder.landed().history("url", **options))


def offer(url: str | None, price: str | None = "1.00") -> dict[str, Any]:
    return {"url": url, "price": price}


@pytest.fixture(params=FORMATS)
def shop(request: pytest.FixtureRequest) -> Shop:
    """Three days: `b` changes, `c` changes and changes back, `d` is new on the last day."""
    shop = Shop(file_format=request.param)
    shop.land(1, [offer("a"), offer("b"), offer("b"), offer("c"), offer(None, "9.00")])
    shop.land(2, [offer("c", "3.00"), offer("b", "2.00")])
    shop.land(3, [offer("d"), offer("a"), offer("c"), offer(" ", "9.50"), offer("d", "4.00")])
    return shop


def dicts(relation: DuckDBPyRelation) -> list[dict[str, Any]]:
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


class TestLatest:
    def test_each_key_has_its_newest_row_in_the_order_of_the_landing(self, shop: Shop) -> None:
        assert dicts(shop.folder.landed().latest("url")) == [
            {**offer("b", "2.00"), "landed_at": day(2)},
            {**offer("a"), "landed_at": day(3)},
            {**offer("c"), "landed_at": day(3)},
            {**offer("d", "4.00"), "landed_at": day(3)},
        ]

    def test_the_relation_joins_tables_of_the_connection(self, shop: Shop) -> None:
        with duckdb.connect() as connection:
            connection.execute("create table landing as select 'b' as url, 'B' as name")
            found = shop.folder.landed().latest("url", connection).join(connection.table("landing"), "url")
            assert found.project("name, price").fetchall() == [("B", "2.00")]
            whole = shop.folder.landed().to_duckdb(connection)
            assert len(whole.join(connection.table("landing"), "url")) == 3
            whole.create("prices")
            assert connection.execute("select count(*) from prices").fetchall() == [(12,)]


class TestChanges:
    def test_keys_that_are_new_or_have_other_values_than_at_a_time(self, shop: Shop) -> None:
        assert shop.changes(day(1)) == [
            {**offer("b", "2.00"), "change": "changed", "landed_at": day(2)},
            {**offer("d", "4.00"), "change": "new", "landed_at": day(3)},
        ]
        assert shop.changes(day(2)) == [
            {**offer("c"), "change": "changed", "landed_at": day(3)},
            {**offer("d", "4.00"), "change": "new", "landed_at": day(3)},
        ]
        assert shop.changes(day(3)) == []

    def test_a_run_stands_for_the_moment_before_its_rows(self, shop: Shop) -> None:
        landed = shop.folder.landed()
        for run, before in (("day 2", day(1)), ("day 3", day(2))):
            assert dicts(landed.changes("url", run)) == dicts(landed.changes("url", before)) != []

    @pytest.mark.parametrize("run_id", ["2026-01-05", "2099-01-01T00:00Z"])
    def test_a_run_may_be_called_like_a_time(self, run_id: str) -> None:
        shop = Shop()
        shop.land(1, [offer("a")])
        shop.rows.append(offer("b"))
        shop.runs.again(run=Run(dag_id="d", task_id="t", run_id=run_id))
        assert [row["url"] for row in shop.changes(run_id)] == ["b"]

    def test_since_a_run_with_nothing_new_nothing_has_changed(self, shop: Shop) -> None:
        shop.land(4, [])
        assert shop.changes("day 4") == []

    def test_a_time_may_be_a_text_and_of_any_zone(self, shop: Shop) -> None:
        expected = shop.changes(day(2))
        for text in ("2026-01-02T12:00:00Z", "2026-01-02 13:00:00+01:00", " 2026-01-02T12:00:00.000+00:00\n"):
            assert shop.changes(text) == expected

    @pytest.mark.parametrize(
        "wrong", [datetime.datetime(2026, 1, 1), "2026-01-01", "2026-01-01T00:00:00", "", " ", None]
    )
    def test_a_time_without_a_zone_and_what_is_no_time_are_refused(self, shop: Shop, wrong: Any) -> None:
        with pytest.raises(InvalidArgument, match=r"`since` is .*; it must be .* a time with a zone, or"):
            shop.folder.landed().changes("url", wrong)

    def test_a_column_that_no_row_had_before_may_be_compared(self) -> None:
        shop = Shop()
        shop.land(1, [offer("a"), offer("b")])
        shop.land(2, [offer("a") | {"seller": "x"}, offer("b") | {"seller": None}])
        for compare in (None, "seller", ["seller", "price"]):
            (changed,) = shop.changes(day(1), compare=compare)
            assert (changed["url"], changed["seller"], changed["change"]) == ("a", "x", "changed")

    def test_columns_may_come_in_another_order(self) -> None:
        shop = Shop()
        shop.land(1, [offer("a") | {"seller": "x"}])
        shop.land(2, [{"seller": "x", "price": "1.00", "url": "a"}])
        assert shop.changes(day(1)) == []
        assert len(shop.folder.landed().history("url")) == 1

    def test_zero_is_zero_whatever_its_sign(self) -> None:
        types = {"url": "string", "price": "float64"}
        shop = Shop(file_format="parquet", columns=[*types], column_types=types)
        shop.land(1, [offer("a", "0"), offer("b", "nan"), offer("c", "1e-7")])
        shop.land(2, [offer("a", "-0"), offer("b", "NaN"), offer("c", "0.0000001")])
        assert shop.changes(day(1)) == []

    def test_values_are_compared_by_their_types_in_keys_too(self) -> None:
        types = {"url": "string", "size": "decimal(9,2)", "at": "timestamptz", "text": "string"}

        def row(url: str, size: str | None, hour: str, text: str | None) -> dict[str, Any]:
            return dict(zip(types, (url, size, f"2026-01-01T{hour}", text), strict=True))

        same = row("a", "1.50", "00:00:00Z", "x"), row("a", "1.5", "01:00:00+01:00", "x")
        others = row("a", "-0", "00:00:00Z", ""), row("A", "0", "00:00:00Z", "null")
        shop = Shop(file_format="parquet", columns=[*types], column_types=types)
        shop.land(1, [same[0], *others, row("a", None, "00:00:00Z", "no key")])
        shop.land(2, [same[1], *(other | {"text": None} for other in others)])
        landed, key = shop.folder.landed(), ["size", "url"]
        found = dicts(landed.changes(key, day(1)))
        assert [(each["url"], each["size"], each["change"]) for each in found] == [
            ("a", 0, "changed"),
            ("A", 0, "changed"),
        ]
        assert (len(landed.latest(key)), len(landed.history(key))) == (3, 5)

    def test_columns_that_are_not_compared_may_differ(self) -> None:
        shop = Shop()
        shop.land(1, [offer("a") | {"at": "1"}, offer("b") | {"at": "1"}])
        shop.land(2, [offer("a") | {"at": "2"}, offer("b", "2.00") | {"at": "2"}])
        assert len(shop.folder.landed().changes("url", day(1))) == 2
        (changed,) = shop.changes(day(1), compare=["price"])
        assert changed == {**offer("b", "2.00"), "at": "2", "change": "changed", "landed_at": day(2)}
        assert shop.changes(day(1), compare="price") == [changed]

    def test_a_late_clock_puts_no_rows_before_earlier_ones(self) -> None:
        shop = Shop()
        shop.land(2, [offer("a")])
        shop.land(1, [offer("a", "2.00")])
        assert shop.changes(day(1)) == [{**offer("a", "2.00"), "change": "new", "landed_at": day(2)}]
        assert [row["valid_to"] for row in shop.history()] == [day(2), None]


class TestHistory:
    def test_consecutive_rows_with_equal_values_are_one_period(self, shop: Shop) -> None:
        assert shop.history() == [
            {**offer("a"), "valid_from": day(1), "valid_to": None},
            {**offer("b"), "valid_from": day(1), "valid_to": day(2)},
            {**offer("c"), "valid_from": day(1), "valid_to": day(2)},
            {**offer("c", "3.00"), "valid_from": day(2), "valid_to": day(3)},
            {**offer("b", "2.00"), "valid_from": day(2), "valid_to": None},
            {**offer("d"), "valid_from": day(3), "valid_to": day(3)},
            {**offer("c"), "valid_from": day(3), "valid_to": None},
            {**offer("d", "4.00"), "valid_from": day(3), "valid_to": None},
        ]

    def test_a_period_has_its_first_row(self) -> None:
        shop = Shop()
        shop.land(1, [offer("a") | {"at": "1"}])
        shop.land(2, [offer("a") | {"at": "2"}])
        shop.land(3, [offer("a", "2.00") | {"at": "3"}])
        assert shop.history(compare=["price"]) == [
            {**offer("a"), "at": "1", "valid_from": day(1), "valid_to": day(3)},
            {**offer("a", "2.00"), "at": "3", "valid_from": day(3), "valid_to": None},
        ]


def asked(landed: LandedData, key: Any) -> list[DuckDBPyRelation]:
    return [landed.latest(key), landed.changes(key, day(1)), landed.history(key)]


ODD_NAMES = ["", "a b", 'say "x"', "it's", "select", "place", "c1", "x;--", "ü", "a\nb", "{key}", "$before"]


class TestColumns:
    @pytest.mark.parametrize("file_format", FORMATS)
    @pytest.mark.by_day(1)
    def test_columns_may_have_any_name(self, file_format: str) -> None:
        shop = Shop(file_format=file_format)
        xs, ys = dict.fromkeys(ODD_NAMES, "x"), dict.fromkeys(ODD_NAMES, "y")
        shop.land(1, [{"n": "1", **xs}, {"n": "1", **ys}])
        shop.land(2, [{"n": "2", **xs}])
        landed = shop.folder.landed()
        columns = landed.to_duckdb().columns
        assert landed.to_polars().columns == landed.to_arrow().column_names == ["n", *ODD_NAMES]
        for name in ODD_NAMES[FORMATS.index(file_format) :: 1 if ALL_HISTORIES else len(FORMATS)]:
            latest, changes, history = asked(shop.folder.landed(), name)
            assert latest.columns == [*columns, "landed_at"], name
            assert latest.fetchall() == [("1", *ys.values(), day(1)), ("2", *xs.values(), day(2))], name
            assert changes.fetchall() == [("2", *xs.values(), "changed", day(2))], name
            assert len(history) == 3, name

    def test_an_added_column_avoids_names_of_the_landing(self) -> None:
        shop = Shop()
        shop.land(1, [{"landed_at": "x", "Valid_From": "y", "change": "z"}])
        latest, changes, history = asked(shop.folder.landed(), "landed_at")
        own = ["landed_at", "Valid_From", "change"]
        assert latest.columns == [*own, "landed_at_1"]
        assert latest.fetchall() == [("x", "y", "z", day(1))]
        assert changes.columns == [*own, "change_1", "landed_at_1"]
        assert history.columns == [*own, "valid_from_1", "valid_to"]

    @pytest.mark.parametrize("file_format", FORMATS)
    def test_without_rows_the_relation_has_the_columns(self, file_format: str) -> None:
        shop = Shop(file_format=file_format, columns=["url", "price"])
        shop.land(1, [])
        latest, changes, history = asked(shop.folder.landed(), ["url"])
        assert latest.columns == ["url", "price", "landed_at"]
        assert changes.columns == ["url", "price", "change", "landed_at"]
        assert history.columns == ["url", "price", "valid_from", "valid_to"]
        assert [each.fetchall() for each in (latest, changes, history)] == [[], [], []]
        with pytest.raises(InvalidArgument, match="it must be one of url, price"):
            shop.folder.landed().latest("sku")

    @pytest.mark.parametrize("rows", [[], [{}, {}]])
    def test_without_columns_the_relation_has_the_keys_columns(self, rows: list[Any]) -> None:
        landed = Shop().land(1, rows)
        for relation in asked(landed, ["shop", "sku"]):
            assert relation.columns[:2] == ["shop", "sku"]
            assert relation.fetchall() == []
        assert landed.history("sku", compare=["price"]).columns[:2] == ["sku", "price"]

    @pytest.mark.parametrize(
        ("key", "said"),
        [
            (["url", "sku"], r"`key\[1\]` is 'sku'; it must be one of url, price, the columns"),
            ("URL", r"`key` is 'URL'; it must be one of url, price, the columns of the landing"),
            ([], r"`key` is \[\]; it must hold at least one entry"),
            (["url", "url"], r"`key\[1\]` is 'url'; each column can be named only once"),
            (["url", ["price"]], r"`key\[1\]` is \['price'\]; it must be the name of a column"),
            ({"url": 1}, r"`key` is {'url': 1}; it must be a list"),
        ],
    )
    def test_a_wrong_key_is_named_with_the_rule(self, shop: Shop, key: Any, said: str) -> None:
        for ask in (LandedData.latest, LandedData.history, lambda landed, key: landed.changes(key, day(1))):
            with pytest.raises(InvalidArgument, match=said):
                ask(shop.folder.landed(), key)

    def test_an_absent_column_cannot_be_compared(self, shop: Shop) -> None:
        with pytest.raises(InvalidArgument, match=r"`compare\[0\]` is 'at'; it must be one of url, price"):
            shop.folder.landed().history("url", compare=["at"])

    @pytest.mark.parametrize("file_format", ["csv", "parquet"])
    def test_a_wrong_key_is_refused_before_anything_is_read(self, file_format: str) -> None:
        shop = Shop(file_format=file_format)
        landed = shop.land(1, [offer("a")])
        shop.folder.fs.rm(f"{shop.folder.root}/{landed.manifest.parts[0].name}")
        with pytest.raises(InvalidArgument):
            landed.latest("sku")


class Endless(LandedData):
    """A landing with rows without end; ``begun`` is set once DuckDB works on them."""

    begun: ClassVar = threading.Event()

    def tables_of(self, part: Part) -> Iterator[pa.Table]:
        numbers = pa.array(range(2_000_000)).cast(pa.string())
        while True:
            yield pa.table({"url": numbers, "price": numbers})
            self.begun.set()


def test_an_interrupt_is_raised_while_duckdb_works() -> None:
    landed = Shop().land(1, [offer("a")])
    landed.__class__ = Endless
    with signalled_when(Endless.begun.is_set), pytest.raises(Signalled):
        landed.count_changes("url", "day 1")


class Watched(LandedData):
    """A landing that measures memory.

    :ivar most: the maximum of the bytes that Arrow held when a part was begun.
    """

    most = 0

    def tables_of(self, part: Part) -> Iterator[pa.Table]:
        self.most = max(self.most, pa.total_allocated_bytes())
        yield from super().tables_of(part)


@pytest.mark.parametrize(
    "ask",
    [
        lambda landed: landed.latest("url"),
        lambda landed: landed.changes("url", "day 2"),
        lambda landed: landed.history("url", compare="text"),
    ],
    ids=["latest", "changes", "history"],
)
def test_the_rows_are_never_in_memory_together(ask: Callable[[LandedData], DuckDBPyRelation]) -> None:
    shop = Shop()
    for number in range(1, 21):
        shop.rows += [{"url": str(row), "number": number, "text": "x" * 1000} for row in range(200)]
        shop.runs.again(run=run_of(number), fetch=serving(shop.rows, 200))
    watched = Watched(shop.folder.destination, shop.folder.landed().manifest)
    before = pa.total_allocated_bytes()
    assert len(ask(watched)) == 200
    assert watched.most - before < 1_000_000


class Plain:
    """The expected results of the methods, computed in plain Python as tuples of values.

    :param rows: rows of the landing, with the day on which each has landed.
    :param key: indexes of the key's columns.
    """

    def __init__(self, rows: list[tuple[tuple[Any, ...], int]], key: Sequence[int]) -> None:
        self.of_keys: dict[tuple[Any, ...], list[tuple[int, tuple[Any, ...], int]]] = {}
        for place, (row, number) in enumerate(rows):
            values = tuple(row[index] for index in key)
            if not {None, ""} & {*values}:
                self.of_keys.setdefault(values, []).append((place, row, number))

    def latest(self) -> list[tuple[Any, ...]]:
        return [(*row, day(number)) for _, row, number in sorted(rows[-1] for rows in self.of_keys.values())]

    def changes(self, since: int) -> list[tuple[Any, ...]]:
        found = []
        for rows in self.of_keys.values():
            before = [row for _, row, number in rows if number <= since]
            place, row, number = rows[-1]
            if number > since and (not before or before[-1] != row):
                found.append((place, (*row, "changed" if before else "new", day(number))))
        return [row for _, row in sorted(found)]

    def history(self) -> list[tuple[Any, ...]]:
        found = []
        for rows in self.of_keys.values():
            periods = [next(group) for _, group in itertools.groupby(rows, key=lambda row: row[1])]
            ends = [*(day(number) for _, _, number in periods[1:]), None]
            found += [
                (place, (*row, day(number), end))
                for (place, row, number), end in zip(periods, ends, strict=True)
            ]
        return [row for _, row in sorted(found, key=lambda each: each[0])]


@st.composite
def landings(draw: st.DrawFn) -> tuple[Shop, int]:
    """Landings of three days, with the number of their columns."""
    file_format = draw(st.sampled_from(FORMATS))
    kinds = draw(st.lists(st.sampled_from([*TYPED] if file_format == "parquet" else ["string"]), max_size=2))
    columns = dict(zip(["url", "URL", 'say "x"', "c0"], ["string", "string", *kinds], strict=False))
    types: dict[str, Any] = {"column_types": columns} if file_format == "parquet" else {}
    rows = st.lists(
        st.fixed_dictionaries(
            {}, optional={name: st.sampled_from(TYPED[kind]) for name, kind in columns.items()}
        ),
        max_size=5,
    )
    shop = Shop(file_format=file_format, columns=[*columns], **types)
    for number in (1, 2, 3):
        if number > 1 and draw(st.booleans()):
            # the source has lost the rows of the days before
            shop.rows.clear()
        shop.land(number, draw(rows))
    return shop, len(columns)


@settings(
    max_examples=1000 if ALL_HISTORIES else 6, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(landings(), st.data())
def test_all_three_return_what_plain_python_finds(landing: tuple[Shop, int], data: st.DataObject) -> None:
    shop, columns = landing
    landed = shop.folder.landed()
    rows = [
        (tuple(row.values()), number)
        for number in (1, 2, 3)
        for row in landed.to_arrow(run_of(number).run_id).to_pylist()
    ]
    places = data.draw(st.lists(st.integers(0, columns - 1), min_size=1, max_size=2, unique=True))
    key = [landed.to_arrow().column_names[place] for place in places]
    plain = Plain(rows, places)
    since = data.draw(st.integers(0, 3))
    moment = day(since) if since else day(1) - datetime.timedelta(days=1)
    with duckdb.connect() as connection:
        assert landed.latest(key, connection).fetchall() == plain.latest()
        assert landed.history(key, connection).fetchall() == plain.history()
        assert landed.changes(key, moment, connection).fetchall() == plain.changes(since)


#: Checks that require more rows than any run has.
FAILING = {"rows": {"min": 100}}


class Days(Shop):
    """A shop with a run each day that collects everything."""

    def collect(self, number: int, urls: str, price: str = "1.00", **options: Any) -> LandedData:
        """Land an offer for each letter of ``urls``; without options, there are no checks."""
        return self.land(number, [offer(url, price) for url in urls], **options)

    def read_on(self, number: int, urls: str, of: int, **options: Any) -> None:
        """Let the run of the day ``of`` land rows that came before its mark."""
        self.land(number, [*map(offer, urls)], of, mark=nothing, **options)

    def decide(self, number: int, decision: str, of: int) -> None:
        """Accept or discard the rows of the run of the day ``of``."""
        with time_machine.travel(day(number), tick=False):
            getattr(review, decision)(self.folder.location, run_of(of).run_id)


QUARANTINED = {"checks": FAILING, "on_failed_checks": "quarantine"}
WARNED: dict[str, Any] = {"checks": FAILING, "on_failed_checks": "warn"}


def told(landed: LandedData, since: Any) -> list[tuple[Any, ...]]:
    """Return the URL, the price, the kind and the day of each change."""
    changes = landed.changes("url", since, whole_runs=True).fetchall()
    return [(*row[:3], row[3].day) for row in changes]


@pytest.fixture
def days() -> Days:
    """A shop that has the offers a, b and c on the first day."""
    days = Days()
    days.collect(1, "abc")
    return days


class TestWhatIsGone:
    def test_a_key_that_the_newest_run_lacks_is_gone(self, days: Days) -> None:
        landed = days.collect(2, "bd", "2.00")
        assert told(landed, day(1)) == [
            ("a", "1.00", "gone", 2),
            ("c", "1.00", "gone", 2),
            ("b", "2.00", "changed", 2),
            ("d", "2.00", "new", 2),
        ]
        assert told(landed, "day 2") == told(landed, day(1))
        assert [row["change"] for row in dicts(landed.changes("url", day(1)))] == ["changed", "new"]

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
    def test_a_run_with_nothing_new_makes_nothing_gone(self, days: Days) -> None:
        assert told(days.collect(2, ""), day(1)) == []
        assert told(days.collect(3, "ab"), day(2)) == [("c", "1.00", "gone", 3)]

    def test_a_run_with_quarantined_rows_makes_nothing_gone(self, days: Days) -> None:
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


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_tell_the_same(tmp_path: Path, kind: str) -> None:
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
    """Days of a shop, and the expected changes, computed in plain Python.

    :ivar rows: the landed rows, in the order of the landing.
    :ivar whole: the day on which each whole run landed last, by the day of the run.
    """

    def __init__(self) -> None:
        self.days = Days()
        self.rows: list[Row] = []
        self.whole: dict[int, int] = {}
        self.waiting: dict[int, Offers] = {}

    def run(self, number: int, how: str, offers: Offers) -> None:
        """Land what a run has collected.

        Its last row occurs in no other run: otherwise a source that was emptied and has the same rows again
        could not be told from one that has nothing new.
        """
        options: dict[str, Any] = {"warned": WARNED, "quarantined": QUARANTINED}.get(how, {})
        offers = [*offers, (" ", str(number))]
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
        """Accept or discard the quarantined rows of a run."""
        self.days.decide(number, decision, of)
        offers = self.waiting.pop(of)
        if decision == "accept":
            self._land(number, of, offers, is_whole=True)

    def _land(self, number: int, read: int, offers: Offers, *, is_whole: bool) -> None:
        self.rows += [Row(read, number, *each) for each in offers]
        if is_whole:
            self.whole[read] = number

    def told(self, since: int) -> list[tuple[Any, ...]]:
        """Return the changes that are expected after the day ``since``."""
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
    max_examples=500 if ALL_HISTORIES else 5, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.data())
def test_changes_of_whole_runs_are_what_plain_python_finds(data: st.DataObject) -> None:
    history = History()
    for number in range(1, LAST + 1):
        decides = bool(history.waiting) and data.draw(st.booleans())
        if decides:
            decision = data.draw(st.sampled_from(["accept", "discard"]))
            history.decide(number, decision, data.draw(st.sampled_from(sorted(history.waiting))))
        else:
            history.run(number, data.draw(st.sampled_from(KINDS)), data.draw(OFFERS))
    landed = history.days.folder.landed()
    for since in range(1, LAST + 1):
        assert told(landed, day(since)) == history.told(since), since
