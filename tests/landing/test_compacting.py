"""Many small parts that become few: the rows, their order and what is known of them stay."""

from __future__ import annotations

import datetime
import io
import json
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
import pytest
import time_machine
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.compacting import Compacted, compact
from airflow_provider_webcollect.landing.errors import (
    DestinationUnreadable,
    LandingDamaged,
    NothingLanded,
    PartsMissing,
    RowsRewritten,
)
from airflow_provider_webcollect.landing.formats import make_format, parquet
from airflow_provider_webcollect.landing.manifest import Part
from airflow_provider_webcollect.landing.reader import LandedData
from airflow_provider_webcollect.landing.review import accept
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.conftest import ALL_HISTORIES
from tests.landing.all_formats import FORMATS, named
from tests.landing.conftest import Folder
from tests.landing.shops import Shop, day, offer, run_of

if TYPE_CHECKING:
    pass

TYPED = {
    "file_format": "parquet",
    "column_types": {"n": "int64", "at": "timestamptz", "price": "decimal(9,2)"},
}
EVERY = [{"file_format": "jsonl"}, *FORMATS, TYPED]
#: What a column may hold, as the service sends it.
VALUES: dict[str, list[Any]] = {
    "url": ["a", "b", "A", None, ""],
    "text": ["", None, "null", 'a"b', "a\nb", "a,b\r\n", "=1", "ä\x00", "\\", {"a": [1]}, [], 1.5, True],
    "n": ["1", " -7 ", "", None],
    "at": ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00.25+01:00", None, ""],
    "price": ["1.50", "1.5", "-0", "", None],
    'odd"\nname': ["x", None],
}


def compacted(shop: Shop, **options: Any) -> Compacted:
    """Compact what has landed."""
    return compact(shop.folder.location, older_than=0, **options)


def compacted_on(number: int, shop: Shop, days: float, **options: Any) -> Compacted:
    """Compact on a day what has landed a number of days before."""
    with time_machine.travel(day(number), tick=False):
        return compact(shop.folder.location, older_than=datetime.timedelta(days=days), **options)


def cleaned(folder: Folder, in_days: float) -> set[str]:
    """Clean in some days, by the clock of the storage, and return the names of what was removed."""
    with time_machine.travel(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=in_days)):
        return {file.name for file in clean(folder.location, older_than=datetime.timedelta(days=1))}


def read(landed: LandedData, days: int) -> dict[str, Any]:
    """Return all that a landing says of its rows, in all and by run, whatever its parts are."""
    runs = [run_of(number).run_id for number in range(1, days + 1)]
    ways: list[bool | str] = [False, True, *runs]
    return {
        "rows": [list(landed.iter_rows(way)) for way in ways],
        "tables": [landed.to_arrow(way) for way in ways],
        "profile": landed.profile(),
        "history": landed.history(["url", "n"], compare="price").fetchall(),
        "changes": [landed.changes("url", since).fetchall() for since in (runs[-1], day(1))],
        "facts": msgspec.structs.replace(landed.manifest, parts=(), bytes=0),
    }


@pytest.fixture
def shop() -> Shop:
    """Four days with parts of two rows each; those of the last day no later commit has confirmed."""
    shop = Shop()
    for number in range(1, 5):
        shop.land(number, [offer(f"{number}{letter}") for letter in "abc"])
    return shop


def parts_of(shop: Shop) -> tuple[Part, ...]:
    return shop.landed.manifest.parts


pytestmark = pytest.mark.at_night


