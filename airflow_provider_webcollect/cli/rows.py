"""The commands that read and land a task's rows, and those for landings that are there."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import secrets
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from airflow_provider_webcollect.cli.connecting import (
    WatchShown,
    connect,
    connection_options,
    shown_place,
    storage_location,
    storage_option,
    use_airflow,
)
from airflow_provider_webcollect.cli.output import INTERRUPTED, console, output_option, show, write
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import Run, Source, counted
from airflow_provider_webcollect.landing.options import MAX_PART_BYTES, landing_at, locate, make_options
from airflow_provider_webcollect.landing.run import land as land_rows
from airflow_provider_webcollect.landing.tables import (
    check_table_format,
    check_table_name,
    is_iceberg_table,
    landing_folder,
)
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.endpoints import MAX_DATA_SIZE
from airflow_provider_webcollect.service.errors import Stopped
from airflow_provider_webcollect.service.models import DataPage
from airflow_provider_webcollect.service.pages import PageReader, RowCount
from airflow_provider_webcollect.service.pauses import Stop, first_done, in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


#: What a terminal is sent to show its cursor, which rich hides beside a bar.
SHOW_CURSOR = b"\x1b[?25h"


@click.command()
@click.argument("task_id", metavar="TASK")
@click.option("--lotno", metavar="BATCH", help="Only this batch; else the whole history.")
@click.option("-n", "--rows", type=click.IntRange(min=1), help="The most rows to write; by default all.")
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    default=0,
    help="Where to begin: the cursor of an earlier command.",
)
@connection_options
def read(task_id: str, lotno: str | None, rows: int | None, offset: int, **where: Any) -> None:
    """Write a task's rows as JSON lines.

    They go to standard output as they come. The cursor to go on from is said on standard error at the end.
    Nothing is marked as exported.
    """
    count, left, cursor = 0, 0, offset
    try:
        with connect(**where, patient=True).client() as client:
            for page in _pages(client, task_id, lotno, offset, rows):
                # a whole page, so that the cursor is right also after an interrupt
                with _interrupt_put_off():
                    write(b"".join(bytes(row) + b"\n" for row in page.rows))
                    sys.stdout.buffer.flush()
                    count, left, cursor = count + len(page.rows), page.rest_total, page.offset
    except KeyboardInterrupt:
        click.echo(f"{counted(count, 'row')}; go on with --offset {cursor}", err=True)
        raise
    click.echo(f"{counted(count, 'row')}, {left:,} are left; go on with --offset {cursor}", err=True)


@contextlib.contextmanager
def _interrupt_put_off(on_first: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Put off an interrupt (Ctrl-C) until the block has ended; a second one ends the process at once.

    :param on_first: called at the first one.
    :raises KeyboardInterrupt: after the block, if there was one.
    """
    interrupts: list[int] = []

    def handle(signum: int, frame: object) -> None:
        if interrupts:
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR)
            os._exit(INTERRUPTED)
        interrupts.append(signum)
        on_first()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def _pages(
    client: Client, task_id: str, lotno: str | None, offset: int, rows: int | None
) -> Iterator[DataPage]:
    if rows is None:
        yield from PageReader(client, task_id, lotno).pages(offset)
        return
    count, is_from_start = RowCount(), offset <= 0
    while rows > 0:
        page = PageReader(client, task_id, lotno, size=min(rows, MAX_DATA_SIZE)).read(offset)
        if is_from_start:
            count.add(len(page.rows), page.total, more=page.rest_total > 0)
        yield page
        if page.rest_total <= 0:
            if is_from_start:
                count.check_end()
            return
        offset, rows = page.offset, rows - len(page.rows)


