"""The commands from landings to a warehouse: loads, and dbt's description of the tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
import yaml

from airflow_provider_webcollect.cli.connecting import (
    TASKS_FILE,
    at_landing,
    from_airflow,
    open_location,
    parse_landing,
    shown_place,
    storage_option,
)
from airflow_provider_webcollect.cli.output import declared_options, output_option, progress, show
from airflow_provider_webcollect.landing.formats import require
from airflow_provider_webcollect.landing.formats.types import STRING, URL
from airflow_provider_webcollect.landing.options import LoadOptions, check_table
from airflow_provider_webcollect.landing.read import loading
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.transfers.warehouses import DESTINATIONS, configured_warehouse, warehouse_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.collection_tasks import CollectionTasks
    from airflow_provider_webcollect.landing.location import Location
    from airflow_provider_webcollect.landing.reader import LandedData
    from airflow_provider_webcollect.transfers.warehouses import Warehouse

#: The options of a load that differ on the command line from their declarations.
_DIFFERENCES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "primary_key": (
        (),
        {"metavar": "COLUMN", "multiple": True, "help": "merge: the column of the key; may be repeated."},
    ),
}


@click.command()
@at_landing
@click.argument("table", metavar="DATASET.TABLE")
@click.option("--conn-id", "warehouse_conn_id", metavar="ID", help="The Airflow connection of the warehouse.")
@click.option(
    "--destination",
    type=click.Choice(DESTINATIONS),
    metavar="NAME",
    help=f"The warehouse, without Airflow: {', '.join(DESTINATIONS)}. dlt's own configuration has its "
    "credentials, such as the environment variable DESTINATION__POSTGRES__CREDENTIALS.",
)
@declared_options(LoadOptions, _DIFFERENCES)
@output_option
def load(
    location: Location,
    table: str,
    warehouse_conn_id: str | None,
    destination: str | None,
    options: dict[str, Any],
    output: str,
) -> None:
    """Load a landing into a warehouse, each row once.

    A load adds the rows that have landed since the table's last load, by a command or by an operator. If it
    fails or is interrupted, run the same command again. Dataset and table are in lower case, and are created
    if they do not exist; in most warehouses the dataset is a schema. The command needs the extra `dlt`, and
    dlt's own extra for the warehouse, such as `dlt[postgres]`.
    """
    check_table(table)
    chosen = LoadOptions.parse(options)
    warehouse = _warehouse(warehouse_conn_id, destination)
    landed = read_landing(open_location(location))
    with progress("Loading") as on_progress:
        new = loading.load(landed, chosen, table, warehouse.destination, on_progress)
    row = {
        "landing": shown_place(location),
        "table": table,
        "new_rows": new.rows,
        "new_parts": len(new.parts),
        "skipped_rows": new.skipped_rows or None,
        "commit": landed.manifest.commit,
    }
    show([row], output)


def _warehouse(conn_id: str | None, destination: str | None) -> Warehouse:
    if destination and not conn_id:
        return configured_warehouse(destination)
    if destination or not conn_id:
        raise click.UsageError("Exactly one of --conn-id and --destination is needed")
    with from_airflow(conn_id, "--destination"):
        from airflow.providers.common.compat.sdk import BaseHook

        return warehouse_of(BaseHook.get_connection(conn_id))


#: The types of columns in a warehouse, by the landing's types; a decimal has the same name in both.
_TYPES = {
    STRING: "text",
    URL: "text",
    "bool": "boolean",
    "int32": "integer",
    "int64": "bigint",
    "float32": "double precision",
    "float64": "double precision",
    "date32": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamp with time zone",
}
_FRESHNESS = {"warn_after": {"count": 36, "period": "hour"}}


@click.command("dbt-source")
@click.argument("landings", metavar="LANDING...", nargs=-1, required=True)
@storage_option
@click.option(
    "--dataset", metavar="NAME", required=True, help="The dataset of the tables; also the name of the source."
)
@click.option(
    "--table",
    "tables",
    metavar="NAME",
    multiple=True,
    help="The table of a landing, once for each in the same order; by default the folder's name.",
)
@click.option(
    "--collection-tasks",
    metavar="FILE",
    envvar=TASKS_FILE,
    show_envvar=True,
    help="The file of collection tasks, whose names and tags describe the tables.",
)
def dbt_source(
    landings: tuple[str, ...],
    object_storage_conn_id: str | None,
    dataset: str,
    tables: tuple[str, ...],
    collection_tasks: str | None,
) -> None:
    """Write the YAML of a dbt source for landings.

    The source has the tables that loads of the landings create, with columns, types, descriptions and
    freshness, which is the time of the last load with new rows. It requires dbt 1.10 or later. The command
    needs the extra `dlt`.
    """
    from airflow_provider_webcollect.collection_tasks import read_collection_tasks

    require("dlt", "dlt", "names of columns as loads make them")
    if tables and len(tables) != len(landings):
        raise click.UsageError("One --table for each LANDING is needed, or none")
    file = read_collection_tasks(collection_tasks) if collection_tasks else None
    described: dict[str, dict[str, Any]] = {}
    for index, path in enumerate(landings):
        location = parse_landing(path, object_storage_conn_id)
        folder = re.sub("[^a-z0-9]+", "_", location.key.rpartition("/")[2].lower()).strip("_")
        _, name = check_table(f"{dataset}.{tables[index] if tables else folder}")
        if name in described:
            raise click.UsageError(f"two landings have the table {name}: name them with --table")
        described[name] = _dbt_table(read_landing(open_location(location)), dataset, name, file)
    source = {"name": dataset, "tables": [*described.values()]}
    text = yaml.safe_dump({"version": 2, "sources": [source]}, sort_keys=False, allow_unicode=True, width=110)
    click.echo(text, nl=False)


def _dbt_table(landed: LandedData, dataset: str, name: str, file: CollectionTasks | None) -> dict[str, Any]:
    task_id = landed.manifest.source.collection_task_id
    task = file.find(task_id) if file else None
    words = ["Collection task " + (task.name if task else task_id), ", ".join(task.tags if task else ())]
    schema = f"webcollect_{loading.pipeline_digest(landed, f'{dataset}.{name}')}"
    # rows have no time of their load; dlt writes the time of each load that has rows
    query = f"select max(inserted_at) from {dataset}._dlt_loads where schema_name = '{schema}'"  # noqa: S608  # names are checked
    return {
        "name": name,
        # dbt would take these pairs of characters for Jinja
        "description": re.sub(r"\{(?=[{%#])", "{ ", "; ".join(filter(None, words))),
        # not in `config`, where dbt 1.10 would not find it and warn
        "loaded_at_query": query,
        "config": {"freshness": _FRESHNESS},
        "columns": [{"name": column, "data_type": kind} for column, kind in _dbt_columns(landed)],
    }


def _dbt_columns(landed: LandedData) -> Iterator[tuple[str, str]]:
    """Yield the columns that a load makes, as dlt names them, and their types."""
    from dlt.common.normalizers.naming.snake_case import NamingConvention

    types, naming = landed.column_types, NamingConvention()
    for column in landed.table_columns:
        kind = types[column].type if column in types else STRING
        yield naming.normalize_path(column), _TYPES.get(kind, kind)
    yield from ((loading.LANDING, "text"), (loading.PART, "text"), (loading.ROW, "bigint"))