class TestRows:
    @settings(max_examples=2000 if ALL_HISTORIES else 5, deadline=None)
    @given(
        st.sampled_from(EVERY),
        st.data(),
        st.lists(
            st.lists(
                st.fixed_dictionaries(
                    {"url": st.sampled_from(VALUES["url"])},
                    optional={
                        name: st.sampled_from(values) for name, values in VALUES.items() if name != "url"
                    },
                ),
                max_size=5,
            ),
            min_size=2,
            max_size=5,
        ),
    )
    def test_all_that_is_read_stays_as_it_was(
        self, options: dict[str, Any], data: st.DataObject, days: list[list[dict[str, Any]]]
    ) -> None:
        shop = Shop(**options)
        for number, rows in enumerate([[{**dict.fromkeys(VALUES), "url": "a"}], *days], 1):
            shop.land(number, rows, reset=bool(rows) and data.draw(st.booleans()))
            if data.draw(st.booleans()):
                before = read(shop.landed, number)
                limit = data.draw(st.sampled_from([1, 150, 2000, 100_000]))
                age = data.draw(st.integers(0, 2))
                result = compacted_on(number, shop, age, max_part_bytes=limit)
                after = read(shop.landed, number)
                assert after == before
                shop.landed.verify()
                assert result.parts_after == len(parts_of(shop))

    @pytest.mark.parametrize("options", EVERY, ids=named)
    def test_few_parts_have_the_rows_of_many(self, options: dict[str, Any]) -> None:
        shop = Shop(**options)
        for number in range(1, 8):
            shop.land(number, [offer(str(number), None), offer("b", "")])
        before = list(shop.landed.iter_rows())
        result = compacted(shop)
        assert (result.parts_before, result.parts_after, result.rows) == (7, 2, 12)
        assert list(shop.landed.iter_rows()) == before
        [merged] = result.merged
        assert (merged.parts, merged.rows, merged.bytes) == (6, 12, parts_of(shop)[0].bytes)
        assert merged.name == parts_of(shop)[0].name

    @pytest.mark.parametrize("compression", ["gzip", "zstd"])
    @pytest.mark.parametrize("name", ["jsonl", "csv"])
    def test_who_reads_one_member_alone_misses_no_row(self, name: str, compression: str) -> None:
        """As pandas does with zstd."""
        import zstandard

        shop = Shop(file_format=name, compression=compression)
        for number in range(1, 4):
            shop.land(number, [offer(str(number))])
        compacted(shop)
        content = shop.folder.read(parts_of(shop)[0].name)
        decompressor: Any = zlib.decompressobj(31) if compression == "gzip" else None
        decompressor = decompressor or zstandard.ZstdDecompressor().decompressobj()
        assert decompressor.decompress(content).count(b"\n") == 2 + (name == "csv")
        assert decompressor.unused_data == b""

    def test_row_groups_have_the_usual_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Shop(file_format="parquet")
        for number in range(1, 8):
            shop.land(number, [offer(str(number)), offer(str(number))])
        monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 4)
        compacted(shop)
        metadata = pq.ParquetFile(io.BytesIO(shop.folder.read(parts_of(shop)[0].name))).metadata
        assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [4, 4, 4]

    def test_what_is_compacted_again_and_again_forgets_nothing(self, shop: Shop) -> None:
        landed = [segment for part in parts_of(shop) for segment in part.as_landed()]
        for number in range(5, 10):
            assert compacted(shop).merged
            shop.land(number, [offer(str(number))])
            landed += parts_of(shop)[-1].as_landed()
        assert len(parts_of(shop)) == 3
        assert [segment for part in parts_of(shop) for segment in part.as_landed()] == landed
        for number in range(1, 10):
            rows = list(shop.landed.iter_rows(new_only=run_of(number).run_id))
            assert [row["url"][0] for row in rows] == [str(number)] * (3 if number < 5 else 1)