def _decoded_json(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    """Return a JSON value, which the landing checks."""
    try:
        return None if value is None else json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no JSON: {error}.") from error


@click.command()
@click.argument("task_id", metavar="TASK")
@click.argument("path", metavar="DESTINATION")
@click.option("--lotno", metavar="BATCH", help="Only this batch; else the whole history.")
@click.option(
    "--table-format",
    type=click.Choice(["delta", "iceberg"]),
    help="Make DESTINATION a table; without it, it is a folder with a manifest.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    help="Of the parts: by default jsonl, and parquet for a table.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "zstd", "snappy"]),
    help="Of the parts; by default snappy for Parquet, else none.",
)
@click.option(
    "--column", "columns", metavar="NAME", multiple=True, help="Only this one; may be repeated, in order."
)
@click.option("--mode", type=click.Choice(["full", "incremental"]), default="full")
@click.option(
    "--on-reset",
    type=click.Choice(["fail", "full", "append"]),
    default="fail",
    help="incremental: what to do if the source has lost rows.",
)
@click.option(
    "--if-exists",
    type=click.Choice(["fail", "overwrite", "skip"]),
    default="fail",
    help="full: what to do if another landing is complete there.",
)
@click.option("--partition", metavar="NAME=VALUE", help="A folder in DESTINATION for the new parts.")
@click.option("--mark-exported", is_flag=True, help="Confirm the export to the service after the commit.")
@click.option("--settle", type=click.FloatRange(min=0), default=15.0, help="Seconds to wait for late rows.")
@click.option("--page-size", type=click.IntRange(1, 1000), default=1000, help="Rows per request.")
@click.option(
    "--max-part-bytes", type=click.IntRange(min=1), help="A part ends at this size; 128 MiB without it."
)
@click.option(
    "--run-id",
    metavar="NAME",
    help="A name for this landing: with the same one, a landing that is complete is left as it is.",
)
@click.option(
    "--checks",
    metavar="JSON",
    callback=_decoded_json,
    help="""What the rows must be, such as '{"columns": {"price": {"filled": 0.95}}}'.""",
)
@click.option(
    "--on-failed-checks",
    type=click.Choice(["fail", "warn", "quarantine"]),
    default="fail",
    help="fail: land nothing; quarantine: set the rows apart (incremental).",
)
@storage_option
@connection_options
@output_option
def land(task_id: str, path: str, conn_id: str | None, url: str | None, output: str, **options: Any) -> None:
    """Land a task's rows in a folder, exactly once.

    DESTINATION is a folder on disk, such as /data/prices or ./prices, or on object storage, such as
    s3://bucket/prices; or the name of a table of Iceberg, catalog.namespace.table. Interrupt it, and the same
    command goes on after the last finished part. The rows count once _manifest.json is there, which is
    written last, or once the table has them.
    """
    stop = Stop()
    location = _location(path, options["table_format"], options.pop("storage_conn_id"))
    with connect(conn_id, url, patient=True).client(stop) as client, _progress() as on_progress:
        landing = _landing(client, task_id, location, on_progress, **options)
        landed = _until_interrupted(landing, stop)
    manifest = landed.manifest
    row = {
        "folder": shown_place(location),
        "new_rows": sum(part.rows for part in landed.new),
        "new_parts": len(landed.new),
        "rows": manifest.rows,
        "parts": len(manifest.parts),
        "bytes": manifest.bytes,
        "finished_at": manifest.finished_at,
        "exported_at": manifest.exported_at,
    }
    show([row], output)


def _location(path: str, table_format: str | None, storage_conn_id: str | None) -> Any:
    """Return where to land: a table of Iceberg is made if it is not there."""
    if table_format != "iceberg":
        return storage_location(path, storage_conn_id)
    use_airflow()
    from airflow_provider_webcollect.destinations import ICEBERG_DEFAULT, new_iceberg_table

    return new_iceberg_table(check_table_name("path", path), storage_conn_id or ICEBERG_DEFAULT)


def _landing(
    client: Client,
    task_id: str,
    location: Any,
    on_progress: Callable[[int, int], object],
    *,
    lotno: str | None,
    run_id: str | None,
    table_format: str | None,
    file_format: str | None,
    compression: str | None,
    columns: tuple[str, ...],
    max_part_bytes: int | None,
    **options: Any,
) -> Callable[[], Landed]:
    """Return what lands; it says on standard error what it waits for."""

    class Shown(WatchShown):
        def on_progress(self, rows: int, total: int) -> None:
            on_progress(rows, total)

        def on_settle(self, seconds: float) -> None:
            click.echo(f"Waiting {seconds:.0f} s for late rows (--settle)", err=True)

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return functools.partial(
        land_rows,
        client,
        Source(collection_task_id=validation.text("task_id", task_id), lotno=lotno or None),
        landing_at(location)
        if is_iceberg_table(location)
        else landing_folder(*locate(location), table_format=table_format),
        Run(dag_id="webcollect", task_id="land", run_id=run_id or f"{now} {secrets.token_hex(4)}"),
        make_options(
            make_format(check_table_format(table_format, file_format), compression, columns or None),
            max_part_bytes=max_part_bytes or MAX_PART_BYTES,
            **options,
        ),
        observer=Shown(location),
    )


def _until_interrupted(land_rows: Callable[[], Landed], stop: Stop) -> Landed:
    """Land; an interrupt ends the landing where the next command can go on at once."""

    def end() -> None:
        stop.set()
        click.echo("Ending; the same command goes on from what is finished.", err=True)

    with contextlib.suppress(KeyboardInterrupt), _interrupt_put_off(end):
        landing = in_background(land_rows, "webcollect-land")
        first_done([landing])
    try:
        return landing.result()  # also after an interrupt, if all was committed already
    except Stopped as stopped:
        raise KeyboardInterrupt from stopped


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], object]]:
    """Show a bar on a terminal; yield what takes the rows so far and all rows."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = console(stderr=True)
    if not shown.is_terminal:
        yield lambda rows, total: None
        return
    columns = (
        TextColumn("Landing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=shown, transient=True) as progress:
        bar = progress.add_task("landing", total=None)
        yield lambda rows, total: progress.update(bar, completed=rows, total=total)
