"""The commands on what has landed; they need neither the service nor, without a connection, Airflow."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING

import click

from airflow_provider_webcollect.cli.connecting import storage_location, storage_option
from airflow_provider_webcollect.cli.output import output_option, show, write

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.reader import LandedData

FACTS = ("folder", "rows", "parts", "bytes", "source", "run", "finished_at", "exported_at")
LEFTOVERS = ("name", "bytes", "modified")
REPLACED = ("name", "rows", "parts", "finished_at")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group()
def landing() -> None:
    """Check, print, query and clean up what has landed."""


@landing.command()
@click.argument("path")
@storage_option
@output_option
def verify(path: str, storage_conn_id: str | None, output: str) -> int:
    """Compare all parts with the manifest, and show its facts.

    Compared are presence, bytes, SHA-256 and number of rows. Exit code 1: a part is missing or damaged; what
    is wrong is on standard error.
    """
    from airflow_provider_webcollect.landing.errors import LandingDamaged

    landed = _landed(path, storage_conn_id)
    try:
        landed.verify()
    except LandingDamaged as error:
        click.echo(f"Error: {error}", err=True)
        return 1
    manifest, run = landed.manifest, landed.manifest.run
    row = {
        "folder": landed.uri,
        "rows": manifest.rows,
        "parts": len(manifest.parts),
        "bytes": manifest.bytes,
        "source": str(manifest.source),
        "run": f"{run.dag_id}.{run.task_id} {run.run_id}",
        "finished_at": manifest.finished_at,
        "exported_at": manifest.exported_at,
    }
    show([row], output, FACTS)
    return 0


@landing.command()
@click.argument("path")
@click.option("-n", "--rows", type=click.IntRange(min=1), help="The most rows to write; by default all.")
@click.option("--new-only", is_flag=True, help="Only the rows that the last run has added.")
@storage_option
def cat(path: str, rows: int | None, new_only: bool, storage_conn_id: str | None) -> None:
    """Write the landed rows as JSON lines, whatever their format is."""
    for row in itertools.islice(_landed(path, storage_conn_id).iter_rows(new_only), rows):
        write(json.dumps(row, default=str, ensure_ascii=False).encode() + b"\n")


@landing.command()
@click.argument("path")
@click.argument("query")
@click.option("--new-only", is_flag=True, help="Only the rows that the last run has added.")
@storage_option
@output_option
def sql(path: str, query: str, new_only: bool, storage_conn_id: str | None, output: str) -> None:
    """Run a query of DuckDB over the landed rows.

    The table `landing` has exactly the rows of the parts in the manifest. For example "select city, count(*)
    from landing group by city". The rows must fit into memory.
    """
    import duckdb

    relation = _landed(path, storage_conn_id).to_duckdb(new_only=new_only)
    try:
        found = relation.query("landing", query)
        columns, rows = (found.columns, found.fetchall()) if found is not None else ([], [])
    except duckdb.Error as error:
        raise click.UsageError(str(error)) from error
    show([dict(zip(columns, row, strict=True)) for row in rows], output, columns, exactly=True)


def _age(context: click.Context, option: click.Parameter, value: str) -> float:
    """Return an age such as ``12h`` in seconds."""
    if not (found := re.fullmatch(r"(\d+)([smhd])", value)):
        raise click.BadParameter(f"{value!r} is no age such as 90m, 12h or 2d.")
    return float(found[1]) * _SECONDS[found[2]]


@landing.command()
@click.argument("path")
@click.option(
    "--older-than",
    metavar="AGE",
    default="1d",
    callback=_age,
    help="Only files of this age, such as 90m, 12h, 2d; longer than the longest task that lands.",
)
@click.option("--yes", is_flag=True, help="Remove them; without it they are only listed.")
@storage_option
@output_option
def clean(path: str, older_than: float, yes: bool, storage_conn_id: str | None, output: str) -> None:
    """List the files that no landing needs; --yes removes them.

    Interrupted landings leave such files; the next landing removes most of them itself.
    """
    from airflow_provider_webcollect.landing.cleaning import clean as remove

    found = remove(storage_location(path, storage_conn_id), older_than=older_than, dry_run=not yes)
    show([file._asdict() for file in found], output, LEFTOVERS)
    click.echo(f"Removed: {len(found)}" if yes else f"Found: {len(found)}; --yes removes them", err=True)


@landing.command()
@click.argument("path")
@click.option("--name", help="The replaced manifest to put back; the latest without it.")
@click.option("--yes", is_flag=True, help="Put it back; without it what could be is only listed.")
@storage_option
@output_option
def restore(path: str, name: str | None, yes: bool, storage_conn_id: str | None, output: str) -> None:
    """List the landings that were replaced with --on-reset full; --yes puts one back.

    They stay until they are cleaned up. What is landed now takes the place of the one that is put back.
    """
    from airflow_provider_webcollect.landing import cleaning

    location = storage_location(path, storage_conn_id)
    if yes:
        manifest = cleaning.restore(location, name)
        click.echo(f"Restored: {manifest.rows:,} rows in {len(manifest.parts)} parts", err=True)
        return
    rows = [
        {
            "name": each.name,
            "rows": each.manifest.rows,
            "parts": len(each.manifest.parts),
            "finished_at": each.manifest.finished_at,
        }
        for each in cleaning.replaced_landings(location)
    ]
    show(rows, output, REPLACED)
    click.echo(f"Found: {len(rows)}; --yes puts back the latest, or the one of --name", err=True)


def _landed(path: str, storage_conn_id: str | None) -> LandedData:
    from airflow_provider_webcollect.landing.reader import read_landing

    return read_landing(storage_location(path, storage_conn_id))
