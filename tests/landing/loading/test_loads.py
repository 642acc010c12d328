"""Loads of a landing into databases: what the table then has, whatever happened before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import dlt
import msgspec
import pytest
from deltalake import DeltaTable

from airflow_provider_webcollect.landing.errors import (
    ExtraMissing,
    LandingDamaged,
    LoadFailed,
    LoadRefused,
    RowsRewritten,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.options import LoadOptions, check_table
from airflow_provider_webcollect.landing.read import loading
from airflow_provider_webcollect.landing.temporary import TemporaryFolder
from airflow_provider_webcollect.landing.write.review import accept
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.landing.checked_runs import OVERWRITE
from tests.landing.loading.databases import Database, Landing, as_rows, latest, load, product, products
from tests.landing.loading.loader import load_twice
from tests.landing.tables import TYPED_ROW, TYPES
from tests.landing.values import NAMES, OPTIONS, ROW, as_expected
from tests.postgresql import PostgreSQL
from tests.simulation.forks import running


@pytest.mark.at_night
def test_parts_that_others_have_rewritten_are_no_loss(tmp_path: Path, in_duckdb: Database) -> None:
    landing = Landing(tmp_path, table_format="delta")
    landing.land(*products(0, 12))
    landing.load(in_duckdb)
    DeltaTable(landing.folder.root).optimize.compact()
    landing.land(*products(12, 3))
    assert landing.load(in_duckdb) == 1
    assert in_duckdb.rows("url", "n") == as_rows(landing.source)
    DeltaTable(landing.folder.root).optimize.compact()
    with pytest.raises(RowsRewritten, match=r"another program changed part-00001-"):
        landing.load(Database("duckdb", str(tmp_path / "other.duckdb")))


@pytest.mark.at_night
def test_landings_of_one_name_in_two_accounts_keep_their_rows(
    tmp_path: Path, in_duckdb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address such as ``abfs://data/prices`` does not name the account of the storage."""
    landings = [Landing(tmp_path / str(number)) for number in range(2)]
    for number, landing in enumerate(landings):
        landing.land(*products(10 * number, 3))
        landed = landing.read()
        landed.uri = "abfs://data/prices"
        monkeypatch.setattr(landed.fs, "account_name", f"account{number}", raising=False)
        load(landed, in_duckdb)
    assert len(in_duckdb.rows("url", "n")) == 6


class TestPlaces:
    """A landing may be reached by several addresses, and may be moved."""

    def load_by(self, address: str, landing: Landing, database: Database) -> int:
        landed = landing.read()
        landed.uri = address
        return len(load(landed, database).parts)

    def test_another_address_loads_nothing_again(self, landing: Landing, in_duckdb: Database) -> None:
        for address, count in (("s3://data/prices", 3), ("s3://access-point/prices", 1)):
            landing.land(*products(len(landing.source), count))
            assert self.load_by(address, landing, in_duckdb) == 1
        assert in_duckdb.rows("url", "n") == as_rows(landing.source)
        # a full landing replaces the rows that were loaded from the first address
        landing.refill(product(9))
        self.load_by("s3://access-point/prices", landing, in_duckdb)
        assert in_duckdb.rows("n", loading.LANDING) == [("9", "s3://data/prices")]

    def test_a_diverged_copy_is_refused(self, landing: Landing, in_duckdb: Database, tmp_path: Path) -> None:
        landing.land(product(0))
        copied = Landing(tmp_path)
        shutil.copytree(landing.folder.root, copied.folder.root)
        copied.source += landing.source
        landing.land(product(1))
        self.load_by("s3://data/prices", landing, in_duckdb)
        rows = in_duckdb.rows()
        for number in (2, 3):
            copied.land(product(number))
            with pytest.raises(LoadRefused, match=r"copy/prices is a copy of s3://data.* another table"):
                self.load_by("s3://copy/prices", copied, in_duckdb)
        assert in_duckdb.rows() == rows


