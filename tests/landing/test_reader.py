"""Landings read back with `read_landing`: rows, tables, and what it says of landings that are damaged."""

from __future__ import annotations

import datetime
import json
import pickle
import subprocess
import sys
import tracemalloc
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from airflow_provider_webcollect.landing.errors import (
    DestinationUnreadable,
    ExtraMissing,
    LandingDamaged,
    LandingReplaced,
    NothingLanded,
    UnreadableRow,
)
from airflow_provider_webcollect.landing.formats import make_format, reading
from airflow_provider_webcollect.landing.reader import LandedData, read_landing
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import DataPage
from tests.conftest import ALL_HISTORIES
from tests.landing.all_formats import FORMATS, named
from tests.landing.conftest import OTHER_RUN, RUN, Folder, Landed, in_order, listed
from tests.landing.pages import page, rows_of, widening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

ALL_FORMATS = [{"file_format": "jsonl"}, *FORMATS]
#: Texts that trip readers up, and values that are no texts.
ODD_ROWS: list[dict[str, Any]] = [
    {"a": 'say "hi",\n\nthen go', "b": "", "c": None},
    {"a": "x\r\ny,", "b": '"', "c": 1.50, "d": ["é", {"k": None}]},
    {"b": ",", "c": True, "e": "2026-01-01 00:00:00"},
    {},
    {"a": "007", "c": 10**20, "e": "\x00\u2028🎧"},
]


def opened(folder: Folder) -> LandedData:
    """Read the landing through its filesystem, as from an `ObjectStoragePath`."""
    return read_landing(folder.location)


def as_text(value: Any) -> Any:
    """Return a value as tables have it."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def table_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as a table of texts has them, with all columns in order of appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: as_text(row.get(name)) for name in names} for row in rows]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have texts read seven bytes at a time, so that every row is cut."""
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 7)


