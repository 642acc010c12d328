"""The commands that land rows, and check, print, query, clean up or decide on landed rows."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import itertools
import json
import re
import secrets
from typing import TYPE_CHECKING, Any

import click
import msgspec

from airflow_provider_webcollect.cli.connecting import (
    at_landing,
    called,
    connect,
    connection_options,
    names_option,
    open_location,
    parse_landing,
    shown_place,
    storage_option,
    task_argument,
)
from airflow_provider_webcollect.cli.output import (
    as_json,
    ask,
    declared_options,
    deferred_interrupt,
    output_option,
    progress,
    show,
    tell,
    write,
)
from airflow_provider_webcollect.landing import cleaning
from airflow_provider_webcollect.landing.errors import NothingLanded
from airflow_provider_webcollect.landing.formats.profile import MAX_COLUMNS, percent
from airflow_provider_webcollect.landing.log.commits import COMMAND, Run, Source, counted
from airflow_provider_webcollect.landing.options import LandOptions
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.storage.commit_log import CommitLog
from airflow_provider_webcollect.landing.write import review
from airflow_provider_webcollect.landing.write.job import Job, Landed, Observer, job_of
from airflow_provider_webcollect.landing.write.run import run_job
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import InvalidArgument, Stopped, quoted
from airflow_provider_webcollect.service.threads import Stop, first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from duckdb import DuckDBPyRelation

    from airflow_provider_webcollect.landing.location import Location, TableFormat
    from airflow_provider_webcollect.landing.log.commits import Manifest, SetApart
    from airflow_provider_webcollect.landing.read.contents import RunProfile
    from airflow_provider_webcollect.landing.storage.folder import Folder

COLUMNS = ("column", "rows", "filled", "numbers", "booleans", "lists", "shortest", "longest", "misfits")
RUNS = ("run", "finished_at", "rows")
LEFTOVERS = ("name", "bytes", "modified")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: The options that choose which rows a command reads; methods of :class:`.LandedData` take their values.
_new_only_option = click.option("--new-only", is_flag=True, help="Only the rows that the last run has added.")
_since_option = click.option(
    "--since",
    type=click.IntRange(min=0),
    metavar="COMMIT",
    help="Only the rows of commits after this number, which `land` and `verify` show.",
)


_raw_option = click.option(
    "--raw", is_flag=True, help="Keep the texts of JSON lines and CSV, without their types."
)


def _decoded_json(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    """Return the decoded JSON value of an option; the landing checks the value."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return None if value is None else json.loads(value, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(str(option.name), value, f"it must be JSON: {error}") from error


#: The options of a landing that differ on the command line from their declarations: their names, and other
#: settings.
_DIFFERENCES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "file_format": (("--format",), {}),
    "columns": (
        ("--column",),
        {"metavar": "NAME", "help": "Only this column; may be repeated, in order; by default all."},
    ),
    "column_types": ((), {"metavar": "JSON", "callback": _decoded_json}),
    "mode": (
        (),
        {"help": "incremental: add what is new; full: land all rows. By default full with --lotno."},
    ),
    "partition": ((), {"metavar": "NAME=VALUE", "help": "A folder in DESTINATION for the new parts."}),
    "checks": (
        (),
        {
            "metavar": "JSON",
            "callback": _decoded_json,
            "help": """Conditions for the rows, such as '{"columns": {"price": {"filled": 0.95}}}'.""",
        },
    ),
    "on_failed_checks": (
        (),
        {
            "help": "fail: quarantine the rows, exit code 3; quarantine: the same, exit code 0; warn: land "
            "them."
        },
    ),
}


