"""Landings read back with `read_landing`: rows, tables, and errors about damaged landings."""

from __future__ import annotations

import datetime
import json
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import msgspec
import pyarrow as pa
import pytest

from airflow_provider_webcollect.landing.errors import (
    DestinationUnreadable,
    ExtraMissing,
    LandingDamaged,
    LandingReplaced,
    NoColumns,
    NothingLanded,
    NothingToReview,
    UnreadableRow,
)
from airflow_provider_webcollect.landing.formats import FormatName, make_format, reading
from airflow_provider_webcollect.landing.log.commits import MOST_RECORDS, Run
from airflow_provider_webcollect.landing.reader import LandedData, read_landing
from airflow_provider_webcollect.landing.write.review import accept, discard
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import DataPage
from tests.landing.checked_runs import FILLED, OVERWRITE, Runs, goods
from tests.landing.conftest import OTHER_RUN, Folder, Landed, Task, in_order, listed
from tests.landing.formats.parts import ALL_FORMATS, as_texts, filled, named
from tests.landing.pages import nothing, page, rows_of, unreachable, widening
from tests.landing.tables import Table
from tests.simulation.samples import ALL_HISTORIES
from tests.storages import local

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

#: Rows with texts that trip readers up, and with values that are not texts.
ODD_ROWS: list[dict[str, Any]] = [
    {"a": 'say "hi",\n\nthen go', "b": "", "c": None},
    {"a": "x\r\ny,", "b": '"', "c": 1.50, "d": ["é", {"k": None}]},
    {"b": ",", "c": True, "e": "2026-01-01 00:00:00"},
    {},
    {"a": "007", "c": 10**20, "e": "\x00\u2028🎧"},
]


def linked(root: Path) -> Path:
    link = root.with_name("link")
    link.symlink_to(root)
    return link


def table_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as a table of texts has them, with all columns in order of appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [filled(as_texts(row), names) for row in rows]


