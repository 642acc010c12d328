"""Cost of finding new, changed and gone keys: ``python -m benchmarks.changes [--keys N] [--runs N]``.

Each run has 99 % of the keys, each with a URL and a price, in Parquet on a local disk; the commits are like
the commits of a landing. Four runs have only half of the keys: the rows of the first are quarantined, the
rows of the second were discarded, the third has failed its checks with ``warn``, and the rows of the fourth
were accepted two runs later. Each method runs in a process of its own; seconds do not include the imports,
and memory is shown with and without them. A DuckDB query on the files must have the same results. Needs
Linux.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_webcollect.landing.checks import CheckOutcome
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.location import folder_at
from airflow_provider_webcollect.landing.log.commits import Part, Run, Source
from airflow_provider_webcollect.landing.log.fold import following
from airflow_provider_webcollect.landing.log.names import new_attempt_id, part_name
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.storage.commit_log import CommitLog
from airflow_provider_webcollect.landing.write.job import encoding_of
from benchmarks.measured import measured
from benchmarks.report import machine, table

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.log.commits import Commit, Manifest

FAILED = CheckOutcome(check="rows.min", state="failed", expected="more", found="fewer")
#: In each run, 2 % of the prices differ from the previous run, and 1 % of the keys are missing, each of them
#: in two consecutive runs.
ROWS = """
    copy (
        select
            'https://shop.example/products/' || i as url,
            (i % 1000 + (i * 31 + {run}) // 50)::varchar as price
        from range({keys}) as keys(i) where (i * 17 + {run} // 2) % 100 <> 0 and i % {nth} = 0
    ) to '{file}' (format parquet)
"""
#: Queries that compute the expected results; ``place`` is the number of a part.
LOAD = """
    create table landed as
    select substr(url, 31)::int as product, price::int as price, place
    from read_parquet($files, filename = 'file') join (select unnest($runs, recursive := true)) using (file)
"""
CHANGES = """
    create table expected as
    with runs as (select unnest($runs, recursive := true)),
    products as (
        select
            product,
            arg_max(price, place) filter (was_there) as former,
            arg_max(price, place) filter (is_there) as current,
            arg_max(price, place) as last,
            max(place) filter (is_there) as place,
            max(gone_at) as gone_at
        from landed join runs using (place) group by product
    )
    select
        'https://shop.example/products/' || product as url,
        coalesce(current, last)::varchar as price,
        if(former is null, 'new', if(current is null, 'gone', 'changed')) as change,
        if(current is null, products.gone_at, landed_at) as landed_at
    from products left join runs using (place) where former is distinct from current
"""
LATEST = """
    create table expected as
    with runs as (select unnest($runs, recursive := true)),
    products as (
        select product, arg_max(price, place) as price, max(place) as place from landed group by product
    )
    select 'https://shop.example/products/' || product as url, price::varchar as price, landed_at
    from products join runs using (place)
"""
DIFFERENCE = """
    with answer as (from read_parquet($file)),
    lacking as (from expected except all from answer),
    wrong as (from answer except all from expected)
    select (select count(*) from lacking) + (select count(*) from wrong)
"""
#: By name: the measured method, and the number of runs to look back; None for a method without ``since``.
QUESTIONS = {
    "`changes`, whole runs, since the last run": ("changes", 1),
    "`changes`, whole runs, since the second of 30": ("changes", 29),
    "`latest`": ("latest", None),
}


class Landed(NamedTuple):
    """A part that has landed.

    :ivar read: the number of the run that has read the rows.
    """

    file: str
    read: int
    at: datetime.datetime
    is_whole: bool


class Landing:
    """A landing that is created from generated files, without a service.

    :ivar landed: the landed parts, in order.
    """

    def __init__(self, folder: Path, keys: int) -> None:
        self._folder, self._keys = folder, keys
        self._log = CommitLog(folder_at(LocalFileSystem(), str(folder)))
        self._state: Manifest | None = None
        self.landed: list[Landed] = []

    def run(self, number: int, *, is_broken: bool = False, is_quarantined: bool = False) -> Commit:
        """Land the rows of a run, or quarantine them.

        :param number: the number of the run.
        :param is_broken: whether the run has only half of the keys, and has failed its checks.
        """
        state, attempt_id = self._state, new_attempt_id()
        start, parts = (state.next_offset, state.part_count) if state else (0, 0)
        name = part_name(parts + 1, attempt_id, ".parquet")
        file = self._folder / name
        nth = 2 if is_broken else 1
        duckdb.execute(ROWS.format(run=number, keys=self._keys, file=file, nth=nth))
        rows = duckdb.read_parquet(str(file)).shape[0]
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        part = Part(
            name=name,
            rows=rows,
            bytes=file.stat().st_size,
            sha256=digest,
            start_offset=start,
            next_offset=start + rows,
        )
        commit = following(
            state,
            "landed",
            Run(dag_id="d", task_id="t", run_id=f"run {number}"),
            attempt_id=attempt_id,
            source=Source(collection_task_id="t"),
            columns=("url", "price"),
            **encoding_of(make_format("parquet")),
            next_offset=part.next_offset,
            total=(state.total if state else 0) + rows,
            parts=() if is_quarantined else (part,),
            quarantined=(part,) if is_quarantined else (),
            checks=(FAILED,) if is_broken else (),
        )
        self._append(commit)
        if not is_quarantined:
            self._land(number, commit, is_whole=not is_broken)
        return commit

    def decide(self, number: int, about: Commit, *, accepts: bool) -> None:
        """Accept or discard the quarantined rows of a run."""
        parts = about.quarantined if accepts else ()
        decision = following(self._state, "decided", about.run, parts=parts, about=about.number)
        self._append(decision)
        if parts:
            self._land(number, decision, is_whole=True)

    def _append(self, commit: Commit) -> None:
        self._state = self._log.publish(self._log.append(self._state, commit))

    def _land(self, number: int, commit: Commit, *, is_whole: bool) -> None:
        at = datetime.datetime.fromisoformat(commit.finished_at)
        self.landed.append(Landed(str(self._folder / commit.parts[0].name), number, at, is_whole))


def made(folder: Path, keys: int, runs: int) -> list[Landed]:
    """Create the landing, and return the landed parts."""
    landing = Landing(folder, keys)
    quarantined, discarded, warned, accepted = (runs * nth // 15 for nth in (4, 6, 8, 10))
    for number in range(1, runs + 1):
        if number == warned:
            landing.run(number, is_broken=True)
        elif number in (quarantined, discarded, accepted):
            apart = landing.run(number, is_broken=True, is_quarantined=True)
            if number == discarded:
                landing.decide(number, apart, accepts=False)
        else:
            landing.run(number)
        if number == accepted + 2:
            landing.decide(accepted, apart, accepts=True)
    return landing.landed


def facts(landed: Sequence[Landed], since: int | None) -> list[dict[str, Any]]:
    """Return the facts on each landed part for the queries.

    :param since: the number of the run with the first rows after the compared moment; None for the beginning.
    """
    moment = next((place for place, each in enumerate(landed) if each.read == since), 0)
    whole = [each for each in landed if each.is_whole]
    first_before = max((each.read for each in whole if landed.index(each) < moment), default=0)
    first_now = max(each.read for each in whole)
    return [
        {
            "file": each.file,
            "place": place,
            "landed_at": each.at,
            "was_there": place < moment and each.read >= first_before,
            "is_there": each.read >= first_now,
            "gone_at": min((other.at for other in whole if other.read > each.read), default=None),
        }
        for place, each in enumerate(landed)
        if each.read >= first_before
    ]


def main() -> None:
    """Create a landing, run and check each method, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=2_000_000, help="(default: %(default)s)")
    parser.add_argument("--runs", type=int, default=30, help="at least 30 (default: %(default)s)")
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        ask(Path(arguments.ask[0]), *json.loads(arguments.ask[1]))
        return
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "landing")
        folder.mkdir()
        landed = made(folder, arguments.keys, arguments.runs)
        table(
            f"{arguments.keys:,} keys, {arguments.runs} runs | rows | those of the query | seconds "
            "| times a read | MB at the peak | MB over the imports",
            rows(folder, landed, arguments.runs),
        )


