"""What is new, changed and gone: ``python -m benchmarks.changes [--keys N] [--runs N]``.

Each run has 99 % of the keys, each with a URL and a price, in Parquet on a local disk; the commits are those
of a landing. Four runs have half of the keys: the rows of one are quarantined, those of one were discarded,
one has failed its checks with ``warn``, and one was accepted two runs later. Each question is a process of
its own; seconds and memory count without the imports. What it returns must be what DuckDB finds by a query
over the files. Needs Linux.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_webcollect.landing.checks import CheckOutcome
from airflow_provider_webcollect.landing.commits import Part, Run, Source
from airflow_provider_webcollect.landing.fold import following
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.log import CommitLog
from airflow_provider_webcollect.landing.names import new_attempt_id, part_name
from airflow_provider_webcollect.landing.plan import encoding_of
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.tables import landing_folder
from benchmarks.measured import measured
from benchmarks.report import machine, table

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.commits import Commit, Manifest

FAILED = CheckOutcome(check="rows.min", state="failed", expected="more", found="fewer")
#: 2 % of the prices are others in the next run; 1 % of the keys are missing in two runs each.
ROWS = """
    copy (
        select
            'https://shop.example/products/' || i as url,
            (i % 1000 + (i * 31 + {run}) // 50)::varchar as price
        from range({keys}) as keys(i) where (i * 17 + {run} // 2) % 100 <> 0 and i % {nth} = 0
    ) to '{file}' (format parquet)
"""
CHANGES = """
    with runs as (select unnest($runs, recursive := true)),
    landed as (from read_parquet($files, filename = 'file') join runs using (file)),
    before as (select url, arg_max(price, place) as price from landed where was_there group by url),
    now as (select url, max_by(landed, place) as last from landed where is_there group by url),
    every as (select url, max_by(landed, place) as last, max(gone_at) as gone_at from landed group by url)
    select url, last.price, if(before.url is null, 'new', 'changed') as change, last.landed_at
    from now left join before using (url) where last.price is distinct from before.price
    union all
    select url, last.price, 'gone', gone_at
    from before anti join now using (url) join every using (url)
"""
LATEST = """
    with runs as (select unnest($runs, recursive := true)),
    landed as (from read_parquet($files, filename = 'file') join runs using (file))
    select url, arg_max(price, place) as price, arg_max(landed_at, place) as landed_at
    from landed group by url
"""
DIFFERENCE = """
    with answer as (from read_parquet($file)),
    lacking as (from found except all from answer),
    wrong as (from answer except all from found)
    select (select count(*) from lacking) + (select count(*) from wrong)
"""
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "`changes`, since the last run": ("changes", {"back": 1}),
    "the same, whole runs": ("changes", {"back": 1, "whole_runs": True}),
    "since half of the runs, whole runs": ("changes", {"back": 15, "whole_runs": True}),
    "since the first run, whole runs": ("changes", {"back": 29, "whole_runs": True}),
    "`latest`": ("latest", {}),
}


class Landed(NamedTuple):
    """Rows that have landed.

    :ivar read: the number of their run.
    """

    file: str
    read: int
    at: datetime.datetime
    is_whole: bool


class Landing:
    """A landing that is made of files, without a service.

    :ivar landed: what has landed, in order.
    """

    def __init__(self, folder: Path, keys: int) -> None:
        self._folder, self._keys = folder, keys
        self._log = CommitLog(landing_folder(LocalFileSystem(), str(folder)))
        self._state: Manifest | None = None
        self.landed: list[Landed] = []

    def run(self, number: int, kind: str = "landed", *, is_broken: bool = False) -> Commit:
        """Land what a run has collected, or set it apart.

        :param is_broken: whether it has half of the keys, and has failed its checks.
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
            kind,  # type: ignore[arg-type]
            Run(dag_id="d", task_id="t", run_id=f"run {number}"),
            attempt_id=attempt_id,
            source=Source(collection_task_id="t"),
            columns=("url", "price"),
            **encoding_of(make_format("parquet")),
            next_offset=part.next_offset,
            total=(state.total if state else 0) + rows,
            parts=(part,),
            checks=(FAILED,) if is_broken else (),
        )
        self._append(commit)
        if kind == "landed":
            self._land(number, commit, is_whole=not is_broken)
        return commit

    def decide(self, number: int, kind: str, about: Commit) -> None:
        """Accept or discard the rows of a run that were quarantined."""
        parts = about.parts if kind == "accepted" else ()
        decision = following(self._state, kind, about.run, parts=parts, about=about.number)  # type: ignore[arg-type]
        self._append(decision)
        if parts:
            self._land(number, decision, is_whole=True)

    def _append(self, commit: Commit) -> None:
        self._state = self._log.publish(self._log.append(self._state, commit))

    def _land(self, number: int, commit: Commit, *, is_whole: bool) -> None:
        at = datetime.datetime.fromisoformat(commit.finished_at)
        self.landed.append(Landed(str(self._folder / commit.parts[0].name), number, at, is_whole))


def made(folder: Path, keys: int, runs: int) -> list[Landed]:
    """Make the landing, and return what has landed."""
    landing = Landing(folder, keys)
    quarantined, discarded, warned, accepted = (runs * nth // 15 for nth in (4, 6, 8, 10))
    for number in range(1, runs + 1):
        if number == warned:
            landing.run(number, is_broken=True)
        elif number in (quarantined, discarded, accepted):
            apart = landing.run(number, "quarantined", is_broken=True)
            if number == discarded:
                landing.decide(number, "discarded", apart)
        else:
            landing.run(number)
        if number == accepted + 2:
            landing.decide(accepted, "accepted", apart)
    return landing.landed


def expected(landed: Sequence[Landed], since: int | None, *, is_whole: bool) -> tuple[str, dict[str, Any]]:
    """Return a query for what a question returns, with its parameters.

    :param since: the number of the run before whose rows the moment is; None for the latest rows.
    """
    moment = next((place for place, each in enumerate(landed) if each.read == since), len(landed))
    whole = [each for each in landed if each.is_whole and is_whole]
    first_before = max((each.read for each in whole if landed.index(each) < moment), default=0)
    first_now = max((each.read for each in whole), default=0)
    runs = [
        {
            "file": each.file,
            "place": place,
            "landed_at": each.at,
            "was_there": place < moment and each.read >= first_before,
            "is_there": each.read >= first_now,
            "gone_at": min((other.at for other in whole if other.read > each.read), default=None),
        }
        for place, each in enumerate(landed)
        if since is None or each.read >= first_before
    ]
    return LATEST if since is None else CHANGES, {"runs": runs, "files": [run["file"] for run in runs]}


def main() -> None:
    """Make a landing, ask, compare, print a table."""
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
            f"{arguments.keys:,} keys, {arguments.runs} runs | rows returned | those of the query | seconds "
            "| times the query's | MB at the peak | MB over the imports",
            rows(folder, landed, arguments.runs),
        )


def rows(folder: Path, landed: Sequence[Landed], runs: int) -> Iterator[Sequence[object]]:
    """Ask each question, and yield what that took."""
    answer = folder.parent / "answer.parquet"
    for question, (method, options) in QUESTIONS.items():
        since = runs + 1 - options["back"] if "back" in options else None
        asked = json.dumps([method, since, options.get("whole_runs", False)])
        command = [sys.executable, "-m", "benchmarks.changes", "--ask", str(folder), asked]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        taken = json.loads(done.stdout.splitlines()[-1])
        query, parameters = expected(landed, since, is_whole=options.get("whole_runs", False))
        with duckdb.connect() as connection:
            began = time.perf_counter()
            connection.execute(f"create table found as {query}", parameters)
            seconds = time.perf_counter() - began
            ((differing,),) = connection.execute(DIFFERENCE, {"file": str(answer)}).fetchall()
        yield (
            question,
            f"{taken['rows']:,}",
            "yes" if not differing else f"**{differing:,} differ**",
            f"{taken['seconds']:.0f}",
            f"{taken['seconds'] / seconds:.1f}",
            f"{taken['peak']:.0f}",
            f"{taken['over']:.0f}",
        )


def ask(folder: Path, method: str, since: int | None, whole_runs: bool) -> None:
    """Ask in this process, and print what that took."""
    import pyarrow.parquet as pq

    landed = read_landing(str(folder))
    options = {} if since is None else {"since": f"run {since}", "whole_runs": whole_runs}
    answers = []

    def answer() -> int:
        answers.append(getattr(landed, method)("url", **options).to_arrow_table())
        return int(answers[0].num_rows)

    measured(answer)
    pq.write_table(answers[0], folder.parent / "answer.parquet")


if __name__ == "__main__":
    main()