@pytest.mark.parametrize("options", ALL_FORMATS, ids=named)
class TestEveryFormat:
    def test_odd_texts_nulls_and_values_that_are_no_texts_come_back(
        self, landing: Landed, folder: Folder, options: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # every row is read in several chunks
        monkeypatch.setattr(reading, "_CHUNK_BYTES", 7)
        pages = [page(ODD_ROWS[:2], 0, 5), page(ODD_ROWS[2:], 2, 5)]
        landing("t", fetch=listed(pages), file_format=make_format(**options), max_part_bytes=1)
        landed = folder.landed()
        landed.verify()
        assert landed.to_arrow().to_pylist() == landed.to_polars().to_dicts() == table_of(ODD_ROWS)
        assert pa.Table.from_pandas(landed.to_pandas()).to_pylist() == table_of(ODD_ROWS)
        expected = ODD_ROWS if landed.manifest.format == "jsonl" else table_of(ODD_ROWS)
        assert list(landed.iter_rows()) == expected

    def test_columns_are_those_of_the_manifest(self, landing: Landed, folder: Folder, options: Any) -> None:
        pages = widening()
        chosen = make_format(**options, columns=["k3", "k0", "never"])
        landing("t", fetch=listed(pages), file_format=chosen)
        table = folder.landed().to_arrow()
        assert table.schema == pa.schema([(name, pa.string()) for name in ("k3", "k0", "never")])
        assert table["k0"].to_pylist() == [row["k0"] for row in rows_of(pages)]

    def test_a_landing_may_have_no_rows(self, landing: Landed, folder: Folder, options: Any) -> None:
        landing("t", fetch=listed([page([], 0, 0)]), file_format=make_format(**options, columns=["a", "b"]))
        landed = folder.landed()
        landed.verify()
        assert list(landed.iter_rows()) == []
        assert (landed.to_arrow().num_rows, landed.to_arrow().column_names) == (0, ["a", "b"])
        assert landed.to_duckdb().fetchall() == []
        for frame in (landed.to_pandas(), landed.to_polars()):
            assert ([*frame.columns], len(frame)) == (["a", "b"], 0)

    def test_a_changed_byte_is_noticed(self, landing: Landed, folder: Folder, options: Any) -> None:
        landing("t", fetch=listed(widening(1)), file_format=make_format(**options))
        (part,) = folder.landed().manifest.parts
        content = folder.read(part.name)
        for index in range(0, len(content), max(1, len(content) // 50)):
            folder.write(part.name, content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
            with pytest.raises(LandingDamaged, match=f"{part.name} does not have the SHA-256"):
                folder.landed().verify()
        folder.write(part.name, content)
        landed = folder.landed()
        landed.verify()
        folder.write(part.name, content[:-9])
        for read in (landed.verify, lambda: list(landed.iter_rows()), landed.to_arrow):
            with pytest.raises(LandingDamaged, match=f"{part.name} has {part.bytes - 9} bytes instead of"):
                read()


@pytest.mark.parametrize("has_rows", [True, False], ids=["", "without rows"])
def test_parquet_keeps_its_types(landing: Landed, folder: Folder, has_rows: bool) -> None:
    types = {"price": "decimal(9,2)", "on": "date32", "at": "timestamptz"}
    row = {"price": "1.50", "on": "2026-01-02", "at": "2026-01-02T03:04:05Z", "text": "7"}
    typed = make_format("parquet", columns=[*row], column_types=types)
    landing("t", fetch=listed([page([row, {"on": ""}][: 2 * has_rows], 0, 2 * has_rows)]), file_format=typed)
    kinds = (pa.decimal128(9, 2), pa.date32(), pa.timestamp("us", "UTC"), pa.string())
    assert folder.landed().to_arrow().schema == pa.schema(zip(row, kinds, strict=True))
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    values = (Decimal("1.50"), moment.date(), moment, "7")
    expected = [dict(zip(row, values, strict=True)), dict.fromkeys(row)]
    assert list(folder.landed().iter_rows()) == (expected if has_rows else [])


def test_duckdb_has_no_table_without_columns(landing: Landed, folder: Folder) -> None:
    landing("t", fetch=listed([page([], 0, 0)]))
    with pytest.raises(NoColumns, match="have no columns yet"):
        folder.landed().to_duckdb()


def test_rows_without_any_key_are_counted_in_tables_too(landing: Landed, folder: Folder) -> None:
    landing("t", fetch=listed([page([{}, {}], 0, 3), page([{"a": "x"}], 2, 3)]), max_part_bytes=1)
    assert folder.landed().to_arrow().to_pylist() == [{"a": None}, {"a": None}, {"a": "x"}]


def test_sanitized_csv_has_the_columns_of_the_manifest(landing: Landed, folder: Folder) -> None:
    safe = make_format("csv", sanitize_formulas=True)
    landing("t", fetch=listed([page([{"=a": "x", "b\nc": "+1"}], 0, 1)]), file_format=safe)
    assert list(folder.landed().iter_rows()) == [{"=a": "x", "b\nc": "'+1"}]


@pytest.mark.parametrize("folder", ["local"], indirect=True)
@pytest.mark.parametrize("options", [{}, {"file_format": make_format("csv", compression="gzip")}])
def test_first_rows_read_little_of_a_part(landing: Landed, folder: Folder, options: dict[str, Any]) -> None:
    rows = [msgspec.Raw(b'{"id":"%d","x":"%s"}' % (n, b"x" * 3000)) for n in range(1000)]
    landing("t", fetch=listed([DataPage(offset=1000, total=1000, rest_total=0, rows=rows)]), **options)
    landed = folder.landed()
    tracemalloc.start()
    try:
        first = landed.first_rows(5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [row["id"] for row in first] == ["0", "1", "2", "3", "4"]
    # the part has 3 MB
    assert peak < 1_000_000


@pytest.mark.by_day(1)
@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
# the other kinds of storage keep the files themselves in memory
@pytest.mark.parametrize("folder", ["local"], indirect=True)
def test_memory_does_not_grow_with_the_rows(landing: Landed, folder: Folder, file_format: FormatName) -> None:
    def big_pages(count: int) -> Iterator[DataPage]:
        rows = [msgspec.Raw(b'{"id":%d,"x":"%s"}' % (n, b"x" * 1000)) for n in range(1000)]
        for end in range(1000, count * 1000 + 1, 1000):
            yield DataPage(offset=end, total=count * 1000, rest_total=count * 1000 - end, rows=list(rows))

    def peaks(megabytes: int) -> tuple[int, int]:
        """Return the memory peaks, in bytes, of landing and of reading that many megabytes."""
        run = msgspec.structs.replace(OTHER_RUN, run_id=str(megabytes))
        fetch = in_order(big_pages(megabytes))
        tracemalloc.start()
        try:
            landing("t", fetch=fetch, file_format=make_format(file_format), if_exists="overwrite", run=run)
            landed = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            # tracemalloc does not see what Arrow allocates
            arrow = max(pa.total_allocated_bytes() for _ in folder.landed().iter_rows())
            return landed, tracemalloc.get_traced_memory()[1] + arrow
        finally:
            tracemalloc.stop()

    peaks(1)
    # a row group of Parquet has up to 16 MB
    for more, usual in zip(peaks(60 if ALL_HISTORIES else 40), peaks(20), strict=True):
        assert more < 1.5 * usual


def test_part_and_row_of_a_value_too_deep_are_named(landing: Landed, folder: Folder) -> None:
    """JSON lines can hold such values."""
    deep = msgspec.Raw(b'{"n":%s%s}' % (b"[" * 3000, b"]" * 3000))
    rows = [*page([{"n": 1}, {"n": 2}], 0, 2).rows, deep]
    pages = [page([{"n": 0}], 0, 4), DataPage(offset=4, total=4, rest_total=0, rows=rows)]
    part = landing("t", fetch=listed(pages), max_part_bytes=1).parts[1].name
    landed = folder.landed()
    landed.verify()
    iterator = landed.iter_rows()
    assert [next(iterator) for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    for read in (lambda: next(iterator), landed.to_arrow):
        with pytest.raises(UnreadableRow, match=f"row 3 of .*{part}: it is nested deeper than Python"):
            read()


#: Selections, and the numbers of the rows that they give.
CHOICES: list[tuple[dict[str, Any], list[int]]] = [
    ({"new_only": "run 1"}, [0]),
    ({"new_only": "run 2"}, [1, 2]),
    ({"new_only": "run 3"}, []),
    ({"new_only": "another"}, []),
    ({"new_only": ""}, []),
    ({"new_only": True}, [3]),
    ({"since": 0}, [0, 1, 2, 3]),
    ({"since": 1}, [1, 2, 3]),
    ({"since": "2"}, [3]),
    ({"since": 3}, []),
]


class TestSomeParts:
    """Reads of the rows of one run, or of the commits after a given one."""

    @pytest.fixture(params=["csv", "delta"])
    def grown(self, request: pytest.FixtureRequest, folder: Folder, tmp_path: Path) -> LandedData:
        """Rows of three commits: `run 3` finds nothing new, and `run 4` is cleared after one more row."""
        is_table = request.param == "delta"
        place = Table.new(local(tmp_path)) if is_table else folder
        runs = Runs(place, file_format=make_format("parquet" if is_table else "csv"))
        for rows in ([{"n": 0, "a": "x"}], [{"n": 1}, {"n": 2}], [], [{"n": 3}]):
            runs.land(rows)
        runs.rows.append({"n": 4})
        runs.again()
        return place.landed()

    def test_all_methods_give_the_chosen_rows_alone(self, grown: LandedData) -> None:
        uris, parts = grown.uris(), grown.parts()
        for chosen, expected in CHOICES:
            wanted = [index for index, part in enumerate(parts) if part.start_offset in expected]
            assert [int(row["n"]) for row in grown.iter_rows(**chosen)] == expected
            assert [int(row["n"]) for row in grown.to_arrow(**chosen).to_pylist()] == expected
            assert grown.to_duckdb(**chosen).count("*").fetchall() == [(len(expected),)]
            assert len(grown.to_pandas(**chosen)) == len(grown.to_polars(**chosen)) == len(expected)
            assert list(grown.parts(**chosen)) == [parts[index] for index in wanted]
            assert grown.uris(**chosen) == [uris[index] for index in wanted]
            columns = grown.profile(**chosen).columns
            assert columns["n"].numbers == len(expected) if expected else columns == {}

    def test_all_rows_and_each_run_have_a_profile(self, grown: LandedData) -> None:
        assert (grown.profile().columns["n"].filled, grown.profile().columns["a"].filled) == (4, 1)
        profiles = grown.profiles()
        assert [(run.run_id, run.rows) for run in profiles] == [("run 1", 1), ("run 2", 2), ("run 4", 1)]
        assert [run.profile for run in profiles] == [grown.profile(run.run_id) for run in profiles]
        times = [record.finished_at for record in grown.manifest.history]
        assert [run.finished_at for run in profiles] == times

    def test_accepted_rows_are_new_after_an_earlier_commit(self, runs: Runs) -> None:
        """Even if they replace all others."""
        runs.land([{"n": 0}])
        runs.land([{"n": 1}], {"columns": {"a": {"filled": 1}}}, on_failed_checks="quarantine", **OVERWRITE)
        assert runs.folder.landed().uris(since=2) == []
        accept(runs.folder.location)
        landed = runs.folder.landed()
        assert (landed.manifest.commit, list(landed.iter_rows())) == (3, runs.rows)
        for chosen in ({"since": 1}, {"since": 2}, {"new_only": "run 2"}, {"new_only": True}):
            assert list(landed.iter_rows(**chosen)) == runs.rows
        assert landed.uris(since=3) == landed.uris("run 1") == []
        assert [run.run_id for run in landed.profiles()] == ["run 2"]
        assert landed.latest("n").count("*").fetchall() == [(2,)]

    def test_a_run_is_found_by_its_id_in_any_mapped_task(self, runs: Runs) -> None:
        """As with `expand_kwargs([a, b])` in one run, and `[b, a]` in the next."""
        for number in range(2):
            run = Run(dag_id="d", task_id="t", run_id=f"run {number}", map_index=number)
            runs.land([{"n": number}], run=run)
        landed = runs.folder.landed()
        assert [list(landed.iter_rows(run.run_id)) for run in landed.profiles()] == [[{"n": 0}], [{"n": 1}]]

    def test_an_unknown_run_is_named_in_the_log(self, runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
        runs.land([{"n": 0}])
        landed = runs.folder.landed()
        caplog.clear()
        assert len(landed.to_arrow("run 1")) == 1
        assert caplog.messages == []
        assert list(landed.iter_rows("run-1")) == []
        assert "No rows of the run run-1 are in" in caplog.text
        assert "last runs that have landed: run 1" in caplog.text

    def test_a_run_and_a_commit_do_not_go_together(self, grown: LandedData) -> None:
        for read in (grown.uris, grown.to_arrow, grown.profile):
            with pytest.raises(InvalidArgument, match="`since` is 0; it cannot be given with `new_only`"):
                read("run 1", since=0)

    def test_a_wrong_commit_number_is_refused(self, grown: LandedData) -> None:
        with pytest.raises(InvalidArgument, match=r"`since` is 4; the last commit of .* is 3; if"):
            grown.uris(since=4)
        with pytest.raises(InvalidArgument, match="`since` is -1; it must be an integer of 0 or more"):
            grown.uris(since=-1)

    @pytest.mark.parametrize("folder", ["memory"], indirect=True)
    def test_runs_older_than_the_manifest_are_found(self, runs: Runs, folder: Folder) -> None:
        for number in range(MOST_RECORDS + 3):
            runs.land([{"n": number}])
        landed = folder.landed()
        for number, rows in ((1, [{"n": 0}]), (2, [{"n": 1}]), (40, [])):
            assert list(landed.iter_rows(f"run {number}")) == rows
        assert len(landed.profiles()) == MOST_RECORDS + 3

    @pytest.mark.parametrize("folder", ["memory"], indirect=True)
    @pytest.mark.parametrize("kind", ["single rows", "all rows of a retry"])
    def test_a_run_whose_rows_are_accepted_late_keeps_its_others(
        self, runs: Runs, folder: Folder, kind: str
    ) -> None:
        """After thirty other runs, the manifest has no record of the run's commits before the decision."""
        old = [*goods(2), *goods(1, price="")]
        checks: Any = {"rows": {"max_wrong": 0.5}, "columns": {"price": {"required": True}}}
        if kind == "single rows":
            runs.land(old, checks)
        else:
            checks = FILLED
            with pytest.raises(ConnectionError):
                runs.land(old[:2], mark=unreachable)
            runs.rows += old[2:]
            runs.again(checks, mark=nothing, on_failed_checks="quarantine")
        for _ in range(MOST_RECORDS):
            runs.land(goods(1))
        accept(folder.location)
        assert list(folder.landed().iter_rows("run 1")) == old
        changes = folder.landed().changes("url", since="run 1")
        assert changes.project("url, change").fetchall() == [
            ("https://shop/1", "new"),
            ("https://shop/0", "new"),
        ]
        # the same once the manifest has no record of the decision
        for number in range(MOST_RECORDS):
            runs.land(goods(1, price=""), FILLED, on_failed_checks="quarantine")
            discard(folder.location, by=f"{number}")
        assert list(folder.landed().iter_rows("run 1")) == old
        again = runs.again(checks, run=Run(dag_id="d", task_id="t", run_id="run 1"))
        assert sum(part.rows for part in again.new) == len(old)


class TestQuarantined:
    @pytest.fixture
    def landed(self, runs: Runs) -> LandedData:
        """Five rows, of which commit 2 has quarantined the third and fourth."""
        runs.land(goods(2), FILLED)
        runs.land(goods(2, price=""), FILLED, on_failed_checks="quarantine", max_part_bytes=1)
        runs.land(goods(1), FILLED)
        landed: LandedData = runs.folder.landed()
        return landed

    def test_quarantined_rows_are_read_alone(self, landed: LandedData, folder: Folder) -> None:
        apart = folder.landed(quarantined=2)
        apart.verify()
        assert list(apart.iter_rows()) == goods(2, price="")
        assert list(landed.iter_rows()) == [*goods(2), *goods(1)]
        assert (apart.manifest.commit, apart.manifest.rows, apart.manifest.run.run_id) == (2, 2, "run 2")
        assert apart.profile().columns["price"].filled == apart.profile("run 2").columns["price"].filled == 0
        assert [run.run_id for run in apart.profiles()] == ["run 2"]
        assert apart.latest("url").count("*").fetchall() == [(2,)]

    def test_only_rows_that_wait_are_read_as_quarantined(self, landed: LandedData, folder: Folder) -> None:
        apart = folder.landed(quarantined=2)
        discard(folder.location, "run 2")
        for number in (1, 2, 9):
            with pytest.raises(NothingToReview, match=f"no rows of commit {number} are .*: none"):
                folder.landed(quarantined=number)
        for read in (apart.verify, apart.to_arrow, landed.verify):
            with pytest.raises(LandingReplaced, match="is missing; read it again"):
                read()
        folder.landed().verify()

    def test_verify_finds_damage_of_quarantined_rows(self, landed: LandedData, folder: Folder) -> None:
        (part,) = folder.landed(quarantined=2).parts()
        folder.write(part.name, b"")
        with pytest.raises(LandingDamaged, match=f"{part.name} has 0 bytes"):
            landed.verify()


class TestPaths:
    @pytest.fixture
    def root(self, landing: Landed, tmp_path: Path) -> Path:
        """A landing on this machine's disk, in a folder with an awkward name."""
        root = tmp_path / "run 2026-01-01T00:00:00+00:00 [x]"
        folder = Folder(fsspec.filesystem("file"), str(root))
        landing("t", fetch=listed(widening(2)), folder=folder.destination)
        return root

    @pytest.mark.parametrize(
        "spelled",
        [
            lambda root: root,
            lambda root: f"{root}/",
            lambda root: f"file://{root}/_manifest.json",
            lambda root: f"{root.parent}/../{root.parent.name}/{root.name}/.",
            lambda root: f"file://{root.parent}/../{root.parent.name}/{root.name}",
            lambda root: linked(root),
            lambda root: f"file://{linked(root)}",
            lambda root: SimpleNamespace(fs=fsspec.filesystem("file"), path=str(linked(root))),
        ],
    )
    def test_a_landing_is_named_by_its_folder_or_its_manifest(self, root: Path, spelled: Any) -> None:
        landed = read_landing(spelled(root))
        assert landed.uri == f"file://{root}"
        assert [uri.startswith(f"file://{root}/part-0000") for uri in landed.uris()] == [True]
        assert landed.to_duckdb().aggregate("count(*)").fetchall() == [(4,)]

    def test_reading_json_lines_imports_nothing_heavy(self, root: Path) -> None:
        code = (
            "import sys\n"
            "from airflow_provider_webcollect import read_landing\n"
            f"landed = read_landing({str(root)!r}); landed.verify(); print(len(list(landed.iter_rows())))\n"
            "print({'airflow', 'pyarrow', 'duckdb', 'requests', 'httpx'} & set(sys.modules))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split("\n")[:2] == ["4", "set()"]

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            *((wrong, "it must be a folder's path or URL") for wrong in (None, 7, b"/tmp", {"path": "x"})),
            *((wrong, "it needs a scheme") for wrong in ("~/landing", Path("landing"))),
            ("s4://b/c", "Protocol not known: s4"),
        ],
    )
    def test_what_is_no_path_is_refused(self, wrong: Any, said: str) -> None:
        with pytest.raises(InvalidArgument, match=f"`landing` is .*{said}"):
            read_landing(wrong)

    def test_options_beside_a_filesystem_are_refused(self, folder: Folder) -> None:
        with pytest.raises(InvalidArgument, match="storage_options"):
            read_landing(SimpleNamespace(fs=folder.fs, path=folder.root), {"key": "x"})

    def test_a_storage_without_its_package_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        with pytest.raises(ExtraMissing, match=r"gs://b/c cannot be reached.*-webcollect\[gcs\]"):
            read_landing("gs://b/c")


@pytest.mark.parametrize(
    ("package", "said", "reads"),
    [
        ("pyarrow", r"a table of Arrow needs the package pyarrow.*\[parquet\]", {"to_arrow": ()}),
        ("duckdb", r"a relation of DuckDB needs .*\[duckdb\]", {"to_duckdb": (), "latest": ("k0",)}),
        ("pandas", "a data frame of pandas needs .*; install pandas$", {"to_pandas": ()}),
        ("polars", "a data frame of polars needs .*; install polars$", {"to_polars": ()}),
        ("zstandard", r"\[zstd\]", {"iter_rows": (), "to_arrow": (), "verify": ()}),
    ],
)
def test_a_package_that_is_missing_is_named(
    landing: Landed, folder: Folder, monkeypatch: pytest.MonkeyPatch, package: str, said: str, reads: Any
) -> None:
    chosen = make_format(compression="zstd" if package == "zstandard" else "none")
    landing("t", fetch=listed(widening(1)), file_format=chosen)
    monkeypatch.setitem(sys.modules, package, None)
    landed = folder.landed()
    for name, arguments in reads.items():
        with pytest.raises(ExtraMissing, match=said):
            list(getattr(landed, name)(*arguments) or ())
    if package != "zstandard":
        assert len(list(landed.iter_rows())) == 2


class TestWithoutAGoodManifest:
    def test_nothing_has_landed_there_yet(self, folder: Folder) -> None:
        with pytest.raises(NothingLanded, match=r"nothing has landed at .*/landing yet; check the path") as e:
            folder.landed()
        assert not e.value.permanent

    @pytest.mark.parametrize("name", ["rows", "bytes"])
    def test_a_contradictory_manifest_says_so(self, landing: Landed, folder: Folder, name: str) -> None:
        landing("t", fetch=listed(widening(2)))
        folder.write("_manifest.json", json.dumps(folder.manifest() | {name: 5}).encode())
        with pytest.raises(DestinationUnreadable, match=f"it has 5 {name}, and its parts"):
            folder.landed()

    def test_later_keys_are_ignored_and_later_formats_refused(self, landing: Landed, folder: Folder) -> None:
        landing("t", fetch=listed(widening(2)))
        folder.write("_manifest.json", json.dumps(folder.manifest() | {"later": 1}).encode())
        assert len(list(folder.landed().iter_rows())) == 4
        folder.write("_manifest.json", json.dumps(folder.manifest() | {"format": "avro"}).encode())
        with pytest.raises(DestinationUnreadable, match="format 'avro', which this version cannot read"):
            list(folder.landed().iter_rows())


class TestDamage:
    def test_all_damage_is_listed(self, landing: Landed, folder: Folder) -> None:
        pages = [page([{"a": str(number)}], number, 4) for number in range(4)]
        landing("t", fetch=listed(pages), max_part_bytes=1)
        landed = folder.landed()
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
        landed = folder.landed()
        for read in (landed.verify, landed.to_arrow, lambda: list(landed.iter_rows())):
            with pytest.raises(LandingDamaged, match="has 4 rows instead of 5"):
                read()

    def test_a_message_of_many_problems_is_short(self) -> None:
        error = LandingDamaged("m", [f"part {number} is missing" for number in range(5000)])
        assert len(error.problems) == 5000
        assert str(error).endswith("part 19 is missing; and 4980 more")

    def test_a_landing_begun_again_is_read_to_its_end(self, task: Task, folder: Folder) -> None:
        task.land(max_part_bytes=1)
        landed, rows = folder.landed(), task.rows()
        half_read = landed.iter_rows()
        next(half_read)
        task.land(run=OTHER_RUN, if_exists="overwrite")
        landed.verify()
        assert list(landed.iter_rows()) == [rows[0], *half_read] == rows
        for part in landed.parts():
            # as `clean` does once they are old
            folder.damage(part.name, None)
        for read in (landed.verify, landed.to_arrow, lambda: list(landed.iter_rows())):
            with pytest.raises(LandingReplaced, match=r"has changed since it was read, .* is missing") as e:
                read()
            assert not e.value.permanent
        folder.landed().verify()

    @pytest.mark.parametrize("folder", ["store"], indirect=True)
    def test_a_landing_replaced_while_verified_is_no_damage(self, task: Task, folder: Folder) -> None:
        task.land(max_part_bytes=1)
        landed, list_files = folder.landed(), folder.fs.ls

        def replaced_after(*arguments: Any, **options: Any) -> Any:
            files = list_files(*arguments, **options)
            folder.fs.ls = list_files
            task.land(run=OTHER_RUN, if_exists="overwrite")
            for part in landed.parts():
                folder.damage(part.name, None)
            return files

        folder.fs.ls = replaced_after
        with pytest.raises(LandingReplaced, match="has changed since it was read"):
            landed.verify()

    def test_damage_is_found_though_rows_have_landed_since(self, runs: Runs, folder: Folder) -> None:
        runs.land([{"n": 0}])
        landed = folder.landed()
        runs.land([{"n": 1}])
        folder.write(landed.manifest.parts[0].name, b"")
        with pytest.raises(LandingDamaged, match="has 0 bytes"):
            landed.verify()