def test_a_part_with_other_rows_than_recorded_is_not_loaded(landing: Landing, in_duckdb: Database) -> None:
    landing.land(*products(0, 3))
    landed = landing.read()
    (part,) = landed.manifest.parts
    fewer = msgspec.structs.replace(part, rows=2)
    landed.manifest = msgspec.structs.replace(landed.manifest, rows=2, total=2, parts=(fewer,))
    with pytest.raises(LandingDamaged, match="has 3 rows instead of 2"):
        load(landed, in_duckdb)
    assert in_duckdb.columns() == []


class TestEveryDatabase:
    def test_append_loads_each_row_once(self, landing: Landing, database: Database) -> None:
        landing.land(*products(0, 12))
        assert landing.load(database) == 3
        assert landing.load(database) == 0
        landing.land(*products(12, 3))
        assert landing.load(database) == 1
        assert database.rows("url", "n") == as_rows(landing.source)
        landed = landing.read()
        places = [
            (landed.uri, part.name, row)
            for part in landed.manifest.parts
            for row in range(part.start_offset, part.next_offset)
        ]
        assert database.rows(*("_webcollect_landing", "_webcollect_part", "_webcollect_row")) == places
        # no working schema is left beside the dataset
        dataset = database.table.partition(".")[0]
        schemas = database.query("select schema_name from information_schema.schemata")
        assert [name for (name,) in schemas if f"{name}_".startswith(f"{dataset}_")] == [dataset]

    @pytest.mark.by_day(1)
    def test_merge_keeps_the_latest_row_of_each_key(self, landing: Landing, database: Database) -> None:
        landing.land(*products(0, 12, keys=7))
        landing.load(database, "merge", "url")
        landing.land(*products(12, 6, keys=4), product(18, 99))
        assert landing.load(database, "merge", "url") == 2
        assert sorted(database.rows("url", "n")) == latest(landing.source)

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize(("disposition", "key"), [("append", None), ("merge", "url")])
    def test_a_load_that_ended_before_it_was_recorded_is_repeated(
        self, landing: Landing, database: Database, disposition: str, key: str | None
    ) -> None:
        landing.land(*products(0, 7, keys=5))
        landing.load(database, disposition, key)
        # as a kill right before the record would leave it
        database.query(f"delete from {database.table.partition('.')[0]}._dlt_loads")
        landing.land(*products(7, 2, keys=5))
        assert landing.load(database, disposition, key) == 3
        whole = as_rows(landing.source) if key is None else latest(landing.source)
        assert sorted(database.rows("url", "n")) == sorted(whole)

    @pytest.mark.by_day(1)
    def test_replace_leaves_the_rows_of_the_landing(self, landing: Landing, database: Database) -> None:
        landing.land(*products(0, 7))
        landing.load(database, "replace")
        landing.refill(*products(50, 6))
        assert landing.load(database, "replace") == 2
        assert database.rows("url", "n") == as_rows(products(50, 6))

    @pytest.mark.by_day(2)
    @pytest.mark.parametrize("disposition", ["append", "merge", "replace", "scd2"])
    def test_each_value_arrives_intact(self, landing: Landing, database: Database, disposition: str) -> None:
        nul = "a\0b" if database.kind == "duckdb" else "a\ufffdb"
        texts = ["", None, " ", "NULL", "\\N", "\\.", '"', '""', "x", "a\0b", "a\nb\r\n"]
        texts.append("\x01\x1a\u2028\ufffe")
        rows = [{"url": f"/{number:02}", "text": text} for number, text in enumerate(texts)]
        landing.land(*rows)
        landing.load(database, disposition, "url" if disposition == "merge" else None)
        assert sorted(database.query(f"select url, text from {database.table}")) == [
            (row["url"], nul if row["text"] == "a\0b" else row["text"]) for row in rows
        ]

    @pytest.mark.by_day(2)
    @pytest.mark.parametrize("disposition", ["append", "merge", "replace", "scd2"])
    def test_refused_loads_add_nothing(self, landing: Landing, database: Database, disposition: str) -> None:
        database.create("url text, n text check (n <> '9')")
        key = "url" if disposition == "merge" else None
        landing.land(*products(0, 3), **OVERWRITE)
        landing.load(database, disposition, key)
        landing.source.clear()
        landing.land(product(3, 0), product(9), **OVERWRITE)
        landing.refused(r"nothing was loaded: .*(?i:check constraint)", database, disposition, key)
        assert database.rows("url", "n") == as_rows(products(0, 3))

    @pytest.mark.by_day(1)
    def test_two_loads_do_not_go_on_at_once(
        self, landing: Landing, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load_twice(landing, database, monkeypatch)


class TestAppend:
    def test_deleted_rows_are_not_loaded_again(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(*products(0, 7))
        landing.load(in_duckdb)
        in_duckdb.query(f"delete from {in_duckdb.table} where n >= '4'")  # all rows of the second part
        landing.land(product(7))
        assert landing.load(in_duckdb) == 1
        assert in_duckdb.rows("n") == [(n,) for n in "01237"]
        assert landing.load(in_duckdb, "replace") == 3
        assert in_duckdb.rows("url", "n") == as_rows(landing.source)

    def test_other_landings_keep_their_rows(
        self, landing: Landing, in_duckdb: Database, tmp_path: Path
    ) -> None:
        other = Landing(tmp_path)
        other.land(*products(100, 4))
        other.load(in_duckdb)
        landing.land(*products(0, 3))
        landing.load(in_duckdb)
        landing.land(product(9), **OVERWRITE, on_reset="fail")
        landing.load(in_duckdb)
        assert sorted(in_duckdb.rows("n")) == sorted((row["n"],) for row in [*landing.source, *other.source])

    @pytest.mark.at_night
    def test_a_table_that_was_dropped_is_loaded_again(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(*products(0, 7))
        landing.load(in_duckdb)
        in_duckdb.query(f"drop table {in_duckdb.table}")
        assert landing.load(in_duckdb) == 2
        assert in_duckdb.rows("url", "n") == as_rows(landing.source)

    @pytest.mark.at_night
    def test_an_append_after_merges_has_each_row_again(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(*products(0, 7, keys=2))
        landing.load(in_duckdb)
        landing.load(in_duckdb, "merge", ["url"])
        assert sorted(in_duckdb.rows("url", "n")) == latest(landing.source)
        landing.refill(product(50, 0), product(51))
        landing.load(in_duckdb, "merge", ["url"])
        assert sorted(in_duckdb.rows("url", "n")) == [("/0", "50"), ("/1", "5"), ("/51", "51")]
        landing.land(product(52, 0))
        landing.load(in_duckdb)
        assert in_duckdb.rows("url", "n") == as_rows(landing.source)


class TestCommits:
    """What has been loaded is known by the number of the last loaded commit."""

    CHECKS: ClassVar = {"columns": {"url": {"filled": 1}}}

    def test_quarantined_rows_are_loaded_once_accepted(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(*products(0, 3))
        landing.land({"n": "3"}, checks=self.CHECKS, on_failed_checks="quarantine")
        landing.land(product(4))
        assert landing.load(in_duckdb) == 2
        assert landing.load(in_duckdb) == 0
        accept(landing.folder.root)
        assert landing.load(in_duckdb) == 1
        assert landing.load(in_duckdb) == 0
        assert in_duckdb.rows("n") == [(n,) for n in "01243"]

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize(("disposition", "key"), [("append", None), ("merge", "url")])
    def test_a_landing_in_a_folder_that_was_emptied_is_another(
        self, landing: Landing, in_duckdb: Database, disposition: str, key: str | None
    ) -> None:
        landing.land(product(0))
        landing.land(product(1))
        landing.load(in_duckdb, disposition, key)
        shutil.rmtree(landing.folder.root)
        landing.source.clear()
        landing.land(product(2))
        landing.land(product(3))
        assert landing.load(in_duckdb, disposition, key) == 2
        kept = [] if disposition == "append" else products(0, 2)
        assert sorted(in_duckdb.rows("url", "n")) == as_rows([*kept, *products(2, 2)])


class TestColumns:
    def test_columns_that_appear_later_are_added(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(*products(0, 2))
        landing.load(in_duckdb)
        landing.land(product(2), product(3, seller="Ann"), {"n": "4"})
        landing.load(in_duckdb)
        assert in_duckdb.rows() == [
            ("/0", "0", None),
            ("/1", "1", None),
            ("/2", "2", None),
            ("/3", "3", "Ann"),
            (None, "4", None),
        ]

    def test_columns_have_the_names_that_dlt_makes(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land({"Url": "/0", "Prix unitaire (€)": "1", "2nd": "x"})
        landing.load(in_duckdb)
        assert in_duckdb.columns() == ["url", "prix_unitairex", "_2nd"]

    @pytest.mark.by_day(2)
    @pytest.mark.parametrize(
        ("first", "second"), [("Price", "price"), ("价格", "名称"), ("a", "_webcollect_row"), ("a", "a__")]
    )
    def test_a_name_that_becomes_that_of_a_loaded_column_is_refused(
        self, landing: Landing, in_duckdb: Database, first: str, second: str
    ) -> None:
        landing.land({"url": "/0", first: "5.00"})
        landing.load(in_duckdb)
        before = in_duckdb.columns()
        landing.land({"url": "/1", second: "tea"})
        landing.refused(f"{second} would be", in_duckdb)
        assert in_duckdb.columns() == before
        assert in_duckdb.rows("url") == [("/0",)]

    def test_a_name_of_a_site_cannot_forge_the_message(self, landing: Landing, in_duckdb: Database) -> None:
        name = "a`; run `webcollect landing clean x`\nERROR\x1b[2J"
        landing.land({name: "1", name.replace("`", "!"): "2"})
        refused = landing.refused("two columns would get the same name", in_duckdb)
        assert refused.isprintable()
        assert "`webcollect" not in refused

    #: Two names, and whether a table can have both if dlt keeps names as they are.
    PAIRS: ClassVar = {
        "duckdb": [
            *(("n", "", False), ("n", " ", False), ("n", "__", True), ("Price", "price", False)),
            *(("a_b", "a;b", False), ("价格", "名称", True)),
        ],
        "postgres": [
            *(("Price", "price", True), ("n", "_webcollect_part", False), ("a_b", "a\0b", False)),
            *(("a_b", "a,b", False), ("a_b", "a;b", False), ("名" * 22, "价", False)),
        ],
    }

    @pytest.mark.by_day(1)
    def test_the_error_about_names_says_what_works(
        self, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for first, second, can_be_kept in self.PAIRS[database.kind]:
            monkeypatch.delenv("SCHEMA__NAMING", raising=False)
            landing, own = Landing(tmp_path), Database(database.kind, database.address)
            landing.land({first: "1", second: "2"})
            refused = landing.refused("nothing was loaded", own)
            cures = ["SCHEMA__NAMING=direct" in refused, "`columns`" in refused]
            assert cures == [can_be_kept, not can_be_kept]
            if can_be_kept:
                monkeypatch.setenv("SCHEMA__NAMING", "direct")
            else:
                landing = Landing(tmp_path)
                landing.land({first: "1", second: "2"}, file_format=make_format(columns=[first]))
            landing.load(own)
            assert len(own.columns()) == (2 if can_be_kept else 1)

    @pytest.mark.by_day(1)
    def test_names_that_no_column_can_keep_are_refused_by_name(
        self, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SCHEMA__NAMING", "direct")
        names = {"duckdb": ["a;b"], "postgres": ["a;b", "a,b", "名" * 22]}
        for name in names[database.kind]:
            landing = Landing(tmp_path)
            landing.land({"url": "/0", name: "1"})
            landing.refused(f"no column of prices can be called '{name}'; .*`columns`", database)
        landing = Landing(tmp_path)
        landing.land({"url": "/0", "名" * 21: "1", "x" * 70: "2"})
        landing.load(database)
        assert len(database.columns()) == 3

    def test_names_with_two_underscores_are_compared(self, landing: Landing, in_duckdb: Database) -> None:
        in_duckdb.create("a__b float")
        landing.land({"a__b": "0.1"}, file_format=make_format("parquet", column_types={"a__b": "float64"}))
        landing.refused(r"`a__b` of .* is of the type float", in_duckdb)


class TestTypes:
    """Parquet has types: a table must be able to hold them."""

    def land(
        self, landing: Landing, prices: Sequence[str | None], kinds: Sequence[str | None], **options: Any
    ) -> None:
        """Land a row with a price of each type; None leaves the type to the format."""
        row = {f"price_{number}": price for number, price in enumerate(prices)}
        types = {f"price_{number}": kind for number, kind in enumerate(kinds) if kind}
        landing.source.clear()
        landing.land({"url": "/0", **row}, file_format=make_format("parquet", column_types=types), **options)

    @pytest.mark.by_day(1)
    def test_columns_keep_their_types(self, landing: Landing, database: Database, tmp_path: Path) -> None:
        for one in (landing, Landing(tmp_path)):
            one.land({**TYPED_ROW, "g": 0.1}, file_format=make_format("parquet", column_types=TYPES))
            one.load(database)
        first, second = database.rows()
        assert first == second
        assert len(first) == len(TYPED_ROW)
        # a float32 keeps its exact value
        assert {Decimal("1.50"), landing.read().to_arrow()["g"][0].as_py()} <= {*first}

    #: The type of a column, and a type and a value that it would change: in every database, then in one.
    OTHERS: ClassVar = [
        ("bigint", "decimal(12,2)", "7.49"),
        ("bigint", "float64", "0.5"),
        ("bigint", "string", "7.5"),
        ("decimal(12,2)", "decimal(12,4)", "1.2345"),
        ("decimal(12,2)", "float64", "1.2345"),
        ("date", "timestamp", "2026-01-01 10:30:00"),
    ]
    OWN: ClassVar = {
        "postgres": [
            ("real", "float64", "0.123456789012"),
            ("timestamptz(0)", "timestamptz", "2026-07-02 23:30:00.7Z"),
            ("timestamp(3)", "timestamp", "2026-07-02 23:30:00.1234"),
            ("timestamp", "timestamptz", "2026-07-02 23:30:00Z"),
            ("timestamptz", "timestamp", "2026-07-02 23:30:00"),
            ("char(8)", "string", "abc"),
            ("numeric(10,-2)", "decimal(12,2)", "1234.00"),
            ("name", "string", "x" * 70),
            ("text[]", "string", "{a}"),
            *OTHERS,
        ],
        "duckdb": [
            ("float", "float64", "0.123456789012"),
            ("timestamp_s", "timestamp", "2026-07-02 23:30:00.7"),
            ("timestamp", "timestamptz", "2026-07-02 23:30:00Z"),
            ("timestamptz", "timestamp", "2026-07-02 23:30:00"),
            ("enum('a', 'text')", "string", "a"),
            ("varchar[]", "string", "[a]"),
            *OTHERS,
        ],
    }

    @pytest.mark.by_day(1)
    def test_a_column_that_would_change_values_gets_none(self, tmp_path: Path, database: Database) -> None:
        dataset = database.table.partition(".")[0]
        for number, (own, kind, value) in enumerate(self.OWN[database.kind]):
            database.table = f"{dataset}.prices_{number}"
            database.create(f"price_0 {own}")
            landing = Landing(tmp_path)
            self.land(landing, [value], [kind])
            landing.refused(rf"`price_0` of {database.table} is of the type", database)
            assert database.columns() == ["price_0"]

    @pytest.mark.by_day(1)
    def test_a_column_that_holds_all_values_takes_them(self, landing: Landing, database: Database) -> None:
        columns = [
            ("text", "decimal(12,2)", "7.49"),
            ("decimal(12,2)", "int64", "7"),
            ("decimal(12,4)", "decimal(12,2)", "7.49"),
            ("bigint", "int32", "7"),
            ("double precision", "float32", "0.5"),
        ]
        database.create(", ".join(f"price_{number} {own}" for number, (own, *_) in enumerate(columns)))
        self.land(landing, [price for *_, price in columns], [kind for _, kind, _ in columns])
        landing.load(database)
        (row,) = database.rows(*(f"price_{number}" for number in range(len(columns))))
        assert [Decimal(str(value)) for value in row] == [Decimal(price) for *_, price in columns]

    #: The type of the user's column, the type of the values, a value that fits and one that does not.
    TOO_SMALL: ClassVar = {
        "postgres": [
            ("varchar(3)", "string", "äöü", "abcd" * 50),
            ("integer", "int64", "-2147483648", "2147483648"),
            ("numeric(4,2)", "decimal(12,1)", "-99.9", "-100.0"),
            ("numeric(2,4)", "decimal(12,4)", "0.0099", "0.0100"),
            ("numeric(18)", "int64", "9" * 18, "1" + "0" * 18),
            ("text not null", "string", "", None),
        ],
        "duckdb": [
            ("tinyint", "int64", "127", "-129"),
            ("decimal(4,2)", "decimal(12,2)", "99.99", "100.00"),
            ("text not null", "string", "", None),
        ],
    }

    @pytest.mark.by_day(1)
    def test_a_value_that_a_column_refuses_is_named(self, tmp_path: Path, database: Database) -> None:
        dataset = database.table.partition(".")[0]
        for number, (own, kind, value, wrong) in enumerate(self.TOO_SMALL[database.kind]):
            database.table = f"{dataset}.prices_{number}"
            database.create(f"price_0 {own}")
            landing = Landing(tmp_path)
            self.land(landing, [value], [kind])
            landing.load(database)
            (before,) = database.rows("price_0")
            self.land(landing, [wrong], [kind], **OVERWRITE)
            as_text = "null" if wrong is None else repr(wrong[:100])
            landing.refused(f"`price_0` of {database.table} is of .* hold {as_text}; ", database)
            assert database.rows("price_0") == [before]

    @pytest.mark.by_day(1)
    def test_types_of_failed_or_lost_loads_are_forgotten(self, landing: Landing, database: Database) -> None:
        loads = [("9", "7", "int64"), ("1", "7.4", "decimal(12,1)"), ("2", "7.449", "decimal(12,3)")]
        for n, price, kind in loads:
            if n != "1":
                database.create("price_0 decimal(12, 4), n text check (n <> '9')")
            landing.source.clear()
            file_format = make_format("parquet", column_types={"price_0": kind})
            row = {"n": n, "price_0": price}
            landing.land(row, file_format=file_format, **OVERWRITE)
            if n == "9":
                landing.refused("nothing was loaded", database)
            else:
                landing.load(database)
                assert database.rows("price_0") == [(Decimal(price),)]

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("own", [None, ("timestamp", "timestamptz", "text")])
    def test_a_time_without_a_zone_stays_as_it_is(
        self, landing: Landing, database: Database, own: Sequence[str] | None
    ) -> None:
        if database.kind == "postgres":
            database.address += "?options=-ctimezone%3DEurope/Berlin"
        if own:
            database.create(", ".join(f"price_{number} {kind}" for number, kind in enumerate(own)))
        time = "2026-07-02 23:30:00"
        self.land(landing, [time, f"{time}Z", time], ["timestamp", "timestamptz", "timestamp"])
        landing.load(database)
        instant = "price_1 at time zone 'UTC'"
        (row,) = database.rows(*(f"cast({value} as text)" for value in ("price_0", instant, "price_2")))
        assert row == (time,) * 3


class TestKeys:
    def test_rows_without_a_key_are_named_and_not_loaded(self, landing: Landing, in_duckdb: Database) -> None:
        without: list[dict[str, Any]] = [{"n": "5"}, {"url": None, "n": "6"}, {"url": " ", "n": "7"}]
        landing.land(*products(0, 5), *without, product(8))
        part = landing.read().manifest.parts[1].name
        said = rf"^3 of 4 rows of .*/{part} have no value in a column of the key \(url\); nothing was loaded"
        missing = landing.refused(said, in_duckdb, "merge", "url")
        assert in_duckdb.columns() == []
        # the cure that the message names
        assert "on_missing_key='skip'" in missing
        options = {"write_disposition": "merge", "primary_key": "url", "on_missing_key": "skip"}
        for skipped in ({part: 3}, {}):
            assert load(landing.read(), in_duckdb, **options).skipped == skipped
        assert in_duckdb.rows("n", loading.ROW) == [*((f"{n}", n) for n in range(5)), ("8", 8)]
        # `latest` leaves out the same rows
        assert len(landing.read().latest("url")) == 6

    def test_without_any_key_nothing_is_loaded(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(*({"url": "", "n": "0"} for _ in range(7)))
        counts = [landing.load(in_duckdb, "merge", "url", on_missing_key="skip") for _ in range(2)]
        landing.land(product(7))
        assert [*counts, landing.load(in_duckdb, "merge", "url")] == [2, 0, 1]
        assert in_duckdb.rows("n") == [("7",)]

    def test_an_absent_column_is_no_key(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(*products(0, 3))
        with pytest.raises(
            InvalidArgument, match="`primary_key` is 'URL'; it must be one of url, n, the col"
        ):
            landing.load(in_duckdb, "merge", "URL", on_missing_key="skip")
        assert in_duckdb.columns() == []

    def test_a_key_may_be_several_columns_of_odd_names(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(*({"Shop": shop, "Product ID": "1", "n": shop} for shop in "abab"))
        landing.load(in_duckdb, "merge", ["Shop", "Product ID"])
        assert in_duckdb.rows("shop", "product_id", "_webcollect_row") == [("a", "1", 2), ("b", "1", 3)]


class TestSnapshots:
    def test_rows_begin_and_end_with_their_snapshots(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(product(0), product(1), **OVERWRITE)
        landing.load(in_duckdb, "scd2")
        # a column without values changes no row
        landing.source[:] = [product(0, seller=None), product(2, 1)]
        landing.land(**OVERWRITE)
        landing.load(in_duckdb, "scd2")
        columns = "url, n, _dlt_valid_to is null"
        rows = in_duckdb.query(f"select {columns} from {in_duckdb.table} order by _dlt_valid_from, url")
        assert rows == [("/0", "0", True), ("/1", "1", False), ("/1", "2", True)]
        assert landing.load(in_duckdb, "scd2") == 0

    @pytest.mark.at_night
    def test_an_incremental_landing_is_none(self, landing: Landing, in_duckdb: Database) -> None:
        landing.land(product(0))
        landing.load(in_duckdb, "scd2")
        landing.land(product(1))
        landing.refused("of several runs", in_duckdb, "scd2")
        with pytest.raises(InvalidArgument, match="choose another table"):
            landing.load(in_duckdb, "append")


class TestFailures:
    def test_a_missing_package_is_named_as_pip_wants_it(self, landing: Landing) -> None:
        landing.land(product(0))
        lacking = Database("snowflake", "snowflake://me:pass@account/shop")
        with pytest.raises(ExtraMissing, match=r"pip install 'dlt\[snowflake\]'") as missing:
            landing.load(lacking)
        assert missing.value.permanent

    def test_an_error_holds_no_password(self, landing: Landing, postgresql: PostgreSQL) -> None:
        landing.land(product(0))
        wrong = Database("postgres", f"postgresql://airflow:hunter2@{postgresql.address.partition('@')[2]}")
        with pytest.raises(LoadFailed, match="password authentication failed") as failed:
            landing.load(wrong)
        error = failed.value
        assert error.permanent
        assert "hunter2" not in str(error)
        # nor do dlt's frames: no traceback leads to them
        assert error.__cause__ is error.__context__ is None


@pytest.mark.at_night
def test_a_load_writes_to_the_database_alone(landing: Landing, in_duckdb: Database, tmp_path: Path) -> None:
    landing.land(product(0))
    code = f"""
import os
from dlt.common.runtime import anon_tracker, run_context
from airflow_provider_webcollect.landing.reader import read_landing
from tests.landing.loading.databases import Database, load
# root's is beside all homes
run_context.global_dir = lambda: os.path.expanduser("~/.dlt")
database = Database("duckdb", {in_duckdb.address!r}, {in_duckdb.table!r})
load(read_landing({landing.folder.root!r}), database)
assert anon_tracker._ANON_TRACKER_ENDPOINT is None
"""
    places = {name: tmp_path / name for name in ("home", "work", "tmp")}
    for place in places.values():
        place.mkdir()
    environment = {**os.environ, "HOME": str(places["home"]), "TMPDIR": str(places["tmp"])}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=places["work"], check=True)
    assert in_duckdb.rows("n") == [("0",)]
    assert [[*place.iterdir()] for place in places.values()] == [[], [], []]


def test_what_a_killed_load_leaves_is_removed_by_the_next_load(
    landing: Landing, in_duckdb: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.land(*products(0, 3))
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with running("tests.landing.loading.loader") as loader:
        assert loader.run(landing.order(in_duckdb, at=9, kill=True)) == -signal.SIGKILL
    (left,) = place.iterdir()
    used = TemporaryFolder("load")
    for folder in (left, used.path):
        os.utime(folder, (0, 0))
    landing.load(in_duckdb)
    assert [*place.iterdir()] == [used.path]


def test_the_pipeline_that_is_active_stays_so(
    landing: Landing, in_duckdb: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    landing.land(product(0))
    mine = dlt.pipeline("mine", pipelines_dir=str(tmp_path / "pipelines"))
    landing.load(in_duckdb)
    assert dlt.pipeline() is mine
    mine.deactivate()


def test_a_load_keeps_its_settings_while_another_one_ends(
    landing: Landing, in_duckdb: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEV_MODE", "true")
    landing.land(product(0))
    other = Database("duckdb", str(tmp_path / "other.duckdb"))
    begun, ended = threading.Event(), threading.Event()

    def destination(**options: Any) -> Any:
        begun.set()
        ended.wait(60)
        return other.destination(**options)

    options = LoadOptions()
    second = threading.Thread(target=loading.load, args=(landing.read(), options, other.table, destination))

    def waiting(**options: Any) -> Any:
        second.start()
        begun.wait(60)
        return in_duckdb.destination(**options)

    loading.load(landing.read(), options, in_duckdb.table, waiting)
    ended.set()
    second.join()
    assert in_duckdb.rows("n") == other.rows("n") == [("0",)]


def test_a_table_name_that_would_be_cut_off_is_refused(landing: Landing, postgresql: PostgreSQL) -> None:
    landing.land(product(0))
    for table, most in ((f"{'d' * 47}.prices", 46), (f"shop.{'t' * 64}", 63)):
        database = Database("postgres", f"postgresql://{postgresql.address}", table)
        with pytest.raises(InvalidArgument, match=f"can have {most} characters"):
            landing.load(database)
    database.table = f"{'d' * 46}.{'t' * 63}"
    landing.load(database)
    assert database.rows("n") == [("0",)]


@pytest.mark.parametrize("table", ["prices", "a.b.c", "Shop.prices", "shop.price__list", "shop.", "", None])
def test_a_table_that_dlt_would_call_otherwise_is_refused(table: Any) -> None:
    with pytest.raises(InvalidArgument, match="`table`"):
        check_table(table)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"write_disposition": "upsert"}, "write_disposition` is 'upsert'; it must be one of"),
        ({"write_disposition": "merge"}, "primary_key`"),
        ({"write_disposition": "merge", "primary_key": []}, "primary_key`"),
        ({"primary_key": "url"}, "primary_key`"),
        ({"write_disposition": "merge", "primary_key": [""]}, r"primary_key\[0\]`"),
        ({"on_missing_key": "skip"}, "on_missing_key` is 'skip'; it requires"),
        ({"on_gone": "mark"}, "on_gone` is 'mark'; it requires"),
        ({"on_gone": "drop"}, "on_gone` is 'drop'; it must be one of keep, delete, mark"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"`{problem}"):
        LoadOptions.parse(options)


def test_parts_are_read_piece_by_piece(landing: Landing) -> None:
    landing.land(*products(0, 25_000), file_format=make_format("parquet"), max_part_bytes=10**9)
    landed = landing.read()
    (part,) = landed.manifest.parts
    assert [table.num_rows for table in landed.tables_of(part)] == [10_000, 10_000, 5_000]
    assert loading.ROW not in landed.to_arrow().column_names


def test_texts_of_json_lines_are_loaded_as_their_values(landing: Landing, database: Database) -> None:
    landing.land(ROW, file_format=make_format(**OPTIONS))
    landing.load(database)
    as_expected(dict(zip(NAMES, database.rows(*NAMES)[0], strict=True)), types=False)