@pytest.mark.parametrize("options", ALL_FORMATS, ids=named)
class TestEveryFormat:
    @pytest.mark.usefixtures("small_chunks")
    def test_odd_texts_nulls_and_values_that_are_no_texts_come_back(
        self, landing: Landed, folder: Folder, options: dict[str, Any]
    ) -> None:
        pages = [page(ODD_ROWS[:2], 0, 5), page(ODD_ROWS[2:], 2, 5)]
        landing("t", fetch=listed(pages), file_format=make_format(**options), max_part_bytes=1)
        landed = opened(folder)
        landed.verify()
        assert landed.to_arrow().to_pylist() == table_of(ODD_ROWS)
        expected = ODD_ROWS if landed.manifest.format == "jsonl" else table_of(ODD_ROWS)
        assert list(landed.iter_rows()) == expected

    def test_columns_are_those_of_the_manifest_in_its_order(
        self, landing: Landed, folder: Folder, options: dict[str, Any]
    ) -> None:
        pages = widening()
        chosen = make_format(**options, columns=["k3", "k0", "never"])
        landing("t", fetch=listed(pages), file_format=chosen)
        table = opened(folder).to_arrow()
        assert table.schema == pa.schema([(name, pa.string()) for name in ("k3", "k0", "never")])
        assert table["k0"].to_pylist() == [row["k0"] for row in rows_of(pages)]

    def test_a_landing_without_rows_is_a_table_without_rows(
        self, landing: Landed, folder: Folder, options: dict[str, Any]
    ) -> None:
        landing("t", fetch=listed([page([], 0, 0)]), file_format=make_format(**options, columns=["a", "b"]))
        landed = opened(folder)
        landed.verify()
        assert list(landed.iter_rows()) == []
        assert (landed.to_arrow().num_rows, landed.to_arrow().column_names) == (0, ["a", "b"])
        assert landed.to_duckdb().fetchall() == []

    def test_every_byte_that_changes_is_noticed(
        self, landing: Landed, folder: Folder, options: dict[str, Any]
    ) -> None:
        landing("t", fetch=listed(widening(1)), file_format=make_format(**options))
        (part,) = opened(folder).manifest.parts
        content = folder.read(part.name)
        for index in range(0, len(content), max(1, len(content) // 50)):
            folder.write(part.name, content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
            with pytest.raises(LandingDamaged, match=f"{part.name} does not have the SHA-256"):
                opened(folder).verify()
        folder.write(part.name, content)
        opened(folder).verify()

    def test_reading_says_which_part_is_torn(
        self, landing: Landed, folder: Folder, options: dict[str, Any]
    ) -> None:
        landing("t", fetch=listed(widening(3)), file_format=make_format(**options))
        part = opened(folder).manifest.parts[-1]
        folder.write(part.name, folder.read(part.name)[:-9])
        landed = opened(folder)
        for read in (lambda: list(landed.iter_rows()), landed.to_arrow):
            with pytest.raises(LandingDamaged, match=f"{part.name} has {part.bytes - 9} bytes instead of"):
                read()


def test_parquet_keeps_its_types(landing: Landed, folder: Folder) -> None:
    types = {"price": "decimal(9,2)", "on": "date32", "at": "timestamptz", "n": "int32"}
    rows = [
        {"price": "1.50", "on": "2026-01-02", "at": "2026-01-02T03:04:05Z", "n": "7", "text": "7"},
        {"price": None, "on": "", "text": None},
    ]
    landing("t", fetch=listed([page(rows, 0, 2)]), file_format=make_format("parquet", column_types=types))
    landed = opened(folder)
    assert landed.to_arrow().schema == pa.schema(
        {
            "price": pa.decimal128(9, 2),
            "on": pa.date32(),
            "at": pa.timestamp("us", "UTC"),
            "n": pa.int32(),
            "text": pa.string(),
        }
    )
    first, second = landed.iter_rows()
    assert first == {
        "price": Decimal("1.50"),
        "on": datetime.date(2026, 1, 2),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "n": 7,
        "text": "7",
    }
    assert set(second.values()) == {None}


def test_parquet_without_parts_has_its_types_too(landing: Landed, folder: Folder) -> None:
    typed = make_format("parquet", columns=["n", "text"], column_types={"n": "int64"})
    landing("t", fetch=listed([page([], 0, 0)]), file_format=typed)
    manifest = folder.manifest() | {"parts": [], "new_parts": 0, "bytes": 0}
    folder.write("_manifest.json", json.dumps(manifest).encode())
    assert opened(folder).to_arrow().schema == pa.schema({"n": pa.int64(), "text": pa.string()})


def test_rows_without_any_key_are_counted_in_tables_too(landing: Landed, folder: Folder) -> None:
    landing("t", fetch=listed([page([{}, {}], 0, 3), page([{"a": "x"}], 2, 3)]), max_part_bytes=1)
    assert opened(folder).to_arrow().to_pylist() == [{"a": None}, {"a": None}, {"a": "x"}]


def test_csv_that_is_made_safe_for_spreadsheets_has_the_columns_of_the_manifest(
    landing: Landed, folder: Folder
) -> None:
    safe = make_format("csv", sanitize_formulas=True)
    landing("t", fetch=listed([page([{"=a": "x", "b\nc": "+1"}], 0, 1)]), file_format=safe)
    assert list(opened(folder).iter_rows()) == [{"=a": "x", "b\nc": "'+1"}]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
# the other kinds of storage keep the files themselves in memory
@pytest.mark.parametrize("folder", ["local"], indirect=True)
def test_memory_does_not_grow_with_the_rows(landing: Landed, folder: Folder, file_format: str) -> None:
    def big_pages(count: int) -> Iterator[DataPage]:
        """Pages of 1 MB."""
        rows = [msgspec.Raw(b'{"id":%d,"x":"%s"}' % (n, b"x" * 1000)) for n in range(1000)]
        for end in range(1000, count * 1000 + 1, 1000):
            yield DataPage(offset=end, total=count * 1000, rest_total=count * 1000 - end, rows=list(rows))

    def peak(megabytes: int) -> int:
        run = msgspec.structs.replace(OTHER_RUN, run_id=str(megabytes))
        fetch = in_order(big_pages(megabytes))
        landing("t", fetch=fetch, file_format=make_format(file_format), if_exists="overwrite", run=run)
        tracemalloc.start()
        try:
            # tracemalloc does not see what Arrow allocates
            arrow = max(pa.total_allocated_bytes() for _ in opened(folder).iter_rows())
            return tracemalloc.get_traced_memory()[1] + arrow
        finally:
            tracemalloc.stop()

    peak(1)
    # a row group of Parquet has up to 16 MB
    assert peak(60 if ALL_HISTORIES else 40) < 1.5 * peak(20)


class TestDeepRows:
    """Values nested deeper than Python can read: JSON lines hold them."""

    @pytest.fixture
    def part(self, landing: Landed, folder: Folder) -> str:
        """The name of the part in whose third row such a value is, with a part before it."""
        deep = msgspec.Raw(b'{"n":%s%s}' % (b"[" * 3000, b"]" * 3000))
        rows = [*page([{"n": 1}, {"n": 2}], 0, 2).rows, deep]
        pages = [page([{"n": 0}], 0, 4), DataPage(offset=4, total=4, rest_total=0, rows=rows)]
        return landing("t", fetch=listed(pages), max_part_bytes=1).parts[1].name

    def test_they_can_be_verified(self, part: str, folder: Folder) -> None:
        opened(folder).verify()

    def test_the_rows_before_are_given_and_then_the_error_names_part_and_row(
        self, part: str, folder: Folder
    ) -> None:
        rows = opened(folder).iter_rows()
        assert [next(rows) for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
        with pytest.raises(UnreadableRow, match=f"row 3 of .*{part}: it is nested deeper than Python"):
            next(rows)

    def test_a_table_of_them_is_refused_with_the_same_words(self, part: str, folder: Folder) -> None:
        with pytest.raises(UnreadableRow, match=f"row 3 of .*{part}: it is nested deeper than Python"):
            opened(folder).to_arrow()


class TestNewParts:
    @pytest.fixture
    def grown(self, landing: Landed, folder: Folder, sandbox: Sandbox) -> list[dict[str, Any]]:
        """Land 100 rows, then 50 more; return the latter."""
        task = sandbox.control.add_task(rows=100, lots=1)["task_id"]
        landing(task, mode="incremental", late_rows_delay=0)
        before = len(sandbox.control.true_rows(task))
        sandbox.control.grow(task, 50)
        landing(task, mode="incremental", run=OTHER_RUN, late_rows_delay=0)
        return list(sandbox.control.true_rows(task)[before:])

    def test_they_can_be_read_alone(self, grown: list[dict[str, Any]], folder: Folder) -> None:
        landed = opened(folder)
        for new_only in (True, OTHER_RUN.run_id):
            assert list(landed.iter_rows(new_only)) == grown
            assert landed.to_arrow(new_only).to_pylist() == grown
            assert landed.to_duckdb(new_only=new_only).aggregate("count(*)").fetchall() == [(50,)]
            assert landed.uris(new_only) == landed.uris()[1:]
        assert landed.uris(RUN.run_id) == landed.uris()[:1]

    def test_of_a_run_that_has_found_nothing_new_there_are_none(
        self, grown: list[dict[str, Any]], folder: Folder
    ) -> None:
        landed = opened(folder)
        assert (landed.uris("another"), list(landed.iter_rows("another"))) == ([], [])
        assert landed.to_arrow("another").num_rows == 0


def test_parts_may_lie_in_the_folders_of_a_partition(landing: Landed, folder: Folder) -> None:
    landing("t", fetch=listed(widening(2)), partition="dt=2026-01-01")
    landed = opened(folder)
    landed.verify()
    assert all(part.name.startswith("dt=2026-01-01/part-") for part in landed.manifest.parts)
    assert landed.uris() == [f"{landed.uri}/{part.name}" for part in landed.manifest.parts]
    assert list(landed.iter_rows()) == rows_of(widening(2))


class TestPaths:
    @pytest.fixture
    def root(self, landing: Landed, tmp_path: Path) -> Path:
        """A landing on this machine's disk, in a folder with an awkward name."""
        from airflow_provider_webcollect.landing.storage.folder import Folder as Destination

        root = tmp_path / "run 2026-01-01T00:00:00+00:00 [x]"
        import fsspec

        landing("t", fetch=listed(widening(2)), folder=Destination(fsspec.filesystem("file"), str(root)))
        return root

    @pytest.mark.parametrize(
        "spelled",
        [
            lambda root: root,
            str,
            lambda root: f"{root}/",
            lambda root: f"file://{root}",
            lambda root: f"{root}/_manifest.json",
            lambda root: f"file://{root}/_manifest.json",
            lambda root: f"{root.parent}/../{root.parent.name}/{root.name}/.",
        ],
    )
    def test_a_landing_is_named_by_its_folder_or_its_manifest(
        self, root: Path, spelled: Callable[[Path], Any]
    ) -> None:
        landed = read_landing(spelled(root))
        assert landed.uri == f"file://{root}"
        assert [uri.startswith(f"file://{root}/part-0000") for uri in landed.uris()] == [True]
        assert landed.to_duckdb().aggregate("count(*)").fetchall() == [(4,)]

    def test_neither_airflow_nor_pyarrow_is_imported_to_read_json_lines(self, root: Path) -> None:
        code = (
            "import sys\n"
            "from airflow_provider_webcollect import read_landing\n"
            f"landed = read_landing({str(root)!r}); landed.verify(); print(len(list(landed.iter_rows())))\n"
            "print({'airflow', 'pyarrow', 'duckdb', 'requests', 'httpx'} & set(sys.modules))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split("\n")[:2] == ["4", "set()"]

    @pytest.mark.parametrize("wrong", [None, "", 7, b"/tmp", {"path": "x"}])
    def test_what_is_no_path_is_refused(self, wrong: Any) -> None:
        with pytest.raises(InvalidArgument, match=r"`path` is .*it must be a folder's path or URL"):
            read_landing(wrong)

    @pytest.mark.parametrize(
        "wrong", ["my-bucket/prices", "landing", "../landing", "~/landing", Path("landing")]
    )
    def test_a_forgotten_scheme_is_refused(
        self, root: Path, wrong: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(root.parent)
        with pytest.raises(InvalidArgument, match=r"`path` is .*it needs a scheme .* or an absolute path"):
            read_landing(wrong)

    def test_an_unknown_scheme_and_a_chain_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match=r"`path` is 's4://b/c'.*Protocol not known: s4"):
            read_landing("s4://b/c")
        with pytest.raises(InvalidArgument, match="must not hold `::`"):
            read_landing("simplecache::memory://b/c")

    def test_options_beside_a_path_that_has_its_filesystem_are_refused(self, folder: Folder) -> None:
        with pytest.raises(InvalidArgument, match="storage_options"):
            read_landing(SimpleNamespace(fs=folder.fs, path=folder.root), {"key": "x"})

    def test_a_storage_whose_package_is_missing_names_the_extra(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        with pytest.raises(
            ExtraMissing, match=r"gs://b/c cannot be reached.*airflow-provider-webcollect\[gcs\]"
        ):
            read_landing("gs://b/c")


class TestMissingPackages:
    def test_tables_need_pyarrow(
        self, landing: Landed, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        landing("t", fetch=listed(widening(1)))
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ExtraMissing, match=r"a table of Arrow needs the package pyarrow.*\[parquet\]"):
            opened(folder).to_arrow()
        assert len(list(opened(folder).iter_rows())) == 2

    def test_duckdb_is_an_extra(
        self, landing: Landed, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        landing("t", fetch=listed(widening(1)))
        monkeypatch.setitem(sys.modules, "duckdb", None)
        with pytest.raises(ExtraMissing, match=r"a relation of DuckDB needs the package duckdb.*\[duckdb\]"):
            opened(folder).to_duckdb()

    def test_zstd_is_an_extra(self, landing: Landed, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        landing("t", fetch=listed(widening(1)), file_format=make_format(compression="zstd"))
        monkeypatch.setitem(sys.modules, "zstandard", None)
        landed = opened(folder)
        for read in (lambda: list(landed.iter_rows()), landed.to_arrow, landed.verify):
            with pytest.raises(ExtraMissing, match=r"\[zstd\]"):
                read()


class TestWithoutAGoodManifest:
    def test_nothing_has_landed_there_yet(self, folder: Folder) -> None:
        with pytest.raises(
            NothingLanded, match=r"there is no .*/landing/_manifest.json: nothing has landed"
        ) as e:
            opened(folder)
        assert not e.value.permanent

    @pytest.mark.parametrize("left", [0, 1, 0.5, -1])
    def test_a_torn_manifest_is_unreadable(self, landing: Landed, folder: Folder, left: float) -> None:
        landing("t", fetch=listed(widening(2)))
        content = folder.read("_manifest.json")
        folder.write("_manifest.json", content[: int(left * len(content)) if left == 0.5 else int(left)])
        with pytest.raises(DestinationUnreadable, match=r"_manifest.json is not readable"):
            opened(folder)

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"version": 2}, "is of version 2"),
            ({"rows": 5}, "it has 5 rows, and its parts 4"),
            ({"bytes": 5}, "it has 5 bytes, and its parts"),
            ({"new_parts": 7}, "7 of its 1 parts are new"),
            ({"parts": "none"}, "not readable: Expected `array`"),
        ],
    )
    def test_a_wrong_manifest_says_what_is_wrong(
        self, landing: Landed, folder: Folder, changed: dict[str, Any], said: str
    ) -> None:
        landing("t", fetch=listed(widening(2)))
        folder.write("_manifest.json", json.dumps(folder.manifest() | changed).encode())
        with pytest.raises(DestinationUnreadable, match=said):
            opened(folder)

    @pytest.mark.parametrize(
        "name", ["../part-00001-0badcafe.jsonl", "/etc/passwd", "a/../../b", "notes.txt"]
    )
    def test_a_name_that_no_part_has_is_refused(self, landing: Landed, folder: Folder, name: str) -> None:
        landing("t", fetch=listed(widening(2)))
        manifest = folder.manifest()
        manifest["parts"][0]["name"] = name
        folder.write("_manifest.json", json.dumps(manifest).encode())
        with pytest.raises(DestinationUnreadable, match="is not the name of a part"):
            opened(folder)

    def test_a_part_that_is_listed_twice_is_a_contradiction(self, landing: Landed, folder: Folder) -> None:
        landing("t", fetch=listed(widening(2)))
        manifest = folder.manifest()
        doubled = {name: manifest[name] * 2 for name in ("parts", "rows", "bytes", "total")}
        folder.write("_manifest.json", json.dumps(manifest | doubled).encode())
        with pytest.raises(DestinationUnreadable, match="it lists a part twice"):
            opened(folder)

    def test_keys_and_a_format_of_later_versions(self, landing: Landed, folder: Folder) -> None:
        landing("t", fetch=listed(widening(2)))
        folder.write("_manifest.json", json.dumps(folder.manifest() | {"later": 1}).encode())
        assert len(list(opened(folder).iter_rows())) == 4
        folder.write("_manifest.json", json.dumps(folder.manifest() | {"format": "avro"}).encode())
        with pytest.raises(DestinationUnreadable, match="format 'avro', which this version cannot read"):
            list(opened(folder).iter_rows())


class TestDamage:
    def test_everything_that_is_wrong_is_listed(self, landing: Landed, folder: Folder) -> None:
        pages = [page([{"a": str(number)}], number, 4) for number in range(4)]
        landing("t", fetch=listed(pages), max_part_bytes=1)
        landed = opened(folder)
        gone, short, changed, _ = landed.manifest.parts
        folder.fs.rm_file(f"{folder.root}/{gone.name}")
        folder.write(short.name, b"")
        folder.write(changed.name, folder.read(changed.name).replace(b"2", b"9"))
        with pytest.raises(LandingDamaged) as damage:
            landed.verify()
        assert damage.value.permanent
        assert damage.value.problems == (
            f"{gone.name} is missing",
            f"{short.name} has 0 bytes instead of {short.bytes}",
            f"{changed.name} does not have the SHA-256 {changed.sha256}",
        )
        assert all(problem in str(damage.value) for problem in damage.value.problems)
        assert pickle.loads(pickle.dumps(damage.value)).problems == damage.value.problems

    def test_a_wrong_number_of_rows_is_found_too(self, landing: Landed, folder: Folder) -> None:
        landing("t", fetch=listed(widening(2)))
        manifest = folder.manifest()
        manifest["parts"][0]["rows"] = manifest["rows"] = manifest["total"] = 5
        folder.write("_manifest.json", json.dumps(manifest).encode())
        landed = opened(folder)
        for read in (landed.verify, landed.to_arrow, lambda: list(landed.iter_rows())):
            with pytest.raises(LandingDamaged, match="has 4 rows instead of 5"):
                read()

    def test_many_problems_make_a_message_that_can_be_read(self) -> None:
        error = LandingDamaged("m", [f"part {number} is missing" for number in range(5000)])
        assert len(error.problems) == 5000
        assert str(error).endswith("part 19 is missing; and 4980 more")

    @pytest.mark.parametrize("folder", ["store"], indirect=True)
    def test_a_landing_that_is_replaced_while_it_is_verified_is_no_damage(
        self, landing: Landed, folder: Folder, sandbox: Sandbox
    ) -> None:
        task = sandbox.control.add_task(rows=100, lots=1)["task_id"]
        landing(task, size=50, max_part_bytes=1)
        landed = opened(folder)
        list_files = folder.fs.ls

        def replaced_after(*arguments: Any, **options: Any) -> Any:
            files = list_files(*arguments, **options)
            folder.fs.ls = list_files
            landing(task, run=OTHER_RUN, if_exists="overwrite")
            return files

        folder.fs.ls = replaced_after
        with pytest.raises(LandingReplaced, match="was replaced since it was read"):
            landed.verify()

    def test_a_landing_that_is_replaced_meanwhile_is_no_damage(
        self, landing: Landed, folder: Folder, sandbox: Sandbox
    ) -> None:
        task = sandbox.control.add_task(rows=100, lots=1)["task_id"]
        landing(task)
        landed = opened(folder)
        landing(task, run=OTHER_RUN, if_exists="overwrite")
        for read in (landed.verify, landed.to_arrow, lambda: list(landed.iter_rows())):
            with pytest.raises(LandingReplaced, match="was replaced since it was read") as error:
                read()
            assert not error.value.permanent
        opened(folder).verify()


class TestDuckDB:
    def test_the_relation_can_be_joined_with_tables_of_the_connection(
        self, landing: Landed, folder: Folder
    ) -> None:
        import duckdb

        landing("t", fetch=listed([page([{"id": "1"}, {"id": "2"}], 0, 2)]), file_format=make_format("csv"))
        with duckdb.connect() as connection:
            connection.execute("create table names as select '2' as id, 'two' as name")
            relation = opened(folder).to_duckdb(connection)
            assert relation.join(connection.table("names"), "id").fetchall() == [("2", "two")]
            relation.create("prices")
            assert connection.execute("select count(*) from prices").fetchall() == [(2,)]