@click.command()
@task_argument("task_id", metavar="TASK")
@click.argument("landing", metavar="DESTINATION")
@click.option("--lotno", metavar="BATCH", help="Only this batch; by default the whole history.")
@click.option(
    "--table-format",
    type=click.Choice(["delta", "iceberg"]),
    help="Make DESTINATION a table; without it, it is a folder with a manifest.",
)
@click.option(
    "--run-id",
    metavar="NAME",
    help="A name for this landing: a complete landing with the same name is left as it is.",
)
@declared_options(LandOptions, _DIFFERENCES)
@storage_option
@connection_options
@output_option
def land(
    task_id: str,
    landing: str,
    lotno: str | None,
    table_format: TableFormat | None,
    run_id: str | None,
    options: dict[str, Any],
    object_storage_conn_id: str | None,
    conn_id: str | None,
    url: str | None,
    output: str,
) -> None:
    """Land a task's rows in a folder, exactly once.

    DESTINATION is a folder on disk, such as /data/prices or ./prices, or on object storage, such as
    s3://bucket/prices; or the name of an Iceberg table, catalog.namespace.table. After an interrupt, the
    same command resumes after the last part that was recorded. The rows count once they are committed;
    --since of the other commands takes the number of the commit. Quarantined rows wait for `landing accept`
    or `landing discard`; the next landing continues after them.
    """
    stop = Stop()
    location = parse_landing(landing, object_storage_conn_id, table_format, is_landed=False)
    if lotno is not None:
        # an empty batch number would mean the whole history
        lotno = arguments.text("lotno", lotno)
    chosen = LandOptions.parse(options, lotno=lotno, table_format=table_format)
    source = Source(collection_task_id=task_id, lotno=lotno)
    with connect(conn_id, url, patient=True).client(stop) as client, progress("Landing") as on_progress:

        class Shown(Observer):
            def on_progress(self, rows: int, total: int) -> None:
                on_progress(rows, total)

            def on_late_rows_wait(self, seconds: float) -> None:
                tell(f"Waiting {seconds:.0f} s for late rows (--late-rows-delay)")

        folder = open_location(location, is_landed=False)
        run, began = _run_of(folder, run_id)
        job = job_of(
            client,
            source,
            folder,
            run,
            chosen,
            called=_source_name(source),
            run_began=began,
            observer=Shown(),
        )
        landed = _until_interrupted(job, stop)
    quarantined = [apart for apart in landed.manifest.quarantined if apart.run == job.run]
    manifest = landed.manifest
    row = {
        "destination": shown_place(location),
        "new_rows": sum(part.rows for part in landed.new),
        "new_parts": len(landed.new),
        **_quarantined(quarantined),
        "rows": manifest.rows,
        "parts": manifest.part_count,
        "bytes": manifest.bytes,
        "commit": manifest.commit,
        "finished_at": manifest.finished_at,
        "exported_at": manifest.exported_at,
    }
    show([row], output)


def _source_name(source: Source) -> str:
    """Return a source as messages name it, with the task's name if the file of collection tasks has one."""
    (task,) = called([source.collection_task_id])
    return str(msgspec.structs.replace(source, collection_task_id=task))


def _run_of(folder: Folder, run_id: str | None) -> tuple[Run, datetime.datetime | None]:
    """Return a command's run and the time when it began.

    The time is None if an earlier command may have begun the run.
    """
    if run_id is not None:
        return _run(arguments.text("run_id", run_id)), None
    if unfinished := _unfinished_run(folder):
        return unfinished, None
    began = datetime.datetime.now(datetime.UTC)
    return _run(f"{began.isoformat(timespec='seconds')} {secrets.token_hex(4)}"), began


def _run(run_id: str) -> Run:
    return Run(dag_id=COMMAND, task_id="land", run_id=run_id)


def _unfinished_run(folder: Folder) -> Run | None:
    """Return the newest unfinished run of a command in a folder, which this command resumes.

    Rows that a run has staged after its commit are not resumed: the next run reads them again.
    """
    commits = CommitLog(folder)
    state = commits.read()
    unfinished = [
        draft
        for draft in commits.staged().values()
        if draft.may_continue(state)
        and draft.run == _run(draft.run.run_id)
        and not (state and draft.run == state.run)
    ]
    return max(unfinished, key=lambda draft: draft.started_at).run if unfinished else None


def _until_interrupted(job: Job, stop: Stop) -> Landed:
    """Land the rows; an interrupt ends the landing at a point from which the next command can resume it."""

    def end() -> None:
        stop.set()
        tell("Stopping; run the same command again to resume.")

    with contextlib.suppress(KeyboardInterrupt), deferred_interrupt(end):
        landing = in_background(lambda: run_job(job), "webcollect-land")
        first_done([landing])
    try:
        return landing.result()  # even after an interrupt, if everything was committed already
    except Stopped as stopped:
        raise KeyboardInterrupt from stopped