class TestWhatIsMerged:
    def test_parts_of_the_last_commit_stay(self, shop: Shop) -> None:
        before = parts_of(shop)
        compacted(shop)
        assert parts_of(shop)[1:] == before[-2:]
        assert parts_of(shop)[0].segments == tuple(
            segment for part in before[:-2] for segment in part.as_landed()
        )

    def test_young_parts_stay(self, shop: Shop) -> None:
        before = parts_of(shop)
        assert compacted_on(4, shop, 1.5).merged[0].parts == 4
        assert parts_of(shop)[1:] == before[4:]

    def test_parts_stay_in_their_partition(self) -> None:
        shop = Shop()
        for number, place in enumerate(["dt=1", "dt=1", "dt=2", "dt=1", "dt=1/hour=2", "dt=2"], 1):
            shop.land(number, [offer(str(number)), offer(""), offer("")], partition=place)
        before = list(shop.landed.iter_rows())
        compacted(shop)
        folders = [part.name.rpartition("/")[0] for part in parts_of(shop)]
        assert folders == ["dt=1", "dt=2", "dt=1", "dt=1/hour=2", "dt=2", "dt=2"]
        assert list(shop.landed.iter_rows()) == before
        assert cleaned(shop.folder, 0.5) == set()

    def test_a_part_has_the_columns_of_those_that_become_it(self) -> None:
        shop = Shop(file_format="csv")
        for number, names in enumerate(["a", "a", "ab", "ab", "ab", "abc", "abc"], 1):
            shop.land(number, [dict.fromkeys(names, "x")])
        compacted(shop)
        assert [(part.columns, part.rows) for part in parts_of(shop)] == [(1, 2), (2, 3), (3, 1), (3, 1)]

    def test_parts_become_as_large_as_they_may(self, shop: Shop) -> None:
        before = list(shop.landed.iter_rows())
        largest = 3 * parts_of(shop)[0].bytes
        compacted(shop, max_part_bytes=largest)
        assert [len(part.as_landed()) for part in parts_of(shop)] == [4, 2, 1, 1]
        assert all(part.bytes <= largest for part in parts_of(shop))
        assert list(shop.landed.iter_rows()) == before

    def test_what_is_large_enough_stays(self, shop: Shop) -> None:
        size = parts_of(shop)[1].bytes
        before = parts_of(shop)
        assert compacted(shop, max_part_bytes=size).merged == ()
        assert parts_of(shop) == before

    def test_without_two_small_parts_nothing_is_written(self) -> None:
        shop = Shop()
        shop.land(1, [offer("a")])
        shop.land(2, [offer("b")])
        before = shop.folder.read("_manifest.json")
        assert compacted(shop) == Compacted(2, 2, ())
        assert shop.folder.read("_manifest.json") == before

    def test_a_dry_run_only_says_what_would_be_merged(self, shop: Shop) -> None:
        names, before = shop.folder.names(), parts_of(shop)
        result = compacted(shop, dry_run=True)
        assert (result.parts_before, result.parts_after) == (8, 3)
        [merged] = result.merged
        assert merged == (None, before[0].name, before[5].name, 6, 9, sum(part.bytes for part in before[:6]))
        assert (shop.folder.names(), parts_of(shop)) == (names, before)


class TestRuns:
    def test_a_merged_part_is_nobodys_news(self, shop: Shop) -> None:
        compacted(shop)
        manifest = shop.landed.manifest
        assert manifest.run == run_of(4)
        assert [len(manifest.new(run_of(number))) for number in range(1, 5)] == [0, 0, 0, 2]

    def test_no_file_and_no_profile_are_those_of_a_run(self, shop: Shop) -> None:
        compacted(shop)
        landed = shop.landed
        for ask in (landed.uris, landed.profile):
            with pytest.raises(RowsRewritten, match=r"part-00001-.* has rows of several runs"):
                ask(new_only="day 2")
        assert len(landed.uris(new_only="day 4")) == 2
        assert landed.profile(new_only="day 4").columns["url"].filled == 3
        assert landed.uris(new_only="day 5") == []

    def test_parts_of_one_run_alone_are_still_its_own(self, shop: Shop) -> None:
        compacted(shop, max_part_bytes=2 * parts_of(shop)[0].bytes - 1)
        first = parts_of(shop)[0]
        assert (first.run, len(first.segments)) == (None, 2)
        assert shop.landed.uris(new_only="day 1") == shop.landed.uris()[:1]
        assert shop.landed.profile(new_only="day 1") == first.profile

    def test_merged_parts_have_one_profile_together(self, shop: Shop) -> None:
        before = shop.landed.profile()
        compacted(shop)
        assert [(each.run_id, each.rows) for each in shop.landed.profiles()] == [(None, 9), ("day 4", 3)]
        assert shop.landed.profile() == before

    def test_the_next_run_goes_on_and_names_its_parts_in_order(self, shop: Shop) -> None:
        compacted(shop)
        landed = shop.land(5, [offer("5a")])
        assert [part.name[:10] for part in landed.manifest.parts] == [
            *("part-00001", "part-00007", "part-00008", "part-00009")
        ]
        assert [row["url"] for row in landed.iter_rows()][-2:] == ["4c", "5a"]
        assert [row["url"] for row in landed.iter_rows(new_only="day 5")] == ["5a"]

    def test_rows_that_were_set_apart_stay_apart_and_can_be_accepted(self) -> None:
        shop = Shop()
        checks = make_checks({"columns": {"price": {"filled": 1}}}, make_format())
        quarantined = {"checks": checks, "on_failed_checks": "quarantine"}
        for number, price in enumerate(["1", "2", "", "4", "5"], 1):
            shop.land(number, [offer(str(number), price)], **quarantined)
        apart = shop.landed.manifest.set_apart
        compacted(shop)
        assert shop.landed.manifest.set_apart == apart
        shop.landed.verify()
        accept(shop.folder.location)
        compacted(shop)
        assert [row["url"] for row in shop.landed.iter_rows()] == ["1", "2", "4", "5", "3"]
        shop.landed.verify()

    def test_segments_that_do_not_fit_their_part_are_a_contradiction(self, shop: Shop) -> None:
        compacted(shop)
        manifest = shop.folder.manifest()
        manifest["parts"][0]["segments"][0]["rows"] += 1
        shop.folder.write("_manifest.json", json.dumps(manifest).encode())
        with pytest.raises(DestinationUnreadable, match=r"has 9 rows, and its segments 10"):
            shop.landed  # noqa: B018


