"""The commands that lead from landings into a warehouse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from airflow_provider_webcollect.cli.connecting import at_landing, from_airflow, open_location, shown_place
from airflow_provider_webcollect.cli.output import declared_options, output_option, progress, show
from airflow_provider_webcollect.landing.options import LoadOptions, check_table
from airflow_provider_webcollect.landing.read import loading
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.transfers.warehouses import DESTINATIONS, configured_warehouse, warehouse_of

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.location import Location
    from airflow_provider_webcollect.transfers.warehouses import Warehouse

#: How options of a load differ on the command line from their declarations.
_DIFFERENCES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "primary_key": (
        (),
        {"metavar": "COLUMN", "multiple": True, "help": "merge: the column of the key, or one of several."},
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
    help=f"The warehouse, to go without Airflow: {', '.join(DESTINATIONS)}. dlt's own configuration has its "
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

    A load adds what has landed since the table's last load, by a command or by an operator. If it fails or is
    interrupted, run the same command again. Dataset and table are in lower case, and are made if they do not
    exist; in most warehouses the dataset is a schema. The command needs the extra `dlt`, and dlt's own extra
    for the warehouse, such as `dlt[postgres]`.
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