@click.group()
def landing() -> None:
    """Check, print, query and clean up what has landed."""


@landing.command()
@at_landing
@names_option
@output_option
def verify(location: Location, output: str) -> None:
    """Compare all parts with the manifest, and show its facts.

    The command compares presence, bytes, SHA-256 and number of rows. Exit code 1: a part is missing or
    damaged, or nothing has landed there; standard error says what is wrong.
    """
    landed = read_landing(open_location(location))
    landed.verify()
    manifest, run = landed.manifest, landed.manifest.run
    row = {
        "landing": shown_place(location),
        "rows": manifest.rows,
        "parts": manifest.part_count,
        "bytes": manifest.bytes,
        "commit": manifest.commit,
        "source": _source_name(manifest.source),
        "run": f"{run.dag_id}.{run.task_id} {run.run_id}",
        "finished_at": manifest.finished_at,
        "exported_at": manifest.exported_at,
        **_apart(manifest),
    }
    show([row], output)


def _apart(manifest: Manifest) -> dict[str, Any]:
    """Return how many rows are quarantined, in which commits, and how many were discarded; None for none."""
    discarded = sum(apart.rows for apart in manifest.set_apart if apart.kind == "discarded")
    return {**_quarantined(manifest.quarantined), "discarded_rows": discarded or None}


def _quarantined(quarantined: Sequence[SetApart]) -> dict[str, Any]:
    return {
        "quarantined_commits": ", ".join(str(apart.commit) for apart in quarantined) or None,
        "quarantined_rows": sum(apart.rows for apart in quarantined) or None,
    }


@landing.command()
@at_landing
@click.option("--by", type=click.Choice(["column", "run"]), default="column", help="What each line shows.")
@_new_only_option
@_since_option
@output_option
def profile(location: Location, by: str, new_only: bool, since: int | None, output: str) -> None:
    """Show the contents of the rows, by column or by run.

    No rows are read: the commits have the counts. By column: how many rows have the column, the share of all
    rows in which it is filled (not null, not blank), how many values are numbers, booleans and lists, the
    characters of the shortest and the longest text, and how many values became null in Parquet since they do
    not fit their type. By run: the share of its rows in which each column is filled. --new-only and --since
    are for the counts by column. If the landing of the last run has checked inputs, standard error names the
    inputs without a row.
    """
    landed = read_landing(open_location(location))
    if by == "run":
        _show_runs(landed.profiles(), output)
        return
    columns = landed.profile(new_only, since=since)
    counted_rows = sum(part.rows for part in landed.parts(new_only, since=since))
    rows = [
        {
            "column": name,
            "rows": counts.present,
            "filled": round(counts.filled / counted_rows, 4),
            **{kind: getattr(counts, kind) for kind in COLUMNS[3:]},
        }
        for name, counts in columns.columns.items()
    ]
    show(rows, output, COLUMNS)
    if columns.is_cut:
        tell(f"Only the first {MAX_COLUMNS} columns of each part are counted.")
    if columns.unread:
        tell(f"{counted(columns.unread, 'row')} could not be read for this.")
    if (missing := landed.manifest.missing_inputs) and missing.count:
        names = ", ".join(map(quoted, missing.inputs))
        more = f" and {left:,} more" if (left := missing.count - len(missing.inputs)) else ""
        of = f"{missing.count:,} of {counted(missing.of, 'input')}"
        tell(f"In the last run that has landed rows, {of} have no row: {names}{more}.")


