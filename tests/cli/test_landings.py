"""The commands of ``landing``, such as ``verify`` and ``sql``: what has landed, without the service."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from airflow_provider_webcollect.collection_tasks import read_collection_tasks
from airflow_provider_webcollect.sandbox import Sandbox
from tests.cli.conftest import OUTPUTS, Run, Show, Start, shown
from tests.cli.processes import WEBCOLLECT

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

DAY = 86_400


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 300 rows."""
    return str(sandbox.control.add_task(lots=[300])["task_id"])


@pytest.fixture
def land(run: Run, connected: None, task: str, folder: Path) -> Callable[..., Path]:
    """Lands the task in parts of 100 rows, and returns the folder."""

    def land(*options: object) -> Path:
        ended = run("land", task, folder, "--page-size", 100, "--max-part-bytes", 1, *options)
        assert ended.code == 0, ended.err
        return folder

    return land


@pytest.fixture
def landed(land: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a landing; commands have no service any more."""
    folder = land()
    for name in [name for name in os.environ if name.startswith("WEBCOLLECT_")]:
        monkeypatch.delenv(name)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*"))


def leave(folder: Path, name: str, days: float) -> None:
    """Write a file as a landing that was killed some days ago leaves it."""
    file = folder / name
    file.write_text("left\n")
    then = datetime.datetime.now().timestamp() - days * DAY
    os.utime(file, (then, then))


class TestVerify:
    def test_a_whole_landing_shows_its_manifest(self, show: Show, landed: Path, task: str) -> None:
        [row] = show("landing", "verify", landed)
        manifest = json.loads((landed / "_manifest.json").read_text())
        assert row.pop("run").endswith(manifest["run"]["run_id"])
        assert task in row.pop("source")
        assert row == {
            "landing": str(landed),
            "rows": "300",
            "parts": "3",
            "bytes": str(sum(part.stat().st_size for part in parts(landed))),
            "commit": "1",
            "finished_at": manifest["finished_at"],
        }

    def test_a_part_that_is_damaged_is_named(self, run: Run, landed: Path) -> None:
        whole, damaged, _ = parts(landed)
        damaged.write_bytes(damaged.read_bytes().replace(b"a", b"b", 1))
        ended = run("landing", "verify", landed)
        ended.refused(1, damaged.name, "SHA-256")
        assert whole.name not in ended.err

    def test_where_nothing_has_landed_is_said(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for folder in (tmp_path / "nothing", tmp_path / "empty"):
            for command in (
                *(["verify"], ["cat"], ["sql"], ["clean"], ["clean", "--yes"]),
                *(["latest", "--key", "id"], ["history", "--key", "id"], ["profile"]),
                ["changes", "--key", "id", "--since-run", "r"],
            ):
                query = ["select 1"] if command == ["sql"] else []
                ended = run("landing", *command, folder, *query)
                ended.refused(1, "Error: ", str(folder), "nothing has landed")
                assert len(ended.err.splitlines()) == 1


class TestCat:
    def test_some_rows_on_request(
        self, run: Run, land: Callable[..., Path], sandbox: Sandbox, task: str
    ) -> None:
        incremental = ("--mode", "incremental", "--late-rows-delay", 0)
        for grown in (0, 7, 5):
            sandbox.control.grow(task, grown)
            folder = land(*incremental)
        rows = sandbox.control.true_rows(task)
        count = ("landing", "sql", folder, "select count(*) n from landing", "-o", "json")
        for some, first in (
            *((["--new-only"], 307), (["--since", 0], 0), (["--since", 1], 300)),
            (["--since", 3], 312),
        ):
            assert run("landing", "cat", folder, *some).lines == rows[first:]
            assert run(*count, *some).json == [{"n": 312 - first}]
        run("landing", "cat", folder, "--since", 4).refused(2, "--since is 4; the last commit of", " is 3;")


@pytest.mark.parametrize("checks", ["{}", '{"rows": {"min": 1000}}'], ids=["no rows", "all quarantined"])
class TestWithoutColumns:
    """A landing without columns, since no row has landed yet."""

    @pytest.fixture
    def folder(self, run: Run, connected: None, sandbox: Sandbox, folder: Path, checks: str) -> Path:
        lots = [] if checks == "{}" else [3]
        task = sandbox.control.add_task(lots=lots)["task_id"]
        run("land", task, folder, "--late-rows-delay", 0, "--checks", checks)
        return folder

    def test_no_rows_are_an_empty_file(self, run: Run, folder: Path) -> None:
        for form in ("jsonl", "csv"):
            assert run("landing", "cat", folder, "-o", form) == (0, "", "")

    def test_a_query_may_have_rows_later(self, run: Run, folder: Path) -> None:
        run("landing", "sql", folder, "select count(*) from landing").refused(
            4, f"{folder} have no columns yet"
        )


class TestSql:
    def test_a_query_has_the_manifests_rows(
        self, show: Show, landed: Path, sandbox: Sandbox, task: str
    ) -> None:
        foreign = landed / parts(landed)[0].name.replace("part-00001", "part-00009")
        foreign.write_bytes(parts(landed)[0].read_bytes())
        (landed / "other.jsonl").write_bytes(parts(landed)[1].read_bytes())
        query = (
            "select left(id, 6) as batch, keyword, count(*) as number from landing group by all order by all"
        )
        found = show("landing", "sql", landed, query)
        groups = Counter((row["id"][:6], row["keyword"]) for row in sandbox.control.true_rows(task))
        assert found == [
            {"batch": batch, "keyword": keyword, "number": str(number)}
            for (batch, keyword), number in sorted(groups.items())
        ]

    @pytest.mark.parametrize("query", ["selec", "select * from nowhere", "from landing select nothing"])
    def test_a_wrong_query_is_wrong_usage(self, run: Run, landed: Path, query: str) -> None:
        ended = run("landing", "sql", landed, query)
        ended.refused(2, query.split()[-1])
        assert ended.err.startswith(f"Error: QUERY is {query!r}; ")

    @pytest.mark.parametrize(
        ("query", "table", "rows"),
        [
            ("select 2026 as year", "year 2026", [{"year": "2026"}]),
            ("select 1 as my_number, null as nothing", "my_number nothing 1 –", [{"my_number": "1"}]),
            ("select id, city from landing where false", "id city", []),
            (
                "select 1 as n, 2 as n, 3 as n_2, 4 as n",
                "n n_3 n_2 n_4 1 2 3 4",
                [{"n": "1", "n_2": "3", "n_3": "2", "n_4": "4"}],
            ),
        ],
    )
    def test_a_result_has_the_columns_of_the_query(
        self, run: Run, landed: Path, query: str, table: str, rows: list[dict[str, str]]
    ) -> None:
        ended = {output: run("landing", "sql", landed, query, "-o", output) for output in OUTPUTS}
        assert ended["table"].out.split() == table.split()
        assert shown(ended["json"], "json") == shown(ended["csv"], "csv") == rows
        assert (
            ended["csv"].out.splitlines()[0].split(",")
            == table.split()[: len(table.split()) // (1 + len(rows))]
        )


class TestByKey:
    """``latest``, ``changes`` and ``history``."""

    COMMANDS = (["latest"], ["changes", "--since-run", "second"], ["history"])

    @pytest.fixture
    def folder(self, run: Run, connected: None, sandbox: Sandbox, folder: Path) -> Path:
        """Two landings: `a` changes, `b` only gets another id, `c` is new; a row of each has no URL."""
        days = [
            [("1", "a", "1.00"), ("2", "b", "2.00"), ("3", None, "9.00")],
            [("4", "b", "2.00"), ("5", "a", "1.50"), ("6", "c", "3.00"), ("7", None, "9.50")],
        ]
        rows = [dict(zip(("id", "url", "price"), row, strict=True)) for day in days for row in day]
        task = sandbox.control.add_task(rows=rows, lots=[3])["task_id"]
        options = ["--mode", "incremental", "--late-rows-delay", 0]
        assert run("land", task, folder, *options, "--run-id", "first").code == 0
        sandbox.control.grow(task, 4)
        assert run("land", task, folder, *options, "--run-id", "second").code == 0
        return folder

    @pytest.fixture
    def times(self, folder: Path) -> list[str]:
        """The commit times of the two landings, as commands show them."""
        runs = json.loads((folder / "_manifest.json").read_text())["history"]
        return [str(datetime.datetime.fromisoformat(run["finished_at"])) for run in runs]

    @pytest.mark.parametrize(
        ("command", "columns", "rows"),
        [
            ("latest", "id url price landed_at", ["4 b 2.00 T1", "5 a 1.50 T1", "6 c 3.00 T1"]),
            ("latest --key price", "id", ["1", "4", "5", "6"]),
            ("changes --since-run second --compare price", "id change", ["5 changed", "6 new"]),
            ("changes --since 1 --compare price", "id change", ["5 changed", "6 new"]),
            ("changes --since-time T0 --compare price", "id change", ["5 changed", "6 new"]),
            ("changes --since-time T1", "id", []),
            (
                "changes --since-run second --whole-runs --key price --compare price",
                "id change",
                ["1 gone", "5 new", "6 new"],
            ),
            (
                "history --compare price",
                "url price valid_from valid_to",
                ["a 1.00 T0 T1", "b 2.00 T0 -", "a 1.50 T1 -", "c 3.00 T1 -"],
            ),
        ],
    )
    def test_rows_are_shown_by_their_key(
        self, show: Show, folder: Path, times: list[str], command: str, columns: str, rows: list[str]
    ) -> None:
        name, *options = [times[int(word[1])] if word in {"T0", "T1"} else word for word in command.split()]
        shown = show("landing", name, folder, "--key", "url", *options)
        found = [" ".join(row.get(column, "-") for column in columns.split()) for row in shown]
        assert found == [row.replace("T0", times[0]).replace("T1", times[1]) for row in rows]

    def test_times_are_in_utc_wherever_it_runs(
        self, start: Start, folder: Path, times: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        ended = start("landing", "latest", folder, "--key", "url", "-o", "json")
        assert ended.end() == 0
        assert {row["landed_at"] for row in json.loads(ended.out)} == {times[1]}

    @pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
    def test_the_key_must_be_a_column(self, run: Run, folder: Path, command: list[str]) -> None:
        run("landing", *command, folder, "--key", "sku").refused(2, "--key is 'sku'", "id, url, price")

    def test_a_time_without_a_zone_is_wrong_usage(self, run: Run, folder: Path) -> None:
        ended = run("landing", "changes", folder, "--key", "url", "--since-time", "2026-01-01")
        ended.refused(2, "Error: --since-time is '2026-01-01'; it must be a time with a zone")

    @pytest.mark.parametrize("moments", [[], ["--since", "1", "--since-run", "second"]])
    def test_one_moment_is_needed(self, run: Run, folder: Path, moments: list[str]) -> None:
        ended = run("landing", "changes", folder, "--key", "url", *moments)
        ended.refused(2, "Exactly one of --since, --since-run and --since-time is needed")

    def test_a_commit_that_is_not_there_is_said(self, run: Run, folder: Path) -> None:
        ended = run("landing", "changes", folder, "--key", "url", "--since", "3")
        ended.refused(2, "--since is 3; the last commit of", " is 2;")

    def test_an_unknown_run_is_said(self, run: Run, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        ended = run("landing", "changes", folder, "--key", "url", "--since-run", "third")
        ended.refused(1, "has no rows of the run third")
        [said] = caplog.messages
        assert said.startswith("No rows of the run third are in")
        assert said.endswith(" or its id is wrong. The last runs that have landed: first, second")

    @pytest.mark.parametrize("command", [["sql", "select 1"], *COMMANDS], ids=lambda words: words[0])
    def test_that_duckdb_is_not_installed_is_said(
        self, run: Run, folder: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "duckdb", None)
        key = ["--key", "url"] if command in self.COMMANDS else []
        run("landing", command[0], folder, *command[1:], *key).refused(
            2, "install airflow-provider-webcollect[duckdb]"
        )


class TestClean:
    OLD, YOUNG = "part-00007-0badcafe.jsonl", "part-00008-0badcafe.jsonl"

    @pytest.fixture(autouse=True)
    def leftovers(self, landed: Path) -> None:
        """A leftover of three days ago and one of two hours ago, beside a landing and a foreign file."""
        leave(landed, self.OLD, days=3)
        leave(landed, self.YOUNG, days=2 / 24)
        leave(landed, "README", days=30)

    def test_without_yes_nothing_is_removed(self, run: Run, landed: Path, output: str) -> None:
        before = names(landed)
        ended = run("landing", "clean", landed, "-o", output)
        assert ended.code == 0
        assert names(landed) == before
        assert "--yes" in ended.err
        [row] = shown(ended, output)
        written = datetime.datetime.fromtimestamp((landed / self.OLD).stat().st_mtime, datetime.UTC)
        modified = written.isoformat(sep=" ", timespec="seconds")
        assert row == {"name": self.OLD, "bytes": "5", "modified": modified}

    def test_with_yes_exactly_what_was_listed_is_removed(self, run: Run, landed: Path) -> None:
        before = names(landed)
        ended = run("landing", "clean", landed, "--yes", "-o", "json")
        assert [row["name"] for row in ended.json] == [self.OLD]
        assert names(landed) == [name for name in before if name != self.OLD]
        assert run("landing", "verify", landed).code == 0
        assert ended.err == "Removed 1 file\n"
        assert run("landing", "clean", landed, "--yes", "-o", "json").json == []
        ended = run("landing", "clean", landed, "--yes")
        assert (ended.code, ended.out, ended.err) == (0, "", "Nothing to remove\n")

    @pytest.mark.parametrize(
        ("age", "found"),
        [
            *(("2d", [OLD]), ("80h", []), ("70h", [OLD]), ("110m", [OLD, YOUNG])),
            *(("130m", [OLD]), ("7000s", [OLD, YOUNG]), ("7400s", [OLD])),
        ],
    )
    def test_files_of_that_age_are_listed(self, run: Run, landed: Path, age: str, found: list[str]) -> None:
        ended = run("landing", "clean", landed, "--older-than", age, "-o", "json")
        assert [row["name"] for row in ended.json] == found

    @pytest.mark.parametrize("age", ["", "5", "d", "1.5d", "-1d", "2 d", "1w", "9" * 400 + "d"])
    def test_a_wrong_age_is_named_and_nothing_is_removed(self, run: Run, landed: Path, age: str) -> None:
        before = names(landed)
        ended = run("landing", "clean", landed, "--older-than", age, "--yes")
        ended.refused(2, "older-than")
        assert names(landed) == before


def test_csv_is_in_utf_8_and_each_reader_has_the_same_values(
    run: Run, connected: None, sandbox: Sandbox, folder: Path
) -> None:
    texts = {"a\rb": "1", "x\ny\r\nz": "2", "北京 é": "3"}
    rows = [{"text": text, "n": number} for text, number in texts.items()]
    task = sandbox.control.add_task(rows=rows, state="Finished")["task_id"]
    assert run("land", task, folder).code == 0
    assert run("landing", "cat", folder, "-o", "csv").csv == rows
    query = (
        "select text, n = '1' as is_first, [n, null] as list, {'n': n} as struct, 'a'::blob as bytes "
        "from landing"
    )
    ended = subprocess.run(
        [WEBCOLLECT, "landing", "sql", folder, query, "-o", "csv"],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
    )
    last = [*csv.DictReader(io.StringIO(ended.stdout.decode(), newline=""))][-1]
    assert last == {
        "text": "北京 é",
        "is_first": "false",
        "list": '["3", null]',
        "struct": '{"n": "3"}',
        "bytes": "YQ==",
    }


class TestValues:
    """JSON lines whose texts have column types."""

    @pytest.fixture
    def shop(self, run: Run, connected: None, sandbox: Sandbox, folder: Path) -> Path:
        rows = [{"price": price, "day": "03/04/2026"} for price in ("22,90 €", "1.299,00 €", "?")]
        task = sandbox.control.add_task(rows=rows, state="Finished")["task_id"]
        price = {"type": "decimal(12,2)", "decimal": ",", "thousands": ".", "currency": True}
        types = json.dumps({"amount": {**price, "from": "price"}})
        ended = run("land", task, folder, "--column-types", types, "--on-cast-error", "null")
        assert ended.code == 0, ended.err
        return folder

    def test_a_misfit_is_told_with_the_option_that_helps(
        self, run: Run, connected: None, sandbox: Sandbox, folder: Path
    ) -> None:
        task = sandbox.control.add_task(rows=[{"n": "?"}], state="Finished")["task_id"]
        assert run("land", task, folder, "--column-types", '{"n": "int64"}').code == 0
        run("landing", "cat", folder, "-o", "csv").refused(
            3, "`n` is '?' in row 1", "; --raw shows the texts"
        )

    def test_sql_and_csv_have_values_and_raw_ones_texts(self, run: Run, shop: Path) -> None:
        query = "select sum(amount) as total from landing"
        assert json.loads(run("landing", "sql", shop, query, "-o", "json").out) == [{"total": "1321.90"}]
        assert run("landing", "sql", shop, query, "--raw").code == 2
        assert run("landing", "cat", shop, "-o", "csv").out.splitlines() == [
            "price,amount,day",
            '"22,90 €",22.90,03/04/2026',
            '"1.299,00 €",1299.00,03/04/2026',
            "?,,03/04/2026",
        ]
        assert run("landing", "cat", shop, "-o", "csv", "--raw").out.splitlines()[1] == '"22,90 €",03/04/2026'
        last = run("landing", "cat", shop).out.splitlines()[2]
        assert json.loads(last) == {"price": "?", "day": "03/04/2026"}

    def test_proposed_types_are_yaml_whatever_columns_are_called(
        self, run: Run, connected: None, sandbox: Sandbox, folder: Path
    ) -> None:
        names = ["a\u2028b", "c\x7f", "d: e", "f # g", '"h"']
        task = sandbox.control.add_task(rows=[dict.fromkeys(names, "1")], state="Finished")["task_id"]
        assert run("land", task, folder).code == 0
        proposed = yaml.safe_load(run("landing", "types", folder).out)
        assert proposed == {"column_types": dict.fromkeys(names, "int64")}

    def test_proposed_types_go_into_the_file_of_collection_tasks(self, run: Run, shop: Path) -> None:
        ended = run("landing", "types", shop, "--share", "0.6")
        assert ended.code == 0, ended.err
        lines = ended.out.splitlines()
        assert lines[0] == "column_types:"
        assert lines[1].endswith("# 66.6 % of 3 texts; not '?'")
        assert lines[2].startswith("  # ")
        assert lines[2].endswith(": 100 % of 3 texts")
        price = {"type": "decimal(18,2)", "decimal": ",", "thousands": ".", "currency": "true"}
        entry = "- id: 5a9d0b0e-0000-4000-8000-000000000001\n  name: Shop\n"
        (shop / "tasks.yaml").write_text(entry + "".join(f"  {line}\n" for line in lines))
        (task,) = read_collection_tasks(shop / "tasks.yaml").tasks
        assert task.options["column_types"] == {"price": price}