def rows(folder: Path, landed: Sequence[Landed], runs: int) -> Iterator[Sequence[object]]:
    """Read all rows once, then run each method; yield a line of the table for each."""
    read = taken(folder, "read", None)
    yield "all parts read once", *cells(read, read, "")
    with duckdb.connect(folder.parent / "query.duckdb", config={"memory_limit": "4GB"}) as connection:
        connection.execute(LOAD, {"runs": facts(landed, None), "files": [each.file for each in landed]})
        for question, (method, back) in QUESTIONS.items():
            since = None if back is None else runs + 1 - back
            answered = taken(folder, method, since)
            query = LATEST if since is None else CHANGES
            connection.execute(query, {"runs": facts(landed, since)})
            file = {"file": str(folder.parent / "answer.parquet")}
            ((differing,),) = connection.execute(DIFFERENCE, file).fetchall()
            connection.execute("drop table expected")
            yield question, *cells(answered, read, f"**{differing:,} differ**" if differing else "yes")


def taken(folder: Path, method: str, since: int | None) -> dict[str, Any]:
    """Run a method in a process of its own, and return the measurement."""
    asked = json.dumps([method, since])
    command = [sys.executable, "-m", "benchmarks.changes", "--ask", str(folder), asked]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def cells(took: dict[str, Any], read: dict[str, Any], is_equal: str) -> Sequence[str]:
    """Return the cells of a line of the table, without its name."""
    times = f"{took['seconds'] / read['seconds']:.1f}"
    return (
        f"{took['rows']:,}",
        is_equal,
        f"{took['seconds']:.0f}",
        times,
        f"{took['peak']:.0f}",
        f"{took['over']:.0f}",
    )


def ask(folder: Path, method: str, since: int | None) -> None:
    """Run a method in this process, and print the measurement."""
    import pyarrow.parquet as pq

    landed = read_landing(str(folder))
    options = {} if since is None else {"since": f"run {since}", "whole_runs": True}

    def answer() -> int:
        if method == "read":
            return sum(rows.num_rows for part in landed.parts() for rows in landed.tables_of(part))
        found = getattr(landed, method)("url", **options).to_arrow_table()
        pq.write_table(found, folder.parent / "answer.parquet")
        return int(found.num_rows)

    measured(answer)


if __name__ == "__main__":
    main()