def _show_runs(runs: Sequence[RunProfile], output: str) -> None:
    if output == "json":
        plain = [
            {**run._asdict(), "profile": msgspec.to_builtins(run.profile.columns, order="deterministic")}
            for run in runs
        ]
        show(plain, output, ("run_id", "finished_at", "rows", "profile"))
        return

    def shown(share: float) -> Any:
        return percent(share) if output == "table" else round(share, 4)

    names = dict.fromkeys(name for run in runs for name in run.profile.columns)
    headings = {name: f"{name} (column)" if name in RUNS else name for name in names}
    rows = [
        {
            "run": run.run_id,
            "finished_at": run.finished_at,
            "rows": run.rows,
            **{
                heading: shown(run.profile.columns[name].filled / run.rows)
                if name in run.profile.columns
                else None
                for name, heading in headings.items()
            },
        }
        for run in runs
    ]
    show(rows, output, (*RUNS, *headings.values()))


_commit_option = click.option(
    "--commit",
    type=click.IntRange(min=1),
    metavar="COMMIT",
    help="The number of the commit that has quarantined the rows. It may be left out if there is only one.",
)


@landing.command()
@at_landing
@_commit_option
@output_option
def accept(location: Location, commit: int | None, output: str) -> None:
    """Land quarantined rows as they are.

    `landing verify` shows the numbers of the commits, and `landing cat --quarantined` shows the rows.
    Accepted rows get a commit of their own, so that the next load gets them.
    """
    folder = open_location(location)
    apart = review.waiting(folder, commit)
    _show_evidence(apart)
    _show_decided(review.accept(folder, commit=apart.commit, by=_user()), output)


@landing.command()
@at_landing
@_commit_option
@click.option("--yes", is_flag=True, help="Do not ask first; discarded rows cannot be restored.")
@output_option
def discard(location: Location, commit: int | None, yes: bool, output: str) -> None:
    """Delete quarantined rows.

    `landing verify` shows the numbers of the commits and, afterwards, how many rows were discarded. The
    landing skips these rows. If the landing would have begun again with them, the next run reads the source
    again.
    """
    folder = open_location(location)
    apart = review.waiting(folder, commit)
    _show_evidence(apart)
    if not yes:
        ask(f"Delete the {counted(apart.rows, 'row')} of commit {apart.commit} at {shown_place(location)}?")
    _show_decided(review.discard(folder, commit=apart.commit, by=_user()), output)


def _show_evidence(apart: SetApart) -> None:
    """Write to standard error which rows the decision is about, and which checks they did not pass."""
    tell(f"Commit {apart.commit} has quarantined {counted(apart.rows, 'row')} of run {apart.run.run_id}:")
    for outcome in apart.checks:
        tell(f"  {outcome}")
    if apart.replaces:
        tell("If accepted, they replace all rows that have landed.")
    if apart.is_earlier:
        tell("The landing has begun again since, and may have the same rows already.")


def _show_decided(apart: SetApart, output: str) -> None:
    row = {
        "commit": apart.commit,
        "run": apart.run.run_id,
        "rows": apart.rows,
        "checks": ", ".join(outcome.check for outcome in apart.checks),
    }
    show([row], output)


