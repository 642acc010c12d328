"""Single rows that break rules about values: they wait, with their reasons, and the others land."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.errors import ChecksFailed, UnreadableRow
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.write.review import accept, discard, in_review
from airflow_provider_webcollect.service.models import DataPage
from tests.conftest import SEED
from tests.landing.checked_runs import Runs
from tests.landing.conftest import Crash, Folder, crashing_at
from tests.landing.pages import serving
from tests.landing.tables import tables_in
from tests.storages import local

pytestmark = pytest.mark.usefixtures("each_part_is_staged")

#: Rows of a page, so that a landing has several parts.
PAGE = 1000
CHECKS: dict[str, Any] = {
    "rows": {"max_wrong": 0.01},
    "columns": {"price": {"pattern": r"\d+\.\d\d"}, "city": {"values": ["Paris", "Rome"]}},
}
#: The same, of which more rows may be wrong.
SOME = {**CHECKS, "rows": {"max_wrong": 0.1}}
TYPED = {"price": "decimal(10,2)"}
KINDS = ["jsonl", "csv", "parquet", "delta", "iceberg"]


def shop(count: int, wrong: int) -> list[dict[str, str]]:
    """Rows of which some are wrong: each second of these has no price, the others another city."""
    rows = [{"n": f"{number}", "price": "1.50", "city": "Paris"} for number in range(count)]
    for index, number in enumerate(random.Random(SEED).sample(range(count), wrong)):
        rows[number] |= {"city": "Oslo"} if index % 2 else {"price": "soon"}
    return rows


@pytest.fixture(params=KINDS)
def shops(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Runs]:
    """Makes runs that land in folders of a format, or in tables, that are not there yet."""
    kind = request.param
    if kind in ("delta", "iceberg"):
        tables, parquet = tables_in(tmp_path, kind), make_format("parquet")
        return lambda: Runs(tables(), file_format=parquet)
    return lambda: Runs(Folder.new(local(tmp_path)), file_format=make_format(kind))


def numbers(landed: Any) -> list[int]:
    """Return the numbers of the rows that a reader gets, in order."""
    return sorted(int(row["n"]) for row in landed.iter_rows())


def test_up_to_the_share_single_rows_wait_and_the_others_land(shops: Callable[[], Runs]) -> None:
    rows, runs = shop(10_000, 99), shops()
    landed = runs.land(rows, CHECKS, fetch=serving(rows, PAGE), max_part_bytes=100_000)
    (waiting,) = in_review(runs.folder.location)
    assert (landed.manifest.rows, waiting.rows, waiting.has_failed) == (9_901, 99, False)
    quarantined = runs.folder.landed(quarantined=waiting.commit)
    reasons = Counter(itertools.chain(*quarantined.reasons()))
    assert reasons == {"columns.price.pattern": 50, "columns.city.values": 49}
    # as the service has sent them
    wrong = [row for row in rows if (row["price"], row["city"]) != ("1.50", "Paris")]
    assert [*quarantined.iter_rows()] == wrong
    assert sorted(numbers(runs.folder.landed()) + numbers(quarantined)) == [*range(10_000)]
    runs.folder.landed().verify()
    assert accept(runs.folder.location).rows == 99
    assert numbers(runs.folder.landed()) == [*range(10_000)]
    runs.folder.landed().verify()


def test_above_the_share_all_rows_wait(shops: Callable[[], Runs]) -> None:
    rows, runs = shop(10_000, 101), shops()
    fetch = serving(rows, PAGE)
    with pytest.raises(ChecksFailed, match=r"101 of 10,000 rows .* 10,000 rows of commit 1 wait"):
        runs.land(rows, CHECKS, fetch=fetch, max_part_bytes=100_000)
    (waiting,) = in_review(runs.folder.location)
    assert (waiting.rows, waiting.has_failed) == (10_000, True)
    quarantined = runs.folder.landed(quarantined=1)
    assert Counter(map(len, quarantined.reasons())) == {0: 9_899, 1: 101}
    assert numbers(quarantined) == [*range(10_000)]
    # the next run is judged by its own rows
    runs.land(shop(10, 0), CHECKS)
    assert accept(runs.folder.location, commit=1).rows == 10_000
    assert Counter(numbers(runs.folder.landed())) == Counter([*range(10_000), *range(10)])


@pytest.mark.parametrize("first", [SOME, None], ids=["goes on", "reads again"])
def test_a_retry_has_counted_all_rows_by_its_rules(tmp_path: Path, first: Any) -> None:
    """Also what the first attempt has sorted by the same rules; by others it is read again."""
    runs = Runs(Folder.new(local(tmp_path)), file_format=make_format())
    rows = shop(40, 4)
    options: dict[str, Any] = {"fetch": serving(rows, 5), "max_part_bytes": 1}
    with pytest.raises(Crash):
        runs.land(rows, first, read=crashing_at(5), **options)
    landed = runs.again(SOME, **options)
    outcomes = {outcome.check: outcome for outcome in landed.checks}
    assert outcomes["rows.max_wrong"].found.startswith("4 of 40 rows")
    assert outcomes["columns.price.pattern"].found.startswith("2 of the values in 40 rows")
    assert len(outcomes["columns.price.pattern"].examples) == 2
    assert sum(part.rows for part in landed.new) == landed.manifest.rows == 36


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"n": "1", "price": "dear"}', "columns.price.type"),
        (b'["no", "object"]', "rows.readable"),
        (b'{"n": %s1%s}' % (b"[" * 2000, b"]" * 2000), "rows.readable"),
    ],
    ids=["cast", "no object", "too deep"],
)
def test_one_poisoned_row_holds_up_no_other(tmp_path: Path, raw: bytes, reason: str) -> None:
    runs = Runs(Folder.new(local(tmp_path)), file_format=make_format("parquet", column_types=TYPED))
    good = [msgspec.Raw(b'{"n": "%d", "price": "1.50"}' % number) for number in range(99)]
    page = DataPage(offset=100, total=100, rest_total=0, rows=[*good, msgspec.Raw(raw)])
    landed = runs.again({"rows": {"max_wrong": 0.01}}, fetch=lambda offset: page)
    assert landed.manifest.rows == 99
    quarantined = runs.folder.landed(quarantined=1)
    assert [*quarantined.reasons()] == [[reason]]
    assert len([*quarantined.iter_rows()]) == 1
    (part,) = quarantined.parts()
    assert raw in runs.folder.read(part.name)
    before = runs.folder.contents()
    with pytest.raises(UnreadableRow, match=f"cannot land: the first has broken {reason}"):
        accept(runs.folder.location)
    assert runs.folder.contents() == before
    assert discard(runs.folder.location).rows == 1
    assert runs.folder.landed().manifest.rows == 99


def test_of_rows_that_are_accepted_those_that_cannot_land_wait_on(tmp_path: Path) -> None:
    """One row of a run that has failed its checks holds up none of the others."""
    runs = Runs(Folder.new(local(tmp_path)), file_format=make_format("parquet", column_types=TYPED))
    rows = shop(10, 0)
    rows[3]["price"], rows[5]["city"] = "dear", "Oslo"
    runs.land(rows, {**CHECKS, "rows": {"max_wrong": 0.01}}, on_failed_checks="quarantine")
    assert accept(runs.folder.location, by="anna").rows == 9
    (left,) = in_review(runs.folder.location)
    assert (left.commit, left.rows, left.has_failed) == (2, 1, False)
    (reasons,) = runs.folder.landed(quarantined=2).reasons()
    assert set(reasons) == {"columns.price.pattern", "columns.price.type"}
    runs.folder.landed().verify()
    before = runs.folder.contents()
    with pytest.raises(UnreadableRow, match=r"1 row of commit 2 .* cannot land: .* columns.price.type"):
        accept(runs.folder.location, commit=2)
    assert runs.folder.contents() == before
    assert accept(runs.folder.location, by="anna", commit=1).rows == 9
    discard(runs.folder.location, commit=2)
    assert numbers(runs.folder.landed()) == [0, 1, 2, *range(4, 10)]


def test_what_is_accepted_meanwhile_keeps_its_columns(tmp_path: Path) -> None:
    """A retry reads again what it has written with other columns."""
    runs = Runs(Folder.new(local(tmp_path)), file_format=make_format("csv"))
    checks, options = {**CHECKS, "rows": {"max_wrong": 0.5}}, {"max_part_bytes": 1}
    first = shop(4, 0)
    first[1] |= {"price": "?", "extra": "more"}
    runs.land(first, checks, **options)
    later = [row | {"late": "late"} for row in shop(8, 0)]
    with pytest.raises(Crash):
        runs.land(later, checks, fetch=serving(runs.rows + later, 2), read=crashing_at(4), **options)
    accept(runs.folder.location, commit=1)
    runs.again(checks, fetch=serving(runs.rows, 2), **options)
    landed = runs.folder.landed()
    assert landed.manifest.columns == ("n", "price", "city", "extra", "late")
    (accepted,) = [row for row in landed.iter_rows() if row["price"] == "?"]
    assert (accepted["extra"], accepted["late"]) == ("more", None)
    assert landed.manifest.rows == 12


def test_a_column_that_only_wrong_rows_have_is_there(tmp_path: Path) -> None:
    runs = Runs(Folder.new(local(tmp_path)), file_format=make_format())
    rows: list[dict[str, Any]] = [*shop(99, 0), {"n": "99", "discount": "x"}]
    rules = {"rows": {"max_wrong": 0.05}, "columns": {"discount": {"pattern": r"\d+"}}}
    runs.land([{**row, "discount": "5"} for row in shop(1, 0)], rules)
    landed = runs.land(rows, {**rules, "missing_columns": "fail"})
    assert landed.manifest.rows == 100


def test_runs_alike_are_as_usual_whatever_share_of_them_is_wrong(tmp_path: Path) -> None:
    runs = Runs(Folder.new(local(tmp_path)), file_format=make_format())
    bounds = {"max_wrong": 0.5, "min_of_usual": 0.9, "max_of_usual": 1.1}
    for _ in range(6):
        runs.land(shop(100, 40), {**CHECKS, "rows": bounds})
    assert runs.folder.landed().manifest.rows == 360