class TestFiles:
    def test_readers_of_the_manifest_before_read_on(self, shop: Shop) -> None:
        landed = shop.landed
        rows = landed.iter_rows()
        first = next(rows)
        compacted(shop)
        assert [first, *rows] == list(landed.iter_rows()) == list(shop.landed.iter_rows())

    def test_clean_removes_what_was_merged_once_the_merged_part_is_old(self, shop: Shop) -> None:
        merged = {part.name for part in parts_of(shop)[:6]}
        compacted(shop)
        assert cleaned(shop.folder, 0.9) == set()
        assert cleaned(shop.folder, 1.1) == merged
        shop.landed.verify()

    def test_so_it_is_with_what_was_merged_before(self, shop: Shop) -> None:
        merged = {part.name for part in parts_of(shop)[:6]}
        compacted(shop)
        merged |= {part.name for part in parts_of(shop)}
        shop.land(5, [offer("5")])
        compacted(shop)
        assert cleaned(shop.folder, 0.9) == set()
        assert cleaned(shop.folder, 1.1) == merged
        shop.landed.verify()

    def test_a_landing_that_replaces_all_removes_what_was_merged_too(self, shop: Shop) -> None:
        compacted(shop)
        options = {"mode": "full", "if_exists": "overwrite", "on_reset": "fail"}
        shop.land(5, [offer("5")], reset=True, **options)
        assert shop.folder.names() == {"_manifest.json", parts_of(shop)[0].name}

    def test_a_damaged_part_is_not_merged(self, shop: Shop) -> None:
        part = parts_of(shop)[2]
        content = shop.folder.read(part.name)
        before = shop.folder.read("_manifest.json")
        shop.folder.write(part.name, content.replace(b"2a", b"2x"))
        with pytest.raises(LandingDamaged, match=rf"{part.name} does not have the {part.bytes} bytes"):
            compacted(shop)
        shop.folder.fs.rm_file(f"{shop.folder.root}/{part.name}")
        with pytest.raises(PartsMissing, match=rf"{part.name} is not there any more"):
            compacted(shop)
        assert shop.folder.read("_manifest.json") == before
        shop.folder.write(part.name, content)
        compacted(shop)
        shop.landed.verify()


class TestArguments:
    @pytest.mark.parametrize(
        "options",
        [
            {"older_than": -1},
            {"older_than": "7d"},
            {"older_than": 1, "max_part_bytes": 0},
            {"older_than": 1, "dry_run": "no"},
        ],
        ids=str,
    )
    def test_wrong_ones_are_refused(self, shop: Shop, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match=f"`{list(options)[-1]}`"):
            compact(shop.folder.location, **options)

    def test_a_partition_is_not_compacted_on_its_own(self) -> None:
        shop = Shop()
        shop.land(1, [offer("a")], partition="dt=1")
        inside = Folder(shop.folder.fs, f"{shop.folder.root}/dt=1")
        with pytest.raises(InvalidArgument, match=r"is inside the landing at"):
            compact(inside.location, older_than=0)

    def test_nothing_is_there_to_compact(self) -> None:
        with pytest.raises(NothingLanded, match=r"nothing has landed at"):
            compact(Shop().folder.location, older_than=0)