def _user() -> str:
    """Return the name of the user who runs the command."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        # for example in a container whose user has no name
        return "unknown user"


@landing.command()
@at_landing
@_new_only_option
@_since_option
@click.option(
    "--quarantined",
    type=click.IntRange(min=1),
    metavar="COMMIT",
    help="The rows that the commit of this number has quarantined; `verify` shows the numbers.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    help="jsonl: rows as they landed; csv: typed, as a table, which must fit into memory.",
)
@_raw_option
@click.option(
    "--reasons",
    is_flag=True,
    help="""With --quarantined: write {"broke": […], "row": {…}} for each row, with the rules it broke.""",
)
def cat(
    location: Location,
    new_only: bool,
    since: int | None,
    quarantined: int | None,
    output: str,
    raw: bool,
    reasons: bool,
) -> None:
    """Write the landed rows as JSON lines, or as a CSV table."""
    if reasons and (quarantined is None or new_only or since is not None or output != "jsonl"):
        raise click.UsageError("--reasons requires --quarantined, and excludes --new-only, --since and csv")
    landed = read_landing(open_location(location), quarantined=quarantined, raw=raw)
    if output == "csv":
        table = landed.to_arrow(new_only, since=since)
        # the texts are Arrow's, such as 0.0000001 and true
        texts = zip(*(column.cast("string").to_pylist() for column in table.columns), strict=True)
        rows = [dict(zip(table.column_names, row, strict=True)) for row in texts]
        show(rows, output, table.column_names, exactly=True)
        return
    found: Iterator[Any] = landed.iter_rows(new_only, since=since)
    if reasons:
        reasoned = zip(landed.reasons(), found, strict=True)
        found = ({"broke": broke, "row": row} for broke, row in reasoned)
    for row in found:
        write(as_json(row).encode() + b"\n")


@landing.command()
@at_landing
@click.option(
    "--share",
    type=float,
    default=1.0,
    metavar="SHARE",
    help="The share of a column's texts that must fit, such as 0.99; by default all must.",
)
def types(location: Location, share: float) -> None:
    """Propose types for the columns, as YAML.

    The output is for `column_types` in the file of collection tasks. It has the narrowest type that fits each
    column, with separators and format. If texts can be read in two ways, such as 03/04/2026, a comment has
    both. All rows are read.
    """
    proposed = read_landing(open_location(location)).propose_types(share)
    lines = []
    for column in proposed:
        kinds = [column.type] if column.type is not None else column.readings
        shown = [_as_yaml({column.column: kind}) for kind in kinds]
        of = f"{percent(column.share)} of {counted(column.values, 'text')}"
        of += f"; not {', '.join(map(quoted, column.misfits))}" if column.misfits else ""
        if column.type is not None:
            lines.append(f"  {shown[0]}  # {of}")
        elif shown:
            lines.append(f"  # {' or '.join(shown)}: {of}")
    has_types = any(column.type is not None for column in proposed)
    write("\n".join(["column_types:" if has_types else "column_types: {}", *lines, ""]).encode())


def _as_yaml(entry: dict[str, Any]) -> str:
    """Return a key and its value on one line; characters that YAML does not allow are escaped."""
    text = json.dumps(entry, ensure_ascii=False)
    return (text if text.isprintable() else json.dumps(entry))[1:-1]


@landing.command()
@at_landing
@click.argument("query")
@_new_only_option
@_since_option
@_raw_option
@output_option
def sql(location: Location, query: str, new_only: bool, since: int | None, raw: bool, output: str) -> None:
    """Run a query of DuckDB over the landed rows.

    The table `landing` has exactly the landed rows. For example "select city, count(*) from landing group by
    city". The rows must fit into memory, except rows of a Delta Lake table, which are read as needed.
    """
    arguments.encodable("query", query)
    landed = read_landing(open_location(location), raw=raw)
    relation = landed.to_duckdb(new_only=new_only, since=since)
    import duckdb

    try:
        _show_relation(relation.query("landing", query), output)
    except duckdb.Error as error:
        raise InvalidArgument("query", query, str(error)) from error


def _show_relation(relation: DuckDBPyRelation | None, output: str) -> None:
    """Show the rows of a relation; None for a statement that returns none."""
    columns, rows = (_unique(relation.columns), relation.fetchall()) if relation is not None else ([], [])
    show([dict(zip(columns, row, strict=True)) for row in rows], output, columns, exactly=True)


def _unique(names: Sequence[str]) -> list[str]:
    """Return column names, with a number after each repeated one; the columns of a join may repeat names."""
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        taken = {*names, *unique}
        unique.append(next(other for other in numbered if other not in taken) if name in unique else name)
    return unique


_key_option = click.option(
    "--key",
    metavar="COLUMN",
    multiple=True,
    required=True,
    help="The column of the key that identifies a row; may be repeated for a key of several columns.",
)
_compare_option = click.option(
    "--compare",
    metavar="COLUMN",
    multiple=True,
    help="A column whose values are compared; may be repeated; by default all are compared.",
)


@landing.command()
@at_landing
@_key_option
@output_option
def latest(location: Location, key: tuple[str, ...], output: str) -> None:
    """Show the newest row of each key, and when it landed.

    Rows without a value in a column of the key are left out. The shown rows must fit into memory, and the
    landing's keys into the temporary folder. Times are in UTC.
    """
    _show_relation(read_landing(open_location(location)).latest(key), output)


def _time(context: click.Context, option: click.Parameter, value: str | None) -> datetime.datetime | None:
    """Return a time with a zone, given as ISO 8601 text."""
    with contextlib.suppress(ValueError):
        moment = None if value is None else datetime.datetime.fromisoformat(value.strip())
        if moment is None or moment.utcoffset() is not None:
            return moment
    rule = "it must be a time with a zone, such as 2026-01-31T12:00Z"
    raise InvalidArgument(str(option.name), value, rule)


@landing.command()
@at_landing
@_key_option
@click.option(
    "--since",
    type=click.IntRange(min=0),
    metavar="COMMIT",
    help="Show changes since the commit of this number, which `land` and `verify` show.",
)
@click.option("--since-run", metavar="RUN", help="Show changes since just before the rows of this run.")
@click.option(
    "--since-time",
    metavar="TIME",
    callback=_time,
    help="Show changes since this time, such as 2026-01-31T12:00Z.",
)
@_compare_option
@click.option(
    "--whole-runs",
    is_flag=True,
    help="Each run collects everything: also show the keys that are gone from a run that passed its checks.",
)
@output_option
def changes(
    location: Location,
    key: tuple[str, ...],
    since: int | None,
    since_run: str | None,
    since_time: datetime.datetime | None,
    compare: tuple[str, ...],
    whole_runs: bool,
    output: str,
) -> None:
    """Show the newest row of each key that is new or has changed.

    A key has changed if its values differ from its last row before --since, --since-run or --since-time, one
    of which is needed. Everything else is as in `latest`. Exit code 1: the landing has no rows of the run.
    """
    given: list[Any] = [moment for moment in (since, since_run, since_time) if moment is not None]
    if len(given) != 1:
        raise click.UsageError("Exactly one of --since, --since-run and --since-time is needed")
    landed = read_landing(open_location(location))
    if since_run is not None and not landed.parts(new_only=since_run):
        raise NothingLanded(f"{landed.uri} has no rows of the run {since_run}")
    relation = landed.changes(key, given[0], compare=compare or None, whole_runs=whole_runs)
    _show_relation(relation, output)


@landing.command()
@at_landing
@_key_option
@_compare_option
@output_option
def history(location: Location, key: tuple[str, ...], compare: tuple[str, ...], output: str) -> None:
    """Show each period in which a key had the same values.

    A period that ends when it begins has landed together with the next one. Everything else is as in
    `latest`.
    """
    _show_relation(read_landing(open_location(location)).history(key, compare=compare or None), output)


def _age(context: click.Context, option: click.Parameter, value: str) -> float:
    """Return an age such as ``12h`` in seconds."""
    if not (match := re.fullmatch(r"(\d+)([smhd])", value)):
        raise InvalidArgument(str(option.name), value, "it must be an age such as 90m, 12h or 2d")
    return float(match[1]) * _SECONDS[match[2]]


@landing.command()
@at_landing
@click.option(
    "--older-than",
    metavar="AGE",
    default="1d",
    callback=_age,
    help="Only files of at least this age, such as 90m, 12h, 2d; more than the longest task that lands.",
)
@click.option("--yes", is_flag=True, help="Remove the files; without this option they are only listed.")
@output_option
def clean(location: Location, older_than: float, yes: bool, output: str) -> None:
    """List the files that no landing needs; --yes removes them.

    Landings leave such files if they are interrupted or replaced, or if another landing commits first.
    Quarantined rows stay.
    """
    folder = open_location(location)
    leftovers = cleaning.clean(folder, older_than=older_than, dry_run=not yes)
    if not leftovers:
        _require_landing(folder, location)
    if leftovers or output != "table":
        show([file._asdict() for file in leftovers], output, LEFTOVERS, whole=yes)
    files = counted(len(leftovers), "file")
    done = f"Removed {files}" if yes else f"{files}; --yes removes them"
    tell(done if leftovers else "Nothing to remove")


def _require_landing(folder: Folder, location: Location) -> None:
    """Raise :class:`NothingLanded` if a folder has neither commits nor drafts."""
    commits = CommitLog(folder)
    if commits.read() is None and not commits.staged():
        raise NothingLanded(f"nothing has landed at {shown_place(location)}; check the path")
